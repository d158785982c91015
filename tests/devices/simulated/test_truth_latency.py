"""Latency, percentiles, their intervals and throughput are those of a planted schedule."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_hwqueue.devices.protocol import Stream
from pytest_hwqueue.devices.simulated.costs import KernelWork
from pytest_hwqueue.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.metrics.latency import (
    LatencySummary,
    Throughput,
    interval_of,
    summarise_latency,
    throughput,
)

if TYPE_CHECKING:
    from tests.devices.simulated.conftest import Bench

# Nothing here varies but what is planted, in whole nanoseconds: only divisions round.
EXACT = 1e-9
# Without synchronising, the first iteration also fills the queues, which takes at most as long as
# one more iteration and one kernel: two of 200.
FILLING_TOLERANCE = 2 / 200

costs = st.fixed_dictionaries(
    {
        "kernel_launch_ns": st.integers(700, 10_000),
        "launch_call_ns": st.integers(0, 15_000),
        "event_record_ns": st.integers(0, 8_000),
        "stream_wait_ns": st.integers(0, 3_000),
        "synchronise_ns": st.integers(0, 10_000),
        "start_ns": st.integers(0, 3_000),
        "queue_switch_ns": st.integers(0, 5_000),
        "front_end_ns": st.integers(0, 700),  # never slower than the host launches
        "graph_launch_ns": st.integers(0, 10_000),
        "graph_node_launch_ns": st.integers(0, 100),
        "graph_gap_ns": st.integers(0, 1_000),
    }
)


def on_each(kernel: Callable[[], None]) -> Callable[[Sequence[Stream]], None]:
    def enqueue(streams: Sequence[Stream]) -> None:
        for stream in streams:
            stream.launch(kernel)

    return enqueue


@settings(max_examples=14, derandomize=True)
@given(
    costs=costs,
    streams=st.integers(1, 64),
    kernel_ns=st.integers(1_000, 5_000_000),
    work=st.floats(1e-3, 1e12),
)
def test_synchronised_iterations_take_the_known_time(
    bench: Bench, costs: Mapping[str, int], streams: int, kernel_ns: int, work: float
) -> None:
    device = bench.device(connections=64, **costs)
    record = bench.measure(
        device, streams, on_each(device.kernel_of(kernel_ns)), iterations=50, work={"units": work}
    )
    enqueue_ns = streams * (costs["launch_call_ns"] + costs["kernel_launch_ns"])
    recorded_ns = enqueue_ns + costs["event_record_ns"] + (streams - 1) * costs["stream_wait_ns"]
    # The last kernel is launched last; on several streams another queue came before it.
    switch_ns = costs["queue_switch_ns"] if streams > 1 else 0
    device_ns = max(recorded_ns, enqueue_ns + costs["start_ns"] + switch_ns + kernel_ns)
    host_ns = device_ns + costs["synchronise_ns"]

    samples = record.samples
    assert samples is not None
    assert samples.enqueue_ns == [enqueue_ns] * 50
    assert samples.device_ns == [device_ns] * 50
    assert samples.host_ns == [host_ns] * 50
    assert_always(record.metrics.latency, host_ns)
    assert_always(record.metrics.device_time, device_ns)
    assert_rate(record.metrics.throughput, work * 1e9 / host_ns)
    bound = any(note.startswith("bounded by launching") for note in record.notes)
    assert bound == (enqueue_ns > 0.5 * host_ns)


@settings(max_examples=10, derandomize=True)
@given(
    costs=costs,
    streams=st.integers(1, 64),
    kernels=st.integers(1, 10),
    kernel_ns=st.integers(10_000, 1_000_000),
)
def test_replayed_graphs_take_the_known_time(
    bench: Bench, costs: Mapping[str, int], streams: int, kernels: int, kernel_ns: int
) -> None:
    # Nodes of several graphs start at once: their front end costs nothing here.
    device = bench.device(connections=64, graph_start_ns=0, **costs)
    kernel = bench.launchable(device, *[KernelWork(kernel_ns)] * kernels)
    record = bench.measure(
        device, streams, on_each(kernel), iterations=50, dispatch="graph",
        work={"kernels": float(streams * kernels)},
    )  # fmt: skip
    nodes_ns = kernels * costs["graph_node_launch_ns"]
    enqueue_ns = streams * (costs["launch_call_ns"] + costs["graph_launch_ns"] + nodes_ns)
    recorded_ns = enqueue_ns + costs["event_record_ns"] + (streams - 1) * costs["stream_wait_ns"]
    chain_ns = costs["start_ns"] + kernels * (costs["graph_gap_ns"] + kernel_ns)
    host_ns = max(recorded_ns, enqueue_ns + chain_ns) + costs["synchronise_ns"]
    assert_always(record.metrics.latency, host_ns)
    assert_rate(record.metrics.throughput, streams * kernels * 1e9 / host_ns)


@settings(max_examples=10, derandomize=True)
@given(
    costs=costs,
    streams=st.integers(1, 16),
    kernel_ns=st.integers(1_000, 1_000_000),
    sync_mode=st.sampled_from(["end_only", "none"]),
)
def test_pipelined_iterations_go_at_the_pace_of_the_slower_of_host_and_device(
    bench: Bench, costs: Mapping[str, int], streams: int, kernel_ns: int, sync_mode: str
) -> None:
    device = bench.device(connections=64, **costs)
    record = bench.measure(
        device, streams, on_each(device.kernel_of(kernel_ns)), iterations=200,
        work={"kernels": float(streams)}, sync_mode=sync_mode,
    )  # fmt: skip
    launch_ns = costs["launch_call_ns"] + costs["kernel_launch_ns"]
    host_ns = streams * (launch_ns + 2 * costs["event_record_ns"])
    switch_ns = costs["queue_switch_ns"] if streams > 1 else 0
    pace_ns = max(host_ns, costs["start_ns"] + switch_ns + kernel_ns)
    (rated,) = record.metrics.throughput
    assert rated.value == pytest.approx(streams * 1e9 / pace_ns, rel=FILLING_TOLERANCE)
    assert record.samples is not None
    assert record.samples.host_ns == []
    assert record.metrics.latency == record.metrics.device_time


def planted(device: SimulatedDevice, durations_ns: Sequence[int]) -> Callable[..., None]:
    """Launch kernels of the given durations, one an iteration, and begin again after the last.

    Measuring as many iterations as there are durations takes each of them once, wherever the
    warm-up has stopped.
    """
    kernels = {duration: device.kernel_of(duration) for duration in set(durations_ns)}
    schedule = cycle(durations_ns)

    def enqueue(streams: Sequence[Stream]) -> None:
        streams[0].launch(kernels[next(schedule)])

    return enqueue


@settings(max_examples=12, derandomize=True)
@given(
    samples=st.integers(1, 900),
    least_ns=st.integers(10_000, 1_000_000),
    step_ns=st.integers(1, 5_000),
    order=st.randoms(use_true_random=False),
)
@example(samples=5, least_ns=10_000, step_ns=100, order=random.Random(0))
@example(samples=6, least_ns=10_000, step_ns=100, order=random.Random(0))
@example(samples=71, least_ns=10_000, step_ns=100, order=random.Random(0))
@example(samples=72, least_ns=10_000, step_ns=100, order=random.Random(0))
@example(samples=367, least_ns=10_000, step_ns=100, order=random.Random(0))
@example(samples=368, least_ns=10_000, step_ns=100, order=random.Random(0))
@example(samples=3687, least_ns=10_000, step_ns=1, order=random.Random(0))
@example(samples=3688, least_ns=10_000, step_ns=1, order=random.Random(0))
def test_percentiles_are_those_planted_or_refused(
    bench: Bench, samples: int, least_ns: int, step_ns: int, order: random.Random
) -> None:
    """Of durations that are equally far apart, the share q lies at q of the way."""
    device = bench.device()
    durations = [least_ns + step_ns * index for index in range(samples)]
    order.shuffle(durations)
    host = device.profile.host
    around_ns = (
        host.launch_call_ns.value
        + host.kernel_launch_ns.value
        + device.profile.dispatch.start_ns.value
        + host.synchronise_ns.value
    )
    total_ns = sum(durations) + samples * (around_ns + host.event_record_ns.value)
    record = bench.measure(
        device, 1, planted(device, durations), iterations=samples, max_time_ns=4 * total_ns
    )
    found = record.metrics.latency
    assert found is not None
    assert found.n == record.iterations == samples
    low_ms, high_ms = ((around_ns + least_ns + step_ns * last) / 1e6 for last in (0, samples - 1))
    assert found.mean == pytest.approx((low_ms + high_ms) / 2, rel=EXACT)
    assert found.max == pytest.approx(high_ms, rel=EXACT)
    for name, share, needed in (
        ("p50", 0.5, 6), ("p95", 0.95, 72), ("p99", 0.99, 368), ("p999", 0.999, 3688),
    ):  # fmt: skip
        value = getattr(found, name)
        if samples < needed:
            assert value is None
            assert name not in found.intervals
            missing = f"needs at least {needed} samples, has {samples} ({needed - samples} missing)"
            assert found.refused[name] == missing
        else:
            truth = low_ms + share * (high_ms - low_ms)
            assert value == pytest.approx(truth, rel=EXACT)
            assert name not in found.refused
            # Few samples may look as if they followed each other, in whatever order.
            assert (name in found.intervals) == (interval_of(name) not in found.refused)
            low, high = found.intervals.get(name, (low_ms, high_ms))
            assert low_ms - 1e-9 <= low <= truth <= high <= high_ms + 1e-9
            assert low < high


CELLS = 300
# Intervals that hold in 95 % of cells miss more than 29 of 300 with a probability of 0.0003.
LEAST_COVERED = CELLS - 29


def test_intervals_cover_the_truth_they_were_drawn_from(bench: Bench) -> None:
    """Durations are drawn: the cell sees a sample, and the truth is the distribution's."""
    source, each = random.Random(20), 300
    device = bench.device()
    durations = [20_000 + round(source.expovariate(1 / 10_000)) for _ in range(CELLS * each)]
    record = bench.measure(device, 1, planted(device, durations), iterations=len(durations))
    assert record.samples is not None
    samples = record.samples.host_ns
    # Launch call, launch, start and synchronising, as the H200's profile has them.
    around_ns = 12_000 + 7_000 + 1_100 + 4_000
    covered = {"p50": 0, "p95": 0, "throughput": 0}
    refused = 0
    for first in range(0, len(samples), each):
        chunk = samples[first : first + each]
        summary = summarise_latency(chunk)
        for name, share in (("p50", 0.5), ("p95", 0.95)):
            truth_ms = (around_ns + 20_000 - 10_000 * math.log(1 - share)) / 1e6
            refused += name not in summary.intervals
            low, high = summary.intervals.get(name, (truth_ms, truth_ms))
            covered[name] += low <= truth_ms <= high
        interval = throughput(3.0, chunk, "units/s").interval
        assert interval is not None
        covered["throughput"] += interval[0] <= 3e9 / (around_ns + 20_000 + 10_000) <= interval[1]
    assert min(covered.values()) >= LEAST_COVERED, covered
    assert refused < 0.2 * CELLS
    # As wide as it must be and not much wider: nothing that covers always says much.
    assert covered["throughput"] < CELLS
    assert covered["p50"] < CELLS


@pytest.mark.parametrize("iterations", [49, 50])
def test_a_rate_of_few_iterations_has_no_interval(bench: Bench, iterations: int) -> None:
    device = bench.device()
    durations = [10_000 + index % 7 * 100 for index in range(iterations)]
    record = bench.measure(device, 1, planted(device, durations), iterations=iterations)
    (rated,) = record.metrics.throughput
    assert (rated.interval is None) == (iterations < 50)
    if rated.interval is None:
        assert rated.refused["interval"] == "needs at least 50 iterations, has 49 (1 missing)"


def assert_always(found: LatencySummary | None, known_ns: int) -> None:
    """Every figure of a latency that never varies is that latency."""
    assert found is not None
    known_ms = pytest.approx(known_ns / 1e6, rel=EXACT)
    assert (found.unit, found.n) == ("ms", 50)
    for figure in (found.mean, found.max, found.p50, *found.intervals["p50"]):
        assert figure == known_ms


def assert_rate(found: Sequence[Throughput], known_per_s: float) -> None:
    (rated,) = found
    assert rated.value == pytest.approx(known_per_s, rel=EXACT)
    assert rated.interval is not None
    low, high = rated.interval
    assert low <= rated.value <= high
    # All that is uncertain is the clock's nanosecond, in iterations of a microsecond and more.
    assert [low, high] == pytest.approx([known_per_s] * 2, rel=1e-3)
