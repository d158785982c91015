"""Which worker a test is handed to, with what, and what becomes of a worker that is unfit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_hwqueue.data.records.provenance import Provenance
from pytest_hwqueue.options.options import Settings
from pytest_hwqueue.parts.processes.channel import ProcessEnded
from pytest_hwqueue.plugin.keys import ASSIGNMENT, PROVENANCE, Assignment, item_key
from pytest_hwqueue.plugin.worker.isolation import Isolation
from tests.plugin.conftest import Collect, EndedProcess

ENDS = {"kind": "finished", "retire": False}
RETIRES = {"kind": "finished", "retire": True}


class Worker(EndedProcess):
    """A worker's process: answers each test that it is sent with what comes next."""

    def __init__(self, log: Path, environment: dict[str, str], answers: list[Any]) -> None:
        super().__init__(pid=7)
        self.log, self.environment, self._answers = log, environment, answers
        self.start: dict[str, Any] = {}
        self.ran: list[tuple[str, str | None]] = []
        self._messages: list[Any] = []

    def send(self, kind: str, **content: Any) -> None:
        if kind == "start":
            self.start = content["start"]
            self._messages.append({"kind": "ready"})
        if kind == "run":
            self.ran.append((content["item"], content["next"]))
            self._messages.append(self._answers.pop(0) if self._answers else ENDS)

    def receive(self, deadline: float | None) -> Any:
        message = self._messages.pop(0)
        if isinstance(message, BaseException):
            raise message
        return message

    def last_lines(self) -> str:
        return "its last words"


class Handed:
    """Tests that are handed to workers, and all that is told of them.

    Attributes:
        workers: those that were started.
        answers: what tests come to, in order; all others end, and leave their worker fit.

    """

    def __init__(self, items: list[pytest.Item], folder: Path) -> None:
        self.items = items
        self.reports: list[Any] = []
        self.collected: list[Any] = []
        self.workers: list[Worker] = []
        self.answers: list[Any] = []
        config: Any = items[0].config
        config.stash[PROVENANCE] = Provenance()
        session: Any = SimpleNamespace(
            settings=Settings(), folder=folder, command="pytest", provenance=Provenance(),
            collect=self.collected.append, claim=lambda *_: None,
        )  # fmt: skip
        progress: Any = SimpleNamespace(
            update=lambda *_: None, show=lambda _: None, clear=lambda: None
        )
        self.isolation = Isolation(config, session, items, progress, start=self._start)

    def _start(self, server: Any, main: str, environment: Any, log: Path) -> Any:
        assert main == "pytest_hwqueue.plugin.worker.process"
        self.workers.append(Worker(log, environment, self.answers))
        return self.workers[-1]

    def run(self, *names: str) -> None:
        for name in names:
            (item,) = (each for each in self.items if each.name.startswith(f"test_{name}["))
            self.isolation.run(item, self.reports.append)


TESTS = "def test_a(hwq): pass\ndef test_b(hwq): pass\ndef test_c(hwq): pass\n"


@pytest.fixture
def handed(collect: Collect, tmp_path: Path) -> Handed:
    items = collect(TESTS, "--hwq-device=sim:h200", "-k", "test")
    return Handed(items, tmp_path)


def test_one_worker_runs_all_tests_and_knows_which_follows(
    handed: Handed,
) -> None:
    handed.run("a", "b", "c")
    (worker,) = handed.workers
    a, b, c = map(item_key, handed.items)
    assert worker.ran == [(a, b), (b, c), (c, None)]
    assert worker.log.name == "worker-1.log"
    assert worker.ended == []
    handed.isolation.close()
    assert worker.ended == ["finished", "closed"]
    handed.isolation.close()
    assert worker.ended == ["finished", "closed"]


def test_a_worker_collects_the_tests_files_with_the_sessions_arguments(
    handed: Handed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p 'no:a b'")
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "x")
    config: Any = handed.items[0].config
    config.option.basetemp = "/base"
    config.stash[ASSIGNMENT] = Assignment(planned={"cell": 400}, compared_devices=["nvidia-h200"])
    handed.run("a")
    start = handed.workers[0].start
    assert start["files"] == [str(handed.items[0].path)]
    assert start["arguments"][:2] == ["-p", "no:a b"]
    assert [*map(str, config.invocation_params.args)] == start["arguments"][2 : -3 - cov(config)]
    assert "--capture=sys" in start["arguments"]
    assert start["assignment"] == [1, [], False, {"cell": 400}, ["nvidia-h200"]]
    assert start["basetemp"].startswith("/base-hwq-")
    assert "PYTEST_CURRENT_TEST" not in handed.workers[0].environment


def cov(config: pytest.Config) -> int:
    """How many arguments leave coverage out."""
    return int(config.pluginmanager.hasplugin("pytest_cov"))


def test_a_worker_that_is_unfit_is_replaced(
    handed: Handed,
) -> None:
    handed.answers += [ENDS, RETIRES]
    handed.run("a", "b", "c")
    assert [len(worker.ran) for worker in handed.workers] == [2, 1]
    assert [worker.log.name for worker in handed.workers] == ["worker-1.log", "worker-2.log"]
    assert handed.workers[0].ended == ["finished", "closed"]


def test_each_round_has_a_fresh_worker_and_its_own_order(
    handed: Handed,
) -> None:
    handed.run("a")
    a, _, c = handed.items
    handed.isolation.begin_round(2, [c, a])
    handed.run("c", "a")
    assert [worker.start["assignment"][0] for worker in handed.workers] == [1, 2]
    assert handed.workers[0].ended == ["finished", "closed"]
    assert handed.workers[1].ran == [(item_key(c), item_key(a)), (item_key(a), None)]


def test_a_worker_that_dies_costs_its_test_alone(
    handed: Handed,
) -> None:
    handed.answers += [ProcessEnded("died by SIGKILL")]
    handed.run("a", "b")
    (report,) = handed.reports
    assert report.longreprtext.startswith("the worker process died by SIGKILL: test_a")
    assert report.sections == [("worker", "its last words")]
    assert handed.workers[0].ended == ["no longer fit", "closed"]
    assert [len(worker.ran) for worker in handed.workers] == [1, 1]


def test_an_interrupted_test_ends_its_worker_and_has_no_outcome(
    handed: Handed,
) -> None:
    handed.answers += [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        handed.run("a")
    assert handed.reports == []
    (report,) = handed.collected
    assert "interrupted" in report.longreprtext
    assert handed.workers[0].ended == ["no longer fit", "closed"]


def test_a_mode_that_cannot_be_opened_fails_its_test(collect: Collect, tmp_path: Path) -> None:
    items = collect(TESTS, "--hwq-device=cuda", "--hwq-streams=1", "--hwq-scheduler=native,mps")
    handed = Handed(items, tmp_path)
    native, mps = items[:2]
    handed.isolation.run(native, handed.reports.append)
    # The one that follows needs another worker.
    assert handed.workers[0].ran == [(item_key(native), None)]
    handed.isolation.run(mps, handed.reports.append)
    assert len(handed.workers) == 1
    (report,) = handed.reports
    assert report.failed
    assert handed.workers[0].ended == ["finished", "closed"]
