"""Calls of several threads: which count, how many threads were inside one, and whose they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.metrics.launching import (
    CORES,
    INTERPRETER,
    MOST_EXPLAINED,
    LaunchingWindow,
    explained,
    inside,
    not_the_drivers,
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
    """By hand, instant by instant: from a thread's first begin to its last return it is calling."""
    calls = [
        (begin, end)
        for of_thread in zip(window.begun_ns, window.returned_ns, strict=True)
        for begin, end in zip(*of_thread, strict=True)
    ]
    if not all(window.begun_ns):
        assert (window.latencies(), window.inside_ns()) == ([], 0)
        return
    together = [
        instant
        for instant in range(61)
        if all(
            begun[0] <= instant < returned[-1]
            for begun, returned in zip(window.begun_ns, window.returned_ns, strict=True)
        )
    ]
    assert window.latencies() == [end - begin for begin, end in sorted(calls) if begin in together]
    assert window.inside_ns() == sum(
        begin <= instant < end for instant in together for begin, end in calls
    )
    assert window.calls == len(calls)
    assert window.whole_ns == max(end for _, end in calls) - min(begin for begin, _ in calls)


def test_threads_inside_are_a_mean_over_the_time_in_which_all_are_calling() -> None:
    # Both inside for 10 of 20 ns, then one of them.
    first = LaunchingWindow([[0], [0, 19]], [[20], [10, 20]])
    # Never together: the second thread made no call.
    second = LaunchingWindow([[0, 50], []], [[40, 90], []])
    assert inside([first]) == inside([first, second]) == (20 + 10 + 1) / 20
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
    assert not_the_drivers(share, "threads", native=True, locked=True) == ""
    # Without a lock Python's own work is done by all threads at once, as by processes.
    assert not_the_drivers(share, "threads", native=False, locked=False) == ""
    assert not_the_drivers(share, "processes", native=False, locked=True) == ""


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
    reason = not_the_drivers(share, "threads", native=native, locked=locked)
    assert reason.startswith(f"{INTERPRETER}: ")
    assert words in reason


@pytest.mark.parametrize(
    ("share", "words"), [(None, "processes never were calling"), (0.5, "50.0 % of this P99")]
)
def test_calls_of_processes_may_be_those_of_too_few_cores(share: float | None, words: str) -> None:
    reason = not_the_drivers(share, "processes", native=True, locked=True)
    assert reason.startswith(f"{CORES}: ")
    assert words in reason
