"""Chooses a scheduler from a table: all goals met, and the most left for the other tenants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pytest_hwqueue.which.file import WhichCase, WhichChoice, WhichFigure

Throughput = Callable[[WhichCase, str], WhichFigure]


def choices(cases: Sequence[WhichCase], *, sessions: int = 1) -> list[WhichChoice]:
    """Return each variant's choice; only requested cases are candidates.

    Of one session throughputs are compared; of several, their ratios to that alone.
    """
    asked = [case for case in cases if case.role == "case"]
    variants = dict.fromkeys(case.variant for case in asked)
    of = _throughput if sessions < 2 else _over_solo
    return [
        _choice(name, [case for case in asked if case.variant == name], of) for name in variants
    ]


def _choice(variant: str | None, cases: Sequence[WhichCase], of: Throughput) -> WhichChoice:
    measured = [case for case in cases if case.status == "ok"]
    met = [case for case in measured if case.met_all]
    missed = [case for case in measured if any(goal.verdict == "missed" for goal in case.goals)]
    goals = any(case.goals for case in measured)
    undecided = [case for case in measured if goals and case not in met and case not in missed]
    less_urgent = _less_urgent(measured[0]) if measured else []
    comparable = all(of(case, name).value is not None for case in met for name in less_urgent)
    best = None
    if met and less_urgent and comparable:
        best = max(met, key=lambda case: _kept(case, met, less_urgent, of))
    alike = [
        case for case in met if best and case is not best and _alike(case, best, less_urgent, of)
    ]
    return WhichChoice(
        variant=variant,
        goals=goals,
        met=_ids(met),
        missed=_ids(missed),
        undecided=_ids(undecided),
        without_figures=_ids(case for case in cases if case.status != "ok"),
        less_urgent=less_urgent,
        best=best and best.id,
        alike=_ids(alike),
    )


def _ids(cases: Iterable[WhichCase]) -> list[str]:
    return [case.id for case in cases]


def _less_urgent(case: WhichCase) -> list[str]:
    most = max(tenant.priority for tenant in case.tenants)
    return [tenant.name for tenant in case.tenants if tenant.priority < most]


def _kept(
    case: WhichCase, others: Sequence[WhichCase], less_urgent: Sequence[str], of: Throughput
) -> float:
    """Return the smallest share of its best throughput that a less urgent tenant keeps."""
    shares = []
    for name in less_urgent:
        most = max(of(other, name).value or 0.0 for other in others)
        shares.append((of(case, name).value or 0.0) / most if most else 0.0)
    return min(shares)


def _alike(case: WhichCase, best: WhichCase, less_urgent: Sequence[str], of: Throughput) -> bool:
    """Whether the intervals of the less urgent tenants' throughputs all overlap."""
    for name in less_urgent:
        a, b = of(case, name), of(best, name)
        if (a.high is not None and b.low is not None and a.high < b.low) or (
            b.high is not None and a.low is not None and b.high < a.low
        ):
            return False
    return True


def _throughput(case: WhichCase, name: str) -> WhichFigure:
    return case.tenant(name).throughput_items_per_s


def _over_solo(case: WhichCase, name: str) -> WhichFigure:
    return case.tenant(name).throughput_over_solo or WhichFigure()
