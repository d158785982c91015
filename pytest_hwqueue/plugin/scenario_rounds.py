"""Runs scenario tests repeatedly, as workers do with other tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

import pytest

from pytest_hwqueue.plugin.scenario_items import ScenarioItem
from pytest_hwqueue.plugin.session import RecordSink, attach_records

if TYPE_CHECKING:
    from pytest_hwqueue.plugin.worker.isolation import Isolation

Emit = Callable[[pytest.TestReport], None]


class Runner(Protocol):
    """Runs single tests on demand."""

    def begin_round(self, run: int, items: Sequence[pytest.Item]) -> None:
        """From now on, measure these tests once more, in fresh processes."""

    def run(self, item: pytest.Item, report: Emit) -> None:
        """Run a test and pass each of its reports to ``report``."""


class ScenarioRounds:
    """Runs scenario tests from this process: their tenants are fresh processes anyway."""

    def __init__(self, sink: RecordSink) -> None:
        self._sink = sink

    def begin_round(self, run: int, items: Sequence[pytest.Item]) -> None:
        """From now on, measure these tests once more."""
        for item in items:
            assert isinstance(item, ScenarioItem)
            item.begin_run(run)

    def run(self, item: pytest.Item, report: Emit) -> None:
        """Run a test; the report of its call carries a record for each tenant."""
        assert isinstance(item, ScenarioItem)
        phases: list[tuple[Literal["setup", "call", "teardown"], Callable[[], object]]] = [
            ("setup", _nothing),
            ("call", item.runtest),
            ("teardown", _nothing),
        ]
        for when, phase in phases:
            call = pytest.CallInfo.from_call(
                phase, when, reraise=(KeyboardInterrupt, pytest.exit.Exception)
            )
            made = item.ihook.pytest_runtest_makereport(item=item, call=call)
            if when == "call":
                for record in item.tenant_records():
                    self._sink.record(record)
                attach_records(made, self._sink.take())
            report(made)


class EachInItsWay:
    """Gives scenario tests to one runner, and all others to the workers' runner."""

    def __init__(self, isolation: Isolation, scenarios: ScenarioRounds) -> None:
        self._isolation = isolation
        self._scenarios = scenarios

    def begin_round(self, run: int, items: Sequence[pytest.Item]) -> None:
        """Begin a round with both runners."""
        of_scenarios = [item for item in items if isinstance(item, ScenarioItem)]
        self._isolation.begin_round(run, [item for item in items if item not in of_scenarios])
        self._scenarios.begin_round(run, of_scenarios)

    def run(self, item: pytest.Item, report: Emit) -> None:
        """Run a test with the runner that it needs."""
        if isinstance(item, ScenarioItem):
            # A worker has the device open, and may hold its lease.
            self._isolation.close()
            self._scenarios.run(item, report)
        else:
            self._isolation.run(item, report)


def _nothing() -> None:
    """Do nothing: scenario tests have no fixtures."""
