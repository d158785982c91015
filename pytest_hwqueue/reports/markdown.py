"""The session in GitHub-flavoured Markdown, for the summary of a job in GitHub Actions."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_hwqueue.metrics.latency import LatencySummary, interval_of
from pytest_hwqueue.metrics.numbers import REFUSED, counted, rate, time_unit
from pytest_hwqueue.records.cell import RunRecord
from pytest_hwqueue.records.stored import CellRuns, gather
from pytest_hwqueue.reports.cell_rows import NO_REASON, PERCENTILES, other_series, percentile
from pytest_hwqueue.reports.document import code, markdown_table, plain
from pytest_hwqueue.reports.noise_losses import noise_lines
from pytest_hwqueue.reports.notes import Notes
from pytest_hwqueue.reports.servers import failures
from pytest_hwqueue.reports.verdict_words import (
    SEVERITY,
    aside_lines,
    by_severity,
    change_of,
    counts_of,
    least_detected,
    missing_by_reason,
    not_in_baseline,
    passes_in_short,
    remarks_of,
    settings_line,
    shift_line,
)
from pytest_hwqueue.verdicts.judging import CellVerdict, Judgement

_SHOWN = ("p50", "p95", "p99")
_NS_PER_MS = 1e6
_SIGNS = {
    "regression": "❌", "incomparable": "⚠️", "inconclusive": "⚠️", "improvement": "🟢",
    "no-baseline": "⚪", "pass": "✅",
}  # fmt: skip
_VERDICT_HEAD = ("", "cell", "figure", "change [95 %]", "verdict", "runs (old + new)", "can detect")
_FIGURE_HEAD = ("cell", "runs", "n", "P50 [95 %]", "P95 [95 %]", "P99 [95 %]", "throughput")


def render_markdown(judgements: Sequence[Judgement], records: Sequence[RunRecord]) -> str:
    """Return verdicts (what regressed first), figures and failures, with a newline at the end.

    Args:
        judgements: outcomes of comparisons, one per device model; empty if nothing was compared.
        records: of the session, of any status and in the order measured.

    """
    cells = gather(records)
    blocks = [f"## Hardware queues{_devices(records)}"]
    for judgement in sorted(judgements, key=_most_severe):
        blocks += _verdicts(judgement)
    blocks += _figures([cell for cell in cells if cell.measured])
    if under_noise := noise_lines(records):
        blocks += ["### Background load", _bullets([plain(line) for line in under_noise])]
    blocks += _failures(cells)
    return "\n\n".join(blocks) + "\n"


def _most_severe(judgement: Judgement) -> int:
    return min((SEVERITY.index(each.verdict.state) for each in judgement.verdicts), default=0)


def _devices(records: Sequence[RunRecord]) -> str:
    names: dict[str, None] = {}
    for record in records:
        if record.fingerprint is not None and "device_name" in record.fingerprint.hard:
            hard = record.fingerprint.hard
            name = plain(str(hard["device_name"]))
            names[f"{name} (a model's figures, not measured)" if record.simulated else name] = None
    return f" on {', '.join(names)}" if names else ""


def _verdicts(judgement: Judgement) -> list[str]:
    ordered = by_severity(judgement.verdicts)
    first = [each for each in ordered if each.verdict.state not in ("pass", "no-baseline")]
    passes = [each for each in ordered if each.verdict.state == "pass"]
    blocks = [f"### Against {code(judgement.baseline)}: {counts_of(judgement)}"]
    if first:
        blocks.append(markdown_table(_VERDICT_HEAD, [_verdict_row(each) for each in first]))
        blocks.append("\n".join(map(_reason, first)))
    if passes:
        short = passes_in_short([each.verdict for each in passes], judgement.settings)
        table = markdown_table(_VERDICT_HEAD, [_verdict_row(each) for each in passes])
        aside = [_bullets([plain(line) for line in aside_lines(passes)])]
        blocks += [
            f"<details><summary>{short}</summary>",
            table,
            *filter(None, aside),
            "</details>",
        ]
    lines = [
        f"missing ({plain(reason)}): {', '.join(map(code, cells))}"
        for reason, cells in missing_by_reason(judgement).items()
    ]
    unknown = not_in_baseline(judgement)
    if unknown:
        lines.append(f"no baseline (`--hwq-save` stores one): {', '.join(map(code, unknown))}")
    if judgement.shift is not None:
        lines.append(shift_line(judgement.shift))
    lines.append(settings_line(judgement.settings, judgement.compared))
    blocks.append(_bullets(lines))
    return blocks


def _verdict_row(judged: CellVerdict) -> tuple[str, ...]:
    verdict = judged.verdict
    return (
        _SIGNS[verdict.state],
        code(judged.cell_id),
        plain(verdict.quantity.label),
        str(change_of(verdict)),
        verdict.state,
        f"{len(verdict.baseline)} + {len(verdict.new)}",
        least_detected(verdict),
    )


def _reason(judged: CellVerdict) -> str:
    verdict = judged.verdict
    parts = [verdict.sentence, *remarks_of(judged)]
    return f"- {code(judged.cell_id)}: {plain('; '.join(parts))}"


def _figures(cells: Sequence[CellRuns]) -> list[str]:
    if not cells:
        return []
    notes = Notes()
    rows = []
    for cell in cells:
        record = cell.middle
        latency = record.metrics.latency
        assert latency is not None
        name = record.cell_id
        throughput = "<br>".join(
            plain(str(rate(each.value, each.unit, each.interval)))
            for each in record.metrics.throughput
        )
        runs, name_code = cell.count, code(name)
        what = "" if record.primary.name == "iteration" else f" {plain(record.primary.name)}"
        bound = " (launch-bound)" if record.launch_bound else ""
        figures = _latency(latency, name, None, notes)
        rows.append((f"{name_code}{what}{bound}", runs, *figures, throughput))
        for tag, summary in other_series(record).items():
            rows.append(
                (f"{name_code} {plain(tag)}", runs, *_latency(summary, name, tag, notes), "")
            )
    blocks = ["### Figures", markdown_table(_FIGURE_HEAD, rows)]
    lines = [plain(line) for line in notes.lines(len(cells))]
    lines += [
        f"{code(run.cell_id)}: {plain(failures(run.failed_requests or 0, run.failed_for))}"
        for cell in cells
        for run in cell.runs
        if run.failed_for
    ]
    if any(len(cell.runs) > 1 for cell in cells):
        lines.append(
            "Of a cell's runs, the one whose P99 (P50 without a P99) is in their middle is shown; "
            "intervals are from its samples."
        )
    if lines:
        blocks.append(_bullets(lines))
    return blocks


def _latency(summary: LatencySummary, cell: str, tag: str | None, notes: Notes) -> list[str]:
    given = {key: getattr(summary, key) for key in _SHOWN}
    times_ns = [value * _NS_PER_MS for value in given.values() if value is not None]
    unit = time_unit((times_ns or [summary.mean * _NS_PER_MS])[0], times_ns)
    shown = [str(summary.n)]
    for key, value in given.items():
        if value is None:
            notes.refuse(PERCENTILES[key], summary.refused.get(key, NO_REASON), cell, tag)
            shown.append(str(REFUSED))
        else:
            shown.append(str(percentile(summary, key, unit)))
            if key not in summary.intervals:
                reason = summary.refused.get(interval_of(key), NO_REASON)
                notes.refuse(f"interval of {PERCENTILES[key]}", reason, cell, tag)
    return shown


def _failures(cells: Sequence[CellRuns]) -> list[str]:
    lines = []
    for cell in cells:
        for run in cell.bad:
            which = f" run {run.run}" if len(cell.runs) > 1 else ""
            stage = f" in stage {plain(run.stage)}" if run.stage else ""
            reason = plain(run.reason or NO_REASON)
            lines.append(f"{code(run.cell_id)}{which} **{run.status}**{stage}: {reason}")
    if not lines:
        return []
    return [f"### {counted(len(lines), 'run')} without figures", _bullets(lines)]


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
