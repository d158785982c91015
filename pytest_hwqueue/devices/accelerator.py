"""CUDA and ROCm accelerators through one code path: torch.cuda is HIP in a ROCm build of torch."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch

from pytest_hwqueue.devices import kernel_trace
from pytest_hwqueue.devices.fingerprint import Fingerprint, fingerprint
from pytest_hwqueue.devices.idle_streams import IdleStreams
from pytest_hwqueue.devices.launches import LaunchTrace, TagLog
from pytest_hwqueue.devices.named_trace import NAMED_RANGES
from pytest_hwqueue.devices.protocol import DeviceError, DeviceKind, Event
from pytest_hwqueue.metrics.timeline import Timeline

# cudaStreamNonBlocking and hipStreamNonBlocking: no implicit order against the default stream.
_NON_BLOCKING = 1

# CUDA programming guide, "CUDA environment variables"; HIP documentation, "environment variables".
_CONNECTIONS = {"cuda": ("CUDA_DEVICE_MAX_CONNECTIONS", 8), "hip": ("GPU_MAX_HW_QUEUES", 4)}

# By the device's index.
_IDLE: dict[int, IdleStreams] = {}


class AcceleratorEvent:
    """A timing event of the device's own clock."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self.event = event

    def query(self) -> bool:
        """Whether the stream has passed the point; true if never recorded."""
        return bool(self.event.query())

    def synchronize(self) -> None:
        """Block the calling thread until the stream has passed the point."""
        self.event.synchronize()


class AcceleratorStream:
    """A hardware-visible stream that the runtime made for this pool alone."""

    def __init__(
        self, pool: AcceleratorPool, index: int, priority: int, handle: int, device: torch.device
    ) -> None:
        self.index = index
        self.priority = priority
        self.handle = handle
        self.stream = torch.cuda.ExternalStream(handle, device=device)
        self._pool = pool

    def launch(
        self, function: Callable[..., object], *arguments: object, tag: str | None = None
    ) -> None:
        """Call ``function(*arguments)`` with this stream current, so that it enqueues here.

        The stream stays current: setting it back each time would double the cost of a launch. The
        pool sets it back when it closes.
        """
        pool = self._pool
        torch.cuda.set_stream(self.stream)
        pool.launched += 1
        if pool.trace is not None:
            index = pool.trace.launched(self.index, tag)
            with torch.profiler.record_function(kernel_trace.launch_name(index)):
                function(*arguments)
        elif tag is not None and pool.tags is not None:
            tagged = pool.tags.next(tag, self.index)
            _event(tagged.ready).record(self.stream)
            function(*arguments)
            _event(tagged.done).record(self.stream)
        else:
            function(*arguments)

    def record(self, event: Event | None = None) -> Event:
        """Record an event behind the work enqueued so far."""
        recorded = AcceleratorEvent(torch.cuda.Event()) if event is None else event
        if self._pool.trace is not None:
            self._pool.trace.recorded(self.index, recorded)
        _event(recorded).record(self.stream)
        return recorded

    def wait(self, event: Event) -> None:
        """Let work enqueued from now on wait for the event, without blocking the host."""
        if self._pool.trace is not None:
            self._pool.trace.waited(self.index, event)
        self.stream.wait_event(_event(event))

    def synchronize(self) -> None:
        """Block the calling thread until all work enqueued so far is done."""
        self.stream.synchronize()


class RangedStream(AcceleratorStream):
    """A stream whose tagged launches are named ranges for the vendor's profiler."""

    def launch(
        self, function: Callable[..., object], *arguments: object, tag: str | None = None
    ) -> None:
        """Launch inside a range of the tag's name: NVTX, which torch's ROCm build calls roctx."""
        if tag is None:
            super().launch(function, *arguments)
            return
        with torch.cuda.nvtx.range(tag):
            super().launch(function, *arguments, tag=tag)


class AcceleratorPool:
    """Streams created through the runtime: torch hands out only 32 and then repeats them."""

    def __init__(
        self,
        device: Accelerator,
        runtime: Runtime,
        idle: IdleStreams,
        priorities: Sequence[int],
        gradients: bool,
    ) -> None:
        self.tags: TagLog | None = None
        self.trace: LaunchTrace | None = None
        self.launched = 0
        self.device = device
        self._runtime = runtime
        self._idle = idle
        self._gradients = torch.inference_mode(not gradients)
        self._joined = [torch.cuda.Event() for _ in priorities[1:]]
        self._handles = idle.take(priorities)
        if len(set(self._handles)) != len(self._handles):
            raise DeviceError(
                f"{len(self._handles)} streams asked for, but the runtime returned only "
                f"{len(set(self._handles))} distinct handles"
            )
        # A kind of its own, so that nobody else's launches pay for the question.
        kind = RangedStream if NAMED_RANGES in os.environ else AcceleratorStream
        self.streams = tuple(
            kind(self, index, priorities[index], handle, device.torch_device)
            for index, handle in enumerate(self._handles)
        )

    def device_priorities(self) -> list[int]:
        """Read each stream's priority back from the runtime (lower numbers are more urgent)."""
        return [self._runtime.stream_priority(handle) for handle in self._handles]

    def synchronize(self) -> None:
        """Block the calling thread until the device is idle."""
        torch.cuda.synchronize(self.device.index)

    def capture(self, index: int, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Capture what ``enqueue`` launches, from stream ``index`` on; return the replay."""
        graph = torch.cuda.CUDAGraph()
        stream = self.streams[index].stream
        torch.cuda.set_stream(stream)
        # Thread-local: other threads (a profiler's, a watchdog's) may call the runtime.
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            enqueue()
        finally:
            torch.cuda.set_stream(stream)
            graph.capture_end()
        return graph.replay

    def record_all(self, event: Event) -> None:
        """Record an event behind all work enqueued so far on all streams.

        One timing event on the first stream, which waits for plain ones on the others: a timing
        event on each was measured to cost 1 % of 0.6 ms on 8 streams, this 0.3 %.
        """
        first = self.streams[0].stream
        for stream, joined in zip(self.streams[1:], self._joined, strict=True):
            joined.record(stream.stream)
            first.wait_event(joined)
        _event(event).record(first)

    def timeline(self, enqueue: Callable[[], None]) -> Timeline:
        """Run ``enqueue`` under torch.profiler; return the kernels' intervals."""
        return kernel_trace.collect(self, enqueue, None)

    def held_timeline(self, enqueue: Callable[[], None]) -> Timeline:
        """Do the same with all streams held behind a spinning kernel on the default stream.

        A spin and not a value in memory holds the gate: a queue that fills up while the work is
        held would block the host, which then could never open it.
        """
        self.synchronize()
        started = time.perf_counter_ns()
        enqueue()
        # The gate must outlast enqueueing under the profiler, which is slower; what it does not
        # outlast is left out by the times of the launches.
        hold_ns = 1_000_000 + 5 * (time.perf_counter_ns() - started)
        self.synchronize()
        return kernel_trace.collect(self, enqueue, min(hold_ns, 2_000_000_000))

    def export_trace(self, enqueue: Callable[[], None], path: str) -> None:
        """Write one pass as torch.profiler's Chrome trace."""
        kernel_trace.export(self, enqueue, path)

    def __enter__(self) -> AcceleratorPool:
        self._gradients.__enter__()
        self._stream_before = torch.cuda.current_stream(self.device.index)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        torch.cuda.set_stream(self._stream_before)
        self._gradients.__exit__(kind, error, where)
        if error is None:
            torch.cuda.synchronize(self.device.index)
            priorities = [stream.priority for stream in self.streams]
            self._idle.give_back(priorities, self._handles)
        # After an error the device may be unusable and a second error would hide the first: the
        # streams are left to the process's end, which follows.


class Runtime:
    """The few calls of the CUDA or HIP runtime that torch does not offer.

    The library is the very one that torch has loaded: a second HIP runtime in the process fails
    with "invalid device ordinal".
    """

    def __init__(self, hip: bool) -> None:
        self._prefix = "hip" if hip else "cuda"
        stem = "libamdhip64" if hip else "libcudart"
        self._library = ctypes.CDLL(_loaded_library(stem))
        least, greatest = ctypes.c_int(), ctypes.c_int()
        self._call("DeviceGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
        self.least_priority, self.greatest_priority = least.value, greatest.value

    def create_stream(self, priority: int) -> int:
        """Create a stream; 0 is normal, larger more urgent, cut to the device's range."""
        handle = ctypes.c_void_p()
        # The runtime counts the other way: numerically lower is more urgent.
        device_priority = max(self.greatest_priority, min(self.least_priority, -priority))
        self._call(
            "StreamCreateWithPriority",
            ctypes.byref(handle),
            ctypes.c_uint(_NON_BLOCKING),
            ctypes.c_int(device_priority),
        )
        if not handle.value:
            raise DeviceError(f"{self._prefix}StreamCreateWithPriority returned no stream")
        return handle.value

    def stream_priority(self, handle: int) -> int:
        """Read a stream's priority back, in the device's own numbers."""
        priority = ctypes.c_int()
        self._call("StreamGetPriority", ctypes.c_void_p(handle), ctypes.byref(priority))
        return priority.value

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, self._prefix + name)(*arguments)
        if status != 0:
            describe = getattr(self._library, f"{self._prefix}GetErrorString")
            describe.restype = ctypes.c_char_p
            text = describe(status).decode()
            raise DeviceError(f"{self._prefix}{name} failed with error {status}: {text}")


class Accelerator:
    """One visible GPU."""

    has_values = True
    clock_ns = staticmethod(time.perf_counter_ns)

    def __init__(self, index: int, label: str) -> None:
        self.kind: DeviceKind = "hip" if torch.version.hip else "cuda"
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

    @property
    def name(self) -> str:
        """The model, for people."""
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
        """Create ``count`` distinct streams through the runtime; DeviceError if it can't be."""
        idle = _IDLE.setdefault(self.index, IdleStreams(self._runtime.create_stream))
        return AcceleratorPool(self, self._runtime, idle, priorities or [0] * count, gradients)

    def sleep_until_ns(self, when_ns: int) -> None:
        """Sleep until `clock_ns` says ``when_ns``."""
        time.sleep(max(0, when_ns - self.clock_ns()) / 1e9)

    def fingerprint(self) -> Fingerprint:
        """What must match for results to be compared, and what should be reported."""
        return fingerprint(self.kind, self.index)

    def new_event(self) -> AcceleratorEvent:
        """Make an event that can be timed with `elapsed_ns`."""
        event = torch.cuda.Event(enable_timing=True)
        # torch makes the runtime's event at the first record: not while measuring.
        event.record(torch.cuda.default_stream(self.torch_device))
        return AcceleratorEvent(event)

    def new_graph_event(self) -> AcceleratorEvent:
        """Make a timing event that a graph records on every replay."""
        if self.kind == "hip":
            raise DeviceError("ROCm's torch does not record timing events inside graphs")
        try:
            return AcceleratorEvent(torch.cuda.Event(enable_timing=True, external=True))
        except TypeError as error:
            raise DeviceError(
                f"torch {torch.__version__} does not record timing events inside graphs"
            ) from error

    def elapsed_ns(self, start: Event, end: Event) -> int:
        """Device time between two completed events, in nanoseconds."""
        return round(float(_event(start).elapsed_time(_event(end))) * 1e6)

    def kernel_of(self, duration_ns: int) -> Callable[[], None]:
        """Return a spinning kernel of one block that lasts about ``duration_ns``."""
        if self._cycles_per_ns is None:
            self._cycles_per_ns = self._measure_cycles_per_ns()
        cycles = max(1, round(duration_ns * self._cycles_per_ns))

        def kernel() -> None:
            torch.cuda._sleep(cycles)

        return kernel

    def memory_bytes(self) -> dict[str, int]:
        """The allocator's peak, its current use and reserve, and the device's total use."""
        free, total = torch.cuda.mem_get_info(self.index)
        return {
            "peak_allocated": torch.cuda.max_memory_allocated(self.index),
            "allocated": torch.cuda.memory_allocated(self.index),
            "reserved": torch.cuda.memory_reserved(self.index),
            "device_used": total - free,
        }

    def reset_memory(self) -> None:
        """Give cached memory back and start a new peak."""
        gc.collect()
        # cuBLAS keeps a workspace per stream that ever ran a product, also of destroyed ones.
        clear_workspaces = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear_workspaces is not None:
            clear_workspaces()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.index)

    def limits(self) -> dict[str, Any]:
        """Multiprocessors, memory, and the range of stream priorities."""
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


def _event(event: Event) -> torch.cuda.Event:
    if not isinstance(event, AcceleratorEvent):
        raise TypeError(f"an accelerator got an event of another device: {event!r}")
    return event.event


def _loaded_library(stem: str) -> str:
    """Path of the shared library that this process has already loaded."""
    with open("/proc/self/maps", encoding="utf-8") as lines:
        for line in lines:
            path = line.rstrip("\n").partition("/")
            name = path[2].rpartition("/")[2]
            if name.startswith(stem):
                return "/" + path[2]
    raise DeviceError(
        f"torch has loaded no {stem}: its runtime is linked in, and streams cannot be created "
        "through it; install a torch build that uses the shared runtime"
    )
