"""Timelines: busy times, kernels in flight and overlap of known schedules; interval arithmetic."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.metrics import timeline as timelines
from pytest_hwqueue.data.metrics.overlap import TimelineSummary, summarise_timeline
from pytest_hwqueue.data.metrics.timeline import Kernel, Span, Timeline

Intervals = list[tuple[int, int, int]]


def summary_of(intervals: Intervals, streams: int = 2) -> TimelineSummary:
    """Summarise kernels given as (stream, start in ns, end in ns)."""
    kernels = [
        Kernel(stream, launch, "k", None, 0, start, end)
        for launch, (stream, start, end) in enumerate(intervals)
    ]
    return summarise_timeline(Timeline(tuple(kernels), streams, None))


_KERNELS = st.tuples(st.integers(0, 4), st.integers(0, 60), st.integers(0, 20))


# Nanoseconds since 1970 do not fit a double; their differences must be exact all the same.
@given(st.lists(_KERNELS, min_size=1, max_size=40), st.sampled_from([0, 1_760_000_000_000_000_001]))
def test_summary_agrees_with_counting_every_tick(kernels: Intervals, epoch: int) -> None:
    summary = summary_of(
        [(s, epoch + start, epoch + start + lasts) for s, start, lasts in kernels], 5
    )
    running = [
        [s for s, start, lasts in kernels if start <= tick < start + lasts] for tick in range(80)
    ]
    busy = [sum(stream in tick for tick in running) for stream in range(5)]
    together = sum(bool(tick) for tick in running)
    assert summary.busy_ms == [ticks / 1e6 for ticks in busy]
    first, last = min(start for _, start, _ in kernels), max(at + lasts for _, at, lasts in kernels)
    assert (summary.span_ms, summary.kernels) == ((last - first) / 1e6, len(kernels))
    assert summary.streams_used == len({stream for stream, _, _ in kernels})
    assert summary.in_flight_max == max(map(len, running))
    mean = sum(map(len, running)) / together if together else None
    assert summary.in_flight_mean.value == (mean if mean is None else pytest.approx(mean))
    efficiency, streams = None, sum(time > 0 for time in busy)
    if streams >= 2:
        efficiency = (sum(busy) - together) / (sum(busy) - max(busy))
        assert 0 <= efficiency <= 1
    assert summary.overlap_efficiency.value == (efficiency and pytest.approx(efficiency))
    few = "" if streams >= 2 else f"needs at least 2 busy streams, has {streams}"
    assert summary.overlap_efficiency.refused == few
    assert (summary.in_flight_mean.refused == "") == (mean is not None)
    assert TimelineSummary.model_validate_json(summary.model_dump_json()) == summary


@pytest.mark.parametrize(
    ("intervals", "said"),
    [
        ([], "without kernels"),
        ([(0, 2, 1)], r"kernel 0 \(k\) ends before it starts"),
        ([(2, 0, 1)], "of stream 2, but there are 2"),
        ([(-1, 0, 1)], "of stream -1, but there are 2"),
    ],
)
def test_impossible_timelines_are_refused(intervals: Intervals, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        summary_of(intervals)


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


def test_a_request_lasts_from_its_first_launch_ready_to_its_last_done() -> None:
    kernels = (
        Kernel(0, 0, "k", "embed#a", 0, 5, 10),
        Kernel(1, 1, "k", "#b", 2, 3, 30),
        Kernel(0, 2, "k", "rank#a", 4, 12, 21),
        # The same request's number in the next iteration of three launches is another request.
        Kernel(0, 3, "k", "embed#a", 40, 45, 52),
    )
    timeline = Timeline(kernels, 2, None)
    own = {"embed": [10, 12], "rank": [11]}
    assert timelines.tag_latencies(timeline) == own
    found = timelines.tag_latencies(timeline, "request", launches_per_iteration=3)
    assert found == {**own, "request": [21, 28, 12]}
    whole = timelines.tag_latencies(timeline, "request")
    assert whole == {**own, "request": [52, 28]}


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
