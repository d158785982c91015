"""The table of a sweep over streams: throughput, speedup, efficiency and saturation."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from pytest_hwqueue.metrics.numbers import REFUSED, counted, percent, rate, times
from pytest_hwqueue.metrics.scaling import SATURATED_SHARE, Scaling
from pytest_hwqueue.records.cell import Cell, RunRecord
from pytest_hwqueue.reports.grid import Column, Grid, Row, flow, paragraph
from pytest_hwqueue.reports.notes import Notes
from pytest_hwqueue.sweeps.earlier import origin
from pytest_hwqueue.sweeps.sweeps import find_sweeps, scaling_of


def saturated_from(records: Sequence[RunRecord]) -> list[tuple[Cell, str]]:
    """Return each sweep's first cell, and the least number of streams that saturates it."""
    found = []
    for sweep in find_sweeps(records):
        try:
            result = scaling_of(sweep)
        except ValueError:
            # Its table, which -v prints, says why.
            words = "unknown"
        else:
            least = result.saturation_streams
            words = f"none up to {sweep[-1].cell.streams}" if least is None else str(least)
        found.append((sweep[0].cell, words))
    return found


def draw_scaling(console: Console, records: Sequence[RunRecord], readings: set[str]) -> None:
    """Print a table for each cell measured at two or more numbers of streams.

    Args:
        console: where to.
        records: of any status; those that were not measured are left out.
        readings: explanations already printed; new ones are added.

    """
    for sweep in find_sweeps(records):
        _draw(console, sweep, readings)
        console.print()


def _draw(console: Console, sweep: Sequence[RunRecord], readings: set[str]) -> None:
    try:
        result = scaling_of(sweep)
    except ValueError as error:
        console.print(_title(sweep[0].cell, "Scaling"))
        console.print(paragraph(f"cannot be told: {error}", console.width, "red"))
        return
    console.print(_title(sweep[0].cell, f"{result.kind} scaling".capitalize()))
    notes = Notes()
    grid = _grid(result, notes)
    if grid.width > console.width:
        notes = Notes()
        grid = _grid(result, notes, intervals=False)
    if grid.width <= console.width:
        width = grid.draw(console)
    else:
        width = console.width
        for row in grid.rows:
            figures = (f"{key} {shown[0]}" for key, shown in row.figures.items())
            parts = [counted(int(row.texts["streams"]), "stream"), *figures]
            console.print(flow([*parts, *filter(None, [row.texts["mark"]])], width))
    console.print(paragraph(saturation(result), width, ""))
    for line in _taken_over(sweep):
        console.print(paragraph(line, width, ""))
    if result.reading not in readings:
        readings.add(result.reading)
        console.print(paragraph(result.reading, width))
    for line in notes.lines(len(result.points)):
        console.print(paragraph(line, width))


def _title(cell: Cell, what: str) -> Text:
    parts = [cell.device, f"scheduler {cell.scheduler}", f"dispatch {cell.dispatch}"]
    if cell.sync_mode != "per_iteration":
        parts.append(f"sync mode {cell.sync_mode}")
    if cell.variant:
        parts.append(cell.variant)
    return Text.assemble((f"{what} of {cell.name}", "bold"), f" over streams: {', '.join(parts)}")


def _grid(result: Scaling, notes: Notes, intervals: bool = True) -> Grid:
    rows = []
    greatest = max(point.throughput.value for point in result.points)
    for point in result.points:
        name = counted(point.streams, "stream")
        interval = point.throughput.interval if intervals else None
        if intervals and point.throughput.interval is None:
            notes.refuse("interval of throughput", point.throughput.refused["interval"], name)
        base = point.streams == result.base_streams
        for field, reason in point.refused.items():
            whole = not field.endswith("_interval")
            told_above = field.removesuffix("_interval") in point.refused and not whole
            if (intervals or whole) and not base and not told_above:
                notes.refuse(field.replace("_interval", "'s interval"), reason, name)
        # The base is compared with itself: its ones are by definition, not measured.
        kept = intervals and not base
        rows.append(
            Row(
                texts={
                    "streams": str(point.streams),
                    "mark": "saturated" if point.streams == result.saturation_streams else "",
                },
                figures={
                    "throughput": [
                        rate(point.throughput.value, result.unit, interval, like=greatest)
                    ],
                    "speedup": [
                        REFUSED
                        if point.speedup is None
                        else times(point.speedup, point.speedup_interval if kept else None)
                    ],
                    "efficiency": [
                        REFUSED
                        if point.efficiency is None
                        else percent(point.efficiency, point.efficiency_interval if kept else None)
                    ],
                },
            )
        )
    against = f"against {counted(result.base_streams, 'stream')}"
    columns = [
        Column("streams", "streams", right=True),
        Column("throughput", "throughput"),
        Column("speedup", "speedup", against, unit_in_header=False),
        Column("efficiency", "efficiency", "speedup / streams", unit_in_header=False),
        Column("mark", ""),
    ]
    return Grid(columns, rows)


def _taken_over(sweep: Sequence[RunRecord]) -> list[str]:
    """Return which counts another session measured."""
    counts: dict[str, list[int]] = {}
    for record in sweep:
        session = origin(record)
        if session is not None:
            counts.setdefault(session, []).append(record.cell.streams)
    return [
        f"Measured in session {session}: {', '.join(map(str, some[:-1]))}"
        f"{' and ' if some[:-1] else ''}{counted(some[-1], 'stream')}."
        for session, some in counts.items()
    ]


def saturation(result: Scaling) -> str:
    """Return from which count of streams on throughput is saturated, or why that is not known."""
    if result.saturation_streams is None or result.saturation_range is None:
        return f"Saturation {REFUSED}: {result.refused['saturation_streams']}."
    low, high = result.saturation_range
    within = f"{low}" if low == high else f"{low} to {high}"
    return (
        f"Saturated from {counted(result.saturation_streams, 'stream')} on ({within} in "
        f"{result.confidence * 100:.0f} % of resamples): the least count that reaches "
        f"{SATURATED_SHARE * 100:.0f} % of the greatest throughput."
    )
