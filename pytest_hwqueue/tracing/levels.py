"""Finds the best available level of CPU tracing, and why better ones are not available."""

from __future__ import annotations

import errno
import resource
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from pytest_hwqueue.tracing.perf_events import RING_BYTES, PerfTracer
from pytest_hwqueue.tracing.tracepoints import NoTracepoints, read_tracepoints

Level = Literal["perf-system", "perf-self", "rusage", "none"]


@dataclass(frozen=True)
class Refusal:
    """Why a level is not available.

    Attributes:
        level: the one tried.
        errno: of the failed system call; None for another reason.
        reason: as text.

    """

    level: Level
    errno: int | None
    reason: str


@dataclass(frozen=True)
class Tracing:
    """The best available level.

    Attributes:
        level: ``perf-system`` sees switches, what ran instead, wake-ups and interrupts;
            ``perf-self`` sees switches, ``rusage`` only counts.
        refused: the better levels, in the order tried.
        perf: the tracer of the first two, open but not started; the caller closes it.

    """

    level: Level
    refused: tuple[Refusal, ...]
    perf: PerfTracer | None


def open_tracing(
    tids: Collection[int] | None = None,
    ring_bytes: int = RING_BYTES,
) -> Tracing:
    """Open the best level that this process may use; a missing permission never raises.

    Args:
        tids: threads of this process to trace; all by default.
        ring_bytes: of each CPU's ring.

    """
    refused: list[Refusal] = []
    try:
        return Tracing("perf-system", (), PerfTracer(tids, read_tracepoints(), ring_bytes))
    except NoTracepoints as error:
        refused.append(Refusal("perf-system", None, str(error)))
    except OSError as error:
        refused.append(Refusal("perf-system", error.errno, _explained(error)))
    try:
        return Tracing("perf-self", tuple(refused), PerfTracer(tids, None, ring_bytes))
    except OSError as error:
        refused.append(Refusal("perf-self", error.errno, _explained(error)))
    if _usage_counts():
        return Tracing("rusage", tuple(refused), None)
    refused.append(Refusal("rusage", None, "getrusage counts no switch of a thread that slept"))
    return Tracing("none", tuple(refused), None)


def _explained(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            f"{error.strerror}: needs root or CAP_PERFMON, or for one's own threads "
            "kernel.perf_event_paranoid of at most 2, and no filter of system calls against it"
        )
    if error.errno == errno.EMFILE:
        return f"{error.strerror}: raise the hard limit of open files (ulimit -Hn)"
    return str(error.strerror)


def _usage_counts() -> bool:
    """Return whether this kernel counts switches; sandboxes always report 0."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    time.sleep(1e-3)
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw > before
