"""Threads of this process, and how far the clocks are apart that stamp a trace.

Kineto stamps with CLOCK_REALTIME, everything else here with CLOCK_MONOTONIC.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass


def own_threads() -> list[int]:
    """Return the ids of the threads of this process."""
    return sorted(int(name) for name in os.listdir("/proc/self/task"))


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
