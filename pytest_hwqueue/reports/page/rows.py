"""One line of the table for each cell: figures, change against the baseline, and samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pytest_hwqueue.metrics.numbers import REFUSED, PrintedFigure, milliseconds, time_unit
from pytest_hwqueue.records.cell import RunRecord
from pytest_hwqueue.reports.cell_rows import (
    COLUMNS,
    NO_REASON,
    PERCENTILES,
    CellRows,
    other_series,
)
from pytest_hwqueue.reports.document import Row, narrowed
from pytest_hwqueue.reports.notes import Notes
from pytest_hwqueue.reports.page.cells import PageCell
from pytest_hwqueue.reports.page.charts import spark
from pytest_hwqueue.reports.verdict_words import change_of

_NS_PER_MS = 1e6
# Whatever has no place of its own stands in lines in a cell's details.
_LISTED = [
    replace(column, rank=0 if column.key in ("n", *PERCENTILES, "max", "throughput") else 1)
    for column in COLUMNS
]


@dataclass(frozen=True)
class FigureView:
    """A figure as it is printed; ``value`` sorts it, and ``reason`` says why there is none."""

    label: str
    text: str
    interval: str = ""
    value: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class SeriesView:
    """One series of latencies: the cell's primary one, or a tag's."""

    name: str
    n: str
    figures: dict[str, FigureView]


@dataclass(frozen=True)
class RowView:
    """A cell's line in the table.

    Attributes:
        key: of its details.
        cell_id: of the cell.
        series: what one sample is, if not a whole iteration.
        session: name of its records' folder.
        runs: how many there are, if several.
        state: of its verdict, or its status if nothing was compared.
        status: of the run shown.
        reason: why there are no figures; empty if there are.
        simulated: whether the figures are a model's.
        marks: what qualifies the figures, such as background load, in a word each.
        n: samples of the run shown.
        figures: by key of `PERCENTILES`, and ``max``.
        throughput: headline throughput; None if there is none.
        change: against the baseline; None if nothing was compared.
        change_label: which figure changed.
        change_reason: the verdict's sentence.
        spark: path of the run's samples in order; empty if there are none.
        spark_title: what it shows.

    """

    key: str
    cell_id: str
    series: str
    session: str
    runs: str
    state: str
    status: str
    reason: str
    simulated: bool
    marks: list[str]
    n: str
    figures: dict[str, FigureView]
    throughput: FigureView | None
    change: FigureView | None
    change_label: str
    change_reason: str
    spark: str
    spark_title: str


class Reasons(Notes):
    """Keeps why each figure was refused, for the place where the figure would stand.

    Attributes:
        found: reasons by figure and tag, which is None for the cell's primary latency.
        remarks: what a reader should know, without the marks of footnotes.

    """

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[tuple[str, str | None], str] = {}
        self.remarks: list[str] = []

    def footnote(self, text: str) -> str:
        """Keep a remark; nothing refers to it by a mark."""
        self.remarks.append(text)
        return ""

    def refuse(self, figure: str, reason: str, cell: str, tag: str | None = None) -> None:
        """Note a refused figure, as `Notes.refuse`."""
        super().refuse(figure, reason, cell, tag)
        self.found[figure, tag] = reason


@dataclass
class Told:
    """What the tables say of a run: every series' figures, further lines, and notes."""

    series: list[SeriesView] = field(default_factory=list)
    throughput: FigureView | None = None
    lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def told(record: RunRecord) -> Told:
    """Return what the terminal's table says of a record, in its words and digits."""
    reasons = Reasons()
    found = Told()
    every = CellRows(record, record.cell_id, reasons).rows({"workload": ""}, False)
    _, rows = narrowed(_LISTED, every, 1)
    latency = record.metrics.latency
    others = other_series(record)
    summaries = [] if latency is None else [latency, *others.values()]
    names = [record.primary.name, *others]
    for row, summary, name in zip(rows, summaries, names, strict=False):
        tag = None if row is rows[0] else name
        figures = {
            key: _latency(row, key, label, getattr(summary, key), reasons.found.get((label, tag)))
            for key, label in PERCENTILES.items()
        }
        figures["max"] = _latency(row, "max", "max", summary.max, None)
        found.series.append(SeriesView(name, row.texts.get("n", ""), figures))
    throughput = rows[0].figures.get("throughput", [])
    if throughput:
        value = record.metrics.throughput[0].value
        reason = reasons.found.get(("interval of throughput", None), "")
        found.throughput = _view("throughput", throughput[0], value, reason)
        found.lines += [f"throughput {each}" for each in throughput[1:]]
    for row in rows:
        for line in row.below:
            found.lines.append(" · ".join(line) if isinstance(line, list) else line)
    found.notes = [*reasons.remarks, *reasons.lines(1)]
    return found


def row_of(cell: PageCell, figures: Told) -> RowView:
    """Return a cell's line; ``figures`` are of the run shown."""
    record = cell.shown
    judged = cell.worst
    samples = record.latency_ns() if record.status == "ok" else []
    first = figures.series[0] if figures.series else None
    change, label, sentence = None, "", ""
    if judged is not None:
        verdict = judged.verdict
        label, sentence = verdict.quantity.label, verdict.sentence
        # Sorted by how much worse it is, whichever direction that is.
        worse = None if verdict.ratio is None or verdict.ratio <= 0 else math.log(verdict.ratio)
        if worse is not None and not verdict.quantity.higher_is_worse:
            worse = -worse
        change = _view(label, change_of(verdict), worse, "" if verdict.ratio else sentence)
    return RowView(
        key=cell.key,
        cell_id=record.cell_id,
        series="" if record.primary.name == "iteration" else record.primary.name,
        session=cell.session,
        runs=cell.runs.count if len(cell.runs.runs) > 1 else "",
        state=record.status if judged is None else judged.verdict.state,
        status=record.status,
        reason="" if record.status == "ok" else record.reason or NO_REASON,
        simulated=record.simulated,
        marks=_marks(record),
        n="" if first is None else first.n,
        figures={} if first is None else first.figures,
        throughput=figures.throughput,
        change=change,
        change_label=label,
        change_reason=sentence,
        spark=spark(samples),
        spark_title=_spark_title(samples),
    )


def _latency(row: Row, key: str, label: str, value: float | None, reason: str | None) -> FigureView:
    return _view(label, row.figures[key][0], value, reason or "")


def _view(label: str, shown: PrintedFigure, value: float | None, reason: str) -> FigureView:
    if shown == REFUSED:
        return FigureView(label, str(REFUSED), reason=reason or NO_REASON)
    text = f"{shown.number} {shown.unit}".strip()
    return FigureView(label, text, shown.interval, value, reason)


def _marks(record: RunRecord) -> list[str]:
    marks = []
    if record.noise is not None:
        noise = record.noise
        marks.append("quiet" if noise.status == "quiet" else f"noise {noise.noise}: {noise.status}")
    if record.launch_bound:
        marks.append("launch-bound")
    if record.telemetry is not None and record.telemetry.throttled:
        marks.append("throttled")
    if record.faults:
        marks.append("planted fault")
    return marks


def _spark_title(samples_ns: Sequence[int]) -> str:
    if not samples_ns:
        return ""
    ends = (min(samples_ns), max(samples_ns))
    unit = time_unit(ends[0], ends)
    low, high = (str(milliseconds(value / _NS_PER_MS, unit)) for value in ends)
    return f"{len(samples_ns)} samples in the order taken, {low} to {high}"
