"""The host as a device: a worker thread per stream, its own clock for events and kernels.

Work runs in order on its stream's thread. torch releases the interpreter lock in its kernels, so
streams run concurrently on the available cores; each thread computes on one core.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from pytest_hwqueue.devices.fingerprint import Fingerprint, fingerprint
from pytest_hwqueue.devices.host_streams import HostEvent, HostPool, host_event
from pytest_hwqueue.devices.kinds import KINDS, DeviceKind
from pytest_hwqueue.devices.protocol import Event
from pytest_hwqueue.devices.readers import HostReader
from pytest_hwqueue.errors import DeviceError

_clock_ns = time.perf_counter_ns

# Enough that the time of a call hides in that of the work.
_SINES = 16_384


class HostDevice:
    """The cores this process may use, with the interface of an accelerator."""

    kind: DeviceKind = "cpu"
    capabilities = KINDS["cpu"]
    model = None
    index = 0
    label = "cpu"
    lease_key = "cpu"
    connections = None
    clock_ns = staticmethod(_clock_ns)

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._kernels: dict[int, Callable[[], None]] = {}
        # Whether the peak is that since `reset_memory`.
        self._peaks = False

    @property
    def name(self) -> str:
        """The processor model's name."""
        try:
            with open("/proc/cpuinfo", encoding="utf-8") as lines:
                for line in lines:
                    if line.startswith("model name"):
                        return line.partition(":")[2].strip()
        except FileNotFoundError:
            # Not Linux: the platform's own word for the processor has to do.
            return platform.processor() or platform.machine()
        return platform.machine()

    @property
    def torch_device(self) -> torch.device:
        """The torch device of tensors."""
        return torch.device("cpu")

    def open_streams(
        self, count: int, priorities: Sequence[int] | None = None, *, gradients: bool = False
    ) -> HostPool:
        """Start ``count`` worker threads; limit torch's own thread pool to one core each."""
        pool = HostPool(count, priorities or [0] * count, gradients)
        if len({stream.handle for stream in pool.streams}) != count:
            raise DeviceError(f"{count} streams requested, but two share a thread")
        return pool

    def sleep_until_ns(self, when_ns: int) -> None:
        """Sleep until `clock_ns` says ``when_ns``."""
        time.sleep(max(0, when_ns - _clock_ns()) / 1e9)

    def open_telemetry(self) -> HostReader:
        """Open the reader of the processor's clock and load."""
        return HostReader()

    def fingerprint(self) -> Fingerprint:
        """Return what must match for results to be compared, and what to report."""
        return fingerprint(self.kind, self.index)

    def new_event(self) -> HostEvent:
        """Create an event that can be timed with `elapsed_ns`."""
        return HostEvent()

    def new_graph_event(self) -> HostEvent:
        """Refuse: there are no graphs here."""
        raise DeviceError("the CPU has no graphs")

    def elapsed_ns(self, start: Event, end: Event) -> int:
        """Return the time between two completed events, in nanoseconds."""
        return host_event(end).when_ns - host_event(start).when_ns

    def kernel_of(self, duration_ns: int) -> Callable[[], None]:
        """Return matrix products that keep one core busy for about ``duration_ns``."""
        if duration_ns not in self._kernels:
            self._kernels[duration_ns] = _busy_core(duration_ns)
        return self._kernels[duration_ns]

    def memory_bytes(self) -> dict[str, int]:
        """Return this process's resident memory, now and at its peak since `reset_memory`."""
        found = {"process_resident": self._process.memory_info().rss}
        if self._peaks:
            status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
            found["process_peak"] = int(status.partition("VmHWM:")[2].split()[0]) * 1024
        return found

    def reset_memory(self) -> str | None:
        """Start a new peak; return why the system does not let it, or None."""
        try:
            # The peak alone (proc(5)); that of getrusage is the whole life's.
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        except OSError as error:
            self._peaks = False
            return f"the peak of this process is its whole life's, and cannot be reset: {error}"
        self._peaks = True
        return None

    def limits(self) -> dict[str, Any]:
        """Return usable cores and memory."""
        return {
            "cores usable": len(os.sched_getaffinity(0)),
            "memory GiB": round(psutil.virtual_memory().total / 2**30, 1),
        }


def _busy_core(duration_ns: int) -> Callable[[], None]:
    """Return sines over one buffer, sized once to keep a core busy for about ``duration_ns``."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        one_ns = _time_of_sines(_SINES)
    finally:
        torch.set_num_threads(threads)
    data = torch.linspace(0, 1, max(1, _SINES * duration_ns // one_ns))
    # A buffer for each thread: allocating one each time would measure page faults.
    local = threading.local()

    def kernel() -> None:
        # One call, so that the interpreter lock is released for the whole of it.
        if not hasattr(local, "out"):
            local.out = torch.empty_like(data)
        torch.sin(data, out=local.out)

    return kernel


def _time_of_sines(count: int) -> int:
    data = torch.linspace(0, 1, count)
    out = torch.empty(count)
    times = []
    for _ in range(50):
        start = _clock_ns()
        torch.sin(data, out=out)
        times.append(_clock_ns() - start)
    return sorted(times)[len(times) // 2]
