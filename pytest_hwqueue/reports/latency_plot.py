"""Plots tenants' latency distributions under each scheduler as SVG; imports matplotlib late."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

INSTALL = "the plot needs matplotlib, which is not installed: pip install 'pytest-hwqueue[report]'"

_GRID = ((0.5, "P50"), (0.1, "P90"), (0.01, "P99"), (0.001, "P99.9"))
_STYLES = {"processes": "-", "threads": "--"}
_COLOURS = 10
_NS_PER_MS = 1e6
_WIDTH_IN, _PANEL_IN = 9.0, 4.8


@dataclass(frozen=True)
class Curve:
    """One tenant's latencies in one case.

    Attributes:
        case: id of the case; names the curve in the legend, and in the SVG (``curve CASE``).
        placement: ``processes`` (a solid line) or ``threads`` (a dashed one).
        latency_ns: of each completed request, from its scheduled arrival.
        issued: all requests; those never completed keep the curve above zero.
        solo: whether the tenant was alone: a black line.

    """

    case: str
    placement: str
    latency_ns: Sequence[int]
    issued: int
    solo: bool = False


@dataclass(frozen=True)
class Panel:
    """One tenant's curves under all schedulers."""

    title: str
    curves: Sequence[Curve]


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def latency_svg(title: str, panels: Sequence[Panel]) -> str:
    """Plot the share of requests that took at least a given time, on logarithmic axes.

    Requests that were never completed count among those that took longer.

    Args:
        title: names device and scenario, and says if it is simulated.
        panels: drawn one below the other; at least one, each with a curve that has a latency.

    Raises:
        ModuleNotFoundError: if matplotlib is not installed; the text says how to get it.

    """
    if not can_plot():
        raise ModuleNotFoundError(INSTALL)
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    # Text stays text, and equal figures give equal files.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "pytest-hwqueue"}):
        figure = Figure(figsize=(_WIDTH_IN, _PANEL_IN * len(panels)), layout="constrained")
        FigureCanvasSVG(figure)
        figure.suptitle(title)
        for row, panel in enumerate(panels):
            axes = figure.add_subplot(len(panels), 1, row + 1)
            axes.set_title(panel.title, fontsize="medium")
            axes.set_xscale("log")
            axes.set_yscale("log")
            # Latencies of one tenant seldom span decades: 0.5 says more than a power of ten.
            axes.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))
            axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axes.xaxis.set_minor_formatter(StrMethodFormatter("{x:g}"))
            axes.set_xlabel("latency from the scheduled arrival, ms")
            axes.set_ylabel("share of requests that took at least this long")
            for share, name in _GRID:
                axes.axhline(share, color="0.85", linewidth=0.8, zorder=0)
                axes.annotate(
                    name, (1, share), xycoords=("axes fraction", "data"), xytext=(3, 0),
                    textcoords="offset points", va="center", fontsize="small", color="0.4",
                )  # fmt: skip
            coloured = 0
            for curve in panel.curves:
                colour = "black" if curve.solo else f"C{coloured % _COLOURS}"
                coloured += not curve.solo
                times_ms, shares = survival(curve)
                axes.step(
                    times_ms, shares, where="pre", color=colour, gid=f"curve {curve.case}",
                    linestyle=_STYLES[curve.placement], linewidth=1.3,
                    label=f"{curve.case}, n = {curve.issued}",
                )  # fmt: skip
            axes.set_ylim(top=1.2)
            axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.06, 0.5))
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def survival(curve: Curve) -> tuple[list[float], list[float]]:
    """Return each latency in ms, ascending, and the share of requests that took at least that.

    The first share is 1; the last is that of the slowest completed request and those that never
    completed.
    """
    times = np.sort(np.asarray(curve.latency_ns, dtype=np.float64)) / _NS_PER_MS
    shares = (curve.issued - np.arange(times.size)) / curve.issued
    return times.tolist(), shares.tolist()
