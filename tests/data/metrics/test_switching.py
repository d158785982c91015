"""Queue switching: known delays come back, a device of k queues is seen, refusals have reasons."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.metrics.latency import quantile_interval
from pytest_hwqueue.data.metrics.overlap import summarise_timeline
from pytest_hwqueue.data.metrics.switching import (
    THREADS,
    QueueSwitch,
    median_difference,
    queue_switch,
    ready_delays,
    without_switch,
)
from pytest_hwqueue.data.metrics.timeline import Kernel, Timeline

RELEASED = 1_000_000
VALUES = st.lists(st.floats(-1e3, 1e3), min_size=7, max_size=200)


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
    streams: int, per_stream: int, queues: int, length_ns: int, delay_ns: int = 0
) -> Timeline:
    """Simulate held work on a device whose queues, shared by turns, run one kernel at a time."""
    free = [RELEASED] * queues
    kernels: list[Kernel] = []
    for launch in range(streams * per_stream):
        stream = launch % streams
        start = free[stream % queues] + delay_ns
        free[stream % queues] = end = start + length_ns
        kernels.append(Kernel(stream, launch, "k", None, launch, start, end))
    return Timeline(tuple(kernels), streams, RELEASED)


def kernel(
    stream: int, launch: int, enqueued: int, start: int, end: int, *waits_for: int
) -> Kernel:
    """A kernel that was enqueued ahead, or at the release where that is 0 or more."""
    enqueued, start, end = (RELEASED + each for each in (enqueued, start, end))
    return Kernel(stream, launch, "k", None, enqueued, start, end, waits_for)


FIRST = kernel(0, 0, -9, 0, 100)
IN_ORDER = [kernel(0, 0, -9, 100, 200), kernel(1, 1, -8, 50, 300), kernel(1, 2, -7, 310, 400)]
JOINED = [FIRST, kernel(0, 0, -8, 100, 900), kernel(1, 1, -7, 907, 1000, 0)]
# Behind a launch that ran nothing, or enqueued late: left out, but precede others.
UNKNOWN = [FIRST, kernel(1, 2, -8, 500, 600, 0, 1), kernel(1, 3, -7, 603, 700)]
LATE = [*UNKNOWN, kernel(1, 4, 1, 900, 901, 1), kernel(1, 5, 0, 905, 906)]


@pytest.mark.parametrize(
    ("kernels", "released", "delays", "unknown", "late"),
    [
        (IN_ORDER, RELEASED, [(1, 50, None), (0, 100, False), (2, 10, False)], 0, 0),
        (JOINED, RELEASED, [(0, 0, None), (1, 0, True), (2, 7, False)], 0, 0),
        (LATE, RELEASED, [(0, 0, None), (2, 3, True), (4, 4, True)], 1, 1),
        # Where nothing was held, no kernel is late.
        (LATE[3:], RELEASED, [(1, 4, True)], 0, 1),
        ([FIRST, LATE[4]], None, [(0, 9, None), (1, 905, False)], 0, 0),
    ],
)
def test_a_kernel_is_ready_when_nothing_holds_it_up(
    kernels: list[Kernel],
    released: int | None,
    delays: list[tuple[int, int, bool | None]],
    unknown: int,
    late: int,
) -> None:
    timeline = Timeline(tuple(kernels), 2, released)
    found = [(d.kernel, d.delay_ns, d.after_same_stream) for d in ready_delays(timeline)]
    assert found == delays
    switch = queue_switch(timeline, Timeline((FIRST,), 1, RELEASED))
    assert (switch.unknown_ready, switch.unknown_ready_on_one) == (unknown, 0)
    assert (switch.late_enqueued, switch.late_enqueued_on_one) == (late, 0)


def test_the_inside_split_sees_the_cost_of_a_switch() -> None:
    by_turns = queue_switch(device(2, 20, 1, 1_000, 100), device(1, 40, 1, 1_000, 100))
    empty = by_turns.other_stream_before
    assert (empty.first.n, empty.second.n, empty.difference.value) == (39, 0, None)
    side = "the smaller side needs at least 7 delays, has 0 (7 missing)"
    assert empty.difference.refused == side
    assert empty.second.median.refused == "has 0 delays; 6 independent ones suffice"

    kernels: list[Kernel] = []
    end = RELEASED
    for launch in range(80):
        # The kernel of the other stream is enqueued, and ready, only as the one before ends.
        start = end + (300 if launch and launch % 2 == 0 else 100)
        kernels.append(Kernel(launch // 2 % 2, launch, "k", None, end, start, start + 1_000))
        end = start + 1_000
    many, one = Timeline(tuple(kernels), 2, None), Timeline(tuple(kernels[:1]), 2, None)
    inside = queue_switch(many, one).other_stream_before
    assert (inside.first.n, inside.second.n) == (39, 40)
    difference = inside.difference
    assert (difference.value, *difference.ends) == pytest.approx((0.2, 0.2, 0.2))


TWO = chains([[5] * 20, [9] * 20])
UNHELD = dataclasses.replace(TWO, released_ns=None)
ALL_LATE = dataclasses.replace(TWO, released_ns=-1)
OTHER = tuple(dataclasses.replace(kernel, name="other") for kernel in TWO.kernels)
RENAMED = dataclasses.replace(TWO, kernels=OTHER)


def switch(many: Timeline) -> QueueSwitch:
    """Compare with twenty kernels on one stream."""
    return queue_switch(many, chains([[5] * 20]))


@pytest.mark.parametrize(
    ("many", "n", "said", "refused"),
    [
        (chains([[5] * 20]), 20, "fewer than 2", {"first_start_spread"}),
        (chains([[5] * 3, [9] * 3]), 6, "the smaller side needs at least 7 delays", set()),
        (UNHELD, 40, "was held", {"first_start_spread", "start_rate_per_s"}),
        (ALL_LATE, 0, "", {"first_start_spread", "start_rate_per_s"}),
        (RENAMED, 40, "same kernels", set()),
    ],
)  # fmt: skip
def test_refusals_keep_both_sides_and_name_the_reason(
    many: Timeline, n: int, said: str, refused: set[str]
) -> None:
    found = switch(many)
    first, second, difference = dict(found.overhead).values()
    assert (first.n, first.median.value is None, second.median.value) == (n, n == 0, 0.005)
    assert (difference.value, difference.interval) == (None, None)
    assert said in difference.refused
    assert found.refused.keys() == refused
    assert found.late_enqueued == (40 if n == 0 else 0)


def test_what_has_no_start_rate_or_spread() -> None:
    nothing = Timeline((), 2, RELEASED)
    empty = queue_switch(nothing, nothing)
    assert (empty.overhead.difference.value, empty.start_rate_per_s) == (None, None)
    at_once = switch(chains([[5], [5]]))
    assert (at_once.start_rate_per_s, at_once.first_start_spread) == (None, 0.0)
    assert "different times" in at_once.refused["start_rate_per_s"]
    assert "at least 2 streams" in switch(chains([[5] * 20])).refused["first_start_spread"]
    with pytest.raises(ValueError, match="all its kernels on one stream"):
        queue_switch(TWO, TWO)
    # Streams that wait for others are left out.
    *first, last = chains([[100], [400], [900_000]]).kernels
    waiting = dataclasses.replace(last, waits_for=(0, 1))
    timeline = Timeline((*first, waiting), 3, RELEASED)
    assert switch(timeline).first_start_spread == pytest.approx(0.3)


@pytest.mark.parametrize(("early", "refused"), [(2, False), (3, True), (20, True)])
def test_kernels_that_start_before_they_are_ready_are_refused(early: int, refused: bool) -> None:
    """Single ones may: a launch can allow its kernel to overlap the one before it."""
    delays = [-200] * early + [0] + [100] * (39 - early)
    overhead = switch(chains([delays[::2], delays[1::2]])).overhead
    figures = (overhead.first.median, overhead.first.p95, overhead.difference)
    assert (overhead.first.negative, overhead.second.median.value) == (early, 0.005)
    if not refused:
        assert (figures[0].value, figures[2].value) == pytest.approx((0.1, 0.095))
    for figure in figures if refused else ():
        assert (figure.value, figure.interval) == (None, None)
        assert f"{early} of 40 kernels started before they were ready" in figure.refused


def test_differences_are_refused_where_nothing_switches_and_delays_kept() -> None:
    found = queue_switch(TWO, chains([[5] * 40]))
    threads = without_switch(found, THREADS)
    for name in ("overhead", "other_stream_before"):
        now, before = getattr(threads, name), getattr(found, name)
        assert now.difference == before.difference.without_value(THREADS)
        assert (now.first, now.second) == (before.first, before.second)


@given(VALUES, VALUES)
def test_difference_is_made_of_both_intervals(first: list[float], second: list[float]) -> None:
    found = median_difference(first, second).difference
    assert found.value == pytest.approx(float(np.median(first) - np.median(second)))
    assert found.low <= found <= found.high
    low, high = quantile_interval(sorted(first), 0.5, 0.975)
    other_low, other_high = quantile_interval(sorted(second), 0.5, 0.975)
    assert found.interval == (low - other_high, high - other_low)


def test_what_is_no_delay_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        median_difference([1.0, float("nan")], [])


def test_many_kernels_take_no_quadratic_time() -> None:
    # A quadratic pass over 60 000 kernels would take minutes.
    timeline = chains([[5] * 1_000 for _ in range(60)])
    assert switch(timeline).overhead.first.n == 60_000
    assert summarise_timeline(timeline).in_flight_max == 60
