"""Timelines: busy times, kernels in flight and overlap of known schedules; interval arithmetic."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.metrics import timeline as timelines
from pytest_hwqueue.metrics.overlap import TimelineSummary, summarise_timeline
from pytest_hwqueue.metrics.timeline import Kernel, Span, Timeline

MS = 1_000_000
Intervals = list[tuple[int, int, int]]


def summary_of(intervals: Intervals, streams: int = 2, unit: int = MS) -> TimelineSummary:
    """Summarise kernels given as (stream, start in ms, end in ms)."""
    kernels = tuple(
        Kernel(stream, launch, "k", None, 0, start * unit, end * unit)
        for launch, (stream, start, end) in enumerate(intervals)
    )
    return summarise_timeline(Timeline(kernels, streams, None))


@pytest.mark.parametrize(
    ("intervals", "busy", "in_flight", "efficiency"),
    [
        ([(0, 0, 10), (1, 10, 30)], [10, 20], (1, 1), 0),
        ([(0, 0, 30), (1, 5, 10), (1, 20, 25)], [30, 10], (40 / 30, 2), 1),
        # T_compute 20, T_comms 10, T_both 25: (20 + 10 - 25) / min(20, 10).
        ([(0, 0, 20), (1, 15, 25)], [20, 10], (30 / 25, 2), 0.5),
        # Idle time counts in the span only.
        ([(0, 0, 10), (1, 90, 100)], [10, 10], (1, 1), 0),
        # Overlap inside one stream is busy once.
        ([(0, 0, 10), (0, 5, 15)], [15, 0], (20 / 15, 2), None),
        # Too short for the clock.
        ([(0, 5, 5), (1, 6, 6)], [0, 0], (None, 0), None),
    ],
)
def test_known_schedules(
    intervals: Intervals, busy: list[float], in_flight: tuple[float, int], efficiency: float | None
) -> None:
    found = summary_of(intervals)
    assert (found.busy_ms, found.overlap_efficiency.value) == (busy, efficiency)
    assert (found.in_flight_mean.value, found.in_flight_max) == in_flight
    streams, starts, ends = map(set, zip(*intervals, strict=True))
    assert (found.span_ms, found.kernels) == (max(ends) - min(starts), len(intervals))
    assert found.streams_used == len(streams)
    for figure in (found.in_flight_mean, found.overlap_efficiency):
        assert (figure.value is None) == bool(figure.refused)
    if len(streams) == 1:
        assert found.overlap_efficiency.refused == "needs at least 2 busy streams, has 1"


def test_absolute_clocks_lose_nothing() -> None:
    # Nanoseconds since 1970 do not fit a double; their differences must be exact all the same.
    epoch = 1_760_000_000_000_000_001
    found = summary_of([(0, epoch, epoch + 2), (1, epoch + 1, epoch + 3)], unit=1)
    assert (found.busy_ms, found.overlap_efficiency.value) == ([2e-6, 2e-6], 0.5)


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 60), st.integers(0, 20)),
        min_size=1,
        max_size=40,
    )
)
def test_summary_agrees_with_counting_every_tick(kernels: Intervals) -> None:
    summary = summary_of([(s, start, start + lasts) for s, start, lasts in kernels], streams=5)
    running = [
        [s for s, start, lasts in kernels if start <= tick < start + lasts] for tick in range(80)
    ]
    busy = [sum(stream in tick for tick in running) for stream in range(5)]
    together = sum(bool(tick) for tick in running)
    assert summary.busy_ms == busy
    assert summary.in_flight_max == max(map(len, running))
    mean = sum(map(len, running)) / together if together else None
    assert summary.in_flight_mean.value == (mean if mean is None else pytest.approx(mean))
    efficiency = None
    if sum(time > 0 for time in busy) >= 2:
        efficiency = (sum(busy) - together) / (sum(busy) - max(busy))
        assert 0 <= efficiency <= 1
    assert summary.overlap_efficiency.value == (efficiency and pytest.approx(efficiency))
    for figure in (summary.in_flight_mean, summary.overlap_efficiency):
        assert (figure.value is None) == bool(figure.refused)
    again = TimelineSummary.model_validate_json(summary.model_dump_json())
    assert again == summary


def test_refuses_impossible_timelines() -> None:
    ends_first = r"kernel 0 \(k\) ends before it starts"
    for intervals, said in (([], "without kernels"), ([(0, 2, 1)], ends_first)):
        with pytest.raises(ValueError, match=said):
            summary_of(intervals)
    for stream in (2, -1):
        with pytest.raises(ValueError, match=f"of stream {stream}, but there are 2"):
            summary_of([(stream, 0, 1)])


def test_tag_latencies_run_from_ready_to_done() -> None:
    kernels = (
        # Two kernels of one launch: ready when the first is enqueued, done with the last.
        Kernel(0, 0, "k", "chain", 0, 5, 10),
        Kernel(0, 0, "k", "chain", 3, 12, 20),
        # Behind it on the same stream: ready when it ends.
        Kernel(0, 1, "k", "chain", 4, 26, 30),
        # Waits for launch 1 from another stream, and for a launch without kernels.
        Kernel(1, 2, "k", "join", 6, 33, 40, (1, 9)),
        # Enqueued when all before it is done: ready then.
        Kernel(1, 3, "k", "join", 50, 51, 60),
        Kernel(0, 4, "k", None, 60, 61, 62),
    )
    assert timelines.tag_latencies(Timeline(kernels, 2, None)) == {
        "chain": [20, 10],
        "join": [10, 10],
    }


# Interval arithmetic, against sets of whole nanoseconds

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted).map(tuple))


def moments(spans: list[Span]) -> set[int]:
    return {moment for start, end in spans for moment in range(start, end)}


@given(SPANS, SPANS, st.integers(0, 60), st.integers(0, 60))
def test_spans_are_sets_of_moments(
    one: list[Span], other: list[Span], begin: int, end: int
) -> None:
    first, second = timelines.union(one), timelines.union(other)
    assert moments(first) == moments(one)
    assert timelines.length(first) == len(moments(one))
    # Spans do not touch.
    assert all(start < end for start, end in first)
    assert all(span[1] < following[0] for span, following in pairwise(first))
    both, left = timelines.intersection(first, second), timelines.difference(first, second)
    assert moments(both) == moments(first) & moments(second)
    assert moments(left) == moments(first) - moments(second)
    assert timelines.length(both) + timelines.length(left) == timelines.length(first)
    begin, end = sorted((begin, end))
    assert moments(timelines.within(first, begin, end)) == moments(one) & set(range(begin, end))
