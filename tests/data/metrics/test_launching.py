"""Calls of several threads: which count, how many threads were inside one, and whose they are."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.metrics.launching import (
    INTERPRETER,
    MOST_EXPLAINED,
    LaunchingWindow,
    explained,
    inside,
    interpreters,
)


@st.composite
def windows(draw: st.DrawFn) -> LaunchingWindow:
    """Some threads' calls, one after another each; some threads may have made none."""
    begun, returned = [], []
    for _ in range(draw(st.integers(1, 4))):
        times = sorted(draw(st.lists(st.integers(0, 60), unique=True, max_size=10)))
        if len(times) % 2:
            times.pop()
        begun.append(times[::2])
        returned.append(times[1::2])
    return LaunchingWindow(begun, returned)


@given(windows())
def test_calls_count_that_begin_while_every_thread_goes_on_calling(window: LaunchingWindow) -> None:
    """By hand, instant by instant: a thread is calling from its first begin to the last of all."""
    calls = [
        (begin, end)
        for of_thread in zip(window.begun_ns, window.returned_ns, strict=True)
        for begin, end in zip(*of_thread, strict=True)
    ]
    if not all(window.begun_ns):
        assert (window.latencies(), window.inside_ns()) == ([], 0)
        return
    last = max(begin for begin, _ in calls)
    together = [
        instant
        for instant in range(61)
        if all(begun[0] <= instant for begun in window.begun_ns) and instant <= last
    ]
    assert window.latencies() == [end - begin for begin, end in sorted(calls) if begin in together]
    assert window.inside_ns() == sum(
        begin <= instant < end for instant, _ in pairwise(together) for begin, end in calls
    )
    assert window.calls == len(calls)
    assert window.whole_ns == max(end for _, end in calls) - min(begin for begin, _ in calls)


def test_threads_inside_are_a_mean_over_the_time_in_which_all_are_calling() -> None:
    # Both inside for 10 of 20 ns, then one of them.
    first = LaunchingWindow([[0, 20], [0, 20]], [[20, 21], [10, 21]])
    # Never together: the second thread made no call.
    second = LaunchingWindow([[0, 50], []], [[40, 90], []])
    assert inside([first]) == inside([first, second]) == 1.5
    assert inside([second]) is None


@pytest.mark.parametrize(
    ("control_ns", "alone_ns", "share"),
    [
        ([100] * 100, 100, 0.0),
        ([90] * 100, 100, 0.0),
        ([150] * 100, 100, 0.05),
        ([100] * 50 + [600] * 50, 100, 0.5),
    ],
)
def test_what_the_control_takes_longer_than_alone_is_a_share_of_p99(
    control_ns: list[int], alone_ns: int, share: float
) -> None:
    assert explained([1000] * 100, control_ns, alone_ns) == pytest.approx(share)


def test_without_calls_together_nothing_is_explained() -> None:
    assert explained([], [5], 5) is None
    assert explained([5], [], 5) is None


@pytest.mark.parametrize("share", [0.0, MOST_EXPLAINED])
def test_calls_are_the_drivers_up_to_the_bound(share: float) -> None:
    assert interpreters(share, native=True, locked=True) == ""
    # Without a lock Python's own work is done by all threads at once.
    assert interpreters(share, native=False, locked=False) == ""


@pytest.mark.parametrize(
    ("share", "native", "locked", "words"),
    [
        (MOST_EXPLAINED + 0.01, True, True, "21.0 % of this P99 is there without the driver"),
        (0.9, True, False, "90.0 % of this P99"),
        (0.0, False, True, "such a launch runs Python"),
        (None, True, True, "never were calling all at once"),
    ],
)
def test_calls_are_the_interpreters_with_a_reason(
    share: float | None, native: bool, locked: bool, words: str
) -> None:
    reason = interpreters(share, native=native, locked=locked)
    assert reason.startswith(f"{INTERPRETER}: ")
    assert words in reason
