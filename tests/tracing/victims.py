"""Starting the victim, and the conditions under which there is anything to see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import pytest_hwqueue
from pytest_hwqueue.metrics.cpu_events import Interrupt, OffCpu
from pytest_hwqueue.tracing.levels import open_tracing

_VICTIM = Path(__file__).parent / "victim.py"
_SOURCES = Path(pytest_hwqueue.__file__).parents[1]


@cache
def level_here() -> tuple[str, str]:
    """The best level that this process may use, and why not a better one."""
    opened = open_tracing()
    if opened.perf is not None:
        opened.perf.close()
    return opened.level, "; ".join(refusal.reason for refusal in opened.refused)


def need(level: str) -> None:
    """Skip a test where the kernel does not let us have a level of perf events."""
    here, why = level_here()
    better = ("perf-system",) if level == "perf-system" else ("perf-system", "perf-self")
    if here not in better:
        pytest.skip(f"{level} is not to be had here: {why}")


@dataclass
class Victim:
    """A victim that has begun its job."""

    process: subprocess.Popen[str]

    def report(self) -> dict[str, Any]:
        """Wait for its end; return what it saw."""
        output, errors = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, errors
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
        if "off_cpu" in found:
            found["off_cpu"] = [OffCpu(**one) for one in found["off_cpu"]]
            found["interrupts"] = found["interrupts"] and [
                Interrupt(**one) for one in found["interrupts"]
            ]
        return found


@contextmanager
def victim(
    job: str,
    level: str,
    seconds: float,
    *,
    ring_bytes: int = 1 << 22,
    cpu: int | None = None,
    under: tuple[str, ...] = (),
) -> Iterator[Victim]:
    """Start a victim and wait until it has begun to trace.

    ``under`` is a command that runs it.
    """
    environment = os.environ | {"PYTHONPATH": str(_SOURCES), "RING_BYTES": str(ring_bytes)}
    pin = () if cpu is None else ("taskset", "-c", str(cpu))
    command = [*pin, *under, sys.executable, str(_VICTIM), job, level, str(seconds)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if line != "started\n":
            raise AssertionError(f"the victim did not start: {line!r}\n{process.communicate()[1]}")
        yield Victim(process)
    finally:
        process.kill()
        process.communicate()


def report_of(command: list[str]) -> dict[str, Any]:
    """Run a victim that may not get to trace; return what it says."""
    done = subprocess.run(
        [*command, sys.executable, str(_VICTIM), "spin", "perf-system", "0.01"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": str(_SOURCES), "RING_BYTES": "65536"},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
