"""The answer of ``hwq which`` as a document: the decision first, then what it rests on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pytest_hwqueue.answers.which import words
from pytest_hwqueue.answers.which.file import Trend, WhichCase, WhichFile, WhichTenant, trends
from pytest_hwqueue.data.document.charts import pareto_chart
from pytest_hwqueue.data.document.document import (
    Bullets,
    Chart,
    Column,
    Command,
    Document,
    Heading,
    Paragraph,
    Part,
    Row,
    Table,
    Verbatim,
)
from pytest_hwqueue.data.document.notes import Notes, drift_in_words
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.numbers import (
    REFUSED,
    PrintedFigure,
    counted,
    grouped,
    in_unit,
    listed,
)
from pytest_hwqueue.engine.scenarios.goals import GoalResult, GoalVerdict, parse_goal
from pytest_hwqueue.parts.schedulers.declaration import NATIVE

_FIGURES = (
    Column("case", "scheduler"),
    Column("tenant", "tenant"),
    Column("sessions", "sessions", right=True, rank=8),
    Column("n", "n", right=True, rank=4),
    Column("rate", "rate", rank=9),
    Column("mean", "mean", rank=9),
    Column("variation", "variation", rank=10),
    Column("min", "min", rank=10),
    Column("p50", "P50", rank=2),
    Column("p90", "P90", rank=9),
    Column("p95", "P95", rank=6),
    Column("p99", "P99"),
    Column("max", "max", rank=10),
    Column("attained", "attained", rank=7),
    Column("energy", "energy", "a request", rank=10),
    Column("throughput", "throughput", unit_in_header=False, rank=3),
    Column("loss", "loss", "to native", rank=9),
    Column("p50_solo", "P50", "to solo", rank=10),
    Column("p99_solo", "P99", "to solo", rank=5),
    Column("capacity", "capacity", unit_in_header=False, rank=8),
)
# Their fields and units; a throughput has the tenant's.
_FIELDS = {
    "rate": ("requests_per_s", "/s"), "mean": ("mean_ms", "ms"),
    "variation": ("variation", "%"), "min": ("min_ms", "ms"),
    "p50": ("p50_ms", "ms"), "p90": ("p90_ms", "ms"), "p95": ("p95_ms", "ms"),
    "p99": ("p99_ms", "ms"),
    "max": ("max_ms", "ms"), "attained": ("attainment", "share"),
    "energy": ("energy_j", "J"),
    "throughput": ("throughput_items_per_s", ""), "loss": ("throughput_loss", "%"),
    "p50_solo": ("p50_over_solo", "×"), "p99_solo": ("p99_over_solo", "×"),
    "capacity": ("capacity_per_s", "requests/s"),
}  # fmt: skip
_LABELS = {column.key: column.name for column in _FIGURES}
_USE = (
    Column("case", "scheduler"),
    Column("tenant", "tenant"),
    Column("busy", "busy"),
    Column("switches", "switches", unit_in_header=False),
    Column("wait", "P99", "of waiting"),
    Column("traced", "throughput", "to untraced", rank=1),
)
_FIELDS_OF_USE = {
    "busy": ("busy", "%"), "switches": ("switches_per_s", "/s"), "wait": ("wait_p99_ms", "ms"),
    "traced": ("throughput_over_measured", "×"),
}  # fmt: skip
_LABELS_OF_USE = {
    "busy": "busy", "switches": "switches", "wait": "P99 of waiting",
    "traced": "throughput to untraced",
}  # fmt: skip
_TRACED = (
    "Of traced windows, apart from those measured: the tracer slows launches, and the last column "
    "says what it leaves. Waiting is from a request's first kernel being enqueued until it starts."
)
_MOST_NOTES = 3


def which_document(
    found: WhichFile, *, verbose: bool = True, details: Mapping[tuple[str, str], str] | None = None
) -> Document:
    """Return the answer and the decision table, then what they rest on.

    Args:
        found: every figure.
        verbose: whether to show every figure, goal and proof, and each session by itself.
        details: the page's cells, by file name of their records and tenant.

    """
    parts: list[Part] = [Heading(words.title(found), 1)]
    if missing := words.incomplete(found):
        parts.append(Paragraph(missing, "bold red"))
    for choice in found.choices:
        parts.append(Paragraph(words.headline(found, choice), "bold"))
        if left := words.what_it_leaves(found, choice):
            parts.append(Paragraph(left, "none"))
    parts += _decision(found, verbose)
    if missing := words.missing_ends("P99", _without_both_ends(found)):
        parts.append(Paragraph(missing))
    parts += [Verbatim(line, "red") for line in words.failed_lines(found)]
    parts += map(Paragraph, words.more_requests(found))
    measured = [case for case in found.cases if case.status == "ok"]
    if verbose:
        parts += [*_goals(found), *fronts(found.cases, found.simulated)]
        parts += [Heading("What each tenant got"), _table(found, measured, details or {})]
        parts.append(Paragraph(words.BRACKETS))
        parts += _device_use(measured)
    else:
        parts += _in_short(found)
    for trend in trends(found):
        parts += [Heading(f"P99 of {trend.tenant} over variants"), _trend(trend)]
    if verbose:
        parts += _details(found)
    described = [found.description, " · ".join(words.settings(found)), *words.tenant_lines(found)]
    described += [words.several_sessions(found)] * verbose
    parts.append(Heading("What was measured"))
    commands = [session.command for session in found.sessions] or [found.command]
    parts += [Paragraph(line) for line in described if line]
    parts += [] if verbose else [Paragraph("-v prints every figure, goal and proof")]
    return Document([*parts, *map(Command, filter(None, dict.fromkeys(commands)))])


def _table(
    found: WhichFile, cases: Sequence[WhichCase], details: Mapping[tuple[str, str], str]
) -> Table:
    """Return a row for each tenant of each case."""
    notes = Notes()
    rows = []
    for case in cases:
        if case.status != "ok":
            style = words.STYLES.get(case.status, "red")
            rows.append(
                Row({"case": case.id}, style=style, opens=True, below=[words.failure(case)])
            )
        for index, tenant in enumerate(case.tenants if case.status == "ok" else []):
            texts = {"case": case.id, "tenant": tenant.name, "n": str(tenant.issued)}
            if index == 0 and len(found.sessions) > 1:
                texts["sessions"] = str(case.sessions)
            shown = {key: [value] for key, value in _printed(case, tenant, notes).items()}
            known = (details.get((name, tenant.name)) for name in case.records)
            key = next(filter(None, known), None)
            links = {} if key is None else {"tenant": key}
            rows.append(Row(texts, shown, opens=True, links=links))
    return Table(_FIGURES, rows, notes.lines(sum(case.status == "ok" for case in cases)))


def _printed(case: WhichCase, tenant: WhichTenant, notes: Notes) -> dict[str, PrintedFigure]:
    """Return a tenant's formatted figures by column; refusals go to the notes."""
    shown = {}
    for key, (attribute, unit) in _FIELDS.items():
        value: Estimate | None = getattr(tenant, attribute)
        if value is None:
            continue
        shown[key] = in_unit(value, unit or f"{tenant.unit}/s")
        if value.value is None:
            notes.refuse(_LABELS[key], value.refused, case.id, tenant.name)
        elif value.refused:
            notes.explain(f"{_LABELS[key]} of {tenant.name} in {case.id}", words.remark(value))
        elif value.drift is not None:
            told = drift_in_words([value.drift])
            notes.explain(f"{_LABELS[key]} of {tenant.name} in {case.id}", told)
    return shown


def _device_use(cases: Sequence[WhichCase]) -> list[Part]:
    """Return how the device was used in traced windows; nothing without one."""
    notes = Notes()
    rows = []
    for case in cases:
        for index, use in enumerate(case.device_use):
            row = Row({"case": case.id, "tenant": use.tenant}, opens=index == 0)
            for key, (attribute, unit) in _FIELDS_OF_USE.items():
                figure: Estimate | None = getattr(use, attribute)
                if figure is None:
                    continue
                row.figures[key] = [in_unit(figure, unit)]
                if figure.value is None:
                    notes.refuse(_LABELS_OF_USE[key], figure.refused, case.id, use.tenant)
            rows.append(row)
    if not rows:
        return []
    traced = sum(bool(case.device_use) for case in cases)
    return [Heading("How the device was used"), Table(_USE, rows, notes.lines(traced)),
            Paragraph(_TRACED)]  # fmt: skip


def _details(found: WhichFile) -> list[Part]:
    parts: list[Part] = []
    for number, session in enumerate(found.sessions, start=1):
        device = f" on GPU {session.device_uuid}" if session.device_uuid else ""
        title = f"Session {number} of {len(found.sessions)}: {session.folder}{device}"
        if session.cases:
            parts += [Heading(title), _table(found, session.cases, {})]
    cases = [case for case in found.cases if case.proof or words.not_ours(case)]
    proofs = {case.id: [words.proof_line(found, case)] for case in cases}
    return parts + [Heading("Proof"), Bullets(proofs)] * bool(proofs)


def _goals(found: WhichFile) -> list[Part]:
    """Return what became of each goal under each mode, and why of what was not decided."""
    asked = [case for case in found.cases if case.goals]
    goals = dict.fromkeys(goal.goal for case in asked for goal in case.goals)
    columns = [Column("case", "scheduler")]
    columns += [Column(goal, goal, rank=number + 1) for number, goal in enumerate(goals)]
    columns.append(Column("active", "active", rank=len(columns)))
    rows = []
    for case in asked:
        row = Row({"case": case.id, "active": words.effective(found, case)}, opens=True)
        for goal in case.goals:
            row.texts[goal.goal] = f"{goal.verdict} {_goal_text(goal)}"
            if goal.verdict == "undecided":
                row.below.append(str(goal))
        rows.append(row)
    sure = sorted({round(100 * goal.confidence, 2) for case in asked for goal in case.goals})
    note = []
    if sure and sure != [95]:
        each = " to ".join(f"{percent:g} %" for percent in dict.fromkeys((sure[0], sure[-1])))
        note.append(Paragraph(f"Brackets here are {each} intervals: several looks decide."))
    return [Heading("Goals"), Table(columns, rows), *note] if rows else []


def _goal_text(goal: GoalResult) -> str:
    """Return the goal's figure with its interval, in the goal's unit."""
    unit = "×" if goal.figure.unit == "x" else goal.figure.unit
    # Goals give shares in %, where a table's figures are of one.
    scale = 0.01 if unit == "%" else 1.0
    figure = goal.figure.scaled(scale, unit)
    if parse_goal(goal.goal).of_these_requests:
        figure = figure.model_copy(update={"low": -math.inf, "high": math.inf})
    return str(in_unit(figure, unit))


def _in_short(found: WhichFile) -> list[Part]:
    """Return for each goal which modes met it, and the modes by what their proof shows."""
    asked = [case for case in found.cases if case.role != "solo" and case.status == "ok"]
    by_goal: dict[str, dict[GoalVerdict, list[str]]] = {}
    for case in asked:
        for goal in case.goals:
            by_goal.setdefault(goal.goal, {}).setdefault(goal.verdict, []).append(case.id)
    lines = {
        goal: ["; ".join(f"{v} under {listed(names[v])}" for v in _GOAL_ORDER if v in names)]
        for goal, names in by_goal.items()
    }
    # That nothing orders native's work needs no proof, where the work is ours.
    cases = [
        case for case in asked
        if words.not_ours(case) or (case.proof is not None and case.scheduler != NATIVE.name)
    ]  # fmt: skip
    shown = grouped((f"active: {words.effective(found, case)}", case.id) for case in cases)
    lines |= {what: [listed(names)] for what, names in shown.items()}
    return [Bullets(lines)] if lines else []


def _trend(trend: Trend) -> Table:
    rows = [
        Row(
            {"case": name, "variant": variant},
            {"p99": [in_unit(p99, "ms")]},
            opens=index == 0,
        )
        for name, row in trend.rows.items()
        for index, (variant, p99) in enumerate(row.items())
    ]
    columns = (Column("case", "scheduler"), Column("variant", "variant"), Column("p99", "P99"))
    return Table(columns, rows)


def _decision(found: WhichFile, verbose: bool) -> list[Part]:
    """Return a row for each mode, and one for each urgent tenant alone; and what failed."""
    measured = [case for case in found.cases if case.role != "solo" and case.status == "ok"]
    urgent = _urgent(found)
    notes = Notes()
    rows = [
        _row(case, notes)
        for case in found.cases
        if case.status != "ok" or case.role != "solo" or case.tenants[0].name in urgent
    ]
    columns = _columns(measured[0]) if measured else [Column("case", "scheduler")]
    said = [*words.placements(found.cases), *notes.lines(len(rows))]
    more = 0 if verbose else len(said) - _MOST_NOTES
    if more > 0:
        said = [*said[:_MOST_NOTES], f"and {counted(more, 'more note')}: -v"]
    parts: list[Part] = [Table(columns, rows, said)]
    for case in found.cases:
        if case.status != "ok":
            text = f"{case.id} {words.failure(case)}"
            parts.append(Paragraph(text, words.STYLES.get(case.status, "red")))
            parts += map(Verbatim, words.last_outputs(case))
    return parts


def _without_both_ends(found: WhichFile) -> list[tuple[str, WhichTenant]]:
    """Return the rows of the decision table whose P99 lacks an end, with the tenants."""
    urgent = _urgent(found)
    return [
        (case.id, tenant)
        for case in found.cases
        if case.status == "ok"
        for tenant in case.tenants
        if tenant.name in urgent and tenant.p99_by_s is not None
    ]


def _urgent(found: WhichFile) -> set[str]:
    """Return the tenants that are the most urgent of a measured case."""
    measured = [case for case in found.cases if case.role != "solo" and case.status == "ok"]
    return {tenant.name for case in measured for tenant in case.by_urgency()[0]}


def _columns(case: WhichCase) -> list[Column]:
    urgent, others = case.by_urgency()
    return [
        Column("case", "scheduler"),
        Column("p99", *_heading("P99", urgent)),
        Column("loss", *_heading("loss", others)),
        *[Column("capacity", "capacity")] * any(each.capacity_per_s is not None for each in urgent),
        Column("goals", "goals", "met"),
    ]


def _heading(figure: str, tenants: Sequence[WhichTenant]) -> tuple[str, str]:
    """Return both lines of a heading; of several tenants the worst figure is shown."""
    names = ", ".join(tenant.name for tenant in tenants)
    return (f"{figure} of {names}", "") if len(tenants) == 1 else (f"worst {figure}", f"of {names}")


def _row(case: WhichCase, notes: Notes) -> Row:
    if case.status != "ok":
        style = words.STYLES.get(case.status, "red")
        return Row(texts={"case": case.id, "p99": case.status.upper()}, style=style, opens=True)
    urgent, others = case.by_urgency()
    row = Row(texts={"case": case.id, "goals": words.goals_in_short(case)}, opens=True)
    if case.goals:
        missed = any(goal.verdict == "missed" for goal in case.goals)
        row.style = "green" if case.met_all else "red" if missed else ""
    for key, tenants, unit in (
        ("p99", urgent, "ms"),
        ("loss", others, "%"),
        ("capacity", urgent, "/s"),
    ):
        values = [(tenant.name, getattr(tenant, _FIELDS[key][0])) for tenant in tenants]
        if given := [each for each in values if each[1] is not None]:
            row.figures[key] = [_worst(_LABELS[key], given, unit, case, notes)]
    return row


def _worst(
    what: str, given: Sequence[tuple[str, Estimate]], unit: str, case: WhichCase, notes: Notes
) -> PrintedFigure:
    """Return the greatest figure; refused if one is, since that might be the greatest."""
    refused = [(tenant, figure) for tenant, figure in given if figure.value is None]
    for tenant, figure in refused:
        notes.refuse(what, figure.refused, case.id, tenant)
    if refused:
        return in_unit(refused[0][1], unit) if len(given) == 1 else REFUSED
    return in_unit(max((figure for _, figure in given), key=lambda each: each.value or 0.0), unit)


_GOAL_ORDER: tuple[GoalVerdict, ...] = ("met", "missed", "undecided")
# What a case's goals say together: the worst of them.
_WORST_GOAL: tuple[GoalVerdict, ...] = ("missed", "undecided", "met")
_IS_REFERENCE = "native itself: it loses nothing by definition"
_NOTE = (
    "Down and left is better. The line joins the modes that no other beats in both; bars are 95 % "
    "intervals."
)


def fronts(cases: Sequence[WhichCase], simulated: bool) -> list[Chart]:
    """Return each urgent tenant's P99 against the loss of each less urgent one, mode by mode."""
    charts = []
    asked = grouped((case.variant, case) for case in cases if case.role == "case")
    for variant, those in asked.items():
        # A case that was not measured may not know its tenants.
        known = next((case for case in those if case.tenants), those[0])
        urgent, others = known.by_urgency()
        charts += [
            _front(variant, those, high.name, low.name, simulated)
            for high in urgent
            for low in others
        ]
    return charts


def _front(
    variant: str | None, cases: Sequence[WhichCase], urgent: str, greedy: str, simulated: bool
) -> Chart:
    points: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    for case in cases:
        if case.status != "ok":
            left_out[case.id] = words.failure(case)
            continue
        p99, loss = case.tenant(urgent).p99_ms, case.tenant(greedy).throughput_loss
        if p99.value is None:
            left_out[case.id] = f"P99 of {urgent} refused: {p99.refused}"
        elif loss is not None and loss.value is None:
            left_out[case.id] = f"loss of {greedy} refused: {loss.refused}"
        else:
            points.append(_point(case, p99, loss))
    for point in points:
        point["front"] = not any(_dominates(other, point) for other in points)
    named = "" if variant is None else f", variant {variant}"
    title = f"P99 of {urgent} against the loss of {greedy}{named}"
    if not points:
        return Chart(title, None, "No mode has both figures.", left_out)
    return Chart(title, pareto_chart(points, simulated=simulated), _NOTE, left_out)


def _point(case: WhichCase, p99: Estimate, loss: Estimate | None) -> dict[str, Any]:
    point = {
        "case": case.id, "placement": case.placement, "together": _together(case),
        "p99": p99.value, "p99_low": p99.ends[0], "p99_high": p99.ends[1],
        "loss": 0.0, "loss_low": None, "loss_high": None, "note": _IS_REFERENCE,
    }  # fmt: skip
    if loss is not None:
        low, high = loss.scaled(100, "%").ends
        point |= {"loss": 100 * float(loss), "loss_low": low, "loss_high": high}
        point["note"] = words.remark(loss) if loss.refused else ""
    return point


def _dominates(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a mode is better in one figure and no worse in the other."""
    no_worse = one["p99"] <= other["p99"] and one["loss"] <= other["loss"]
    return bool(no_worse and (one["p99"] < other["p99"] or one["loss"] < other["loss"]))


def _together(case: WhichCase) -> Literal["met", "missed", "undecided", "none"]:
    verdicts = {goal.verdict for goal in case.goals}
    return next((verdict for verdict in _WORST_GOAL if verdict in verdicts), "none")
