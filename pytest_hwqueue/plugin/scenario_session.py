"""The part of the plugin that exists only in sessions with scenario files."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from pytest_hwqueue.data.records.kinds import capabilities_of
from pytest_hwqueue.engine.scenarios.own_functions import check_functions
from pytest_hwqueue.engine.scenarios.planned_runs import PlannedRun, SessionPlan, cases
from pytest_hwqueue.engine.scenarios.runs import Decided, WindowRecord
from pytest_hwqueue.engine.tenants import TENANTS
from pytest_hwqueue.parts.devices.kinds import only_device
from pytest_hwqueue.plugin import checks
from pytest_hwqueue.plugin.keys import SESSION, SETTINGS, is_scenario
from pytest_hwqueue.plugin.progress import Progress
from pytest_hwqueue.plugin.reading import is_given, wrong_usage
from pytest_hwqueue.plugin.session import MeasuringSession, command_line, provenance

if TYPE_CHECKING:
    from pytest_hwqueue.data.records.cell import RunRecord
    from pytest_hwqueue.engine.scenarios.file import Scenario
    from pytest_hwqueue.engine.scenarios.measurer import Measurer
    from pytest_hwqueue.parts.processes.starting import ForkServer
    from pytest_hwqueue.plugin.scenario_items import ScenarioItem

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


@dataclass(frozen=True)
class ScenarioMeasurer:
    """Measures the runs of one scenario for a session's tests.

    Attributes:
        session: whose settings and records these are.
        scenario: of the file.
        folder: to which its paths are relative.

    """

    session: ScenarioSession
    scenario: Scenario
    folder: Path

    def measure(
        self, run: PlannedRun, peaks_per_s: Mapping[str, float], share: float, number: int,
        decided: Decided | None,
    ) -> WindowRecord:  # fmt: skip
        """Measure one run; the arguments are those of `scenarios.runs.Measure`."""
        with self.session.measuring(self.scenario, self.folder) as measurer:
            record, path = measurer(run, peaks_per_s, share, number, decided)
        if record.noise is not None:
            from pytest_hwqueue.engine.tenants.tenant_cells import tenant_records

            self.session.add_under_noise(tenant_records(record, "", {}))
        return record, path

    def trace(
        self, run: PlannedRun, peaks_per_s: Mapping[str, float], duration_s: float, traced_in: str
    ) -> WindowRecord:
        """Run tenants traced, as `scenarios.traced.Trace`, with separate records."""
        with self.session.measuring(self.scenario, self.folder) as measurer:
            return measurer.trace(run, peaks_per_s, self.session.at_most(duration_s), traced_in)


class ScenarioSession:
    """Selects scenario tests, measures for them, keeps their records, lists their goals."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._settings = config.stash[SETTINGS]
        self._goals: list[tuple[str, str]] = []
        self._tenant_server: ForkServer | None = None
        # Of scenarios with noises, each tenant's of each round.
        self._under_noise: list[RunRecord] = []

    @contextmanager
    def measuring(self, scenario: Scenario, folder: Path) -> Iterator[Measurer]:
        """Return what measures with this session's settings, and shows how far it is."""
        from pytest_hwqueue.engine.scenarios.measurer import (
            Measurer,
            RunSettings,
            scenario_server,
        )
        from pytest_hwqueue.plugin.noise import noise_places

        config, settings = self._config, self._settings
        device = only_device(settings.device)
        if self._tenant_server is None and (server := scenario_server(scenario, device.label)):
            self._tenant_server = server
            config.add_cleanup(server.close)
        progress = Progress(config)
        measurer = Measurer(
            scenario,
            RunSettings(
                plan=SessionPlan(
                    device.label, settings.size, folder, scenario.warmup, settings.seed,
                    checks.weights_folder(config),
                ),
                duration_s=checks.scenario_seconds(config, scenario),
                timeout_s=settings.timeout,
                scheduler_paths=settings.scheduler_paths(config.invocation_params.dir),
                folder=self._folder(),
                command=command_line(config),
                provenance=provenance(config),
                faults=settings.fault,
                noise_places=noise_places(config),
            ),
            lambda stage, done, planned: progress.update(measurer.running, stage, done, planned),
            lambda record: None,
            self._tenant_server,
        )  # fmt: skip
        try:
            yield measurer
        finally:
            progress.clear()

    def add_under_noise(self, records: Iterable[RunRecord]) -> None:
        """Keep tenants' records of a round under noise, for the lines that say what it costs."""
        self._under_noise += records

    def at_most(self, duration_s: float) -> float:
        """Return how long a traced window may be of those that would be so long."""
        if is_given(self._config, "max-time"):
            return min(duration_s, self._settings.max_time)
        return duration_s

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
        for file, scenario in {item.path: item.case.scenario for item in items}.items():
            with wrong_usage():
                check_functions(scenario, file)
        for item in items:
            checks.skip_refused(item, checks.refusal_of_scenario(item))
        checks.require_one_possible(session.items)

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
        if SESSION not in self._config.stash:
            return
        from pytest_hwqueue.answers.session.noise import noise_lines

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
        return self._config.stash[SESSION]

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
    exact = {case.scheduler for case in cases(item.case.scenario)}
    return mode in asked or (kind in asked and kind not in exact)
