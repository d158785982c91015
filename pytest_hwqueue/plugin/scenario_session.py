"""The part of the plugin that exists only in sessions with scenario files."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_hwqueue.devices.kinds import capabilities_of
from pytest_hwqueue.plugin.cells import only_device, resolve_size
from pytest_hwqueue.plugin.checks import refusal_of_scenario, weights_folder
from pytest_hwqueue.plugin.session import MeasuringSession, command_line, provenance
from pytest_hwqueue.plugin.state import REFUSED, SETTINGS, is_scenario, wrong_usage
from pytest_hwqueue.reports.progress import Progress
from pytest_hwqueue.scenarios.own_functions import check_functions
from pytest_hwqueue.scenarios.planned_runs import PlannedRun, cases, colocation
from pytest_hwqueue.scenarios.runs import Decides, Measure
from pytest_hwqueue.settings.reading import is_given
from pytest_hwqueue.tenancy import TENANTS

if TYPE_CHECKING:
    from pytest_hwqueue.plugin.scenario_items import ScenarioItem
    from pytest_hwqueue.processes.starting import ForkServer
    from pytest_hwqueue.records.cell import RunRecord
    from pytest_hwqueue.records.tenants import ColocationRecord
    from pytest_hwqueue.scenarios.file import Scenario
    from pytest_hwqueue.scenarios.traced import Trace
    from pytest_hwqueue.tenancy.looks import Looks
    from pytest_hwqueue.tenancy.spec import Colocation

GOAL = "hwq_goal"
"""Name of the property of a test's report that holds what became of a goal."""
CAUSES = "hwq_causes"
"""Likewise why a tenant's slow requests were slow."""

_PLUGIN = "hwqueue-scenarios"
# These choose cells of workloads, or measure tests of another commit.
_FOR_CELLS = ("against", "workload", "priority")


def scenario_session(config: pytest.Config) -> ScenarioSession:
    """Return the session's `ScenarioSession`; the first call registers it as a plugin."""
    session = config.pluginmanager.get_plugin(_PLUGIN)
    if session is None:
        session = ScenarioSession(config)
        config.pluginmanager.register(session, _PLUGIN)
    assert isinstance(session, ScenarioSession)
    return session


class ScenarioSession:
    """Selects scenario tests, measures for them, keeps their records, lists their goals."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._settings = config.stash[SETTINGS]
        self._goals: list[tuple[str, str]] = []
        self._tenant_server: ForkServer | None = None
        # Of scenarios with noises, each tenant's of each round.
        self._under_noise: list[RunRecord] = []

    def measure_for(
        self,
        scenario: Scenario,
        folder: Path,
        decider: Callable[[PlannedRun], Decides | None],
    ) -> Measure:
        """Return a function that measures one run of a scenario whose file is in ``folder``.

        Args:
            scenario: of the file.
            folder: to which its paths are relative.
            decider: returns what ends a run's window early, or None.

        """

        def measure_run(
            run: PlannedRun, peaks_per_s: Mapping[str, float], share: float, number: int
        ) -> ColocationRecord:
            settings = self._settings
            kind = only_device(settings.device).kind
            duration_s = scenario.duration_s(resolve_size(settings.size, kind))
            plan = self._plan(
                scenario, folder, run, peaks_per_s, share * self._at_most(duration_s), number
            )
            looks, decides = None, decider(run)
            if decides is not None:
                from pytest_hwqueue.tenancy.looks import Looks, planned_looks

                planned = planned_looks(round(plan.duration_s * 1e9), number, round(1 / share))
                looks = Looks(planned, decides)
            record = self._measure(plan, self._folder(), number, looks=looks)
            if record.noise is not None:
                from pytest_hwqueue.tenancy.cells import tenant_records

                self._under_noise += tenant_records(record, "", {})
            return record

        return measure_run

    def trace_for(self, scenario: Scenario, folder: Path) -> Trace:
        """Return a function that runs a scenario's tenants traced, with separate records."""

        def trace(
            run: PlannedRun, peaks_per_s: Mapping[str, float], duration_s: float
        ) -> ColocationRecord:
            plan = self._plan(scenario, folder, run, peaks_per_s, self._at_most(duration_s), 1)
            return self._measure(plan, self._folder() / "traced", 1, traced=True)

        return trace

    def _measure(
        self, plan: Colocation, folder: Path, number: int, *, traced: bool = False,
        looks: Looks | None = None,
    ) -> ColocationRecord:  # fmt: skip
        """Run a plan on its device; on return its record is in ``folder``."""
        from pytest_hwqueue.noise.neighbours import open_noise
        from pytest_hwqueue.plugin.noise import noise_places
        from pytest_hwqueue.schedulers.syntax import opened_or_not
        from pytest_hwqueue.tenancy.colocation import colocate
        from pytest_hwqueue.tenancy.tenant_processes import Limits

        config, settings = self._config, self._settings
        progress = Progress(config)
        try:
            return colocate(
                plan,
                opened_or_not(
                    plan.scheduler, settings.scheduler_paths(config.invocation_params.dir)
                ),
                lambda stage, done, planned: progress.update(plan.id, stage, done, planned),
                folder,
                limits=Limits(settings.timeout, settings.timeout),
                noise=None if plan.noise is None else open_noise(plan.noise, noise_places(config)),
                command=command_line(config),
                provenance=provenance(config),
                run=number,
                traced=traced,
                server=self._server(plan),
                looks=looks,
            )
        finally:
            progress.clear()

    def _server(self, plan: Colocation) -> ForkServer | None:
        """Return the fork server of the session's device, or None if it forks no tenants."""
        if not capabilities_of(plan.device).tenant_processes:
            return None
        from pytest_hwqueue.tenancy.tenant_processes import tenant_server

        if self._tenant_server is None:
            workloads = [each.workload for each in plan.tenants if each.workload is not None]
            models = [each.model for each in plan.tenants if each.model is not None]
            self._tenant_server = tenant_server(plan.device, workloads, models)
            self._config.add_cleanup(self._tenant_server.close)
        return self._tenant_server

    def _at_most(self, duration_s: float) -> float:
        if is_given(self._config, "max-time"):
            return min(duration_s, self._settings.max_time)
        return duration_s

    def _plan(
        self,
        scenario: Scenario,
        folder: Path,
        run: PlannedRun,
        peaks_per_s: Mapping[str, float],
        duration_s: float,
        number: int,
    ) -> Colocation:
        settings = self._settings
        device = only_device(settings.device)
        plan = colocation(
            run,
            peaks_per_s,
            duration_s=duration_s,
            warmup_s=scenario.warmup_s(device.kind),
            # Rounds see other arrivals, and what is compared within a round sees the same.
            seed=settings.seed + number - 1,
            device=device.label,
            size=settings.size,
            folder=folder,
            weights=weights_folder(self._config),
        )
        first = scenario.tenants[0].name
        tenants = (
            replace(tenant, faults=settings.fault) if tenant.name == first else tenant
            for tenant in plan.tenants
        )
        return replace(plan, tenants=tuple(tenants))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Select by --hwq-scheduler; leave scenarios out of sessions about cells."""
        about_cells = self._about_cells()
        asked = self._settings.scheduler if is_given(config, "scheduler") else None
        found = _scenario_items(items)
        left_out = [
            item
            for item in found
            if about_cells or (asked is not None and not is_asked_for(item, asked))
        ]
        if about_cells and found and len(found) == len(items):
            option = f"--hwq-{about_cells}"
            raise pytest.UsageError(
                f"{option}: is for cells of workloads; scenarios are held against their goals: "
                "leave it out, or choose other tests"
            )
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item not in left_out]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Skip what cannot be measured here, with the reason; refuse a session left empty."""
        items = _scenario_items(session.items)
        if session.config.option.collectonly or not items:
            return
        for file, scenario in {item.path: item.scenario for item in items}.items():
            with wrong_usage():
                check_functions(scenario, file)
        for item in items:
            reason = refusal_of_scenario(item)
            if reason is not None:
                item.stash[REFUSED] = reason
                item.add_marker(pytest.mark.skip(reason=reason))
        if all(REFUSED in item.stash for item in session.items):
            reasons = dict.fromkeys(item.stash[REFUSED] for item in items)
            raise pytest.UsageError("nothing to measure: " + "; ".join(reasons))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach the records' folder to a report, also for xdist's controller."""
        report = yield
        if _scenario_items([item]):
            report.hwq_scenarios = str(self._folder())  # type: ignore[attr-defined]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the folder and the goals that a test's report carries."""
        folder = getattr(report, "hwq_scenarios", None)
        if folder is None:
            return
        self._session.scenario_folders.add(Path(folder))
        if report.when == "call":
            for name, text in report.user_properties:
                if name in (GOAL, CAUSES):
                    self._goals.append((report.nodeid, str(text)))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List each goal's outcome: tests pass with undecided ones, but not silently."""
        if not self._config.pluginmanager.has_plugin("hwqueue-measuring"):
            return
        from pytest_hwqueue.reports.noise_losses import noise_lines

        session = self._session
        if self._goals:
            simulated = capabilities_of(self._settings.device).simulated
            label = f" (simulated: {self._settings.device})" if simulated else ""
            terminalreporter.write_sep("=", f"goals of scenarios{label}")
        for nodeid, text in self._goals:
            terminalreporter.write_line(f"{nodeid}: {text}")
        # What noises cost tenants, unless they are among the session's cells.
        if not any(record.family == TENANTS for record in session.records):
            for line in noise_lines(self._under_noise):
                terminalreporter.write_line(line)
        if session.scenario_folders and not session.records:
            terminalreporter.write_line(f"records: {session.folder}")

    def _about_cells(self) -> str:
        """Return an option that makes this a session about cells, or an empty string."""
        return next((name for name in _FOR_CELLS if getattr(self._settings, name)), "")

    @property
    def _session(self) -> MeasuringSession:
        measuring: Any = self._config.pluginmanager.get_plugin("hwqueue-measuring")
        session: MeasuringSession = measuring.session
        return session

    def _folder(self) -> Path:
        """Folder of the records; under xdist each worker has its own, so names cannot clash."""
        worker = os.environ.get("PYTEST_XDIST_WORKER")
        session = self._session
        folder = session.folder / ("scenarios" if worker is None else f"scenarios-{worker}")
        session.scenario_folders.add(folder)
        return folder


def _scenario_items(items: Sequence[pytest.Item]) -> list[ScenarioItem]:
    return [cast("ScenarioItem", item) for item in items if is_scenario(item)]


def is_asked_for(item: ScenarioItem, asked: Sequence[str]) -> bool:
    """Whether a test runs under exactly such a mode, or one whose kind alone was named."""
    mode = item.case.scheduler
    kind = mode.partition(":")[0]
    exact = {case.scheduler for case in cases(item.scenario)}
    return mode in asked or (kind in asked and kind not in exact)
