"""Plans a scenario's tests, the runs they need, and their order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_hwqueue.data.noise_names import noise_file, noise_id
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.data.records.plan import Colocation, Tenant, starts_too_late
from pytest_hwqueue.engine.scenarios.deciding import PlannedWindow, planned_window
from pytest_hwqueue.engine.scenarios.file import Scenario, Variant
from pytest_hwqueue.engine.scenarios.goals import CONFIDENCE, NATIVE, SOLO, Goal, latency_bound_ns
from pytest_hwqueue.engine.tenants.arrivals import CLIENT, at_peak, parse_arrival, share_of_peak
from pytest_hwqueue.engine.tenants.servers import unset_variable as unset_variable_of
from pytest_hwqueue.parts.workloads.tenants.shapes import TORCHVISION


@dataclass(frozen=True)
class Case:
    """One test of a scenario: a variant (None if it has none), a placement, a scheduler mode.

    ``noise`` is one of the scenario's; None for the quiet.
    """

    scenario: Scenario = field(compare=False, repr=False)
    variant: Variant | None
    placement: TenantPlacement
    scheduler: str
    noise: str | None = None

    @property
    def id(self) -> str:
        """Such as ``native``, ``threads-native`` or ``batch_64-mps-priority``."""
        parts = [] if self.variant is None else [self.variant.name]
        if self.placement == TenantPlacement.THREADS:
            parts.append(self.placement)
        noise = [] if self.noise is None else [noise_id(self.noise)]
        return "-".join([*parts, self.scheduler, *noise])

    @property
    def tenants(self) -> tuple[Tenant, ...]:
        """Who runs."""
        return self.scenario.tenants_of(self.variant)

    @property
    def goals(self) -> tuple[Goal, ...]:
        """What shall hold."""
        return self.scenario.goals_of(self.variant, self.placement)

    @property
    def name(self) -> str:
        """Of the scenario, and its variant if it has one."""
        of_variant = "" if self.variant is None else f".{self.variant.name}"
        return f"{self.scenario.name}{of_variant}"


@dataclass(frozen=True)
class PlannedRun:
    """One run of tenants together, as a test or as a reference.

    Attributes:
        name: of the scenario, its variant, and what the run is for, such as
            ``high_load.solo_high``.
        tenants: who runs.
        placement: where.
        scheduler: under which mode.
        goals: of the test that the run is, for its record.
        noise: during the run; None for the quiet.
        compares_noise: whether it is compared with runs under another noise, or in the quiet.

    """

    name: str
    tenants: tuple[Tenant, ...]
    placement: TenantPlacement
    scheduler: str
    goals: tuple[Goal, ...] = ()
    noise: str | None = None
    compares_noise: bool = False

    # Asked for thousands of times as a table is made.
    @cached_property
    def key(self) -> str:
        """Identifies a run: one serves all that need it."""
        unused: dict[str, Any] = {"deadline_ms": None}
        if self.scheduler == NATIVE:
            unused |= {"priority": 0, "share": None}
        tenants = [asdict(replace(tenant, **unused)) for tenant in self.tenants]
        # One tenant alone is one process in either placement.
        placement = self.placement if len(tenants) > 1 else None
        return json.dumps(
            [placement, self.scheduler, tenants, self.noise, self.compares_noise], sort_keys=True
        )


def cases(scenario: Scenario) -> list[Case]:
    """Return the tests of a scenario, in the file's order."""
    found = []
    for variant in scenario.variants or (None,):
        schedulers = scenario.schedulers
        if variant is not None and variant.schedulers is not None:
            schedulers = variant.schedulers
        if not isinstance(schedulers, dict):
            schedulers = {scenario.placement or TenantPlacement.PROCESSES: schedulers}
        found += [
            Case(scenario, variant, placement, mode, noise)
            for placement, modes in schedulers.items()
            for mode in modes
            for noise in scenario.noise or (None,)
        ]
    return found


def own_run(case: Case) -> PlannedRun:
    """Return the run that is the test itself."""
    return PlannedRun(
        case.name, case.tenants, case.placement, case.scheduler, case.goals, case.noise,
        compares_noise=bool(case.scenario.noise),
    )  # fmt: skip


def solo_run(case: Case, tenant: Tenant) -> PlannedRun:
    """Return a case's tenant alone under native, with the same noise.

    One tenant is one process, whatever the placement, so those of all placements are the same.
    """
    name = f"{case.name}.solo_{tenant.name}"
    # Alone there is nobody to start after.
    alone = replace(tenant, start_s=0.0)
    return replace(
        own_run(case),
        name=name,
        tenants=(alone,),
        placement=TenantPlacement.PROCESSES,
        scheduler=NATIVE,
        goals=(),
    )


def native_run(case: Case) -> PlannedRun:
    """Return the run of a case's tenants under native, in the same placement."""
    return own_run(replace(case, scheduler=NATIVE))


def reference_of(case: Case, goal: Goal) -> tuple[PlannedRun, str] | None:
    """Return the run and tenant that a goal compares with, or None."""
    own = own_run(case)
    if goal.reference is None:
        return None
    if goal.reference == NATIVE:
        return native_run(case), goal.tenant
    if goal.reference == SOLO:
        (alone,) = (tenant for tenant in own.tenants if tenant.name == goal.tenant)
        return solo_run(case, alone), goal.tenant
    for variant in case.scenario.variants:
        if variant.name == goal.reference:
            return own_run(replace(case, variant=variant)), goal.tenant
    return own, goal.reference


def runs_needed(case: Case) -> list[PlannedRun]:
    """Return each run that a test and its goals need, once; references come first."""
    references = [
        reference[0] for goal in case.goals if (reference := reference_of(case, goal)) is not None
    ]
    return once([*references, own_run(case)])


def related(case: Case, among: Sequence[Case]) -> list[Case]:
    """Return the tests that must take turns with one: of its variant, or sharing runs.

    Args:
        case: the test, one of ``among``.
        among: those that will run, in order.

    """
    # What a test shares with others: its runs, and its variant (as a key that no run has).
    shared = [
        {*(run.key for run in runs_needed(each)), each.variant and each.variant.name}
        for each in among
    ]
    reached = shared[among.index(case)]
    while True:
        more = reached.union(*(keys for keys in shared if keys & reached))
        if more == reached:
            return [each for each, keys in zip(among, shared, strict=True) if keys & reached]
        reached = more


def runs_with_references(case: Case) -> list[PlannedRun]:
    """Return the runs that a test's interference ratios need: tenants alone, native, itself."""
    own = own_run(case)
    if len(own.tenants) == 1:
        return [own]
    alone = [solo_run(case, tenant) for tenant in own.tenants]
    return once([*alone, native_run(case), own])


def peak_runs(run: PlannedRun) -> dict[str, PlannedRun]:
    """Return the run that finds the peak of each tenant whose rate is a share of it, by tenant.

    Under noise the quiet rate applies, so that the cost of noise shows at the same load.
    """
    return {
        tenant.name: PlannedRun(
            f"{run.name}.peak_{tenant.name}",
            (replace(tenant, arrival="closed", requests=None, start_s=0.0),),
            run.placement,
            NATIVE,
        )
        for tenant in run.tenants
        if share_of_peak(tenant.arrival) is not None
    }


@dataclass(frozen=True)
class SessionPlan:
    """What the windows of a session have in common.

    Attributes:
        device: its label.
        size: of workloads: `full`, `small`, `tiny` or `auto`.
        folder: of the scenario file, where its traces are.
        warmup_s: how long each tenant runs before a window.
        seed: of the first round; each further one has the next.
        weights: folder with those of every model; None for seeded ones.

    """

    device: str
    size: str
    folder: Path
    warmup_s: float = 0.0
    seed: int = 0
    weights: Path | None = None


def colocation(
    run: PlannedRun, session: SessionPlan, duration_s: float, number: int = 1,
    peaks_per_s: Mapping[str, float] | None = None,
) -> Colocation:  # fmt: skip
    """Return the plan of a window of a run.

    Args:
        run: the run.
        session: that the window is of.
        duration_s: length of the window.
        number: of its round, from 1.
        peaks_per_s: requests per second that tenants with a share of it serve at most, by tenant.

    """
    return Colocation(
        name=run.name,
        tenants=tuple(
            replace(
                tenant,
                size=session.size,
                arrival=at_peak(tenant.arrival, (peaks_per_s or {}).get(tenant.name, 0.0)),
                weights=_weights(tenant, session.weights),
                deadline_ms=None,
            )
            for tenant in run.tenants
        ),
        placement=run.placement,
        duration_s=duration_s,
        warmup_s=session.warmup_s,
        # Rounds see other arrivals, and what is compared within a round sees the same.
        seed=session.seed + number - 1,
        device=session.device,
        scheduler=run.scheduler,
        goals=tuple(map(str, run.goals)),
        asked_ms={
            tenant.name: within_ns / 1e6
            for tenant in run.tenants
            if (within_ns := within_of(run, tenant.name, run.goals)) is not None
        },
        folder=str(session.folder),
        noise=None if run.noise is None else noise_file(run.noise, session.folder),
    )


def within_of(run: PlannedRun, name: str, goals: Sequence[Goal]) -> float | None:
    """Return the latency in ns within which a tenant's request attains its goal, if any."""
    (tenant,) = (tenant for tenant in run.tenants if tenant.name == name)
    if tenant.deadline_ms is not None:
        return tenant.deadline_ms * 1e6
    return latency_bound_ns(goals, name)


def planned_windows(cases: Iterable[Case]) -> list[PlannedWindow]:
    """Return how long a window decides each goal of cases whose tenant has a rate, once."""
    found: dict[tuple[str, float], PlannedWindow] = {}
    for case in cases:
        tenants = {tenant.name: tenant for tenant in case.tenants}
        for goal in case.goals:
            if goal.traced:
                continue
            arrival = tenants[goal.tenant].arrival
            # A trace has no one rate, and a client's or a share of a peak none that is known.
            no_rate = ("closed", "trace", CLIENT)
            if share_of_peak(arrival) is not None or arrival.startswith(no_rate):
                continue
            # Its window ends by another count.
            if any(tenant.requests is not None for tenant in case.tenants):
                continue
            rate = parse_arrival(arrival, Path()).rate_per_s
            assert rate is not None
            window = planned_window(goal, rate, CONFIDENCE)
            if window is not None:
                found[str(goal), rate] = window
    return list(found.values())


def late_start(case: Case, window_s: float) -> str | None:
    """Return which tenant of a case, or of what its goals compare, starts too late for a window.

    Returns:
        why, and what to do; None if none does.

    """
    own = own_run(case)
    for run in once([own, *runs_needed(case)]):
        for tenant in run.tenants:
            reason = starts_too_late(tenant.name, tenant.start_s, window_s)
            if reason:
                return reason if run.name == own.name else f"its goals need {run.name}: {reason}"
    return None


def missing_weights(tenants: Iterable[Tenant], folder: Path | None) -> str | None:
    """Return which model cannot have its weights from a folder; None if all can, or none shall."""
    for tenant in tenants:
        if folder is not None and tenant.model and tenant.model.startswith(TORCHVISION):
            return (
                f"--hwq-weights: tenant {tenant.name}'s {tenant.model} has seeded weights alone; "
                "leave the option out"
            )
        place = _weights(tenant, folder)
        if place is not None and not Path(place).is_dir():
            return f"--hwq-weights: {folder} has no folder {tenant.model}, as save_pretrained makes"
    return None


def unset_variable(tenants: Iterable[Tenant], file: Path) -> str | None:
    """Return where a server's fields name a variable that is not set; None if all are.

    Args:
        tenants: of a scenario.
        file: that has it.

    """
    for tenant in tenants:
        reason = tenant.server and unset_variable_of(tenant.server)
        if reason:
            return f"{file}: tenant {tenant.name}: server.{reason}"
    return None


def _weights(tenant: Tenant, folder: Path | None) -> str | None:
    return None if folder is None or tenant.model is None else str(folder / tenant.model)


def once(runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    """Return each distinct run once, at its first place."""
    first: dict[str, PlannedRun] = {}
    for run in runs:
        first.setdefault(run.key, run)
    return list(first.values())
