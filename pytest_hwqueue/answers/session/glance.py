"""One line for each cell, and what to note about them.

``-v`` prints everything instead: see `terminal`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pytest_hwqueue.data.document.cell_rows import PERCENTILES, CellRows, record_remarks, status_of
from pytest_hwqueue.data.document.document import Column, Paragraph, Part, Row, Table
from pytest_hwqueue.data.document.notes import (
    NO_REASON,
    PACE_IN_WORDS,
    CellNames,
    Notes,
    by_kind,
    every_cell,
    title,
)  # fmt: skip
from pytest_hwqueue.data.document.scaling import saturated_from
from pytest_hwqueue.data.metrics.between_runs import RunSpread
from pytest_hwqueue.data.metrics.numbers import (
    PrintedFigure,
    counted,
    grouped,
    percent,
    rate_in_short,
    work_unit,
)
from pytest_hwqueue.data.records.cell import LAUNCH_BOUND, RunRecord
from pytest_hwqueue.data.records.stored import CellRuns

Changes = Mapping[str, tuple[str, str, PrintedFigure]]
"""By cell id: the figure compared, the style of its verdict, and the change in percent."""

_SKIPPED = "skipped"
# Figures that neither this nor what is refused besides speaks of.
_LEFT_OUT = ("p999", "max")
_TIMES = ("p50", "p99")
_MOST_KINDS = 4
_MOST_NAMES = 3


class Glance:
    """Writes a line for each cell that was not skipped, and what a reader must know to trust all.

    Args:
        cells: at least one, of any status.
        spreads: how far a baseline's runs differ within a session, by cell id.

    """

    def __init__(self, cells: Sequence[CellRuns], spreads: Mapping[str, RunSpread]) -> None:
        self._cells = cells
        self._names = CellNames([cell.middle.cell for cell in cells])
        # The records shown, each with the runs that P99 has its interval from.
        self._shown = [cell.shown(spreads) for cell in cells if cell.middle.status != _SKIPPED]
        self._records = [record for record, _ in self._shown]

    def parts(self, changes: Changes) -> list[Part]:
        """Return the heading, the table, and the notes in the order of reading.

        Args:
            changes: of the cells that were compared with a baseline.

        """
        names, every = self._names, [cell.middle for cell in self._cells]
        subject = counted(len(every), "cell") + (f" of {names.file}" if names.file else "")
        shown, besides = Notes(), Notes()
        rows = [self._row(record, changes, shown, besides) for record in self._records]
        compared = {changes[each.cell_id][0] for each in self._records if each.cell_id in changes}
        bound = [record for record in self._records if record.launch_bound]
        notes = (
            ("dim", self._latency_of()),
            ("dim", self._per_second()),
            ("dim", self._in_flight()),
            ("dim", self._limits()),
            ("", shown.lines(len(rows))),
            ("yellow", self._skipped()),
            ("yellow", [
                f"launch-bound, so Python was measured and not the queues: {self._named(bound)}",
                *self._not_in_flight(bound),
            ] if bound else []),
            ("red", self._bad_runs()),
            ("", self._remarks()),
            ("dim", self._runs()),
            ("dim", self._over_runs()),
            ("dim", _refused(besides)),
            ("dim", self._saturated()),
        )  # fmt: skip
        return [
            title(subject, every, ""),
            *names.constants(),
            *[_table(rows, compared.pop() if len(compared) == 1 else "")] * bool(rows),
            *(Paragraph(line, style) for style, lines in notes for line in lines),
        ]

    def _row(self, record: RunRecord, changes: Changes, shown: Notes, besides: Notes) -> Row:
        """Return a cell's line, and note what is refused: of it, and besides."""
        name = self._names.in_short(record.cell)
        head = CellRows(record, name, besides, _LEFT_OUT).rows({"workload": name}, True)[0]
        for key in _TIMES:
            if key in head.reasons:
                shown.refuse(PERCENTILES[key], head.reasons[key], name)
        row = Row({"cell": name, "n": head.texts.get("n", "")}, style=head.style, opens=True)
        # What has a style came to nothing, and its first line says why.
        row.below = head.below[: bool(head.style)]
        if record.metrics.judged is None:
            return row
        row.figures = {"p50": _bare(head.figures["p50"]), "p99": head.figures["p99"]}
        for first in record.metrics.throughput[:1]:
            row.figures["throughput"] = [rate_in_short(float(first), first.unit)]
        if record.cell_id in changes:
            _, style, change = changes[record.cell_id]
            row.figures["change"] = _bare([change])
            row.style = row.style or style
        return row

    def _named(self, records: Iterable[RunRecord]) -> str:
        """Name cells, those of one workload together: ``moe (s8 eager, s16 eager)``."""
        found = grouped(
            (self._names.workload(each.cell), " ".join(self._names.settings(each.cell, short=True)))
            for each in records
        )
        several = {name: ", ".join(filter(None, settings)) for name, settings in found.items()}
        return ", ".join(f"{name} ({text})" if text else name for name, text in several.items())

    def _latency_of(self) -> list[str]:
        """Return what P50 and P99 are of, and who saw it."""
        measured = [each for each in self._records if each.metrics.latency is not None]
        paced = {self._names.workload(each.cell): None for each in self._records if each.has_pace}
        whole = [each for each in measured if each.primary.per == "iteration"]
        names = grouped(
            (each.primary.name, self._names.workload(each.cell))
            for each in measured
            if each.primary.per != "iteration" or each.primary.name != "iteration"
        )
        parts = [f"{name} ({', '.join(dict.fromkeys(of))})" for name, of in names.items()]
        if whole:
            parts.append("whole iterations seen by the host")
        said = [f"latency of: {', '.join(parts)}"] if parts else []
        if paced:
            said.append(f"pace, not latency: {', '.join(paced)} ({PACE_IN_WORDS})")
        return said

    def _in_flight(self) -> list[str]:
        """Return the fewest streams in flight while launches were timed, of cells that kept them.

        Cells that did not are launch-bound.
        """
        found = [
            each.samples.contended
            for each in self._records
            if each.samples is not None and each.samples.contended is not None
        ]
        full = [each for each in found if each.enough]
        if not full:
            return []
        fewest = min(full, key=lambda each: each.in_flight / each.streams)
        least = "" if len(full) == 1 else ", or a greater share"
        return [f"{fewest} while launches were timed{least}"]

    def _not_in_flight(self, bound: Sequence[RunRecord]) -> list[str]:
        return [
            f"{self._names.in_short(each.cell)}: {each.samples.contended}; not judged as contention"
            for each in bound
            if each.samples is not None and each.samples.contended is not None
        ]

    def _skipped(self) -> list[str]:
        middle = (cell.middle for cell in self._cells)
        reasons = grouped((r.reason or NO_REASON, r) for r in middle if r.status == _SKIPPED)
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
        kinds = by_kind(
            (text, record)
            for record in self._records
            for text in record_remarks(record)
            if not text.startswith(LAUNCH_BOUND)
        )
        lines = [f"{self._whose(records)}: {text}" for text, records in kinds.values()]
        more = len(lines) - _MOST_KINDS
        and_more = [f"and {counted(more, 'more remark')}: -v"] if more > 0 else []
        return lines[:_MOST_KINDS] + and_more

    def _whose(self, records: Sequence[RunRecord]) -> str:
        if len(records) == len(self._records):
            return every_cell(len(records))
        return self._named(records) if len(records) <= _MOST_NAMES else f"{len(records)} cells"

    def _runs(self) -> list[str]:
        counts = sorted(len(cell.measured) for cell in self._cells if len(cell.measured) > 1)
        if not counts:
            return []
        runs = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
        of = {PERCENTILES[cell.percentile] for cell in self._cells if cell.percentile}
        median = f"the median {of.pop()}" if len(of) == 1 else "the median"
        return [f"{runs} runs a cell; the one with {median} is shown (-v says how far they differ)"]

    def _over_runs(self) -> list[str]:
        """Return which P99 have the interval of this session's median run, and by what."""
        found = grouped((by, record) for record, by in self._shown if by)
        return [
            f"P99's interval is of this session's median run, by {by}: {self._whose(records)}"
            for by, records in found.items()
        ]

    def _saturated(self) -> list[str]:
        """Return from how many streams on each workload is saturated, if some were swept."""
        found = saturated_from([cell.middle for cell in self._cells])
        if not found:
            return []
        several = grouped(
            (self._names.workload(cell),
             " ".join([*self._names.settings(cell, short=True, streams=False), words]))
            for cell, words in found
        )  # fmt: skip
        parts = [f"{name} {', '.join(each)}" for name, each in several.items()]
        return [f"streams that saturate: {'; '.join(parts)} (-v prints the scaling)"]

    def _per_second(self) -> list[str]:
        """Return what each workload's throughput counts, which the table does not say."""
        nouns = grouped(
            (work_unit(first.unit), self._names.workload(record.cell))
            for record in self._records
            for first in record.metrics.throughput[:1]
        )
        if len(nouns) < 2:
            return [f"per s: {noun}" for noun in nouns]
        told = [f"{noun} ({_some([*dict.fromkeys(of)])})" for noun, of in nouns.items()]
        return [f"per s: {', '.join(told)}"]

    def _limits(self) -> list[str]:
        """Return which of the device's limits each workload is nearest to, and how near."""
        nearest = [
            (found, self._names.workload(record.cell))
            for record in self._records
            if (found := record.metrics.nearest_limit) is not None
        ]
        parts = []
        for limit, of in grouped((found.limit, (found, name)) for found, name in nearest).items():
            shares = sorted(float(found.share) for found, _ in of)
            least, most = (str(percent(share)) for share in (shares[0], shares[-1]))
            names = ", ".join(dict.fromkeys(name for _, name in of))
            parts.append(f"{least if least == most else f'{least} to {most}'} {limit} ({names})")
        return [f"of the device's limits: {', '.join(parts)}"] if parts else []


def _refused(notes: Notes) -> list[str]:
    """Return in one line what is refused besides the figures of the table."""
    left = [
        f"{figure} ({counted(count, 'cell')})"
        for figure, count in notes.refused_in_short().items()
        if figure not in (PERCENTILES[key] for key in _TIMES)
    ]
    return [f"not printed: {_some(left)}; -v gives the reasons"] if left else []


def _some(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST_KINDS
    return ", ".join(texts[:_MOST_KINDS]) + (f" and {more} more" if more > 0 else "")


def _table(rows: Sequence[Row], compared: str) -> Table:
    """Return the table."""
    return Table([
        Column("cell", "cell"), Column("n", "n", right=True),
        Column("p50", "P50", shares=_TIMES),
        Column("p99", "P99", shares=_TIMES),
        Column("throughput", "per s", unit_in_header=False),
        Column("change", "change", compared),
    ], rows)  # fmt: skip


def _bare(figures: Sequence[PrintedFigure]) -> list[PrintedFigure]:
    return [replace(each, interval="") for each in figures]
