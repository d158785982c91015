"""pytest hooks and wiring only. Nothing heavy is imported before a test asks to measure."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

import pytest

from pytest_hwqueue.data.errors import HwqError, RecordError, meant
from pytest_hwqueue.options.options import OPTIONS
from pytest_hwqueue.plugin import reading
from pytest_hwqueue.plugin.keys import (
    FORK_SERVER,
    PARAMETERS,
    SCENARIO,
    SCENARIOS_LEFT_OUT,
    SESSION,
    SETTINGS,
    is_scenario,
    is_worker,
    isolates,
)
from pytest_hwqueue.plugin.reading import wrong_usage

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

    from pytest_hwqueue.data.records.cell import RunRecord
    from pytest_hwqueue.judge.judging import Judgement
    from pytest_hwqueue.plugin.ranks import RankedSession
    from pytest_hwqueue.plugin.scenario_items import ScenarioFile

_MARKERS = (
    "P0: benchmarks of the hardware queues themselves; run on every change",
    "P1: inference and communication benchmarks",
    "P2: training and pipeline benchmarks",
    "P3: system benchmarks",
    "latency_sensitive: benchmarks whose result is the latency of small kernels",
    "inference: benchmarks of inference",
    "distributed: benchmarks of training",
    "pipeline: benchmarks of pipelines between host and device",
    "scenario: tests of a scenario file (*.hwq.yaml): tenants that share a device",
    "hwq_workload(name): the workload that `hwq.run()` measures in this test",
)
_FIXTURES = frozenset((*PARAMETERS, "hwq", "hwq_noise"))


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Register the hooks that others may implement, and the fixtures."""
    from pytest_hwqueue.plugin import fixtures, hookspecs

    pluginmanager.add_hookspecs(hookspecs)
    pluginmanager.register(fixtures, "hwqueue-fixtures")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the table of options."""
    reading.add_options(parser)


def pytest_load_initial_conftests(args: list[str]) -> None:
    """Refuse a misspelt option by the one that was meant; pytest itself names only the former."""
    given = {each.partition("=")[0] for each in args if each.startswith("--hwq-")}
    known = {option.command_line for option in OPTIONS}
    for name in sorted(given - known):
        # Others may add options of this form, so that only a very near one is taken for ours.
        if near := meant(name, known, least_alike=0.85):
            raise pytest.UsageError(f"there is no option {name}; {near}`hwq help` explains all")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register markers and check the settings."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)
    with wrong_usage():
        config.stash[SETTINGS] = reading.read_settings(config)
        reading.check_combinations(config, config.stash[SETTINGS])
    if not hasattr(config, "workerinput"):
        reading.refuse_unknown(config, config.stash[SETTINGS])
    if config.stash[SETTINGS].report is not None:
        from pytest_hwqueue.plugin.page import refuse_unwritable

        refuse_unwritable(config)
    if reading.is_distributed(config) and not hasattr(config, "workerinput"):
        # xdist's controller collects nothing itself; records reach it with the reports.
        config.pluginmanager.register(_LateMeasuring(config), "hwqueue-late")


class _LateMeasuring:
    """Starts gathering records when the first report brings one; likewise for goals."""

    def __init__(self, config: pytest.Config) -> None:
        self._manager = config.pluginmanager
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Load the measuring parts of the plugin, and give them this report as their first."""
        of_scenario = getattr(report, "hwq_scenarios", None)
        if not (of_scenario or getattr(report, "hwq_records", None)):
            return
        if not self._manager.has_plugin("hwqueue-measuring"):
            from pytest_hwqueue.plugin.budget import Budget
            from pytest_hwqueue.plugin.measuring import Measuring

            measuring = Measuring(self._config, [], Budget(self._config, []))
            self._manager.register(measuring, "hwqueue-measuring")
            measuring.pytest_runtest_logreport(report)
        if of_scenario:
            from pytest_hwqueue.plugin.scenario_session import scenario_session

            if not self._manager.has_plugin("hwqueue-scenarios"):
                scenario_session(self._config).pytest_runtest_logreport(report)


def measures(item: pytest.Item) -> bool:
    """Whether a test uses one of the fixtures."""
    return not _FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> ScenarioFile | None:
    """Collect requested scenario files; of other files, look only at the name.

    A scenario takes minutes and shows which goals a scheduler misses, so a suite's scenarios do not
    run with its benchmarks, unless the file or its folder is named, or ``-m`` names the mark.
    """
    if file_path.suffix != ".yaml":
        return None
    from pytest_hwqueue.engine.tenants import SCENARIO_SUFFIX

    if not file_path.name.endswith(SCENARIO_SUFFIX):
        return None
    session, config = parent.session, parent.config
    named = session.isinitpath(file_path) or session.isinitpath(file_path.parent)
    if not named and SCENARIO not in re.findall(r"\w+", config.option.markexpr):
        # Of a file that is named, pytest collects the whole folder and keeps only the file.
        if any(map(session.isinitpath, file_path.parents)):
            config.stash.setdefault(SCENARIOS_LEFT_OUT, []).append(file_path)
        return None
    from pytest_hwqueue.plugin.scenario_items import ScenarioFile

    return ScenarioFile.from_parent(parent, path=file_path)


def pytest_report_collectionfinish(
    config: pytest.Config, items: Sequence[pytest.Item]
) -> list[str]:
    """Return which scenarios were left out, and whether cells have no time limit."""
    lines = []
    unlimited = config.stash[SETTINGS].isolation == "none" and any(map(measures, items))
    if unlimited and config.get_verbosity() >= 0:
        lines.append(
            "hwqueue: no time limit (--hwq-timeout): with --hwq-isolation=none there is no process "
            "to end"
        )
    left_out = config.stash.get(SCENARIOS_LEFT_OUT, [])
    if left_out and not any(map(is_scenario, items)):
        files = "1 scenario file" if len(left_out) == 1 else f"{len(left_out)} scenario files"
        lines.append(f"{files} not run: name a file or its folder, or give -m {SCENARIO}")
    return lines


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test by devices, stream counts, schedulers and dispatch modes."""
    if _FIXTURES.isdisjoint(metafunc.fixturenames):
        return
    _start_fork_server(metafunc.config)
    from pytest_hwqueue.plugin.cells import parametrize

    with wrong_usage():
        parametrize(metafunc, metafunc.config.stash[SETTINGS])


def _start_fork_server(config: pytest.Config) -> None:
    """Have the measuring processes import torch while this process still collects."""
    if FORK_SERVER in config.stash or config.option.collectonly or not isolates(config):
        return
    from pytest_hwqueue.parts.processes.starting import ForkServer, worker_environment
    from pytest_hwqueue.parts.workloads.registry import ahead

    server = ForkServer.handed_over()
    if server is None:
        settings = config.stash[SETTINGS]
        wanted = ahead(settings.workload, settings.priority, settings.device)
        server = ForkServer(worker_environment(os.environ), wanted)
    config.stash[FORK_SERVER] = server
    config.add_cleanup(server.close)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select by --hwq-priority and --hwq-workload; skip what cannot run, with the reason."""
    measuring = [item for item in items if measures(item)]
    if measuring:
        from pytest_hwqueue.plugin.selection import select

        select(config, items, measuring)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> Generator[None, None, None]:
    """Refuse a session that would measure nothing; then open the measuring session."""
    config = session.config
    ranks = None
    try:
        _refuse(session)
        ranks = _ranks_of(session)
    except pytest.UsageError as error:
        if not hasattr(config, "workerinput"):
            raise
        # What a worker of xdist raises ends no session; its controller prints each report once.
        failed = pytest.CollectReport("pytest-hwqueue", "failed", f"ERROR: {error}", [])
        config.hook.pytest_collectreport(report=failed)
        session.items.clear()
    yield
    items = [item for item in session.items if measures(item)]
    either = [item for item in session.items if measures(item) or is_scenario(item)]
    if not either or config.option.collectonly or is_worker(config):
        return
    from pytest_hwqueue.plugin.budget import Budget
    from pytest_hwqueue.plugin.measuring import Measuring
    from pytest_hwqueue.plugin.selection import AskedFor
    from pytest_hwqueue.plugin.session import keep_devices

    keep_devices(config)
    config.pluginmanager.register(AskedFor(config, either), "hwqueue-asked")
    budget = Budget(config, either)
    # Where runs count, a scenario's tenants are cells, measured and held against baselines.
    settings = config.stash[SETTINGS]
    counted = settings.save or settings.compare or (settings.runs or 1) > 1
    items = either if counted else items
    config.pluginmanager.register(Measuring(config, items, budget), "hwqueue-measuring")
    # Registered last, it is asked first whether a test may begin.
    config.pluginmanager.register(budget, "hwqueue-budget")
    if ranks is not None:
        # Last: when the session ends it is asked first, so that what is reported knows all ranks.
        config.pluginmanager.register(ranks, "hwqueue-ranks")


def _ranks_of(session: pytest.Session) -> RankedSession | None:
    """Join the other ranks if a launcher has started several and a test measures, else None.

    Ranks of other tests are none of this plugin's business.
    """
    config = session.config
    if "RANK" not in os.environ or config.option.collectonly or is_worker(config):
        return None
    if not any(measures(item) or is_scenario(item) for item in session.items):
        return None
    from pytest_hwqueue.plugin.ranks import join_ranks

    return join_ranks(config)


def _refuse(session: pytest.Session) -> None:
    """Refuse a session that would measure nothing, though it has tests or options for it.

    Collecting alone promises nothing, and where it failed the session fails by that.
    """
    config, option = session.config, session.config.option
    items = [item for item in session.items if measures(item)]
    scenarios = [item for item in session.items if is_scenario(item)]
    if items or scenarios:
        from pytest_hwqueue.plugin.selection import refuse_shared_cells

        refuse_shared_cells([*items, *scenarios])
    if items:
        from pytest_hwqueue.plugin.selection import refuse_impossible

        return refuse_impossible(config, items)
    only_shows = option.collectonly or option.showfixtures or option.show_fixtures_per_test
    failed = session.testsfailed or sys.exc_info()[0] is not None
    if only_shows or failed or scenarios:
        return None
    asked = reading.needs_measuring(config, config.stash[SETTINGS])
    if asked and not is_worker(config):
        from pytest_hwqueue.plugin.selection import refuse_unmeasured

        refuse_unmeasured(config, asked)
    return None


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Write the scaling tables and plots of --hwq-scaling."""
    session = config.stash.get(SESSION, None)
    # A worker process has none.
    if session is not None and session.records and config.stash[SETTINGS].scaling:
        from pytest_hwqueue.plugin.tables import write_scaling_files

        write_scaling_files(terminalreporter, session)


@pytest.hookimpl(tryfirst=True)
def pytest_hwqueue_report(
    config: pytest.Config,
    folder: Path,
    records: Sequence[RunRecord],
    judgements: Sequence[Judgement],
) -> None:
    """Write figures and verdicts: to --hwq-report, --hwq-markdown, and GitHub's summary."""
    failures = []
    if config.stash[SETTINGS].report is not None:
        from pytest_hwqueue.plugin.page import write_report

        try:
            write_report(config, folder, judgements)
        except RecordError as error:
            failures.append(f"--hwq-report: {error}")
    if records:
        from pytest_hwqueue.answers.session.outcome import write_markdown

        file = config.stash[SETTINGS].markdown
        try:
            write_markdown(file and config.invocation_params.dir / file, judgements, records)
        except RecordError as error:
            failures.append(f"--hwq-markdown: {error}")
    if failures:
        raise HwqError("; ".join(failures))
