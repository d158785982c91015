"""A worker's session: runs the tests it is sent, and reports each as xdist's would."""

from __future__ import annotations

import pdb
import queue
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytest_hwqueue.data.records.provenance import Provenance
from pytest_hwqueue.options.suite import plugin_name
from pytest_hwqueue.plugin.keys import Assignment
from pytest_hwqueue.plugin.worker.calls import SessionCalls, WorkerStart
from pytest_hwqueue.plugin.worker.process import WorkerPlugin
from pytest_hwqueue.plugin.worker.test_run import unpacked


class Channel:
    """The worker's end: what it sends, and the commands that wait for it."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def send(self, kind: str, **content: Any) -> None:
        self.sent.append({"kind": kind, **content})

    def receive(self) -> dict[str, Any]:
        return self.commands.get()

    def kinds(self) -> list[str]:
        return [message.get("method", message["kind"]) for message in self.sent]

    def reports(self) -> list[dict[str, Any]]:
        return [
            unpacked(message["arguments"]["data"])
            for message in self.sent
            if message.get("method") == "report"
        ]


Serve = Callable[..., Channel]


@pytest.fixture
def serve(_imported: None, pytester: pytest.Pytester) -> Iterator[Serve]:
    """Run a worker's session over a module's tests, in this process."""

    def serve(text: str, *ran: tuple[str, str | None], arguments: tuple[str, ...] = ()) -> Channel:
        file = pytester.makepyfile(test_mine=text)
        channel: Any = Channel()
        for item, follows in ran:
            key, following = (each and f"{file}::{each}" for each in (item, follows))
            channel.commands.put({"kind": "run", "item": key, "next": following, "key": "test-1"})
        channel.commands.put({"kind": "exit"})
        start = WorkerStart(
            [], pytester.path, [str(file)], pytester.path, "pytest", Assignment(2, ["a note"]),
            Provenance(), {"workerid": "hwq", "seed": 3}, None, {},
        )  # fmt: skip
        pytester.inline_run(
            "-p", plugin_name(), "-p", "no:faulthandler", "-p", "no:cacheprovider", *arguments,
            plugins=[WorkerPlugin(channel, start)],
        )  # fmt: skip
        found: Channel = channel
        return found

    # A worker refuses both, for as long as it lives.
    before = pytest.set_trace, pdb.set_trace
    yield serve
    pytest.set_trace, pdb.set_trace = before


TESTS = """
import sys, warnings, pytest

ENDED = []

@pytest.fixture(scope="module")
def shared():
    yield
    ENDED.append(1)

def test_passes(shared): print("said", ENDED)
def test_fails(): assert 1 == 2
def test_warns(): warnings.warn("old", DeprecationWarning)
def test_spoils(): sys.setrecursionlimit(sys.getrecursionlimit() + 1)
def test_exits(): pytest.exit("enough", returncode=7)
def test_halts(): breakpoint()
def test_floods(): print("a" * 1_500_000)
def test_input(request, pytestconfig): assert pytestconfig.workerinput["seed"] == 3
"""


def test_tests_run_as_they_are_sent_and_are_reported(serve: Serve) -> None:
    channel = serve(TESTS, ("test_fails", None), ("test_passes", None), ("test_input", None))
    assert channel.kinds() == ["ready", *(["report"] * 3 + ["finished"]) * 3]
    reports = channel.reports()
    assert [(each["when"], each["outcome"]) for each in reports[:3]] == [
        ("setup", "passed"), ("call", "failed"), ("teardown", "passed")
    ]  # fmt: skip
    assert "assert 1 == 2" in str(reports[1]["longrepr"])
    assert ["Captured stdout call", "said []\n"] in map(list, reports[4]["sections"])
    assert all(each["outcome"] == "passed" for each in reports[3:])
    assert [each["retire"] for each in channel.sent if each["kind"] == "finished"] == [False] * 3


def test_a_test_that_was_not_collected_is_missing(serve: Serve) -> None:
    channel = serve(TESTS, ("test_absent", None), ("test_passes", None))
    assert channel.kinds() == ["ready", "missing", *["report"] * 3, "finished"]


def test_a_process_that_a_test_has_changed_is_to_be_retired(serve: Serve) -> None:
    before = sys.getrecursionlimit()
    channel = serve(TESTS, ("test_passes", None), ("test_spoils", None))
    sys.setrecursionlimit(before)
    assert [each["retire"] for each in channel.sent if each["kind"] == "finished"] == [False, True]


@pytest.mark.parametrize(
    ("follows", "then", "ended"),
    [
        (None, "test_passes", "[1]"),
        ("test_passes", "test_passes", "[]"),
    ],
)
def test_fixtures_are_kept_for_the_test_that_follows(
    serve: Serve, follows: str | None, then: str, ended: str
) -> None:
    channel = serve(TESTS, ("test_passes", follows), (then, None))
    assert ["Captured stdout call", f"said {ended}\n"] in map(
        list, channel.reports()[4]["sections"]
    )


def test_fixtures_that_were_kept_for_one_that_does_not_follow_are_torn_down(serve: Serve) -> None:
    text = f"{TESTS}\nclass TestIn:\n    def test_a(self): pass\n    def test_b(self): pass\n"
    channel = serve(text, ("TestIn::test_a", "TestIn::test_b"), ("test_passes", None))
    assert [each["outcome"] for each in channel.reports()] == ["passed"] * 6


def test_a_warning_and_an_exit_go_to_the_session(serve: Serve) -> None:
    channel = serve(TESTS, ("test_warns", None), ("test_exits", None))
    (warning,) = (each["arguments"] for each in channel.sent if each.get("method") == "warning")
    assert (warning["text"], warning["category"]) == ("old", "DeprecationWarning")
    assert warning["nodeid"] == "test_mine.py::test_warns"
    (exits,) = (each["arguments"] for each in channel.sent if each.get("method") == "exits")
    assert exits == {"reason": "enough", "returncode": 7}


def test_a_debugger_is_refused_with_what_lets_it_work(serve: Serve) -> None:
    (_, call, _) = serve(TESTS, ("test_halts", None)).reports()
    assert "give --hwq-isolation=none, --pdb or --trace" in str(call["longrepr"])


def test_output_that_nobody_reads_is_left_out_in_its_middle(serve: Serve) -> None:
    (_, call, _) = serve(TESTS, ("test_floods", None)).reports()
    ((_, text),) = call["sections"]
    assert text.startswith("a" * 500_000 + "\n[pytest-hwqueue left out 500001 characters")
    assert text.endswith("a\n")
    assert len(text) < 1_000_100


def test_what_the_session_does_alone_is_undone(serve: Serve, pytester: pytest.Pytester) -> None:
    channel = serve(
        TESTS, ("test_fails", None), ("test_passes", None),
        arguments=("-x", "--junitxml=mine.xml", "--collect-only"),
    )  # fmt: skip
    assert channel.kinds().count("finished") == 2
    assert not (pytester.path / "mine.xml").exists()


def test_fixtures_that_are_listed_travel_with_a_report(serve: Serve) -> None:
    reports = serve(TESTS, ("test_passes", None), arguments=("--setup-show", "-v")).reports()
    assert "SETUP    M shared" in reports[0]["hwq_listed"]
    # The session has a reporter of its own.
    assert not any("PASSED" in each["hwq_listed"] for each in reports)


def test_without_a_worker_a_session_has_little_to_do() -> None:
    claimed: list[tuple[str, str]] = []
    calls = SessionCalls(lambda *claim: claimed.append(claim))
    cell: Any = type("Cell", (), {"id": "cell"})()
    calls.cell_begins(cell, "test_mine.py::test_it")
    assert claimed == [("cell", "test_mine.py::test_it")]
    with pytest.raises(NotImplementedError, match="noise runs only beside a worker"):
        calls.begin_noise("cpu", 3)
