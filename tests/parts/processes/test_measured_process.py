"""A measured process as its parent sees it: what it says, how it ended, and that it has ended."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import psutil
import pytest

from pytest_hwqueue.parts.processes import measured_process
from pytest_hwqueue.parts.processes.channel import Message, ProcessEnded
from pytest_hwqueue.parts.processes.measured_process import MeasuredProcess
from pytest_hwqueue.parts.processes.starting import Main

PROGRAM = """
import ctypes, faulthandler, os, signal, subprocess, sys, time
from pytest_hwqueue.parts.processes.channel import Channel

def sleep_for_ever(said=lambda: None):
    said()
    while True:
        time.sleep(600)

def main():
    os.setpgrp()
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    channel = Channel.from_process(int(sys.argv[-2]), int(sys.argv[-1]))
    while (message := channel.receive())["kind"] != "exit":
        kind = message["kind"]
        if kind == "print":
            print(message["text"], flush=True)
        elif kind == "spawn":
            child = subprocess.Popen(["sleep", "600"], start_new_session=message["apart"])
            channel.send("spawned", pid=child.pid)
            continue
        elif kind == "meet":
            # Asked to exit, it waits for the others that were asked.
            channel.send("done", what=kind)
            channel.receive()
            open(os.path.join(message["folder"], str(os.getpid())), "w").close()
            while len(os.listdir(message["folder"])) < message["of"]:
                time.sleep(0.01)
            sys.exit()
        elif kind == "close":
            channel.close()
            sleep_for_ever()
        elif kind == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif kind == "hold the interpreter":
            channel.send("holds it")
            ctypes.PyDLL(None).sleep(600)
        said = lambda: channel.send("done", what=kind)
        sleep_for_ever(said) if kind == "hang" else said()
    sys.exit(message.get("status", 0))
"""


@pytest.fixture
def start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], MeasuredProcess]]:
    (tmp_path / "does_as_told.py").write_text(PROGRAM, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    started: list[MeasuredProcess] = []

    def begin() -> MeasuredProcess:
        log = tmp_path / f"{len(started)}.log"
        main = cast("Main", "does_as_told")
        started.append(MeasuredProcess.start(None, main, dict(os.environ), log))
        return started[-1]

    yield begin
    for process in started:
        process.kill("the test is over")
        process.close()


@pytest.fixture
def process(start: Callable[[], MeasuredProcess]) -> MeasuredProcess:
    return start()


def soon() -> float:
    """A deadline that only a process that hangs reaches."""
    return time.monotonic() + 60


def done(process: MeasuredProcess, kind: str, **content: object) -> Message:
    process.send(kind, **content)
    message = process.receive(soon())
    assert message is not None
    return message


def test_a_process_answers_until_it_is_asked_to_exit(process: MeasuredProcess) -> None:
    assert done(process, "print", text="hello\nthere") == {"kind": "done", "what": "print"}
    assert process.receive(time.monotonic()) is None
    assert not process.ended_well
    process.finish(60)
    assert process.ended_well
    assert process.how_it_ended() == "exited with status 0"
    assert (process.last_lines(), process.last_lines(1)) == ("hello\nthere", "there")


def test_several_are_asked_to_exit_at_once(
    start: Callable[[], MeasuredProcess], tmp_path: Path
) -> None:
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    processes = [start() for _ in range(3)]
    gone = start()
    for process in processes:
        done(process, "meet", folder=str(meeting), of=len(processes))
    gone.send("crash")
    # One after the other, the first would wait for the second in vain.
    MeasuredProcess.finish_all([gone, *processes], 60)
    assert [process.how_it_ended() for process in processes] == ["exited with status 0"] * 3
    assert gone.how_it_ended() == "died by SIGSEGV"


def test_one_that_ends_by_itself_says_how_to_whoever_waits(process: MeasuredProcess) -> None:
    process.send("exit", status=7)
    with pytest.raises(ProcessEnded, match=r"^exited with status 7$"):
        process.receive(soon())
    with pytest.raises(ProcessEnded, match=r"^exited with status 7$"):
        process.send("print", text="")
    # What ended by itself was not ended from here.
    process.kill("too late")
    assert process.how_it_ended() == "exited with status 7"
    assert not process.ended_well


def test_one_that_hangs_or_closes_its_channel_shows_its_stacks_and_is_ended(
    start: Callable[[], MeasuredProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, closed = start(), start()
    done(hanging, "hang")
    assert "in sleep_for_ever" in hanging.dump_stacks()
    hanging.finish(0.1)
    assert hanging.how_it_ended() == "stopped: did not exit within 0.1 s of being asked to"
    assert not hanging.ended_well
    closed.send("close")
    monkeypatch.setattr(measured_process, "_DYING_S", 0.1)
    with pytest.raises(ProcessEnded, match=r"^stopped: closed its channel without exiting$"):
        closed.receive(soon())
    assert not any(psutil.pid_exists(process.pid) for process in (hanging, closed))


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    ("end", "how"),
    [
        (lambda process: process.kill("no longer needed"), "stopped: no longer needed"),
        (lambda process: process.finish(60), "exited with status 0"),
        (lambda process: process.send("crash"), "died by SIGSEGV"),
        (lambda process: os.kill(process.pid, signal.SIGKILL), "died by SIGKILL"),
    ],
    ids=["kill", "finish", "crash", "killed"],
)
def test_what_a_process_has_started_ends_with_it(
    process: MeasuredProcess, end: Callable[[MeasuredProcess], None], how: str, *, apart: bool
) -> None:
    child = psutil.Process(done(process, "spawn", apart=apart)["pid"])
    end(process)
    if how.startswith("died"):
        with pytest.raises(ProcessEnded, match=f"^{how}$"):
            process.receive(soon())
    assert process.how_it_ended() == how
    # It has ended before its parent is said to have ended.
    assert not child.is_running()


SESSION = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from pytest_hwqueue.parts.processes.measured_process import MeasuredProcess
folder = Path(sys.argv[1])
process = MeasuredProcess.start(None, "does_as_told", dict(os.environ), folder / "held.log")
process.send("spawn", apart=True)
child = process.receive(None)["pid"]
process.send("hold the interpreter")
process.receive(None)
print(process.pid, child, flush=True)
time.sleep(600)
"""


@pytest.mark.usefixtures("start")
def test_a_killed_session_leaves_no_process_that_holds_its_interpreter(tmp_path: Path) -> None:
    root = str(Path(measured_process.__file__).parents[3])
    with subprocess.Popen(
        [sys.executable, "-c", SESSION, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root},
    ) as session:
        assert session.stdout is not None
        left = [psutil.Process(int(pid)) for pid in session.stdout.readline().split()]
        session.kill()
    assert len(left) == 2
    assert psutil.wait_procs(left, timeout=60)[1] == []


def test_messages_of_several_processes_come_into_one_inbox(
    start: Callable[[], MeasuredProcess],
) -> None:
    inbox: queue.SimpleQueue[tuple[str, Message | None]] = queue.SimpleQueue()
    processes = {"a": start(), "b": start()}
    for name, process in processes.items():
        process.deliver_to(inbox, name)
        process.send("print", text=name)
    told = sorted(inbox.get(timeout=60) for _ in processes)
    assert told == [(name, {"kind": "done", "what": "print"}) for name in ("a", "b")]
    processes["b"].finish(60)
    assert inbox.get(timeout=60) == ("b", None)


def test_a_process_that_cannot_be_started_leaves_no_descriptor(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        MeasuredProcess.start(None, cast("Main", "any"), {}, tmp_path / "missing" / "log")
    assert os.listdir("/proc/self/fd") == before
