"""Tables of a family's cells, and of scaling over streams."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from pytest_hwqueue.harness.summary import find_sweeps, scaling_of
from pytest_hwqueue.metrics.numbers import REFUSED, counted, percent, rate, times
from pytest_hwqueue.metrics.scaling import SATURATED_SHARE, Scaling
from pytest_hwqueue.records.cell import Cell, RunRecord
from pytest_hwqueue.reports.cell_rows import COLUMNS, CellRows, other_series
from pytest_hwqueue.reports.document import Column, Row, Table
from pytest_hwqueue.reports.grid import draw_table, flow, paragraph
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
    width = draw_table(console, _scaling_table(result))
    console.print(paragraph(saturation(result), width, ""))
    if result.reading not in readings:
        readings.add(result.reading)
        console.print(paragraph(result.reading, width))


def _title(cell: Cell, what: str) -> Text:
    parts = [cell.device, f"scheduler {cell.scheduler}", f"dispatch {cell.dispatch}"]
    if cell.sync_mode != "per_iteration":
        parts.append(f"sync mode {cell.sync_mode}")
    if cell.variant:
        parts.append(cell.variant)
    return Text.assemble((f"{what} of {cell.name}", "bold"), f" over streams: {', '.join(parts)}")


def _scaling_table(result: Scaling) -> Table:
    notes = Notes()
    rows = []
    greatest = max(point.throughput.value for point in result.points)
    for point in result.points:
        name = counted(point.streams, "stream")
        given = point.throughput
        if given.interval is None:
            notes.refuse("interval of throughput", given.refused["interval"], name)
        # The base is compared with itself: its ones are by definition, not measured.
        base = point.streams == result.base_streams
        for field, reason in point.refused.items():
            whole = not field.endswith("_interval")
            told_above = field.removesuffix("_interval") in point.refused and not whole
            if not base and not told_above:
                notes.refuse(field.replace("_interval", "'s interval"), reason, name)
        saturated = point.streams == result.saturation_streams
        row = Row({"streams": str(point.streams), "mark": "saturated" if saturated else ""})
        row.figures["throughput"] = [rate(given.value, result.unit, given.interval, like=greatest)]
        for key, show in (("speedup", times), ("efficiency", percent)):
            value, interval = getattr(point, key), getattr(point, f"{key}_interval")
            shown = REFUSED if value is None else show(value, None if base else interval)
            row.figures[key] = [shown]
        rows.append(row)
    against = f"against {counted(result.base_streams, 'stream')}"
    columns = [
        Column("streams", "streams", right=True),
        Column("throughput", "throughput", interval_rank=1, kept=False),
        Column("speedup", "speedup", against, unit_in_header=False, interval_rank=1, kept=False),
        Column(
            "efficiency", "efficiency", "per stream", unit_in_header=False,
            interval_rank=1, kept=False,
        ),
        Column("mark", ""),
    ]  # fmt: skip
    return Table(columns, rows, notes.lines(len(result.points)))


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


# Narrower than this, what varies among cells stands below their names.
_MERGED = 100


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
            console.print(Text("\n".join(flow(constants, self._width)), style="dim"))
        draw_table(console, self._table(merged=self._width < _MERGED))

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

    def _table(self, merged: bool) -> Table:
        """Return rows of all cells; ``merged`` has what varies below a cell's name."""
        # A percentile that was refused everywhere has no column: the option's help says what it
        # needs, and P50 to P99 say it below the table.
        refused = all(_refused(record, "p999") for record in self._records)
        notes = Notes()
        rows: list[Row] = []
        ratios = [name for record in self._records for name in record.metrics.ratios]
        once = len(ratios) > len(set(ratios))
        for record in self._records:
            name = self._name(record.cell)
            found = CellRows(record, name, notes, ["p999"] * refused).rows(
                self._identity(record.cell), once
            )
            if merged and (settings := self._settings(record.cell)):
                found[0].texts["workload"] += f"\n  {settings}"
            rows += found
        columns = [Column("workload", "workload")]
        if not merged:
            columns += [
                Column(key, header, right=key == "streams")
                for key, header, _ in self._names.varying
            ]
        return Table([*columns, *COLUMNS], rows, notes.lines(len(self._records)))

    def _identity(self, cell: Cell) -> dict[str, str]:
        varying = {key: say(cell) for key, _, say in self._names.varying}
        return {"workload": self._names.workload(cell)} | varying

    def _name(self, cell: Cell) -> str:
        name, settings = self._names.workload(cell), self._settings(cell)
        return f"{name} ({settings})" if settings else name

    def _settings(self, cell: Cell) -> str:
        """Return what distinguishes the cell besides its name, such as ``8 streams, graph``."""
        return ", ".join(self._names.settings(cell))


def _refused(record: RunRecord, key: str) -> bool:
    summaries = [record.metrics.latency, *other_series(record).values()]
    return all(summary is None or getattr(summary, key) is None for summary in summaries)
