"""Timelines: busy times, kernels in flight and overlap of known schedules."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.metrics.timeline import (
    Kernel,
    Timeline,
    TimelineSummary,
    summarise_timeline,
    tag_latencies,
)

MS = 1_000_000


def summary_of(*intervals: tuple[int, int, int], streams: int = 2) -> TimelineSummary:
    """Summarise kernels given as (stream, start in ms, end in ms)."""
    kernels = tuple(
        Kernel(stream, launch, "k", None, 0, start * MS, end * MS)
        for launch, (stream, start, end) in enumerate(intervals)
    )
    return summarise_timeline(Timeline(kernels, streams, None))


def test_serial_streams_hide_nothing() -> None:
    summary = summary_of((0, 0, 10), (1, 10, 30))
    assert summary.busy_ms == [10.0, 20.0]
    assert summary.overlap_efficiency == 0.0
    assert (summary.in_flight_mean, summary.in_flight_max) == (1.0, 1)
    assert (summary.span_ms, summary.kernels, summary.streams_used) == (30.0, 2, 2)
    assert summary.refused == {}


def test_fully_hidden_stream() -> None:
    summary = summary_of((0, 0, 30), (1, 5, 10), (1, 20, 25))
    assert summary.overlap_efficiency == 1.0
    assert summary.busy_ms == [30.0, 10.0]
    assert (summary.in_flight_mean, summary.in_flight_max) == (40 / 30, 2)


def test_half_hidden_agrees_with_the_two_stream_formula() -> None:
    # T_compute 20, T_comms 10, T_both 25: (20 + 10 - 25) / min(20, 10).
    assert summary_of((0, 0, 20), (1, 15, 25)).overlap_efficiency == 0.5


def test_idle_time_counts_in_the_span_only() -> None:
    summary = summary_of((0, 0, 10), (1, 90, 100))
    assert summary.span_ms == 100.0
    assert summary.in_flight_mean == 1.0
    assert summary.overlap_efficiency == 0.0


def test_overlap_inside_one_stream_is_busy_once() -> None:
    summary = summary_of((0, 0, 10), (0, 5, 15))
    assert summary.busy_ms == [15.0, 0.0]
    assert (summary.in_flight_mean, summary.in_flight_max) == (20 / 15, 2)
    assert summary.streams_used == 1
    assert summary.overlap_efficiency is None
    assert summary.refused == {"overlap_efficiency": "needs at least 2 busy streams, has 1"}


def test_kernels_too_short_for_the_clock() -> None:
    summary = summary_of((0, 5, 5), (1, 6, 6))
    assert summary.in_flight_mean is None
    assert summary.in_flight_max == 0
    assert set(summary.refused) == {"in_flight_mean", "overlap_efficiency"}
    assert summary.streams_used == 2


def test_absolute_clocks_lose_nothing() -> None:
    # Nanoseconds since 1970 do not fit a double; their differences must be exact all the same.
    epoch = 1_760_000_000_000_000_001
    kernels = tuple(
        Kernel(stream, stream, "k", None, epoch, epoch + stream, epoch + stream + 2)
        for stream in range(2)
    )
    summary = summarise_timeline(Timeline(kernels, 2, epoch))
    assert summary.busy_ms == [2e-6, 2e-6]
    assert summary.overlap_efficiency == 0.5


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 60), st.integers(0, 20)),
        min_size=1,
        max_size=40,
    )
)
def test_summary_agrees_with_counting_every_tick(kernels: list[tuple[int, int, int]]) -> None:
    summary = summary_of(*((s, start, start + length) for s, start, length in kernels), streams=5)
    running = [
        [(s, start) for s, start, length in kernels if start <= tick < start + length]
        for tick in range(80)
    ]
    busy = [sum(any(s == stream for s, _ in tick) for tick in running) for stream in range(5)]
    union = sum(bool(tick) for tick in running)
    assert summary.busy_ms == busy
    assert summary.in_flight_max == max(len(tick) for tick in running)
    if union:
        mean = sum(len(tick) for tick in running) / union
        assert summary.in_flight_mean == pytest.approx(mean)
    if sum(time > 0 for time in busy) >= 2:
        efficiency = (sum(busy) - union) / (sum(busy) - max(busy))
        assert summary.overlap_efficiency == pytest.approx(efficiency)
        assert 0 <= efficiency <= 1
    else:
        assert summary.overlap_efficiency is None
    for name in ("in_flight_mean", "overlap_efficiency"):
        assert (getattr(summary, name) is None) == (name in summary.refused)
    json.dumps(dataclasses.asdict(summary))


def test_refuses_impossible_timelines() -> None:
    with pytest.raises(ValueError, match="without kernels"):
        summary_of()
    with pytest.raises(ValueError, match=r"kernel 0 \(k\) ends before it starts"):
        summary_of((0, 2, 1))
    for stream in (2, -1):
        with pytest.raises(ValueError, match=f"of stream {stream}, but there are 2"):
            summary_of((stream, 0, 1))


def test_tag_latencies_run_from_ready_to_done() -> None:
    def kernel(
        launch: int, stream: int, tag: str | None, times: tuple[int, int, int], *waits: int
    ) -> Kernel:
        enqueued, start, end = times
        return Kernel(stream, launch, "k", tag, enqueued, start, end, waits)

    found = tag_latencies(
        Timeline(
            (
                # Two kernels of one launch: ready when the first is enqueued, done with the last.
                kernel(0, 0, "chain", (0, 5, 10)),
                kernel(0, 0, "chain", (3, 12, 20)),
                # Behind it on the same stream: ready when it ends.
                kernel(1, 0, "chain", (4, 26, 30)),
                # Waits for launch 1 from another stream, and for a launch without kernels.
                kernel(2, 1, "join", (6, 33, 40), 1, 9),
                # Enqueued when all before it is done: ready then.
                kernel(3, 1, "join", (50, 51, 60)),
                kernel(4, 0, None, (60, 61, 62)),
            ),
            streams=2,
            released_ns=None,
        )
    )
    assert found == {"chain": [20, 10], "join": [10, 10]}
