"""The traces of a measuring process: its last lines, its stacks, how it ended."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil

_FRAMES = 6
_WRITING_S = 5.0
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


def ending(status: int) -> str:
    """Describe how a process ended, from its exit status as `subprocess` reports it."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"died by {signal.Signals(-status).name}"
    except ValueError:
        return f"died by signal {-status}"


def last_lines(log: Path, count: int = 50) -> str:
    """Return the last lines of a process's log; empty if it never wrote one."""
    if not log.exists():
        return ""
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - _LOOKED_AT_BYTES))
        text = file.read().decode(errors="replace")
    return "\n".join(innermost_frames(text).splitlines()[-count:])


def stacks(pid: int, log: Path) -> str:
    """Have a process write all its threads' stacks to its log; return them."""
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
