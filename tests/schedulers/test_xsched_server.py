"""xserver: what is in its way, what it says, and that it leaves nothing behind."""

from __future__ import annotations

import ctypes
import json
import os
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


def table(*rows: tuple[int, int]) -> str:
    """Text of /proc/sysvipc/msg with queues of these keys and identifiers."""
    heading = "       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid ...\n"
    return heading + "".join(
        f"{key:>10} {identifier:>10}   666            0          0     0     0     0     0\n"
        for key, identifier in rows
    )


@given(st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**31 - 1))))
def test_every_message_queue_is_read(rows: list[tuple[int, int]]) -> None:
    assert parse_queues(table(*rows)) == [MessageQueue(*each) for each in rows]


def test_a_server_or_its_stale_queue_is_refused_and_nothing_else() -> None:
    with pytest.raises(ServiceFailed, match=r"scheduled by nobody.*ipcrm -Q 1$"):
        refuse_other(table((16120, 5), (1, 7)), [])
    with pytest.raises(ServiceFailed, match=r"^(?!.*ipcrm).*kill -INT 4711"):
        refuse_other(table((1, 7)), [4711])
    for text in ("", table(), table((16120, 5), (11, 1))):
        refuse_other(text, [])


def test_a_report_keeps_handles_of_64_bits() -> None:
    handle = 4537471537448846801
    report = parse_report(json.dumps({
        "processes": [{"cmdline": "a", "pid": 16120}, {"cmdline": "b", "pid": 16121}],
        "xqueues": [queue(16120, handle=handle, ready=True, suspended=True, threshold=4, batch=2)],
    }))  # fmt: skip
    assert report.processes == {16120, 16121}
    assert report.queues == (XQueue(16120, handle, 1, 4, 2, True, True),)
    for text in ("", "not JSON", "[]", '{"processes": [], "xqueues": [{"pid": 1}]}'):
        with pytest.raises(NotProven, match=r"not in the format of XSched 1\.2"):
            parse_report(text)


@pytest.fixture(autouse=True)
def _no_server_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "msg").write_text(table())
    monkeypatch.setattr(xsched_server, "_TABLE", tmp_path / "msg")
    monkeypatch.setattr(xsched_server, "_living_servers", list)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    program(tmp_path / "root" / "bin" / "xserver", XSERVER)
    return tmp_path / "root"


def test_it_is_ready_when_it_answers_and_is_stopped_by_sigint(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No proxy of the environment is asked.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serve(root, "CFS", tmp_path / "logs") as server:
        assert server.policy() == 10
        before = int((root / "connections").read_text())
        assert server.report().queues == server.report().queues == ()
        # A connection that is kept alive would answer a hundred times slower.
        assert int((root / "connections").read_text()) == before + 2
        server.check()
    assert has_ended(int((root / "pid").read_text()))
    log = (tmp_path / "logs" / "xserver.log").read_text()
    assert "[stopping by SIGINT]" in log
    assert "stopped by SIGINT" in log


_ENDS = "print('invalid policy name HPF')\nraise SystemExit(1)\n"


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("root/policy", "3", "policy number 3, not by one of HPF"),
        # So does the real one where its port is taken.
        ("root/mute", "", "runs, but did not answer over HTTP"),
        ("root/bin/xserver", _ENDS, "(?s)ended with status 1.*invalid policy name"),
        ("msg", table((1, 7)), "ipcrm -Q 1"),
    ],
)
def test_one_that_is_not_ours_or_does_not_serve_is_refused_and_ended(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, content: str, said: str
) -> None:
    if file == "root/mute":
        monkeypatch.setattr(services, "_READY_S", 0.3)
    if file == "root/bin/xserver":
        program(tmp_path / file, content)
    else:
        (tmp_path / file).write_text(content)
    with pytest.raises(ServiceFailed, match=said), serve(root, "HPF", tmp_path):
        pytest.fail("it serves nobody")
    pid = root / "pid"
    assert not pid.exists() or (file != "msg" and has_ended(int(pid.read_text())))


def test_living_servers_are_found_by_name(tmp_path: Path) -> None:
    other = program(tmp_path / "xserver", "import time\ntime.sleep(600)\n")
    with subprocess.Popen([other]) as process:
        try:
            wait_for(lambda: process.pid in _living_servers(), "the server to be seen")
        finally:
            process.kill()
    assert process.pid not in _living_servers()


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
    monkeypatch.setattr(xsched_server, "refuse_other", lambda table, servers: None)
    report = {"processes": [{"pid": key} for key in keys], "xqueues": []}
    (root / "answer.json").write_text(json.dumps(report))
    try:
        with serve(root, "HPF", tmp_path) as server:
            server.report()
        left = {each.key for each in parse_queues(Path("/proc/sysvipc/msg").read_text())}
        assert left & {*keys} == {os.getpid()}
    finally:
        for identifier in made:
            library.msgctl(identifier, 0, None)
