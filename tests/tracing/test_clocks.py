"""The offset of the two clocks, and times between two measurements of it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.tracing.clocks import ClockOffset, ClockPair, measure_offset


def test_the_offset_of_this_machine_holds_for_stamps_taken_between() -> None:
    before = measure_offset()
    brackets = []
    for _ in range(200):
        brackets.append((time.monotonic_ns(), time.time_ns(), time.monotonic_ns()))
    pair = ClockPair(before, measure_offset())
    slack = pair.uncertainty_ns
    for begin, realtime, end in brackets:
        assert begin - slack <= pair.to_monotonic(realtime) <= end + slack


def test_the_narrowest_bracket_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    # Three brackets 100, 10 and 50 ns wide; REALTIME is 1000 ahead.
    monotonic = iter([0, 100, 200, 210, 300, 350])
    realtime = iter([1090, 1204, 1310])
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(monotonic))
    monkeypatch.setattr(time, "time_ns", lambda: next(realtime))
    assert measure_offset(3) == ClockOffset(when_ns=205, offset_ns=999, uncertainty_ns=5)


@given(
    st.integers(-(10**18), 10**18),
    st.integers(-(10**6), 10**6),
    st.integers(0, 10**10),
    st.integers(1, 10**10),
    st.integers(0, 200),
)
def test_a_slewed_clock_is_interpolated(
    offset: int, change: int, at: int, lasting: int, uncertainty: int
) -> None:
    begin = 10**15
    pair = ClockPair(
        ClockOffset(begin, offset, uncertainty),
        ClockOffset(begin + lasting, offset + change, 2 * uncertainty),
    )
    assert pair.uncertainty_ns == 2 * uncertainty + abs(change)
    at = min(at, lasting)
    realtime = begin + at + offset + round(change * at / lasting)
    # Interpolating over the stamp itself, not over the moment, errs by a part of the change.
    assert abs(pair.to_monotonic(realtime) - (begin + at)) <= pair.uncertainty_ns + 1


def test_a_clock_that_was_not_set_needs_no_interpolation() -> None:
    pair = ClockPair(ClockOffset(100, 5000, 40), ClockOffset(900, 5000, 30))
    assert [pair.to_monotonic(stamp) for stamp in (5000, 5500, 6000)] == [0, 500, 1000]
    assert pair.uncertainty_ns == 40


def test_measurements_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ValueError, match="not after the one before"):
        ClockPair(ClockOffset(9, 0, 0), ClockOffset(9, 0, 0))
    with pytest.raises(ValueError, match="at least 1 bracket"):
        measure_offset(0)
