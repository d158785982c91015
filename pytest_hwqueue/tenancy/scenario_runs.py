"""Which runs a scenario's tests need, in which order, and what they say of its goals.

A relative goal needs its reference from the same session, and near in time: all runs of a scenario
take turns, forth and back (ABBA), so that a drift of the machine falls on all of them alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_hwqueue.tenancy.goals import (
    NATIVE,
    SOLO,
    Goal,
    GoalResult,
    evaluate,
    latency_bound_ns,
)
from pytest_hwqueue.tenancy.scenario_fields import TenantArrival
from pytest_hwqueue.tenancy.scenario_file import Scenario, Tenant, Variant
from pytest_hwqueue.tenancy.spec import Colocation, TenantPlacement, TenantSpec

if TYPE_CHECKING:
    from pytest_hwqueue.tenancy.figures import Served
    from pytest_hwqueue.tenancy.results import ColocationRecord, TenantResult

ROUNDS = 2
"""Into how many runs, forth and back, a window is cut where goals compare runs."""


@dataclass(frozen=True)
class Case:
    """One test of a scenario: a variant (None if it has none), a placement, a scheduler mode."""

    variant: Variant | None
    placement: TenantPlacement
    scheduler: str

    @property
    def id(self) -> str:
        """Such as ``native``, ``threads-native`` or ``batch_64-mps-priority``."""
        parts = [] if self.variant is None else [self.variant.name]
        if self.placement == "threads":
            parts.append(self.placement)
        return "-".join([*parts, self.scheduler])


@dataclass(frozen=True)
class PlannedRun:
    """Tenants that run together once, as a test or as what one is compared with.

    Attributes:
        name: of the scenario, its variant, and what the run is for, such as
            ``high_load.solo_high``.
        tenants: who runs.
        placement: where.
        scheduler: under which mode.
        goals: of the test that the run is, for its record.

    """

    name: str
    tenants: tuple[Tenant, ...]
    placement: TenantPlacement
    scheduler: str
    goals: tuple[Goal, ...] = ()

    @property
    def key(self) -> str:
        """Equal for runs that are the same: one of them serves all that need it."""
        unused = {"deadline_ms"}
        if self.scheduler == NATIVE:
            unused |= {"priority", "share"}
        tenants = [tenant.model_dump(mode="json", exclude=unused) for tenant in self.tenants]
        # One tenant alone is one process in either placement.
        placement = self.placement if len(tenants) > 1 else None
        return json.dumps([placement, self.scheduler, tenants], sort_keys=True)


class PeakUnknown(RuntimeError):
    """A rate is a share of a tenant's peak, and the peak could not be measured."""


def cases(scenario: Scenario) -> list[Case]:
    """Return the tests of a scenario, in the file's order."""
    found = []
    for variant in scenario.variants or (None,):
        schedulers = scenario.schedulers
        if variant is not None and variant.schedulers is not None:
            schedulers = variant.schedulers
        if not isinstance(schedulers, dict):
            schedulers = {scenario.placement or "processes": schedulers}
        found += [
            Case(variant, placement, mode)
            for placement, modes in schedulers.items()
            for mode in modes
        ]
    return found


def own_run(scenario: Scenario, case: Case) -> PlannedRun:
    """Return the run that is the test itself."""
    name = scenario.name if case.variant is None else f"{scenario.name}.{case.variant.name}"
    tenants = scenario.tenants_of(case.variant)
    goals = scenario.goals_of(case.variant)
    return PlannedRun(name, tenants, case.placement, case.scheduler, goals)


def reference_of(scenario: Scenario, case: Case, goal: Goal) -> tuple[PlannedRun, str] | None:
    """Return the run, and the tenant in it, that a goal compares with; None if with none."""
    own = own_run(scenario, case)
    if goal.reference is None:
        return None
    if goal.reference == NATIVE:
        return replace(own, scheduler=NATIVE), goal.tenant
    if goal.reference == SOLO:
        alone = tuple(tenant for tenant in own.tenants if tenant.name == goal.tenant)
        name = f"{own.name}.solo_{goal.tenant}"
        return PlannedRun(name, alone, own.placement, NATIVE), goal.tenant
    return own, goal.reference


def runs_needed(scenario: Scenario, case: Case) -> list[PlannedRun]:
    """Return each run that a test and its goals need, once; references come first."""
    references = [
        reference[0]
        for goal in scenario.goals_of(case.variant)
        if (reference := reference_of(scenario, case, goal)) is not None
    ]
    return _once([*references, own_run(scenario, case)])


def related(scenario: Scenario, case: Case, among: Sequence[Case]) -> list[Case]:
    """Return those tests that must be measured in turn with one: of its variant, or sharing runs.

    Args:
        scenario: of all of them.
        case: the test, one of ``among``.
        among: those that will run, in order.

    """
    # What a test shares with others: its runs, and its variant (as a key that no run has).
    shared = [
        {*(run.key for run in runs_needed(scenario, each)), each.variant and each.variant.name}
        for each in among
    ]
    reached = shared[among.index(case)]
    while True:
        more = reached.union(*(keys for keys in shared if keys & reached))
        if more == reached:
            return [each for each, keys in zip(among, shared, strict=True) if keys & reached]
        reached = more


def interleaved(runs: Sequence[PlannedRun], rounds: int) -> list[tuple[int, PlannedRun]]:
    """Return all runs of all rounds with the round's number, from 1: forth, back, forth…"""
    order: list[tuple[int, PlannedRun]] = []
    for number in range(1, rounds + 1):
        turn = runs if number % 2 else list(reversed(runs))
        order += [(number, run) for run in turn]
    return order


def peak_runs(run: PlannedRun) -> dict[str, PlannedRun]:
    """Return the run that finds the peak of each tenant whose rate is a share of it, by tenant."""
    return {
        tenant.name: PlannedRun(
            f"{run.name}.peak_{tenant.name}",
            (tenant.model_copy(update={"arrival": TenantArrival("closed")}),),
            run.placement,
            NATIVE,
        )
        for tenant in run.tenants
        if tenant.arrival.of_peak is not None
    }


def colocation(
    run: PlannedRun, peaks_per_s: Mapping[str, float], *, duration_s: float, warmup_s: float,
    seed: int, device: str, size: str, folder: Path,
) -> Colocation:  # fmt: skip
    """Return what `colocate` takes.

    Args:
        run: the run.
        peaks_per_s: requests per second that tenants with a share of it serve at most, by tenant.
        duration_s: length of the window.
        warmup_s: for how long each tenant runs before it.
        seed: of weights, inputs and arrivals.
        device: its label.
        size: of workloads: `full`, `small`, `tiny` or `auto`.
        folder: of the scenario file, where its traces are.

    """
    return Colocation(
        name=run.name,
        tenants=tuple(
            TenantSpec(
                name=tenant.name,
                model=tenant.model,
                workload=tenant.workload,
                parameters=tenant.parameters,
                size=size,
                batch=tenant.batch,
                arrival=tenant.arrival.at(peaks_per_s.get(tenant.name, 0.0)),
                priority=tenant.priority,
                share=tenant.share,
                streams=tenant.streams,
            )
            for tenant in run.tenants
        ),
        placement=run.placement,
        duration_s=duration_s,
        warmup_s=warmup_s,
        seed=seed,
        device=device,
        scheduler=run.scheduler,
        goals=tuple(map(str, run.goals)),
        folder=str(folder),
    )


# Measures a run: peaks by tenant, share of the scenario's duration, number of the round.
Measure = Callable[[PlannedRun, Mapping[str, float], float, int], "ColocationRecord"]


class ScenarioRuns:
    """The runs of one scenario in one session: measured when first asked for, then kept."""

    def __init__(self, scenario: Scenario, measure: Measure) -> None:
        self._scenario = scenario
        self._measure = measure
        self._records: dict[str, list[ColocationRecord]] = {}

    def measure(self, wanted: Sequence[Case]) -> None:
        """Measure what these tests need and is not there yet.

        A run that failed is not measured in further rounds.
        """
        runs = _once(run for case in wanted for run in runs_needed(self._scenario, case))
        rounds = ROUNDS if self.compares(wanted) else 1
        for number, run in interleaved(runs, rounds):
            for peak in peak_runs(run).values():
                self._once_more(peak, {}, 1 / rounds, 1)
            peaks = {name: self._peak(peak) for name, peak in peak_runs(run).items()}
            known = {name: rate for name, rate in peaks.items() if rate is not None}
            if len(known) == len(peaks):
                self._once_more(run, known, 1 / rounds, number)

    def compares(self, wanted: Sequence[Case]) -> bool:
        """Whether a goal of these tests compares runs."""
        return any(len(runs_needed(self._scenario, case)) > 1 for case in wanted)

    def records(self, run: PlannedRun) -> list[ColocationRecord]:
        """Return the records of a run, one for each round.

        Raises:
            PeakUnknown: if there is none, since a rate that it needs could not be found.

        """
        if run.key in self._records:
            return self._records[run.key]
        for name, peak in peak_runs(run).items():
            for record in self._records.get(peak.key, ()):
                if self._peak(peak) is None:
                    raise PeakUnknown(
                        f"tenant {name} arrives at a share of its peak, which could not be "
                        f"measured: {record.reason or 'no request was completed'}"
                    )
        raise KeyError(run.name)

    def judge(self, case: Case) -> list[GoalResult]:
        """Hold a test's goals against its records and those of its references.

        The test's own records must all be ``ok``.
        """
        own = own_run(self._scenario, case)
        goals = self._scenario.goals_of(case.variant)
        return [self._judged(case, own, goal, goals) for goal in goals]

    def _judged(self, case: Case, own: PlannedRun, goal: Goal, goals: Sequence[Goal]) -> GoalResult:
        windows = windows_of(self.records(own), goal.tenant)
        compared = reference_of(self._scenario, case, goal)
        reference = None
        if compared is not None:
            run, name = compared
            try:
                records = self.records(run)
            except PeakUnknown as error:
                return GoalResult(str(goal), "undecided", reason=str(error))
            bad = next((record for record in records if record.status != "ok"), None)
            if bad is not None:
                reason = f"{goal.reference} was {bad.status}: {bad.reason}"
                return GoalResult(str(goal), "undecided", reason=reason)
            same = run.key == own.key and name == goal.tenant
            reference = windows if same else windows_of(records, name)
        (tenant,) = (tenant for tenant in own.tenants if tenant.name == goal.tenant)
        within_ns = latency_bound_ns(goals, goal.tenant)
        if tenant.deadline_ms is not None:
            within_ns = tenant.deadline_ms * 1e6
        return evaluate(goal, windows, reference, within_ns)

    def _once_more(
        self, run: PlannedRun, peaks: Mapping[str, float], share: float, number: int
    ) -> None:
        records = self._records.setdefault(run.key, [])
        if len(records) < number and all(record.status == "ok" for record in records):
            records.append(self._measure(run, peaks, share, number))

    def _peak(self, run: PlannedRun) -> float | None:
        """Requests per second of a measured peak; None if it came to nothing."""
        (record,) = self._records[run.key][:1]
        throughput = record.tenants[0].throughput if record.status == "ok" else None
        rate = 0.0 if throughput is None else throughput.requests_per_s
        return rate or None


def windows_of(records: Iterable[ColocationRecord], tenant: str) -> list[Served]:
    """Return what became of a tenant's requests in each of several ``ok`` records."""
    return [_served(record.tenant(tenant), round(record.duration_s * 1e9)) for record in records]


def _served(result: TenantResult, window_ns: int) -> Served:
    from pytest_hwqueue.tenancy.figures import Served

    assert result.requests is not None
    assert result.issued is not None
    failed = {failure.index for failure in result.failures}
    finished = [
        when for index, when in enumerate(result.requests.finished_ns) if index not in failed
    ]
    return Served(result.issued, result.latency_ns, finished, window_ns)


def _once(runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    first: dict[str, PlannedRun] = {}
    for run in runs:
        first.setdefault(run.key, run)
    return list(first.values())
