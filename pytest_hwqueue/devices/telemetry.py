"""Clocks, throttling, temperature, power and other processes, read between iterations.

Nothing here runs in a thread or inside a measured interval: the harness calls `TelemetryLog.poll`
where no latency is being taken. Everything is read-only; no clock, limit or mode is ever changed.
What a device does not report is None, with the reason kept once in ``missing``.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Unavailable:
    """There is no telemetry, and why."""

    reason: str


@dataclass(frozen=True)
class OtherProcess:
    """A process on the device that is not part of the measurement."""

    pid: int
    name: str | None
    memory_bytes: int | None


@dataclass(frozen=True)
class TelemetrySample:
    """One reading of an accelerator.

    ``when_ns`` is on the clock of `time.monotonic_ns`. ``violation_counters`` are the driver's
    running totals by reason (NVML: nanoseconds; AMD: firmware ticks); only their differences are
    meaningful. Empty ``throttle_reasons`` mean "none" unless the reader's ``missing`` says
    otherwise.
    """

    when_ns: int
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    temperature_c: float | None
    power_w: float | None
    throttle_reasons: tuple[str, ...] = ()
    other_processes: tuple[OtherProcess, ...] = ()
    violation_counters: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class HostSample:
    """One reading of the host; ``steal_s`` is summed over all cores, since the last reading."""

    when_ns: int
    cpu_clock_mhz: float | None
    load_average_1m: float | None
    steal_s: float | None


@dataclass(frozen=True)
class ThrottledSpan:
    """Latency samples ``first_sample`` up to, not including, ``end_sample`` were throttled."""

    first_sample: int
    end_sample: int
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Telemetry:
    """The readings around one cell.

    ``read_before`` has, for each of ``samples``, the index of the latency sample that came next.
    """

    source: str
    samples: tuple[TelemetrySample | HostSample, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)
    throttled: tuple[ThrottledSpan, ...] = ()
    read_before: tuple[int, ...] = ()

    @property
    def throttled_samples(self) -> int:
        """How many latency samples were taken while the device was throttled."""
        return sum(span.end_sample - span.first_sample for span in self.throttled)


class TelemetryReader(Protocol):
    """Reads one device; never raises for what the device does not report."""

    @property
    def missing(self) -> Mapping[str, str]:
        """Field name to the reason it could not be read, so far."""

    def read(self) -> TelemetrySample | HostSample:
        """Read everything once."""

    def describe(self) -> str:
        """Return what is read, and of which device."""

    def close(self) -> None:
        """Release the vendor's library; a second call does nothing."""


class TelemetryLog:
    """Reads a device between iterations, not too often, and tags throttled samples.

    Args:
        reader: what to read; with `Unavailable`, nothing is read and the reason is kept.
        interval_s: shortest time between two readings, in seconds.
        clock_ns: monotonic nanoseconds.

    """

    def __init__(
        self,
        reader: TelemetryReader | Unavailable,
        *,
        interval_s: float = 0.25,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._reader = reader
        self._interval_ns = interval_s * 1e9
        self._clock_ns = clock_ns
        self._next_ns: float | None = None
        self._read_before: list[int] = []
        self._samples: list[TelemetrySample | HostSample] = []

    def poll(self, sample_index: int, force: bool = False) -> bool:
        """Read if it is due; return whether it read.

        Judging latency samples takes readings on both sides, so force one before the first sample
        and one after the last.

        Args:
            sample_index: index of the next latency sample, that is the number finished so far.
            force: read whatever the time.

        Raises:
            ValueError: if ``sample_index`` went backwards.

        """
        if self._read_before and sample_index < self._read_before[-1]:
            raise ValueError(f"sample {sample_index} comes before {self._read_before[-1]}")
        if isinstance(self._reader, Unavailable):
            return False
        if not force and self._next_ns is not None and self._clock_ns() < self._next_ns:
            return False
        self._samples.append(self._reader.read())
        self._read_before.append(sample_index)
        # From the end of the reading, so a slow one does not eat the time between two.
        self._next_ns = self._clock_ns() + self._interval_ns
        return True

    def finish(self) -> Telemetry:
        """Return the readings so far. The reader stays open; its opener closes it."""
        if isinstance(self._reader, Unavailable):
            return Telemetry(source="none", missing={"telemetry": self._reader.reason})
        return Telemetry(
            source=self._reader.describe(),
            samples=tuple(self._samples),
            missing=dict(self._reader.missing),
            throttled=throttled_spans(self._read_before, self._samples),
            read_before=tuple(self._read_before),
        )


def throttled_spans(
    read_before: Sequence[int], samples: Sequence[TelemetrySample | HostSample]
) -> tuple[ThrottledSpan, ...]:
    """Tag the latency samples between two readings that indicate throttling.

    They do if either shows a throttle reason, or if a violation counter grew from one to the other,
    which catches throttling that came and went in between.

    Args:
        read_before: for each reading, the index of the latency sample that came next.
        samples: the readings, in order.

    """
    spans: list[ThrottledSpan] = []
    readings = zip(read_before, samples, strict=True)
    for (first, before), (end, after) in itertools.pairwise(readings):
        if not (isinstance(before, TelemetrySample) and isinstance(after, TelemetrySample)):
            continue
        old = before.violation_counters
        new = after.violation_counters
        grown = [name for name in old.keys() & new.keys() if new[name] > old[name]]
        reasons = tuple(sorted({*before.throttle_reasons, *after.throttle_reasons, *grown}))
        if not reasons or first == end:
            continue
        joins = bool(spans) and (spans[-1].end_sample, spans[-1].reasons) == (first, reasons)
        start = spans.pop().first_sample if joins else first
        spans.append(ThrottledSpan(start, end, reasons))
    return tuple(spans)
