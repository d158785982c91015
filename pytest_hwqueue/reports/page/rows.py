"""One line of the table for each cell: figures, change against the baseline, and samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_hwqueue.metrics.numbers import REFUSED, PrintedFigure, milliseconds, time_unit
from pytest_hwqueue.records.cell import RunRecord
from pytest_hwqueue.reports.cell_rows import COLUMNS, NO_REASON, PERCENTILES, CellRows
from pytest_hwqueue.reports.document import Column, Table
from pytest_hwqueue.reports.notes import Notes
from pytest_hwqueue.reports.page.cells import PageCell
from pytest_hwqueue.reports.page.charts import spark
from pytest_hwqueue.reports.verdict_words import change_of

_NS_PER_MS = 1e6


@dataclass(frozen=True)
class FigureView:
    """A figure as it is printed; ``value`` sorts it, and ``reason`` says why there is none."""

    label: str
    text: str
    interval: str = ""
    value: float | None = None
    reason: str = ""


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
    """Keeps why each of a cell's own figures was refused, to say it where the figure would stand.

    Attributes:
        found: reasons by figure.

    """

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def refuse(self, figure: str, reason: str, cell: str, tag: str | None = None) -> None:
        """Note a refused figure, as `Notes.refuse`."""
        super().refuse(figure, reason, cell, tag)
        if tag is None:
            self.found[figure] = reason


@dataclass(frozen=True)
class Figures:
    """What the tables say of a run: its own figures for the overview, and all in a table."""

    n: str
    figures: dict[str, FigureView]
    throughput: FigureView | None
    table: Table


def figures_of(record: RunRecord) -> Figures:
    """Return what the terminal's table says of a record, in its words and digits."""
    reasons = Reasons()
    names = {"workload": record.cell.name}
    rows = CellRows(record, record.cell_id, reasons).rows(names, ratios_once=False)
    table = Table([Column("workload", "sample"), *COLUMNS], rows, reasons.lines(1))
    latency, own = record.metrics.latency, rows[0].figures
    if latency is None:
        return Figures("", {}, None, table)
    figures = {
        key: _view(label, own[key][0], getattr(latency, key), reasons.found.get(label, ""))
        for key, label in (*PERCENTILES.items(), ("max", "max"))
    }
    throughput = None
    if record.metrics.throughput:
        reason = reasons.found.get("interval of throughput", "")
        value = record.metrics.throughput[0].value
        throughput = _view("throughput", own["throughput"][0], value, reason)
    return Figures(rows[0].texts["n"], figures, throughput, table)


def row_of(cell: PageCell, figures: Figures) -> RowView:
    """Return a cell's line; ``figures`` are of the run shown."""
    record = cell.shown
    judged = cell.worst
    samples = record.latency_ns() if record.status == "ok" else []
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
        n=figures.n,
        figures=figures.figures,
        throughput=figures.throughput,
        change=change,
        change_label=label,
        change_reason=sentence,
        spark=spark(samples),
        spark_title=_spark_title(samples),
    )


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
