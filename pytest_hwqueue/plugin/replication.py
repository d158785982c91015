"""Measures every cell in several fresh processes, interleaved: the unit of replication is a run.

One worker process measures each cell once, then the next worker does, so that machine drift affects
all cells alike. Reports are held until a cell's last run, so pytest sees each test once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import pytest

from pytest_hwqueue.plugin.budget import Budget
from pytest_hwqueue.plugin.worker.services import grouped

if TYPE_CHECKING:
    from pytest_hwqueue.plugin.scenario_items import Runner


class Judge(Protocol):
    """Decides from the reports so far which tests need further runs."""

    def taken(self, report: pytest.TestReport) -> None:
        """Take a run's report, with its records."""

    def wanted(self) -> Sequence[str]:
        """Node ids of tests to run once more, in order; empty once all are decided."""

    def outcome(self, nodeid: str, reports: Sequence[pytest.TestReport]) -> None:
        """Change the reports of one run of a test to the outcome of all its runs."""


class Replication:
    """Runs of all tests, measured at the first test's turn."""

    def __init__(
        self, runner: Runner, items: Sequence[pytest.Item], runs: int, judge: Judge,
        budget: Budget,
    ) -> None:  # fmt: skip
        self._runner = runner
        self._items = {item.nodeid: item for item in items}
        self._runs = runs
        self._judge = judge
        self._budget = budget
        budget.replicate(items, runs)
        self._held: dict[str, list[pytest.TestReport]] = {}
        self._done = False

    def reports(self, item: pytest.Item) -> Sequence[pytest.TestReport]:
        """Return a test's reports; the first call measures all runs of all tests."""
        if not self._done:
            # Also after Ctrl-C: what was measured until then is reported, and not measured again.
            self._done = True
            self._measure()
        reports = self._held.get(item.nodeid, [])
        self._judge.outcome(item.nodeid, reports)
        return reports

    def _measure(self) -> None:
        run = 0
        for _ in range(self._runs):
            run += 1
            sound = [item for item in self._items.values() if run == 1 or self._is_sound(item)]
            if not self._budget.round_fits(run, [item.nodeid for item in sound]):
                return
            self._round(run, sound)
        while wanted := self._judge.wanted():
            run += 1
            if not self._budget.round_fits(run, wanted):
                return
            self._round(run, grouped([self._items[nodeid] for nodeid in wanted]))

    def _round(self, run: int, items: Sequence[pytest.Item]) -> None:
        self._runner.begin_round(run, items)
        for item in items:
            held: list[pytest.TestReport] = []
            with self._budget.running(item.nodeid) as may_begin:
                if not may_begin:
                    continue
                self._runner.run(item, held.append)
            for report in held:
                self._judge.taken(report)
            if item.nodeid not in self._held or any(report.failed for report in held):
                self._held[item.nodeid] = held

    def _is_sound(self, item: pytest.Item) -> bool:
        """Whether a test has run and passed so far; otherwise it would fail or be skipped again."""
        held = self._held.get(item.nodeid)
        return held is not None and all(report.passed for report in held)
