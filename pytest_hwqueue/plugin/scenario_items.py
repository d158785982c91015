"""Scenario files as pytest items, and their rounds."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from pytest_hwqueue.data.document.servers import request_lines
from pytest_hwqueue.data.errors import BadScenario, HwqError
from pytest_hwqueue.data.redaction import without_known
from pytest_hwqueue.engine.scenarios.file import read_scenario
from pytest_hwqueue.engine.scenarios.planned_runs import Case, cases, own_run, related
from pytest_hwqueue.engine.scenarios.runs import ScenarioRuns
from pytest_hwqueue.parts.processes.launched import launched_rank
from pytest_hwqueue.plugin.keys import REFUSED, SCENARIO, SETTINGS, session_secrets
from pytest_hwqueue.plugin.scenario_session import (
    CAUSES,
    GOAL,
    ScenarioMeasurer,
    scenario_session,
)
from pytest_hwqueue.plugin.session import RecordSink, attach_records

if TYPE_CHECKING:
    from pytest_hwqueue.data.records.cell import RunRecord
    from pytest_hwqueue.data.records.tenants import ColocationRecord
    from pytest_hwqueue.engine.scenarios.goals import GoalResult
    from pytest_hwqueue.engine.scenarios.traced import Trace
    from pytest_hwqueue.plugin.worker.isolation import Isolation


class ScenarioFile(pytest.File):
    """A scenario file; its items share what has been measured."""

    def collect(self) -> Iterator[pytest.Item]:
        """Make an item for each case.

        Raises:
            CollectError: listing every wrong line of the file.

        """
        try:
            scenario = read_scenario(self.path)
        except BadScenario as error:
            raise self.CollectError(str(error)) from None
        session_secrets(self.config).update(scenario.secrets())
        measurer = ScenarioMeasurer(scenario_session(self.config), scenario, self.path.parent)
        self._runs = runs = ScenarioRuns(measurer.measure)
        for case in cases(scenario):
            yield ScenarioItem.from_parent(
                self, name=case.id, case=case, runs=runs, trace=measurer.trace
            )

    def teardown(self) -> None:
        """Forget the records, which are on disk: no test of this file follows."""
        self._runs.forget()


class ScenarioItem(pytest.Item):
    """Tenants together under one scheduler.

    Attributes:
        case: which test of it this is.

    """

    def __init__(self, *, case: Case, runs: ScenarioRuns, trace: Trace, **base: Any) -> None:
        super().__init__(**base)
        self.add_marker(SCENARIO)
        self.case = case
        self._runs = runs
        self._trace = trace
        self._causes: dict[tuple[str, ...], list[str]] = {}
        self._run: int | None = None

    def begin_run(self, number: int) -> None:
        """From now on, measure everything once, in full, as this run."""
        self._run = number
        self._runs.begin_run(number)
        stale = (GOAL, CAUSES)
        self.user_properties = [each for each in self.user_properties if each[0] not in stale]

    def tenant_records(self) -> list[RunRecord]:
        """Return each tenant's record of the current run, with its interference ratios."""
        from pytest_hwqueue.engine.tenants.tenant_cells import tenant_records

        return [
            found
            for record, references in self._runs.with_references(self.case)
            for found in tenant_records(record, self.nodeid, references)
        ]

    def runtest(self) -> None:
        """Measure what is missing, and judge the goals.

        Raises:
            HwqError: if it could not be measured, or a goal was missed.

        """
        from pytest_hwqueue.engine.scenarios.traced import trace_for_goals

        if launched_rank(os.environ) is not None:
            pytest.skip("one session starts a scenario's tenants: run it without torchrun")
        if self._run is None:
            # A process of xdist's does not know what other tests will ask of the same runs.
            apart = hasattr(self.config, "workerinput")
            until = "end" if apart else self.config.stash[SETTINGS].until
            self._runs.measure(self._together(), until)
        else:
            self._runs.measure_run(self.case)
        records = self._runs.records(own_run(self.case))
        for record in records:
            if record.status == "skipped":
                pytest.skip(record.reason)
            if record.status != "ok":
                raise HwqError(f"{record.id} is {record.status}: {_explained(record)}")
        trace_for_goals(self._runs, self.case, self._trace)
        results = self._runs.judge(self.case)
        self.user_properties += [(GOAL, text) for text in _unproven(records)]
        self.user_properties += [(GOAL, line) for line in request_lines(records)]
        self.user_properties += [(GOAL, str(result)) for result in results]
        failing = {"missed"}
        if self.config.stash[SETTINGS].on.get("inconclusive") == "fail":
            failing.add("undecided")
        causes = self._why_slow(results, failing)
        self.user_properties += [(CAUSES, line) for line in causes]
        if any(result.verdict in failing for result in results):
            raise HwqError("\n".join([*map(str, results), *causes]))

    def _why_slow(self, results: Sequence[GoalResult], failing: Container[str]) -> list[str]:
        """Report, from a traced run, why requests that missed goals were slow; once for all runs.

        With --hwq-causes=always, also report on requests whose goals were met.
        """
        from pytest_hwqueue.engine.scenarios.traced import causes_in_words, tenants_in_question

        asked = self.config.stash[SETTINGS].causes
        goals = self.case.goals
        slow = dict.fromkeys(
            goal.tenant
            for goal, result in zip(goals, results, strict=True)
            if goal.about_latency and result.verdict in failing
        )
        if asked == "always":
            slow = dict.fromkeys(tenants_in_question(self.case))
        if asked == "never" or not slow:
            return []
        tenants = tuple(slow)
        if tenants not in self._causes:
            self._causes[tenants] = causes_in_words(self._runs, self.case, tenants, self._trace)
        return self._causes[tenants]

    def _together(self) -> list[Case]:
        """Return the tests to measure together: those compared with each other take turns."""
        if hasattr(self.config, "workerinput"):
            return [self.case]
        among = [
            item.case
            for item in self.session.items
            if isinstance(item, ScenarioItem)
            and item.parent is self.parent
            and (item.case.noise is None or REFUSED not in item.stash)
        ]
        together = related(self.case, among)
        return together if self._runs.compares(together) else [self.case]

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show the result, without the code."""
        if isinstance(excinfo.value, HwqError):
            return str(excinfo.value)
        shown = super().repr_failure(excinfo, style)
        # With its variables (--showlocals), a traceback has whatever the plan has.
        plain = without_known(str(shown), session_secrets(self.config))
        return shown if plain == str(shown) else plain

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return where the test is, for reports."""
        return self.path, 0, f"{self.case.scenario.name}::{self.name}"


def _unproven(records: Sequence[ColocationRecord]) -> dict[str, None]:
    """Return why the probes before windows did not prove the mode's priority, each reason once."""
    effects = [record.proof.priority for record in records if record.proof is not None]
    return {
        f"priority not proven: {effect.reason}": None
        for effect in effects
        if effect is not None and effect.verdict != "proven"
    }


def _explained(record: ColocationRecord) -> str:
    """Return why a record is not ok, with its tenants' last output."""
    lines = [record.reason]
    for tenant in record.tenants:
        if tenant.last_output:
            lines.append(f"last output of tenant {tenant.name}:\n{tenant.last_output.rstrip()}")
    return "\n".join(lines)


class Runner:
    """Runs scenario tests from this process, which starts their tenants, and others in workers."""

    def __init__(self, isolation: Isolation, sink: RecordSink) -> None:
        self._isolation = isolation
        self._sink = sink

    def begin_round(self, run: int, items: Sequence[pytest.Item]) -> None:
        """From now on, measure these tests once more, in fresh processes."""
        scenarios = [item for item in items if isinstance(item, ScenarioItem)]
        self._isolation.begin_round(run, [item for item in items if item not in scenarios])
        for item in scenarios:
            item.begin_run(run)

    def run(self, item: pytest.Item, report: Callable[[pytest.TestReport], None]) -> None:
        """Run a test and pass each of its reports to ``report``.

        That of a scenario's call carries a record for each tenant.
        """
        if not isinstance(item, ScenarioItem):
            return self._isolation.run(item, report)
        # A worker has the device open, and may hold its lease.
        self._isolation.close()
        phases: tuple[Literal["setup", "call", "teardown"], ...] = ("setup", "call", "teardown")
        for when in phases:
            call = pytest.CallInfo.from_call(
                item.runtest if when == "call" else _nothing, when,
                reraise=(KeyboardInterrupt, pytest.exit.Exception),
            )  # fmt: skip
            made = item.ihook.pytest_runtest_makereport(item=item, call=call)
            if when == "call":
                for record in item.tenant_records():
                    self._sink.record(record)
                attach_records(made, self._sink.take())
            report(made)
        return None

    def close(self) -> None:
        """End the worker, if one runs."""
        self._isolation.close()


def _nothing() -> None:
    """Do nothing: scenario tests have no fixtures."""
