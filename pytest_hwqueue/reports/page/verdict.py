"""The page's answers: its verdict, and schedulers side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_hwqueue.metrics.numbers import REFUSED, counted
from pytest_hwqueue.reports.charts import pareto_chart
from pytest_hwqueue.reports.drawing import Spec
from pytest_hwqueue.reports.notes import Notes
from pytest_hwqueue.reports.page.cells import PageCell
from pytest_hwqueue.reports.page.rows import FigureView
from pytest_hwqueue.reports.verdict_words import (
    by_severity,
    change_of,
    counts_of,
    missing_by_reason,
    not_in_baseline,
    settings_line,
    shift_line,
)
from pytest_hwqueue.reports.which.words import (
    LABELS,
    answers,
    commands,
    effective,
    failed_lines,
    failure,
    figures,
    goal_lines,
    headlines,
    incomplete,
    printed,
    proof_line,
    settings,
    several_sessions,
    title,
    values,
)
from pytest_hwqueue.scenarios.goals import GoalVerdict
from pytest_hwqueue.verdicts.judging import Judgement
from pytest_hwqueue.which.file import WhichCase, WhichFigure, WhichFile, WhichGoal, WhichTenant

Level = Literal["bad", "warn", "good", "plain"]
_WORST: tuple[Level, ...] = ("bad", "warn", "good", "plain")


@dataclass(frozen=True)
class Verdict:
    """The sentence, how it is coloured, and what belongs to it."""

    level: Level
    sentence: str
    more: list[str] = field(default_factory=list)


def verdict_of(
    judgements: Sequence[Judgement], tables: Sequence[WhichFile], cells: Sequence[PageCell]
) -> Verdict:
    """Return the verdict: of the comparison, else ``which``'s answer, else what was measured."""
    if judgements:
        found = [_of_judgement(judgement) for judgement in judgements]
        found.sort(key=lambda each: _WORST.index(each.level))
        more = [line for each in found for line in each.more]
        return Verdict(found[0].level, "; ".join(each.sentence for each in found), more)
    if tables:
        return _of_tables(tables)
    measured = sum(bool(cell.runs.measured) for cell in cells)
    bad = len(cells) - measured
    if bad:
        sentence = f"{bad} of {counted(len(cells), 'cell')} came to no figures"
        return Verdict("bad", f"{sentence}; nothing was compared with a baseline.")
    return Verdict(
        "plain", f"{counted(measured, 'cell')} measured; nothing was compared with a baseline."
    )


def _of_judgement(judgement: Judgement) -> Verdict:
    counts = counts_of(judgement)
    worse = [each for each in judgement.verdicts if each.verdict.state == "regression"]
    more = [
        f"missing ({reason}): {', '.join(cells)}"
        for reason, cells in missing_by_reason(judgement).items()
    ]
    unknown = not_in_baseline(judgement)
    if unknown:
        more.append(f"no baseline: {', '.join(unknown)}")
    if judgement.shift is not None:
        more.append(shift_line(judgement.shift))
    more.append(settings_line(judgement.settings, judgement.compared))
    if worse:
        first = by_severity(worse)[0]
        change = change_of(first.verdict)
        # A failed request or a slower iteration convicts without a ratio of the figure itself.
        by = f" {change}" if first.verdict.ratio is not None else ""
        figure = f"{first.verdict.quantity.label} of {first.cell_id}{by}"
        among = f"{figure} among others" if len(worse) > 1 else figure
        return Verdict("bad", f"Worse than {judgement.baseline}: {counts}; {among}.", more)
    if not judgement.judged:
        return Verdict("bad", f"Nothing could be compared with {judgement.baseline}.", more)
    undecided = judgement.count("inconclusive") + judgement.count("incomparable")
    if undecided or judgement.missing:
        return Verdict(
            "warn", f"No regression shown against {judgement.baseline}, but not all is decided: "
            f"{counts}.", more,
        )  # fmt: skip
    return Verdict("good", f"No regression against {judgement.baseline}: {counts}.", more)


def _of_tables(tables: Sequence[WhichFile]) -> Verdict:
    sentences = [
        f"{table.scenario}: {sentence}" if len(tables) > 1 else sentence
        for table in tables
        for sentence in headlines(table)
    ]
    if not sentences:
        return Verdict("warn", "No scheduler was measured.")
    choices = [choice for table in tables for choice in table.choices]
    met = sum(bool(choice.met) for choice in choices)
    level: Level = "good" if met == len(choices) else "warn"
    if len(sentences) == 1:
        return Verdict(level, sentences[0])
    return Verdict(
        level, f"In {met} of {len(choices)} cases a scheduler meets all goals.", sentences
    )


# What a case's goals say together: the worst of them.
_WORST_GOAL: tuple[GoalVerdict, ...] = ("missed", "undecided", "met")
_IS_REFERENCE = "native itself: it loses nothing by definition"

Together = Literal["met", "missed", "undecided", "none"]


@dataclass(frozen=True)
class GoalView:
    """What became of one goal under one mode."""

    goal: str
    verdict: GoalVerdict
    text: str
    sentence: str


@dataclass(frozen=True)
class TenantView:
    """A tenant's figures under one mode; ``key`` is of its details, empty if there are none."""

    name: str
    key: str
    n: int
    figures: dict[str, FigureView]


@dataclass(frozen=True)
class CaseView:
    """Tenants under one mode."""

    case_id: str
    role: str
    failure: str
    goals: dict[str, GoalView]
    together: Together
    tenants: list[TenantView]
    proof: str
    effective: str


@dataclass(frozen=True)
class ParetoView:
    """An urgent tenant's P99 against the loss of a less urgent one, mode by mode.

    Attributes:
        title: which tenants, and which variant.
        chart: a point for each mode; None if there are none.
        left_out: modes without a point, and why.

    """

    title: str
    chart: Spec | None
    left_out: dict[str, str]


@dataclass(frozen=True)
class WhichView:
    """One table of ``hwq which``."""

    title: str
    simulated: bool
    description: str
    settings: list[str]
    answers: list[str]
    goals: list[str]
    labels: dict[str, str]
    cases: list[CaseView]
    paretos: list[ParetoView]
    notes: list[str]
    failed: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)


def which_view(found: WhichFile, keys: Mapping[tuple[str, str], str]) -> WhichView:
    """Return a table and its answer, in the words of the terminal.

    Args:
        found: the table.
        keys: of tenants' details, by file name of their records and tenant.

    """
    notes = Notes()
    cases = [_case(found, case, keys, notes) for case in found.cases]
    goals = dict.fromkeys(goal for case in cases for goal in case.goals)
    shown = {key for case in cases for tenant in case.tenants for key in tenant.figures}
    return WhichView(
        title=title(found),
        simulated=found.simulated,
        description=found.description,
        settings=[*settings(found), *filter(None, [several_sessions(found)])],
        answers=[*filter(None, [incomplete(found)]), *answers(found)],
        goals=list(goals),
        labels={key: label for key, label in LABELS.items() if key in shown},
        cases=cases,
        paretos=_paretos(found.cases, found.simulated),
        notes=notes.lines(sum(case.status == "ok" for case in found.cases)),
        failed=failed_lines(found),
        commands=commands(found),
    )


def _case(
    found: WhichFile, case: WhichCase, keys: Mapping[tuple[str, str], str], notes: Notes
) -> CaseView:
    sentences = goal_lines(case)
    return CaseView(
        case_id=case.id,
        role=case.role,
        failure="" if case.status == "ok" else failure(case),
        goals={
            goal.goal: GoalView(goal.goal, goal.verdict, _goal_text(goal), sentence)
            for goal, sentence in zip(case.goals, sentences, strict=True)
        },
        together=_together(case),
        tenants=[_tenant(case, tenant, keys, notes) for tenant in case.tenants],
        proof=proof_line(found, case),
        effective=effective(found, case),
    )


def _together(case: WhichCase) -> Together:
    verdicts = {goal.verdict for goal in case.goals}
    return next((verdict for verdict in _WORST_GOAL if verdict in verdicts), "none")


def _goal_text(goal: WhichGoal) -> str:
    """Return the goal's figure with its interval, in the goal's unit."""
    unit = "×" if goal.unit == "x" else goal.unit
    # Goals give shares in %, where a table's figures are of one.
    scale = 0.01 if unit == "%" else 1.0
    ends = [None if end is None else end * scale for end in (goal.value, goal.low, goal.high)]
    return str(printed(WhichFigure(value=ends[0], low=ends[1], high=ends[2]), unit))


def _tenant(
    case: WhichCase, tenant: WhichTenant, keys: Mapping[tuple[str, str], str], notes: Notes
) -> TenantView:
    given = values(tenant)
    views = {}
    for key, shown in figures(case, tenant, notes).items():
        value, _ = given[key]
        text = str(REFUSED) if value.value is None else f"{shown.number} {shown.unit}".strip()
        views[key] = FigureView(LABELS[key], text, shown.interval, value.value, value.reason)
    known = (keys.get((name, tenant.name), "") for name in case.records)
    return TenantView(tenant.name, next(filter(None, known), ""), tenant.issued, views)


def _paretos(cases: Sequence[WhichCase], simulated: bool) -> list[ParetoView]:
    views = []
    asked = [case for case in cases if case.role == "case"]
    for variant in dict.fromkeys(case.variant for case in asked):
        those = [case for case in asked if case.variant == variant]
        tenants = {tenant.name: tenant.priority for case in those for tenant in case.tenants}
        if not tenants:
            continue
        most = max(tenants.values())
        for urgent in (name for name, priority in tenants.items() if priority == most):
            for greedy in (name for name, priority in tenants.items() if priority < most):
                views.append(_pareto(variant, those, urgent, greedy, simulated))
    return views


def _pareto(
    variant: str | None, cases: Sequence[WhichCase], urgent: str, greedy: str, simulated: bool
) -> ParetoView:
    points: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    for case in cases:
        if case.status != "ok":
            left_out[case.id] = failure(case)
            continue
        p99, loss = case.tenant(urgent).p99_ms, case.tenant(greedy).throughput_loss
        if p99.value is None:
            left_out[case.id] = f"P99 of {urgent} refused: {p99.reason}"
        elif loss is not None and loss.value is None:
            left_out[case.id] = f"loss of {greedy} refused: {loss.reason}"
        else:
            points.append(_point(case, p99, loss))
    for point in points:
        point["front"] = not any(_dominates(other, point) for other in points)
    named = "" if variant is None else f", variant {variant}"
    chart = pareto_chart(points, simulated=simulated) if points else None
    return ParetoView(f"P99 of {urgent} against the loss of {greedy}{named}", chart, left_out)


def _point(case: WhichCase, p99: WhichFigure, loss: WhichFigure | None) -> dict[str, Any]:
    point = {
        "case": case.id, "placement": case.placement, "together": _together(case),
        "p99": p99.value, "p99_low": p99.low, "p99_high": p99.high,
        "loss": 0.0, "loss_low": None, "loss_high": None, "note": _IS_REFERENCE,
    }  # fmt: skip
    if loss is not None:
        ends = (("loss", loss.value), ("loss_low", loss.low), ("loss_high", loss.high))
        point |= {key: None if value is None else 100 * value for key, value in ends}
        point["note"] = loss.reason
    return point


def _dominates(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a mode is better in one figure and no worse in the other."""
    no_worse = one["p99"] <= other["p99"] and one["loss"] <= other["loss"]
    return bool(no_worse and (one["p99"] < other["p99"] or one["loss"] < other["loss"]))
