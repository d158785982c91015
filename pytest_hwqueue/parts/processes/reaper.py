"""Process groups, and the end of all that belongs to them.

A process's descendants may live in sessions of their own, and outlive it however it ends. A parent
that is a subreaper inherits them, and ends them before it tells that the process has ended. It also
ends a process that nobody waits for any more, which needs nothing of the process itself: not its
interpreter's lock, nor a thread.

The fork server is such a parent. A process started anew gets one of its own (`guardian`).
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
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
    set_death_signal(signal.SIGKILL)


def set_death_signal(number: int) -> None:
    """Have the kernel send this process a signal once the thread that started it has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def keep(end: Callable[[], None] | None = None, held: int = -1) -> int:
    """Continue in a child of this process, which itself only ends what that child may leave.

    Killed, a subreaper ends nothing, and its descendants are nobody's. Of the two, each ends all if
    the other is killed: this process by itself, and the child because it looks at its parent, as
    `Reaper` does.

    Args:
        end: ends what the child has left; `end_children` by default.
        held: a descriptor that this process keeps open.

    Returns:
        in the child, the process id of its parent.

    """
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        # A wake-up: whoever is stuck in C has started nothing yet.
        set_death_signal(signal.SIGTERM)
        return parent
    become_subreaper()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: kill(child, signal.SIGTERM))
    # Pipes end with the child, which has them too; without /proc, with this process right after it.
    with suppress(FileNotFoundError):
        for descriptor in map(int, os.listdir("/dev/fd")):
            # Listing them took one, which is closed already.
            with suppress(OSError):
                if descriptor not in (sys.stderr.fileno(), held):
                    os.close(descriptor)
    _, how = os.waitpid(child, 0)
    (end or end_children)()
    status = os.waitstatus_to_exitcode(how)
    os._exit(status if status >= 0 else 128 - status)


def end_children(but: frozenset[int] = frozenset(), leaving_s: float = 0.0) -> None:
    """Kill and reap this process's children, and those that it inherits as they end.

    All descendants end in a subreaper.

    Args:
        but: process ids of children to leave alone.
        leaving_s: how long they may take to end by themselves.

    """
    patient_until = time.monotonic() + leaving_s
    while (found := children() - but) and time.monotonic() < patient_until + _DYING_S:
        for pid in found:
            if time.monotonic() >= patient_until:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(_POLL_S)


class Reaper:
    """Follows processes that this one has started, in a process that does nothing else."""

    def __init__(self, parent: int, watched: int, folder: Path) -> None:
        """Begin.

        Args:
            parent: which `keep` returned; once it has gone, `turn` ends all.
            watched: a descriptor that `turn` also waits for.
            folder: all that the processes leave in it goes with their end.

        """
        become_subreaper()
        self._parent, self._folder = parent, folder
        # Where to write the exit status of each process that runs.
        self._running: dict[int, int] = {}
        self._poll = select.poll()
        self._woken, self._wake = os.pipe()
        for each in (self._woken, self._wake):
            os.set_blocking(each, False)
        for each in (self._woken, watched):
            self._poll.register(each, select.POLLIN)
        signal.set_wakeup_fd(self._wake)
        # The terminal's Ctrl-C is for the session, which ends what it has started; handlers, unlike
        # signals that are ignored, are not passed on to programs.
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _nothing)
        self._end_if_alone()

    def follow(self, pid: int, status: int) -> None:
        """Follow a child.

        Args:
            pid: its process id.
            status: a pipe, to which go this process's id and the child's and, at the child's end,
                its exit status. Once nobody reads from it any more, the child is ended.

        """
        self._running[pid] = status
        # Without an event to wait for, poll still tells that the readers have gone.
        self._poll.register(status, 0)
        tell(status, os.getpid(), pid)

    def turn(self) -> set[int]:
        """Wait until something happens; return which of the watched descriptors are ready."""
        ready = {descriptor for descriptor, _ in self._poll.poll()}
        if self._woken in ready:
            os.read(self._woken, 1 << 12)
            self._end_if_alone()
        for pid, status in list(self._running.items()):
            if status in ready:
                self._poll.unregister(status)
                kill(pid)
            ended, how = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._running[pid]
                end_children(frozenset(self._running))
                with suppress(KeyError):
                    self._poll.unregister(status)
                tell(status, os.waitstatus_to_exitcode(how))
                os.close(status)
        return ready - {self._woken}

    def end(self) -> None:
        """Kill all children and what they have started; remove their folder."""
        for pid in self._running:
            kill(pid)
        end_children()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end_if_alone(self) -> None:
        if os.getppid() != self._parent:
            self.end()
            os._exit(1)

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


def children() -> set[int]:
    """Return the process ids of this process's children, inherited ones among them."""
    lists = Path("/proc/self/task").glob("*/children")
    return {int(pid) for each in lists for pid in each.read_text(encoding="ascii").split()}


def kill(pid: int, number: int = signal.SIGKILL, *, alone: bool = True) -> None:
    """Send a signal to a process's group, and with ``alone`` to itself too, which has not ended."""
    for end in (os.killpg, os.kill) if alone else (os.killpg,):
        # It makes a group of its own only once it has begun.
        with suppress(ProcessLookupError):
            end(pid, number)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Do nothing: the wake-up descriptor is written to because a handler exists."""


def tell(descriptor: int, *numbers: int) -> None:
    """Write numbers as a line into a pipe that may have no reader any more."""
    try:
        os.write(descriptor, f"{' '.join(map(str, numbers))}\n".encode())
    except BrokenPipeError:
        # Whoever asked for the process no longer wants to know: the session is ending.
        return


Handler = Callable[[int, FrameType | None], None] | signal.Handlers
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Time to end in its own way: pytest ends its workers and writes its session file.
_GRACE_S = 10.0


def run(command: Sequence[str], folder: Path, environment: Mapping[str, str], output: Path) -> int:
    """Run a command to its end; return its status, negative if a signal ended it.

    Anything that interrupts the wait also ends the command and its process group.

    Args:
        command: program and arguments.
        folder: to run in.
        environment: its whole environment.
        output: file for its output, both streams.

    Raises:
        OSError: if it cannot be started.

    """
    # Not for the guardian, which starts quickly.
    from pytest_hwqueue.data.safe_files import open_output

    with open_output(output) as file:
        process = subprocess.Popen(
            command, cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.STDOUT,
            preexec_fn=_apart,  # noqa: PLW1509 - this process has no threads
        )  # fmt: skip
    try:
        return process.wait()
    except BaseException:
        _end(process)
        raise


_FRAMES = 6
# A test may write any amount; what it wrote last says how it ended.
_LOOKED_AT_BYTES = 1 << 17


def innermost_frames(dump: str) -> str:
    """Shorten each thread's stack in faulthandler's dump to its innermost frames."""
    kept: list[str] = []
    frames = 0
    for line in dump.splitlines():
        if line.startswith("Extension modules:"):
            continue
        frames = frames + 1 if line.startswith("  File") else 0
        if frames <= _FRAMES:
            kept.append(line)
        elif frames == _FRAMES + 1:
            kept.append("  …")
    return "\n".join(kept)


def last_lines(log: Path, count: int = 12) -> str:
    """Return the last lines of a process's log; empty if it never wrote one."""
    if not log.exists():
        return ""
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - _LOOKED_AT_BYTES))
        text = file.read().decode(errors="replace")
    return "\n".join(innermost_frames(text).splitlines()[-count:])


def signals_interrupt() -> AbstractContextManager[None]:
    """Let Ctrl-C, a request to terminate, and a closed terminal raise KeyboardInterrupt.

    Its argument is the number of the signal.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(number)

    return _handled(interrupt)


def undisturbed() -> AbstractContextManager[None]:
    """Keep signals from interrupting a clean-up."""
    return _handled(signal.SIG_IGN)


@contextmanager
def _handled(handler: Handler) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in _ENDING}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def _apart() -> None:
    # Not a session of its own: the kernel would schedule it apart from its neighbours.
    os.setpgrp()
    # Killed, this process can ask nobody to end; the command would go on.
    die_with_parent()


def _end(process: subprocess.Popen[bytes]) -> None:
    with undisturbed():
        # Gone already, or not going: the second signal is for whoever of its group is left.
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGINT)
            process.wait(_GRACE_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
