"""The urgent tenant's P99 against what others lose: the modes that no other beats in both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pytest_hwqueue.reports.charts import pareto_chart
from pytest_hwqueue.reports.document import Chart
from pytest_hwqueue.reports.which.words import failure
from pytest_hwqueue.scenarios.goals import GoalVerdict
from pytest_hwqueue.which.file import WhichCase, WhichFigure

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
    asked = [case for case in cases if case.role == "case"]
    for variant in dict.fromkeys(case.variant for case in asked):
        those = [case for case in asked if case.variant == variant]
        tenants = {tenant.name: tenant.priority for case in those for tenant in case.tenants}
        if not tenants:
            continue
        most = max(tenants.values())
        for urgent in (name for name, priority in tenants.items() if priority == most):
            for greedy in (name for name, priority in tenants.items() if priority < most):
                charts.append(_front(variant, those, urgent, greedy, simulated))
    return charts


def _front(
    variant: str | None, cases: Sequence[WhichCase], urgent: str, greedy: str, simulated: bool
) -> Chart:
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
    title = f"P99 of {urgent} against the loss of {greedy}{named}"
    if not points:
        return Chart(title, None, "No mode has both figures.", left_out)
    return Chart(title, pareto_chart(points, simulated=simulated), _NOTE, left_out)


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


def _together(case: WhichCase) -> Literal["met", "missed", "undecided", "none"]:
    verdicts = {goal.verdict for goal in case.goals}
    return next((verdict for verdict in _WORST_GOAL if verdict in verdicts), "none")
