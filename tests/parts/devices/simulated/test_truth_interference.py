"""Tagged latencies and ratios are the known waiting and service, however they are timed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.parts.devices.protocol import Stream
from pytest_hwqueue.parts.devices.simulated.costs import KernelWork

from .conftest import EXACT, ON_DEVICE, Bench, costs, present

some_costs = costs("kernel_launch_ns", "launch_call_ns", "event_record_ns", *ON_DEVICE)
# Longer than it takes to launch all of an iteration, so that everything waits for the first one.
long_kernels = st.integers(2_000_000, 20_000_000)
short_kernels = st.integers(1_000, 1_000_000)


@settings(max_examples=14, derandomize=True)
@given(
    cost=some_costs, neighbours=st.integers(1, 31), connections=st.integers(1, 32),
    long_ns=long_kernels, short_ns=short_kernels, urgent=st.booleans(),
)  # fmt: skip
def test_a_convoy_takes_as_long_as_what_stands_before(
    bench: Bench, cost: dict[str, int], neighbours: int, connections: int, long_ns: int,
    short_ns: int, urgent: bool,
) -> None:  # fmt: skip
    """Neighbours' kernels fill the device; the victim's stands behind them, or overtakes them."""
    device = bench.device(connections=connections, **cost)
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
        references={"alone": alone}, scheduler="stream-priority" if urgent else "native",
        urgency=[0] * neighbours + [1],
    )  # fmt: skip
    launch_ns = cost["launch_call_ns"] + cost["kernel_launch_ns"]
    record_ns, start_ns = cost["event_record_ns"], cost["start_ns"]
    # The first neighbour runs on the first queue; the victim, before it, on a queue of its own
    # priority or on the one that its place gives it.
    switches = urgent or neighbours % connections != 0
    first_ns = launch_ns + start_ns + (cost["queue_switch_ns"] if switches else 0)
    ended_ns = first_ns + long_ns * (1 if urgent else neighbours) + short_ns
    by_events = neighbours + 1 <= connections
    if by_events:
        ready_ns = neighbours * launch_ns + record_ns
        alone_ns = max(launch_ns + start_ns + short_ns, launch_ns + record_ns)
    else:
        ready_ns = (neighbours + 1) * launch_ns
        alone_ns = start_ns + short_ns
    victim_ns = ended_ns - ready_ns

    samples = present(record.samples)
    assert samples.tags_timed_by == ("events" if by_events else "activity")
    assert samples.tags_ns == {"victim": [victim_ns] * 14}
    assert samples.references_ns == {"alone": [alone_ns] * 14}
    tag = record.metrics.tags["victim"]
    assert tag.n == 14
    for figure in (tag.p50.value, tag.mean, tag.max):
        assert figure == pytest.approx(victim_ns / 1e6, rel=EXACT)
    ratio = record.metrics.ratios["victim/alone"]
    known = pytest.approx(victim_ns / alone_ns, rel=EXACT)
    assert [ratio.p50.value, ratio.p50.low, ratio.p50.high] == [known] * 3


@settings(max_examples=16, derandomize=True)
@given(
    cost=some_costs, connections=st.integers(1, 16), kernels=st.integers(1, 12),
    long_ns=long_kernels, short_ns=short_kernels, depends=st.booleans(),
)  # fmt: skip
def test_a_queue_shared_with_a_full_stream_is_waited_for_and_what_a_launch_waits_for_itself_is_not(
    bench: Bench, cost: dict[str, int], connections: int, kernels: int, long_ns: int,
    short_ns: int, depends: bool,
) -> None:  # fmt: skip
    """The device is idle but for one block, and the victim waits: its queue's head is blocked."""
    device = bench.device(connections=connections, **cost)
    long, short = device.kernel_of(long_ns), device.kernel_of(short_ns)
    streams = 2 if depends else connections + 1

    def enqueue(given: Sequence[Stream]) -> None:
        for _ in range(kernels):
            given[0].launch(long)
        if depends:
            given[-1].wait(given[0].record())
        given[-1].launch(short, tag="victim")

    record = bench.measure(device, streams, enqueue, iterations=6, tags=["victim"])
    launch_ns = cost["launch_call_ns"] + cost["kernel_launch_ns"]
    if depends:
        switch_ns = cost["queue_switch_ns"] if connections > 1 else 0
        known_ns = cost["start_ns"] + switch_ns + short_ns
    else:
        # It is issued beside the last kernel before it, and started after that one.
        last_issued_ns = launch_ns + (kernels - 1) * (cost["start_ns"] + long_ns)
        issued_ns = max((kernels + 1) * launch_ns, last_issued_ns + cost["front_end_ns"])
        known_ns = issued_ns + cost["start_ns"] + short_ns - (kernels + 1) * launch_ns
    samples = present(record.samples)
    assert samples.tags_ns == {"victim": [known_ns] * 6}
    if streams > connections:
        assert samples.tags_timed_by == "activity"
        assert any("tags timed in a traced pass" in note for note in record.notes)


@pytest.mark.parametrize("iterations", [1, 7, 13, 438])
def test_ratios_of_planted_durations_are_theirs(bench: Bench, iterations: int) -> None:
    """The same launch takes a known multiple of its time alone; both sides are needed."""
    device = bench.device(start_ns=0, queue_switch_ns=0, kernel_launch_ns=0, launch_call_ns=0,
                          event_record_ns=0)  # fmt: skip
    factor, short_ns = 2 + iterations % 8, 1_000 + 999 * iterations
    short, long = device.kernel_of(short_ns), device.kernel_of(factor * short_ns)
    record = bench.measure(
        device, 1, lambda streams: streams[0].launch(long, tag="slowed"), iterations=iterations,
        tags=["slowed"], references={"alone": lambda streams: streams[0].launch(short, tag="any")},
    )  # fmt: skip
    ratio = record.metrics.ratios["slowed/alone"]
    # Half of the reference's iterations run before, half after, and at least one each.
    assert (ratio.n, ratio.reference_n) == (iterations, 2 * max(1, iterations // 2))
    for found in (ratio.p50, ratio.p99):
        assert found.value in (None, pytest.approx(factor, rel=EXACT))
    assert [ratio.p50.value is None, ratio.p99.value is None] == [iterations < 8, iterations < 437]


@settings(max_examples=6, derandomize=True)
@given(gap=st.integers(0, 1_000), short_ns=short_kernels, streams=st.integers(1, 8))
def test_a_tagged_launch_in_a_graph_takes_its_gap_and_itself(
    bench: Bench, gap: int, short_ns: int, streams: int
) -> None:
    """Events cannot time streams that share a queue, where each launch is a graph of its own."""
    for connections in (8, 1):
        device = bench.device(graph_gap_ns=gap, graph_start_ns=0, connections=connections)
        short, other = device.kernel_of(short_ns), device.kernel_of(50_000)

        def enqueue(given: Sequence[Stream]) -> None:
            for stream in given:
                stream.launch(other)  # noqa: B023
                stream.launch(short, tag="middle")  # noqa: B023
                stream.launch(other)  # noqa: B023

        record = bench.measure(
            device, streams, enqueue, iterations=6, tags=["middle"], dispatch="graph"
        )
        samples = present(record.samples)
        if streams <= connections:
            assert samples.tags_timed_by == "events"
            assert samples.tags_ns == {"middle": [gap + short_ns] * 6 * streams}
        else:
            assert samples.tags_timed_by == "activity"
            assert len(samples.tags_ns["middle"]) == 6 * streams
            assert min(samples.tags_ns["middle"]) >= short_ns


@pytest.mark.parametrize(
    ("tagged", "reference", "sync_mode", "refused"),
    [
        (False, True, "per_iteration", {"victim/alone": "no launch was timed for tag victim"}),
        (True, False, "per_iteration", {"victim/alone": "no launch was timed for reference alone"}),
        (True, True, "end_only", {"ratios": "synchronised"}),
        (False, None, "per_iteration", {}),
    ],
)
def test_a_ratio_of_what_nothing_carries_or_waits_for_is_refused(
    bench: Bench, tagged: bool, reference: bool | None, sync_mode: str, refused: dict[str, str]
) -> None:
    device = bench.device()
    kernel = device.kernel_of(10_000)
    functions = {
        True: lambda streams: streams[0].launch(kernel, tag="victim"),
        False: lambda streams: streams[0].launch(kernel),
    }
    asked = reference is not None
    record = bench.measure(
        device, 1, functions[tagged], iterations=10, sync_mode=sync_mode,
        tags=["victim"] * asked, references={"alone": functions[bool(reference)]} if asked else {},
    )  # fmt: skip
    assert record.metrics.ratios == {}
    if not tagged:
        assert (present(record.samples).tags_ns, record.metrics.tags) == ({}, {})
    for name, told in refused.items():
        assert told in record.metrics.refused[name]
