"""A line through groups of runs: exact where nothing varies, and right as often as it says."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pytest_hwqueue.data.metrics.straight_line import (
    mean_of_runs,
    misfit_probability,
    straight_line,
)

PLACES = (50.0, 200.0, 1000.0, 4000.0)
SLOPE, INTERCEPT = 1.0, 12.0
# How runs differ at a place: alike everywhere, in proportion, near places more, one place alone.
SPREADS: list[Callable[[float], float]] = [
    lambda x: 10.0,
    lambda x: 0.05 * x + 1,
    lambda x: 300 / math.sqrt(x),
    lambda x: 100.0 if x == PLACES[-1] else 1.0,
]


def drawn(
    random: np.random.Generator, runs: int, spread: Callable[[float], float], bend: float = 0.0
) -> list[list[float]]:
    """Runs about a line, or about one that bends at the third place."""
    return [
        [
            SLOPE * x + INTERCEPT + bend * (index == 2) + spread(x) * random.standard_normal()
            for _ in range(runs)
        ]
        for index, x in enumerate(PLACES)
    ]


@pytest.mark.parametrize("runs", [3, 5, 8])
@pytest.mark.parametrize("spread", SPREADS)
def test_intervals_hold_the_truth_as_often_as_they_say(
    runs: int, spread: Callable[[float], float]
) -> None:
    random, times = np.random.default_rng(runs), 1000
    held, refused = np.zeros(2), 0
    for _ in range(times):
        line = straight_line(PLACES, drawn(random, runs, spread), 0.95)
        held += (
            line.slope.low <= SLOPE <= line.slope.high,
            line.intercept.low <= INTERCEPT <= line.intercept.high,
        )
        assert line.misfit_p is not None
        refused += line.misfit_p < 0.01
    # Four standard errors below what is promised, and above; of three runs a little less is.
    promised = 0.95 if runs > 3 else 0.93
    assert (held / times > promised - 4 * math.sqrt(0.95 * 0.05 / times)).all()
    assert refused / times < 0.01 + 4 * math.sqrt(0.01 * 0.99 / times)


@pytest.mark.parametrize("runs", [3, 5])
def test_what_was_taken_for_zero_adds_what_it_varies_by(runs: int) -> None:
    """Nothing else varies here: without it each interval would be a point beside the truth."""
    random, times = np.random.default_rng(runs), 1000
    held, still = 0, 0
    for _ in range(times):
        zeros = 30 + 3 * random.standard_normal(runs)
        off = float(np.mean(zeros)) - 30
        waits = [[SLOPE * x + INTERCEPT - off] * runs for x in PLACES]
        line = straight_line(PLACES, waits, 0.95, list(zeros))
        held += line.intercept.low <= INTERCEPT <= line.intercept.high
        still += line.slope.low == line.slope.high
        found = mean_of_runs(waits[0], 0.95, list(zeros))
        height = line.intercept.high - line.intercept.low
        assert found.high - found.low == pytest.approx(height)
    assert held / times == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / times))
    assert still == times


def test_what_bends_is_seen_to_fit_no_line() -> None:
    random = np.random.default_rng(1)
    lines = [straight_line(PLACES, drawn(random, 5, SPREADS[0], bend=60), 0.95) for _ in range(100)]
    seen = sum(line.misfit_p is not None and line.misfit_p < 0.01 for line in lines)
    assert seen >= 95
    assert np.mean([line.misfits[2] for line in lines]) > 10


@given(
    st.lists(st.floats(1, 1e4), min_size=2, max_size=6, unique_by=lambda x: round(math.log(x), 1)),
    st.floats(-10, 10), st.floats(-1e3, 1e3), st.integers(2, 4),
)  # fmt: skip
def test_runs_on_a_line_give_that_line(
    places: Sequence[float], slope: float, intercept: float, runs: int
) -> None:
    line = straight_line(places, [[slope * x + intercept] * runs for x in places], 0.95)
    scale = abs(slope) * max(places) + abs(intercept) + 1
    assert line.slope.value == pytest.approx(slope, abs=1e-6 * scale)
    assert line.at(max(places)) == pytest.approx(slope * max(places) + intercept, abs=1e-6 * scale)
    assert all(abs(each) < 1e-6 * scale for each in line.misfits)
    assert line.slope.n == runs * len(places)
    assert (line.misfit_p is None) == (len(places) == 2)


def test_weights_are_those_of_a_fit_by_numpy() -> None:
    runs = drawn(np.random.default_rng(2), 5, SPREADS[1])
    line = straight_line(PLACES, runs, 0.95)
    # Of numpy, weights multiply residuals.
    slope, intercept = np.polyfit(PLACES, [np.mean(each) for each in runs], 1,
                                  w=1 / np.sqrt(PLACES))  # fmt: skip
    assert line.slope.value == pytest.approx(slope)
    assert line.intercept.value == pytest.approx(intercept)


def test_test_of_a_line_agrees_with_the_f_test_where_spreads_are_known() -> None:
    # Of so many runs each spread is known, and the sum of squares is chi-squared.
    means, of_means = [12.0, 19.0, 33.0, 41.0], [1.0, 2.0, 3.0, 1.5]
    x = [1.0, 2.0, 3.0, 4.0]
    p = misfit_probability(x, means, of_means, [10**7] * 4)
    _, (squares, *_), *_ = np.polyfit(x, means, 1, w=1 / np.sqrt(of_means), full=True)
    assert p == pytest.approx(stats.chi2.sf(squares, 2), rel=1e-4)


@pytest.mark.parametrize(("x", "runs"), [([1.0], [[1.0, 2.0]]), ([1.0, 2.0], [[1.0], [2.0, 3.0]])])
def test_too_little_for_a_line_is_refused(x: list[float], runs: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="two places, each with two runs"):
        straight_line(x, runs, 0.95)
