"""Kernel intervals of several pools in one process, each used by its own thread.

The vendor's tracer belongs to the process, not to a thread. So the threads meet, the last to arrive
starts it for all, and the last to finish ends it. Kernels are assigned by the thread that made the
calls, since a thread's ranges do not overlap.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


class SharedTrace:
    """Traces several threads between two meetings; reusable after the second.

    Args:
        members: number of threads.

    """

    def __init__(self, members: int) -> None:
        self._begin = threading.Barrier(members, action=self._start)
        self._end = threading.Barrier(members, action=self._stop)
        self._profiler: Profiler | None = None
        self._before: ClockOffset | None = None
        self._threads: set[int] = set()
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
                mark_streams(pool)
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
        try:
            everyone = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
            torch.cuda.synchronize()
            self._before = measure_offset()
            self._threads = threads()
            self._profiler = Profiler(experimental_config=everyone).start()
        except (RuntimeError, TypeError) as error:
            self._refused = str(error)
            raise DeviceError(self._refused) from error

    def _stop(self) -> None:
        profiler, before = self._profiler, self._before
        assert profiler is not None
        assert before is not None
        try:
            torch.cuda.synchronize()
            profiler.stop()
            self._clocks = ClockPair(before, measure_offset())
            with tempfile.TemporaryDirectory(prefix="hwq-") as folder:
                path = Path(folder) / "trace.json"
                profiler.write(path)
                self._trace = json.loads(path.read_text(encoding="utf-8"))
            # The next one, started before this one has left, would see no kernels.
            detached(threads() - self._threads)
        except RuntimeError as error:
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
