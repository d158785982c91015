"""How a cell's throughput scales over streams, in the words of the terminal's table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_hwqueue.metrics.numbers import REFUSED, percent, rate, times
from pytest_hwqueue.metrics.scaling import ScaledPoint, Scaling
from pytest_hwqueue.reports.page.cells import PageCell
from pytest_hwqueue.reports.scaling_table import saturation
from pytest_hwqueue.sweeps.sweeps import find_sweeps, scaling_of


@dataclass(frozen=True)
class ScalingView:
    """A sweep over streams; ``chart`` has the numbers to draw, None if there are none."""

    title: str
    saturation: str
    reading: str
    rows: list[tuple[str, ...]]
    chart: dict[str, Any] | None
    reasons: list[str]


def scaling_views(cells: Sequence[PageCell]) -> dict[str, ScalingView]:
    """Return the scaling of each cell that was measured at several counts, by the cell's key.

    Cells of one sweep share their view; one that cannot be computed has the reason and no rows.
    """
    views: dict[str, ScalingView] = {}
    sessions: dict[Any, list[PageCell]] = {}
    for cell in cells:
        sessions.setdefault(cell.folder, []).append(cell)
    for those in sessions.values():
        keys = {id(cell.shown): cell.key for cell in those}
        for sweep in find_sweeps([cell.shown for cell in those]):
            try:
                view = _view(sweep[0].cell.name, scaling_of(sweep))
            except ValueError as error:
                title = f"{sweep[0].cell.name} over streams"
                view = ScalingView(title, f"Scaling cannot be told: {error}.", "", [], None, [])
            views |= {keys[id(record)]: view for record in sweep}
    return views


def _view(name: str, result: Scaling) -> ScalingView:
    greatest = max(point.throughput.value for point in result.points)
    reasons = dict.fromkeys(
        reason
        for point in result.points
        for reason in (*point.refused.values(), *point.throughput.refused.values())
    )
    return ScalingView(
        title=f"{result.kind} scaling of {name} over streams".capitalize()
        if result.kind
        else f"{name} over streams",
        saturation=saturation(result),
        reading=result.reading,
        rows=[_row(point, result, greatest) for point in result.points],
        chart={
            "unit": result.unit,
            "streams": [point.streams for point in result.points],
            "throughput": [point.throughput.value for point in result.points],
            "low": [_end(point, 0) for point in result.points],
            "high": [_end(point, 1) for point in result.points],
            "saturation": result.saturation_streams,
            "range": result.saturation_range,
        },
        reasons=list(reasons),
    )


def _end(point: ScaledPoint, which: int) -> float | None:
    interval = point.throughput.interval
    return None if interval is None else interval[which]


def _row(point: ScaledPoint, result: Scaling, greatest: float) -> tuple[str, ...]:
    base = point.streams == result.base_streams
    speedup, efficiency = REFUSED, REFUSED
    if point.speedup is not None:
        speedup = times(point.speedup, None if base else point.speedup_interval)
    if point.efficiency is not None:
        efficiency = percent(point.efficiency, None if base else point.efficiency_interval)
    shown = rate(point.throughput.value, result.unit, point.throughput.interval, like=greatest)
    return str(point.streams), str(shown), str(speedup), str(efficiency)
