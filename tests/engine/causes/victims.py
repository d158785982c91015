"""Starting the victim, and the conditions under which there is anything to see."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import pytest_hwqueue
from pytest_hwqueue.data.metrics.cpu_events import Interrupt, OffCpu
from pytest_hwqueue.engine.causes.perf_records import PLACES

_VICTIM = Path(__file__).parent / "victim.py"
_SOURCES = Path(pytest_hwqueue.__file__).parents[1]


@cache
def mounting() -> tuple[str, ...]:
    """A command that mounts tracefs for what it runs, in a namespace of its own.

    Empty where it is mounted, or cannot be.
    """
    place = PLACES[0]
    command = ("unshare", "--mount", "sh", "-c", f'mount -t tracefs none {place} && exec "$@"', "-")
    if (place / "events").exists() or shutil.which("unshare") is None:
        return ()
    done = subprocess.run([*command, "true"], check=False, capture_output=True)
    return command if done.returncode == 0 else ()


@cache
def refused_here() -> list[str]:
    """Why nothing more can be seen here: of tracepoints, then of switches alone."""
    with victim("spin", "tracepoints", 0.01, ring_bytes=1 << 16) as running:
        return [one["reason"] for one in running.report()["refused"]]


def need(rights: str) -> None:
    """Skip a test where the kernel does not let us have "tracepoints", or "switches" alone."""
    if len(refused_here()) > ["tracepoints", "switches"].index(rights):
        pytest.skip(f"{rights} are not to be had here: {'; '.join(refused_here())}")


@dataclass
class Victim:
    """A victim that has begun its job."""

    process: subprocess.Popen[str]

    def report(self) -> dict[str, Any]:
        """Wait for its end; return what it saw."""
        assert self.process.stdout is not None
        # What came together with the first line is read ahead already: `communicate` misses it.
        output, errors = self.process.stdout.read(), self.process.communicate(timeout=60)[1]
        assert self.process.returncode == 0, errors
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
        if "off_cpu" in found:
            found["off_cpu"] = [OffCpu(**one) for one in found["off_cpu"]]
            interrupts = found["interrupts"]
            found["interrupts"] = interrupts and [Interrupt(**one) for one in interrupts]
        return found


@contextmanager
def victim(
    job: str, rights: str, seconds: float,
    *, ring_bytes: int = 1 << 22, cpu: int | None = None, command: Sequence[str] = (),
) -> Iterator[Victim]:  # fmt: skip
    """Start a victim, by a command if one is given, and wait until it has begun to trace."""
    pin = () if cpu is None else ("taskset", "-c", str(cpu))
    given = [sys.executable, str(_VICTIM), job, rights, str(seconds), str(ring_bytes)]
    with subprocess.Popen(
        [*pin, *mounting(), *command, *given], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=os.environ | {"PYTHONPATH": str(_SOURCES)},
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line == "started\n", f"{line!r}\n{process.communicate()[1]}"
            yield Victim(process)
        finally:
            process.kill()
