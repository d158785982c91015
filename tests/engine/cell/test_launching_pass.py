"""The launching pass: how much it takes and keeps, and when it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from pytest_hwqueue.data.errors import InvalidMeasurement
from pytest_hwqueue.data.metrics.latency import LEAST_ITERATIONS
from pytest_hwqueue.data.metrics.launching import LaunchingWindow
from pytest_hwqueue.engine.cell.launching_pass import (
    LaunchingOfThreads,
    LaunchingProgram,
    launching_pass,
    launching_plan,
    launching_program,
)
from pytest_hwqueue.engine.cell.sample_plan import SamplePlan
from pytest_hwqueue.engine.cell.stop_rule import StopRule
from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.devices.protocol import Call, Stream
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.parts.workloads.workload import HELD_KERNELS

LONG = StopRule(1, 10**12)
PLAN = launching_plan(SamplePlan(1000), LONG)


@dataclass
class Windows:
    """A pool whose threads make calls of 10 ns, one after another; two of three are apart."""

    together: bool = True
    taken: list[tuple[int, int, int]] = field(default_factory=list)

    def launching_window(
        self, calls: Sequence[Call], launches: int, most_held: int
    ) -> LaunchingWindow:
        self.taken.append((len(calls), launches, most_held))
        each = range(0, 10 * launches // len(calls), 10)
        begun = [[*each] for _ in calls]
        if not self.together:
            begun[-1] = []
        return LaunchingWindow(begun, [[time + 10 for time in times] for times in begun])

    def synchronize(self) -> None:
        """Nothing runs."""


@pytest.mark.parametrize("threads", [1, 8, 64, 128])
def test_launches_in_flight_fit_into_a_launch_queue(threads: int) -> None:
    pool = Windows()
    program = LaunchingProgram([lambda: None] * threads, native=True)
    launchers = LaunchingOfThreads(HostDevice(), pool, program.calls)  # type: ignore[arg-type]
    found = launching_pass(HostDevice(), launchers, program, PLAN)
    for calls, launches, most_held in pool.taken:
        assert most_held == found.contention.most_held == max(1, HELD_KERNELS // threads)
        assert launches == calls * 100 or calls == 1
    assert (found.contention.launchers, found.contention.by) == (threads, "threads")
    assert found.contention.windows == found.needed_windows >= LEAST_ITERATIONS
    # One of each alone, one of each before the first sample, then in turns.
    assert len(pool.taken) == 4 + 2 * found.contention.windows
    assert 0 < len(found.launches_ns) / found.contention.windows <= 400
    assert len(found.launches_ns) == len(found.control_ns)


def test_threads_that_never_call_at_once_have_no_latency_and_say_why() -> None:
    pool = Windows(together=False)

    def alone_or_apart(calls: Sequence[Call], launches: int, most_held: int) -> LaunchingWindow:
        pool.together = len(calls) == 1
        return Windows.launching_window(pool, calls, launches, most_held)

    pool.launching_window = alone_or_apart  # type: ignore[method-assign]
    program = LaunchingProgram([lambda: None] * 2, native=True)
    launchers = LaunchingOfThreads(HostDevice(), pool, program.calls)  # type: ignore[arg-type]
    found = launching_pass(HostDevice(), launchers, program, PLAN)
    assert (found.launches_ns, found.tags_ns("launch")) == ([], {})
    assert (found.contention.inside, found.contention.explained) == (None, None)
    assert "never were calling all at once" in found.refused["latency"]


def test_time_ends_the_pass_after_a_window() -> None:
    device = SimulatedDevice("h200")
    with device.open_streams(4) as pool:
        kernel = device.kernel_of(1000)
        streams: Sequence[Stream] = pool.streams

        def enqueue(streams: Sequence[Stream]) -> None:
            for stream in streams:
                stream.launch(kernel)

        enqueue(streams)
        pool.synchronize()
        program = launching_program(device, pool, enqueue, replayed=True)
        brief = launching_plan(SamplePlan(1000), StopRule(1, 1_000_000, 10**12))
        launchers = LaunchingOfThreads(device, pool, program.calls)
        found = launching_pass(device, launchers, program, brief)
    assert program.native
    assert 1 <= found.contention.windows < found.needed_windows
    assert len(found.contention.windows_ns) == found.contention.windows


def test_a_stream_without_a_launch_is_named() -> None:
    device = SimulatedDevice("h200")
    with device.open_streams(2) as pool:
        kernel = device.kernel_of(1000)
        with pytest.raises(InvalidMeasurement, match="nothing is launched on stream 1"):
            launching_program(
                device, pool, lambda streams: streams[0].launch(kernel), replayed=False
            )


def test_launching_on_the_cpu_is_a_call_of_python() -> None:
    device, ran = HostDevice(), list[int]()
    with device.open_streams(2) as pool:

        def enqueue(streams: Sequence[Stream]) -> None:
            for index, stream in enumerate(streams):
                stream.launch(ran.append, index)
                stream.launch(ran.append, index)

        enqueue(pool.streams)
        pool.synchronize()
        ran.clear()
        program = launching_program(device, pool, enqueue, replayed=False)
        assert not program.native
        pool.launching_window(program.calls, 10, 100)
        pool.synchronize()
    # Each call is all that its stream has in an iteration.
    assert len(ran) == 20
    assert ran.count(0) % 2 == ran.count(1) % 2 == 0
