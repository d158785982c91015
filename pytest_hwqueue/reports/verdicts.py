"""Renders verdicts: the text of a failing test, and the table at the end of a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_hwqueue.gate.verdict import State, Verdict, percent
from pytest_hwqueue.metrics.numbers import REFUSED, PrintedFigure
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
    aside_lines,
    by_severity,
    change_of,
    counts_of,
    different_fields,
    figure_value,
    least_detected,
    mean_value,
    missing_by_reason,
    not_in_baseline,
    passes_in_short,
    remarks_of,
    settings_line,
    shift_line,
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
# Verdict, change and runs are the sentence of these.
_SAID_BY_COLUMNS = ("worse", "better", "within-noise", "not-shown")
_MOST_NAMES = 3
_EXPLAINED_WIDTH = 100


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
    # A blind cell's sentence says so.
    seen = None if verdict.reason == "blind" else verdict.detectable
    reach = least_detected(verdict.quantity, seen)
    noise = "" if verdict.sd is None else f"sd of {label} between runs {100 * verdict.sd:.1f} %"
    lines.append(", ".join(filter(None, [noise, reach and f"this cell can detect {reach}"])))
    parts: list[Part] = [Heading(f"{judged.cell_id}: {label} {_AGAINST[verdict.state]} {baseline}")]
    parts += [Paragraph(line) for line in lines if line]
    sides = _sides(verdict)
    if sides.rows:
        parts.append(sides)
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


def changes_of(judgements: Sequence[Judgement]) -> dict[str, tuple[str, str, PrintedFigure]]:
    """Return each cell's first figure compared, its verdict's style, and the change in percent."""
    found: dict[str, tuple[str, str, PrintedFigure]] = {}
    for judgement in judgements:
        for judged in judgement.verdicts:
            verdict = judged.verdict
            change = (verdict.quantity.label, _STYLES.get(verdict.state, ""), change_of(verdict))
            found.setdefault(judged.cell_id, change)
    return found


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
    heading = f"Against {judgement.baseline}: {counts_of(judgement)}"
    parts: list[Part] = [Heading(heading, style=style)]
    listed = [each for each in judgement.verdicts if each.verdict.state != "no-baseline"]
    passes = [each for each in listed if each.verdict.state == "pass"]
    folded = bool(passes) and (fold or len(passes) > MOST_PASSES)
    if folded:
        listed = [each for each in listed if each.verdict.state != "pass"]
    if listed:
        parts.append(verdict_table(by_severity(listed), brief, details))
    if folded:
        short = passes_in_short([each.verdict for each in passes], judgement.settings)
        labels = dict.fromkeys(each.verdict.quantity.label for each in passes)
        short += f" ({', '.join(labels)})" if len(labels) > 1 else ""
        parts += [Folded(short, verdict_table(passes, brief, details))]
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
        _put_numbers(row, verdict)
        rows.append(row)
        said = [verdict.sentence] * (verdict.reason not in _SAID_BY_COLUMNS)
        remarks.append(said + remarks_of(judged, brief=brief))
    notes.remark(rows, remarks)
    return Table(_COLUMNS, rows, notes.lines(len(rows)))


def _put_numbers(row: Row, verdict: Verdict) -> None:
    row.texts |= {
        "state": verdict.state,
        "runs": f"{len(verdict.baseline)} + {len(verdict.new)}",
        "detect": least_detected(verdict.quantity, verdict.detectable),
    }
    row.figures["change"] = [change_of(verdict)]
    row.figures |= {side: [mean] for side, mean in _means(verdict).items()}


def _means(verdict: Verdict) -> dict[str, PrintedFigure]:
    """Return the figure of each side, in the unit of the baseline's."""
    means = {"baseline": mean_value(verdict.baseline), "new": mean_value(verdict.new)}
    like = means["baseline"] or means["new"] or 1.0
    return {
        side: REFUSED if mean is None else figure_value(verdict.quantity, mean, like)
        for side, mean in means.items()
    }
