"""Tagged latencies and ratios are the known waiting and service, however they are timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_hwqueue.devices.protocol import Stream
from pytest_hwqueue.devices.simulated.costs import KernelWork

if TYPE_CHECKING:
    from tests.devices.simulated.conftest import Bench

# Nothing varies, in whole nanoseconds: only divisions round.
EXACT = 1e-9

costs = st.fixed_dictionaries(
    {
        "kernel_launch_ns": st.integers(700, 10_000),
        "launch_call_ns": st.integers(0, 15_000),
        "event_record_ns": st.integers(0, 8_000),
        "start_ns": st.integers(0, 3_000),
        "queue_switch_ns": st.integers(0, 5_000),
        "front_end_ns": st.integers(0, 700),
    }
)
# Longer than it takes to launch all of an iteration, so that everything waits for the first one.
long_kernels = st.integers(2_000_000, 20_000_000)
short_kernels = st.integers(1_000, 1_000_000)


@settings(max_examples=14, derandomize=True)
@given(
    costs=costs,
    neighbours=st.integers(1, 31),
    connections=st.integers(1, 32),
    long_ns=long_kernels,
    short_ns=short_kernels,
    scheduler=st.sampled_from(["native", "stream-priority"]),
)
def test_a_convoy_takes_as_long_as_what_stands_before(
    bench: Bench,
    costs: Mapping[str, int],
    neighbours: int,
    connections: int,
    long_ns: int,
    short_ns: int,
    scheduler: str,
) -> None:
    """Neighbours' kernels fill the device; the victim's stands behind them, or overtakes them."""
    device = bench.device(connections=connections, **costs)
    long = bench.launchable(device, KernelWork(long_ns, slots_per_block=device.profile.slots))
    short = device.kernel_of(short_ns)

    def alone(streams: Sequence[Stream]) -> None:
        streams[-1].launch(short, tag="victim")

    def enqueue(streams: Sequence[Stream]) -> None:
        for stream in streams[:-1]:
            stream.launch(long)
        alone(streams)

    record = bench.measure(
        device, neighbours + 1, enqueue, iterations=14, tags=["victim"],
        references={"alone": alone}, scheduler=scheduler, urgency=[0] * neighbours + [1],
    )  # fmt: skip
    launch_ns = costs["launch_call_ns"] + costs["kernel_launch_ns"]
    record_ns, start_ns = costs["event_record_ns"], costs["start_ns"]
    urgent = scheduler == "stream-priority"
    # The first neighbour runs on the first queue; the victim, before it, on a queue of its own
    # priority or on the one that its place gives it.
    switches = urgent or neighbours % connections != 0
    first_ns = launch_ns + start_ns + (costs["queue_switch_ns"] if switches else 0)
    ended_ns = first_ns + long_ns * (1 if urgent else neighbours) + short_ns
    by_events = neighbours + 1 <= connections
    if by_events:
        ready_ns = neighbours * launch_ns + record_ns
        alone_ns = max(launch_ns + start_ns + short_ns, launch_ns + record_ns)
    else:
        ready_ns = (neighbours + 1) * launch_ns
        alone_ns = start_ns + short_ns
    victim_ns = ended_ns - ready_ns

    samples = record.samples
    assert samples is not None
    assert samples.tags_timed_by == ("events" if by_events else "activity")
    assert samples.tags_ns == {"victim": [victim_ns] * 14}
    assert samples.references_ns == {"alone": [alone_ns] * 14}
    tag = record.metrics.tags["victim"]
    assert tag.n == 14
    for figure in (tag.p50, tag.mean, tag.max):
        assert figure == pytest.approx(victim_ns / 1e6, rel=EXACT)
    ratio = record.metrics.ratios["victim/alone"]
    known = pytest.approx(victim_ns / alone_ns, rel=EXACT)
    assert ratio.p50 == known
    assert list(ratio.intervals["p50"]) == [known, known]
    assert ratio.p99 is None
    assert ratio.refused == {"p99": "needs at least 437 samples on both sides, has 14"}


@settings(max_examples=10, derandomize=True)
@given(
    costs=costs,
    connections=st.integers(1, 16),
    kernels=st.integers(1, 12),
    long_ns=long_kernels,
    short_ns=short_kernels,
)
def test_a_queue_shared_with_a_full_stream_is_waited_for(
    bench: Bench,
    costs: Mapping[str, int],
    connections: int,
    kernels: int,
    long_ns: int,
    short_ns: int,
) -> None:
    """The device is idle but for one block, and the victim waits: its queue's head is blocked."""
    device = bench.device(connections=connections, **costs)
    long, short = device.kernel_of(long_ns), device.kernel_of(short_ns)

    def enqueue(streams: Sequence[Stream]) -> None:
        for _ in range(kernels):
            streams[0].launch(long)
        streams[connections].launch(short, tag="victim")

    record = bench.measure(device, connections + 1, enqueue, iterations=6, tags=["victim"])
    launch_ns = costs["launch_call_ns"] + costs["kernel_launch_ns"]
    # It is issued beside the last kernel before it, and started after that one.
    last_issued_ns = launch_ns + (kernels - 1) * (costs["start_ns"] + long_ns)
    issued_ns = max((kernels + 1) * launch_ns, last_issued_ns + costs["front_end_ns"])
    known_ns = issued_ns + costs["start_ns"] + short_ns - (kernels + 1) * launch_ns
    assert record.samples is not None
    assert record.samples.tags_timed_by == "activity"
    assert record.samples.tags_ns == {"victim": [known_ns] * 6}
    assert any("tags timed in a traced pass" in note for note in record.notes)


@settings(max_examples=6, derandomize=True)
@given(
    costs=costs,
    connections=st.sampled_from([1, 8]),
    long_ns=long_kernels,
    short_ns=short_kernels,
)
def test_what_a_launch_itself_waits_for_is_no_latency(
    bench: Bench, costs: Mapping[str, int], connections: int, long_ns: int, short_ns: int
) -> None:
    device = bench.device(connections=connections, **costs)
    long, short = device.kernel_of(long_ns), device.kernel_of(short_ns)

    def enqueue(streams: Sequence[Stream]) -> None:
        streams[0].launch(long)
        streams[1].wait(streams[0].record())
        streams[1].launch(short, tag="dependent")

    record = bench.measure(device, 2, enqueue, iterations=6, tags=["dependent"])
    switch_ns = costs["queue_switch_ns"] if connections > 1 else 0
    assert record.samples is not None
    assert record.samples.tags_ns == {"dependent": [costs["start_ns"] + switch_ns + short_ns] * 6}


@settings(max_examples=6, derandomize=True)
@given(
    iterations=st.integers(1, 20),
    short_ns=short_kernels,
    factor=st.integers(2, 9),
)
@example(iterations=436, short_ns=100_000, factor=3)
@example(iterations=438, short_ns=100_000, factor=3)
def test_ratios_of_planted_durations_are_theirs_or_refused(
    bench: Bench, iterations: int, short_ns: int, factor: int
) -> None:
    """The same launch takes a known multiple of its time alone; both sides are needed."""
    device = bench.device(start_ns=0, queue_switch_ns=0, kernel_launch_ns=0, launch_call_ns=0,
                          event_record_ns=0)  # fmt: skip
    short, long = device.kernel_of(short_ns), device.kernel_of(factor * short_ns)
    record = bench.measure(
        device, 1, lambda streams: streams[0].launch(long, tag="slowed"), iterations=iterations,
        tags=["slowed"], references={"alone": lambda streams: streams[0].launch(short, tag="any")},
    )  # fmt: skip
    ratio = record.metrics.ratios["slowed/alone"]
    # Half of the reference's iterations run before, half after, and at least one each.
    assert (ratio.n, ratio.reference_n) == (iterations, 2 * max(1, iterations // 2))
    fewer = min(ratio.n, ratio.reference_n)
    for name, needed in (("p50", 7), ("p99", 437)):
        value = getattr(ratio, name)
        if fewer < needed:
            assert value is None
            reason = f"needs at least {needed} samples on both sides, has {fewer}"
            assert ratio.refused[name] == reason
        else:
            assert value == pytest.approx(factor, rel=EXACT)
            low, high = ratio.intervals[name]
            assert low <= value <= high


def test_nothing_is_said_of_tags_that_nothing_carries(bench: Bench) -> None:
    device = bench.device()
    kernel = device.kernel_of(10_000)
    record = bench.measure(device, 2, lambda streams: streams[1].launch(kernel), iterations=10)
    assert record.samples is not None
    assert record.samples.tags_ns == {}
    assert (record.metrics.tags, record.metrics.ratios) == ({}, {})


@settings(max_examples=6, derandomize=True)
@given(gap=st.integers(0, 1_000), short_ns=short_kernels, streams=st.integers(1, 8))
def test_a_tagged_launch_in_a_graph_takes_its_gap_and_itself(
    bench: Bench, gap: int, short_ns: int, streams: int
) -> None:
    device = bench.device(graph_gap_ns=gap, graph_start_ns=0)
    short, other = device.kernel_of(short_ns), device.kernel_of(50_000)

    def enqueue(given: Sequence[Stream]) -> None:
        for stream in given:
            stream.launch(other)
            stream.launch(short, tag="middle")
            stream.launch(other)

    record = bench.measure(
        device, streams, enqueue, iterations=6, tags=["middle"], dispatch="graph"
    )
    assert record.samples is not None
    assert record.samples.tags_timed_by == "events"
    assert record.samples.tags_ns == {"middle": [gap + short_ns] * 6 * streams}


@pytest.mark.parametrize("absent", ["tag", "reference"])
def test_a_ratio_of_what_nothing_carries_is_refused(bench: Bench, absent: str) -> None:
    device = bench.device()
    kernel = device.kernel_of(10_000)

    def tagged(streams: Sequence[Stream]) -> None:
        streams[0].launch(kernel, tag="victim")

    def bare(streams: Sequence[Stream]) -> None:
        streams[0].launch(kernel)

    record = bench.measure(
        device, 1, bare if absent == "tag" else tagged, iterations=10, tags=["victim"],
        references={"alone": tagged if absent == "tag" else bare},
    )  # fmt: skip
    assert record.metrics.ratios == {}
    what = "tag victim" if absent == "tag" else "reference alone"
    assert record.metrics.refused == {"victim/alone": f"no launch was timed for {what}"}


def test_no_ratio_where_iterations_are_not_synchronised(bench: Bench) -> None:
    device = bench.device()
    kernel = device.kernel_of(10_000)

    def enqueue(streams: Sequence[Stream]) -> None:
        streams[0].launch(kernel, tag="victim")

    record = bench.measure(
        device, 1, enqueue, iterations=10, tags=["victim"], references={"alone": enqueue},
        sync_mode="end_only",
    )  # fmt: skip
    assert record.metrics.ratios == {}
    assert "synchronised" in record.metrics.refused["ratios"]


def test_tagged_launches_that_share_queues_are_graphs_of_their_own(bench: Bench) -> None:
    device = bench.device(connections=1)
    kernel = device.kernel_of(10_000)

    def enqueue(streams: Sequence[Stream]) -> None:
        for stream in streams:
            stream.launch(kernel, tag="victim")
            stream.launch(kernel)

    record = bench.measure(
        device, 2, enqueue, iterations=10, tags=["victim"], references={"alone": enqueue},
        dispatch="graph",
    )  # fmt: skip
    assert record.samples is not None
    assert record.samples.tags_timed_by == "activity"
    assert len(record.samples.tags_ns["victim"]) == 20
    assert min(record.samples.tags_ns["victim"]) >= 10_000
