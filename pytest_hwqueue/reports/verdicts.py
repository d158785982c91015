"""Renders verdicts: the text of a failing test, and the table at the end of a session."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import stdev

from pytest_hwqueue.gate.verdict import State, Verdict, percent
from pytest_hwqueue.metrics.numbers import REFUSED, PrintedFigure, counted, times
from pytest_hwqueue.reports.document import (
    Column,
    Folded,
    Heading,
    Paragraph,
    Part,
    Row,
    Table,
)
from pytest_hwqueue.reports.grid import rendered
from pytest_hwqueue.reports.notes import Notes
from pytest_hwqueue.reports.verdict_words import (
    MOST_PASSES,
    also_different,
    aside_lines,
    by_severity,
    change_of,
    counts_of,
    different_fields,
    figure_value,
    least_detected,
    lower_figure,
    mean_value,
    missing_by_reason,
    not_in_baseline,
    passes_in_short,
    remarks_of,
    settings_line,
    shift_line,
    short_words,
)
from pytest_hwqueue.verdicts.judging import CellVerdict, Judgement

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
_MOST_NAMES = 3


def explain(judged: CellVerdict, baseline: str, command: str) -> str:
    """Return a failing test's text: the verdict, its numbers, and how to repeat it.

    Args:
        judged: a verdict of any state.
        baseline: for people: DEVICE/NAME, or a path.
        command: that repeats the test.

    """
    verdict = judged.verdict
    lines = [f"{judged.cell_id}: {_headline(verdict, baseline)}"]
    lower = lower_figure(judged)
    if lower:
        lines.append(lower)
    if verdict.ratio is not None and verdict.reason != "worse":
        lines.append(verdict.sentence)
    if judged.short:
        lines.append(short_words(judged.short))
    sides = _sides(verdict)
    if sides:
        lines += ["", *sides]
    if verdict.history:
        lines += ["", *_looks(verdict)]
    lines.append("")
    if verdict.ratio is not None:
        lines.append(verdict.line)
    if judged.remark:
        lines.append(judged.remark)
    if judged.differences:
        lines.append(also_different(judged.differences))
    lines.append(f"reproduce: {command}")
    return "\n".join(lines)


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


def changes_of(judgements: Sequence[Judgement]) -> dict[str, tuple[str, str, PrintedFigure]]:
    """Return each cell's first figure compared, its verdict's style, and the change in percent."""
    found: dict[str, tuple[str, str, PrintedFigure]] = {}
    for judgement in judgements:
        for judged in judgement.verdicts:
            verdict = judged.verdict
            change = (verdict.quantity.label, _STYLES.get(verdict.state, ""), change_of(verdict))
            found.setdefault(judged.cell_id, change)
    return found


def _headline(verdict: Verdict, baseline: str) -> str:
    text = f"{verdict.quantity.label} {_AGAINST[verdict.state]} {baseline}"
    if verdict.ratio is None:
        return f"{text}: {verdict.sentence}"
    shown = f"{times(verdict.ratio, verdict.interval)} ({percent(verdict.ratio - 1)})"
    p = "" if verdict.p is None else f", p = {verdict.p:.2g}"
    return f"{text}: {shown}{p}"


def _sides(verdict: Verdict) -> list[str]:
    """Return a line per side: mean, runs, samples, and the spread of the runs."""
    sides = {"baseline": verdict.baseline, "new": verdict.new}
    means = {name: mean_value(runs) for name, runs in sides.items()}
    like = next((value for value in means.values() if value is not None), 1.0)
    rows = []
    for name, runs in sides.items():
        if not runs:
            continue
        mean = means[name]
        value = REFUSED if mean is None else figure_value(verdict.quantity, mean, like)
        counts = sorted({run.n for run in runs})
        n = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        sessions = len({run.session for run in runs})
        parts = [
            f"{counted(len(runs), 'run')} from {counted(sessions, 'session')}",
            f"{n} samples each",
        ]
        if mean is not None and len(runs) > 1:
            sd = stdev(math.log(run.value) for run in runs)
            parts.append(f"sd {100 * sd:.1f} % between runs")
        failed = sum(run.failed for run in runs)
        if failed:
            parts.append(counted(failed, "failed request"))
        rows.append((name, str(value), ", ".join(parts)))
    widest = max((len(value) for _, value, _ in rows), default=0)
    return [f"  {name:<8}  {value:>{widest}}  {rest}" for name, value, rest in rows]


def _looks(verdict: Verdict) -> list[str]:
    """Return the looks as a table: the numbers after so many new runs."""
    rows = [("runs", "ratio", "p_t", "p_exact", "decision")]
    rows += [
        (
            str(look.new_runs),
            f"{look.ratio:.3f}",
            f"{look.p_t:.2g}",
            str(REFUSED) if look.p_exact is None else f"{look.p_exact:.2g}",
            look.decision,
        )
        for look in verdict.history
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(f"{part:>{width}}" for part, width in zip(row[:-1], widths, strict=False))
        + f"  {row[-1]}"
        for row in rows
    ]


def judgement_parts(judgement: Judgement, *, brief: bool, fold: bool) -> list[Part]:
    """Return what a comparison found: the worst first, then what was not compared, and the gate.

    Args:
        judgement: what a comparison found.
        brief: whether to leave details to ``-v``.
        fold: whether to sum up passes; more than 20 always are.

    """
    style = "red" if judgement.count("regression") else "bold"
    heading = f"Against {judgement.baseline}: {counts_of(judgement)}"
    parts: list[Part] = [Heading(heading, style=style)]
    listed = [each for each in judgement.verdicts if each.verdict.state != "no-baseline"]
    passes = [each for each in listed if each.verdict.state == "pass"]
    folded = bool(passes) and (fold or len(passes) > MOST_PASSES)
    if folded:
        listed = [each for each in listed if each.verdict.state != "pass"]
    if listed:
        parts.append(verdict_table(by_severity(listed), brief))
    if folded:
        short = passes_in_short([each.verdict for each in passes], judgement.settings)
        labels = dict.fromkeys(each.verdict.quantity.label for each in passes)
        short += f" ({', '.join(labels)})" if len(labels) > 1 else ""
        parts += [Folded(short, verdict_table(passes, brief))]
        lines = aside_lines(passes)
        if not different_fields(listed):
            lines += filter(None, [different_fields(passes)])
        parts += [Paragraph(line, "") for line in lines]
    for reason, cells in missing_by_reason(judgement).items():
        parts.append(Paragraph(f"missing ({reason}): {_named(cells, brief)}", "yellow"))
    unknown = not_in_baseline(judgement)
    if unknown:
        where = f"no baseline in {judgement.baseline} (--hwq-save stores one)"
        parts.append(Paragraph(f"{where}: {_named(unknown, brief)}", ""))
    if judgement.shift is not None:
        changed = "yellow" if judgement.shift.of_machine else "dim"
        parts.append(Paragraph(shift_line(judgement.shift), changed))
    return [*parts, Paragraph(settings_line(judgement.settings, judgement.compared))]


def _named(cells: Sequence[str], brief: bool) -> str:
    shown = cells[:_MOST_NAMES] if brief and len(cells) > _MOST_NAMES + 1 else cells
    more = f" and {len(cells) - len(shown)} more (-v)" if len(shown) < len(cells) else ""
    return ", ".join(shown) + more


def verdict_table(verdicts: Sequence[CellVerdict], brief: bool) -> Table:
    """Return a row for each verdict, in their order; the sentence stands below."""
    notes = Notes()
    sentences = Counter(each.verdict.sentence for each in verdicts)
    rows = []
    for judged in verdicts:
        verdict = judged.verdict
        row = Row(style=_STYLES.get(verdict.state, ""), opens=True)
        row.texts = {"cell": judged.cell_id, "figure": verdict.quantity.label}
        remarks = remarks_of(judged, brief=brief)
        if verdict.state != "pass":
            if sentences[verdict.sentence] > 1:
                remarks.insert(0, verdict.sentence)
            else:
                row.below.append(verdict.sentence)
        marks = [notes.footnote(remark) for remark in remarks]
        row.texts["cell"] = " ".join([judged.cell_id, *marks])
        _put_numbers(row, verdict)
        rows.append(row)
    return Table(_COLUMNS, rows, notes.lines(len(rows)))


def _put_numbers(row: Row, verdict: Verdict) -> None:
    row.texts |= {
        "state": verdict.state,
        "runs": f"{len(verdict.baseline)} + {len(verdict.new)}",
        "detect": least_detected(verdict),
    }
    row.figures["change"] = [change_of(verdict)]
    means = {"baseline": mean_value(verdict.baseline), "new": mean_value(verdict.new)}
    like = means["baseline"] or means["new"] or 1.0
    for key, mean in means.items():
        row.figures[key] = [REFUSED if mean is None else figure_value(verdict.quantity, mean, like)]
