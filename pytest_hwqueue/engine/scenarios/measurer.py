"""Measures the runs of a scenario on one device: of ``hwq which``, and of pytest's tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_hwqueue.data.noise_names import NONE
from pytest_hwqueue.data.records.files import record_path
from pytest_hwqueue.data.records.kinds import capabilities_of
from pytest_hwqueue.data.records.plan import Colocation
from pytest_hwqueue.data.records.provenance import Provenance
from pytest_hwqueue.data.records.tenants import ColocationRecord
from pytest_hwqueue.engine.scenarios.file import Scenario
from pytest_hwqueue.engine.scenarios.planned_runs import PlannedRun, SessionPlan, colocation
from pytest_hwqueue.engine.scenarios.runs import Decided, WindowRecord
from pytest_hwqueue.engine.tenants.colocation import TenantSet
from pytest_hwqueue.engine.tenants.colocation_run import Progress as RunProgress
from pytest_hwqueue.engine.tenants.looks import Look, Looks, planned_looks
from pytest_hwqueue.engine.tenants.tenant_processes import Limits, tenant_server
from pytest_hwqueue.parts.processes.starting import ForkServer
from pytest_hwqueue.parts.schedulers.syntax import SchedulerPaths, opened_or_not

if TYPE_CHECKING:
    from typing_extensions import Self

    from pytest_hwqueue.engine.noise.neighbours import NoisePlaces


@dataclass(frozen=True)
class RunSettings:
    """How runs are measured.

    Attributes:
        plan: what their windows have in common.
        duration_s: of each case, all rounds together.
        timeout_s: for tenants to warm up, and to end.
        scheduler_paths: where the user has what modes need.
        folder: receives the records.
        command: repeats this.
        provenance: of the tree that the scenario file is in.
        faults: planted in the scenario's first tenant.
        noise_places: what noises need; None where the scenario has none.

    """

    plan: SessionPlan
    duration_s: float
    timeout_s: float
    scheduler_paths: SchedulerPaths
    folder: Path
    command: str
    provenance: Provenance
    faults: tuple[str, ...] = ()
    noise_places: NoisePlaces | None = None


def scenario_server(scenario: Scenario, device: str) -> ForkServer | None:
    """Start the server that forks a scenario's tenants; None on a simulated device."""
    if not capabilities_of(device).tenant_processes:
        return None
    tenants = [
        tenant for variant in (None, *scenario.variants) for tenant in scenario.tenants_of(variant)
    ]
    workloads = dict.fromkeys(each.workload for each in tenants if each.workload)
    models = dict.fromkeys(each.model for each in tenants if each.model)
    return tenant_server(device, workloads, models)


class Measurer:
    """Measures one run after another; each record is on disk when its run is over.

    Use it as a context where its tenants live on.

    Attributes:
        running: id of what is being measured.

    """

    def __init__(
        self,
        scenario: Scenario,
        settings: RunSettings,
        progress: RunProgress,
        ended: Callable[[ColocationRecord], None],
        server: ForkServer | None = None,
        *,
        live_on: bool = False,
    ) -> None:
        """Prepare to measure.

        Args:
            scenario: whose runs.
            settings: how.
            progress: receives a run's progress.
            ended: receives its record.
            server: forks its tenants.
            live_on: whether tenants live on from one window to the next that they can serve, all
                with the weights and inputs of the first round.

        """
        self.running = ""
        self._lives_on = live_on
        self._living: TenantSet | None = None
        self._scenario = scenario
        self._settings = settings
        self._progress = progress
        self._ended = ended
        self._server = server

    def __enter__(self) -> Self:
        """Start nothing yet."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *more: Any) -> None:
        """End tenants that live; at once if something went wrong, such as an interruption."""
        living, self._living = self._living, None
        if living is not None:
            living.__exit__(kind, *more)

    def end_tenants(self) -> None:
        """End tenants that live: the next window's start anew."""
        self.__exit__(None)

    def __call__(
        self, run: PlannedRun, peaks_per_s: Mapping[str, float], share: float, number: int,
        decided: Decided | None,
    ) -> WindowRecord:  # fmt: skip
        """Measure a run; the arguments are those of `scenarios.runs.Measure`."""
        duration_s = share * self._settings.duration_s
        planned = planned_looks(round(duration_s * 1e9), number, round(1 / share))
        plan = self.plan(run, peaks_per_s, duration_s, number)
        return self.window(run, plan, number, planned, decided)

    def trace(
        self, run: PlannedRun, peaks_per_s: Mapping[str, float], duration_s: float, folder: str
    ) -> WindowRecord:
        """Run tenants traced, as `scenarios.traced.Trace`, into a separate record."""
        plan = self.plan(run, peaks_per_s, duration_s, 1)
        return self.window(run, plan, 1, (), None, traced_in=folder)

    def plan(
        self, run: PlannedRun, peaks_per_s: Mapping[str, float], duration_s: float, number: int
    ) -> Colocation:
        """Return what a window of a run measures; ``number`` is that of its round, from 1."""
        settings = self._settings
        plan = colocation(run, settings.plan, duration_s, number, peaks_per_s)
        first = self._scenario.tenants[0].name
        tenants = (
            replace(each, faults=settings.faults) if each.name == first else each
            for each in plan.tenants
        )
        seed = settings.plan.seed if self._lives_on else None
        return replace(plan, tenants=tuple(tenants), work_seed=seed)

    def window(
        self, run: PlannedRun, plan: Colocation, number: int, planned: Sequence[Look],
        decided: Decided | None, *, traced_in: str = "",
    ) -> WindowRecord:  # fmt: skip
        """Measure a window of a run, looked at as planned until it is decided.

        Args:
            run: the run.
            plan: of the window, from `plan`.
            number: of its round, from 1.
            planned: looks at it.
            decided: whether one ends it; None measures it to its end.
            traced_in: folder for the record of a traced window; empty for one that is not.

        """
        settings = self._settings
        folder = settings.folder / traced_in
        self.running = plan.id
        path = record_path(folder, plan.id)
        looks = None if decided is None else Looks(planned, lambda seen: decided(seen, path))
        if self._lives_on:
            assert not traced_in
            record = self._tenants_for(plan).window(plan, run=number, looks=looks)
        else:
            noise = None
            if run.compares_noise:
                from pytest_hwqueue.engine.noise.neighbours import open_noise

                assert settings.noise_places is not None
                noise = open_noise(plan.noise or NONE, settings.noise_places)
            tenants = replace(
                self._tenant_set(plan), folder=folder, traced=bool(traced_in), noise=noise
            )
            record = tenants.once(plan, run=number, looks=looks)
        self._ended(record)
        return record, path

    def _tenants_for(self, plan: Colocation) -> TenantSet:
        """Return the tenants that serve a plan, in the quiet; those of other plans have ended."""
        if self._living is None or not self._living.can_serve(plan):
            self.end_tenants()
            self._living = self._tenant_set(plan)
        return self._living

    def _tenant_set(self, plan: Colocation) -> TenantSet:
        settings = self._settings
        return TenantSet(
            opened_or_not(plan.scheduler, settings.scheduler_paths),
            self._progress,
            settings.folder,
            Limits(settings.timeout_s, settings.timeout_s),
            settings.command,
            settings.provenance,
            server=self._server,
        )
