"""How many streams were at work, and latencies while they were: known windows, and any at all."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.metrics.contention import (
    HeldLaunch,
    HeldWindow,
    MarkCost,
    in_flight,
    kept_full,
    launch_rate,
    mark_cost,
    window_of,
)
from pytest_hwqueue.data.metrics.timeline import Kernel, Timeline

bursts = st.lists(st.lists(st.integers(1, 10**6), min_size=1, max_size=8), min_size=1, max_size=8)


def judged(tag: str | None) -> bool:
    return tag == "burst"


def held(durations: Sequence[Sequence[int]]) -> HeldWindow:
    """All enqueued before the gate opens; each stream's launches follow each other at once."""
    launches, ended = [], {}
    for stream, each in enumerate(durations):
        now = 0
        for duration in each:
            now += duration
            launches.append(HeldLaunch(stream, "burst", -1, now))
        ended[stream] = now
    return HeldWindow(tuple(launches), ended)


@given(bursts)
def test_of_held_work_every_stream_is_in_flight_and_latencies_are_the_durations(
    durations: list[list[int]],
) -> None:
    window = held(durations)
    assert in_flight([window]) == pytest.approx(len(durations))
    until = min(map(sum, durations))
    known = []
    for each in durations:
        ready = [sum(each[:number]) for number in range(len(each))]
        counted = [ns for at, ns in zip(ready, each, strict=True) if at < until]
        known += counted[1:] or counted
    assert sorted(window.latencies(judged)) == sorted(known)
    assert launch_rate([window], judged) == pytest.approx(
        sum(map(len, durations)) * 1e9 / max(map(sum, durations))
    )


@given(bursts)
def test_launched_one_by_one_about_one_stream_is_in_flight(durations: list[list[int]]) -> None:
    """The host waits for each launch before the next, as under a tracer that takes long."""
    launches, ended, now = [], {}, 0
    turns = max(map(len, durations))
    for turn in range(turns):
        for stream, each in enumerate(durations):
            if turn < len(each):
                launches.append(HeldLaunch(stream, "burst", now, now + each[turn]))
                now += each[turn]
                ended[stream] = now
    window = HeldWindow(tuple(launches), ended)
    assert in_flight([window]) <= 1
    if len(durations) > 1:
        assert not kept_full(in_flight([window]), len(durations))


def test_a_starved_stream_is_counted_whole() -> None:
    """Its only launch that is ready in time waits for everything else: that is its latency."""
    window = held([[10, 10, 10, 10], [1000, 5]])
    assert window.contended_ns == 40
    assert window.latencies(judged) == [10, 10, 10, 1000]
    assert in_flight([window]) == 2


def test_unmarked_work_counts_from_when_all_of_it_is_enqueued() -> None:
    """Between two launches that nothing marks the stream may have been idle."""
    late = HeldWindow(
        (HeldLaunch(0, "other", -5, None), HeldLaunch(0, "other", 80, None)), {0: 100}
    )
    assert late.busy_ns() == 20
    early = HeldWindow((HeldLaunch(0, "other", -5, None), HeldLaunch(0, "other", -4, None)), {0: 9})
    assert early.busy_ns() == 9
    assert early.latencies(judged) == []


def test_what_nothing_marked_before_is_no_latency() -> None:
    launches = (
        HeldLaunch(0, "burst", -1, 10), HeldLaunch(0, "burst", -1, 20),
        HeldLaunch(0, None, -1, None), HeldLaunch(0, "burst", -1, 50),
        HeldLaunch(0, "burst", -1, 61),
    )  # fmt: skip
    assert HeldWindow(launches, {0: 61}).latencies(judged) == [10, 11]


def test_a_pass_of_kernels_is_a_window_from_its_gate_or_its_begin() -> None:
    kernels = (
        Kernel(0, 0, "k", "burst", 90, 100, 110), Kernel(0, 0, "k", "burst", 91, 111, 120),
        Kernel(1, 1, "k", None, 92, 100, 130),
    )  # fmt: skip
    window = window_of(Timeline(kernels, 2, 100))
    assert window.launches == (HeldLaunch(0, "burst", -9, 20), HeldLaunch(1, None, -8, 30))
    assert window.ended_ns == {0: 20, 1: 30}
    assert window_of(Timeline(kernels, 2, None), 80).ended_ns == {0: 40, 1: 50}
    with pytest.raises(ValueError, match="no gate"):
        window_of(Timeline(kernels, 2, None))


def test_windows_without_work_or_judged_launches_say_so() -> None:
    with pytest.raises(ValueError, match="no stream had work"):
        in_flight([HeldWindow((), {})])
    with pytest.raises(ValueError, match="no judged launch"):
        launch_rate([held([[5]])], lambda tag: tag == "other")


def stamped(window: HeldWindow, stamp_ns: int, *, each: int) -> HeldWindow:
    """The same with stamps: behind each launch, or at a stream's end alone."""
    counts = [0] * (1 + max(launch.stream for launch in window.launches))
    launches = []
    for launch in window.launches:
        counts[launch.stream] += 1
        done = (launch.done_ns or 0) + each * counts[launch.stream] * stamp_ns
        launches.append(HeldLaunch(launch.stream, launch.tag, launch.enqueued_ns, done))
    ended = {
        stream: ns + stamp_ns * (counts[stream] if each else 1)
        for stream, ns in window.ended_ns.items()
    }
    return HeldWindow(tuple(launches), ended)


@given(bursts, st.integers(0, 10**5))
def test_windows_with_and_without_stamps_tell_what_one_takes(
    durations: list[list[int]], stamp_ns: int
) -> None:
    window = held(durations)
    pair = stamped(window, stamp_ns, each=1), stamped(window, stamp_ns, each=0)
    cost = mark_cost([pair] * 5, judged)
    if all(len(each) == 1 for each in durations):
        assert cost is None
        return
    assert cost is not None
    assert cost.added_ns == cost.low_ns == cost.high_ns == pytest.approx(stamp_ns, abs=1e-3)
    assert cost.launch_ns == pytest.approx(sum(map(sum, durations)) / sum(map(len, durations)))


def test_few_pairs_of_windows_tell_nothing() -> None:
    window = held([[5, 5]])
    pair = stamped(window, 1, each=1), stamped(window, 1, each=0)
    assert mark_cost([pair] * 4, judged) is None
    assert mark_cost([], judged) is None


@pytest.mark.parametrize(
    ("low", "high", "nearest"),
    [(100, 300, 300), (1200, 1300, 1200), (-50, 2000, 900), (-9, -1, 900)],
)
def test_what_is_taken_off_lies_where_windows_say(low: float, high: float, nearest: float) -> None:
    """An interval below nothing is of what windows differ by: stamps take time."""
    cost = MarkCost(added_ns=(low + high) / 2, low_ns=low, high_ns=high, launch_ns=50_000)
    assert cost.nearest_ns(900) == nearest
