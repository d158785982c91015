"""Fails a session that skipped everything requested under one name.

A name is a scheduler mode, a dispatch mode or a workload given by an option, from whatever source.
Tests that come from a default, from ``all`` or from a scenario file's own list may be skipped, and
so may some of a name's tests, such as stream counts outside a workload's range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_hwqueue.plugin.scenario_session import is_asked_for
from pytest_hwqueue.plugin.session import REPORT_ATTRIBUTE
from pytest_hwqueue.plugin.state import SETTINGS, is_scenario
from pytest_hwqueue.settings.reading import is_given

# These mean what the machine or the workload has, and name nothing.
_NO_NAMES = ("auto", "all")


@dataclass
class _RequestedName:
    """A name, the tests that would run it, and their outcomes."""

    option: str
    nodes: frozenset[str]
    skipped: dict[str, str] = field(default_factory=dict)
    ran: bool = False

    @property
    def problem(self) -> str | None:
        """Why nothing of this name ran; None if it did, or if the session ended too early."""
        if self.ran or not self.nodes <= self.skipped.keys():
            return None
        reasons = "; ".join(dict.fromkeys(self.skipped.values()))
        return f"{self.option}: nothing of it ran: {reasons or 'no test of it was selected'}"


class AskedFor:
    """Fails a session in which nothing requested by name ran.

    Attributes:
        problems: one per such name, with the reasons; known when the session ends.

    """

    def __init__(self, config: pytest.Config, items: Sequence[pytest.Item]) -> None:
        self._asked = _names(config, items)
        self.problems: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note whether a test ran; a test resumed from an earlier session counts too."""
        ran = bool(getattr(report, REPORT_ATTRIBUTE, None)) or (
            report.failed or (report.passed and report.when == "call")
        )
        for each in self._asked:
            if report.nodeid in each.nodes:
                each.ran |= ran
                if report.skipped:
                    each.skipped[report.nodeid] = _reason(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Set the exit status if something did not run."""
        ended = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        if exitstatus in ended:
            self.problems = [each.problem for each in self._asked if each.problem is not None]
        if self.problems:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print it."""
        for problem in self.problems:
            terminalreporter.write_line(f"hwqueue: {problem}", red=True)


def _names(config: pytest.Config, items: Sequence[pytest.Item]) -> list[_RequestedName]:
    settings = config.stash[SETTINGS]
    # A test's node id, and a project's ini file, may well leave some of the names without tests.
    by_node = any("::" in argument for argument in config.args)
    found = []
    for option in ("scheduler", "dispatch", "workload"):
        strict = config.getoption(f"hwq_{option}") is not None and not by_node
        names: Sequence[str] = getattr(settings, option) if is_given(config, option) else ()
        for name in names:
            nodes = frozenset(item.nodeid for item in items if _runs(item, option, name))
            if name not in _NO_NAMES and (nodes or strict):
                found.append(_RequestedName(f"--hwq-{option}={name}", nodes))
    return found


def _runs(item: pytest.Item, option: str, name: str) -> bool:
    """Whether a test would run what an option names."""
    if is_scenario(item):
        return option == "scheduler" and is_asked_for(item, (name,))  # type: ignore[arg-type]
    if option == "workload":
        mark = item.get_closest_marker("hwq_workload")
        return mark is not None and mark.args[:1] == (name,)
    parameters: Mapping[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return bool(parameters.get(f"hwq_{option}") == name)


def _reason(report: pytest.TestReport) -> str:
    """Return why a test was skipped."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(report.longrepr)
