"""Queue switching: known delays come back, a device of k queues is seen, refusals have reasons."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.metrics.latency import quantile_interval
from pytest_hwqueue.metrics.switching import (
    THREADS,
    QueueSwitch,
    median_difference,
    queue_switch,
    ready_delays,
    without_switch,
)
from pytest_hwqueue.metrics.timeline import Kernel, Timeline, summarise_timeline

RELEASED = 1_000_000


def chains(delays: Sequence[Sequence[int]], length_ns: int = 50_000) -> Timeline:
    """Build a timeline in which each stream's kernels start these delays after they are ready."""
    kernels: list[Kernel] = []
    for stream, stream_delays in enumerate(delays):
        ready = RELEASED
        for delay in stream_delays:
            start = ready + delay
            ready = start + length_ns
            enqueued = len(kernels)
            kernels.append(Kernel(stream, enqueued, "k", None, enqueued, start, ready))
    return Timeline(tuple(kernels), len(delays), RELEASED)


def device(
    streams: int, per_stream: int, queues: int, length_ns: int, switch_ns: Callable[[bool], int]
) -> Timeline:
    """Simulate held work on a device whose queues each run one kernel after the other.

    Streams share queues by turns; ``switch_ns`` tells the delay before a kernel from whether
    the same stream ran before it in the queue.
    """
    free = [RELEASED] * queues
    before = [-1] * queues
    kernels: list[Kernel] = []
    for launch in range(streams * per_stream):
        stream = launch % streams
        queue = stream % queues
        start = free[queue] + switch_ns(before[queue] in (-1, stream))
        free[queue] = start + length_ns
        before[queue] = stream
        kernels.append(Kernel(stream, launch, "k", None, launch, start, free[queue]))
    return Timeline(tuple(kernels), streams, RELEASED)


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.integers(-50_000, 10**6), min_size=1, max_size=20), min_size=1, max_size=8
    ),
    st.randoms(use_true_random=False),
)
def test_known_delays_come_back(delays: list[list[int]], shuffler: random.Random) -> None:
    timeline = chains(delays)
    shuffled = list(timeline.kernels)
    shuffler.shuffle(shuffled)
    measured = ready_delays(dataclasses.replace(timeline, kernels=tuple(shuffled)))
    by_launch = {shuffled[delay.kernel].launch: delay.delay_ns for delay in measured}
    expected = [delay for stream in delays for delay in stream]
    assert [by_launch[launch] for launch in range(len(expected))] == expected


def test_delays_come_in_the_order_of_starts() -> None:
    timeline = Timeline(
        (
            Kernel(0, 0, "k", None, 0, RELEASED + 100, RELEASED + 200),
            Kernel(1, 1, "k", None, 1, RELEASED + 50, RELEASED + 300),
            Kernel(1, 2, "k", None, 2, RELEASED + 310, RELEASED + 400),
        ),
        2,
        RELEASED,
    )
    measured = ready_delays(timeline)
    assert [(d.kernel, d.delay_ns, d.after_same_stream) for d in measured] == [
        (1, 50, None),
        (0, 100, False),
        (2, 10, False),
    ]


def test_kernel_is_ready_when_the_launches_it_waits_for_ended() -> None:
    kernels = (
        Kernel(0, 0, "a", None, 0, RELEASED, RELEASED + 100),
        Kernel(0, 0, "b", None, 0, RELEASED + 100, RELEASED + 900),
        Kernel(1, 1, "c", None, 1, RELEASED + 907, RELEASED + 1000, waits_for=(0,)),
    )
    assert [d.delay_ns for d in ready_delays(Timeline(kernels, 2, RELEASED))] == [0, 0, 7]


def test_a_kernel_behind_a_launch_that_ran_nothing_is_left_out_but_precedes_others() -> None:
    kernels = (
        Kernel(0, 0, "a", None, 0, RELEASED, RELEASED + 100),
        Kernel(1, 2, "b", None, 1, RELEASED + 500, RELEASED + 600, waits_for=(0, 1)),
        Kernel(1, 3, "c", None, 2, RELEASED + 603, RELEASED + 700),
        Kernel(1, 4, "d", None, RELEASED + 1, RELEASED + 900, RELEASED + 901, waits_for=(1,)),
    )
    timeline = Timeline(kernels, 2, RELEASED)
    assert [(d.kernel, d.delay_ns) for d in ready_delays(timeline)] == [(0, 0), (2, 3)]
    on_one = Timeline((kernels[0],), 1, RELEASED)
    found = queue_switch(timeline, on_one)
    assert (found.unknown_ready, found.unknown_ready_on_one) == (1, 0)
    assert (found.late_enqueued, found.late_enqueued_on_one) == (1, 0)


def test_late_kernels_are_left_out_but_precede_others() -> None:
    kernels = (
        Kernel(0, 0, "k", None, RELEASED + 1, RELEASED + 10, RELEASED + 500),
        Kernel(0, 1, "k", None, RELEASED, RELEASED + 503, RELEASED + 600),
    )
    timeline = Timeline(kernels, 1, RELEASED)
    assert [(d.kernel, d.delay_ns, d.after_same_stream) for d in ready_delays(timeline)] == [
        (1, 3, True)
    ]
    assert queue_switch(timeline, timeline).late_enqueued == 1
    ungated = dataclasses.replace(timeline, released_ns=None)
    assert [d.delay_ns for d in ready_delays(ungated)] == [9, 3]


def test_overhead_of_a_device_with_as_many_queues_as_streams() -> None:
    many = device(8, 20, 8, 50_000, lambda same: 3_400)
    one = device(1, 20, 1, 50_000, lambda same: 1_100)
    result = queue_switch(many, one)
    assert result.streams == 8
    assert result.unit == result.overhead.unit == "us"
    assert (result.overhead.first.n, result.overhead.second.n) == (160, 20)
    assert (result.overhead.first.median, result.overhead.second.median) == (3.4, 1.1)
    assert result.overhead.first.p95 == pytest.approx(3.4)
    assert result.overhead.second.p95 is None
    assert result.overhead.difference == pytest.approx(2.3)
    assert result.overhead.interval == pytest.approx((2.3, 2.3))
    assert result.overhead.refused == {}
    assert (result.late_enqueued, result.late_enqueued_on_one) == (0, 0)
    assert result.first_start_spread == 0.0
    assert result.start_rate_per_s == pytest.approx(159 / (19 * 53_400e-9))
    json.dumps(dataclasses.asdict(result))


@pytest.mark.parametrize("queues", [1, 2, 4, 8])
def test_streams_that_share_queues_start_late(queues: int) -> None:
    timeline = device(8, 1, queues, 100_000, lambda same: 0)
    delays = sorted(delay.delay_ns for delay in ready_delays(timeline))
    assert delays == sorted(100_000 * (stream // queues) for stream in range(8))
    result = queue_switch(timeline, device(1, 8, 1, 100_000, lambda same: 0))
    assert result.first_start_spread == 100.0 * (8 // queues - 1)
    assert summarise_timeline(timeline).in_flight_max == queues


def test_work_in_turns_leaves_the_inside_split_empty() -> None:
    many = device(2, 20, 1, 1_000, lambda same: 100)
    inside = queue_switch(many, device(1, 40, 1, 1_000, lambda same: 100)).other_stream_before
    assert (inside.first.n, inside.second.n) == (39, 0)
    assert inside.difference is None
    assert inside.refused["difference"] == (
        "the smaller side needs at least 7 delays, has 0 (7 missing)"
    )
    assert inside.second.refused["median"] == "needs at least 6 delays, has 0 (6 missing)"


def test_inside_split_sees_the_cost_of_a_switch() -> None:
    kernels: list[Kernel] = []
    before, end = 0, RELEASED
    for launch in range(80):
        stream = launch // 2 % 2
        # The kernel of the other stream is enqueued, and ready, only as the one before ends.
        start = end + (300 if stream != before else 100)
        kernels.append(Kernel(stream, launch, "k", None, end, start, start + 1_000))
        before, end = stream, start + 1_000
    inside = queue_switch(
        Timeline(tuple(kernels), 2, None), Timeline(tuple(kernels[:1]), 2, None)
    ).other_stream_before
    assert (inside.first.n, inside.second.n) == (39, 40)
    assert inside.difference == pytest.approx(0.2)
    assert inside.interval == pytest.approx((0.2, 0.2))


def switch(many: Timeline, one: Timeline | None = None) -> QueueSwitch:
    """Compare with twenty kernels on one stream."""
    return queue_switch(many, chains([[5] * 20]) if one is None else one)


def test_refusals_keep_both_sides_and_name_the_reason() -> None:
    two = chains([[5] * 20, [9] * 20])
    alone = switch(chains([[5] * 20]))
    assert "fewer than 2" in alone.overhead.refused["difference"]
    assert alone.overhead.first.median == 0.005
    assert "at least 2 streams" in alone.refused["first_start_spread"]
    few = switch(chains([[5] * 3, [9] * 3]))
    assert few.overhead.first.n == 6
    assert few.overhead.first.median is not None
    assert few.overhead.refused["interval"].startswith("the smaller side needs at least 7 delays")
    ungated = switch(dataclasses.replace(two, released_ns=None))
    assert "was held" in ungated.overhead.refused["difference"]
    assert set(ungated.refused) == {"first_start_spread", "start_rate_per_s"}
    all_late = switch(dataclasses.replace(two, released_ns=-1))
    assert all_late.overhead.first.n == 0
    assert all_late.late_enqueued == 40
    assert set(all_late.refused) == {"first_start_spread", "start_rate_per_s"}
    renamed = tuple(dataclasses.replace(kernel, name="other") for kernel in two.kernels)
    other = switch(dataclasses.replace(two, kernels=renamed))
    assert "same kernels" in other.overhead.refused["difference"]
    assert other.overhead.interval is None
    with pytest.raises(ValueError, match="all its kernels on one stream"):
        switch(two, two)


def test_empty_timelines_are_refused_without_error() -> None:
    nothing = Timeline((), 2, RELEASED)
    result = queue_switch(nothing, nothing)
    assert result.overhead.difference is None
    assert result.start_rate_per_s is None


def test_simultaneous_starts_have_no_rate() -> None:
    result = switch(chains([[5], [5]]))
    assert result.start_rate_per_s is None
    assert "different times" in result.refused["start_rate_per_s"]
    assert result.first_start_spread == 0.0


def test_first_start_spread_leaves_out_streams_that_wait_for_others() -> None:
    timeline = chains([[100], [400], [900_000]])
    waiting = dataclasses.replace(timeline.kernels[2], waits_for=(0, 1))
    timeline = dataclasses.replace(timeline, kernels=(*timeline.kernels[:2], waiting))
    assert switch(timeline).first_start_spread == pytest.approx(0.3)


@pytest.mark.parametrize(("early", "refused"), [(2, False), (3, True), (20, True)])
def test_kernels_that_start_before_they_are_ready_are_refused(early: int, refused: bool) -> None:
    """Single ones may: a launch can allow its kernel to overlap the one before it."""
    delays = [-200] * early + [100] * (40 - early)
    result = switch(chains([delays[::2], delays[1::2]]))
    first = result.overhead.first
    assert first.negative == early
    assert (first.median is None) == (result.overhead.difference is None) == refused
    if refused:
        reason = f"{early} of 40 kernels started before they were ready"
        assert set(first.refused) == {"median", "median_interval", "p95", "p95_interval"}
        assert reason in first.refused["median"]
        assert reason in result.overhead.refused["difference"]
        assert result.overhead.second.median is not None


def test_differences_are_refused_where_nothing_switches_and_delays_kept() -> None:
    found = queue_switch(chains([[5] * 20, [9] * 20]), chains([[5] * 40]))
    threads = without_switch(found, THREADS)
    for comparison in (threads.overhead, threads.other_stream_before):
        assert (comparison.difference, comparison.interval) == (None, None)
        assert comparison.refused == dict.fromkeys(("difference", "interval"), THREADS)
    assert threads.overhead.first == found.overhead.first
    assert threads.other_stream_before.second == found.other_stream_before.second


@settings(deadline=None)
@given(
    st.lists(st.floats(-1e3, 1e3), min_size=7, max_size=200),
    st.lists(st.floats(-1e3, 1e3), min_size=7, max_size=200),
    st.floats(0.5, 0.95),
)
def test_difference_is_made_of_both_intervals(
    first: list[float], second: list[float], confidence: float
) -> None:
    result = median_difference(first, second, "us", confidence)
    assert result.difference is not None
    assert result.interval is not None
    assert result.difference == pytest.approx(float(np.median(first) - np.median(second)))
    assert result.interval[0] <= result.difference <= result.interval[1]
    each = 1 - (1 - confidence) / 2
    low, high = quantile_interval(sorted(first), 0.5, each)
    other_low, other_high = quantile_interval(sorted(second), 0.5, each)
    assert result.interval == (low - other_high, high - other_low)
    mirrored = median_difference(second, first, "us", confidence)
    assert mirrored.interval == (-result.interval[1], -result.interval[0])


def test_difference_covers_the_truth() -> None:
    generator = np.random.default_rng(11)
    covered = 0
    for _ in range(400):
        first = (3 + generator.exponential(size=60)).tolist()
        second = generator.exponential(size=25).tolist()
        interval = median_difference(first, second, "us").interval
        assert interval is not None
        covered += interval[0] <= 3 <= interval[1]
    assert covered / 400 >= 0.95


def test_difference_refuses_what_is_no_delay() -> None:
    with pytest.raises(ValueError, match="finite"):
        median_difference([1.0, float("nan")], [], "us")
    with pytest.raises(ValueError, match="confidence"):
        median_difference([], [], "us", 1.0)


def test_many_kernels_take_no_quadratic_time() -> None:
    # A quadratic pass over 60 000 kernels would take minutes.
    timeline = chains([[5] * 1_000 for _ in range(60)])
    assert queue_switch(timeline, chains([[5] * 100])).overhead.first.n == 60_000
    assert summarise_timeline(timeline).in_flight_max == 60
