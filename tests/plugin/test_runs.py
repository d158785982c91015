"""Runs that are judged: what is taken once, when causes are sought, and when workers end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_hwqueue.options.options import Settings
from pytest_hwqueue.plugin import traced_runs
from pytest_hwqueue.plugin.budget import Budget
from pytest_hwqueue.plugin.keys import SETTINGS
from pytest_hwqueue.plugin.runs import Replication, RunJudge


class Verdicts:
    """A comparison in which the tail of one cell fails."""

    def __init__(self) -> None:
        self.added: list[str] = []
        self.applied: list[str] = []
        self.causes: Mapping[str, str] = {}

    def add(self, nodeid: str, records: Sequence[object], *, failed: bool) -> None:
        self.added.append(nodeid)

    def wanted(self) -> list[str]:
        return ["test_a"]

    def failing_tails(self) -> dict[str, str]:
        return {"cell": "test_a"}

    def explain_tails(self, causes: Mapping[str, str]) -> None:
        self.causes = causes

    def apply(self, nodeid: str, file: Path, reports: Sequence[object]) -> None:
        self.applied.append(nodeid)


def judge(verdicts: Verdicts | None, causes: str = "failing") -> RunJudge:
    config: Any = SimpleNamespace(stash={SETTINGS: Settings(causes=causes)})
    session: Any = SimpleNamespace(collect=lambda report: report.records)
    tests: Any = {name: SimpleNamespace(path=Path()) for name in ("test_a", "test_b")}
    budget: Any = SimpleNamespace(allows_causes=lambda: True)
    progress: Any = SimpleNamespace(clear=lambda: None)
    return RunJudge(config, session, cast("Any", verdicts), tests, budget, progress)


def report(*records: str) -> Any:
    return SimpleNamespace(nodeid="test_a", records=list(records), failed=False)


def test_a_held_reports_records_are_taken_once_though_it_is_reported_later() -> None:
    verdicts = Verdicts()
    judging = judge(verdicts)
    held, other = report("record"), report()
    assert judging.take(held)
    assert not judging.take(other)
    assert verdicts.added == ["test_a", "test_a"]
    assert judging.has_taken(held)
    # The same object as another report, once the first is gone.
    assert not judging.has_taken(held)
    assert not judging.has_taken(report("record"))


def test_without_a_comparison_nothing_is_wanted_and_no_outcome_changes() -> None:
    judging = judge(None)
    assert judging.wanted() == []
    judging.outcome("test_a", [])
    assert not judging.interrupted


@pytest.mark.parametrize(("causes", "sought"), [("failing", 1), ("always", 1), ("never", 0)])
def test_causes_of_all_failing_tails_are_sought_once_before_a_verdict_is_reported(
    monkeypatch: pytest.MonkeyPatch, causes: str, sought: int
) -> None:
    asked: list[Mapping[str, str]] = []

    def causes_of(cells: Mapping[str, str], *_: object) -> tuple[dict[str, str], bool]:
        asked.append(cells)
        return {"cell": "causes: allocation"}, True

    monkeypatch.setattr(traced_runs, "causes_of", causes_of)
    verdicts = Verdicts()
    judging = judge(verdicts, causes)
    for name in ("test_a", "test_b"):
        judging.outcome(name, [])
    assert asked == [{"cell": "test_a"}] * sought
    assert verdicts.causes == ({"cell": "causes: allocation"} if sought else {})
    assert verdicts.applied == ["test_a", "test_b"]
    # Ctrl-C while causes are sought ends the session after the verdict.
    assert judging.interrupted == bool(sought)


class Worker:
    """Runs tests until it is interrupted."""

    def __init__(self, *, interrupted: bool) -> None:
        self.interrupted = interrupted
        self.is_open = False

    def begin_round(self, run: int, items: Sequence[pytest.Item]) -> None:
        self.is_open = True

    def run(self, item: pytest.Item, held: Any) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        held(report())

    def close(self) -> None:
        self.is_open = False


@pytest.mark.parametrize("interrupted", [False, True])
def test_the_worker_ends_before_outcomes_for_which_others_may_measure(
    interrupted: bool, pytester: pytest.Pytester
) -> None:
    worker = Worker(interrupted=interrupted)
    open_at_outcome: list[bool] = []
    judging: Any = SimpleNamespace(
        take=lambda report: True,
        wanted=lambda: [],
        outcome=lambda nodeid, reports: open_at_outcome.append(worker.is_open),
    )
    config: Any = SimpleNamespace(
        stash=pytest.Stash(), invocation_params=SimpleNamespace(dir=pytester.path)
    )
    config.stash[SETTINGS] = Settings()
    item: Any = SimpleNamespace(nodeid="test_a", stash=pytest.Stash())
    budget = Budget(config, [item])
    replication = Replication(cast("Any", worker), [item], 1, judging, budget, 0)
    if interrupted:
        with pytest.raises(KeyboardInterrupt):
            replication.reports(item)
        assert not worker.is_open
    # After Ctrl-C what was measured until then is still reported.
    replication.reports(item)
    assert open_at_outcome == [False]
