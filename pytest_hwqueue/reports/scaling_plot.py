"""Plots throughput over numbers of streams as SVG; imports matplotlib late."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from pytest_hwqueue.metrics.numbers import counted
from pytest_hwqueue.metrics.scaling import Scaling
from pytest_hwqueue.reports.latency_plot import INSTALL, can_plot

_COLOURS = 10
_WIDTH_IN, _PANEL_IN = 9.0, 4.2
_LEGEND_WIDTH = 44
_HEADROOM = 1.05


@dataclass(frozen=True)
class ScalingCurve:
    """How one cell scales.

    Attributes:
        label: distinguishes it within its panel; its name in the SVG (``curve LABEL``).
        scaling: its figures.
        taken_over: counts that another session measured; their markers are hollow.

    """

    label: str
    scaling: Scaling
    taken_over: Collection[int] = field(default_factory=frozenset)


@dataclass(frozen=True)
class ScalingPanel:
    """Curves of one device and one unit."""

    title: str
    unit: str
    curves: Sequence[ScalingCurve]


def scaling_svg(title: str, panels: Sequence[ScalingPanel]) -> str:
    """Plot throughput over streams with intervals, and each curve's saturation.

    Args:
        title: of the whole.
        panels: drawn one below another; at least one, each with at least one curve.

    Raises:
        ModuleNotFoundError: if matplotlib is not installed; the text says how to get it.

    """
    if not can_plot():
        raise ModuleNotFoundError(INSTALL)
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    def draw(axes: Axes, curve: ScalingCurve, colour: str) -> None:
        points = curve.scaling.points
        counts = [point.streams for point in points]
        rates = [point.throughput.value for point in points]
        axes.plot(
            counts, rates, color=colour, linewidth=1.3, gid=f"curve {curve.label}",
            label="\n".join(textwrap.wrap(f"{curve.label}: {_saturation(curve)}", _LEGEND_WIDTH)),
        )  # fmt: skip
        for point in points:
            value, interval = point.throughput.value, point.throughput.interval
            low, high = (value, value) if interval is None else interval
            axes.errorbar(
                [point.streams], [value], yerr=[[value - low], [high - value]], color=colour,
                capsize=3, marker="o", markersize=5,
                markerfacecolor="white" if point.streams in curve.taken_over else colour,
            )  # fmt: skip
        saturated, within = curve.scaling.saturation_streams, curve.scaling.saturation_range
        if saturated is not None and within is not None:
            axes.axvline(
                saturated, color=colour, linestyle=":", linewidth=1,
                gid=f"saturation {curve.label}",
            )  # fmt: skip
            axes.axvspan(*within, color=colour, alpha=0.07, linewidth=0)

    # Text stays text, and equal figures give equal files.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "pytest-hwqueue"}):
        figure = Figure(figsize=(_WIDTH_IN, _PANEL_IN * len(panels)), layout="constrained")
        FigureCanvasSVG(figure)
        figure.suptitle(title)
        for row, panel in enumerate(panels):
            axes = figure.add_subplot(len(panels), 1, row + 1)
            axes.set_title(panel.title, fontsize="medium")
            axes.set_xscale("log", base=2)
            counts = {point.streams for each in panel.curves for point in each.scaling.points}
            axes.xaxis.set_major_locator(FixedLocator(sorted(counts)))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axes.set_xlabel("streams")
            axes.set_ylabel(panel.unit)
            for number, curve in enumerate(panel.curves):
                draw(axes, curve, f"C{number % _COLOURS}")
            _, top = axes.get_ylim()
            axes.set_ylim(0, _HEADROOM * top)
            axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.02, 0.5))
        if any(curve.taken_over for panel in panels for curve in panel.curves):
            figure.supxlabel("hollow: measured in an earlier session", fontsize="small")
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _saturation(curve: ScalingCurve) -> str:
    found = curve.scaling
    if found.saturation_streams is None or found.saturation_range is None:
        return found.refused["saturation_streams"]
    low, high = found.saturation_range
    within = "" if low == high else f" ({low} to {high})"
    return f"saturated from {counted(found.saturation_streams, 'stream')} on{within}"
