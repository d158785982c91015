"""The table of one family: a row per cell, in as many columns as fit the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from pytest_hwqueue.records.cell import Cell, RunRecord
from pytest_hwqueue.reports.cell_names import CellNames, how_timed, title
from pytest_hwqueue.reports.cell_rows import PERCENTILES, CellRows, other_series
from pytest_hwqueue.reports.grid import Column, Grid, Row, flow, paragraph, print_below
from pytest_hwqueue.reports.notes import Notes

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
