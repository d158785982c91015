"""Where a series changed: planted steps are found, flat series stay flat."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pytest_hwqueue.answers.history.analysis import LEAST_SESSIONS, find_change_points, levels
from pytest_hwqueue.data.errors import HwqError

RATE = 0.01
pytest.importorskip("otava", reason="the extra history is not installed")


def series(seed: int, sessions: int = 60, sd: float = 0.02) -> np.ndarray:
    return np.asarray(np.exp(np.random.default_rng(seed).normal(0, sd, sessions)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("step", [0.05, 0.1, -0.1])
def test_a_step_is_found_with_place_and_size(step: float, seed: int) -> None:
    values = series(seed)
    values[30:] *= 1 + step
    (found,) = find_change_points(values, RATE)
    assert abs(found.index - 30) <= 2
    assert found.interval[0] < 1 + step < found.interval[1]
    assert found.ratio == pytest.approx(1 + step, abs=0.02)
    assert found.p <= 0.001


def test_a_step_of_10_percent_is_found_within_three_sessions() -> None:
    values = series(1)
    values[30:] *= 1.1
    assert not find_change_points(values[:30], RATE)
    assert [found.index for found in find_change_points(values[:33], RATE)] == [30]


def test_steps_are_told_apart_and_levels_are_those_between() -> None:
    values = series(2, sd=0.01)
    values[20:] *= 1.04
    values[40:] *= 1.04
    found = find_change_points(values, RATE)
    assert [abs(each.index - place) <= 1 for each, place in zip(found, (20, 40), strict=True)] == [
        True, True,
    ]  # fmt: skip
    assert levels(values, found) == pytest.approx([1, 1.04, 1.0816], rel=0.01)


def test_flat_series_have_change_points_at_the_stated_rate() -> None:
    # At 1 % a series, 6 of 100 or more have a chance of 1 in 2000.
    alarms = sum(bool(find_change_points(series(seed), RATE)) for seed in range(100))
    assert alarms < 6


def test_one_far_session_is_no_change() -> None:
    values = series(3)
    values[30] *= 2
    assert find_change_points(values, RATE) == []


def test_noiseless_series_have_exact_steps_or_none() -> None:
    assert find_change_points([5.0] * 40, RATE) == []
    (found,) = find_change_points([5.0] * 20 + [6.0] * 20, RATE)
    assert found.index == 20
    assert found.ratio == pytest.approx(1.2)
    assert found.interval == pytest.approx((1.2, 1.2))


def test_fewer_sessions_than_stated_show_nothing_however_large_the_step() -> None:
    few = LEAST_SESSIONS - 1
    assert find_change_points([1.0, 1.01] * (few // 2) + [9.0] * (few - few // 2 * 2), RATE) == []
    half = LEAST_SESSIONS // 2
    for length, least in ((few, 0), (LEAST_SESSIONS, 1)):
        values = [1 + 0.001 * i for i in range(half)] + [
            2 + 0.001 * i for i in range(length - half)
        ]
        assert len(find_change_points(values, RATE)) == least


@settings(max_examples=30, deadline=None)
@given(arrays(np.float64, st.integers(1, 40), elements=st.floats(1e-3, 1e9)))
def test_any_series_has_ordered_places_with_sides(values: np.ndarray) -> None:
    found = find_change_points(values, RATE)
    places = [each.index for each in found]
    assert places == sorted(set(places))
    assert all(0 < place < len(values) for place in places)
    assert all(each.interval[0] <= each.ratio <= each.interval[1] for each in found)
    assert all(0 < each.p <= RATE for each in found)
    assert len(levels(values, found)) == len(found) + 1


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.floats(1e-3, 1e6))
def test_the_unit_does_not_matter(seed: int, unit: float) -> None:
    values = series(seed, 30)
    values[15:] *= 1.1
    places = [each.index for each in find_change_points(values, RATE)]
    assert [each.index for each in find_change_points(values * unit, RATE)] == places


def test_a_figure_of_zero_is_refused() -> None:
    with np.errstate(divide="ignore"), pytest.raises(ValueError, match="finite and above 0"):
        find_change_points([1.0, 0.0, 1.0], RATE)


def test_without_otava_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "otava.analysis", None)
    with pytest.raises(HwqError, match=r"pytest-hwqueue\[history\]"):
        find_change_points([1.0, 2.0], RATE)
