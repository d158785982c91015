"""Kernels in flight and overlap are what queues, multiprocessors and copy engines allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pytest_hwqueue.devices.protocol import Stream
from pytest_hwqueue.devices.simulated.costs import CopyWork, KernelWork
from pytest_hwqueue.metrics.timeline import TimelineSummary

if TYPE_CHECKING:
    from tests.devices.simulated.conftest import Bench

# Each kernel starts at most 8 µs after it is ready (start and switch) and the first ones of 64
# streams over 45 µs: less than 1 % of kernels of 10 ms, which the truth takes to start at once.
IN_FLIGHT_TOLERANCE = 0.01
# The same against steps of 200 ms, of which 20 kernels and 5 waits for others come together.
OVERLAP_TOLERANCE = 0.002
# Nothing rounds here but a division of whole nanoseconds.
EXACT = 1e-9

costs = st.fixed_dictionaries(
    {
        "start_ns": st.integers(0, 3_000),
        "queue_switch_ns": st.integers(0, 5_000),
        "front_end_ns": st.integers(0, 700),
    }
)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, int]:
    """Streams and connections: a queue for each stream, or as many streams on every queue."""
    connections = draw(st.integers(1, 16))
    if draw(st.booleans()):
        return draw(st.integers(1, connections)), connections
    return connections * draw(st.integers(2, 4)), connections


@settings(max_examples=20, derandomize=True)
@given(
    costs=costs,
    shape=shapes(),
    multiprocessors=st.integers(1, 20),
    blocks_per_multiprocessor=st.integers(1, 2),
    slots=st.integers(1, 4),
    concurrent=st.integers(1, 128),
    rounds=st.integers(1, 4),
)
def test_as_many_kernels_run_at_once_as_the_scarcest_allows(
    bench: Bench,
    costs: Mapping[str, int],
    shape: tuple[int, int],
    multiprocessors: int,
    blocks_per_multiprocessor: int,
    slots: int,
    concurrent: int,
    rounds: int,
) -> None:
    streams, connections = shape
    room = multiprocessors * blocks_per_multiprocessor // slots
    assume(room)
    device = bench.device(
        connections=connections,
        multiprocessors=multiprocessors,
        block_slots_per_multiprocessor=blocks_per_multiprocessor,
        concurrent_kernels=concurrent,
        **costs,
    )
    kernel = bench.launchable(device, KernelWork(10_000_000, slots_per_block=slots))

    def enqueue(given: Sequence[Stream]) -> None:
        for stream in given:
            for _ in range(rounds):
                stream.launch(kernel)
            # An event holds up its hardware queue until its stream has come to it, so the next
            # stream of the same queue starts only then: a queue runs one kernel at a time.
            stream.record()

    found = bench.measure(device, streams, enqueue).metrics.timeline
    assert found is not None
    at_once = min(streams, connections, room, concurrent)
    assert found.in_flight_max == at_once
    assert found.streams_used == streams
    kernels = found.kernels
    assert kernels % (streams * rounds) == 0
    steps = -(-kernels // at_once)
    assert found.in_flight_mean == pytest.approx(kernels / steps, rel=IN_FLIGHT_TOLERANCE)
    per_stream = kernels // streams
    assert found.busy_ms == pytest.approx([10.0 * per_stream] * streams, rel=EXACT)
    if streams == 1:
        assert_no_overlap_measured(found)
    else:
        hidden = (kernels - steps) / (kernels - per_stream)
        assert found.overlap_efficiency == pytest.approx(hidden, abs=IN_FLIGHT_TOLERANCE)


STEPS = 20
STEP_NS = 200_000_000


@settings(max_examples=15, derandomize=True)
@given(
    costs=costs,
    others=st.lists(
        st.tuples(st.integers(0, STEPS), st.integers(1, STEPS)), min_size=1, max_size=5
    ),
)
def test_overlap_is_the_one_constructed(
    bench: Bench, costs: Mapping[str, int], others: list[tuple[int, int]]
) -> None:
    """The first stream is a ruler of 20 steps; each other one starts at a step of it."""
    device = bench.device(**costs)
    step = device.kernel_of(STEP_NS)
    lengths = {length: device.kernel_of(length * STEP_NS) for _, length in others}

    def enqueue(streams: Sequence[Stream]) -> None:
        marks = {}
        for reached in range(1, STEPS + 1):
            streams[0].launch(step)
            marks[reached] = streams[0].record()
        for stream, (begin, length) in zip(streams[1:], others, strict=True):
            if begin:
                stream.wait(marks[begin])
            stream.launch(lengths[length])

    found = bench.measure(device, 1 + len(others), enqueue).metrics.timeline
    assert found is not None
    assert found.kernels == STEPS + len(others), "one iteration: the next would overlap it"
    busy = np.zeros((1 + len(others), 2 * STEPS), dtype=bool)
    busy[0, :STEPS] = True
    for row, (begin, length) in zip(busy[1:], others, strict=True):
        row[begin : begin + length] = True
    each, together = busy.sum(axis=1), busy.any(axis=0).sum()
    hidden = (each.sum() - together) / (each.sum() - each.max())
    assert found.overlap_efficiency == pytest.approx(hidden, abs=OVERLAP_TOLERANCE)
    assert found.in_flight_mean == pytest.approx(each.sum() / together, rel=OVERLAP_TOLERANCE)
    assert found.busy_ms == pytest.approx((each * STEP_NS / 1e6).tolist(), rel=EXACT)


@pytest.mark.parametrize("streams", [1, 3])
def test_no_overlap_without_a_second_busy_stream(bench: Bench, streams: int) -> None:
    device = bench.device()
    kernel = device.kernel_of(10_000)
    found = bench.measure(device, streams, lambda given: given[0].launch(kernel)).metrics.timeline
    assert found is not None
    assert_no_overlap_measured(found)
    assert (found.in_flight_mean, found.in_flight_max, found.streams_used) == (1, 1, 1)


def assert_no_overlap_measured(found: TimelineSummary) -> None:
    assert found.overlap_efficiency is None
    assert found.refused["overlap_efficiency"] == "needs at least 2 busy streams, has 1"


def test_no_timeline_of_an_iteration_without_kernels(bench: Bench) -> None:
    metrics = bench.measure(bench.device(), 2, lambda streams: None).metrics
    assert metrics.timeline is None
    assert metrics.ready_to_start is None
    assert "launched no kernels" in metrics.refused["timeline"]


@settings(max_examples=12, derandomize=True)
@given(
    start=st.integers(0, 3_000),
    copies=st.integers(1, 8),
    engines=st.integers(1, 4),
    rate=st.integers(10**9, 10**11),
)
def test_copies_at_once_are_as_many_as_copy_engines(
    bench: Bench, start: int, copies: int, engines: int, rate: int
) -> None:
    device = bench.device(copy_engines=engines, copy_bytes_per_s=rate, start_ns=start)
    size = rate // 100
    copying_ns = round(size * 1e9 / rate)
    launch_ns = (
        device.profile.host.launch_call_ns.value + device.profile.host.kernel_launch_ns.value
    )
    each = [
        bench.launchable(device, CopyWork(size, engine=index % engines)) for index in range(copies)
    ]

    def enqueue(streams: Sequence[Stream]) -> None:
        for stream, copy in zip(streams, each, strict=True):
            stream.launch(copy)

    metrics = bench.measure(device, copies, enqueue, work={"bytes": float(size * copies)}).metrics
    assert metrics.timeline is not None
    at_once = min(copies, engines)
    assert metrics.timeline.in_flight_max == at_once
    ends = [
        (engine + 1) * launch_ns + start + copying_ns * len(range(engine, copies, engines))
        for engine in range(at_once)
    ]
    known_ns = max(ends) + device.profile.host.synchronise_ns.value
    (rated,) = metrics.throughput
    assert (rated.unit, rated.n) == ("bytes/s", 1)
    assert rated.value == pytest.approx(size * copies * 1e9 / known_ns, rel=EXACT)


def test_a_copy_of_a_tensor_has_the_copy_engines_rate(bench: Bench) -> None:
    device = bench.device(copy_bytes_per_s=10**9, start_ns=0)
    source, target = torch.empty(25_000_000), torch.empty(25_000_000)
    record = bench.measure(
        device,
        1,
        lambda streams: streams[0].launch(lambda: target.copy_(source, non_blocking=True)),
    )
    assert record.metrics.timeline is not None
    assert record.metrics.timeline.busy_ms[0] / record.metrics.timeline.kernels == pytest.approx(
        100, rel=EXACT
    )
