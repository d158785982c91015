"""What exists only in sessions that measure: runs of every cell, interleaved, and their reports.

One worker process measures each cell once, then the next worker does, so that machine drift affects
all cells alike. Reports are held until a cell's last run, so pytest sees each test once.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_hwqueue.data.errors import on_one_line
from pytest_hwqueue.options.progress import Progress
from pytest_hwqueue.plugin import keys
from pytest_hwqueue.plugin.budget import Budget
from pytest_hwqueue.plugin.mirror import mirror
from pytest_hwqueue.plugin.reading import is_distributed
from pytest_hwqueue.plugin.session import (
    MeasuringSession,
    RecordSink,
    attach_records,
    records_of,
    report_session,
)
from pytest_hwqueue.plugin.worker.calls import SessionCalls
from pytest_hwqueue.plugin.worker.isolation import Isolation
from pytest_hwqueue.plugin.worker.services import by_worker

if TYPE_CHECKING:
    from pytest_hwqueue.data.metrics.between_runs import RunSpread
    from pytest_hwqueue.data.metrics.numbers import PrintedFigure
    from pytest_hwqueue.judge.judging import Judgement
    from pytest_hwqueue.plugin.regression import Regression
    from pytest_hwqueue.plugin.scenario_items import Runner


class Replication:
    """Runs of all tests, measured at the first test's turn."""

    def __init__(
        self, runner: Runner, items: Sequence[pytest.Item], runs: int, judge: Measuring,
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
                if self._judge.taken(report):
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


class Measuring:
    """Runs measuring tests, gathers their records, and reports them at the end."""

    def __init__(self, config: pytest.Config, items: Sequence[pytest.Item], budget: Budget) -> None:
        self._config = config
        self._budget = budget
        self._settings = config.stash[keys.SETTINGS]
        self.session = config.stash[keys.SESSION] = MeasuringSession(config)
        self._items = {item.nodeid: item for item in items}
        self._isolation: Isolation | None = None
        self._replication: Replication | None = None
        self._regression: Regression | None = None
        # Reports that are held until all runs have been measured, and whose records are taken, by
        # identity: those of pytest's subtests cannot be hashed.
        self._taken: dict[int, pytest.TestReport] = {}
        self._progress = progress = budget.progress = Progress(config)
        self._tails_explained = False
        self._interrupted = False
        # pytest skips the others by their marks.
        possible = [item for item in items if keys.REFUSED not in item.stash]
        if keys.isolates(config):
            cells = [item for item in possible if not keys.is_scenario(item)]
            self._isolation = Isolation(config, self.session, cells, progress)
        else:
            config.stash[keys.SINK] = self._sink()
        if self._settings.save or self._settings.compare or self._settings.against:
            from pytest_hwqueue.plugin.regression import Regression

            self._regression = config.stash[keys.REGRESSION] = Regression(
                config, self.session.folder, self.session.records, progress.show
            )
            self._regression.check(possible)
            config.stash[keys.ASSIGNMENT] = keys.Assignment(
                planned=self._regression.planned_samples()
            )
        runs = self._settings.runs or 1
        if self._regression is not None:
            runs = self._regression.first_runs
        if self._isolation is not None and (runs > 1 or self._regression is not None):
            from pytest_hwqueue.plugin.scenario_items import Runner

            runner = Runner(self._isolation, self._sink())
            self._replication = Replication(
                runner, possible, runs, self, budget, config.option.maxfail or 0
            )

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Check that records can be written, before anything is measured."""
        self.session.prepare()
        result = yield
        if self._regression is not None:
            reports = [
                *self._regression.undelivered,
                *self._regression.missing(),
                *self._regression.not_measured(),
            ]
            if not (reports or session.testsfailed):
                # A session that fails says why already.
                reports = self._regression.unjudged()
            for report in reports:
                self._config.hook.pytest_runtest_logreport(report=report)
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> object | None:
        """Run a measuring test in the worker; leave all others to pytest."""
        if self._isolation is None or item.nodeid not in self._items or keys.REFUSED in item.stash:
            return None
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        if self._replication is None:
            self._isolation.run(item)
        else:
            for report in self._replication.reports(item):
                hook.pytest_runtest_logreport(report=report)
        self._tear_down_to(item, nextitem)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if self._interrupted:
            # Now that the verdict being explained has been reported.
            raise KeyboardInterrupt
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach records to the report of a test that ran in this process."""
        report = yield
        if self._isolation is None:
            attach_records(report, self._config.stash[keys.SINK].take())
        return report

    def taken(self, report: pytest.TestReport) -> bool:
        """Take the records of a held report, and return whether it has any."""
        records = self.session.collect(report)
        self._taken[id(report)] = report
        if self._regression is not None:
            self._regression.add(report.nodeid, records, failed=report.failed)
        return bool(records)

    def wanted(self) -> Sequence[str]:
        """Return the tests that the comparison wants to run once more."""
        return [] if self._regression is None else self._regression.wanted()

    def outcome(self, nodeid: str, reports: Sequence[pytest.TestReport]) -> None:
        """Put the comparison's outcome into a test's reports."""
        if self._regression is not None:
            if self._isolation is not None:
                # All runs are done; what is measured next is measured by other processes.
                self._isolation.close()
            self._explain_tails(self._regression)
            self._regression.apply(nodeid, self._items[nodeid].path, reports)
            self._progress.clear()

    def _explain_tails(self, regression: Regression) -> None:
        """Run all cells with failing tails once more, traced."""
        if self._tails_explained or self._settings.causes == "never":
            return
        self._tails_explained = True
        cells = regression.failing_tails()
        if cells and self._budget.allows_causes():
            from pytest_hwqueue.plugin.session_reports import causes_of

            lines, self._interrupted = causes_of(
                cells, self._config, self.session, self._items, self._progress
            )
            regression.explain_tails(lines)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the records that a report carries."""
        if self._taken.pop(id(report), None) is None:
            self.session.collect(report)
        item = self._items.get(report.nodeid)
        if item is None or not asks_for_benchmark(self._config):
            return
        for _, record in records_of(report, []):
            try:
                mirror(item, record)
            except ValueError as error:
                self.session.problems.append(str(error))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(
        self, session: pytest.Session, exitstatus: int
    ) -> Generator[None, object, object]:
        """End the worker, write the session file, and have others' reports, tables too, written."""
        try:
            self._finish(session, exitstatus)
            return (yield)
        except KeyboardInterrupt:
            # pytest would end in a traceback.
            pytest.exit(
                f"interrupted while the session was reported; records: {self.session.folder}",
                pytest.ExitCode.INTERRUPTED,
            )

    def _finish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._isolation is not None:
            self._isolation.close()
        interrupted = exitstatus == pytest.ExitCode.INTERRUPTED
        if interrupted and self._regression is not None:
            self._regression.interrupted()
        judgements: list[Judgement] = []
        files: list[dict[str, Any]] = []
        if self._regression is not None and self.session.records:
            judgements = self._regression.judgements()
            files = self._regression.files(self.session.id)
        self.session.finish(session, files)
        report_session(self._config, self.session, judgements)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the tables."""
        if self.session.records:
            self._write_tables(terminalreporter)
        for problem in self.session.problems:
            terminalreporter.write_line(f"hwqueue: {on_one_line(problem)}", red=True)

    def _write_tables(self, terminalreporter: pytest.TerminalReporter) -> None:
        from pytest_hwqueue.answers.session.outcome import annotate, stored_lines
        from pytest_hwqueue.answers.session.tables import render, render_details, render_lines

        writer = self._config.get_terminal_writer()
        width, colour = writer.fullwidth, writer.hasmarkup
        judgements: list[Judgement] = []
        changes: dict[str, tuple[str, str, PrintedFigure]] = {}
        spreads: dict[str, RunSpread] = {}
        if self._regression is not None:
            # Of the gate, and so of NumPy, only where runs are compared.
            from pytest_hwqueue.judge.words import changes_of, spreads_of

            judgements = self._regression.judgements()
            changes, spreads = changes_of(judgements), spreads_of(judgements)
        verbose = self._config.get_verbosity() > 0
        records = self.session.records
        terminalreporter.write_sep("=", "hardware queues")
        if verbose:
            text = render_details(records, width=width, colour=colour, spreads=spreads)
        else:
            text = render(
                records, width=width, colour=colour, changes=changes, spreads=spreads,
                scaling=self._config.pluginmanager.has_plugin("pytest_hwqueue.plugin.session_reports"),
            )  # fmt: skip
        terminalreporter.write(text.rstrip("\n") + "\n")
        if any(record.noise is not None for record in records):
            # Comparisons need NumPy, which other sessions do without.
            from pytest_hwqueue.answers.session.noise import noise_lines

            if noise := noise_lines(records):
                terminalreporter.write_line(render_lines(noise, width))
        real = Counter(record.cell.device for record in records if not record.simulated)
        shared = sorted(device for device, cells in real.items() if cells > 1)
        if shared and is_distributed(self._config):
            turns = f"xdist's processes took turns on {', '.join(shared)}"
            line = f"{turns}: measuring is no faster than without -n"
            terminalreporter.write_line(render_lines([line], width))
        more = "" if verbose else " (details: -v)"
        terminalreporter.write_line(f"records: {self.session.folder}{more}")
        if self._regression is not None:
            from pytest_hwqueue.judge.words import render_judgement

            for judgement in judgements:
                text = render_judgement(judgement, width, colour, brief=not verbose)
                terminalreporter.write("\n" + text.rstrip("\n") + "\n")
            for label, figures in self._regression.stored().items():
                stored = stored_lines(label, figures)
                terminalreporter.write_line(render_lines(stored, width))
            if failed := self._regression.of_failed_tests():
                terminalreporter.write_line(render_lines(failed, width))
            if os.environ.get("GITHUB_ACTIONS") == "true":
                annotations = annotate(self._regression, self._places())
                terminalreporter.write("\n" + annotations + "\n")

    def _sink(self) -> RecordSink:
        """Return what keeps the records of tests that run in this process."""
        calls = SessionCalls(self.session.claim)
        return RecordSink(self.session.folder, self.session.command, calls)

    def _places(self) -> dict[str, tuple[str, int | None]]:
        """Return the file and line of each test of a file in GitHub's checkout."""
        checkout = Path(os.environ.get("GITHUB_WORKSPACE", self._config.rootpath))
        places: dict[str, tuple[str, int | None]] = {}
        for nodeid, item in self._items.items():
            line = item.location[1]
            if item.path.is_relative_to(checkout):
                file = str(item.path.relative_to(checkout))
                places[nodeid] = file, None if line is None else line + 1
        return places

    def _tear_down_to(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Tear down what an earlier test in this process kept for one run in the worker."""

        tear_down = partial(item.session._setupstate.teardown_exact, nextitem)
        call = pytest.CallInfo.from_call(tear_down, when="teardown")
        if call.excinfo is not None:
            report = pytest.TestReport.from_item_and_call(item, call)
            item.ihook.pytest_runtest_logreport(report=report)


def asks_for_benchmark(config: pytest.Config) -> bool:
    """Whether an option of pytest-benchmark was given; otherwise its table would repeat ours."""
    asked = ("json", "save", "autosave", "compare", "compare_fail", "histogram", "only", "storage")
    given = (config.getoption(f"benchmark_{name}", None) for name in asked)
    return any(value not in (None, False, [], "file://./.benchmarks") for value in given)
