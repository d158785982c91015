"""Kernel intervals of several pools in one process, each used by its own thread.

The vendor's tracer belongs to the process, not to a thread. So the threads meet, the last to arrive
starts it for all, and the last to finish ends it. Kernels are assigned by the thread that made the
calls, since a thread's ranges do not overlap.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.data.metrics.timeline import Timeline
from pytest_hwqueue.parts.devices.accelerator import AcceleratorPool
from pytest_hwqueue.parts.devices.clocks import ClockOffset, ClockPair, measure_offset
from pytest_hwqueue.parts.devices.kernel_trace import (
    DEVICE_WORK,
    Profiler,
    detached,
    mark_streams,
    read,
    threads,
)
from pytest_hwqueue.parts.devices.launches import LaunchTrace
from pytest_hwqueue.parts.processes.scratch import scratch_folder


class ProcessTracer(Protocol):
    """Traces all threads of this process."""

    def start(self) -> None:
        """Start; RuntimeError or TypeError if it cannot."""

    def mark(self, pool: AcceleratorPool) -> None:
        """Identify the tracer's numbers of a pool's streams, for the calling thread."""

    def stop(self) -> tuple[dict[str, Any], ClockPair | None]:
        """Stop; return the trace as Kineto writes it, and what converts its times."""
        ...


class KinetoTracer:
    """The vendor's tracer, by torch's profiler."""

    def __init__(self) -> None:
        self._profiler: Profiler | None = None
        self._before: ClockOffset | None = None
        self._threads: set[int] = set()

    def start(self) -> None:
        """Start on an idle device."""
        everyone = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        torch.cuda.synchronize()
        self._before = measure_offset()
        self._threads = threads()
        self._profiler = Profiler(experimental_config=everyone).start()

    def mark(self, pool: AcceleratorPool) -> None:
        """Run a marker on each stream."""
        mark_streams(pool)

    def stop(self) -> tuple[dict[str, Any], ClockPair | None]:
        """Stop on an idle device, and read what it has written."""
        profiler, before = self._profiler, self._before
        assert profiler is not None
        assert before is not None
        torch.cuda.synchronize()
        profiler.stop()
        clocks = ClockPair(before, measure_offset())
        with scratch_folder() as folder:
            path = Path(folder) / "trace.json"
            profiler.write(path)
            trace: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        # The next one, started before this one has left, would see no kernels.
        detached(threads() - self._threads)
        return trace, clocks


class SharedTrace:
    """Traces several threads between two meetings; reusable after the second.

    Args:
        members: number of threads.
        tracer: of their process.

    """

    def __init__(self, members: int, tracer: ProcessTracer) -> None:
        self._begin = threading.Barrier(members, action=self._start)
        self._end = threading.Barrier(members, action=self._stop)
        self._tracer = tracer
        self._clocks: ClockPair | None = None
        self._trace: dict[str, Any] = {}
        self._refused = ""

    def timeline(self, pool: AcceleratorPool, enqueue: Callable[[], None]) -> Timeline:
        """Run ``enqueue`` while the others run theirs; return the kernels of its own launches.

        Launches by other threads, such as autograd's, are assigned to nobody.

        Raises:
            DeviceError: if the profiler could not be started, or saw no kernels.

        """
        tags, pool.tags = pool.tags, None
        trace = LaunchTrace()
        try:
            self._meet(self._begin)
            try:
                self._tracer.mark(pool)
                pool.trace = trace
                enqueue()
            finally:
                pool.trace = None
                for stream in pool.streams:
                    stream.synchronize()
                self._meet(self._end)
        finally:
            pool.tags = tags
        mine = self._of_thread(threading.get_native_id())
        return read(mine, trace, len(pool.streams), self._clocks, pool.in_green_contexts)

    def _meet(self, barrier: threading.Barrier) -> None:
        try:
            barrier.wait()
        except threading.BrokenBarrierError:
            raise DeviceError(
                f"the tracer that all threads share failed: {self._refused}"
            ) from None

    def _start(self) -> None:
        with self._refusing():
            self._tracer.start()

    def _stop(self) -> None:
        with self._refusing():
            self._trace, self._clocks = self._tracer.stop()

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Keep why the tracer failed: all threads but one learn only that another did."""
        try:
            yield
        except (RuntimeError, TypeError) as error:
            self._refused = str(error)
            raise DeviceError(self._refused) from error

    def _of_thread(self, thread: int) -> dict[str, Any]:
        """Return the trace with one thread's events and all the device's."""
        events = [
            event
            for event in self._trace["traceEvents"]
            if event.get("cat") in DEVICE_WORK or event.get("tid") == thread
        ]
        return {**self._trace, "traceEvents": events}
