"""CUDA and ROCm accelerators through one code path: torch.cuda is HIP in a ROCm build of torch."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pytest_hwqueue.devices.accelerator_streams import (
    AcceleratorEvent,
    AcceleratorPool,
    StreamKind,
    event_of,
)
from pytest_hwqueue.devices.compute_units import IdleStreams, Partition, create_masked_stream
from pytest_hwqueue.devices.fingerprint import Fingerprint, fingerprint
from pytest_hwqueue.devices.green_contexts import GreenContexts
from pytest_hwqueue.devices.kinds import KINDS, DeviceKind, Runtime
from pytest_hwqueue.devices.protocol import Event
from pytest_hwqueue.devices.readers import open_reader
from pytest_hwqueue.devices.telemetry import TelemetryReader, Unavailable
from pytest_hwqueue.errors import DeviceError

# CUDA programming guide, "CUDA environment variables"; HIP documentation, "environment variables".
_CONNECTIONS = {"cuda": ("CUDA_DEVICE_MAX_CONNECTIONS", 8), "hip": ("GPU_MAX_HW_QUEUES", 4)}

# By the device's index.
_IDLE: dict[int, IdleStreams[StreamKind]] = {}


class Accelerator:
    """One visible GPU."""

    model = None
    clock_ns = staticmethod(time.perf_counter_ns)

    def __init__(self, index: int, label: str) -> None:
        self.kind: DeviceKind = "hip" if torch.version.hip else "cuda"
        self.capabilities = KINDS[self.kind]
        self.index = index
        self.label = label
        self.torch_device = torch.device("cuda", index)
        torch.cuda.set_device(index)
        torch.cuda.init()
        self._properties = torch.cuda.get_device_properties(index)
        # Makes the context, so that the runtime's own calls find one.
        torch.cuda.synchronize(index)
        self._runtime = Runtime(self.kind == "hip")
        self._cycles_per_ns: float | None = None
        self._green_contexts: dict[tuple[int, ...], GreenContexts] = {}

    @property
    def name(self) -> str:
        """The model's name."""
        return str(self._properties.name)

    @property
    def connections(self) -> int | None:
        """The runtime's hardware queues, by its environment variable or its documented default."""
        variable, default = _CONNECTIONS[self.kind]
        given = os.environ.get(variable, "")
        return int(given) if given.isdecimal() else default

    @property
    def lease_key(self) -> str:
        """The GPU's UUID."""
        return str(getattr(self._properties, "uuid", f"{self.kind}-{self.index}"))

    def open_streams(
        self, count: int, priorities: Sequence[int] | None = None, *, gradients: bool = False
    ) -> AcceleratorPool:
        """Create ``count`` distinct streams through the runtime; DeviceError if that fails."""
        kinds: list[StreamKind] = [(priority, None) for priority in priorities or [0] * count]
        return self._open_pool(kinds, gradients)

    def open_partitioned(
        self,
        partitions: Sequence[Partition],
        priorities: Sequence[int],
        *,
        gradients: bool = False,
    ) -> AcceleratorPool:
        """Create a stream for each partition: in CUDA's green contexts, or with AMD's CU masks.

        Written for AMD against its documentation; not run on AMD hardware.

        Raises:
            DeviceError: if the GPU cannot be split so, with what the driver would give.

        """
        return self._open_pool(list(zip(priorities, partitions, strict=True)), gradients)

    def _open_pool(self, kinds: Sequence[StreamKind], gradients: bool) -> AcceleratorPool:
        idle = _IDLE.setdefault(self.index, IdleStreams(self._create_stream))
        return AcceleratorPool(self, self._runtime, idle, kinds, gradients)

    def _create_stream(self, kind: StreamKind) -> int:
        priority, partition = kind
        if partition is None:
            return self._runtime.create_stream(priority)
        if self.kind == "hip":
            units = int(self._properties.multi_processor_count)
            return create_masked_stream(self._runtime, partition, units)
        # Only one thread at a time creates streams, and so contexts.
        if partition.split not in self._green_contexts:
            self._green_contexts[partition.split] = GreenContexts(self.index, partition.split)
        device_priority = self._runtime.device_priority(priority)
        contexts = self._green_contexts[partition.split]
        return contexts.create_stream(partition.group, device_priority)

    def sleep_until_ns(self, when_ns: int) -> None:
        """Sleep until `clock_ns` says ``when_ns``."""
        time.sleep(max(0, when_ns - self.clock_ns()) / 1e9)

    def open_telemetry(self) -> TelemetryReader | Unavailable:
        """Open the vendor's library, or return why it cannot be opened."""
        return open_reader(self.kind, self.lease_key)

    def fingerprint(self) -> Fingerprint:
        """Return what must match for results to be compared, and what to report."""
        return fingerprint(self.kind, self.index)

    def new_event(self) -> AcceleratorEvent:
        """Create an event that can be timed with `elapsed_ns`."""
        event = torch.cuda.Event(enable_timing=True)
        # torch makes the runtime's event at the first record: not while measuring.
        event.record(torch.cuda.default_stream(self.torch_device))
        return AcceleratorEvent(event)

    def new_graph_event(self) -> AcceleratorEvent:
        """Create a timing event that a graph records on every replay."""
        if self.kind == "hip":
            raise DeviceError("ROCm's torch does not record timing events inside graphs")
        try:
            return AcceleratorEvent(torch.cuda.Event(enable_timing=True, external=True))
        except TypeError as error:
            raise DeviceError(
                f"torch {torch.__version__} does not record timing events inside graphs"
            ) from error

    def elapsed_ns(self, start: Event, end: Event) -> int:
        """Return the device time between two completed events, in nanoseconds."""
        return round(float(event_of(start).elapsed_time(event_of(end))) * 1e6)

    def kernel_of(self, duration_ns: int) -> Callable[[], None]:
        """Return a spinning kernel of one block that lasts about ``duration_ns``."""
        if self._cycles_per_ns is None:
            self._cycles_per_ns = self._measure_cycles_per_ns()
        cycles = max(1, round(duration_ns * self._cycles_per_ns))

        def kernel() -> None:
            torch.cuda._sleep(cycles)

        return kernel

    def memory_bytes(self) -> dict[str, int]:
        """Return the allocator's peak, its current use and reserve, and the device's total use."""
        free, total = torch.cuda.mem_get_info(self.index)
        return {
            "peak_allocated": torch.cuda.max_memory_allocated(self.index),
            "allocated": torch.cuda.memory_allocated(self.index),
            "reserved": torch.cuda.memory_reserved(self.index),
            "device_used": total - free,
        }

    def reset_memory(self) -> None:
        """Release cached memory and start a new peak."""
        gc.collect()
        # cuBLAS keeps a workspace per stream that ever ran a product, also of destroyed ones.
        clear_workspaces = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear_workspaces is not None:
            clear_workspaces()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.index)

    def limits(self) -> dict[str, Any]:
        """Return multiprocessors, memory, and the range of stream priorities."""
        return {
            "multiprocessors": self._properties.multi_processor_count,
            "memory GiB": round(self._properties.total_memory / 2**30, 1),
            "stream priorities (least, greatest)": (
                self._runtime.least_priority,
                self._runtime.greatest_priority,
            ),
        }

    def _measure_cycles_per_ns(self) -> float:
        cycles = 2_000_000
        start, end = self.new_event(), self.new_event()
        times = []
        for _ in range(5):
            start.event.record()
            torch.cuda._sleep(cycles)
            end.event.record()
            end.synchronize()
            times.append(self.elapsed_ns(start, end))
        return cycles / sorted(times)[2]
