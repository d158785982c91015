"""xserver: what is in its way, what it says, and that it leaves nothing behind."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.errors import NotProven
from pytest_hwqueue.processes import services
from pytest_hwqueue.processes.services import ServiceFailed
from pytest_hwqueue.schedulers import xsched_server
from pytest_hwqueue.schedulers.xsched_server import (
    MessageQueue,
    XQueue,
    _living_servers,
    parse_queues,
    parse_report,
    refuse_other,
    serve,
)

from .processes import has_ended, program, wait_for
from .xserver import XSERVER, queue

_HEADING = (
    "       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid  cuid  cgid"
    "      stime      rtime      ctime\n"
)


def row(key: int, identifier: int) -> str:
    return (
        f"{key:>10} {identifier:>10}   666            0          0     0     0     0     0     0"
        "     0          0          0 1753000000\n"
    )


@given(st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**31 - 1))))
def test_every_message_queue_is_read(rows: list[tuple[int, int]]) -> None:
    table = _HEADING + "".join(row(*each) for each in rows)
    assert parse_queues(table) == [MessageQueue(*each) for each in rows]


def test_a_stale_queue_is_refused_with_how_to_remove_it() -> None:
    table = _HEADING + row(16120, 5) + row(1, 7)
    with pytest.raises(ServiceFailed, match=r"scheduled by nobody.*ipcrm -Q 1$"):
        refuse_other(table, [])


def test_a_living_server_is_refused_and_its_queue_is_not_offered() -> None:
    with pytest.raises(ServiceFailed) as refused:
        refuse_other(_HEADING + row(1, 7), [4711])
    assert "kill -INT 4711" in str(refused.value)
    assert "ipcrm" not in str(refused.value)


@pytest.mark.parametrize("table", ["", _HEADING, _HEADING + row(16120, 5) + row(11, 1)])
def test_other_queues_are_nobodys_business(table: str) -> None:
    refuse_other(table, [])


def test_a_report_keeps_handles_of_64_bits() -> None:
    handle = 4537471537448846801
    report = parse_report(json.dumps({
        "processes": [{"cmdline": "a", "pid": 16120}, {"cmdline": "b", "pid": 16121}],
        "xqueues": [queue(16120, handle=handle, ready=True, suspended=True, threshold=4, batch=2)],
    }))  # fmt: skip
    assert report.processes == {16120, 16121}
    assert report.queues == (XQueue(16120, handle, 1, 4, 2, True, True),)
    empty = parse_report('{"processes" : [], "xqueues" : []}')
    assert (empty.processes, empty.queues) == (frozenset(), ())


@pytest.mark.parametrize(
    "text",
    ["", "not JSON", "[]", "{}", '{"processes": [], "xqueues": [{"pid": 1}]}', '{"processes": 1}'],
)
def test_another_format_is_an_error(text: str) -> None:
    with pytest.raises(NotProven, match=r"not in the format of XSched 1\.2"):
        parse_report(text)


@pytest.fixture(autouse=True)
def _no_server_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (table := tmp_path / "msg").write_text(_HEADING)
    monkeypatch.setattr(xsched_server, "_TABLE", table)
    monkeypatch.setattr(xsched_server, "_living_servers", list)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    program(tmp_path / "root" / "bin" / "xserver", XSERVER)
    return tmp_path / "root"


def test_it_is_ready_when_it_answers_and_is_stopped_by_sigint(root: Path, tmp_path: Path) -> None:
    with serve(root, "CFS", tmp_path / "logs") as server:
        assert server.policy() == 10
        assert server.report().queues == ()
        pid = int((root / "pid").read_text())
        server.check()
    assert has_ended(pid)
    log = (tmp_path / "logs" / "xserver.log").read_text()
    assert "[stopping by SIGINT]" in log
    assert "stopped by SIGINT" in log


def test_each_request_has_its_own_connection(root: Path, tmp_path: Path) -> None:
    with serve(root, "HPF", tmp_path) as server:
        before = int((root / "connections").read_text())
        for _ in range(5):
            server.report()
        assert int((root / "connections").read_text()) == before + 5


def test_no_proxy_of_the_environment_is_asked(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serve(root, "HPF", tmp_path) as server:
        assert server.policy() == 1


def test_one_that_dies_is_a_failed_service(root: Path, tmp_path: Path) -> None:
    with serve(root, "HPF", tmp_path) as server:
        os.kill(int((root / "pid").read_text()), signal.SIGKILL)
        for ask in (server.report, server.check, server.policy):
            with pytest.raises(ServiceFailed, match=r"xserver \(process \d+\) died by SIGKILL"):
                ask()


def test_one_of_another_policy_is_somebody_elses(root: Path, tmp_path: Path) -> None:
    (root / "policy").write_text("3")
    with (
        pytest.raises(ServiceFailed, match="policy number 3, not by one of HPF"),
        serve(root, "HPF", tmp_path),
    ):
        pytest.fail("it is not ours")
    assert has_ended(int((root / "pid").read_text()))


def test_one_without_http_is_never_ready(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So does the real one where its port is taken.
    monkeypatch.setattr(services, "_READY_S", 0.3)
    (root / "mute").touch()
    with (
        pytest.raises(ServiceFailed, match="runs, but did not answer over HTTP"),
        serve(root, "HPF", tmp_path),
    ):
        pytest.fail("it does not answer")


def test_one_that_ends_at_once_says_why(root: Path, tmp_path: Path) -> None:
    program(root / "bin" / "xserver", "print('invalid policy name HPF')\nraise SystemExit(1)\n")
    with (
        pytest.raises(ServiceFailed, match="ended with status 1") as failed,
        serve(root, "HPF", tmp_path),
    ):
        pytest.fail("it has ended")
    assert "invalid policy name" in str(failed.value)


def test_living_servers_are_found_by_name(tmp_path: Path) -> None:
    other = program(tmp_path / "xserver", "import time\ntime.sleep(600)\n")
    process = subprocess.Popen([other])
    try:
        wait_for(lambda: process.pid in _living_servers(), "the server to be seen")
    finally:
        process.kill()
        process.wait()
    assert process.pid not in _living_servers()


def test_nothing_is_started_beside_a_stale_queue(root: Path, tmp_path: Path) -> None:
    (tmp_path / "msg").write_text(_HEADING + row(1, 7))
    with pytest.raises(ServiceFailed, match="ipcrm"), serve(root, "HPF", tmp_path):
        pytest.fail("clients would be scheduled by nobody")
    assert not (root / "pid").exists()


def test_the_queue_of_a_dead_client_is_removed_and_no_other(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    create, permissions = 0o1000, 0o600
    client = subprocess.Popen([sys.executable, "-c", ""])
    client.wait()
    # The keys are process ids, of our own processes: nobody else's.
    keys = (client.pid, os.getpid())
    made = [library.msgget(key, create | permissions) for key in keys]
    if -1 in made:
        pytest.skip(f"this machine gives no System V queues: {os.strerror(ctypes.get_errno())}")
    monkeypatch.setattr(xsched_server, "_TABLE", Path("/proc/sysvipc/msg"))
    try:
        monkeypatch.setattr(xsched_server, "refuse_other", lambda table, servers: None)
        (root / "answer.json").write_text(
            json.dumps({"processes": [{"pid": key} for key in keys], "xqueues": []})
        )
        with serve(root, "HPF", tmp_path) as server:
            server.report()
        left = {each.key for each in parse_queues(Path("/proc/sysvipc/msg").read_text())}
        assert client.pid not in left
        assert os.getpid() in left
    finally:
        for identifier in made:
            library.msgctl(identifier, 0, None)
