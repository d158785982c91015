"""The host as a device: a worker thread per stream, its own clock for events and kernels.

Work runs in order on its stream's thread. torch releases the interpreter lock in its kernels, so
streams run concurrently on as many cores as there are; each thread computes on one core.
"""

from __future__ import annotations

import json
import os
import platform
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import psutil
import torch

from pytest_hwqueue.devices.fingerprint import Fingerprint, fingerprint
from pytest_hwqueue.devices.launches import LaunchTrace, TagLog
from pytest_hwqueue.devices.protocol import DeviceError, DeviceKind, Event
from pytest_hwqueue.metrics.timeline import Kernel, Timeline

_clock_ns = time.perf_counter_ns

# Enough that the time of a call hides in that of the work.
_SINES = 16_384


class _Recording:
    """One recording of an event: a stream's thread stamps it once, others wait for that."""

    __slots__ = ("_gate", "passed", "when_ns")

    def __init__(self) -> None:
        self.when_ns = 0
        self.passed = False
        # A bare lock, held until the stamp: much lighter than threading.Event.
        self._gate = threading.Lock()
        self._gate.acquire()

    def stamp(self, when_ns: int) -> None:
        self.when_ns = when_ns
        self.passed = True
        self._gate.release()

    def wait(self) -> None:
        if not self.passed:
            with self._gate:
                pass


class _JoinedRecording:
    """Recordings on several streams as one: passed when all are, at the time of the last."""

    def __init__(self, recordings: Sequence[_Recording]) -> None:
        self._recordings = recordings

    @property
    def when_ns(self) -> int:
        return max(recording.when_ns for recording in self._recordings)

    @property
    def passed(self) -> bool:
        return all(recording.passed for recording in self._recordings)

    def wait(self) -> None:
        for recording in self._recordings:
            recording.wait()


class HostEvent:
    """A time stamp taken by the stream's own thread.

    Each recording is its own, so that who waits for a later one is not let pass by an earlier.
    """

    def __init__(self) -> None:
        self.recording: _Recording | _JoinedRecording | None = None

    @property
    def when_ns(self) -> int:
        """When the last recording was passed; 0 if there is none."""
        return self.recording.when_ns if self.recording is not None else 0

    def query(self) -> bool:
        """Whether the stream has passed the point; true if never recorded."""
        return self.recording is None or self.recording.passed

    def synchronize(self) -> None:
        """Block the calling thread until the stream has passed the point."""
        if self.recording is not None:
            self.recording.wait()

    def record(self) -> _Recording:
        """Begin a new recording, for a stream to stamp."""
        self.recording = recording = _Recording()
        return recording


@dataclass(frozen=True)
class _Launch:
    function: Callable[..., object]
    arguments: tuple[object, ...]
    tag: str | None
    tagged: tuple[_Recording, _Recording] | None  # ready, done
    index: int  # in the trace; -1 outside a traced pass
    enqueued_ns: int


@dataclass(frozen=True)
class _Record:
    recording: _Recording


@dataclass(frozen=True)
class _Wait:
    recording: _Recording | _JoinedRecording


class HostStream:
    """One worker thread that runs what is enqueued, in order."""

    def __init__(self, pool: HostPool, index: int, priority: int, gradients: bool) -> None:
        self.index = index
        self.priority = priority
        self.error: BaseException | None = None
        self.kernels: list[Kernel] = []
        self._pool = pool
        self._gradients = gradients
        self._queue: queue.SimpleQueue[_Launch | _Record | _Wait | None] = queue.SimpleQueue()
        # Each counter has one writer: the host's thread, and the stream's.
        self._enqueued = 0
        self._done = 0
        self._thread = threading.Thread(target=self._work, name=f"hwq-stream-{index}", daemon=True)
        self._thread.start()

    @property
    def handle(self) -> int:
        """The thread's identifier."""
        identifier = self._thread.ident
        assert identifier is not None
        return identifier

    def launch(
        self, function: Callable[..., object], *arguments: object, tag: str | None = None
    ) -> None:
        """Enqueue ``function(*arguments)`` for this stream's thread."""
        pool = self._pool
        tagged = None
        index = -1
        if pool.trace is not None:
            index = pool.trace.launched(self.index, tag)
        if tag is not None and pool.tags is not None:
            events = pool.tags.next(tag, self.index)
            tagged = (_host_event(events.ready).record(), _host_event(events.done).record())
        self._enqueued += 1
        self._queue.put(_Launch(function, arguments, tag, tagged, index, _clock_ns()))

    def record(self, event: Event | None = None) -> Event:
        """Enqueue a time stamp; an idle stream passes it at once, without waking its thread."""
        host_event = HostEvent() if event is None else _host_event(event)
        if self._pool.trace is not None:
            self._pool.trace.recorded(self.index, host_event)
        self.stamp(host_event.record())
        return host_event

    def stamp(self, recording: _Recording) -> None:
        """Have a recording stamped behind the work enqueued so far."""
        if self._done == self._enqueued:
            recording.stamp(_clock_ns())
        else:
            self._enqueued += 1
            self._queue.put(_Record(recording))

    def wait(self, event: Event) -> None:
        """Let the thread block until another stream has passed the event."""
        if self._pool.trace is not None:
            self._pool.trace.waited(self.index, event)
        recording = _host_event(event).recording
        if recording is not None:
            self._enqueued += 1
            self._queue.put(_Wait(recording))

    def synchronize(self) -> None:
        """Block until all work enqueued so far is done; raise what it raised."""
        self.record().synchronize()
        self._pool.raise_error()

    def stop(self) -> None:
        """End the thread behind the work enqueued so far."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        # Gradient mode belongs to a thread, so it is set here and not where work is enqueued.
        with torch.inference_mode(not self._gradients):
            previous_end_ns = 0
            while (task := self._queue.get()) is not None:
                if isinstance(task, _Launch):
                    previous_end_ns = self._run(task, previous_end_ns)
                elif isinstance(task, _Record):
                    task.recording.stamp(_clock_ns())
                else:
                    task.recording.wait()
                    # Work behind a wait is ready when the event has passed.
                    previous_end_ns = max(previous_end_ns, task.recording.when_ns)
                self._done += 1

    def _run(self, launch: _Launch, previous_end_ns: int) -> int:
        start_ns = _clock_ns()
        # After an error the stream only drains, so that events still pass and nobody hangs.
        if self.error is None:
            try:
                launch.function(*launch.arguments)
            except BaseException as error:  # handed to the host's thread by raise_error
                self.error = error
        end_ns = _clock_ns()
        if launch.tagged is not None:
            ready, done = launch.tagged
            ready.stamp(max(launch.enqueued_ns, previous_end_ns))
            done.stamp(end_ns)
        if launch.index >= 0:
            trace = self._pool.trace
            assert trace is not None
            self.kernels.append(
                Kernel(
                    stream=self.index,
                    launch=launch.index,
                    name=getattr(launch.function, "__name__", "kernel"),
                    tag=launch.tag,
                    enqueued_ns=launch.enqueued_ns,
                    start_ns=start_ns,
                    end_ns=end_ns,
                    waits_for=trace.launches[launch.index].waits_for,
                )
            )
        return end_ns


class HostPool:
    """Worker threads, one per stream."""

    def __init__(self, count: int, priorities: Sequence[int], gradients: bool) -> None:
        self.tags: TagLog | None = None
        self.trace: LaunchTrace | None = None
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(1)
        self.streams = tuple(
            HostStream(self, index, priorities[index], gradients) for index in range(count)
        )

    def device_priorities(self) -> list[int]:
        """Threads have no priority of their own here: all 0."""
        return [0 for _ in self.streams]

    def synchronize(self) -> None:
        """Block until all threads are idle; raise what their work raised."""
        self._drain()
        self.raise_error()

    def _drain(self) -> None:
        event = HostEvent()
        self.record_all(event)
        event.synchronize()

    def record_all(self, event: Event) -> None:
        """Record an event behind all work enqueued so far on all threads."""
        recordings = [_Recording() for _ in self.streams]
        for stream, recording in zip(self.streams, recordings, strict=True):
            stream.stamp(recording)
        _host_event(event).recording = _JoinedRecording(recordings)

    def capture(self, index: int, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Refuse: there are no graphs here."""
        raise DeviceError("graph dispatch needs an accelerator: the CPU has no graphs")

    def timeline(self, enqueue: Callable[[], None]) -> Timeline:
        """Run ``enqueue`` and return the launches' intervals, by each thread's own clock."""
        return self._trace(enqueue, held=False)

    def held_timeline(self, enqueue: Callable[[], None]) -> Timeline:
        """Do the same with all threads held behind one gate until ``enqueue`` has returned."""
        return self._trace(enqueue, held=True)

    def _trace(self, enqueue: Callable[[], None], *, held: bool) -> Timeline:
        released_ns = None
        with self._traced():
            if held:
                gate = HostEvent()
                opening = gate.record()
                for stream in self.streams:
                    stream.wait(gate)
            try:
                enqueue()
            finally:
                if held:
                    released_ns = _clock_ns()
                    opening.stamp(released_ns)
                # Also after an error: what was enqueued belongs to this trace and to no other.
                self._drain()
            self.raise_error()
            kernels = [kernel for stream in self.streams for kernel in stream.kernels]
        kernels.sort(key=lambda kernel: kernel.start_ns)
        return Timeline(tuple(kernels), len(self.streams), released_ns)

    def export_trace(self, enqueue: Callable[[], None], path: str) -> None:
        """Write one pass as Chrome trace events, a track per stream."""
        timeline = self.held_timeline(enqueue)
        process = os.getpid()
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": process, "tid": stream.index,
             "args": {"name": f"stream {stream.index}"}}
            for stream in self.streams
        ]  # fmt: skip
        events += [
            {"ph": "X", "cat": "kernel", "name": kernel.tag or kernel.name, "pid": process,
             "tid": kernel.stream, "ts": kernel.start_ns / 1000,
             "dur": (kernel.end_ns - kernel.start_ns) / 1000,
             "args": {"launch": kernel.launch, "enqueued_us": kernel.enqueued_ns / 1000}}
            for kernel in timeline.kernels
        ]  # fmt: skip
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": events}, file)

    @contextmanager
    def _traced(self) -> Iterator[None]:
        self.trace = LaunchTrace()
        tags, self.tags = self.tags, None
        for stream in self.streams:
            stream.kernels = []
        try:
            yield
        finally:
            self.trace, self.tags = None, tags

    def raise_error(self) -> None:
        """Raise the first error of any stream, once."""
        for stream in self.streams:
            if stream.error is not None:
                error, stream.error = stream.error, None
                raise error

    def __enter__(self) -> HostPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        for stream in self.streams:
            stream.stop()
        torch.set_num_threads(self._threads_before)
        if error is None:
            self.raise_error()


class HostDevice:
    """The cores this process may use, behind the same contract as an accelerator."""

    kind: DeviceKind = "cpu"
    index = 0
    label = "cpu"
    lease_key = "cpu"
    connections = None
    has_values = True
    clock_ns = staticmethod(_clock_ns)

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._kernels: dict[int, Callable[[], None]] = {}

    @property
    def name(self) -> str:
        """The processor's model, for people."""
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
        """Where tensors go."""
        return torch.device("cpu")

    def open_streams(
        self, count: int, priorities: Sequence[int] | None = None, *, gradients: bool = False
    ) -> HostPool:
        """Start ``count`` worker threads; torch's own thread pool is held to one core each."""
        pool = HostPool(count, priorities or [0] * count, gradients)
        if len({stream.handle for stream in pool.streams}) != count:
            raise DeviceError(f"{count} streams asked for, but two share a thread")
        return pool

    def sleep_until_ns(self, when_ns: int) -> None:
        """Sleep until `clock_ns` says ``when_ns``."""
        time.sleep(max(0, when_ns - _clock_ns()) / 1e9)

    def fingerprint(self) -> Fingerprint:
        """What must match for results to be compared, and what should be reported."""
        return fingerprint(self.kind, self.index)

    def new_event(self) -> HostEvent:
        """Make an event that can be timed with `elapsed_ns`."""
        return HostEvent()

    def new_graph_event(self) -> HostEvent:
        """Refuse: there are no graphs here."""
        raise DeviceError("the CPU has no graphs")

    def elapsed_ns(self, start: Event, end: Event) -> int:
        """Time between two completed events, in nanoseconds."""
        return _host_event(end).when_ns - _host_event(start).when_ns

    def kernel_of(self, duration_ns: int) -> Callable[[], None]:
        """Return matrix products that keep one core busy for about ``duration_ns``."""
        if duration_ns not in self._kernels:
            self._kernels[duration_ns] = _busy_core(duration_ns)
        return self._kernels[duration_ns]

    def memory_bytes(self) -> dict[str, int]:
        """Resident memory of this process, now and at its peak."""
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"process_peak": peak, "process_resident": self._process.memory_info().rss}

    def reset_memory(self) -> None:
        """Do nothing: the operating system keeps one peak per process."""

    def limits(self) -> dict[str, Any]:
        """Cores usable and memory."""
        return {
            "cores usable": len(os.sched_getaffinity(0)),
            "memory GiB": round(psutil.virtual_memory().total / 2**30, 1),
        }


def _host_event(event: Event) -> HostEvent:
    if not isinstance(event, HostEvent):
        raise TypeError(f"the host device got an event of another device: {event!r}")
    return event


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
