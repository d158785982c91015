"""Which tests run: marks, names that nothing answers to, and parameters that cannot be measured.

A name is a scheduler mode, a dispatch mode or a workload given by an option, from whatever source.
Tests that come from a default, from ``all`` or from a scenario file's own list may be skipped, and
so may some of a name's tests, such as stream counts outside a workload's range.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import pytest

from pytest_hwqueue.data.errors import on_one_line
from pytest_hwqueue.options.options import Settings
from pytest_hwqueue.parts.workloads.registry import declaration, workload_class
from pytest_hwqueue.plugin import checks
from pytest_hwqueue.plugin.cells import check_parameters, own_name, shared_cells
from pytest_hwqueue.plugin.keys import SETTINGS, is_scenario, isolates, item_key, parameters_of
from pytest_hwqueue.plugin.mirror import claims_benchmark
from pytest_hwqueue.plugin.ranks import workload_of
from pytest_hwqueue.plugin.reading import is_given, wrong_usage
from pytest_hwqueue.plugin.worker.services import by_worker

# These mean what the machine or the workload has, and name nothing.
_NO_NAMES = ("auto", "all")


class AskedFor:
    """Fails a session in which nothing requested by name ran.

    Attributes:
        problems: one per such name, with the reasons; known when the session ends.

    """

    def __init__(self, config: pytest.Config, items: Sequence[pytest.Item]) -> None:
        self._asked = _names(config, items)
        self._ran: set[str] = set()
        self._skipped: dict[str, str] = {}
        self.problems: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note whether a test ran."""
        if report.skipped:
            self._skipped[report.nodeid] = _reason(report)
        elif report.failed or report.when == "call":
            self._ran.add(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Set the exit status if something did not run."""
        ended = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        for option, nodes in self._asked.items() if exitstatus in ended else ():
            # With one that was neither skipped nor ran, the session has ended too early to tell.
            if nodes.isdisjoint(self._ran) and nodes <= self._skipped.keys():
                reasons = dict.fromkeys(why for node, why in self._skipped.items() if node in nodes)
                why = "; ".join(reasons) or "no test of it was selected"
                self.problems.append(f"{option}: nothing of it ran: {why}")
        if self.problems:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print it."""
        for problem in self.problems:
            terminalreporter.write_line(f"hwqueue: {on_one_line(problem)}", red=True)


def refuse_unmeasured(config: pytest.Config, asked: Sequence[tuple[str, str]]) -> NoReturn:
    """Refuse a session without a test that measures, after checking the names it was given.

    Args:
        config: of the session.
        asked: options that need one, as `needs_measuring` returns them.

    Raises:
        pytest.UsageError: about the first name that does not exist, else about the options.

    """
    settings = config.stash[SETTINGS]
    here = config.invocation_params.dir
    if settings.compare or settings.against:
        from pytest_hwqueue.data.records.stored import StoredRecords
        from pytest_hwqueue.plugin.regression import Regression

        Regression(config, here / settings.dir, StoredRecords([]), print)
    from pytest_hwqueue.parts.schedulers.syntax import unopened

    for reason in unopened(settings.scheduler, settings.scheduler_paths(here)).values():
        raise pytest.UsageError(f"--hwq-scheduler: {reason}")
    given = ", ".join(source for _, source in asked)
    off = " ".join(f"--hwq-{name}=" for name, _ in asked)
    raise pytest.UsageError(
        f"{given}: no test was selected that measures (with a fixture such as hwq, or in a "
        f"scenario file): select one, or switch off what needs it: {off}"
    )


def _names(config: pytest.Config, items: Sequence[pytest.Item]) -> dict[str, frozenset[str]]:
    """Return the names that options give, as given, and the tests that would run each."""
    settings = config.stash[SETTINGS]
    # A test's node id, and a project's ini file, may well leave some of the names without tests.
    by_node = any("::" in argument for argument in config.args)
    found = {}
    for option in ("scheduler", "dispatch", "workload"):
        strict = config.getoption(f"hwq_{option}") is not None and not by_node
        names: Sequence[str] = getattr(settings, option) if is_given(config, option) else ()
        for name in names:
            nodes = frozenset(item.nodeid for item in items if _runs(item, option, name))
            if name not in _NO_NAMES and (nodes or strict):
                found[f"--hwq-{option}={name}"] = nodes
    return found


def _runs(item: pytest.Item, option: str, name: str) -> bool:
    """Whether a test would run what an option names."""
    if is_scenario(item):
        from pytest_hwqueue.plugin.scenario_session import is_asked_for

        return option == "scheduler" and is_asked_for(item, (name,))  # type: ignore[arg-type]
    if option == "workload":
        mark = item.get_closest_marker("hwq_workload")
        return mark is not None and mark.args[:1] == (name,)
    return bool(parameters_of(item).get(f"hwq_{option}") == name)


def _reason(report: pytest.TestReport) -> str:
    """Return why a test was skipped."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(report.longrepr)


def select(config: pytest.Config, items: list[pytest.Item], measuring: list[pytest.Item]) -> None:
    """Keep what --hwq-priority and --hwq-workload select; mark what cannot run as skipped.

    Tests that need a worker under the same scheduler are grouped: each change starts a worker.

    Raises:
        pytest.UsageError: if a requested workload or a scheduler's description does not exist.

    """
    settings = config.stash[SETTINGS]
    if isolates(config):
        own = set(measuring)
        measuring = by_worker(measuring)
        following = iter(measuring)
        items[:] = [next(following) if item in own else item for item in items]
    for name in settings.workload:
        with wrong_usage("--hwq-workload"):
            declaration(name)
    if settings.workload or settings.priority:
        kept = [item for item in measuring if _is_asked_for(item, settings)]
        # Tests that measure nothing are not asked for either.
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
    for item in measuring:
        if isolates(config):
            claims_benchmark(item)
        checks.skip_refused(item, checks.refusal(item))


def refuse_impossible(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse bad parameters, and a session in which nothing requested can be measured.

    Raises:
        pytest.UsageError: with every reason.

    """
    settings = config.stash[SETTINGS]
    testmon = getattr(config, "testmon_config", None)
    if isolates(config) and getattr(testmon, "collect", False):
        raise pytest.UsageError(
            "--testmon: its coverage would be measured with the tests, and this process would tell "
            "it that measuring tests, which run in workers, depend on nothing but their own file; "
            "add --no-testmon, or leave measuring tests out"
        )
    checks.require_one_possible(items)
    if settings.param:
        names = dict.fromkeys(f.name for item in items if (f := workload_of(item)) is not None)
        with wrong_usage():
            check_parameters(settings, [workload_class(name) for name in names])


def refuse_shared_cells(items: Sequence[pytest.Item]) -> None:
    """Refuse tests whose figures would be taken for runs of one cell.

    Raises:
        pytest.UsageError: naming the first tests that share a cell.

    """
    shared = shared_cells(items)
    if not shared:
        return
    first, other = shared[0]
    more = f" (and {len(shared) - 1} more)" if len(shared) > 1 else ""
    if is_scenario(first):
        cell, cure = f"the scenario {first.case.scenario.name}", "its name: in each file"  # type: ignore[attr-defined]
    else:
        cell, cure = own_name(first), "one of them another name"
    raise pytest.UsageError(
        f"{cell}: two tests cannot share one cell, their runs would be taken for runs of one: "
        f"{item_key(first)} and {item_key(other)}{more}; give {cure}, or run them in sessions of "
        "their own"
    )


def _is_asked_for(item: pytest.Item, settings: Settings) -> bool:
    found = workload_of(item)
    if settings.workload and (found is None or found.name not in settings.workload):
        return False
    marks = {mark.name for mark in item.iter_markers()}
    return not settings.priority or not marks.isdisjoint(settings.priority)
