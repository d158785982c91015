"""Hooks of sessions that measure: they run tests, gather records, and report at the end."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pytest_hwqueue.data.errors import on_one_line
from pytest_hwqueue.plugin.budget import Budget
from pytest_hwqueue.plugin.keys import (
    ASSIGNMENT,
    REFUSED,
    REGRESSION,
    SESSION,
    SETTINGS,
    SINK,
    Assignment,
    is_scenario,
    isolates,
)
from pytest_hwqueue.plugin.mirror import mirror
from pytest_hwqueue.plugin.progress import Progress
from pytest_hwqueue.plugin.pytest_internals import tear_down_to
from pytest_hwqueue.plugin.runs import Replication, RunJudge
from pytest_hwqueue.plugin.session import (
    MeasuringSession,
    RecordSink,
    attach_records,
    records_of,
    report_session,
)
from pytest_hwqueue.plugin.worker.calls import SessionCalls
from pytest_hwqueue.plugin.worker.isolation import Isolation

if TYPE_CHECKING:
    from pytest_hwqueue.judge.judging import Judgement
    from pytest_hwqueue.plugin.regression import Regression


class Measuring:
    """Runs measuring tests, gathers their records, and reports them at the end."""

    def __init__(self, config: pytest.Config, items: Sequence[pytest.Item], budget: Budget) -> None:
        self._config = config
        self.session = config.stash[SESSION] = MeasuringSession(config)
        self._items = {item.nodeid: item for item in items}
        progress = budget.progress = Progress(config)
        # pytest skips the others by their marks.
        possible = [item for item in items if REFUSED not in item.stash]
        self._isolation: Isolation | None = None
        if isolates(config):
            cells = [item for item in possible if not is_scenario(item)]
            self._isolation = Isolation(config, self.session, cells, progress)
        else:
            config.stash[SINK] = _sink(self.session)
        self._regression = _regression(self.session, config, possible, progress)
        self._judge = RunJudge(
            config, self.session, self._regression, self._items, budget, progress
        )
        self._replication: Replication | None = None
        runs = config.stash[SETTINGS].runs or 1
        if self._regression is not None:
            runs = self._regression.first_runs
        if self._isolation is not None and (runs > 1 or self._regression is not None):
            from pytest_hwqueue.plugin.scenario_items import Runner

            runner = Runner(self._isolation, _sink(self.session))
            most_failed = config.option.maxfail or 0
            self._replication = Replication(
                runner, possible, runs, self._judge, budget, most_failed
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
        if self._isolation is None or item.nodeid not in self._items or REFUSED in item.stash:
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
        if self._judge.interrupted:
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
            attach_records(report, self._config.stash[SINK].take())
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the records that a report carries."""
        if not self._judge.has_taken(report):
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
            from pytest_hwqueue.plugin.tables import write_tables

            write_tables(terminalreporter, self.session, self._items.values())
        for problem in self.session.problems:
            terminalreporter.write_line(f"hwqueue: {on_one_line(problem)}", red=True)

    def _tear_down_to(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Tear down what an earlier test in this process kept for one run in the worker."""
        tear_down = partial(tear_down_to, item.session, nextitem)
        call = pytest.CallInfo.from_call(tear_down, when="teardown")
        if call.excinfo is not None:
            report = pytest.TestReport.from_item_and_call(item, call)
            item.ihook.pytest_runtest_logreport(report=report)


def _sink(session: MeasuringSession) -> RecordSink:
    """Return what keeps the records of tests that run in this process."""
    return RecordSink(session.folder, session.command, SessionCalls(session.claim))


def _regression(
    session: MeasuringSession, config: pytest.Config, items: Sequence[pytest.Item],
    progress: Progress,
) -> Regression | None:  # fmt: skip
    """Return what judges and stores a session's records, if an option asks for it."""
    settings = config.stash[SETTINGS]
    if not (settings.save or settings.compare or settings.against):
        return None
    from pytest_hwqueue.plugin.regression import Regression

    found = Regression(config, session.folder, session.records, progress.show)
    config.stash[REGRESSION] = found
    found.check(items)
    config.stash[ASSIGNMENT] = Assignment(
        planned=found.planned_samples(), compared_devices=found.compared_devices()
    )
    return found


def asks_for_benchmark(config: pytest.Config) -> bool:
    """Whether an option of pytest-benchmark was given; otherwise its table would repeat ours."""
    asked = ("json", "save", "autosave", "compare", "compare_fail", "histogram", "only", "storage")
    given = (config.getoption(f"benchmark_{name}", None) for name in asked)
    return any(value not in (None, False, [], "file://./.benchmarks") for value in given)
