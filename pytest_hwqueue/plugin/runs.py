"""Runs of every cell, interleaved, and what a comparison makes of them.

One worker process measures each cell once, then the next worker does, so that machine drift affects
all cells alike. Reports are held until a cell's last run, so pytest sees each test once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_hwqueue.plugin.keys import SETTINGS
from pytest_hwqueue.plugin.worker.services import by_worker

if TYPE_CHECKING:
    from pytest_hwqueue.plugin.budget import Budget
    from pytest_hwqueue.plugin.progress import Progress
    from pytest_hwqueue.plugin.regression import Regression
    from pytest_hwqueue.plugin.scenario_items import Runner
    from pytest_hwqueue.plugin.session import MeasuringSession


class RunJudge:
    """Takes what runs have measured, wants more of them, and puts verdicts into reports.

    Attributes:
        interrupted: whether Ctrl-C has ended the search for the causes of a verdict, which is
            reported first.

    """

    def __init__(
        self, config: pytest.Config, session: MeasuringSession, regression: Regression | None,
        tests: Mapping[str, pytest.Item], budget: Budget, progress: Progress,
    ) -> None:  # fmt: skip
        self._config = config
        self._session = session
        self._regression = regression
        self._tests = tests
        self._budget = budget
        self._progress = progress
        # Reports that are held until all runs have been measured, and whose records are taken, by
        # identity: those of pytest's subtests cannot be hashed.
        self._taken: dict[int, pytest.TestReport] = {}
        self._tails_explained = config.stash[SETTINGS].causes == "never"
        self.interrupted = False

    def take(self, report: pytest.TestReport) -> bool:
        """Take the records of a held report, and return whether it has any."""
        records = self._session.collect(report)
        self._taken[id(report)] = report
        if self._regression is not None:
            self._regression.add(report.nodeid, records, failed=report.failed)
        return bool(records)

    def has_taken(self, report: pytest.TestReport) -> bool:
        """Whether the records of a report, which is held no longer, were taken."""
        return self._taken.pop(id(report), None) is not None

    def wanted(self) -> Sequence[str]:
        """Return the tests that the comparison wants to run once more."""
        return [] if self._regression is None else self._regression.wanted()

    def outcome(self, nodeid: str, reports: Sequence[pytest.TestReport]) -> None:
        """Put the comparison's outcome into a test's reports."""
        if self._regression is not None:
            self._explain_tails(self._regression)
            self._regression.apply(nodeid, self._tests[nodeid].path, reports)
            self._progress.clear()

    def _explain_tails(self, regression: Regression) -> None:
        """Run all cells with failing tails once more, traced."""
        if self._tails_explained:
            return
        self._tails_explained = True
        cells = regression.failing_tails()
        if cells and self._budget.allows_causes():
            from pytest_hwqueue.plugin.traced_runs import causes_of

            lines, self.interrupted = causes_of(
                cells, self._config, self._session, self._tests, self._progress
            )
            regression.explain_tails(lines)


class Replication:
    """Runs of all tests, measured at the first test's turn."""

    def __init__(
        self, runner: Runner, items: Sequence[pytest.Item], runs: int, judge: RunJudge,
        budget: Budget, most_failed: int,
    ) -> None:  # fmt: skip
        self._runner = runner
        self._items = {item.nodeid: item for item in items}
        self._runs = runs
        self._judge = judge
        self._budget = budget
        budget.replicate(items, runs)
        self._held: dict[str, list[pytest.TestReport]] = {}
        # Those that failed, after so many of which pytest is to stop (-x, --maxfail).
        self._failed: set[str] = set()
        self._most_failed = most_failed
        # Tests that have measured, whatever they called themselves then: skipped, or xfailed.
        self._measured: set[str] = set()
        self._done = False

    def reports(self, item: pytest.Item) -> Sequence[pytest.TestReport]:
        """Return a test's reports; the first call measures all runs of all tests."""
        if not self._done:
            # Also after Ctrl-C: what was measured until then is reported, and not measured again.
            self._done = True
            try:
                self._measure()
            finally:
                # All runs are done; what is measured next is measured by other processes.
                self._runner.close()
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
            if self._stops():
                return
        while wanted := self._judge.wanted():
            run += 1
            if not self._budget.round_fits(run, wanted):
                return
            self._round(run, by_worker([self._items[nodeid] for nodeid in wanted]))
            if self._stops():
                return

    def _round(self, run: int, items: Sequence[pytest.Item]) -> None:
        self._runner.begin_round(run, items)
        for item in items:
            if self._stops():
                return
            held: list[pytest.TestReport] = []
            with self._budget.running(item.nodeid) as may_begin:
                if not may_begin:
                    continue
                self._runner.run(item, held.append)
            for report in held:
                if self._judge.take(report):
                    self._measured.add(item.nodeid)
            failed = any(report.failed for report in held)
            if item.nodeid not in self._held or failed:
                self._held[item.nodeid] = held
            if failed:
                self._failed.add(item.nodeid)

    def _stops(self) -> bool:
        """Whether as many tests have failed as pytest is to stop after."""
        return 0 < self._most_failed <= len(self._failed)

    def _is_sound(self, item: pytest.Item) -> bool:
        """Whether a test has measured in each run so far, or passed; others would do as before."""
        held = self._held.get(item.nodeid)
        if held is None or any(report.failed for report in held):
            return False
        return item.nodeid in self._measured or all(report.passed for report in held)
