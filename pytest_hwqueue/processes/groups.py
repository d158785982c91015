"""Commands in their own process groups, so that they end, whatever ends this process."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

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
    with open(output, "wb") as file:
        process = subprocess.Popen(
            command, cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.STDOUT,
            # Not a session of its own: the kernel would schedule it apart from its neighbours.
            preexec_fn=os.setpgrp,  # noqa: PLW1509 - this process has no threads
        )  # fmt: skip
    try:
        return process.wait()
    except BaseException:
        _end(process)
        raise


def last_lines(output: Path, count: int = 12) -> str:
    """Return the last lines of a command's output."""
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-count:])


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Let Ctrl-C, a request to terminate, and a closed terminal raise KeyboardInterrupt.

    Its argument is the number of the signal.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(number)

    before = {number: signal.signal(number, interrupt) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep signals from interrupting a clean-up."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(process: subprocess.Popen[bytes]) -> None:
    with undisturbed():
        # Gone already, or not going: the second signal is for whoever of its group is left.
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGINT)
            process.wait(_GRACE_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
