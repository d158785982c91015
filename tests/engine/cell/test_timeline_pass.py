"""The timeline pass: what it holds together, both runs' kernels, and latencies from traces."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.data.metrics.switching import THREADS
from pytest_hwqueue.data.metrics.timeline import Kernel, Timeline
from pytest_hwqueue.data.records.kinds import KINDS
from pytest_hwqueue.engine.cell.closed_loop import Plan
from pytest_hwqueue.engine.cell.program import eager
from pytest_hwqueue.engine.cell.stop_rule import StopRule
from pytest_hwqueue.engine.cell.timeline_pass import (
    PROBE_KERNEL_NS,
    events_disturb,
    probe_queue_switch,
    reference_pass,
    timeline_pass,
    traced_latencies,
)
from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.devices.protocol import Device, Stream, StreamPool
from pytest_hwqueue.parts.workloads.latency_sensitive.hetero_kernels import (
    HeteroKernels,
    HeteroParameters,
)
from pytest_hwqueue.parts.workloads.workload import Setup

MOST_HELD = 850
MOST_REPEATS = 20
MOST_SPAN_NS = 500_000_000


class FakePool:
    """Runs each launch at once for a fixed time, one after the other; keeps each held pass."""

    def __init__(self, count: int, kernel_ns: int = 1000, waiting: int = 0) -> None:
        self.streams = cast(Sequence[Stream], [FakeStream(self, index) for index in range(count)])
        self.passes: list[list[int]] = []
        self._kernel_ns, self._waiting = kernel_ns, waiting

    def held_timeline(self, enqueue: Callable[[], None]) -> Timeline:
        self.passes.append([])
        enqueue()
        ns = self._kernel_ns
        kernels = [
            Kernel(stream, number, "k", None, 0, 10 + number * ns, 10 + (number + 1) * ns)
            for number, stream in enumerate(self.passes[-1])
        ]
        lost = Kernel(1, 99, "k", None, 0, 10**9, 10**9 + 1, waits_for=(98,))
        return Timeline((*kernels, *[lost] * self._waiting), len(self.streams), 10)


class FakeStream:
    """Counts what is launched on it into its pool."""

    def __init__(self, pool: FakePool, index: int) -> None:
        self._pool, self.index = pool, index

    def launch(self, function: Callable[[], None]) -> None:
        self._pool.passes[-1].append(self.index)


def nothing() -> None:
    """A kernel."""


@given(st.integers(2, 40), st.integers(1, 60), st.sampled_from([1, 1000, 10**6, 10**8, 10**9]))
@example(3, 1, 1000)
def test_as_many_iterations_are_held_as_fit(streams: int, per_stream: int, kernel_ns: int) -> None:
    pool = FakePool(streams, kernel_ns)

    def iteration(given_streams: Sequence[Stream]) -> None:
        for stream in [*given_streams] * per_stream:
            stream.launch(nothing)

    passed = timeline_pass(cast(StreamPool, pool), iteration)
    once, many, one = pool.passes
    launches = len(once)
    assert launches == streams * per_stream
    repeats = len(many) // launches
    assert many == once * repeats

    def fits(count: int) -> bool:
        held, span = count * launches, count * launches * kernel_ns
        return count == 1 or (held <= MOST_HELD and span <= MOST_SPAN_NS)

    assert 1 <= repeats <= MOST_REPEATS
    assert fits(repeats)
    assert repeats == MOST_REPEATS or not fits(repeats + 1)
    # The same kernels on one stream, which is given as often as there are streams.
    assert one == [0] * len(many)
    assert passed.kernels_per_iteration == launches
    assert (passed.summary.kernels, passed.summary.streams_used) == (len(many), streams)
    # The fake device starts one kernel as the last ends, on one stream as on several.
    assert passed.queue_switch.streams == streams
    assert passed.queue_switch.overhead.second.median.value in (0.0, None)


@pytest.mark.parametrize(
    ("streams", "rounds"), [(1, 20), (42, 20), (43, 19), (128, 6), (425, 2), (1024, 2)]
)
def test_probe_takes_turns_and_is_held_whole(streams: int, rounds: int) -> None:
    asked: list[int] = []
    device = SimpleNamespace(capabilities=KINDS["cuda"], kernel_of=asked.append)
    pool = FakePool(streams, PROBE_KERNEL_NS)
    probed = probe_queue_switch(cast(Device, device), cast(StreamPool, pool)).queue_switch
    assert pool.passes == [[*range(streams)] * rounds, [0] * (streams * rounds)]
    # Beyond 32 streams kernels last longer: their first ones start one after the other.
    assert asked == [PROBE_KERNEL_NS * math.ceil(streams / 32)]
    assert probed.streams == streams
    refused = "fewer than 2" if streams == 1 else f"at most 1 of {streams} streams' kernels ran"
    assert probed.overhead.difference.value is None
    assert refused in probed.overhead.difference.refused


def test_threads_of_the_host_have_delays_and_no_switch() -> None:
    device = HostDevice()
    with device.open_streams(2) as pool:
        probed = probe_queue_switch(device, pool).queue_switch
    assert (probed.overhead.difference.value, probed.late_enqueued) == (None, 0)
    assert probed.overhead.difference.refused == THREADS
    assert probed.overhead.first.n == probed.overhead.second.n == 40


@pytest.mark.parametrize(("launches", "waiting"), [(0, 0), (1, 1)])
def test_timelines_that_cannot_be_read_are_device_errors(launches: int, waiting: int) -> None:
    pool = cast(StreamPool, FakePool(2, waiting=waiting))

    def iteration(streams: Sequence[Stream]) -> None:
        for stream in [*streams] * launches:
            stream.launch(nothing)

    with pytest.raises(DeviceError):
        timeline_pass(pool, iteration)


@pytest.mark.parametrize(
    ("connections", "streams", "disturbs"), [(8, 8, False), (8, 9, True), (None, 1000, False)]
)
def test_events_disturb_beyond_the_hardware_connections(
    connections: int | None, streams: int, disturbs: bool
) -> None:
    reason = events_disturb(cast(Device, SimpleNamespace(connections=connections)), streams)
    assert (reason is not None) == disturbs
    said = f"{streams} streams share {connections} hardware connections"
    assert reason is None or said in reason


PLAN = Plan(StopRule(6, 10**12), warmup=1, sync_mode="per_iteration")


def test_traced_latencies_have_every_tagged_launch_and_keep_to_a_quarter_of_the_time() -> None:
    device = HostDevice()
    workload = HeteroKernels(HeteroParameters(mm_dim=16))
    with device.open_streams(5) as pool:
        workload.setup(Setup(device, 5, 0))
        program = eager(device, workload.iterate, tagged=False)
        found, iterations = traced_latencies(pool, program, replace(PLAN, iteration_ns=1))
        assert iterations == 6
        assert {tag: len(values) for tag, values in found.items()} == {"large": 12, "small": 18}
        assert all(value > 0 for values in found.values() for value in values)
        short = replace(PLAN, stop=StopRule(6, 12_000), iteration_ns=1000)
        assert traced_latencies(pool, program, short)[1] == 3
        # One launch alone, so many times as the plan says, whichever way it is timed.
        alone = workload.references()["small_alone"]
        for traced in (False, True):
            reference = eager(device, alone, tagged=not traced)
            passed = reference_pass(device, pool, reference, PLAN, traced=traced)
            assert [len(times_ns) for times_ns in passed] == [6, 6]
