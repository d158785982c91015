"""The schema of ``hwq which``'s result, and what follows from its windows and cases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from pydantic import Field

from pytest_hwqueue.data.errors import BadInput
from pytest_hwqueue.data.metrics.estimate import Estimate, PlainData
from pytest_hwqueue.data.metrics.interference import EffectVerdict
from pytest_hwqueue.data.metrics.numbers import counted
from pytest_hwqueue.data.records.origin import Origin
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.data.records.proof import Proof
from pytest_hwqueue.data.records.run import Repeatable, Status
from pytest_hwqueue.data.records.tenants import ColocationRecord, ServerOrigin
from pytest_hwqueue.engine.scenarios.goals import GoalResult
from pytest_hwqueue.parts.schedulers.declaration import NATIVE
from pytest_hwqueue.parts.schedulers.syntax import parse_scheduler

KIND: Final = "pytest-hwqueue/which/"
"""How the schema of every version begins."""

NOT_MEASURED: Final = "not measured"

Role = Literal["case", "reference", "solo"]
PriorityProof = EffectVerdict | Literal["not probed"]


class WhichTenant(PlainData):
    """What one tenant got in all windows of a case."""

    name: str
    work: str = Field(
        "",
        description="what it ran, how many at once, and how much later than others; "
        "empty if nobody knows",
    )
    priority: int
    origin: ServerOrigin | None = Field(
        None, description="whose server it is, as in its records; null if it is none"
    )
    issued: int
    completed: int
    failed: int
    unserved: int
    failed_for: dict[str, int] = Field(
        default_factory=dict, description="how many failed, by the three most frequent reasons"
    )
    requests_per_s: Estimate = Field(description="completed within the windows")
    mean_ms: Estimate = Field(
        description="latency, from the scheduled arrival, as the following ones"
    )
    variation: Estimate = Field(
        description="standard deviation of the latency of completed requests, divided by its mean"
    )
    min_ms: Estimate = Field(description="the shortest of these windows; without an interval")
    p50_ms: Estimate
    p90_ms: Estimate
    p95_ms: Estimate
    p99_ms: Estimate
    p99_by_s: float | None = Field(
        None,
        description="length of a window that would give P99 both ends; null if it has them, if "
        "requests never completed or are counted, or beyond 24 h",
    )
    max_ms: Estimate = Field(description="the longest of these windows; without an interval")
    attained_within_ms: float | None = Field(
        None, description="the tenant's deadline_ms, or its P99 goal; null without either"
    )
    attainment: Estimate | None = Field(None, description="share of requests within that")
    energy_j: Estimate | None = Field(
        None,
        description="the device's energy, which all tenants share, by this one's requests within "
        "that; null where nobody counts it",
    )
    unit: str = Field(description="what an item is: images, TFLOP, …")
    throughput_items_per_s: Estimate
    throughput_loss: Estimate | None = Field(
        description="share of the throughput under native at the same placement that is lost; "
        "null for native itself, and alone"
    )
    p50_over_solo: Estimate | None = Field(description="null for what is solo itself")
    p99_over_solo: Estimate | None
    throughput_over_solo: Estimate | None = Field(
        None, description="compares cases that different sessions measured; null likewise"
    )
    capacity_per_s: Estimate | None = Field(
        None,
        description="greatest rate of its requests at which all goals hold, as `hwq capacity` "
        "finds it; null unless that was searched for",
    )


class WhichUse(PlainData):
    """How one tenant used the device in a case's traced windows, or all together did."""

    tenant: str = Field(description="its name; `device` for all together")
    busy: Estimate = Field(description="share of the time in which a kernel or copy ran")
    switches_per_s: Estimate | None = Field(
        None, description="from one tenant to another; null for one tenant"
    )
    wait_p99_ms: Estimate | None = Field(
        None,
        description="from when a request's first kernel or copy was enqueued until one started; "
        "null for all together",
    )
    throughput_over_measured: Estimate | None = Field(
        None,
        description="what the tracer leaves of the tenant's throughput: that in traced windows, "
        "over that in measured ones; null for all together",
    )


class WhichProof(PlainData):
    """Evidence that the mode was active, of the last window."""

    evidence: str
    effective: bool | None = Field(
        description="whether less urgent work was seen held up in every window; false if in one it "
        "was looked for and not seen; null if it was not looked for"
    )
    counts: dict[str, int] = Field(
        default_factory=dict, description="how often what was seen, in all windows"
    )
    priority: PriorityProof | None = Field(
        None,
        description="whether probes proved that the mode serves urgent tenants first: the worst of "
        "all windows; null where the mode's evidence needs no probe",
    )
    priority_evidence: str = Field("", description="the probe's figures, or why not proven")


class WhichCase(PlainData):
    """Tenants under one scheduler, or a case that others are compared with."""

    id: str
    role: Role = Field(
        description="case: requested; reference: native, for comparison with others; solo: a "
        "tenant alone under native"
    )
    variant: str | None
    placement: TenantPlacement
    scheduler: str
    status: Status | Literal["not measured"]
    reason: str = Field("", description="why, for every status but ok")
    window_s: float = Field(0.0, description="length of all its windows together")
    sessions: int = Field(0, description="that measured it")
    records: list[str] = Field(default_factory=list, description="files, in the order measured")
    tenants: list[WhichTenant] = Field(default_factory=list)
    goals: list[GoalResult] = Field(default_factory=list)
    device_use: list[WhichUse] = Field(
        default_factory=list,
        description="of traced windows, which stand apart from those measured; empty without one",
    )
    proof: WhichProof | None = Field(None, description="null where simulated, and where not ok")
    last_output: dict[str, str] = Field(
        default_factory=dict, description="of tenants of a case that is not ok, by name"
    )

    @property
    def met_all(self) -> bool:
        """Whether it has goals and met them all."""
        return bool(self.goals) and all(goal.verdict == "met" for goal in self.goals)

    def with_capacity(self, name: str, capacity_per_s: Estimate) -> WhichCase:
        """Return the case with a tenant's capacity."""
        tenants = [
            each.model_copy(update={"capacity_per_s": capacity_per_s})
            if each.name == name
            else each
            for each in self.tenants
        ]
        return self.model_copy(update={"tenants": tenants})

    def by_urgency(self) -> tuple[list[WhichTenant], list[WhichTenant]]:
        """Return the tenants of the highest priority, and the others."""
        most = max((tenant.priority for tenant in self.tenants), default=0)
        urgent = [tenant for tenant in self.tenants if tenant.priority == most]
        return urgent, [tenant for tenant in self.tenants if tenant.priority < most]

    def tenant(self, name: str) -> WhichTenant:
        """Return a tenant; KeyError if there is none of this name."""
        for tenant in self.tenants:
            if tenant.name == name:
                return tenant
        raise KeyError(name)


class WhichChoice(PlainData):
    """The choice among a variant's cases, by their ids."""

    variant: str | None
    goals: bool = Field(description="whether there are any")
    met: list[str] = Field(description="all goals")
    missed: list[str] = Field(description="at least one goal")
    undecided: list[str] = Field(description="no goal missed, but not all shown to be met")
    without_figures: list[str]
    less_urgent: list[str] = Field(description="tenants of less than the highest priority")
    best: str | None = Field(
        description="of those that met all goals, the one under which the less urgent tenants "
        "have most throughput (of several sessions: most of that alone); of several tenants the "
        "one that loses most counts"
    )
    alike: list[str] = Field(
        description="others whose intervals of that throughput overlap with the best's"
    )


class WhichSession(Repeatable):
    """One session on one GPU, and what it says by itself."""

    folder: str
    device_uuid: str = Field(description="empty if the device has none")
    started: str = Field(description="UTC, ISO 8601")
    cases: list[WhichCase] = Field(
        description="what it measured, by its own records alone; empty if it is the only session, "
        "whose figures are the table's"
    )


def natives(cases: Iterable[WhichCase], variant: str | None) -> list[WhichCase]:
    """Return a variant's rows of native with figures, also where only measured to compare with."""
    return [
        case
        for case in cases
        if case.scheduler == NATIVE.name
        and case.variant == variant
        and case.role != "solo"
        and case.status == "ok"
    ]


class WhichFile(Origin):
    """The best scheduler for a mix of tenants: every case, its figures, and the choice."""

    schema_: Literal["pytest-hwqueue/which/2"] = Field("pytest-hwqueue/which/2", alias="schema")
    cases: list[WhichCase]
    choices: list[WhichChoice] = Field(description="for each variant")
    sessions: list[WhichSession] = Field(default_factory=list, description="oldest first")

    @property
    def device_uuids(self) -> list[str]:
        """The GPUs, each once."""
        return list(dict.fromkeys(session.device_uuid for session in self.sessions))


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


def _priority(proofs: Sequence[Proof], ordered: bool) -> tuple[PriorityProof | None, str]:
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
    except BadInput:  # of a package that is not installed here
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
    rows: dict[str, dict[str, Estimate]]


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


def _rows(name: str, measured: list[tuple[str, WhichCase]]) -> dict[str, dict[str, Estimate]]:
    rows: dict[str, dict[str, Estimate]] = {}
    for variant, case in measured:
        for tenant in case.tenants:
            if tenant.name == name:
                row = rows.setdefault(case.id.removeprefix(f"{variant}-"), {})
                row[variant] = tenant.p99_ms
    return rows


def choices(cases: Sequence[WhichCase], *, sessions: int = 1) -> list[WhichChoice]:
    """Return each variant's choice; only requested cases are candidates.

    Of one session throughputs are compared; of several, their ratios to that alone.
    """
    asked = [case for case in cases if case.role == "case"]
    variants = dict.fromkeys(case.variant for case in asked)
    of = "throughput_items_per_s" if sessions < 2 else "throughput_over_solo"
    return [
        _choice(name, [case for case in asked if case.variant == name], of) for name in variants
    ]


def _choice(variant: str | None, cases: Sequence[WhichCase], of: str) -> WhichChoice:
    measured = [case for case in cases if case.status == "ok"]
    met = [case for case in measured if case.met_all]
    missed = [case for case in measured if any(goal.verdict == "missed" for goal in case.goals)]
    goals = any(case.goals for case in measured)
    undecided = [case for case in measured if goals and case not in met and case not in missed]
    less_urgent = [each.name for each in measured[0].by_urgency()[1]] if measured else []
    comparable = all(
        _figure(case, name, of).value is not None for case in met for name in less_urgent
    )
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


def _kept(
    case: WhichCase, others: Sequence[WhichCase], less_urgent: Sequence[str], of: str
) -> float:
    """Return the smallest share of its best throughput that a less urgent tenant keeps."""
    shares = []
    for name in less_urgent:
        most = max(_figure(other, name, of).value or 0.0 for other in others)
        shares.append((_figure(case, name, of).value or 0.0) / most if most else 0.0)
    return min(shares)


def _alike(case: WhichCase, best: WhichCase, less_urgent: Sequence[str], of: str) -> bool:
    """Whether the intervals of the less urgent tenants' throughputs all overlap."""
    for name in less_urgent:
        a, b = _figure(case, name, of), _figure(best, name, of)
        if a.high < b.low or b.high < a.low:
            return False
    return True


def _figure(case: WhichCase, name: str, of: str) -> Estimate:
    found: Estimate | None = getattr(case.tenant(name), of)
    return Estimate() if found is None else found
