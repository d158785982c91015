"""What a cell's row and details show: a builder's parts, charts, and where to find more."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_hwqueue.answers.page.cells import PageCell
from pytest_hwqueue.answers.page.charts import sample_charts, spark, timeline_charts
from pytest_hwqueue.data.document.cell_rows import figures_table, percentiles_ns, status_of
from pytest_hwqueue.data.document.document import (
    Bullets,
    Chart,
    Column,
    Document,
    Heading,
    Paragraph,
    Part,
    Row,
    Table,
)
from pytest_hwqueue.data.metrics.attribution import UNEXPLAINED
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.numbers import counted, milliseconds, percent, printed, time_unit
from pytest_hwqueue.data.records.cell import RunRecord
from pytest_hwqueue.data.records.noise import Causes, TailCauses, causes_line
from pytest_hwqueue.judge.words import change_of, verdict_table

_NS_PER_MS = 1e6
_TRACE = "trace: "


@dataclass(frozen=True)
class DetailsView:
    """A cell's row in the table of cells, and its details.

    Attributes:
        cell: its records and verdicts.
        row: its figures, as the table of figures has them, and the change against the baseline.
        sorts: numbers by which the table of cells is sorted, by column.
        marks: what qualifies the figures, such as background load, in a word each.
        spark: path of the shown run's samples in order, and what it shows; empty without samples.
        findings: verdicts on figures that were compared, and why runs have no figures.
        charts: of the samples.
        timelines: charts of streams, or why there is none to draw.
        parts: figures of every series, causes of slow requests, scaling: as far as there are any.
        facts: the scheduler's proof, the setting, the fingerprint, and the run.
        traces: for Perfetto: a path relative to the page, and whether the file is there.

    """

    cell: PageCell
    row: Row
    sorts: dict[str, float]
    marks: list[str]
    spark: tuple[str, str]
    findings: Document
    charts: list[Chart]
    timelines: list[Chart]
    parts: list[Document]
    facts: list[Document]
    traces: list[tuple[str, bool]]


def details_of(
    cell: PageCell, scaling: Sequence[Part], most_kernels: int, page: Path
) -> DetailsView:
    """Return a cell's row and details.

    Args:
        cell: the cell.
        scaling: over streams; empty if it has none.
        most_kernels: of each timeline.
        page: where the report will be; traces are linked relative to it.

    """
    record = cell.summary
    named = (record, record.cell_id, {"workload": record.cell.name})
    table = figures_table([named], [Column("workload", "sample")])
    row = table.rows[0]
    figures: list[Part] = [Heading("Figures"), table] if cell.runs.measured else []
    findings: list[Part] = []
    for baseline in dict.fromkeys(label for label, _ in cell.verdicts):
        judged = [each for label, each in cell.verdicts if label == baseline]
        findings += [Heading(f"Against {baseline}"), verdict_table(judged, brief=False)]
    findings += [Paragraph(f"run {run.run} {status_of(run)}", "red") for run in cell.runs.bad]
    parts = (figures, causes_parts(cell.causes), scaling)
    return DetailsView(
        cell=cell,
        row=row,
        sorts=_sorts(cell, row),
        marks=_marks(record),
        spark=_spark(record.judged_ns() if record.status == "ok" else []),
        findings=Document(findings),
        charts=sample_charts(cell),
        timelines=[] if cell.timelines is None else timeline_charts(
            *cell.timelines, most_kernels, simulated=record.simulated
        ),
        parts=[Document(each) for each in parts if each],
        facts=_facts(record, cell),
        traces=_traces(record, cell.folder, page),
    )  # fmt: skip


def _sorts(cell: PageCell, row: Row) -> dict[str, float]:
    """Return the numbers that a row is sorted by, and put the change into the row."""
    metrics, judged = cell.summary.metrics, cell.worst
    sorts = {key.lower(): value for key, value in percentiles_ns(cell.shown).items()}
    if metrics.throughput:
        sorts["throughput"] = float(metrics.throughput[0])
    if judged is not None and row.figures:
        verdict = judged.verdict
        row.figures["change"] = [change_of(verdict)]
        row.texts["change"] = verdict.quantity.label
        if verdict.main is not None:
            # By how much worse it is, whichever direction that is.
            worse = 1 if verdict.quantity.higher_is_worse else -1
            sorts["change"] = worse * math.log(verdict.main.ratio)
        else:
            row.reasons["change"] = verdict.sentence
    return sorts


def _marks(record: RunRecord) -> list[str]:
    noise = record.noise
    marks = {
        "launch-bound": record.launch_bound,
        "throttled": record.telemetry is not None and record.telemetry.throttled,
        "planted fault": record.faults,
    }
    said = []
    if noise is not None:
        said = ["quiet" if noise.status == "quiet" else f"noise {noise.noise}: {noise.status}"]
    return said + [mark for mark, given in marks.items() if given]


def _spark(samples_ns: Sequence[int]) -> tuple[str, str]:
    if not samples_ns:
        return "", ""
    ends = (min(samples_ns), max(samples_ns))
    unit = time_unit(ends[0], ends)
    low, high = (str(milliseconds(value / _NS_PER_MS, unit)) for value in ends)
    text = f"{len(samples_ns)} samples in the order taken, {low} to {high}"
    return spark(samples_ns), text


def causes_parts(causes: Causes | None) -> list[Part]:
    """Return the causes of a run's slow requests; nothing if nobody looked for them."""
    if causes is None:
        return []
    line = causes_line(causes, "a traced pass of its own")
    parts: list[Part] = [Heading("Causes of the tail"), Paragraph(line, "")]
    for name, tail in causes.tails.items():
        parts += _tail(name, tail)
    refused = [f"{name.upper()} refused: {reason}" for name, reason in causes.refused.items()]
    parts += [Paragraph(line, "yellow") for line in refused]
    return [*parts, *map(Paragraph, causes.limits)]


def _tail(name: str, tail: TailCauses) -> list[Part]:
    title = (
        f"{counted(tail.requests, 'request')} above {name.upper()} of "
        f"{milliseconds(tail.threshold_ms)}; the median took {milliseconds(tail.median_ms)}"
    )
    columns = (
        Column("cause", "cause"), Column("share", "share of these requests", bars=True),
        Column("named", "who or what they waited for", "(requests)"),
    )  # fmt: skip
    # What no cause explains comes last, whatever its share.
    ordered = sorted(tail.shares.items(), key=lambda each: (each[0] == UNEXPLAINED, -each[1]))
    rows = [_cause(cause, share, tail) for cause, share in ordered if share > 0]
    not_seen = {cause: [reason] for cause, reason in tail.not_seen.items()}
    unseen: list[Part] = [Paragraph("Causes that could not be seen here:"), Bullets(not_seen)]
    return [Heading(title, 3), Table(columns, rows), *unseen * bool(not_seen)]


def _cause(cause: str, share: Estimate, tail: TailCauses) -> Row:
    named = [f"{each.what} ({each.requests})" for each in tail.named.get(cause, [])]
    if cause == UNEXPLAINED and tail.unexplained_in:
        named = [
            f"lost on the {place}: {printed(part, percent)}"
            for place, part in tail.unexplained_in.items()
            if part > 0
        ]
    texts = {"cause": cause, "named": "; ".join(named)}
    return Row(texts, {"share": [printed(share, percent)]}, opens=True)


def _facts(record: RunRecord, cell: PageCell) -> list[Document]:
    """Return the scheduler's proof, the setting, the fingerprint, and the run."""
    proof: dict[str, object] = {
        "proof": "the scheduler is part of the model" if record.simulated else "none was recorded"
    }
    if record.scheduler_proof is not None:
        found = record.scheduler_proof
        priorities = ", ".join(map(str, found.device_priorities)) or "none"
        proof = {"mode": found.mode, "evidence": found.evidence, "device priorities": priorities}
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
            shown = named if path is None else Path(os.path.relpath(path, page.parent))
            found.append((shown.as_posix(), path is not None))
    return found
