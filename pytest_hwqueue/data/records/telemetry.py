"""Clocks, throttling, temperature, power and other processes, as records keep them.

What a device does not report is None, with the reason kept once in ``missing``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median


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
    meaningful. ``xid_errors`` are NVIDIA's numbers of what the driver has reported since the last
    reading, whichever process it concerns. Empty ``throttle_reasons`` and ``xid_errors`` mean
    "none" unless the reader's ``missing`` says otherwise.
    """

    when_ns: int
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    temperature_c: float | None
    power_w: float | None
    throttle_reasons: tuple[str, ...] = ()
    other_processes: tuple[OtherProcess, ...] = ()
    violation_counters: dict[str, int] = field(default_factory=dict)
    xid_errors: tuple[int, ...] = ()


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

    @property
    def sm_clock_mhz(self) -> float | None:
        """The median clock of the multiprocessors; None where no reading has it."""
        read = [each.sm_clock_mhz for each in self.samples if isinstance(each, TelemetrySample)]
        known = [clock for clock in read if clock is not None]
        return median(known) if known else None

    @property
    def xid_errors(self) -> list[int]:
        """The numbers of all Xid errors that the driver reported meanwhile, sorted."""
        of_device = [each for each in self.samples if isinstance(each, TelemetrySample)]
        return sorted({number for sample in of_device for number in sample.xid_errors})
