"""Kernels in flight and overlap are what queues, multiprocessors and copy engines allow."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pytest_hwqueue.parts.devices.protocol import Stream
from pytest_hwqueue.parts.devices.simulated.costs import CopyWork, KernelWork

from .conftest import EXACT, ON_DEVICE, Bench, costs, present

# Each kernel starts at most 8 µs after it is ready (start and switch) and the first ones of 64
# streams over 45 µs: less than 1 % of kernels of 10 ms, which the truth takes to start at once.
IN_FLIGHT_TOLERANCE = 0.01


@settings(max_examples=10, derandomize=True)
@given(
    cost=costs(*ON_DEVICE), connections=st.integers(1, 16), data=st.data(),
    multiprocessors=st.integers(1, 20), per_multiprocessor=st.integers(1, 2),
    slots=st.integers(1, 4), concurrent=st.integers(1, 128), rounds=st.integers(1, 4),
)  # fmt: skip
def test_as_many_kernels_run_at_once_as_the_scarcest_allows(
    bench: Bench, cost: dict[str, int], connections: int, data: st.DataObject,
    multiprocessors: int, per_multiprocessor: int, slots: int, concurrent: int, rounds: int,
) -> None:  # fmt: skip
    # A queue for each stream, or as many streams on every queue.
    shared = st.integers(2, 4).map(lambda each: each * connections)
    streams = data.draw(st.integers(1, connections) | shared)
    room = multiprocessors * per_multiprocessor // slots
    assume(room)
    device = bench.device(
        connections=connections, multiprocessors=multiprocessors,
        block_slots_per_multiprocessor=per_multiprocessor, concurrent_kernels=concurrent, **cost,
    )  # fmt: skip
    kernel = bench.launchable(device, KernelWork(10_000_000, slots_per_block=slots))

    def enqueue(given: Sequence[Stream]) -> None:
        for stream in given:
            for _ in range(rounds):
                stream.launch(kernel)
            # An event holds up its hardware queue until its stream has come to it, so the next
            # stream of the same queue starts only then: a queue runs one kernel at a time.
            stream.record()

    found = present(bench.measure(device, streams, enqueue).metrics.timeline)
    at_once = min(streams, connections, room, concurrent)
    assert found.in_flight_max == at_once
    assert found.streams_used == streams
    kernels = found.kernels
    assert kernels % (streams * rounds) == 0
    steps = -(-kernels // at_once)
    assert found.in_flight_mean.value == pytest.approx(kernels / steps, rel=IN_FLIGHT_TOLERANCE)
    per_stream = kernels // streams
    assert found.busy_ms == pytest.approx([10.0 * per_stream] * streams, rel=EXACT)
    if streams == 1:
        assert found.overlap_efficiency.value is None
        assert found.overlap_efficiency.refused == "needs at least 2 busy streams, has 1"
    else:
        hidden = (kernels - steps) / (kernels - per_stream)
        assert found.overlap_efficiency.value == pytest.approx(hidden, abs=IN_FLIGHT_TOLERANCE)


def test_no_timeline_without_kernels(bench: Bench) -> None:
    metrics = bench.measure(bench.device(), 1, lambda given: None).metrics
    assert (metrics.timeline, metrics.ready_to_start) == (None, None)
    assert "launched no kernels" in metrics.refused["timeline"]


@settings(max_examples=12, derandomize=True)
@given(
    start=st.integers(0, 3_000), copies=st.integers(1, 8), engines=st.integers(1, 4),
    rate=st.integers(10**9, 10**11),
)  # fmt: skip
def test_copies_at_once_are_as_many_as_copy_engines(
    bench: Bench, start: int, copies: int, engines: int, rate: int
) -> None:
    device = bench.device(copy_engines=engines, copy_bytes_per_s=rate, start_ns=start)
    size = rate // 100
    copying_ns = round(size * 1e9 / rate)
    host = device.profile.host
    launch_ns = host.launch_call_ns.value + host.kernel_launch_ns.value
    each = [
        bench.launchable(device, CopyWork(size, engine=index % engines)) for index in range(copies)
    ]

    def enqueue(streams: Sequence[Stream]) -> None:
        for stream, copy in zip(streams, each, strict=True):
            stream.launch(copy)

    metrics = bench.measure(device, copies, enqueue, work={"bytes": float(size * copies)}).metrics
    at_once = min(copies, engines)
    assert present(metrics.timeline).in_flight_max == at_once
    ends = [
        (engine + 1) * launch_ns + start + copying_ns * len(range(engine, copies, engines))
        for engine in range(at_once)
    ]
    known_ns = max(ends) + host.synchronise_ns.value
    (rated,) = metrics.throughput
    assert (rated.unit, rated.n) == ("bytes/s", 1)
    assert rated.value == pytest.approx(size * copies * 1e9 / known_ns, rel=EXACT)
