"""Clocks, throttling, temperature, power and other processes, read between iterations.

Nothing here runs in a thread or inside a measured interval: the harness calls `TelemetryLog.poll`
where no latency is being taken. Everything is read-only; no clock, limit or mode is ever changed.
What a device does not report is None, with the reason kept once in ``missing``.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pytest_hwqueue.data.records.telemetry import (
    HostSample,
    OtherProcess,
    Telemetry,
    TelemetrySample,
    ThrottledSpan,
)
from pytest_hwqueue.parts.devices.kinds import VendorError, open_amdsmi, open_nvml


@dataclass(frozen=True)
class Unavailable:
    """There is no telemetry, and why."""

    reason: str


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


_T = TypeVar("_T")
_FIRST_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO in the kernel's proc_ns.h

# Bits of nvmlDeviceGetCurrentClocksEventReasons that slow the device down. Left out: idle,
# application clocks and display clocks are states somebody chose, not losses; the reliability and
# board limits cap the highest boost clock and are set on many healthy boards.
_NVML_REASONS = (
    (0x04, "power_cap"),
    (0x08, "hardware_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "software_thermal"),
    (0x40, "hardware_thermal"),
    (0x80, "power_brake"),
)
_NVML_VIOLATIONS = ((0, "power_cap"), (1, "thermal"))  # NVML_PERF_POLICY_POWER, _THERMAL
_NVML_PROCESS_LISTS = ("Compute", "Graphics", "MPSCompute")
_AMD_RESIDENCIES = (
    ("ppt_residency_acc", "power_cap"),
    ("socket_thm_residency_acc", "socket_thermal"),
    ("vr_thm_residency_acc", "regulator_thermal"),
    ("hbm_thm_residency_acc", "memory_thermal"),
    ("prochot_residency_acc", "processor_hot"),
)


class TelemetryReader:
    """Reads one device; remembers why there was no answer, and never raises for that."""

    def __init__(
        self,
        source: str,
        errors: tuple[type[Exception], ...] = (),
        shut_down: Callable[[], object] | None = None,
    ) -> None:
        self._source = source
        # The first: a library's release lacks a function or field, or answers unexpectedly.
        self._errors: tuple[type[Exception], ...] = (
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
            *errors,
        )
        self._missing: dict[str, str] = {}
        self._shut_down = shut_down

    @property
    def missing(self) -> Mapping[str, str]:
        """Field name to the reason it could not be read, so far."""
        return self._missing

    def _ask(self, name: str, *questions: Callable[[], _T]) -> _T | None:
        """Return the first answer, or None with the reasons noted."""
        reasons = []
        for question in questions:
            try:
                return question()
            except self._errors as error:
                reasons.append(str(error) or type(error).__name__)
        self._missing.setdefault(name, "; ".join(reasons))
        return None

    def read(self) -> TelemetrySample | HostSample:
        """Read everything once; each reader its own."""
        raise NotImplementedError

    def describe(self) -> str:
        """Return what is read, and of which device."""
        return self._source

    def close(self) -> None:
        """Release the vendor's library; a second call does nothing."""
        shut_down, self._shut_down = self._shut_down, None
        if shut_down is not None:
            self._ask("close", shut_down)


class NvmlReader(TelemetryReader):
    """Reads one NVIDIA GPU, or one MIG slice of it, through NVML.

    A slice has its own processes; its clocks, throttling, temperature and power are the whole
    GPU's, because NVML reports them only for the whole GPU.

    Args:
        identifier: a UUID (``GPU-…``, ``MIG-…`` or bare, as torch prints it) or a PCI bus id. Not
            an index: NVML's indices ignore CUDA_VISIBLE_DEVICES.
        proc: where the kernel shows this process.

    Raises:
        VendorError: without pynvml, a driver, or the device.

    """

    def __init__(self, identifier: str, proc: Path = Path("/proc")) -> None:
        nvml = open_nvml(identifier)
        super().__init__(f"NVML, {identifier}", nvml.errors, nvml.library.nvmlShutdown)
        self._nvml = nvml
        self._events = self._ask("xid_errors", self._registered)
        if nvml.handle is not nvml.gpu:
            self._source += " (a MIG slice; all but the processes is of the whole GPU)"
        if _in_own_pid_namespace(proc):
            self._missing["other_processes.own"] = (
                "this process has a process id namespace of its own, and NVML may name processes "
                "by the host's ids: this one may be among the others, and names may be wrong"
            )

    def read(self) -> TelemetrySample:
        """Read everything once. Takes some milliseconds."""
        library, gpu = self._nvml.library, self._nvml.gpu
        when_ns = time.monotonic_ns()
        # First what fades soonest once the device is idle.
        bits = self._ask(
            "throttle_reasons",
            lambda: int(library.nvmlDeviceGetCurrentClocksEventReasons(gpu)),
            lambda: int(library.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)),
        )
        sm_clock = self._ask(
            "sm_clock_mhz", lambda: int(library.nvmlDeviceGetClockInfo(gpu, library.NVML_CLOCK_SM))
        )
        memory_clock = self._ask(
            "memory_clock_mhz",
            lambda: int(library.nvmlDeviceGetClockInfo(gpu, library.NVML_CLOCK_MEM)),
        )
        power = self._ask("power_w", lambda: library.nvmlDeviceGetPowerUsage(gpu) / 1000)
        sensor = library.NVML_TEMPERATURE_GPU
        temperature = self._ask(
            "temperature_c",
            lambda: int(library.nvmlDeviceGetTemperatureV(gpu, sensor)),
            lambda: int(library.nvmlDeviceGetTemperature(gpu, sensor)),
        )
        return TelemetrySample(
            when_ns=when_ns,
            sm_clock_mhz=sm_clock,
            memory_clock_mhz=memory_clock,
            temperature_c=temperature,
            power_w=power,
            throttle_reasons=tuple(name for bit, name in _NVML_REASONS if (bits or 0) & bit),
            other_processes=self._other_processes(),
            violation_counters=self._violations(),
            xid_errors=tuple(self._xid_errors()),
        )

    def _registered(self) -> Any:
        """Have the driver keep errors for us from now on; return the set that it puts them into."""
        library = self._nvml.library
        events = library.nvmlEventSetCreate()
        library.nvmlDeviceRegisterEvents(
            self._nvml.gpu, library.nvmlEventTypeXidCriticalError, events
        )
        return events

    def _xid_errors(self) -> Iterator[int]:
        library = self._nvml.library
        while self._events is not None:
            try:
                # Without waiting: 5 µs. Freed with the library.
                yield int(library.nvmlEventSetWait_v2(self._events, 0).eventData)
            except library.NVMLError_Timeout:
                return
            except self._errors as error:
                self._events = None
                self._missing.setdefault("xid_errors", str(error))

    def _violations(self) -> dict[str, int]:
        def total_ns(policy: int) -> int:
            status = self._nvml.library.nvmlDeviceGetViolationStatus(self._nvml.gpu, policy)
            return int(status.violationTime)

        totals = {
            reason: self._ask(f"violation_counters.{reason}", partial(total_ns, policy))
            for policy, reason in _NVML_VIOLATIONS
        }
        return {reason: total for reason, total in totals.items() if total is not None}

    def _other_processes(self) -> tuple[OtherProcess, ...]:
        def listed(kind: str) -> list[Any]:
            function = getattr(self._nvml.library, f"nvmlDeviceGet{kind}RunningProcesses")
            return list(function(self._nvml.handle))

        memory: dict[int, int | None] = {}
        for kind in _NVML_PROCESS_LISTS:
            name = f"other_processes.{kind.lower()}"
            for process in self._ask(name, partial(listed, kind)) or ():
                # One process may be in several lists; the memory is unknown to some of them.
                known = memory.get(process.pid)
                memory[process.pid] = known if known is not None else process.usedGpuMemory
        return _others(memory)


class AmdSmiReader(TelemetryReader):
    """Reads one AMD GPU through AMD SMI.

    Written against the documentation and Python source of amdsmi 7.0; not yet run on AMD hardware.
    MI300 and newer count throttled time, older ones report only whether they throttle now. One call
    gets all values, since older GPUs lack ``amdsmi_get_violation_status``.

    Args:
        identifier: a UUID as AMD SMI, HIP or torch give it, or a PCI bus id.

    Raises:
        VendorError: without amdsmi, a driver, or the device.

    """

    def __init__(self, identifier: str) -> None:
        self._amd = amd = open_amdsmi(identifier)
        super().__init__(f"AMD SMI, {identifier}", amd.errors, amd.library.amdsmi_shut_down)

    def read(self) -> TelemetrySample:
        """Read everything once. Wakes a suspended GPU, as any use of it would."""
        library, gpu = self._amd.library, self._amd.gpu
        when_ns = time.monotonic_ns()
        metrics = self._ask("metrics", lambda: dict(library.amdsmi_get_gpu_metrics_info(gpu))) or {}
        now = [metrics.get("throttle_status"), metrics.get("indep_throttle_status")]
        counters = {name: metrics.get(key) for key, name in _AMD_RESIDENCIES}
        if not any(isinstance(value, int) for value in (*now, *counters.values())):
            self._missing.setdefault("throttle_reasons", "the GPU metrics have no throttle status")
        processes = self._ask(
            "other_processes",
            lambda: {
                int(process["pid"]): int(process["memory_usage"]["vram_mem"])
                for process in library.amdsmi_get_gpu_process_list(gpu)
            },
        )
        return TelemetrySample(
            when_ns=when_ns,
            sm_clock_mhz=self._first(metrics, "sm_clock_mhz", "current_gfxclk", "current_gfxclks"),
            memory_clock_mhz=self._first(metrics, "memory_clock_mhz", "current_uclk"),
            temperature_c=self._first(
                metrics, "temperature_c", "temperature_hotspot", "temperature_edge"
            ),
            power_w=self._first(metrics, "power_w", "current_socket_power", "average_socket_power"),
            # amdsmi makes a truth value of the bits, so the reason is lost.
            throttle_reasons=("unspecified",) if any(value is True for value in now) else (),
            other_processes=_others(processes or {}),
            violation_counters={
                name: total for name, total in counters.items() if isinstance(total, int)
            },
        )

    def _first(self, metrics: Mapping[str, Any], name: str, *keys: str) -> float | None:
        """Return the first of the metrics that has a number; absent ones are ``"N/A"``."""
        for key in keys:
            values = metrics.get(key)
            for value in values if isinstance(values, list) else [values]:
                if isinstance(value, (int, float)):
                    return value
        self._missing.setdefault(name, f"the GPU metrics have none of {', '.join(keys)}")
        return None


class HostReader(TelemetryReader):
    """Reads the host's CPU clock, load and steal time (given to others by the hypervisor)."""

    def __init__(self) -> None:
        super().__init__("psutil, the host", (OSError, NotImplementedError))
        self._steal_s = self._total_steal_s()

    def read(self) -> HostSample:
        """Read everything once; ``steal_s`` of the first reading counts from the reader's start."""
        import psutil

        when_ns = time.monotonic_ns()
        before, self._steal_s = self._steal_s, self._total_steal_s()
        known = before is not None and self._steal_s is not None
        clock_mhz = self._ask("cpu_clock_mhz", lambda: float(psutil.cpu_freq().current))
        if clock_mhz == 0:
            self._missing.setdefault("cpu_clock_mhz", "the system gives no clock but 0")
        return HostSample(
            when_ns=when_ns,
            cpu_clock_mhz=clock_mhz or None,
            load_average_1m=self._ask("load_average_1m", lambda: psutil.getloadavg()[0]),
            steal_s=max(0.0, (self._steal_s or 0.0) - (before or 0.0)) if known else None,
        )

    def _total_steal_s(self) -> float | None:
        import psutil

        return self._ask("steal_s", lambda: float(psutil.cpu_times().steal))


def _others(memory: Mapping[int, int | None]) -> tuple[OtherProcess, ...]:
    """Name the processes, all but this one."""
    return tuple(
        OtherProcess(pid, _process_name(pid), memory[pid])
        for pid in sorted(memory.keys() - {os.getpid()})
    )


def _process_name(pid: int) -> str | None:
    import psutil

    try:
        return psutil.Process(pid).name()
    except (psutil.Error, OSError):  # ended meanwhile, or not ours to see: None says so
        return None


def _in_own_pid_namespace(proc: Path) -> bool:
    try:
        return os.readlink(proc / "self" / "ns" / "pid") != _FIRST_PID_NAMESPACE
    except OSError:  # no such file: not Linux, and no namespaces
        return False


def open_reader(kind: str, uuid: str | None) -> TelemetryReader | Unavailable:
    """Open a GPU's reader, or return why there is none; never raises for a missing library.

    Args:
        kind: of the GPU, ``cuda`` or ``hip``.
        uuid: the GPU's UUID or PCI bus id.

    """
    if not uuid:
        return Unavailable("the device's UUID is not known, and vendors' indices are not torch's")
    try:
        return NvmlReader(uuid) if kind == "cuda" else AmdSmiReader(uuid)
    except VendorError as error:
        return Unavailable(str(error))
