"""The host as a device: a worker thread per stream, its own clock for events and kernels.

Work runs in order on its stream's thread. torch releases the interpreter lock in its kernels, so
streams run concurrently on the available cores; each thread computes on one core.
"""

from __future__ import annotations

import os
import platform
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import psutil
import torch

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.data.metrics.contention import HeldWindow, window_of
from pytest_hwqueue.data.metrics.launching import LaunchingWindow
from pytest_hwqueue.data.metrics.timeline import Kernel, Timeline
from pytest_hwqueue.data.records.fingerprint import Fingerprint
from pytest_hwqueue.data.records.kinds import KINDS, DeviceKind
from pytest_hwqueue.parts.devices.fingerprint import cpu_model, fingerprint
from pytest_hwqueue.parts.devices.launches import LaunchTrace, TagLog, write_trace
from pytest_hwqueue.parts.devices.launching import (
    BusyCall,
    LaunchingThreads,
    ThreadsStream,
    clock_reading_ns,
)
from pytest_hwqueue.parts.devices.protocol import Call, Event, Marks
from pytest_hwqueue.parts.devices.telemetry import HostReader

_clock_ns = time.perf_counter_ns

# Enough that the time of a call hides in that of the work.
_SINES = 16_384


class HostDevice:
    """The cores this process may use, with the interface of an accelerator."""

    kind: DeviceKind = "cpu"
    capabilities = KINDS["cpu"]
    model = None
    profiled = False
    index = 0
    label = "cpu"
    lease_key = "cpu"
    connections = None
    clock_ns = staticmethod(_clock_ns)

    def __init__(self) -> None:
        try:
            self._process = psutil.Process()
        except psutil.NoSuchProcess:
            raise DeviceError(
                "/proc does not show this process, so nothing can be measured on the CPU: mount "
                "/proc here (mount -t proc proc /proc; in a container, do not mask it)"
            ) from None
        self._kernels: dict[int, Callable[[], None]] = {}
        # Whether the peak is that since `reset_memory`.
        self._peaks = False

    @property
    def name(self) -> str:
        """The processor model's name."""
        return cpu_model() or platform.machine()

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

    def kernel_of(self, duration_ns: int, *, waves: int = 0) -> Callable[[], None]:
        """Return sines that keep one core busy for about ``duration_ns``.

        Raises:
            DeviceError: if it is to fill the device: a stream is a thread, which has one core.

        """
        if waves:
            raise DeviceError("a stream of the CPU is one thread: it has no kernel that fills all")
        if duration_ns not in self._kernels:
            self._kernels[duration_ns] = _busy_core(duration_ns)
        return self._kernels[duration_ns]

    call_of = staticmethod(BusyCall.lasting)
    clock_reading_ns = staticmethod(clock_reading_ns)

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


class Recording:
    """One recording of an event: a stream's thread stamps it once, and others wait for that."""

    __slots__ = ("_gate", "passed", "when_ns")

    def __init__(self) -> None:
        self.when_ns = 0
        self.passed = False
        # A bare lock, held until the stamp: much lighter than threading.Event.
        self._gate = threading.Lock()
        self._gate.acquire()

    def stamp(self, when_ns: int) -> None:
        """Mark the point as passed at ``when_ns``; called once, by the stream's thread."""
        self.when_ns = when_ns
        self.passed = True
        self._gate.release()

    def wait(self) -> None:
        """Block the calling thread until the point is passed."""
        if not self.passed:
            with self._gate:
                pass


class HostEvent:
    """A timestamp taken by the stream's own thread; of several streams, that of the last.

    Recordings are separate, so that an earlier one does not release those waiting for a later one.
    """

    def __init__(self) -> None:
        self.recordings: Sequence[Recording] = ()

    @property
    def when_ns(self) -> int:
        """When the last recording was passed; 0 if there is none."""
        return max((recording.when_ns for recording in self.recordings), default=0)

    def query(self) -> bool:
        """Whether the stream has passed the point; true if never recorded."""
        return all(recording.passed for recording in self.recordings)

    def synchronize(self) -> None:
        """Block the calling thread until the stream has passed the point."""
        for recording in self.recordings:
            recording.wait()

    def record(self) -> Recording:
        """Begin a new recording, for a stream to stamp."""
        recording = Recording()
        self.recordings = (recording,)
        return recording


def host_event(event: Event) -> HostEvent:
    """Return the host device's event; TypeError if it belongs to another device."""
    if not isinstance(event, HostEvent):
        raise TypeError(f"the host device got an event of another device: {event!r}")
    return event


@dataclass(frozen=True)
class _HostLaunch:
    function: Callable[..., object]
    arguments: tuple[object, ...]
    tag: str | None
    tagged: tuple[Recording, Recording] | None  # ready, done
    index: int  # in the trace; -1 outside a traced pass
    enqueued_ns: int


class HostStream:
    """One worker thread that runs enqueued work in order."""

    def __init__(self, pool: HostPool, index: int, priority: int, gradients: bool) -> None:
        self.index = index
        self.priority = priority
        self.error: BaseException | None = None
        self.launched = 0
        self.kernels: list[Kernel] = []
        self._pool = pool
        self._gradients = gradients
        # A recording is one to stamp; several are to be waited for.
        self._queue: queue.SimpleQueue[_HostLaunch | Recording | Sequence[Recording] | None]
        self._queue = queue.SimpleQueue()
        # Each counter has one writer: the host's thread, and the stream's.
        self._enqueued = 0
        self._done = 0
        self._thread = threading.Thread(target=self._work, name=f"hwq-stream-{index}", daemon=True)
        self._thread.start()
        # Python's name for the thread, and the system's: both are known once it has started.
        ids = self._thread.ident, self._thread.native_id
        self.handle, self.native_id = cast("tuple[int, int]", ids)

    def launch(
        self, function: Callable[..., object], *arguments: object, tag: str | None = None
    ) -> None:
        """Enqueue ``function(*arguments)`` for this stream's thread."""
        pool = self._pool
        tagged = None
        index = -1
        begin_ns = 0
        if pool.trace is not None:
            begin_ns = _clock_ns()
            index = pool.trace.launched(self.index, tag)
        self.launched += 1
        if tag is not None and pool.tags is not None:
            events = pool.tags.next(tag, self.index)
            tagged = (host_event(events.ready).record(), host_event(events.done).record())
        self._enqueued += 1
        pool.busy.add(self.index)
        self._queue.put(_HostLaunch(function, arguments, tag, tagged, index, _clock_ns()))
        if pool.trace is not None:
            pool.trace.called(threading.get_native_id(), begin_ns, _clock_ns())

    def record(self, event: Event | None = None) -> Event:
        """Enqueue a timestamp; an idle stream passes it at once, without waking its thread."""
        recorded = HostEvent() if event is None else host_event(event)
        if self._pool.trace is not None:
            self._pool.trace.recorded(self.index, recorded)
        self.stamp(recorded.record())
        return recorded

    @property
    def busy(self) -> bool:
        """Whether work enqueued so far is not done yet, or its error not raised."""
        return self._done != self._enqueued or self.error is not None

    def stamp(self, recording: Recording) -> None:
        """Have a recording stamped after the work enqueued so far."""
        if self.busy:
            self._enqueued += 1
            self._queue.put(recording)
        else:
            recording.stamp(_clock_ns())

    def wait(self, event: Event) -> None:
        """Block the thread until another stream has passed the event."""
        if self._pool.trace is not None:
            self._pool.trace.waited(self.index, event)
        recordings = host_event(event).recordings
        if recordings:
            self._enqueued += 1
            self._pool.busy.add(self.index)
            self._queue.put(recordings)

    def synchronize(self) -> None:
        """Block until all work enqueued so far is done; raise what it raised."""
        self.record().synchronize()
        self.raise_error()

    def raise_error(self) -> None:
        """Raise the first error of the work since this was last called, if there was one."""
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def stop(self) -> None:
        """End the thread after the work enqueued so far."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        # So that the kernel, and whoever traces it, calls the thread as we do. Linux alone has it.
        with suppress(OSError):
            comm = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
            comm.write_text(threading.current_thread().name, encoding="utf-8")
        # Gradient mode belongs to a thread, so it is set here and not where work is enqueued.
        with torch.inference_mode(not self._gradients):
            previous_end_ns = 0
            while (task := self._queue.get()) is not None:
                if isinstance(task, _HostLaunch):
                    previous_end_ns = self._run(task, previous_end_ns)
                elif isinstance(task, Recording):
                    task.stamp(_clock_ns())
                else:
                    for recording in task:
                        recording.wait()
                        # Work behind a wait is ready when the event has passed.
                        previous_end_ns = max(previous_end_ns, recording.when_ns)
                self._done += 1

    def _run(self, launch: _HostLaunch, previous_end_ns: int) -> int:
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
                    call=launch.index,
                )
            )
        return end_ns


class HostPool:
    """Worker threads, one per stream."""

    def __init__(self, count: int, priorities: Sequence[int], gradients: bool) -> None:
        self.tags: TagLog | None = None
        self.trace: LaunchTrace | None = None
        # Indices of the streams that got work and have not been found idle since.
        self.busy: set[int] = set()
        self._launching: LaunchingThreads | None = None
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(1)
        self.streams = tuple(
            HostStream(self, index, priorities[index], gradients) for index in range(count)
        )

    @property
    def launched(self) -> int:
        """Calls of its streams' launch; each stream counts, since threads may share the pool."""
        return sum(stream.launched for stream in self.streams)

    def device_priorities(self) -> list[int]:
        """Return all 0: threads have no priorities here."""
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
        """Record an event after all work enqueued so far on all threads."""
        recordings = []
        # The first tells the time if all are idle.
        for index in {0, *self.busy}:
            stream = self.streams[index]
            # In this order: threads that share the pool may be launching.
            self.busy.discard(index)
            if stream.busy:
                self.busy.add(index)
            recordings.append(Recording())
            stream.stamp(recordings[-1])
        host_event(event).recordings = recordings

    def capture(
        self, index: int, enqueue: Callable[[], None], marks: Marks | None = None
    ) -> Callable[[], None]:
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
        self.trace = trace = LaunchTrace()
        tags, self.tags = self.tags, None
        for stream in self.streams:
            stream.kernels = []
        try:
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
        finally:
            self.trace, self.tags = None, tags
        kernels = [kernel for stream in self.streams for kernel in stream.kernels]
        kernels.sort(key=lambda kernel: kernel.start_ns)
        return Timeline(tuple(kernels), len(self.streams), released_ns, calls=tuple(trace.calls))

    def held_window(
        self, enqueue: Callable[[], None], marks: Marks, *, hold: bool = True
    ) -> HeldWindow:
        """Release the work of all streams at once; every launch's own times are known."""
        if hold:
            return window_of(self.held_timeline(enqueue))
        opened_ns = _clock_ns()
        return window_of(self.timeline(enqueue), opened_ns)

    def launching_window(
        self, calls: Sequence[Call], launches: int, most_held: int
    ) -> LaunchingWindow:
        """Launch from a thread for each stream at once, and time each call."""
        if self._launching is None:
            self._launching = LaunchingThreads(
                [ThreadsStream(nullcontext, stream.synchronize) for stream in self.streams]
            )
        onto = [
            # What launches nothing is called by the thread itself.
            call if isinstance(call, BusyCall) else partial(stream.launch, call)
            for stream, call in zip(self.streams, calls, strict=False)
        ]
        return self._launching.window(onto, launches, most_held)

    def export_trace(self, enqueue: Callable[[], None], path: str) -> None:
        """Write one pass as Chrome trace events, a track per stream."""
        write_trace(self.held_timeline(enqueue), path)

    def raise_error(self) -> None:
        """Raise the first error of any stream, once."""
        for index in sorted(self.busy):
            self.streams[index].raise_error()

    def __enter__(self) -> HostPool:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, where: Any) -> None:
        if self._launching is not None:
            self._launching.close()
        for stream in self.streams:
            stream.stop()
        torch.set_num_threads(self._threads_before)
        if error is None:
            self.raise_error()
