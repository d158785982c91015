"""Time slices: what others' turns cost a request, and what they do not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.metrics.attribution import DeviceWork, Request, attribute
from pytest_hwqueue.metrics.critical_path import take_turns, time_slice_evidence
from pytest_hwqueue.metrics.timeline import Span, intersection, length, union

US, MS = 1_000, 1_000_000
_LAUNCHES = 40
_LAUNCH = 50 * US
_KERNEL = 10 * US
_TURN = 2 * MS


def served(number: int, turns: Sequence[Span], launch: int = _LAUNCH) -> list[DeviceWork]:
    """A launch-bound request of kernels of one stream, which stand still in others' turns."""
    begin = end = number * 20 * MS
    work = []
    for index in range(_LAUNCHES):
        enqueued = begin + (index + 1) * launch
        ready = max(enqueued, end)
        start = ready
        for turn, over in turns:
            if begin + turn <= start < begin + over:
                start = begin + over
        end = start + _KERNEL
        work.append(DeviceWork("high", 0, "gemm", ready, start, end, number, enqueued))
    return work


def lows(number: int, turns: Sequence[Span]) -> list[DeviceWork]:
    """What another process ran in its turns, and what stood still between them."""
    begin = number * 20 * MS
    return [DeviceWork("low", 0, "large", begin + turn, begin + turn, begin + over)
            for turn, over in turns]  # fmt: skip


def cost(turns: Sequence[Span]) -> int:
    found = time_slice_evidence([*served(3, turns), *lows(3, turns)], "high")
    assert {one.what for one in found} <= {"low had the device"}
    return length(union((one.start_ns, one.end_ns) for one in found))


def test_a_turn_that_passes_while_the_host_launches_costs_what_is_not_caught_up() -> None:
    alone = served(3, [])[-1].end_ns
    for turn in (0, _LAUNCH, 10 * _LAUNCH, 30 * _LAUNCH, 39 * _LAUNCH):
        turns = [(turn, turn + _TURN)]
        assert cost(turns) == served(3, turns)[-1].end_ns - alone
    # Launching takes as long as the turn: all but the kernels' own time is hidden.
    assert cost([(0, _TURN)]) < 500 * US
    assert cost([(39 * _LAUNCH, 39 * _LAUNCH + _TURN)]) > 1900 * US


@given(st.lists(st.tuples(st.integers(0, 3 * MS), st.integers(US, 3 * MS)), max_size=4))
def test_turns_cost_what_a_request_without_them_would_have_ended_earlier(
    turns: list[tuple[int, int]],
) -> None:
    spans = union((begin, begin + lasts) for begin, lasts in turns)
    alone = served(3, [])[-1].end_ns
    assert cost(spans) == served(3, spans)[-1].end_ns - alone


def run(slow: Sequence[int], late_turns: Sequence[int]) -> tuple[list[Request], list[DeviceWork]]:
    """Requests that all wait for a turn, early; some of slow launching, some with a late turn."""
    requests, work = [], []
    for number in range(200):
        turns = [(0, _TURN)]
        if number in late_turns:
            turns = [(38 * _LAUNCH, 38 * _LAUNCH + _TURN)]
        # No two are alike.
        launch = _LAUNCH + number % 7 * 100 + (_LAUNCH if number in slow else 0)
        own = served(number, turns, launch)
        work += [*own, *lows(number, turns)]
        begin = number * 20 * MS
        requests.append(Request(number, begin, begin, begin, own[-1].end_ns + US))
    return requests, work


def test_slow_launching_beside_turns_is_not_blamed_on_them() -> None:
    requests, work = run(slow=range(5, 200, 40), late_turns=range(25, 200, 40))
    tail = attribute(requests, time_slice_evidence(work, "high"), {}).tails["p95"]
    causes = {one.request: one.cause for one in tail.requests}
    assert [causes.get(number) for number in range(5, 200, 40)] == [None] * 5
    assert [causes.get(number) for number in range(25, 200, 40)] == ["time slice"] * 5


def test_a_kernel_that_stood_still_waited_for_its_turn() -> None:
    work, requests = [], []
    for number in range(200):
        begin = number * 20 * MS
        still = 3 * MS if number % 25 == 0 else 0
        end = begin + MS + number * 100 + still
        work.append(DeviceWork("high", 0, "gemm", begin, begin, end, number, begin))
        if still:
            work.append(DeviceWork("low", 0, "large", begin, begin + 10 * US, begin + still))
        requests.append(Request(number, begin, begin, begin, end))
    tail = attribute(requests, time_slice_evidence(work, "high"), {}).tails["p95"]
    assert {one.cause for one in tail.requests if one.request % 25 == 0} == {"time slice"}


def test_who_is_alone_waits_for_nobody() -> None:
    assert time_slice_evidence(served(1, []), "high") == []
    assert not take_turns(served(1, []))


@pytest.mark.parametrize(("shift", "turns"), [(0, True), (-_TURN // 2, False)])
def test_whether_kernels_of_two_ever_run_at_once(shift: int, turns: bool) -> None:
    work = []
    for number in range(20):
        own = served(number, [])
        late = own[-1].end_ns - number * 20 * MS + shift
        work += [*own, *lows(number, [(late, late + _TURN)])]
    assert bool(intersection(union((o.start_ns, o.end_ns) for o in work if o.owner == "high"),
                             union((o.start_ns, o.end_ns) for o in work if o.owner == "low"))
                ) != turns  # fmt: skip
    assert take_turns(work) == turns


def test_a_kernel_that_stood_still_overlaps_on_paper_only() -> None:
    work = []
    for number in range(20):
        work += served(number, [])
        begin = number * 20 * MS
        # It runs between the other's requests, and now and then through one of them.
        over = 15 * MS if number % 5 else 21 * MS
        work.append(DeviceWork("low", 0, "large", begin + 5 * MS, begin + 5 * MS, begin + over))
    assert take_turns(work)
