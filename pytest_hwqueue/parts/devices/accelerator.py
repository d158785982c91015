"""CUDA and ROCm accelerators through one code path: torch.cuda is HIP in a ROCm build of torch."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.data.metrics.contention import HeldWindow
from pytest_hwqueue.data.metrics.launching import LaunchingWindow
from pytest_hwqueue.data.metrics.timeline import Timeline
from pytest_hwqueue.data.records.fingerprint import Fingerprint
from pytest_hwqueue.data.records.kinds import KINDS, DeviceKind
from pytest_hwqueue.parts.devices import compute_units, green_contexts, kernel_trace
from pytest_hwqueue.parts.devices.cache import BufferFlush, l2_bytes
from pytest_hwqueue.parts.devices.compute_units import (
    GroupEvidence,
    IdleStreams,
    Partition,
    create_masked_stream,
)
from pytest_hwqueue.parts.devices.connections import CONNECTIONS
from pytest_hwqueue.parts.devices.fingerprint import fingerprint
from pytest_hwqueue.parts.devices.green_contexts import GreenContexts
from pytest_hwqueue.parts.devices.held import (
    MarkedWindow,
    StampedReplay,
    StampingCapture,
    Stamps,
    gate_of,
    held_window,
)
from pytest_hwqueue.parts.devices.kinds import Runtime
from pytest_hwqueue.parts.devices.launches import NAMED_RANGES, LaunchTrace, TagLog
from pytest_hwqueue.parts.devices.launching import (
    BusyCall,
    LaunchingThreads,
    ThreadsStream,
    clock_reading_ns,
)
from pytest_hwqueue.parts.devices.protocol import Call, Event, Marks
from pytest_hwqueue.parts.devices.spins import FillingSpin, OneBlockSpin
from pytest_hwqueue.parts.devices.telemetry import TelemetryReader, Unavailable, open_reader

# Priority, and where its kernels run; None for anywhere.
StreamKind = tuple[int, Partition | None]

# How long work may run on after an error that has nothing to do with it.
_DRAINING_S = 5.0
_POLL_S = 0.001


class AcceleratorStream:
    """A hardware-visible stream that the runtime created for this pool alone."""

    def __init__(
        self, pool: AcceleratorPool, index: int, priority: int, handle: int, device: torch.device
    ) -> None:
        self.index = index
        self.priority = priority
        self.handle = handle
        self.stream = torch.cuda.ExternalStream(handle, device=device)
        self.launched = 0
        self._pool = pool

    def launch(
        self, function: Callable[..., object], *arguments: object, tag: str | None = None
    ) -> None:
        """Call ``function(*arguments)`` with this stream current, so that it enqueues here.

        The stream stays current: resetting it each time would double the cost of a launch. The pool
        resets it when it closes.
        """
        pool = self._pool
        torch.cuda.set_stream(self.stream)
        self.launched += 1
        pool.busy.add(self.index)
        if pool.trace is not None:
            index = pool.trace.launched(self.index, tag)
            with torch.profiler.record_function(kernel_trace.launch_name(index)):
                function(*arguments)
        elif tag is not None and pool.tags is not None:
            tagged = pool.tags.next(tag, self.index)
            event_of(tagged.ready).record(self.stream)
            function(*arguments)
            event_of(tagged.done).record(self.stream)
        elif pool.held is not None:
            pool.held.launch(self, function, arguments, tag)
        else:
            function(*arguments)

    def record(self, event: Event | None = None) -> Event:
        """Record an event after the work enqueued so far."""
        recorded = torch.cuda.Event() if event is None else event
        if self._pool.trace is not None:
            self._pool.trace.recorded(self.index, recorded)
        event_of(recorded).record(self.stream)
        return recorded

    def wait(self, event: Event) -> None:
        """Make work enqueued from now on wait for the event, without blocking the host."""
        if self._pool.trace is not None:
            self._pool.trace.waited(self.index, event)
        self._pool.busy.add(self.index)
        self.stream.wait_event(event_of(event))

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
    """Streams created through the runtime: torch provides only 32 and then repeats them."""

    def __init__(
        self,
        device: Accelerator,
        runtime: Runtime,
        idle: IdleStreams[StreamKind],
        kinds: Sequence[StreamKind],
        gradients: bool,
    ) -> None:
        self.tags: TagLog | None = None
        self.trace: LaunchTrace | None = None
        self.held: MarkedWindow | StampingCapture | None = None
        self._stamps: Stamps | None = None
        self._launching: LaunchingThreads | None = None
        # Indices of the streams that got work since all were last idle.
        self.busy: set[int] = set()
        self.device = device
        self._runtime = runtime
        self._idle = idle
        self._inference = not gradients
        self._gradients = torch.inference_mode(not gradients)
        self._joined = [torch.cuda.Event() for _ in kinds]
        self._kinds = kinds
        self._handles = idle.take(kinds)
        if len(set(self._handles)) != len(self._handles):
            raise DeviceError(
                f"{len(self._handles)} streams requested, but the runtime returned only "
                f"{len(set(self._handles))} distinct handles"
            )
        # A kind of its own, so that nobody else's launches pay for the question.
        kind = RangedStream if NAMED_RANGES in os.environ else AcceleratorStream
        self.streams = tuple(
            kind(self, index, kinds[index][0], handle, device.torch_device)
            for index, handle in enumerate(self._handles)
        )

    @property
    def launched(self) -> int:
        """Calls of its streams' launch; each stream counts, since threads may share the pool."""
        return sum(stream.launched for stream in self.streams)

    @property
    def in_green_contexts(self) -> frozenset[int]:
        """Indices of the streams that belong to a green context."""
        if self.device.kind == "hip":
            return frozenset()
        return frozenset(index for index, (_, part) in enumerate(self._kinds) if part is not None)

    def device_priorities(self) -> list[int]:
        """Read each stream's priority back from the runtime (lower numbers are more urgent)."""
        return [self._runtime.stream_priority(handle) for handle in self._handles]

    def groups(self, *, replayed: bool) -> list[GroupEvidence]:
        """Find out where each stream's kernels run; ``replayed`` if launched by a graph."""
        if self.device.kind == "hip":
            return [compute_units.group_of(self._runtime, handle) for handle in self._handles]
        device = self.device.torch_device
        return [
            green_contexts.group_of(
                handle,
                device,
                replayed=replayed,
                queues=partition is not None and partition.queues is not None,
            )
            for handle, (_, partition) in zip(self._handles, self._kinds, strict=True)
        ]

    def synchronize(self) -> None:
        """Block the calling thread until the device is idle."""
        self.busy.clear()
        torch.cuda.synchronize(self.device.index)

    def capture(
        self, index: int, enqueue: Callable[[], None], marks: Marks | None = None
    ) -> Callable[[], None]:
        """Capture what ``enqueue`` launches, from stream ``index`` on; return the replay."""
        graph = torch.cuda.CUDAGraph()
        stream = self.streams[index].stream
        stamping = None
        if marks is not None and marks.each and marks.by == "stamps":
            stamping = StampingCapture(self._own_stamps(), marks)
        torch.cuda.set_stream(stream)
        # Thread-local: other threads (a profiler's, a watchdog's) may call the runtime.
        graph.capture_begin(capture_error_mode="thread_local")
        self.held = stamping
        try:
            enqueue()
        except BaseException:
            torch.cuda.set_stream(stream)
            # What it broke, the end of the capture reports too: the first error is the cause.
            with suppress(RuntimeError):
                graph.capture_end()
            raise
        finally:
            self.held = None
        torch.cuda.set_stream(stream)
        graph.capture_end()
        if stamping is None:
            return graph.replay
        return StampedReplay(graph.replay, tuple(stamping.tags))

    def record_all(self, event: Event) -> None:
        """Record an event after all work enqueued so far on all streams.

        One timing event on the first stream waits for plain events on the others that got work
        since all were last idle: a timing event on each stream was measured to cost 1 % of 0.6 ms
        on 8 streams, this 0.3 %.
        """
        first = self.streams[0].stream
        for index in self.busy - {0}:
            self._joined[index].record(self.streams[index].stream)
            first.wait_event(self._joined[index])
        event_of(event).record(first)

    def timeline(self, enqueue: Callable[[], None]) -> Timeline:
        """Run ``enqueue`` under torch.profiler; return the kernels' intervals."""
        return kernel_trace.collect(self, enqueue, None)

    def held_timeline(self, enqueue: Callable[[], None]) -> Timeline:
        """Do the same with all streams held behind a spinning kernel on the default stream.

        A spin, not a value in memory, holds the gate: a queue that fills up while the work is held
        would block the host, which could then never open it.
        """
        self.synchronize()
        started = time.perf_counter_ns()
        enqueue()
        # The gate must outlast enqueueing under the profiler, which is slower; what it does not
        # outlast is left out by the times of the launches.
        hold_ns = 1_000_000 + 5 * (time.perf_counter_ns() - started)
        self.synchronize()
        return kernel_trace.collect(self, enqueue, min(hold_ns, 2_000_000_000))

    def held_window(
        self, enqueue: Callable[[], None], marks: Marks, *, hold: bool = True
    ) -> HeldWindow:
        """Release the work of all streams at once; return when each launch was done."""
        return held_window(self, self._own_stamps(), enqueue, marks, hold=hold)

    def launching_window(
        self, calls: Sequence[Call], launches: int, most_held: int
    ) -> LaunchingWindow:
        """Launch from a thread for each stream at once, and time each call."""
        if self._launching is None:
            self._launching = LaunchingThreads(
                [
                    ThreadsStream(partial(self._current_in_thread, each), each.synchronize)
                    for each in self.streams
                ]
            )
        # Not `launch`, whose own work would be in each call's time.
        self.busy.update(range(len(calls)))
        return self._launching.window(calls, launches, most_held)

    @contextmanager
    def _current_in_thread(self, stream: AcceleratorStream) -> Iterator[None]:
        """Make a stream current in the calling thread, in the pool's mode of gradients."""
        with torch.inference_mode(self._inference):
            torch.cuda.set_stream(stream.stream)
            yield

    def _own_stamps(self) -> Stamps:
        if self._stamps is None:
            with torch.inference_mode(False):
                self._stamps = Stamps(gate_of(self.device.index), len(self.streams))
        return self._stamps

    def export_trace(self, enqueue: Callable[[], None], path: str) -> None:
        """Write one pass as torch.profiler's Chrome trace."""
        kernel_trace.export(self, enqueue, path)

    def __enter__(self) -> AcceleratorPool:
        self._gradients.__enter__()
        self._device_before = torch.cuda.current_device()
        torch.cuda.set_device(self.device.index)
        self._stream_before = torch.cuda.current_stream(self.device.index)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, where: Any) -> None:
        if self._launching is not None:
            self._launching.close()
        # A current stream makes its device current, too.
        torch.cuda.set_stream(self._stream_before)
        torch.cuda.set_device(self._device_before)
        self._gradients.__exit__(kind, error, where)
        if error is None:
            torch.cuda.synchronize(self.device.index)
        if error is None or (isinstance(error, Exception) and self._becomes_idle()):
            self._idle.give_back(self._kinds, self._handles)

    def _becomes_idle(self) -> bool:
        """Wait a little for the streams after an error; return whether they are fit for others.

        Those of a broken device, which would raise again, are left to the process's end.
        """
        until = time.monotonic() + _DRAINING_S
        try:
            while not all(stream.stream.query() for stream in self.streams):
                if time.monotonic() > until:
                    return False
                time.sleep(_POLL_S)
        except RuntimeError:
            return False
        return True


def event_of(event: Event) -> torch.cuda.Event:
    """Return torch's event; TypeError if it belongs to another device."""
    if not isinstance(event, torch.cuda.Event):
        raise TypeError(f"an accelerator got an event of another device: {event!r}")
    return event


# Tenants that are threads open their pools at once, and a thread's current device is switched.
_OPENING = threading.Lock()

# Two streams with graphs were enough on an H200, and one launch on each of 8 was not.
_SETTLING_STREAMS, _SETTLING_LAUNCHES = 8, 500


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
        torch.cuda.init()
        self._properties = torch.cuda.get_device_properties(index)
        # Makes the context, so that the runtime's own calls find one.
        torch.cuda.synchronize(index)
        # The range of priorities is the current device's.
        with torch.cuda.device(index):
            self._runtime = Runtime(self.kind == "hip")
        self.profiled = False
        self._idle: IdleStreams[StreamKind] | None = None
        self._spins: dict[int, OneBlockSpin | FillingSpin] = {}
        self._green_contexts: dict[tuple[tuple[int, ...], int | None], GreenContexts] = {}

    @property
    def name(self) -> str:
        """The model's name."""
        return str(self._properties.name)

    @property
    def connections(self) -> int | None:
        """The runtime's hardware queues, by its environment variable or its documented default."""
        return CONNECTIONS[self.kind].count(os.environ)

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
        # The runtime makes streams on the thread's current device, whichever is asked for: after
        # another GPU's cell that is the other one.
        with torch.cuda.device(self.index):
            with _OPENING:
                if self._idle is None:
                    self._settle()
                    self._idle = IdleStreams(self._create_stream)
            return AcceleratorPool(self, self._runtime, self._idle, kinds, gradients)

    def _settle(self) -> None:
        """Bring the process's context into the state in which it stays.

        On an H200 it begins in a faster one: dependent kernels follow each other in 1.1 µs, and
        once several streams have been busy, or at some other moment, in 1.3 µs for good. A cell
        would depend on what its process has run before it, or change in its middle.
        """
        # Not lent to cells: the runtime gives hardware queues to streams in the order of creation.
        handles = [self._create_stream((0, None)) for _ in range(_SETTLING_STREAMS)]
        streams = [torch.cuda.ExternalStream(each, device=self.torch_device) for each in handles]
        vectors = torch.zeros(len(streams), 256, device=self.torch_device)
        torch.cuda.synchronize(self.index)
        for _ in range(_SETTLING_LAUNCHES):
            for stream, vector in zip(streams, vectors, strict=True):
                with torch.cuda.stream(stream):
                    vector.add_(1)
        torch.cuda.synchronize(self.index)

    def _create_stream(self, kind: StreamKind) -> int:
        handle = self._new_stream(kind)
        _, partition = kind
        # A green context names its device itself, and of one visible GPU there is no other.
        in_green_context = partition is not None and self.kind == "cuda"
        if not in_green_context and torch.cuda.device_count() > 1:
            found = self._runtime.stream_device(handle)
            if found != self.index:
                raise DeviceError(
                    f"a stream asked of {self.kind}:{self.index} lives on {self.kind}:{found}: "
                    "something changes the current device while streams are made; make one GPU "
                    "visible to this process"
                )
        return handle

    def _new_stream(self, kind: StreamKind) -> int:
        priority, partition = kind
        if partition is None:
            return self._runtime.create_stream(priority)
        if self.kind == "hip":
            units = int(self._properties.multi_processor_count)
            return create_masked_stream(self._runtime, partition, units)
        # Only one thread at a time creates streams, and so contexts.
        key = partition.split, partition.queues
        if key not in self._green_contexts:
            self._green_contexts[key] = GreenContexts(self.index, *key)
        device_priority = self._runtime.device_priority(priority)
        contexts = self._green_contexts[key]
        return contexts.create_stream(partition.group, device_priority)

    def sleep_until_ns(self, when_ns: int) -> None:
        """Sleep until `clock_ns` says ``when_ns``."""
        time.sleep(max(0, when_ns - self.clock_ns()) / 1e9)

    def open_telemetry(self) -> TelemetryReader | Unavailable:
        """Open the vendor's library, or return why it cannot be opened."""
        return open_reader(self.kind, self.lease_key)

    def cache_flush(self) -> BufferFlush:
        """Return what empties the L2 cache, and on AMD the one behind it."""
        return BufferFlush(self.torch_device, self.kind, l2_bytes(self.torch_device))

    def fingerprint(self) -> Fingerprint:
        """Return what must match for results to be compared, and what to report."""
        return fingerprint(self.kind, self.index)

    def new_event(self) -> torch.cuda.Event:
        """Create an event that can be timed with `elapsed_ns`."""
        event = torch.cuda.Event(enable_timing=True)
        # torch makes the runtime's event at the first record: not while measuring.
        event.record(torch.cuda.default_stream(self.torch_device))
        return event

    def new_graph_event(self) -> torch.cuda.Event:
        """Create a timing event that a graph records on every replay."""
        if self.kind == "hip":
            raise DeviceError("ROCm's torch does not record timing events inside graphs")
        try:
            return torch.cuda.Event(enable_timing=True, external=True)
        except TypeError as error:
            raise DeviceError(
                f"torch {torch.__version__} does not record timing events inside graphs"
            ) from error

    def elapsed_ns(self, start: Event, end: Event) -> int:
        """Return the device time between two completed events, in nanoseconds."""
        return round(float(event_of(start).elapsed_time(event_of(end))) * 1e6)

    def kernel_of(self, duration_ns: int, *, waves: int = 0) -> Callable[[], None]:
        """Return a spinning kernel that lasts about ``duration_ns``; see `Device.kernel_of`.

        Raises:
            DeviceError: if torch cannot compile one that fills the device.

        """
        if waves not in self._spins:
            place = torch.device("cuda", self.index)
            self._spins[waves] = FillingSpin(place, waves) if waves else OneBlockSpin(place)
        return self._spins[waves].kernel_of(duration_ns)

    call_of = staticmethod(BusyCall.lasting)
    clock_reading_ns = staticmethod(clock_reading_ns)

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
