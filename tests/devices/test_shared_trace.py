"""Threads that share one tracer get each its own kernels; the profiler is a made-up one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from pytest_hwqueue.devices import shared_trace
from pytest_hwqueue.devices.accelerator import AcceleratorPool
from pytest_hwqueue.devices.launches import LaunchTrace
from pytest_hwqueue.devices.shared_trace import SharedTrace
from pytest_hwqueue.errors import DeviceError
from pytest_hwqueue.metrics.timeline import Timeline

Json = dict[str, Any]


class Recorder:
    """Writes events as Kineto does: for each launch a range, a call, and later a kernel."""

    def __init__(self) -> None:
        self.events: list[Json] = []
        self._lock = threading.Lock()
        self._now = 0.0

    def launch(self, name: str, stream: int) -> None:
        """One launch of the calling thread; launches of several threads overlap in time."""
        with self._lock:
            self._now += 1.0
            thread, number, now = threading.get_native_id(), len(self.events), self._now
            common = {"ph": "X", "pid": 1}
            self.events += [
                {**common, "cat": "user_annotation", "name": name, "tid": thread, "ts": now,
                 "dur": 5.0},
                {**common, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": thread,
                 "ts": now + 0.5, "dur": 0.4, "args": {"correlation": number}},
                {**common, "cat": "kernel", "name": "spin", "tid": stream, "ts": now + 50.0,
                 "dur": 3.0, "args": {"correlation": number, "stream": stream}},
            ]  # fmt: skip


class Stream:
    def __init__(self, pool: Pool, index: int, number: int) -> None:
        self.index, self.number = index, number
        self._pool = pool

    def launch(self, tag: str) -> None:
        trace = self._pool.trace
        assert trace is not None
        index = trace.launched(self.index, tag)
        self._pool.recorder.launch(f"hwq.launch {index}", self.number)

    def synchronize(self) -> None:
        return None


class Pool:
    """Two streams, which the runtime numbers as it likes."""

    in_green_contexts: frozenset[int] = frozenset()

    def __init__(self, recorder: Recorder, first: int) -> None:
        self.recorder = recorder
        self.tags: object = "tags"
        self.trace: LaunchTrace | None = None
        self.streams = [Stream(self, index, first + index) for index in range(2)]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """In place of the profiler, and of the markers that tell streams apart."""
    made = Recorder()

    def mark(pool: Pool) -> None:
        for stream in pool.streams:
            made.launch(f"hwq.marker {stream.index}", stream.number)

    def stop(self: SharedTrace) -> None:
        self._trace = {"traceEvents": made.events}

    monkeypatch.setattr(shared_trace, "mark_streams", mark)
    monkeypatch.setattr(SharedTrace, "_start", lambda self: None)
    monkeypatch.setattr(SharedTrace, "_stop", stop)
    return made


def together(jobs: list[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_each_thread_gets_its_own_launches(recorder: Recorder) -> None:
    shared = SharedTrace(2)
    turns = threading.Barrier(2)
    found: dict[int, list[Timeline]] = {}

    def tenant(first: int) -> Callable[[], None]:
        pool = Pool(recorder, first)

        def enqueue() -> None:
            for number in range(4):
                turns.wait(30)
                pool.streams[number % 2].launch(f"of {first}")

        def run() -> None:
            # Once to see that it works, then the window.
            for _ in range(2):
                timeline = shared.timeline(cast(AcceleratorPool, pool), enqueue)
                found.setdefault(first, []).append(timeline)
            assert pool.tags == "tags"
            assert pool.trace is None

        return run

    together([tenant(7), tenant(20)])
    for first in (7, 20):
        for timeline in found[first][:1]:
            kernels = sorted(timeline.kernels, key=lambda kernel: kernel.launch)
            assert [(k.launch, k.stream, k.tag) for k in kernels] == [
                (number, number % 2, f"of {first}") for number in range(4)
            ]
            assert timeline.elsewhere == 0


def test_a_tracer_that_cannot_start_refuses_all(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: SharedTrace) -> None:
        self._refused = "no rights"
        raise DeviceError("no rights")

    monkeypatch.setattr(SharedTrace, "_start", start)
    shared = SharedTrace(2)
    reasons: list[str] = []

    def tenant() -> None:
        try:
            shared.timeline(cast(AcceleratorPool, Pool(recorder, 1)), lambda: None)
        except DeviceError as error:
            reasons.append(str(error))

    together([tenant, tenant])
    assert len(reasons) == 2
    assert all("no rights" in reason for reason in reasons)
