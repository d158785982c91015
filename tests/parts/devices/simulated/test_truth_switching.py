"""Queue-switch overhead is the one in the profile, or is refused where no queue is switched."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from .conftest import ON_DEVICE, Bench, costs, on_each, present

# The model has no noise, and a median of equal delays is that delay: only the division of whole
# nanoseconds by a thousand rounds.
TOLERANCE_US = 1e-6
# A rate is one division of whole numbers.
RATE_TOLERANCE = 1e-9

PROBE_NS = 50_000
PROBE_ROUNDS = 20
HELD_LAUNCHES = 850

# At most 64 streams' first kernels start 0.7 µs apart, within the 50 µs of the probe's kernels:
# with a slower front end its queue, and not the switch, would be what kernels wait for.
device_costs = costs(*ON_DEVICE)


@settings(max_examples=6, derandomize=True)
@given(cost=device_costs, streams=st.integers(2, 64), connections=st.just(1) | st.integers(2, 64))
@example(
    cost={"start_ns": 1100, "queue_switch_ns": 1600, "front_end_ns": 600},
    streams=64, connections=8,
)  # fmt: skip
def test_overhead_is_the_profiles(
    bench: Bench, cost: dict[str, int], streams: int, connections: int
) -> None:
    """Streams of one queue switch nothing."""
    device = bench.device(connections=connections, **cost)
    start, switch = cost["start_ns"], cost["queue_switch_ns"] * (connections > 1)
    front_end = cost["front_end_ns"]
    kernel = device.kernel_of(3 * PROBE_NS)
    record = bench.measure(device, streams, on_each(kernel))
    probe, own = present(record.metrics.queue_switch), present(record.metrics.ready_to_start)
    for found in (probe, own):
        assert (found.unit, found.streams) == ("us", streams)
        assert (found.late_enqueued, found.late_enqueued_on_one) == (0, 0)
        overhead, difference = found.overhead, found.overhead.difference
        assert difference.value == pytest.approx(switch / 1e3, abs=TOLERANCE_US)
        low, high = present(difference.interval)
        assert low - TOLERANCE_US <= switch / 1e3 <= high + TOLERANCE_US
        medians = (overhead.first.median.value, overhead.second.median.value)
        known = ((start + switch) / 1e3, start / 1e3)
        assert medians == pytest.approx(known, abs=TOLERANCE_US)
        assert (overhead.first.negative, overhead.second.negative) == (0, 0)
        # When the gate opens, the front end takes the streams of one queue, then of the next. What
        # ran before was on the first queue (the probe's pass on one stream) or on the last.
        queues = [stream % connections for stream in range(streams)]
        before = 0 if found is probe else max(queues)
        starts = []
        for place, queue in enumerate(sorted(queues)):
            starts.append(place * front_end + (switch if queue != before else 0))
            before = queue
        spread = max(starts) - min(starts)
        assert found.first_start_spread == pytest.approx(spread / 1e3, abs=TOLERANCE_US)
    if streams <= connections:
        # From the first start on, a stream's kernels follow one another at this distance.
        rounds = max(2, min(PROBE_ROUNDS, HELD_LAUNCHES // streams))
        probe_ns = PROBE_NS * -(-streams // 32)
        span = (rounds - 1) * (probe_ns + start + switch) + (streams - 1) * front_end + switch
        assert probe.start_rate_per_s == pytest.approx(
            (rounds * streams - 1) * 1e9 / span, rel=RATE_TOLERANCE
        )


@pytest.mark.parametrize(
    ("figures", "urgency", "truth_us"),
    [
        ({"queue_switch_ns": 2_345}, [0, 0, 1, 2, 5, 0] + 10 * [0], 2.345),
        # A device that does not run one kernel of every stream at once says nothing of switching.
        ({"multiprocessors": 2, "block_slots_per_multiprocessor": 1}, None, None),
        ({"concurrent_kernels": 15}, None, None),
        # Of 16 kernels that start every 10 µs the first has ended before the seventh starts.
        ({"front_end_ns": 10_000}, None, None),
    ],
)
def test_priorities_change_nothing_and_waiting_for_room_is_no_switch(
    bench: Bench, figures: dict[str, int], urgency: list[int] | None, truth_us: float | None
) -> None:
    device = bench.device(**figures)
    record = bench.measure(
        device, 16, on_each(device.kernel_of(PROBE_NS)), urgency=urgency,
        scheduler="stream-priority" if urgency else "native",
    )  # fmt: skip
    found = present(record.metrics.queue_switch)
    overhead = found.overhead
    if truth_us is None:
        assert overhead.difference.value is None
        assert "ran at once" in overhead.difference.refused
    else:
        assert overhead.difference.value == pytest.approx(truth_us, abs=TOLERANCE_US)
    # Streams that take turns leave one side of the split inside the run empty.
    split = found.other_stream_before.difference
    assert split.value is None
    assert "needs at least 7 delays, has 0" in split.refused


@settings(max_examples=4, derandomize=True)
@given(streams=st.integers(1, 8), cost=device_costs)
def test_no_switch_without_a_second_stream_that_works(
    bench: Bench, streams: int, cost: dict[str, int]
) -> None:
    device = bench.device(**cost)
    kernel = device.kernel_of(PROBE_NS)
    record = bench.measure(device, streams, lambda given: given[-1].launch(kernel))
    own, probe = present(record.metrics.ready_to_start), present(record.metrics.queue_switch)
    for found in (own,) if streams > 1 else (own, probe):
        assert found.streams == 1
        difference = found.overhead.difference
        assert (difference.value, difference.interval) == (None, None)
        assert "no queue was switched" in difference.refused
        assert found.overhead.second.median.value == pytest.approx(
            cost["start_ns"] / 1e3, abs=TOLERANCE_US
        )
        assert found.first_start_spread is None
        assert "at least 2 streams" in found.refused["first_start_spread"]
    # The probe takes all streams, whatever the workload does.
    assert (probe.overhead.difference.value is None) == (streams == 1)
