"""The contended pass: on simulated devices, whose times are known, and on the host's threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from pytest_hwqueue.data.errors import InvalidMeasurement
from pytest_hwqueue.data.metrics.contention import HeldWindow
from pytest_hwqueue.engine.cell.contended_pass import (
    ContendedPlan,
    ContendedResult,
    JudgedLaunches,
    contended_pass,
    contended_program,
)
from pytest_hwqueue.engine.cell.program import Enqueue, taped
from pytest_hwqueue.engine.cell.sample_plan import SamplePlan
from pytest_hwqueue.engine.cell.stop_rule import StopRule
from pytest_hwqueue.parts.devices.held import NotHeld
from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.devices.protocol import Device, Marks, Stream, StreamPool
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.parts.workloads.registry import workload_class
from pytest_hwqueue.parts.workloads.workload import PrimaryLatency, Setup, parameters_for

# Of some windows alone: a window of 32 streams takes a simulated millisecond, and a real 0.1 s.
MANY = 10**6
BRIEF = ContendedPlan(SamplePlan(1), StopRule(MANY, 8_000_000, 10**12))
PLAN = ContendedPlan(SamplePlan(40), StopRule(MANY, 10**12))
BURST = PrimaryLatency("burst", "launch", "a burst")


def measured(
    device: Device, pool: StreamPool, enqueue: Enqueue, primary: PrimaryLatency = BURST,
    *, replayed: bool = True, plan: ContendedPlan = PLAN,
) -> ContendedResult:  # fmt: skip
    enqueue(pool.streams)
    pool.synchronize()
    judged = JudgedLaunches(taped(pool.streams, enqueue), primary)
    program = contended_program(device, pool, enqueue, judged, replayed=replayed)
    return contended_pass(device, pool, program, plan)


def burst_on_each(kernel: Callable[[], None]) -> Enqueue:
    def enqueue(streams: Sequence[Stream]) -> None:
        for stream in streams:
            stream.launch(kernel, tag="burst")

    return enqueue


@contextmanager
def suite_workload(name: str, streams: int) -> Iterator[tuple[Device, StreamPool, Enqueue]]:
    device = SimulatedDevice("h200")
    workload_type = workload_class(name)
    workload = workload_type(parameters_for(workload_type, "full", {}))
    with device.open_streams(streams) as pool:
        workload.setup(Setup(device, streams, 0))
        pool.synchronize()
        yield device, pool, workload.iterate


@pytest.mark.parametrize("streams", [1, 8, 32])
def test_a_latency_on_so_many_streams_is_that_of_so_many_in_flight(streams: int) -> None:
    """By Little's law: streams in flight = rate times mean latency."""
    with suite_workload("tiny_kernel_stress", streams) as (device, pool, enqueue):
        found = measured(device, pool, enqueue, plan=BRIEF)
    assert found.contention.in_flight == pytest.approx(streams)
    assert found.contention.held
    mean_s = float(np.mean(found.latencies_ns)) / 1e9
    assert found.contention.launches_per_s * mean_s == pytest.approx(streams, rel=0.05)


def test_more_streams_than_the_front_end_serves_wait_for_each_other() -> None:
    """Four times the streams, four times the latency: what was once read one stream at a time."""
    p50 = {}
    for streams in (8, 32):
        with suite_workload("tiny_kernel_stress", streams) as (device, pool, enqueue):
            p50[streams] = float(
                np.median(measured(device, pool, enqueue, plan=BRIEF).latencies_ns)
            )
    assert p50[32] / p50[8] == pytest.approx(4, rel=0.1)


class OneByOne:
    """A pool whose windows are launched one launch at a time, each waited for: the mutant."""

    def __init__(self, pool: StreamPool) -> None:
        self._pool = pool
        self.streams: Sequence[Stream] = [_Waiting(stream) for stream in pool.streams]

    def __getattr__(self, name: str) -> object:
        return getattr(self._pool, name)

    def held_window(
        self, enqueue: Callable[[], None], marks: Marks, *, hold: bool = True
    ) -> HeldWindow:
        return self._pool.held_window(enqueue, marks, hold=False)


class _Waiting:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.index, self.handle, self.priority = stream.index, stream.handle, stream.priority
        self.record, self.wait, self.synchronize = stream.record, stream.wait, stream.synchronize

    def launch(
        self, function: Callable[..., object], *arguments: object, tag: str | None = None
    ) -> None:
        self._stream.launch(function, *arguments, tag=tag)
        self._stream.synchronize()


def test_a_host_that_launches_one_by_one_has_about_one_stream_in_flight() -> None:
    device = SimulatedDevice("h200")
    with device.open_streams(16) as pool:
        enqueue = burst_on_each(device.kernel_of(100_000))
        enqueue(pool.streams)
        pool.synchronize()
        judged = JudgedLaunches(taped(pool.streams, enqueue), BURST)
        one_by_one = OneByOne(pool)
        program = contended_program(device, one_by_one, enqueue, judged, replayed=False)  # type: ignore[arg-type]
        found = contended_pass(device, one_by_one, program, PLAN)  # type: ignore[arg-type]
        assert found.contention.in_flight < 1.1
        assert not found.contention.enough
        assert measured(device, pool, enqueue, replayed=False).contention.in_flight == 16


class Full(OneByOne):
    """A pool whose launch queues are too short for what a window holds."""

    def __init__(self, pool: StreamPool) -> None:
        super().__init__(pool)
        self.streams = pool.streams
        self.held: list[bool] = []

    def held_window(
        self, enqueue: Callable[[], None], marks: Marks, *, hold: bool = True
    ) -> HeldWindow:
        self.held.append(hold)
        if hold:
            raise NotHeld("too many")
        return self._pool.held_window(enqueue, marks, hold=False)


def test_work_that_cannot_be_held_is_measured_as_it_is_launched_and_says_so() -> None:
    device = SimulatedDevice("h200")
    with device.open_streams(8) as pool:
        # Shorter than its launch, so that no stream waits for another.
        enqueue = burst_on_each(device.kernel_of(1_000))
        full = Full(pool)
        found = measured(device, full, enqueue, replayed=False)  # type: ignore[arg-type]
    assert full.held[0]
    # Once more, in case the process was only stopped for a while.
    assert full.held[1]
    assert not any(full.held[2:])
    assert not found.contention.held
    assert found.contention.in_flight < 4
    assert not found.contention.enough


class Stopped(Full):
    """A pool whose process is stopped once while its work is held."""

    def held_window(
        self, enqueue: Callable[[], None], marks: Marks, *, hold: bool = True
    ) -> HeldWindow:
        self.held.append(hold)
        if len(self.held) == 4:
            raise NotHeld("it took too long")
        return self._pool.held_window(enqueue, marks, hold=hold)


def test_a_process_that_is_stopped_for_a_while_takes_that_window_again() -> None:
    device = SimulatedDevice("h200")
    with device.open_streams(2) as pool:
        stopped = Stopped(pool)
        enqueue = burst_on_each(device.kernel_of(50_000))
        found = measured(device, stopped, enqueue)  # type: ignore[arg-type]
    assert all(stopped.held)
    assert (found.contention.held, found.contention.enough) == (True, True)
    assert len(stopped.held) == found.contention.windows + 3


def test_a_cold_cache_is_emptied_before_each_window_of_one_iteration() -> None:
    device = SimulatedDevice("h200")
    flushed: list[int] = []
    with device.open_streams(2) as pool:
        plan = replace(PLAN, flush=lambda: flushed.append(1))
        found = measured(device, pool, burst_on_each(device.kernel_of(50_000)), plan=plan)
    assert found.contention.launches == 1
    assert len(flushed) == found.contention.windows + 2


def test_windows_are_independent_and_as_many_as_samples_and_time_ask_for() -> None:
    device = SimulatedDevice("h200")
    with device.open_streams(4) as pool:
        enqueue = burst_on_each(device.kernel_of(50_000))
        few = measured(device, pool, enqueue)
        # The first of five launches of each stream is no sample.
        assert few.contention.launches == 5
        assert len(few.latencies_ns) == few.contention.windows * 4 * 4
        # More than the samples need: intervals need windows, of a model fewer than of a device.
        assert few.contention.windows == 20
        many = measured(device, pool, enqueue, plan=replace(PLAN, samples=SamplePlan(16 * 70)))
        assert many.contention.windows == 70
        short = replace(PLAN, samples=SamplePlan(16 * 70), stop=StopRule(MANY, 3_000_000, 10**12))
        cut = measured(device, pool, enqueue, plan=short)
        assert 1 <= cut.contention.windows < cut.needed_windows == 70
        most = replace(PLAN, samples=SamplePlan(16 * 70), stop=StopRule(2, 10**12))
        assert measured(device, pool, enqueue, plan=most).contention.windows == 2


def test_a_bounded_iteration_is_a_window_by_itself() -> None:
    """A chain of hetero_kernels waits for one product a large stream, and not for five."""
    with suite_workload("hetero_kernels", 8) as (device, pool, enqueue):
        primary = workload_class("hetero_kernels").primary
        brief = replace(PLAN, stop=StopRule(MANY, 400_000_000, 10**12))
        one = measured(device, pool, enqueue, primary, plan=brief)
        unbounded = measured(device, pool, enqueue, replace(primary, bounded=False), plan=brief)
    assert one.contention.launches == 1
    assert one.contention.enough
    assert max(unbounded.latencies_ns) > 3 * max(one.latencies_ns)


def test_threads_of_the_host_are_released_together() -> None:
    device = HostDevice()

    def spin() -> None:
        sum(range(20_000))

    with device.open_streams(3) as pool:
        found = measured(device, pool, burst_on_each(spin), replayed=False)
    assert found.contention.timed_by == "activity"
    # More than the samples need: intervals need windows that are independent.
    assert found.contention.windows == 50
    assert found.contention.in_flight == pytest.approx(3)
    assert (found.contention.instrument_ns, found.contention.mark_cost) == (None, None)


def test_any_tagged_launch_of_a_reference_is_timed() -> None:
    device = SimulatedDevice("h200")
    with device.open_streams(1) as pool:
        enqueue = burst_on_each(device.kernel_of(50_000))
        enqueue(pool.streams)
        pool.synchronize()
        other = replace(BURST, name="other")
        judged = JudgedLaunches(taped(pool.streams, enqueue), other, any_tag=True)
        program = contended_program(device, pool, enqueue, judged, replayed=True)
        assert contended_pass(device, pool, program, PLAN).latencies_ns


def test_an_iteration_without_judged_launches_is_no_measurement() -> None:
    device = SimulatedDevice("h200")
    with device.open_streams(1) as pool:
        judged = JudgedLaunches(
            taped(pool.streams, burst_on_each(lambda: None)), replace(BURST, name="x")
        )
        with pytest.raises(InvalidMeasurement, match="no launch of an iteration is tagged x"):
            contended_program(device, pool, burst_on_each(lambda: None), judged, replayed=True)


class Stamping:
    """A pool whose stamps take 300 ns of their launch's time, though two in a row are 900 apart."""

    def __init__(self, pool: StreamPool) -> None:
        self._pool = pool

    def __getattr__(self, name: str) -> object:
        return getattr(self._pool, name)

    def held_window(
        self, enqueue: Callable[[], None], marks: Marks, *, hold: bool = True
    ) -> HeldWindow:
        plain = self._pool.held_window(enqueue, marks, hold=hold)
        counts: Counter[int] = Counter()
        launches = []
        for launch in plain.launches:
            counts[launch.stream] += 1
            done_ns = (launch.done_ns or 0) + marks.each * counts[launch.stream] * 300
            launches.append(replace(launch, done_ns=done_ns))
        ended = {
            stream: ns + 300 * (marks.each * counts[stream] or 1)
            for stream, ns in plain.ended_ns.items()
        }
        pairs = (900,) * len(launches) if marks.each == 2 else ()
        return HeldWindow(tuple(launches), ended, pairs)


class RealTime(SimulatedDevice):
    """The modelled H200, taken for a device whose time is the machine's."""

    capabilities = SimulatedDevice.capabilities._replace(virtual_time=False)


def test_of_a_stamp_so_much_is_taken_off_as_windows_without_say() -> None:
    """Less than 1 % of a latency is what its instrument left in it."""
    device = SimulatedDevice("h200")
    with device.open_streams(4) as pool:
        enqueue = burst_on_each(device.kernel_of(50_000))
        plain = measured(device, pool, enqueue, replayed=False, plan=BRIEF)
    device = RealTime("h200")
    with device.open_streams(4) as pool:
        enqueue = burst_on_each(device.kernel_of(50_000))
        stamping = cast("StreamPool", Stamping(pool))
        brief = replace(PLAN, stop=StopRule(20, 10**12))
        found = measured(device, stamping, enqueue, replayed=False, plan=brief)
    assert found.contention.timed_by == "stamps"
    assert found.contention.instrument_ns == pytest.approx(300, abs=10)
    assert np.mean(found.latencies_ns) == pytest.approx(np.mean(plain.latencies_ns), rel=0.001)
