"""Threads that share one tracer get each its own kernels; the profiler is a made-up one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.data.metrics.timeline import Timeline
from pytest_hwqueue.parts.devices.shared_trace import SharedTrace

from .marks import complete


class Recorder:
    """A tracer whose events are as Kineto's: for each launch a range, a call, later a kernel."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._now_ns = 0

    def launch(self, name: str, stream: int) -> None:
        """One launch of the calling thread; launches of several threads overlap in time."""
        with self._lock:
            self._now_ns += 1000
            thread, number, now_ns = threading.get_native_id(), len(self.events), self._now_ns
            kernel = {"correlation": number, "stream": stream}
            self.events += [
                complete("user_annotation", name, now_ns, 5000, thread, 1),
                complete("cuda_runtime", "call", now_ns + 500, 400, thread, 1, correlation=number),
                complete("kernel", "spin", now_ns + 50_000, 3000, stream, 1, **kernel),
            ]

    def start(self) -> None:
        """It sees all there is."""

    def mark(self, pool: Any) -> None:
        for stream in pool.streams:
            self.launch(f"hwq.marker {stream.index}", stream.number)

    def stop(self) -> tuple[dict[str, Any], None]:
        return {"traceEvents": self.events}, None


def pool_of(first: int) -> Any:
    """Two streams, which the runtime numbers as it likes."""
    streams = [
        SimpleNamespace(index=index, number=first + index, synchronize=lambda: None)
        for index in range(2)
    ]
    return SimpleNamespace(in_green_contexts=frozenset(), tags="tags", trace=None, streams=streams)


def together(*jobs: Callable[[], object]) -> None:
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_each_thread_gets_its_own_launches() -> None:
    recorder = Recorder()
    shared = SharedTrace(2, recorder)
    turns = threading.Barrier(2)
    found: dict[int, list[Timeline]] = {7: [], 20: []}

    def tenant(first: int) -> None:
        pool = pool_of(first)

        def enqueue() -> None:
            for number in range(4):
                turns.wait(30)
                index = pool.trace.launched(number % 2, f"of {first}")
                recorder.launch(f"hwq.launch {index}", first + number % 2)

        # Once to see that it works, then the window.
        for _ in range(2):
            found[first].append(shared.timeline(pool, enqueue))
        assert (pool.tags, pool.trace) == ("tags", None)

    together(partial(tenant, 7), partial(tenant, 20))
    for first, (timeline, _) in found.items():
        kernels = sorted(timeline.kernels, key=lambda kernel: kernel.launch)
        assert [(k.launch, k.stream, k.tag) for k in kernels] == [
            (number, number % 2, f"of {first}") for number in range(4)
        ]
        assert timeline.elsewhere == 0


def test_a_tracer_that_cannot_start_refuses_all() -> None:
    class Refuses(Recorder):
        def start(self) -> None:
            raise RuntimeError("no rights")

    shared = SharedTrace(2, Refuses())
    reasons: list[str] = []

    def tenant() -> None:
        try:
            shared.timeline(pool_of(1), lambda: None)
        except DeviceError as error:
            reasons.append(str(error))

    together(tenant, tenant)
    assert len(reasons) == 2
    assert all("no rights" in reason for reason in reasons)
