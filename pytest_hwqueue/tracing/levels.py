"""By what means a pass is traced: the level of the CPU's trace, and the clocks held to each other.

Kineto stamps with CLOCK_REALTIME, everything else here with CLOCK_MONOTONIC.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from pytest_hwqueue.tracing.perf_events import RING_BYTES, PerfTracer
from pytest_hwqueue.tracing.perf_records import Tracepoint, read_tracepoints

Level = Literal["perf", "rusage", "none", "perf-system", "perf-self"]
"""The last two are what records made before call ``perf``, with and without tracepoints."""


@dataclass(frozen=True)
class Refusal:
    """Why a level, or a part of it, is not available.

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
        level: ``perf`` sees switches, and with tracepoints what ran instead, wake-ups and
            interrupts; ``rusage`` is what /proc counts; ``none`` is nothing.
        refused: what would see more, in the order tried.
        perf: the tracer, open but not started; the caller closes it.

    """

    level: Level
    refused: tuple[Refusal, ...]
    perf: PerfTracer | None


def open_tracing(tids: Collection[int] | None = None, ring_bytes: int = RING_BYTES) -> Tracing:
    """Open the best level that this process may use; a missing permission never raises.

    Args:
        tids: threads of this process to trace; all by default.
        ring_bytes: of each CPU's ring.

    """
    refused: list[Refusal] = []
    ways: list[Callable[[], Mapping[str, Tracepoint] | None]] = [read_tracepoints, lambda: None]
    for tracepoints in ways:
        try:
            return Tracing("perf", tuple(refused), PerfTracer(tids, tracepoints(), ring_bytes))
        except OSError as error:
            refused.append(Refusal("perf", error.errno, _explained(error)))
    return Tracing("rusage", tuple(refused), None)


def _explained(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            f"{error.strerror}: needs root or CAP_PERFMON, or for one's own threads "
            "kernel.perf_event_paranoid of at most 2, and no filter of system calls against it"
        )
    if error.errno == errno.EMFILE:
        return f"{error.strerror}: raise the hard limit of open files (ulimit -Hn)"
    return str(error.strerror)


@dataclass(frozen=True)
class ClockOffset:
    """One measurement.

    Attributes:
        when_ns: of CLOCK_MONOTONIC, `time.monotonic_ns`.
        offset_ns: CLOCK_REALTIME less CLOCK_MONOTONIC at that moment.
        uncertainty_ns: the true offset is within this distance.

    """

    when_ns: int
    offset_ns: int
    uncertainty_ns: int


@dataclass(frozen=True)
class ClockPair:
    """Offsets before and after a run, and the conversion between them.

    The kernel slews both clocks alike and steps only CLOCK_REALTIME, so the two offsets agree
    within their uncertainty unless someone set the clock in between.
    """

    before: ClockOffset
    after: ClockOffset

    @property
    def uncertainty_ns(self) -> int:
        """The largest error of `to_monotonic` between the two, in either direction.

        It is the larger uncertainty plus the whole change of the offset, since it is unknown when
        it changed.
        """
        changed = abs(self.after.offset_ns - self.before.offset_ns)
        return max(self.before.uncertainty_ns, self.after.uncertainty_ns) + changed

    def to_monotonic(self, realtime_ns: int) -> int:
        """Convert a CLOCK_REALTIME stamp to CLOCK_MONOTONIC, interpolating the offset.

        Before the first measurement and after the second, the nearer one's offset applies.
        """
        first, last = self.before, self.after
        share = (realtime_ns - first.offset_ns - first.when_ns) / (last.when_ns - first.when_ns)
        change = last.offset_ns - first.offset_ns
        return realtime_ns - first.offset_ns - round(min(max(share, 0.0), 1.0) * change)


def measure_offset(brackets: int = 500) -> ClockOffset:
    """Measure the offset now, in about a microsecond for each bracket.

    A bracket is a stamp of CLOCK_REALTIME between two of CLOCK_MONOTONIC. The narrowest is
    best: it was not interrupted, and the offset belongs to some moment within it.
    """
    begin, middle, end = min(
        ((time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(brackets)),
        key=lambda one: one[2] - one[0],
    )
    centre = (begin + end) // 2
    return ClockOffset(centre, middle - centre, (end - begin + 1) // 2)
