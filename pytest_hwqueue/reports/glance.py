"""A session at a glance: one line for each cell, and a few lines of notes.

``-v`` prints everything instead: see `family_table`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from pytest_hwqueue.metrics.numbers import REFUSED, PrintedFigure, counted, rate, rate_in_short
from pytest_hwqueue.records.cell import RunRecord
from pytest_hwqueue.records.cell_runs import CellRuns
from pytest_hwqueue.reports.cell_names import CellNames, title
from pytest_hwqueue.reports.cell_rows import latency_figures, status_of
from pytest_hwqueue.reports.glance_notes import SKIPPED, GlanceNotes
from pytest_hwqueue.reports.grid import Column, Grid, Row, fitted, flow, paragraph, print_below

Changes = Mapping[str, tuple[str, str, PrintedFigure]]
"""By cell id: the figure compared, the style of its verdict, and the change in percent."""

_TIMES = ("p50", "p99")
_LABELS = {"p50": "P50", "p99": "P99", "throughput": "throughput", "change": "change"}


def draw_glance(console: Console, cells: Sequence[CellRuns], changes: Changes) -> None:
    """Print a session's cells, one line each, and what a reader must know to trust them.

    Args:
        console: where to.
        cells: at least one, of any status.
        changes: of the cells that were compared with a baseline.

    """
    names = CellNames([cell.middle.cell for cell in cells])
    records = [cell.middle for cell in cells]
    subject = counted(len(records), "cell") + (f" of {names.file}" if names.file else "")
    console.print(title(subject, records, ""))
    constants = names.constants()
    if constants:
        text = flow(constants, console.width)
        text.stylize("dim")
        console.print(text)
    listed = [record for record in records if record.status != SKIPPED]
    width, units = console.width, dict[str, str]()
    if listed:
        width, units = _Table(listed, names, changes).draw(console)
    for line, style in GlanceNotes(cells, names).lines(units):
        console.print(paragraph(line, width, style))


class _Table:
    def __init__(self, records: Sequence[RunRecord], names: CellNames, changes: Changes) -> None:
        self._records = records
        self._names = names
        self._changes = changes

    def draw(self, console: Console) -> tuple[int, dict[str, str]]:
        """Print the first layout that fits.

        Returns:
            The width of its rules, and the units of throughput it had no room for, by workload.

        """
        width = console.width
        for short, bare in ((False, False), (True, False)):
            grid = Grid(self._columns(short, bare), self._rows(short, bare))
            if grid.width <= width:
                return grid.draw(console), self._units() if short else {}
        rows = self._rows(short=True, bare=True)
        folded = fitted(self._columns(short=True, bare=True), rows, width)
        if folded is not None:
            return folded.draw(console), self._units()
        for row in rows:
            console.print(Text(row.texts["cell"], style=row.style or "bold"))
            parts = [f"n {row.texts['n']}"] if "n" in row.texts else []
            parts += [f"{_LABELS[key]} {shown[0]}" for key, shown in row.figures.items()]
            print_below(console, ([parts] if parts else []) + row.below, width)
        return width, self._units()

    def _columns(self, short: bool, bare: bool) -> list[Column]:
        """Return the columns; as `_rows` does, the units of throughput and P50 may be left out."""
        compared = [self._changes.get(record.cell_id) for record in self._records]
        figures = dict.fromkeys(change[0] for change in compared if change)
        return [
            Column("cell", "cell"),
            Column("n", "n", right=True),
            Column("p50", "P50", "as P99" if bare else "", shares=_TIMES),
            Column("p99", "P99", shares=_TIMES),
            Column("throughput", "per s" if short else "throughput", unit_in_header=False),
            Column("change", "change", next(iter(figures)) if len(figures) == 1 else ""),
        ]

    def _rows(self, short: bool, bare: bool) -> list[Row]:
        """Return a row for each cell.

        Args:
            short: leave the units of throughput to the notes.
            bare: leave P50's unit to P99.

        """
        return [self._row(record, short, bare) for record in self._records]

    def _row(self, record: RunRecord, short: bool, bare: bool) -> Row:
        metrics = record.metrics
        row = Row(texts={"cell": self._names.in_short(record.cell)}, opens=True)
        if record.status != "ok":
            row.style = "red"
            row.below.append(Text(status_of(record), style="red"))
        elif metrics.latency is None:
            row.below.append(Text("no latency was recorded", style="red"))
        if metrics.latency is None:
            return row
        row.texts["n"] = str(metrics.latency.n)
        shown = latency_figures(metrics.latency)
        p50, p99 = (shown[key] for key in _TIMES)
        # Without a P99 the unit would be nowhere.
        unit = "" if bare and p99 != REFUSED else p50.unit
        row.figures |= {"p50": [PrintedFigure(p50.number, unit)], "p99": [p99]}
        if metrics.throughput:
            first = metrics.throughput[0]
            written = rate_in_short if short else rate
            row.figures["throughput"] = [written(first.value, first.unit)]
        if record.cell_id in self._changes:
            _, style, change = self._changes[record.cell_id]
            row.figures["change"] = [PrintedFigure(change.number, change.unit)]
            row.style = row.style or style
        return row

    def _units(self) -> dict[str, str]:
        return {
            self._names.workload(record.cell): record.metrics.throughput[0].unit
            for record in self._records
            if record.metrics.throughput
        }
