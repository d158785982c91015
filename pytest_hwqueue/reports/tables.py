"""Tables of a family's cells, and of scaling over streams."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from pytest_hwqueue.harness.summary import find_sweeps, scaling_of
from pytest_hwqueue.metrics.numbers import REFUSED, counted, percent, rate, times
from pytest_hwqueue.metrics.scaling import SATURATED_SHARE, Scaling
from pytest_hwqueue.records.cell import Cell, RunRecord
from pytest_hwqueue.reports.cell_rows import PERCENTILES, CellRows, other_series
from pytest_hwqueue.reports.grid import Column, Grid, Row, flow, paragraph, print_below
from pytest_hwqueue.reports.notes import CellNames, Notes, how_timed, title


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


_LATENCY = ("p50", "p95", "p99")
_TIMES = (*_LATENCY, "p999", "max")
_DEVICE = ("after_other", "after_same", "in_flight", "overlap", "memory")
# From the most columns to the fewest. What has no column goes into a line below its cell, except
# P95, P99.9 and the maximum, which narrow tables leave to the records.
_LAYOUTS: tuple[tuple[str, ...], ...] = (
    (*_LATENCY, "p999", "max", "throughput", "throughput_interval", *_DEVICE),
    (*_LATENCY, "p999", "max", "throughput", *_DEVICE),
    (*_LATENCY, "throughput", *_DEVICE),
    (*_LATENCY, "p999", "max", "throughput", "throughput_interval"),
    (*_LATENCY, "p999", "max", "throughput"),
    (*_LATENCY, "throughput"),
    (*_LATENCY, "p999", "max"),
    _LATENCY,
    ("p50", "p99"),
)
# Each layout with names on one line, then folded; at last with settings below the name.
_ATTEMPTS = tuple(
    (layout, folded, False) for layout in _LAYOUTS for folded in (False, True)
) + tuple((layout, True, True) for layout in _LAYOUTS[-2:])
_FIGURES = (
    Column("n", "n", right=True),
    Column("p50", "P50", shares=_TIMES),
    Column("p95", "P95", shares=_TIMES),
    Column("p99", "P99", shares=_TIMES),
    Column("p999", "P99.9", shares=_TIMES),
    Column("max", "max", shares=_TIMES),
    Column("throughput", "throughput", unit_in_header=False),
    Column("after_other", "ready→start", "after other"),
    Column("after_same", "ready→start", "after same"),
    Column("in_flight", "kernels", "in flight"),
    Column("overlap", "overlap"),
    Column("memory", "peak", "memory", unit_in_header=False),
)
_SHARE_OF_NAME = 0.3


class FamilyTable:
    """One family's records, laid out for a given width."""

    def __init__(self, family: str, records: Sequence[RunRecord], width: int) -> None:
        self._family = family
        self._records = records
        self._width = width
        self._names = CellNames([record.cell for record in records])

    def draw(self, console: Console) -> None:
        """Print title, table and notes."""
        family = f"{self._family} in {self._names.file}" if self._names.file else self._family
        console.print(title(family, self._records, f": {self._what()}"))
        constants = self._names.constants()
        if constants:
            text = flow(constants, self._width)
            text.stylize("dim")
            console.print(text)
        for layout, folded, merged in _ATTEMPTS:
            grid, notes = self._grid(layout, folded, merged)
            if grid.width <= self._width:
                width = grid.draw(console)
                break
        else:
            width, notes = self._width, self._draw_stacked(console)
        for line in notes.lines(len(self._records)):
            console.print(paragraph(line, width))

    def _what(self) -> str:
        measured = [record for record in self._records if record.samples is not None]
        if not measured:
            return "nothing was measured"
        whole = [record for record in measured if record.primary.per == "iteration"]
        if not whole:
            return "latency of what stands behind each name, from events"
        how = how_timed(whole)
        if len(whole) == len(measured):
            return f"latency per iteration, {how}"
        return f"latency of what stands behind each name; whole iterations {how}"

    def _grid(self, layout: tuple[str, ...], folded: bool, merged: bool) -> tuple[Grid, Notes]:
        # A percentile that was refused everywhere has no column: the option's help says what it
        # needs, and P50 to P99 say it below the table.
        if all(_refused(record, "p999") for record in self._records):
            layout = tuple(key for key in layout if key != "p999")
        notes = Notes()
        rows: list[Row] = []
        ratios = [name for record in self._records for name in record.metrics.ratios]
        once = len(ratios) > len(set(ratios))
        for record in self._records:
            cell_rows = CellRows(record, self._name(record.cell), layout, notes)
            found = cell_rows.rows(self._identity(record.cell), once)
            if merged:
                _merge(found[0], self._settings(record.cell))
            rows += found
        widest = max(16, int(self._width * _SHARE_OF_NAME)) if folded else None
        columns = [Column("workload", "workload", widest=widest)]
        if not merged:
            columns += [
                Column(key, header, right=key == "streams", widest=widest)
                for key, header, _ in self._names.varying
            ]
        columns += [c for c in _FIGURES if c.key in ("n", *layout)]
        return Grid(columns, rows), notes

    def _identity(self, cell: Cell) -> dict[str, str]:
        varying = {key: say(cell) for key, _, say in self._names.varying}
        return {"workload": self._names.workload(cell)} | varying

    def _name(self, cell: Cell) -> str:
        name, settings = self._names.workload(cell), self._settings(cell)
        return f"{name} ({settings})" if settings else name

    def _settings(self, cell: Cell) -> str:
        """Return what distinguishes the cell besides its name, such as ``8 streams, graph``."""
        return ", ".join(self._names.settings(cell))

    def _draw_stacked(self, console: Console) -> Notes:
        """Print cells one below the other, for terminals too narrow for a table."""
        notes = Notes()
        for record in self._records:
            name = self._name(record.cell)
            cell_rows = CellRows(record, name, ("p50", "p95", "p99"), notes)
            for row in cell_rows.rows({"workload": name}, True):
                console.print(Text(row.texts["workload"], style=row.style or "bold"))
                parts = [f"n {row.texts['n']}"] if "n" in row.texts else []
                parts += [
                    f"{PERCENTILES[key]} {figures[0]}" for key, figures in row.figures.items()
                ]
                print_below(console, ([parts] if parts else []) + row.below, self._width)
        return notes


def _merge(row: Row, settings: str) -> None:
    if settings:
        row.texts["workload"] += f"\n  {settings}"


def _refused(record: RunRecord, key: str) -> bool:
    summaries = [record.metrics.latency, *other_series(record).values()]
    return all(summary is None or getattr(summary, key) is None for summary in summaries)
