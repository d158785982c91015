"""What a cell's details show: words for the template, and numbers for the charts."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_hwqueue.metrics.estimate import Estimate
from pytest_hwqueue.metrics.numbers import REFUSED, PrintedFigure, milliseconds, time_unit
from pytest_hwqueue.records.cell import RunRecord
from pytest_hwqueue.reports.cell_rows import COLUMNS, PERCENTILES, CellRows, status_of
from pytest_hwqueue.reports.charts import (
    Curve,
    order_chart,
    survival_chart,
    timeline_chart,
)
from pytest_hwqueue.reports.document import (
    Bullets,
    Column,
    Document,
    Heading,
    Paragraph,
    Part,
    Table,
)
from pytest_hwqueue.reports.drawing import colour
from pytest_hwqueue.reports.notes import NO_REASON, Notes
from pytest_hwqueue.reports.page.cells import PageCell
from pytest_hwqueue.reports.page.charts import causes_parts, in_order, spark, survival, timelines
from pytest_hwqueue.reports.verdict_words import change_of
from pytest_hwqueue.reports.verdicts import verdict_table

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
        reason: why there are no figures; empty if there are.
        simulated: whether the figures are a model's.
        marks: what qualifies the figures, such as background load, in a word each.
        n: samples of the run shown.
        figures: by key of `PERCENTILES`, and ``max``.
        throughput: headline throughput; None if there is none.
        change: against the baseline; None if nothing was compared.
        change_label: which figure changed.
        spark: path of the run's samples in order; empty if there are none.
        spark_title: what it shows.

    """

    key: str
    cell_id: str
    series: str
    session: str
    runs: str
    state: str
    reason: str
    simulated: bool
    marks: list[str]
    n: str
    figures: dict[str, FigureView]
    throughput: FigureView | None
    change: FigureView | None
    change_label: str
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
        key: _view(label, own[key][0], _value(getattr(latency, key)), reasons.found.get(label, ""))
        for key, label in (*PERCENTILES.items(), ("max", "max"))
    }
    throughput = None
    if record.metrics.throughput:
        reason = reasons.found.get("interval of throughput", "")
        value = record.metrics.throughput[0].value
        throughput = _view("throughput", own["throughput"][0], value, reason)
    return Figures(rows[0].texts["n"], figures, throughput, table)


def _value(given: Estimate | float) -> float | None:
    return given.value if isinstance(given, Estimate) else given


def row_of(cell: PageCell, figures: Figures) -> RowView:
    """Return a cell's line; ``figures`` are of the run shown."""
    record = cell.shown
    judged = cell.worst
    samples = record.latency_ns() if record.status == "ok" else []
    change, label = None, ""
    if judged is not None:
        verdict = judged.verdict
        label = verdict.quantity.label
        # Sorted by how much worse it is, whichever direction that is.
        worse = None if verdict.ratio is None or verdict.ratio <= 0 else math.log(verdict.ratio)
        if worse is not None and not verdict.quantity.higher_is_worse:
            worse = -worse
        change = _view(label, change_of(verdict), worse, "" if verdict.ratio else verdict.sentence)
    return RowView(
        key=cell.key,
        cell_id=record.cell_id,
        series="" if record.primary.name == "iteration" else record.primary.name,
        session=cell.session,
        runs=cell.runs.count if len(cell.runs.runs) > 1 else "",
        state=record.status if judged is None else judged.verdict.state,
        reason="" if record.status == "ok" else record.reason or NO_REASON,
        simulated=record.simulated,
        marks=_marks(record),
        n=figures.n,
        figures=figures.figures,
        throughput=figures.throughput,
        change=change,
        change_label=label,
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


_TRACE = "trace: "


@dataclass(frozen=True)
class DetailsView:
    """A cell's details.

    Attributes:
        row: its line in the table.
        findings: verdicts on figures that were compared, and why runs have no figures.
        figures: of every series, and what to know of them.
        charts: by name, ``timelines`` as a list; a name without a chart is missing.
        thinned: whether the samples in order are more than are drawn.
        timelines: titles of the timelines, with how many kernels are left out, or why there is
            none to draw.
        causes: of slow requests, if somebody looked for them.
        scaling: over streams, if the cell was measured at several counts.
        facts: the scheduler's proof, the setting, the fingerprint, and the run.
        device: its name.
        command: that repeats the session.
        files: names of the records.
        traces: for Perfetto: a path relative to the page, and whether the file is there.

    """

    row: RowView
    findings: Document
    figures: Document
    charts: dict[str, Any]
    thinned: bool
    timelines: list[tuple[str, str]]
    causes: Document
    scaling: Document
    facts: list[Document]
    device: str
    command: str
    files: list[str]
    traces: list[tuple[str, bool]]

    @property
    def several(self) -> bool:
        """Whether the samples are of several runs."""
        return bool(self.row.runs)


def details_of(
    cell: PageCell, scaling: Sequence[Part], most_kernels: int, page: Path
) -> DetailsView:
    """Return a cell's details.

    Args:
        cell: the cell.
        scaling: over streams; empty if it has none.
        most_kernels: of each timeline.
        page: where the report will be; traces are linked relative to it.

    """
    record, figures = cell.shown, figures_of(cell.shown)
    row = row_of(cell, figures)
    measured = cell.runs.measured
    runs = [_run(run, len(measured), shown=run is cell.shown) for run in measured]
    drawn = [] if cell.timelines is None else timelines(*cell.timelines, most_kernels)
    findings: list[Part] = []
    for baseline in dict.fromkeys(label for label, _ in cell.verdicts):
        judged = [each for label, each in cell.verdicts if label == baseline]
        findings += [Heading(f"Against {baseline}"), verdict_table(judged, brief=False)]
    findings += [Paragraph(f"run {run.run} {status_of(run)}", "red") for run in cell.runs.bad]
    return DetailsView(
        row=row,
        findings=Document(findings),
        figures=Document([Heading("Figures"), figures.table] if measured else []),
        charts=_charts(cell, row, runs, drawn),
        thinned=any(run["order"]["at"] is not None for run in runs),
        timelines=[_said(each) for each in drawn],
        causes=Document(causes_parts(cell.causes)),
        scaling=Document(scaling),
        facts=_facts(record, cell),
        device=_device(record),
        command=record.command,
        files=cell.record_files,
        traces=_traces(record, cell.folder, page),
    )


def _charts(
    cell: PageCell, row: RowView, runs: list[dict[str, Any]], drawn: list[dict[str, Any]]
) -> dict[str, Any]:
    charts: dict[str, Any] = {
        "timelines": [
            timeline_chart(each, simulated=row.simulated) for each in drawn if "refused" not in each
        ]
    }
    if not runs:
        return charts
    marked = [
        (label, value * _NS_PER_MS)
        for key, label in (("p50", "P50"), ("p99", "P99"))
        if key in row.figures and (value := row.figures[key].value) is not None
    ]
    unit = time_unit(marked[0][1] if marked else runs[0]["survival"]["ns"][0])
    lines = [
        {"label": label, "ns": ns, "text": f"{label} {ns / unit.ns:.4g} {unit.name}"}
        for label, ns in marked
    ]
    one = len(runs) == 1
    style: dict[str, Any] = {"width": 3.0} if one else {
        "width": 1.0, "opacity": 0.65, "legend": f"each run ({len(runs)})",
    }  # fmt: skip
    curves = [Curve(run["label"], run["survival"], colour("c0"), **style) for run in runs]
    if cell.behind is not None:
        samples = survival(cell.behind.samples_ns)
        name = f"baseline {cell.behind.label}"
        curves.insert(0, Curve(name, samples, colour("behind"), width=5))
    if not one:
        every = [ns for run in cell.runs.measured for ns in run.latency_ns()]
        pooled = survival(every, sum(run.failed_requests or 0 for run in cell.runs.measured))
        curves.append(Curve("all runs pooled", pooled, colour("c5"), width=3.5))
    charts["survival"] = survival_chart(curves, unit, lines, simulated=row.simulated)
    charts["order"] = order_chart(runs, unit, lines, simulated=row.simulated)
    return charts


def _run(run: RunRecord, runs: int, *, shown: bool) -> dict[str, Any]:
    samples = run.latency_ns()
    return {
        "label": f"run {run.run}",
        "shown": shown,
        "order": in_order(samples, runs),
        "survival": survival(samples, run.failed_requests or 0),
        "throttled": _throttled(run, len(samples)),
        "noise": "" if run.noise is None else f"{run.noise.noise} ({run.noise.status})",
    }


def _throttled(run: RunRecord, samples: int) -> list[dict[str, Any]]:
    """Return the spans of samples taken while throttled; telemetry counts iterations."""
    if run.telemetry is None or not run.iterations:
        return []
    each = max(1, samples // run.iterations)
    return [
        {
            "first": span.first_sample * each,
            "end": span.end_sample * each,
            "reasons": ", ".join(span.reasons),
        }
        for span in run.telemetry.throttled
    ]


def _said(timeline: Mapping[str, Any]) -> tuple[str, str]:
    if "refused" in timeline:
        return str(timeline["title"]), str(timeline["refused"])
    left_out = timeline["left_out"]
    if not left_out:
        return str(timeline["title"]), ""
    return str(timeline["title"]), (
        f"the first {timeline['kernels'] - left_out} of {timeline['kernels']} kernels; the others "
        "are in the record's timelines"
    )


def _facts(record: RunRecord, cell: PageCell) -> list[Document]:
    """Return the scheduler's proof, the setting, the fingerprint, and the run."""
    proof: dict[str, object] = {
        "proof": "the scheduler is part of the model" if record.simulated else "none was recorded"
    }
    if record.scheduler_proof is not None:
        found = record.scheduler_proof
        priorities = ", ".join(map(str, found.device_priorities))
        proof = {
            "mode": found.mode, "evidence": found.evidence,
            "device priorities": priorities or "none",
        }  # fmt: skip
    commit = record.git_commit
    if commit is not None and record.git_dirty:
        commit += " with uncommitted changes"
    run = {
        "test": record.nodeid, "run shown": f"{record.run} of {len(cell.runs.runs)}",
        "started": record.started, "duration": f"{record.duration_s:.3g} s",
        "iterations": record.iterations, "stopped by": record.stopped, "seed": record.seed,
        "version": record.version, "commit": commit, "planted faults": ", ".join(record.faults),
    }  # fmt: skip
    setting = record.cell.model_dump(exclude={"parameters"}) | record.cell.parameters
    marks: list[Part] = [Paragraph("None was recorded.")]
    if record.fingerprint is not None:
        marks = [
            *_listed("Must match to be compared", record.fingerprint.hard, 3),
            *_listed("Reported when it differs", record.fingerprint.soft, 3),
            *_listed("Not known, and why", record.fingerprint.missing, 3),
        ]
    return [
        Document(_listed("Proof of the scheduler", proof)),
        Document(_listed("Setting", setting)),
        Document([Heading("Fingerprint"), *marks]),
        Document(_listed("Run", run)),
    ]


def _listed(title: str, fields: Mapping[str, object], level: int = 2) -> list[Part]:
    about = {key: [str(value)] for key, value in fields.items() if value not in (None, "")}
    return [Heading(title, level), Bullets(about)] if about else []


def _device(record: RunRecord) -> str:
    hard = {} if record.fingerprint is None else record.fingerprint.hard
    return str(hard.get("device_name", record.cell.device))


def _traces(record: RunRecord, folder: Path, page: Path) -> list[tuple[str, bool]]:
    """Return the traces that a record names.

    A record names them from the folder in which pytest was started, which is this one or, by
    default, one above the records.
    """
    found = []
    for note in record.notes:
        if note.startswith(_TRACE):
            named = Path(note.removeprefix(_TRACE))
            places = (Path.cwd(), *folder.resolve().parents)
            path = next((each / named for each in places if (each / named).is_file()), None)
            if path is None:
                found.append((named.as_posix(), False))
            else:
                found.append((Path(os.path.relpath(path, page.parent)).as_posix(), True))
    return found
