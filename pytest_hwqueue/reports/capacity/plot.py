"""The plot of ``hwq capacity``: P99, and what others lose, against the rate; matplotlib late."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_hwqueue.capacity.file import CapacityCase, CapacityFile
from pytest_hwqueue.capacity.table import front
from pytest_hwqueue.reports.capacity.words import capacity, title
from pytest_hwqueue.reports.latency_plot import INSTALL, can_plot
from pytest_hwqueue.reports.which.words import SIMULATED
from pytest_hwqueue.which.file import WhichFigure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH_IN, _PANEL_IN = 9.0, 4.2
_COLOURS = 10


def capacity_svg(found: CapacityFile) -> str:
    """Plot each scheduler's P99 and the others' loss against the rate, one panel below the other.

    Filled marks held, crosses broke, hollow ones stayed undecided. A band reaches from the greatest
    rate shown to hold to the least shown to break. Grey steps join what no other rate or scheduler
    beats in load and loss.

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
        panels = 1 + len(found.others)
        drawing = Figure(figsize=(_WIDTH_IN, _PANEL_IN * panels), layout="constrained")
        FigureCanvasSVG(drawing)
        drawing.suptitle(f"{title(found)}\n{SIMULATED}" if found.simulated else title(found))
        for row in range(panels):
            axes = drawing.add_subplot(panels, 1, row + 1)
            axes.set_xscale("log")
            axes.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))
            axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axes.xaxis.set_minor_formatter(StrMethodFormatter("{x:g}"))
            axes.set_xlabel(f"requests of {found.tenant} per second")
            if row == 0:
                _draw_p99(axes, found)
                axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.02, 0.5))
            else:
                _draw_lost(axes, found, found.others[row - 1])
        text = io.StringIO()
        drawing.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _draw_p99(axes: Axes, found: CapacityFile) -> None:
    axes.set_yscale("log")
    axes.set_ylabel(f"P99 of {found.tenant}, ms")
    if found.p99_goal_ms is not None:
        axes.axhline(found.p99_goal_ms, color="black", linestyle=":", gid="goal", label="the goal")
    for number, case in enumerate(found.cases):
        colour = f"C{number % _COLOURS}"
        low, high = case.capacity_per_s.low, case.capacity_per_s.high
        if low and high:
            axes.axvspan(low, high, color=colour, alpha=0.12, linewidth=0)
        points = [(rate.rate_per_s, rate.p99_ms, rate.verdict) for rate in case.rates]
        _draw_points(axes, case, points, colour, 1.0, f"{case.id}, {capacity(case)} /s")


def _draw_lost(axes: Axes, found: CapacityFile, other: str) -> None:
    axes.set_ylabel(f"throughput alone that {other} loses, %")
    for number, case in enumerate(found.cases):
        points = [
            (rate.rate_per_s, rate.lost[other], rate.verdict)
            for rate in case.rates
            if other in rate.lost
        ]
        _draw_points(axes, case, points, f"C{number % _COLOURS}", 100.0, case.id)
    best = [(rate.rate_per_s, rate.lost[other].value) for _, rate in front(found.cases, other)]
    best = [(rate, 100 * lost) for rate, lost in best if lost is not None]
    if best:
        rates, lost = zip(*best, strict=True)
        axes.step(rates, lost, where="pre", color="0.6", linewidth=4, alpha=0.4, gid="front")


def _draw_points(
    axes: Axes, case: CapacityCase, points: Sequence[tuple[float, WhichFigure, str | None]],
    colour: str, scale: float, label: str,
) -> None:  # fmt: skip
    known = [(rate, seen, verdict) for rate, seen, verdict in points if seen.value is not None]
    rates = [rate for rate, _, _ in known]
    values = [scale * (seen.value or 0.0) for _, seen, _ in known]
    axes.plot(rates, values, color=colour, linewidth=1.0, gid=f"rates {case.id}", label=label)
    for (rate, seen, verdict), value in zip(known, values, strict=True):
        ends = [value if end is None else scale * end for end in (seen.low, seen.high)]
        axes.errorbar(
            rate, value, [[max(0.0, value - ends[0])], [max(0.0, ends[1] - value)]],
            color=colour, linewidth=0.8, capsize=2, marker="x" if verdict == "broken" else "o",
            markersize=5, fillstyle="full" if verdict == "held" else "none",
        )  # fmt: skip
