"""Verdicts in words: the text of a failing test, the table after a session, properties in JUnit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

from pytest_hwqueue.data.document.document import (
    Bullets,
    Column,
    FoldedPart,
    Heading,
    Paragraph,
    Part,
    Row,
    Table,
)
from pytest_hwqueue.data.document.notes import Notes
from pytest_hwqueue.data.document.terminal import rendered
from pytest_hwqueue.data.metrics.between_runs import RunSpread
from pytest_hwqueue.data.metrics.numbers import (
    REFUSED,
    PrintedFigure,
    counted,
    grouped,
    milliseconds,
    rate,
    time_unit,
    times,
)
from pytest_hwqueue.data.metrics.numbers import percent as plain_percent
from pytest_hwqueue.judge.baselines.runs import in_words
from pytest_hwqueue.judge.effects import PROMISED
from pytest_hwqueue.judge.judging import CellVerdict, Judgement
from pytest_hwqueue.judge.runs import ProcessRun
from pytest_hwqueue.judge.suite_gate import SuiteShift
from pytest_hwqueue.judge.verdict import GateSettings, Quantity, State, Verdict, percent, sd_words

if TYPE_CHECKING:
    from pytest_hwqueue.data.records.cell import RunRecord

SEVERITY: tuple[State, ...] = (
    "regression", "incomparable", "inconclusive", "improvement", "no-baseline", "pass",
)  # fmt: skip
"""States in the order of a report: what needs a reader comes first."""

MOST_PASSES = 20
"""More passes than this are summarised in one line."""

_NOUNS = ("regression", "improvement")
_AGAINST: dict[State, str] = {
    "regression": "is a regression against",
    "improvement": "is an improvement on",
    "pass": "passes against",
    "inconclusive": "is inconclusive against",
    "incomparable": "cannot be compared with",
    "no-baseline": "has no baseline in",
}
_STYLES: dict[State, str] = {
    "regression": "red", "incomparable": "yellow", "inconclusive": "yellow", "improvement": "green",
}  # fmt: skip
_NS_PER_MS = 1e6
_COLUMNS = (
    Column("cell", "cell"),
    Column("figure", "figure"),
    Column("baseline", "baseline", unit_in_header=False, rank=3, kept=False),
    Column("new", "new", unit_in_header=False, rank=3, kept=False),
    Column("change", "change", interval_rank=1),
    Column("state", "verdict"),
    Column("runs", "old + new", "runs", right=True, rank=2),
    Column("detect", "can detect", right=True, rank=2),
)
# Verdict, change and runs are the sentence of these.
_SAID_BY_COLUMNS = ("worse", "better", "within-noise", "not-shown")
_MOST_NAMES = 3
_EXPLAINED_WIDTH = 100


def figure_value(quantity: Quantity, value: float, like: float) -> PrintedFigure:
    """Format a run's figure in its unit.

    Args:
        quantity: what the value is.
        value: finite and above 0.
        like: unit or scale as this value would have.

    """
    if quantity.unit == "ns":
        return milliseconds(value / _NS_PER_MS, time_unit(like))
    return rate(value, quantity.unit, like=like) if quantity.unit else times(value)


def mean_value(runs: Sequence[ProcessRun]) -> float | None:
    """Return the geometric mean over runs, or None if there are none or one lacks the figure."""
    values = [run.value for run in runs]
    if not values or not all(math.isfinite(value) and value > 0 for value in values):
        return None
    return math.exp(fmean(map(math.log, values)))


def change_of(verdict: Verdict) -> PrintedFigure:
    """Return the change and its interval in signed percent, or as refused."""
    ratio, ends = None, None
    if verdict.main is not None:
        ratio, ends = verdict.main.ratio, verdict.main.interval
    elif verdict.by_samples is not None:
        ratio, ends = verdict.by_samples.value, verdict.by_samples.interval
    if ratio is None:
        return REFUSED
    interval = ""
    if ends is not None:
        low, high = (_signed(end - 1) for end in ends)
        interval = f"[{low}, {high}]"
    return PrintedFigure(_signed(ratio - 1), "%", interval)


def least_detected(quantity: Quantity, detectable: float | None) -> str:
    """Return the smallest worsening detected as a change: ``≥ +8.7 %``, or ``≤ -8.0 %``."""
    if detectable is None:
        return ""
    if quantity.higher_is_worse:
        return f"≥ {percent(detectable)}"
    return f"≤ {percent(1 / (1 + detectable) - 1)}"


def set_aside_of(judged: CellVerdict) -> str:
    """Return which runs were excluded from a verdict and why, such as
    ``baseline run 3 (session a) has 290 samples of the usual 1000, set aside``; or nothing."""
    return "; ".join(filter(None, (judged.verdict.set_aside_words, _short_words(judged))))


def _short_words(judged: CellVerdict) -> str:
    return f"{'; '.join(map(str, judged.short))}, set aside" if judged.short else ""


def remarks_of(judged: CellVerdict, *, brief: bool = False) -> list[str]:
    """Return the remarks that accompany a verdict's sentence, each at most once.

    Args:
        judged: a verdict.
        brief: whether conditions that differ are named without their values.

    """
    verdict, gated = judged.verdict, judged.verdict.quantity
    differing = [f"{d.field} {in_words(d.a)} / {in_words(d.b)}" for d in judged.differences]
    remarks = [
        f"{gated.label} stands in for {gated.demoted_from}, for which runs are too short"
        if gated.demoted_from and verdict.reason != "demoted"
        else "",
        "" if verdict.set_aside_words in verdict.sentence else verdict.set_aside_words,
        _short_words(judged),
        verdict.limit,
        verdict.assumes,
        "" if verdict.advice in verdict.sentence else verdict.advice,
        judged.remark,
        _differing([judged])
        if brief
        else f"also different: {', '.join(differing)}" * bool(differing),
    ]
    return [each for each in remarks if each]


def _differing(verdicts: Iterable[CellVerdict]) -> str:
    """Return the names of soft conditions that differ, or an empty string."""
    fields = dict.fromkeys(each.field for judged in verdicts for each in judged.differences)
    return f"also different (values: -v): {', '.join(fields)}" if fields else ""


def by_severity(verdicts: Iterable[CellVerdict]) -> list[CellVerdict]:
    """Sort verdicts by state, otherwise as they are."""
    return sorted(verdicts, key=lambda judged: SEVERITY.index(judged.verdict.state))


def _counts(judgement: Judgement) -> str:
    """Return the number of cells in each state, such as ``2 regressions, 11 pass``.

    A cell counts once, by its worst figure, as those do that are missing.
    """
    worst = {each.cell_id: each.verdict.state for each in reversed(by_severity(judgement.verdicts))}
    by_state = Counter(worst.values())
    found = [(by_state[state], state) for state in SEVERITY]
    parts = [
        counted(count, state) if state in _NOUNS else f"{count} {state}"
        for count, state in found
        if count
    ]
    missing = len(judgement.missing)
    return ", ".join(parts + [f"{missing} missing"] * bool(missing)) or "nothing was compared"


def _passes_in_short(passes: Sequence[Verdict], settings: GateSettings) -> str:
    """Return one sentence for unlisted passes, saying what they could have missed.

    Args:
        passes: at least one.
        settings: of the gate.

    """
    reach = [verdict.detectable for verdict in passes if verdict.detectable is not None]
    parts = [f"{counted(len(passes), 'figure')} passed"]
    if reach:
        parts.append(f"the least worsening that each can detect is {percent(max(reach))} or less")
    weak = sum(effect > settings.detect for effect in reach)
    if weak:
        parts.append(f"{weak} cannot detect {100 * settings.detect:+.3g} %")
    if limited := sum(bool(verdict.limit) for verdict in passes):
        parts.append(f"{limited} cannot detect {percent(PROMISED)} (why: -v)")
    blind = len(passes) - len(reach)
    if blind:
        parts.append(f"{blind} can detect none, having too small a baseline")
    return "; ".join(parts)


def _shift_line(shift: SuiteShift) -> str:
    """Return how the suite shifted as a whole."""
    text = (
        f"suite as a whole: {percent(shift.ratio - 1)} (median of {counted(shift.cells, 'figure')} "
        "at the first pass; + is worse)"
    )
    if shift.sentinel_ratio is not None:
        text += f", sentinel {percent(shift.sentinel_ratio - 1)}"
    return f"{text}: the machine itself has changed" if shift.of_machine else text


def tau_words(settings: GateSettings) -> str:
    """Return what sessions may differ by; ``auto`` if the baseline shows it."""
    return "auto" if settings.allows_for_sessions else _plain(settings.tau)


def _signed(fraction: float) -> str:
    return percent(fraction).removesuffix(" %")


def _plain(fraction: float) -> str:
    return f"{100 * fraction:.3g} %"


def properties_of(judged: CellVerdict) -> list[tuple[str, object]]:
    """Return a verdict as a test's properties, named after the figure that was really judged.

    Args:
        judged: a verdict of any state.

    Returns:
        Names such as ``CELL.p99.verdict`` with their values; ``.by`` names what is worse, if not
        the figure itself, and the time per iteration in ``CELL.iteration_time.ratio``.

    """
    verdict, main, companion = judged.verdict, judged.verdict.main, judged.verdict.companion
    name = verdict.quantity.name
    figures = (
        ("ratio", None if main is None else main.ratio),
        ("p", verdict.p),
        ("detectable", verdict.detectable),
    )
    found = {
        f"{name}.verdict": verdict.state,
        f"{name}.reason": verdict.reason,
        **{f"{name}.{field}": round(value, 6) for field, value in figures if value is not None},
        f"{name}.by": verdict.by if verdict.by != name else "",
        f"{name}.set_aside": set_aside_of(judged),
    }
    if companion is not None:
        found[f"{companion.quantity.name}.ratio"] = round(companion.ratio, 6)
    return [(f"{judged.cell_id}.{key}", value) for key, value in found.items() if value != ""]


def explain(judged: CellVerdict, baseline: str, command: str) -> str:
    """Return a failing test's text: the verdict, its numbers, and how to repeat it.

    Args:
        judged: a verdict of any state.
        baseline: for people: DEVICE/NAME, or a path.
        command: that repeats the test.

    """
    verdict = judged.verdict
    label = verdict.quantity.label
    lines = [verdict.sentence, *remarks_of(judged)]
    earlier = [
        f"{percent(look.ratio - 1)} after {look.new_runs} new runs" for look in verdict.history[:-1]
    ]
    if earlier:
        lines.append(f"earlier looks: {', '.join(earlier)}")
    noise = []
    if (main := verdict.main) is not None:
        noise.append(f"sd of {label} between runs {sd_words(main.sd, main.sd_is_floor)}")
    reach = least_detected(verdict.quantity, verdict.detectable)
    # A blind cell's sentence says so.
    if reach and verdict.reason != "blind":
        noise.append(f"this cell can detect {reach}")
    parts: list[Part] = [Heading(f"{judged.cell_id}: {label} {_AGAINST[verdict.state]} {baseline}")]
    parts += [Paragraph(line) for line in (*lines, ", ".join(noise)) if line]
    sides = _sides(verdict)
    parts += [sides] * bool(sides.rows)
    # The command is copied, so it is not wrapped.
    return f"{rendered(parts, _EXPLAINED_WIDTH, False)}\nreproduce: {command}"


def render_judgement(judgement: Judgement, width: int, colour: bool, *, brief: bool = False) -> str:
    """Return the verdicts as text, without a newline at the end.

    Args:
        judgement: what a comparison found.
        width: of the terminal in cells; no line is longer.
        colour: whether to write ANSI escape sequences.
        brief: whether to sum up what passed and what was not measured. More than 20 passes are
            always summed up.

    """
    return rendered(judgement_parts(judgement, brief=brief, fold=brief), width, colour)


def with_limits(judgement: Judgement, records: Sequence[RunRecord]) -> Judgement:
    """Return a judgement that says of cells without a baseline how near they are to a limit.

    It is all that a first run on a device tells of how good its figures are.

    Args:
        judgement: what a comparison found.
        records: of the session; of a cell's runs the first that knows a limit counts.

    """
    nearest: dict[str, str] = {}
    for record in records:
        if (found := record.metrics.nearest_limit) is not None:
            share = f"{plain_percent(float(found.share))} {found.limit}"
            nearest.setdefault(record.cell_id, share)
    return replace(
        judgement,
        verdicts=tuple(
            replace(each, remark=nearest.get(each.cell_id, ""))
            if each.verdict.state == "no-baseline"
            else each
            for each in judgement.verdicts
        ),
    )


def changes_of(judgements: Sequence[Judgement]) -> dict[str, tuple[str, str, PrintedFigure]]:
    """Return each cell's first figure compared, its verdict's style, and the change in percent."""
    found: dict[str, tuple[str, str, PrintedFigure]] = {}
    for judgement in judgements:
        for judged in judgement.verdicts:
            verdict = judged.verdict
            change = (verdict.quantity.label, _STYLES.get(verdict.state, ""), change_of(verdict))
            found.setdefault(judged.cell_id, change)
    return found


def spreads_of(judgements: Sequence[Judgement]) -> dict[str, RunSpread]:
    """Return how far the baselines' runs differ within a session, by cell id."""
    return {cell: spread for each in judgements for cell, spread in each.spreads.items()}


def _sides(verdict: Verdict) -> Table:
    """Return a row for each side: mean, sessions, samples and failed requests of its runs."""
    rows = []
    means = _means(verdict)
    for name, runs in (("baseline", verdict.baseline), ("new", verdict.new)):
        if not runs:
            continue
        counts = {run.n for run in runs}
        texts = {
            "runs": name,
            "sessions": str(len({run.session for run in runs})),
            "samples": " to ".join(map(str, sorted({min(counts), max(counts)}))),
            "failed": str(sum(run.failed for run in runs) or ""),
        }
        rows.append(Row(texts, {"mean": [means[name]]}))
    columns = (
        Column("runs", "runs"),
        Column("mean", verdict.quantity.label, unit_in_header=False),
        Column("sessions", "sessions", right=True),
        Column("samples", "samples each", right=True),
        Column("failed", "failed requests", right=True),
    )
    return Table(columns, rows)


def judgement_parts(
    judgement: Judgement, *, brief: bool, fold: bool, details: Mapping[str, str] | None = None
) -> list[Part]:
    """Return what a comparison found: the worst first, then what was not compared, and the gate.

    Args:
        judgement: what a comparison found.
        brief: whether to leave details to ``-v``.
        fold: whether to sum up passes; more than 20 always are.
        details: which of the page's cells has a cell's details, by its id.

    """
    style = "red" if judgement.count("regression") else "bold"
    heading = f"Against {judgement.baseline}: {_counts(judgement)}"
    parts: list[Part] = [Heading(heading, style=style)]
    parts += [Paragraph(note, "yellow") for note in judgement.notes]
    listed = [each for each in judgement.verdicts if each.verdict.state != "no-baseline"]
    passes = [each for each in listed if each.verdict.state == "pass"]
    folded = bool(passes) and (fold or len(passes) > MOST_PASSES)
    if folded:
        listed = [each for each in listed if each.verdict.state != "pass"]
    if listed:
        parts.append(verdict_table(by_severity(listed), brief, details))
    if folded:
        short = _passes_in_short([each.verdict for each in passes], judgement.settings)
        labels = dict.fromkeys(each.verdict.quantity.label for each in passes)
        short += f" ({', '.join(labels)})" if len(labels) > 1 else ""
        parts += [FoldedPart(short, verdict_table(passes, brief, details))]
        lines = [
            f"{each.cell_id}, {each.verdict.quantity.label}: {aside}"
            for each in passes
            if (aside := set_aside_of(each))
        ]
        if not _differing(listed):
            lines.append(_differing(passes))
        parts += [Paragraph(line, "") for line in lines if line]
    missing = grouped((absent.reason, absent.cell_id) for absent in judgement.missing)
    for reason, cells in missing.items():
        parts.append(_naming(f"missing ({reason})", cells, "yellow", brief, fold))
    new = {
        f"{each.cell_id} ({each.remark})" if each.remark else each.cell_id: each.remark
        for each in judgement.verdicts
        if each.verdict.state == "no-baseline"
    }
    if new:
        where = f"no baseline in {judgement.baseline} (--hwq-save stores one)"
        where += "; share of the device's nearest limit" * any(new.values())
        parts.append(_naming(where, list(new), "", brief, fold))
    if judgement.shift is not None:
        changed = "yellow" if judgement.shift.of_machine else "dim"
        parts.append(Paragraph(_shift_line(judgement.shift), changed))
    gate = judgement.settings
    return [*parts, Paragraph(
        f"rate {_plain(gate.rate)} over {counted(judgement.compared, 'figure')}, min effect "
        f"{'auto' if gate.own_effects else _plain(gate.min_effect)}, tau {tau_words(gate)}"
    )]  # fmt: skip


def _naming(what: str, cells: Sequence[str], style: str, brief: bool, fold: bool) -> Part:
    """Return what is said of cells, with their names; of many, a few or folded."""
    if len(cells) <= _MOST_NAMES + 1 or not (brief or fold):
        return Paragraph(f"{what}: {', '.join(cells)}", style)
    if brief:
        shown = ", ".join(cells[:_MOST_NAMES])
        return Paragraph(f"{what}: {shown} and {len(cells) - _MOST_NAMES} more (-v)", style)
    return FoldedPart(f"{what}: {counted(len(cells), 'cell')}", Bullets({"": list(cells)}))


def verdict_table(
    verdicts: Sequence[CellVerdict], brief: bool, details: Mapping[str, str] | None = None
) -> Table:
    """Return a row for each verdict, in their order, and below what its columns do not say."""
    notes, rows, remarks = Notes(), [], []
    for judged in verdicts:
        verdict = judged.verdict
        row = Row(style=_STYLES.get(verdict.state, ""), opens=True)
        row.texts = {"cell": judged.cell_id, "figure": verdict.quantity.label}
        if details and judged.cell_id in details:
            row.links["cell"] = details[judged.cell_id]
        row.texts |= {
            "state": verdict.state,
            "runs": f"{len(verdict.baseline)} + {len(verdict.new)}",
            "detect": least_detected(verdict.quantity, verdict.detectable),
        }
        row.figures = {side: [mean] for side, mean in _means(verdict).items()}
        row.figures["change"] = [change_of(verdict)]
        rows.append(row)
        said = [verdict.sentence] * (verdict.reason not in _SAID_BY_COLUMNS)
        remarks.append(said + remarks_of(judged, brief=brief))
    notes.remark(rows, remarks)
    return Table(_COLUMNS, rows, notes.lines(len(rows)))


def _means(verdict: Verdict) -> dict[str, PrintedFigure]:
    """Return the figure of each side, in the unit of the baseline's."""
    means = {"baseline": mean_value(verdict.baseline), "new": mean_value(verdict.new)}
    like = means["baseline"] or means["new"] or 1.0
    return {
        side: REFUSED if mean is None else figure_value(verdict.quantity, mean, like)
        for side, mean in means.items()
    }
