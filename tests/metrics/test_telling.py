"""The rule on shares and ratios that tell too little."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.metrics.numbers import untold

ANY = (-math.inf, math.inf)
FINITE = st.floats(-1e6, 1e6)


@pytest.mark.parametrize(
    ("value", "interval", "limits"),
    [
        (-4.85, (-135.35, 0.75), ANY),  # lost -485 % [-13535, 75]
        (1.5, (0.37, 2.64), ANY),  # gained 150 % [37, 264]
        (-12.33, None, (-1.25, math.inf)),
        (161.76, None, (-math.inf, 3.0)),
        (161.76, (140.0, 180.0), (-math.inf, 3.0)),
        (0.1, (-math.inf, 0.7), ANY),
        (0.5, (0.2, math.inf), ANY),
    ],
)
def test_what_tells_nothing_is_refused_with_the_reason(
    value: float, interval: tuple[float, float] | None, limits: tuple[float, float]
) -> None:
    reason = untold(value, interval, least=limits[0], most=limits[1])
    assert reason is not None
    assert "wider than" in reason or "than is possible" in reason


@pytest.mark.parametrize(
    ("value", "interval", "limits"),
    [
        (0.088, (0.02, 0.15), ANY),
        (0.5, (0.0, 1.0), ANY),
        (8.41, (7.92, 9.03), ANY),
        (1.17, (1.07, 1.39), ANY),
        (1.05, (0.92, 1.81), ANY),
        (2.9, (2.0, 4.0), (-math.inf, 3.0)),  # may be possible
        (0.95, None, (-math.inf, 1.25)),
    ],
)
def test_what_tells_something_is_kept(
    value: float, interval: tuple[float, float] | None, limits: tuple[float, float]
) -> None:
    assert untold(value, interval, least=limits[0], most=limits[1]) is None


@given(FINITE, st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1))
def test_a_narrower_interval_is_never_refused_for_more(
    value: float, below: float, above: float, share: float
) -> None:
    wide = untold(value, (value - below, value + above))
    narrow = untold(value, (value - share * below, value + share * above))
    if wide is None:
        assert narrow is None


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_shares_within_all_and_nothing_are_never_too_wide(a: float, b: float, c: float) -> None:
    low, value, high = sorted((a, b, c))
    assert untold(value, (low, high), least=0, most=1) is None


@given(st.floats(1e-3, 1e3), st.floats(0, 10), st.floats(0, 10))
def test_the_sign_of_a_change_does_not_matter(value: float, below: float, above: float) -> None:
    gained = untold(value, (value - below, value + above))
    lost = untold(-value, (-value - above, -value + below))
    assert (gained is None) == (lost is None)
