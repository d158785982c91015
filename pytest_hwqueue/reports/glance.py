"""One line for each cell, and what to note about them.

``-v`` prints everything instead: see `tables`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pytest_hwqueue.metrics.numbers import (
    REFUSED,
    PrintedFigure,
    counted,
    rate_in_short,
    work_unit,
)
from pytest_hwqueue.records.cell import LAUNCH_BOUND, RunRecord
from pytest_hwqueue.records.stored import CellRuns
from pytest_hwqueue.reports.cell_rows import (
    PERCENTILES,
    CellRows,
    latency_figures,
    remarks_of,
    status_of,
)
from pytest_hwqueue.reports.document import Column, Paragraph, Part, Row, Table
from pytest_hwqueue.reports.notes import NO_REASON, CellNames, Notes, how_timed, title
from pytest_hwqueue.reports.scaling import saturated_from

SKIPPED = "skipped"
_NUMBERS = re.compile(r"\d[\d.]*")
# Figures that neither this nor what is refused besides speaks of.
_LEFT_OUT = ("p999", "max")
_MOST_KINDS = 4
_MOST_NAMES = 3

Line = tuple[str, str]
"""A note and its style."""


class GlanceNotes:
    """Writes the notes of cells that ``names`` names."""

    def __init__(self, cells: Sequence[CellRuns], names: CellNames) -> None:
        self._cells = cells
        self._names = names
        self._records = [cell.middle for cell in cells if cell.middle.status != SKIPPED]

    def lines(self, units: Mapping[str, str]) -> list[Line]:
        """Return the notes in the order of reading.

        Args:
            units: of throughput, by workload, where the table does not say them.

        """
        shown, besides = self._refusals()
        bound = [record for record in self._records if record.launch_bound]
        return [
            *_styled("dim", self._latency_of()),
            *_styled("dim", _per_second(units)),
            *_styled("", shown),
            *_styled("yellow", self._skipped()),
            *_styled("yellow", [
                f"launch-bound, so Python was measured and not the queues: {self._named(bound)}"
            ] if bound else []),
            *_styled("red", self._bad_runs()),
            *_styled("", self._remarks()),
            *_styled("dim", self._runs()),
            *_styled("dim", besides),
            *_styled("dim", self._saturated()),
        ]  # fmt: skip

    def _named(self, records: Iterable[RunRecord]) -> str:
        """Name cells, those of one workload together: ``moe (s8 eager, s16 eager)``."""
        found: dict[str, list[str]] = {}
        for record in records:
            settings = " ".join(self._names.settings(record.cell, short=True))
            found.setdefault(self._names.workload(record.cell), []).append(settings)
        several = {name: ", ".join(filter(None, settings)) for name, settings in found.items()}
        return ", ".join(f"{name} ({text})" if text else name for name, text in several.items())

    def _latency_of(self) -> list[str]:
        """Return what P50 and P99 are of, and who saw it."""
        whole, names = [], dict[str, list[str]]()
        for record in self._records:
            if record.metrics.latency is None:
                continue
            if record.primary.per == "iteration":
                whole.append(record)
            if record.primary.per != "iteration" or record.primary.name != "iteration":
                workload = self._names.workload(record.cell)
                names.setdefault(record.primary.name, []).append(workload)
        parts = [f"{name} ({', '.join(dict.fromkeys(of))})" for name, of in names.items()]
        if whole:
            parts.append(f"whole iterations {how_timed(whole)}")
        return [f"latency of: {', '.join(parts)}"] if parts else []

    def _refusals(self) -> tuple[list[str], list[str]]:
        """Return why figures of the table are missing, and in one line what else is."""
        shown, others = Notes(), Notes()
        for record in self._records:
            name = self._names.in_short(record.cell)
            latency = record.metrics.latency
            for key in ("p50", "p99") if latency is not None else ():
                shown.note(getattr(latency, key), PERCENTILES[key], name, interval=False)
            CellRows(record, name, others, _LEFT_OUT).rows({"workload": name}, True)
        left = [
            f"{figure} ({counted(count, 'cell')})"
            for figure, count in others.refused_in_short().items()
            if figure not in (PERCENTILES["p50"], PERCENTILES["p99"])
        ]
        besides = f"also refused: {_some(left)}; -v says why"
        return shown.lines(len(self._records)), [besides] if left else []

    def _skipped(self) -> list[str]:
        reasons: dict[str, list[RunRecord]] = {}
        for cell in self._cells:
            if cell.middle.status == SKIPPED:
                reasons.setdefault(cell.middle.reason or NO_REASON, []).append(cell.middle)
        return [f"skipped: {self._named(of)}: {reason}" for reason, of in reasons.items()]

    def _bad_runs(self) -> list[str]:
        """Return the failed runs of cells with others that succeeded, each with its reason."""
        return [
            f"{self._names.in_short(run.cell)} run {run.run} of {len(cell.runs)} {status_of(run)}"
            for cell in self._cells
            if cell.measured
            for run in cell.bad
        ]

    def _remarks(self) -> list[str]:
        """Return what casts doubt on figures; a remark that cells share is said once."""
        texts: dict[str, str] = {}
        cells: dict[str, list[RunRecord]] = {}
        for record in self._records:
            for text in remarks_of(record):
                if not text.startswith(LAUNCH_BOUND):
                    # The same remark differs from cell to cell in its numbers.
                    kind = _NUMBERS.sub("", text)
                    texts.setdefault(kind, text)
                    cells.setdefault(kind, []).append(record)
        lines = [
            f"{self._whose(cells[kind])}: {text}"
            for kind, text in list(texts.items())[:_MOST_KINDS]
        ]
        if len(texts) > _MOST_KINDS:
            lines.append(f"and {counted(len(texts) - _MOST_KINDS, 'more remark')}: -v")
        return lines

    def _whose(self, records: Sequence[RunRecord]) -> str:
        if len(records) == len(self._records):
            return "the cell" if len(records) == 1 else f"all {len(records)} cells"
        return self._named(records) if len(records) <= _MOST_NAMES else f"{len(records)} cells"

    def _runs(self) -> list[str]:
        counts = sorted(len(cell.measured) for cell in self._cells if len(cell.measured) > 1)
        if not counts:
            return []
        runs = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
        of = {PERCENTILES[cell.percentile] for cell in self._cells if cell.percentile}
        median = f"the median {of.pop()}" if len(of) == 1 else "the median"
        return [f"{runs} runs a cell; the one with {median} is shown (-v says how far they differ)"]

    def _saturated(self) -> list[str]:
        """Return from how many streams on each workload is saturated, if some were swept."""
        found = saturated_from([cell.middle for cell in self._cells])
        if not found:
            return []
        several: dict[str, list[str]] = {}
        for cell, words in found:
            settings = self._names.settings(cell, short=True, streams=False)
            several.setdefault(self._names.workload(cell), []).append(" ".join([*settings, words]))
        parts = [f"{name} {', '.join(each)}" for name, each in several.items()]
        return [f"streams that saturate: {'; '.join(parts)} (-v prints the scaling)"]


def _styled(style: str, lines: Iterable[str]) -> list[Line]:
    return [(line, style) for line in lines]


def _some(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST_KINDS
    return ", ".join(texts[:_MOST_KINDS]) + (f" and {more} more" if more > 0 else "")


def _per_second(units: Mapping[str, str]) -> list[str]:
    nouns: dict[str, list[str]] = {}
    for workload, unit in units.items():
        nouns.setdefault(work_unit(unit), []).append(workload)
    if len(nouns) < 2:
        return [f"per s: {noun}" for noun in nouns]
    return [f"per s: {', '.join(f'{noun} ({_some(of)})' for noun, of in nouns.items())}"]


Changes = Mapping[str, tuple[str, str, PrintedFigure]]
"""By cell id: the figure compared, the style of its verdict, and the change in percent."""

_TIMES = ("p50", "p99")


def glance_parts(cells: Sequence[CellRuns], changes: Changes) -> list[Part]:
    """Return a session's cells, one line each, and what a reader must know to trust them.

    Args:
        cells: at least one, of any status.
        changes: of the cells that were compared with a baseline.

    """
    names = CellNames([cell.middle.cell for cell in cells])
    records = [cell.middle for cell in cells]
    subject = counted(len(records), "cell") + (f" of {names.file}" if names.file else "")
    listed = [record for record in records if record.status != SKIPPED]
    units = {
        names.workload(record.cell): record.metrics.throughput[0].unit
        for record in listed
        if record.metrics.throughput
    }
    return [
        title(subject, records, ""),
        *names.constants(),
        *[_table(listed, names, changes)] * bool(listed),
        *(Paragraph(*line) for line in GlanceNotes(cells, names).lines(units)),
    ]


def _table(records: Sequence[RunRecord], names: CellNames, changes: Changes) -> Table:
    """Return a line for each cell; the units of throughput stand below."""
    rows = [_row(record, names, changes) for record in records]
    # P50 leaves its unit to P99, unless one unit is all rows'.
    units = {shown.unit for row in rows for shown in row.figures.get("p50", [])}
    for row in rows:
        p99 = row.figures.get("p99", [REFUSED])[0]
        if len(units) > 1 and p99 != REFUSED:
            row.figures["p50"] = [replace(row.figures["p50"][0], unit="")]
    compared = dict.fromkeys(
        changes[record.cell_id][0] for record in records if record.cell_id in changes
    )
    return Table([
        Column("cell", "cell"), Column("n", "n", right=True),
        Column("p50", "P50", "as P99" if len(units) > 1 else "", shares=_TIMES),
        Column("p99", "P99", shares=_TIMES),
        Column("throughput", "per s", unit_in_header=False),
        Column("change", "change", next(iter(compared)) if len(compared) == 1 else ""),
    ], rows)  # fmt: skip


def _row(record: RunRecord, names: CellNames, changes: Changes) -> Row:
    metrics = record.metrics
    row = Row({"cell": names.in_short(record.cell)}, opens=True)
    if record.status != "ok":
        row.style = "red"
        row.below.append(status_of(record))
    elif metrics.latency is None:
        row.style = "red"
        row.below.append("no latency was recorded")
    if metrics.latency is None:
        return row
    row.texts["n"] = str(metrics.latency.n)
    shown = latency_figures(metrics.latency)
    row.figures |= {
        "p50": [replace(shown["p50"], interval="")], "p99": [shown["p99"]]
    }  # fmt: skip
    if metrics.throughput:
        first = metrics.throughput[0]
        row.figures["throughput"] = [rate_in_short(float(first), first.unit)]
    if record.cell_id in changes:
        _, style, change = changes[record.cell_id]
        row.figures["change"] = [replace(change, interval="")]
        row.style = row.style or style
    return row
