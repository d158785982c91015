"""What a worker is started with, and several ranks that are followed as one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_hwqueue.data.records.provenance import Provenance
from pytest_hwqueue.parts.processes.channel import ProcessEnded
from pytest_hwqueue.plugin.keys import Assignment
from pytest_hwqueue.plugin.worker.calls import WorkerStart
from pytest_hwqueue.plugin.worker.local_ranks import LocalRanks, have_collect, worker_input
from tests.plugin.conftest import Configure, EndedProcess

START = WorkerStart(
    [], Path("/"), [], Path("/"), "pytest", Assignment(planned={}), Provenance(), {}, None, {}
)


class Process(EndedProcess):
    """A rank's process: has the messages it is given, and notes what is asked of it."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.inbox: Any = None

    def deliver_to(self, inbox: Any, rank: int) -> None:
        self.inbox, self.rank = inbox, rank

    def says(self, **message: Any) -> None:
        self.inbox.put((self.rank, message or None))

    def send(self, kind: str, **content: Any) -> None:
        self.sent.append((kind, content))

    def how_it_ended(self) -> str:
        return "was killed"

    def dump_stacks(self) -> str:
        return f"stack of {self.pid}"

    def last_lines(self, count: int = 0) -> str:
        return f"words of {self.pid}" if self.pid == 101 else ""


class Processes(list[Process]):
    """The processes that are started, in order; the fourth cannot be."""

    def start(self, server: Any, main: str, environment: Any, log: Path) -> Any:
        if len(self) == 3:
            raise OSError("no more")
        assert log.name == f"worker-1-rank-{len(self)}.log"
        self.append(Process(100 + len(self)))
        return self[-1]

    def ranks(self, size: int = 2, others_s: float = 60.0) -> LocalRanks:
        log = Path("/logs/worker-1.log")
        return LocalRanks(None, {"A": "b"}, log, size, self.start, others_s)


@pytest.fixture
def processes() -> Processes:
    return Processes()


def test_ranks_that_cannot_all_be_started_are_ended(processes: Processes) -> None:
    with pytest.raises(OSError, match="no more"):
        processes.ranks(4)
    assert [each.ended for each in processes] == [["not started", "closed"]] * 3


def test_the_first_hosts_the_store_and_all_collect(processes: Processes) -> None:
    ranks = processes.ranks()
    assert (ranks.pid, ranks.pids) == (100, [100, 101])
    processes[0].says(kind="store", port=29500)
    processes[1].says(kind="ready")
    processes[0].says(kind="ready")
    ranks.have_collect(START)
    first, second = (each.sent for each in processes)
    assert [kind for kind, _ in first] == ["host store", "start"]
    assert [kind for kind, _ in second] == ["start"]
    for number, sent in enumerate((first, second)):
        environment = sent[-1][1]["start"]["environment"]
        assert (environment["RANK"], environment["WORLD_SIZE"]) == (str(number), "2")
        assert environment["MASTER_PORT"] == "29500"


def test_a_lone_worker_that_does_not_collect_in_time_is_ended() -> None:
    worker: Any = Process(100)
    messages = [{"kind": "call"}, {"kind": "ready"}]
    worker.receive = lambda deadline: messages.pop(0) if messages else None
    have_collect(worker, START)
    assert messages == []
    with pytest.raises(ProcessEnded, match="was not ready within 180 s"):
        have_collect(worker, START)
    assert worker.ended == ["not ready"]


def test_a_test_ends_when_all_have_finished_it(processes: Processes) -> None:
    ranks = processes.ranks()
    ranks.send("run", item="a")
    processes[0].says(kind="call", method="progress")
    processes[1].says(kind="finished", retire=True)
    processes[0].says(kind="finished", retire=False)
    assert ranks.receive(None) == {"kind": "call", "method": "progress"}
    # One that is unfit makes all so.
    assert ranks.receive(None) == {"kind": "finished", "retire": True}
    ranks.send("run", item="b")
    for process in processes:
        process.says(kind="finished", retire=False)
    assert ranks.receive(None) == {"kind": "finished", "retire": False}
    assert ranks.receive(time.monotonic()) is None
    assert [kind for kind, _ in processes[1].sent] == ["run", "run"]


def test_calls_of_the_others_are_answered_and_the_answers_of_the_session_go_to_the_first(
    processes: Processes,
) -> None:
    ranks = processes.ranks()
    processes[1].says(kind="call", method="keep_device", waits=True, arguments={})
    processes[1].says(kind="call", method="progress", waits=False, arguments={})
    processes[1].says(kind="ready")
    assert ranks.receive(time.monotonic() + 0.05) is None
    assert processes[1].sent == [("answer", {"value": None, "error": ""})]
    ranks.send("answer", value=3)
    assert processes[0].sent == [("answer", {"value": 3})]
    assert len(processes[1].sent) == 1


def failed(text: str) -> dict[str, Any]:
    data = {"outcome": "failed", "longrepr": text}
    return {"kind": "call", "method": "report", "waits": False, "arguments": {"data": data}}


def test_ranks_that_wait_for_one_that_failed_are_ended(
    processes: Processes,
) -> None:
    ranks = processes.ranks(others_s=0.05)
    processes[1].says(**failed("a traceback\nit broke"))
    with pytest.raises(ProcessEnded, match=r"could not go on: rank 1: it broke$"):
        ranks.receive(None)
    assert ranks.last_lines() == "rank 1 failed:\na traceback\nit broke\nrank 1:\nwords of 101"
    # The first has its outcome, and it is kept.
    ranks.send("run", item="b")
    processes[1].says(**failed("it broke"))
    processes[0].says(kind="finished", retire=False)
    assert ranks.receive(None) == {"kind": "finished", "retire": True}
    assert [each.ended for each in processes] == [["others waited for it"]] * 2
    # All have finished, and the failure is not forgotten.
    ranks.send("run", item="c")
    processes[1].says(**failed("it broke"))
    for process in processes:
        process.says(kind="finished", retire=False)
    assert ranks.receive(None) == {"kind": "finished", "retire": True}


def test_a_rank_that_ended_is_named(processes: Processes) -> None:
    ranks = processes.ranks()
    processes[1].says()
    with pytest.raises(ProcessEnded, match="ended: rank 1 was killed"):
        ranks.receive(None)
    assert ranks.dump_stacks() == "rank 0:\nstack of 100\nrank 1:\nstack of 101"


def test_all_are_asked_to_exit_before_any_is_waited_for(processes: Processes) -> None:
    ranks = processes.ranks()

    def gone(kind: str, **content: Any) -> None:
        raise ProcessEnded("gone")

    cast("Any", processes[0]).send = gone
    seen: list[list[Any]] = []
    cast("Any", processes[0]).finish = lambda _: seen.append([*processes[1].sent])
    ranks.finish(1.0)
    assert seen == [[("exit", {})]]
    assert processes[1].ended == ["finished"]


def test_a_workers_input_is_what_xdists_has_and_json_carries(configure: Configure) -> None:
    config: Any = configure("-k", "name")
    given = worker_input(config)
    assert (given["workerid"], given["workercount"], given["keyword"]) == ("hwq", 1, "name")
    assert given["testrunuid"] != worker_input(config)["testrunuid"]
    assert all(value is None or isinstance(value, (str, int, float, list)) for value in
               given.values())  # fmt: skip

    class Other:
        def pytest_configure_node(self, node: Any) -> None:
            node.workerinput |= {"seed": 3, "none": object(), "list": [1, [2]], "odd": [object()]}

    class Coverage:
        def pytest_configure_node(self, node: Any) -> None:
            node.workerinput["coverage"] = True

    class Broken:
        def pytest_configure_node(self, node: Any) -> None:
            raise AttributeError("no gateway")

    config.pluginmanager.register(Other(), "other")
    # It is not measured in workers.
    config.pluginmanager.unregister(name="_cov")
    config.pluginmanager.register(Coverage(), "_cov")
    given = worker_input(config)
    assert (given["seed"], given["list"]) == (3, [1, [2]])
    assert given.keys().isdisjoint(("none", "odd", "coverage"))
    config.pluginmanager.register(Broken(), "broken")
    with pytest.warns(UserWarning, match="plugin broken has nothing for the worker process: Attr"):
        assert worker_input(config)["seed"] == 3
    # A worker of xdist has its own, which counts.
    config.workerinput = {"workerid": "gw3", "mine": 1}
    given = worker_input(config)
    assert (given["workerid"], given["mine"], "seed" in given) == ("gw3", 1, False)
