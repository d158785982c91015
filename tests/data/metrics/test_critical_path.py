"""What a request waited for, from its end backwards; what others' turns on the device cost it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.metrics.attribution import DeviceWork, Request, attribute
from pytest_hwqueue.data.metrics.critical_path import (
    critical_paths,
    take_turns,
    time_slice_evidence,
)
from pytest_hwqueue.data.metrics.timeline import Span, intersection, length, union

REQUEST = Request(3, 100, 100, 100, 200)


def kernel(stream: int, ready: int, start: int, end: int, request: int | None = 3) -> DeviceWork:
    return DeviceWork("the cell", stream, f"k{stream}", ready, start, end, request)


def test_the_path_is_the_chain_that_ended_last() -> None:
    first, waits = kernel(0, 110, 112, 140), kernel(1, 140, 150, 190)
    beside = kernel(2, 105, 106, 180)
    paths = critical_paths([REQUEST], [first, waits, beside, kernel(3, 0, 0, 500, None)])
    assert set(paths.kernels) == {first, waits}
    # The launching thread until the first kernel was ready; at the end it wakes up.
    assert paths.waited_for == {None: [(100, 110), (190, 200)], 0: [(110, 140)], 1: [(140, 200)]}
    without = critical_paths([REQUEST], [kernel(0, 0, 1, 2, request=4)])
    assert without == ({None: [(100, 200)]}, [])
    # Kernels of a stream that overlap a little are a chain.
    first, early = kernel(0, 100, 101, 150), kernel(0, 148, 148, 200)
    assert set(critical_paths([REQUEST], [first, early]).kernels) == {first, early}


_WORK = st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 30), st.integers(0, 29))


@given(st.lists(_WORK, max_size=12))
def test_every_moment_has_somebody_who_is_waited_for(drawn: list[tuple[int, ...]]) -> None:
    work = [
        kernel(stream, 100 + ready, 100 + ready + wait, 100 + ready + wait + run)
        for stream, ready, wait, run in drawn
    ]
    paths = critical_paths([REQUEST], work)
    assert union(span for spans in paths.waited_for.values() for span in spans) == [(100, 200)]
    assert len(set(paths.kernels)) == len(paths.kernels) or len(set(work)) < len(work)


# Time slices

US, MS = 1_000, 1_000_000
_LAUNCH = 50 * US
_TURN = 2 * MS


def served(number: int, turns: Sequence[Span], launch: int = _LAUNCH) -> list[DeviceWork]:
    """A launch-bound request of 40 kernels of one stream, which stand still in others' turns."""
    begin = end = number * 20 * MS
    work = []
    for index in range(40):
        enqueued = begin + (index + 1) * launch
        start = ready = max(enqueued, end)
        for turn, over in turns:
            if begin + turn <= start < begin + over:
                start = begin + over
        end = start + 10 * US
        work.append(DeviceWork("high", 0, "gemm", ready, start, end, number, enqueued))
    return work


def lows(number: int, turns: Sequence[Span]) -> list[DeviceWork]:
    """What another process ran in its turns, and what stood still between them."""
    at = [(number * 20 * MS + turn, number * 20 * MS + over) for turn, over in turns]
    return [DeviceWork("low", 0, "large", begin, begin, end) for begin, end in at]


@given(st.lists(st.tuples(st.integers(0, 3 * MS), st.integers(US, 3 * MS)), max_size=4))
def test_turns_cost_what_a_request_without_them_would_have_ended_earlier(
    drawn: list[tuple[int, int]],
) -> None:
    turns = union((begin, begin + lasts) for begin, lasts in drawn)
    own = served(3, turns)
    found = time_slice_evidence([*own, *lows(3, turns)], "high")
    assert {one.what for one in found} <= {"low had the device"}
    spent = length(union((one.start_ns, one.end_ns) for one in found))
    assert spent == own[-1].end_ns - served(3, [])[-1].end_ns


def causes(work: list[DeviceWork], seen: Collection[int]) -> list[str | None]:
    """Why each of these requests is in the tail; they end with their last kernels."""
    ends = {one.request: one.end_ns for one in work if one.request is not None}
    requests = [Request(n, at := n * 20 * MS, at, at, end + US) for n, end in ends.items()]
    tail = attribute(requests, time_slice_evidence(work, "high"), {}).tails["p95"]
    found = {one.request: one.cause for one in tail.requests}
    return [found.get(number, "not slow") for number in seen]


def test_slow_launching_beside_turns_is_not_blamed_on_them() -> None:
    slow, late = range(5, 200, 40), range(25, 200, 40)
    work = []
    for number in range(200):
        turn = 38 * _LAUNCH if number in late else 0
        # No two are alike.
        launch = _LAUNCH + number % 7 * 100 + (_LAUNCH if number in slow else 0)
        work += lows(number, [(turn, turn + _TURN)])
        work += served(number, [(turn, turn + _TURN)], launch)
    assert causes(work, slow) == [None] * 5
    assert causes(work, late) == ["time slice"] * 5


def test_a_kernel_that_stood_still_waited_for_its_turn() -> None:
    work = []
    for number in range(200):
        begin = number * 20 * MS
        still = 3 * MS if number % 25 == 0 else 0
        if still:
            work.append(DeviceWork("low", 0, "large", begin, begin + 10 * US, begin + still))
        end = begin + MS + number * 100 + still
        work.append(DeviceWork("high", 0, "gemm", begin, begin, end, number, begin))
    assert causes(work, range(0, 200, 25)) == ["time slice"] * 8


@pytest.mark.parametrize(
    ("turn", "overlap", "turns"),
    [
        ((0, _TURN), False, True),
        ((-_TURN // 2, _TURN // 2), True, False),
        # It runs between the other's requests, and now and then through one of them: on paper.
        ((3 * MS, 13 * MS), True, True),
    ],
)
def test_whether_kernels_of_two_ever_run_at_once(turn: Span, overlap: bool, turns: bool) -> None:
    work = []
    late = served(0, [])[-1].end_ns
    for number in range(20):
        through = 6 * MS if turn[0] > 0 and number % 5 == 0 else 0
        low = lows(number, [(late + turn[0], late + turn[1] + through)])
        work += [*served(number, []), *low]
    high, others = (
        union((one.start_ns, one.end_ns) for one in work if one.owner == owner)
        for owner in ("high", "low")
    )
    assert bool(intersection(high, others)) == overlap
    assert take_turns(work) == turns
    assert not take_turns([one for one in work if one.owner == "high"])
