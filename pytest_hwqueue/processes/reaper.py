"""The parent of measuring processes: tells how each ended, and leaves nothing that it has started.

A process's descendants may live in sessions of their own, and outlive it however it ends. A parent
that is a subreaper inherits them, and ends them before it tells that the process has ended. It also
ends a process that nobody waits for any more, which needs nothing of the process itself: not its
interpreter's lock, nor a thread.

The fork server is such a parent. A process started anew gets one of its own (`main`).
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# How long killed processes may take to go, in seconds: some sit in a driver.
_DYING_S = 2.0
_POLL_S = 0.002


def become_subreaper() -> None:
    """Inherit the processes that descendants of this process leave behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Have the kernel kill this process with the thread that started it, even while stuck in C."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_children(but: frozenset[int] = frozenset()) -> None:
    """Kill and reap this process's children, and those that it inherits as they end.

    All descendants end in a subreaper.

    Args:
        but: process ids of children to leave alone.

    """
    deadline = time.monotonic() + _DYING_S
    while (found := _children() - but) and time.monotonic() < deadline:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in found:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(_POLL_S)


class Reaper:
    """Follows processes that this one has started, in a process that does nothing else."""

    def __init__(self) -> None:
        become_subreaper()
        # Where to write the exit status of each process that runs.
        self._running: dict[int, int] = {}
        self._poll = select.poll()
        self._woken, self._wake = os.pipe()
        for each in (self._woken, self._wake):
            os.set_blocking(each, False)
        self._poll.register(self._woken, select.POLLIN)
        signal.set_wakeup_fd(self._wake)
        # The terminal's Ctrl-C is for the session, which ends what it has started; handlers, unlike
        # signals that are ignored, are not passed on to programs.
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _nothing)

    @property
    def running(self) -> bool:
        """Whether a process still runs."""
        return bool(self._running)

    def watch(self, descriptor: int) -> None:
        """Have `turn` also wait for a descriptor."""
        self._poll.register(descriptor, select.POLLIN)

    def follow(self, pid: int, status: int) -> None:
        """Follow a child.

        Args:
            pid: its process id.
            status: a pipe, to which go its process id and, at its end, its exit status. Once nobody
                reads from it any more, the child is ended.

        """
        self._running[pid] = status
        # Without an event to wait for, poll still tells that the readers have gone.
        self._poll.register(status, 0)
        _tell(status, pid)

    def turn(self) -> set[int]:
        """Wait until something happens; return which of the watched descriptors are ready."""
        ready = {descriptor for descriptor, _ in self._poll.poll()}
        if self._woken in ready:
            os.read(self._woken, 1 << 12)
        for pid, status in list(self._running.items()):
            if status in ready:
                self._poll.unregister(status)
                _kill(pid)
            ended, how = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._running[pid]
                end_children(frozenset(self._running))
                with suppress(KeyError):
                    self._poll.unregister(status)
                _tell(status, os.waitstatus_to_exitcode(how))
                os.close(status)
        return ready - {self._woken}

    def end(self) -> None:
        """Kill all children and what they have started."""
        for pid in self._running:
            _kill(pid)
        end_children()

    def forget(self) -> None:
        """In a forked child: undo all of this, and end with the parent."""
        signal.set_wakeup_fd(-1)
        for each in (self._woken, self._wake, *self._running.values()):
            os.close(each)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        die_with_parent()
        # What it leaves is its parent's to end; what its descendants leave, its own.
        become_subreaper()


def main() -> None:
    """Start one program and follow it to its end.

    The arguments are two descriptors: of a file with the order, in JSON (``command``,
    ``environment``, ``descriptors`` to keep open), and of the pipe that `Reaper.follow` describes.
    """
    order_file, status = map(int, sys.argv[-2:])
    reaper = Reaper()
    with open(order_file, encoding="utf-8") as file:
        order = json.load(file)
    program = subprocess.Popen(
        order["command"],
        stdin=subprocess.DEVNULL,
        env=order["environment"],
        pass_fds=order["descriptors"],
        preexec_fn=die_with_parent,  # noqa: PLW1509 - this process has no threads
    )
    for each in order["descriptors"]:
        os.close(each)
    reaper.follow(program.pid, status)
    while reaper.running:
        reaper.turn()
    # It is reaped already.
    program.returncode = 0


def _children() -> set[int]:
    lists = Path("/proc/self/task").glob("*/children")
    return {int(pid) for each in lists for pid in each.read_text(encoding="ascii").split()}


def _kill(pid: int) -> None:
    for end in (os.killpg, os.kill):
        # It makes a group of its own only once it has begun.
        with suppress(ProcessLookupError):
            end(pid, signal.SIGKILL)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Do nothing: the wake-up descriptor is written to because a handler exists."""


def _tell(descriptor: int, number: int) -> None:
    try:
        os.write(descriptor, f"{number}\n".encode())
    except BrokenPipeError:
        # Whoever asked for the process no longer wants to know: the session is ending.
        return
