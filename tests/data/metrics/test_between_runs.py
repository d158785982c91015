"""What several runs say of a figure that none of them has an interval of."""

from __future__ import annotations

import math
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.metrics.between_runs import RunSpread, median_run, spread_within

FIGURES = st.floats(1e-3, 1e6)


def _covered(runs: int, draw: str, known: int = 0, tries: int = 2000) -> float:
    """How often the interval holds the median run's figure."""
    generator = np.random.default_rng(runs)

    def figures(count: int) -> list[float]:
        if draw == "normal":
            return [float(each) for each in np.exp(0.03 * generator.standard_normal(count))]
        # Two clocks, and now and then a wild run.
        modes = generator.choice([1.0, 1.1], count, p=[0.6, 0.4])
        wild = generator.choice([1.0, 5.0], count, p=[0.9, 0.1])
        noise = np.exp(0.01 * generator.standard_normal(count))
        return [float(each) for each in modes * wild * noise]

    truth = median(figures(200_001))
    held = 0
    for _ in range(tries):
        spread = spread_within([figures(known)]) if known else None
        found = median_run(figures(runs), 0.95, spread)
        assert found is not None
        held += found.interval[0] <= truth <= found.interval[1]
    return held / tries


@pytest.mark.parametrize("runs", [6, 7, 9, 15])
def test_ranks_cover_whatever_the_distribution(runs: int) -> None:
    # Two standard errors of 2,000 tries below 95 %.
    assert _covered(runs, "modes") >= 0.94


@pytest.mark.parametrize("runs", [3, 4, 5])
def test_few_runs_cover_where_their_logarithms_are_normal(runs: int) -> None:
    assert 0.94 <= _covered(runs, "normal") <= 0.96


@pytest.mark.parametrize("runs", [1, 2])
def test_one_or_two_runs_have_the_spread_of_runs_before(runs: int) -> None:
    assert 0.94 <= _covered(runs, "normal", known=5) <= 0.96
    assert median_run([1.0] * runs, 0.95) is None


def test_of_six_runs_the_ends_are_the_least_and_the_greatest() -> None:
    found = median_run([3.0, 1.0, 6.0, 2.0, 5.0, 4.0], 0.95)
    assert found is not None
    assert found.interval == (1.0, 6.0)
    # Of 9 the second of either end: binomial(9, 1/2) is at most 1 in 2.0 % of cases.
    nine = median_run([float(n) for n in range(1, 10)], 0.95)
    assert nine is not None
    assert nine.interval == (2.0, 8.0)


@given(values=st.lists(FIGURES, min_size=3, max_size=30))
def test_it_holds_the_median_of_the_runs(values: list[float]) -> None:
    found = median_run(values, 0.95)
    assert found is not None
    low, high = found.interval
    assert low <= median(values) * (1 + 1e-9)
    assert high >= median(values) * (1 - 1e-9)
    assert found.by.startswith(f"{len(values)} runs")


def test_a_spread_is_of_runs_of_one_session() -> None:
    assert spread_within([[1.0], [2.0], []]) is None
    # Sessions differ by 2, runs of one by 1 %.
    found = spread_within([[1.0, 1.01], [2.0, 2.02], [5.0]])
    assert found is not None
    assert found.freedom == 2
    assert found.sd == pytest.approx(math.log(1.01) / math.sqrt(2))


def test_what_is_known_of_runs_before_is_not_needed_from_three_on() -> None:
    known = RunSpread(0.5, 20)
    assert median_run([1.0, 1.01, 1.02], 0.95, known) == median_run([1.0, 1.01, 1.02], 0.95)
    one = median_run([1.0], 0.95, known)
    assert one is not None
    assert one.by == "1 run and how far the baseline's differ within a session"
    assert one.interval[1] == pytest.approx(math.exp(2.086 * 0.5), rel=1e-3)
