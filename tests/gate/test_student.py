"""The t-test over runs: scipy's where both can, with a floor and a session term on top."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t, ttest_ind, ttest_rel

from pytest_hwqueue.gate.statistics import compare, compare_pairs, session_share
from pytest_hwqueue.metrics.dependence import student_quantile

RUNS = st.lists(st.floats(-1, 1), min_size=2, max_size=12).filter(lambda v: np.ptp(v) > 0.1)


@given(RUNS, RUNS)
def test_without_session_term_it_is_the_pooled_t(x: list[float], y: list[float]) -> None:
    difference = compare(x, y, 1e-9, 1.0)
    expected = ttest_ind(y, x, alternative="greater")
    assert difference.p_above(0) == pytest.approx(expected.pvalue, rel=1e-6)
    assert difference.p_below(0) == pytest.approx(1 - expected.pvalue, rel=1e-6, abs=1e-12)
    interval = ttest_ind(y, x).confidence_interval(0.95)
    assert difference.interval(0, 0.95) == pytest.approx((interval.low, interval.high))


@given(RUNS)
def test_pairs_are_compared_by_the_paired_t(x: list[float]) -> None:
    y = [value + 0.1 + 0.3 * math.sin(i) for i, value in enumerate(x)]
    expected = ttest_rel(y, x, alternative="greater")
    assert compare_pairs(x, y, 1e-9).p_above(0) == pytest.approx(expected.pvalue, rel=1e-6)


def test_session_term_adds_to_the_error() -> None:
    x, y = [0.0, 0.02, 0.04], [0.05, 0.07]
    share = 1 + 1 / 3
    difference = compare(x, y, 0.005, share)
    error = math.sqrt(difference.sd**2 * (1 / 3 + 1 / 2) + 0.01**2 * share)
    assert difference.error(0.01) == pytest.approx(error)
    # Only the sd is estimated, so that the greater tau, the nearer is t to the normal distribution.
    freedom = 3 * (error**2 / (difference.sd**2 * (1 / 3 + 1 / 2))) ** 2
    expected = float(t.sf(difference.mean / error, freedom))
    assert difference.p_above(0.01) == pytest.approx(expected)


def test_noise_below_the_floor_is_not_believed() -> None:
    assert compare([0.0, 0.0], [0.001, 0.001], 0.005, 1.0).sd == 0.005


@given(RUNS, RUNS)
def test_order_of_runs_does_not_matter(x: list[float], y: list[float]) -> None:
    assert compare(x[::-1], sorted(y), 0.005, 1.0) == compare(x, y, 0.005, 1.0)


def test_session_share() -> None:
    assert session_share(["a", "b", "c", "d"]) == pytest.approx(1 / 4)
    assert session_share(["a"] * 7) == pytest.approx(1)
    assert session_share(["a", "a", "b", "b"]) == pytest.approx(1 / 2)


@pytest.mark.parametrize("probability", [0.8, 0.95, 1 - 1e-6])
def test_quantile_inverts_the_distribution(probability: float) -> None:
    assert float(t.cdf(student_quantile(probability, 7), 7)) == pytest.approx(probability)
