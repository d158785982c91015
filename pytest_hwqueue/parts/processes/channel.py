"""Messages between processes, and what a dead one has left.

A worker runs users' code, which may write to, or close, descriptors that it has not opened. So the
channel has descriptors far above those a program gets, and each of its lines begins with a key; a
line without it is damage, and costs the process, not the session. Such code also replaces functions
of modules, so those used here are imported by name.
"""

from __future__ import annotations

import fcntl
import os
import resource
import secrets
import select
import signal
import sys
import threading
import time
from json import dumps, loads
from pathlib import Path
from typing import Any

from pytest_hwqueue.data.errors import HwqError
from pytest_hwqueue.parts.processes.reaper import innermost_frames

# Room below the highest descriptor that a process may have, or that such code is likely to try.
_ROOM = 16
_HIGHEST = 4096


def moved_up(descriptor: int) -> int:
    """Move a descriptor to the top of those that this process may have; return its new number."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    top = _HIGHEST if limit == resource.RLIM_INFINITY else min(limit, _HIGHEST)
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, top - _ROOM)
    os.close(descriptor)
    return moved


def keep_output() -> None:
    """Have this process's ``sys.stdout`` and ``sys.stderr`` outlive their descriptors 1 and 2."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        getattr(sys, name).flush()
        kept = moved_up(os.dup(descriptor))
        # Open as long as the process.
        stream = open(kept, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def standard_streams() -> list[tuple[int, int] | None]:
    """Return which files descriptors 0 to 2 are; None for one that is closed."""
    found: list[tuple[int, int] | None] = []
    for descriptor in range(3):
        try:
            status = os.fstat(descriptor)
        except OSError:
            found.append(None)
        else:
            found.append((status.st_dev, status.st_ino))
    return found


Message = dict[str, Any]

_KEY_BYTES = 16


class ProcessEnded(HwqError):
    """A process has ended while needed, or did not get ready; the text, if any, says how."""


class Channel:
    """Sends and receives messages; each is one JSON object with a ``kind``."""

    def __init__(self, read_descriptor: int, write_descriptor: int, key: bytes = b"") -> None:
        """Take over two descriptors.

        Args:
            read_descriptor: of a pipe or socket.
            write_descriptor: likewise.
            key: begins each line, in both directions.

        """
        self._read = read_descriptor
        self._write = write_descriptor
        self._key = key
        # Grows in place: a message of many megabytes is not copied with each of its parts.
        self._buffer = bytearray()
        self._sending = threading.Lock()
        self._pid = os.getpid()

    @classmethod
    def to_process(cls, read_descriptor: int, write_descriptor: int) -> Channel:
        """Open a process's channel; the process joins with `from_process`."""
        key = secrets.token_hex(8).encode()
        os.write(write_descriptor, key)
        return cls(read_descriptor, write_descriptor, key)

    @classmethod
    def from_process(cls, read_descriptor: int, write_descriptor: int) -> Channel:
        """Join the channel that `to_process` opened, out of the reach of users' code.

        Raises:
            ProcessEnded: if the other process has gone.

        """
        key = b""
        while len(key) < _KEY_BYTES:
            data = os.read(read_descriptor, _KEY_BYTES - len(key))
            if not data:
                raise ProcessEnded
            key += data
        return cls(moved_up(read_descriptor), moved_up(write_descriptor), key)

    def send(self, kind: str, **content: object) -> None:
        """Send a message.

        Raises:
            ProcessEnded: if the other process has gone.
            RuntimeError: in a forked child, whose messages would be taken for its parent's.

        """
        if os.getpid() != self._pid:
            raise RuntimeError("this process was forked from the one that measures: it cannot")
        line = self._key + dumps({"kind": kind, **content}, default=str).encode() + b"\n"
        with self._sending:
            view = memoryview(line)
            try:
                while view:
                    view = view[os.write(self._write, view) :]
            except BrokenPipeError as error:
                raise ProcessEnded from error

    def receive(self, deadline: float | None = None) -> Message | None:
        """Wait for the next message until ``deadline`` (time.monotonic()); None when it passes.

        Raises:
            ProcessEnded: if the other process has closed its end.
            HwqError: if something else has written to it.

        """
        # Unlike epoll, poll needs no descriptor of its own.
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        looked_at = 0
        while (end := self._buffer.find(b"\n", looked_at)) < 0:
            looked_at = len(self._buffer)
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not poll.poll(None if left_s is None else left_s * 1000):
                return None
            data = os.read(self._read, 1 << 20)
            if not data:
                raise ProcessEnded
            self._buffer += data
            begin = bytes(self._buffer[: len(self._key)])
            if not self._key.startswith(begin):
                raise self._damaged(begin)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        if not line.startswith(self._key):
            raise self._damaged(line)
        try:
            message: Message = loads(line[len(self._key) :])
        except ValueError:
            raise self._damaged(line[len(self._key) :]) from None
        return message

    def _damaged(self, found: bytes) -> HwqError:
        return HwqError(
            f"something in it writes to descriptors that it has not opened: {found[:40]!r} arrived "
            "in place of a message"
        )

    def close(self) -> None:
        """Close both ends."""
        os.close(self._read)
        os.close(self._write)


_WRITING_S = 5.0


def ending(status: int) -> str:
    """Describe how a process ended, from its exit status as `subprocess` reports it."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"died by {signal.Signals(-status).name}"
    except ValueError:
        return f"died by signal {-status}"


def stacks(pid: int, log: Path) -> str:
    """Have a process write all its threads' stacks to its log; return them."""
    import psutil

    before = log.stat().st_size
    os.kill(pid, signal.SIGUSR1)
    # The dump is written by a signal handler, also while the interpreter is stuck in C.
    deadline = time.monotonic() + _WRITING_S
    size = before
    while time.monotonic() < deadline and psutil.pid_exists(pid):
        time.sleep(0.2)
        now = log.stat().st_size
        if now > before and now == size:
            break
        size = now
    return innermost_frames(log.read_bytes()[before:].decode(errors="replace"))
