"""What follows from a scenario's windows and cases: proof, trend and choice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, get_args

from pytest_hwqueue.errors import BadScheduler
from pytest_hwqueue.metrics.interference import EffectVerdict
from pytest_hwqueue.metrics.numbers import counted
from pytest_hwqueue.records.tenants import ColocationProof, ColocationRecord
from pytest_hwqueue.schedulers.syntax import parse_scheduler
from pytest_hwqueue.which.file import (
    PriorityProof,
    WhichCase,
    WhichChoice,
    WhichFigure,
    WhichFile,
    WhichProof,
)

# Counts of things that are there throughout. Others count samples, which add up over windows.
_THERE: Final = ("multiprocessors seen", "XQueues never seen")

# From the best to the worst.
_VERDICTS: Final = ("proven", "undecided", "not seen")
assert set(_VERDICTS) == set(get_args(EffectVerdict))


def proof_of(scheduler: str, windows: Sequence[ColocationRecord]) -> WhichProof | None:
    """Return the proof of a case from the records of its windows; None where there is none."""
    given = [window.proof for window in windows if window.proof is not None]
    if not given:
        return None
    names = dict.fromkeys(name for proof in given for name in proof.counts)
    counts = {
        name: _of_windows(name, [proof.counts.get(name, 0) for proof in given]) for name in names
    }
    seen = {proof.effective for proof in given}
    effective = False if False in seen else None if None in seen else True
    # Alone a tenant is before nobody.
    ordered = _by_priority(scheduler) and any(len(window.tenants) > 1 for window in windows)
    priority, why = _priority(given, ordered)
    return WhichProof(
        evidence=given[-1].evidence, effective=effective, counts=counts,
        priority=priority, priority_evidence=why,
    )  # fmt: skip


def _of_windows(name: str, counts: Sequence[int]) -> int:
    return max(counts) if any(each in name for each in _THERE) else sum(counts)


def _priority(proofs: Sequence[ColocationProof], ordered: bool) -> tuple[PriorityProof | None, str]:
    """Return the worst of what the windows' probes found, and its figures or why it is so.

    Args:
        proofs: of the windows.
        ordered: whether probes should have run.

    """
    probed = [proof.priority for proof in proofs if proof.priority is not None]
    if not probed:
        return ("not probed", "no probe ran") if ordered else (None, "")
    missing = len(proofs) - len(probed)
    if missing:
        windows = counted(len(proofs), "window")
        return "not probed", f"no probe ran before {missing} of {windows}"
    worst = max(probed, key=lambda effect: _VERDICTS.index(effect.verdict))
    return worst.verdict, worst.described


def _by_priority(scheduler: str) -> bool:
    try:
        return parse_scheduler(scheduler).declaration.by_priority
    except BadScheduler:  # of a package that is not installed here
        return False


@dataclass(frozen=True)
class Trend:
    """A tenant's P99 over variants.

    Attributes:
        tenant: in all these variants, and less urgent than another in none.
        variants: those with figures, in the file's order.
        rows: by scheduler (``threads-native``, ``solo high``), then by variant; a case without
            figures is missing.

    """

    tenant: str
    variants: list[str]
    rows: dict[str, dict[str, WhichFigure]]


def trends(found: WhichFile) -> list[Trend]:
    """Return the trends; none without a P99, a second variant, or less urgent tenants."""
    measured = [
        (case.variant, case)
        for case in found.cases
        if case.status == "ok" and case.variant is not None
    ]
    variants = list(dict.fromkeys(variant for variant, _ in measured))
    less_urgent = {name for choice in found.choices for name in choice.less_urgent}
    names = dict.fromkeys(tenant.name for _, case in measured for tenant in case.tenants)
    if len(variants) < 2 or not less_urgent:
        return []
    found_of = {name: _rows(name, measured) for name in names if name not in less_urgent}
    return [
        Trend(name, variants, rows)
        for name, rows in found_of.items()
        if {variant for row in rows.values() for variant in row} == set(variants)
        and any(p99.value is not None for row in rows.values() for p99 in row.values())
    ]


def _rows(name: str, measured: list[tuple[str, WhichCase]]) -> dict[str, dict[str, WhichFigure]]:
    rows: dict[str, dict[str, WhichFigure]] = {}
    for variant, case in measured:
        for tenant in case.tenants:
            if tenant.name == name:
                row = rows.setdefault(case.id.removeprefix(f"{variant}-"), {})
                row[variant] = tenant.p99_ms
    return rows


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
