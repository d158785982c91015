"""What a cell's details show: words for the template, and numbers for the charts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_hwqueue.gate.verdict import State
from pytest_hwqueue.metrics.numbers import time_unit
from pytest_hwqueue.records.cell import RunRecord
from pytest_hwqueue.reports.cell_rows import NO_REASON
from pytest_hwqueue.reports.charts import (
    Curve,
    order_chart,
    survival_chart,
    timeline_chart,
)
from pytest_hwqueue.reports.drawing import colour
from pytest_hwqueue.reports.page.cells import PageCell
from pytest_hwqueue.reports.page.charts import (
    CausesView,
    ScalingView,
    causes_view,
    in_order,
    survival,
    timelines,
)
from pytest_hwqueue.reports.page.rows import RowView, Told, row_of, told
from pytest_hwqueue.reports.verdict_words import change_of, remarks_of

_TRACE = "trace: "
_NS_PER_MS = 1e6


@dataclass(frozen=True)
class VerdictView:
    """One figure's verdict against a baseline."""

    baseline: str
    figure: str
    change: str
    state: State
    sentence: str
    remarks: list[str]


@dataclass(frozen=True)
class DetailsView:
    """A cell's details.

    Attributes:
        row: its line in the table.
        told: its figures, further lines and notes.
        verdicts: on each figure that was compared.
        failures: why runs have no figures.
        charts: by name, ``timelines`` as a list; a name without a chart is missing.
        thinned: whether the samples in order are more than are drawn.
        timelines: titles of the timelines, with how many kernels are left out, or why there is
            none to draw.
        causes: of slow requests; None if nobody looked for them.
        scaling: None if the cell was measured at one count of streams.
        proof: that the scheduler was active: what it is, and its evidence.
        fingerprint: groups of fields: what must match to compare, what is reported, what is
            missing and why.
        setting: the cell's parts and parameters.
        facts: when, how long, with which seed and version.
        command: that repeats the session.
        files: names of the records.
        traces: for Perfetto: a path relative to the page, and whether the file is there.

    """

    row: RowView
    told: Told
    verdicts: list[VerdictView]
    failures: list[str]
    charts: dict[str, Any]
    thinned: bool
    timelines: list[tuple[str, str]]
    causes: CausesView | None
    scaling: ScalingView | None
    proof: list[tuple[str, str]]
    fingerprint: dict[str, Mapping[str, object]]
    setting: dict[str, object]
    facts: dict[str, object]
    command: str
    files: list[str]
    traces: list[tuple[str, bool]]

    @property
    def several(self) -> bool:
        """Whether the samples are of several runs."""
        return bool(self.row.runs)


def details_of(
    cell: PageCell, scaling: ScalingView | None, most_kernels: int, page: Path
) -> DetailsView:
    """Return a cell's details.

    Args:
        cell: the cell.
        scaling: over streams; None if it has none.
        most_kernels: of each timeline.
        page: where the report will be; traces are linked relative to it.

    """
    record, figures = cell.shown, told(cell.shown)
    row = row_of(cell, figures)
    measured = cell.runs.measured
    runs = [_run(run, len(measured), shown=run is cell.shown) for run in measured]
    drawn = [] if cell.timelines is None else timelines(*cell.timelines, most_kernels)
    return DetailsView(
        row=row,
        told=figures,
        verdicts=[
            VerdictView(
                baseline, judged.verdict.quantity.label, str(change_of(judged.verdict)),
                judged.verdict.state, judged.verdict.sentence, remarks_of(judged),
            )
            for baseline, judged in cell.verdicts
        ],
        failures=[_failure(run) for run in cell.runs.bad],
        charts=_charts(cell, row, runs, drawn, scaling),
        thinned=any(run["order"]["at"] is not None for run in runs),
        timelines=[_said(each) for each in drawn],
        causes=causes_view(cell.causes),
        scaling=scaling,
        proof=_proof(record),
        fingerprint=_fingerprint(record),
        setting={
            **record.cell.model_dump(exclude={"parameters"}), **record.cell.parameters
        },
        facts=_facts(record, cell),
        command=record.command,
        files=cell.record_files,
        traces=_traces(record, cell.folder, page),
    )  # fmt: skip


def _failure(run: RunRecord) -> str:
    stage = f" in stage {run.stage}" if run.stage else ""
    return f"run {run.run} {run.status}{stage}: {run.reason or NO_REASON}"


def _charts(
    cell: PageCell, row: RowView, runs: list[dict[str, Any]], drawn: list[dict[str, Any]],
    scaling: ScalingView | None,
) -> dict[str, Any]:  # fmt: skip
    charts: dict[str, Any] = {
        "timelines": [
            timeline_chart(each, simulated=row.simulated) for each in drawn if "refused" not in each
        ]
    }
    if scaling is not None and scaling.chart is not None:
        charts["scaling"] = scaling.chart
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


def _proof(record: RunRecord) -> list[tuple[str, str]]:
    if record.scheduler_proof is None:
        why = "the scheduler is part of the model" if record.simulated else "none was recorded"
        return [("proof", why)]
    proof = record.scheduler_proof
    priorities = ", ".join(map(str, proof.device_priorities))
    return [
        ("mode", proof.mode),
        ("evidence", proof.evidence),
        ("device priorities", priorities or "none"),
    ]


def _fingerprint(record: RunRecord) -> dict[str, Mapping[str, object]]:
    if record.fingerprint is None:
        return {}
    return {
        "Must match to be compared": record.fingerprint.hard,
        "Reported when it differs": record.fingerprint.soft,
        "Not known, and why": record.fingerprint.missing,
    }


def _facts(record: RunRecord, cell: PageCell) -> dict[str, object]:
    commit = record.git_commit
    if commit is not None and record.git_dirty:
        commit += " with uncommitted changes"
    return {
        "test": record.nodeid or None,
        "run shown": f"{record.run} of {len(cell.runs.runs)}",
        "started": record.started,
        "duration": f"{record.duration_s:.3g} s",
        "iterations": record.iterations,
        "stopped by": record.stopped or None,
        "seed": record.seed,
        "version": record.version,
        "commit": commit,
        "planted faults": ", ".join(record.faults) or None,
    }


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
