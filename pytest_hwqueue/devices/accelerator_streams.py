"""Streams of an accelerator, and the pool that a measurement uses."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

import torch

from pytest_hwqueue.devices import compute_units, green_contexts, kernel_trace
from pytest_hwqueue.devices.compute_units import GroupEvidence, IdleStreams, Partition
from pytest_hwqueue.devices.kinds import Runtime
from pytest_hwqueue.devices.launches import LaunchTrace, TagLog
from pytest_hwqueue.devices.protocol import Event
from pytest_hwqueue.devices.trace_files import NAMED_RANGES
from pytest_hwqueue.errors import DeviceError
from pytest_hwqueue.metrics.timeline import Timeline

if TYPE_CHECKING:
    from pytest_hwqueue.devices.accelerator import Accelerator

# Priority, and where its kernels run; None for anywhere.
StreamKind = tuple[int, Partition | None]

# How long work may run on after an error that has nothing to do with it.
_DRAINING_S = 5.0
_POLL_S = 0.001


class AcceleratorEvent:
    """A timing event on the device's own clock."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self.event = event

    def query(self) -> bool:
        """Whether the stream has passed the point; true if never recorded."""
        return bool(self.event.query())

    def synchronize(self) -> None:
        """Block the calling thread until the stream has passed the point."""
        self.event.synchronize()


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
        else:
            function(*arguments)

    def record(self, event: Event | None = None) -> Event:
        """Record an event after the work enqueued so far."""
        recorded = AcceleratorEvent(torch.cuda.Event()) if event is None else event
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
        # Indices of the streams that got work since all were last idle.
        self.busy: set[int] = set()
        self.device = device
        self._runtime = runtime
        self._idle = idle
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
            green_contexts.group_of(handle, device, replayed=replayed) for handle in self._handles
        ]

    def synchronize(self) -> None:
        """Block the calling thread until the device is idle."""
        self.busy.clear()
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
        except BaseException:
            torch.cuda.set_stream(stream)
            # What it broke, the end of the capture reports too: the first error is the cause.
            with suppress(RuntimeError):
                graph.capture_end()
            raise
        torch.cuda.set_stream(stream)
        graph.capture_end()
        return graph.replay

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
    if not isinstance(event, AcceleratorEvent):
        raise TypeError(f"an accelerator got an event of another device: {event!r}")
    return event.event
