"""Latency, percentiles, their intervals and throughput are those of a planted schedule."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.data.metrics.latency import LatencySummary
from pytest_hwqueue.parts.devices.simulated.costs import KernelWork

from .conftest import EXACT, Bench, costs, on_each, present

# Without synchronising, the first iteration also fills the queues, which takes at most as long as
# one more iteration and one kernel: two of 200.
FILLING_TOLERANCE = 2 / 200


@settings(max_examples=8, derandomize=True)
@given(
    data=st.data(), streams=st.integers(1, 64), work=st.floats(1e-3, 1e12), replayed=st.booleans()
)
def test_synchronised_iterations_take_the_known_time(
    bench: Bench, data: st.DataObject, streams: int, work: float, replayed: bool
) -> None:
    cost = data.draw(costs())
    kernel_ns = data.draw(st.integers(1_000, 5_000_000))
    # Nodes of several graphs start at once: their front end costs nothing here.
    device = bench.device(connections=64, graph_start_ns=0, **cost)
    if replayed:
        kernels = data.draw(st.integers(1, 10))
        launch_ns = cost["graph_launch_ns"] + kernels * cost["graph_node_launch_ns"]
        chain_ns = kernels * (cost["graph_gap_ns"] + kernel_ns)
    else:
        kernels, launch_ns = 1, cost["kernel_launch_ns"]
        # The last kernel is launched last; on several streams another queue came before it.
        chain_ns = kernel_ns + (cost["queue_switch_ns"] if streams > 1 else 0)
    launched = bench.launchable(device, *[KernelWork(kernel_ns)] * kernels)
    record = bench.measure(
        device, streams, on_each(launched), iterations=50, work={"units": work},
        dispatch="graph" if replayed else "eager",
    )  # fmt: skip
    enqueue_ns = streams * (cost["launch_call_ns"] + launch_ns)
    recorded_ns = enqueue_ns + cost["event_record_ns"] + (streams - 1) * cost["stream_wait_ns"]
    device_ns = max(recorded_ns, enqueue_ns + cost["start_ns"] + chain_ns)
    host_ns = device_ns + cost["synchronise_ns"]
    samples = present(record.samples)
    assert samples.enqueue_ns == [enqueue_ns] * 50
    assert samples.device_ns == [device_ns] * 50
    assert samples.host_ns == [host_ns] * 50
    assert_always(present(record.metrics.latency), host_ns)
    assert_always(present(record.metrics.device_time), device_ns)
    (rated,) = record.metrics.throughput
    rate = work * 1e9 / host_ns
    assert rated.value == pytest.approx(rate, rel=EXACT)
    assert rated.low <= rated <= rated.high
    # All that is uncertain is the clock's nanosecond, in iterations of a microsecond and more.
    assert rated.interval == pytest.approx((rate, rate), rel=1e-3)
    bound = any(note.startswith("bounded by launching") for note in record.notes)
    assert bound == (enqueue_ns > 0.5 * host_ns) or replayed


def assert_always(found: LatencySummary, known_ns: int) -> None:
    """Every figure of a latency that never varies is that latency."""
    assert (found.p50.unit, found.n) == ("ms", 50)
    for figure in (found.mean, found.max, found.p50.value, found.p50.low, found.p50.high):
        assert figure == pytest.approx(known_ns / 1e6, rel=EXACT)


@settings(max_examples=10, derandomize=True)
@given(
    cost=costs(), streams=st.integers(1, 16), kernel_ns=st.integers(1_000, 1_000_000),
    sync_mode=st.sampled_from(["end_only", "none"]),
)  # fmt: skip
def test_pipelined_iterations_go_at_the_pace_of_the_slower_of_host_and_device(
    bench: Bench, cost: dict[str, int], streams: int, kernel_ns: int, sync_mode: str
) -> None:
    device = bench.device(connections=64, **cost)
    record = bench.measure(
        device, streams, on_each(device.kernel_of(kernel_ns)), iterations=200,
        work={"kernels": float(streams)}, sync_mode=sync_mode,
    )  # fmt: skip
    launch_ns = cost["launch_call_ns"] + cost["kernel_launch_ns"]
    host_ns = streams * (launch_ns + cost["event_record_ns"])
    switch_ns = cost["queue_switch_ns"] if streams > 1 else 0
    pace_ns = max(host_ns, cost["start_ns"] + switch_ns + kernel_ns)
    (rated,) = record.metrics.throughput
    assert rated.value == pytest.approx(streams * 1e9 / pace_ns, rel=FILLING_TOLERANCE)
    assert present(record.samples).host_ns == []
    metrics = record.metrics
    assert (metrics.latency, metrics.iteration, metrics.device_time) == (None, None, None)
    assert present(metrics.pace).p50.value == pytest.approx(pace_ns / 1e6, rel=FILLING_TOLERANCE)
