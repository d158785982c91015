"""Runs neighbours' programs: found on PATH, bounded in time, in the measured process's session."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path

from pytest_hwqueue.noise.neighbour import NeighbourOrder, NeighbourProgram
from pytest_hwqueue.processes.services import Contending, Stop, run_service, service_environment

# Programs end by their own limit; beyond it and this they are ended.
_GRACE_S = 10
_VERSION_WITHIN_S = 10


def missing(program: str) -> str | None:
    """Return that a program is not on PATH and how to get it, or None."""
    if shutil.which(program) is not None:
        return None
    return (
        f"{program} is not on PATH; install it: apt-get install {program} (Debian, Ubuntu) or "
        f"dnf install {program} (Fedora, RHEL)"
    )


@lru_cache(maxsize=8)
def version(program: str) -> str | None:
    """Return the first line of ``PROGRAM --version``, or None if it prints nothing."""
    try:
        said = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=_VERSION_WITHIN_S,
            stdin=subprocess.DEVNULL, env=service_environment({}), check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return next(iter(said.stdout.splitlines()), None)


@contextmanager
def run_program(
    name: str,
    command: Sequence[str],
    order: NeighbourOrder,
    *,
    stop: signal.Signals = signal.SIGTERM,
    folder: Path | None = None,
    environment: dict[str, str] | None = None,
) -> Iterator[NeighbourProgram]:
    """Run a program during the ``with`` block, within its order's time and cores.

    Args:
        name: of its log file, and in messages.
        command: program and arguments.
        order: of the neighbour.
        stop: signal that ends it, sent to its process group.
        folder: created before it starts, removed after it ends.
        environment: variables to add to this process's.

    Raises:
        ServiceFailed: if it cannot be started.

    """
    runs = run_service(
        name, command, order.logs / f"{name}.log", Stop(stop),
        service_environment(environment or {}), Contending(order.seconds + _GRACE_S, folder),
    )  # fmt: skip
    with ExitStack() as stack:
        with _starting_on(order.cores):
            service = stack.enter_context(runs)
        yield NeighbourProgram(service, tuple(command))


@contextmanager
def _starting_on(cores: Collection[int]) -> Iterator[None]:
    """Give processes started in the ``with`` block these cores."""
    before = os.sched_getaffinity(0)
    if before == set(cores):
        yield
        return
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
