"""What samples that follow each other are worth, and how often their intervals hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pytest_hwqueue.metrics.dependence import (
    independent_samples,
    long_run,
    mean_half_width,
    worth_of_share,
)
from pytest_hwqueue.metrics.latency import interval_of, summarise_latency
from tools.coverage import autoregressive, queue

Values = NDArray[np.float64]


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("quantile", [0.5, 0.95, 0.99])
def test_independent_samples_are_worth_nearly_their_number(quantile: float) -> None:
    worth = [
        independent_samples([generator(seed).lognormal(size=3000)], quantile, 0.95)
        for seed in range(20)
    ]
    assert 0.75 * 3000 < np.median(worth) <= 3000


def test_worth_falls_with_the_dependence_as_theory_says() -> None:
    # The sign of a Gaussian AR(1) series has the correlations 2/pi asin(c ** lag).
    for correlation in (0.5, 0.9):
        lags = correlation ** np.arange(1, 400)
        effect = 1 + 2 * float((2 / math.pi * np.arcsin(lags)).sum())
        series = [autoregressive(40_000, correlation, generator(seed)) for seed in range(10)]
        worth = np.mean([independent_samples([each], 0.5, 0.95) for each in series])
        # Never more than theory has, and not much less: what is uncertain counts as dependence.
        assert 0.7 * 40_000 / effect < worth < 1.05 * 40_000 / effect


@given(st.integers(30, 120), st.integers(2, 50), st.integers(0, 2**31))
def test_samples_that_repeat_their_iteration_are_worth_one_each(
    iterations: int, block: int, seed: int
) -> None:
    alike = np.repeat(generator(seed).lognormal(size=iterations), block)
    for quantile in (0.5, 0.95, 0.99):
        # Never more than there are iterations, but for the quantile's own share of rounding.
        assert independent_samples([alike], quantile, 0.95, block) <= iterations * 1.1


def test_ties_do_not_hide_dependence() -> None:
    # 20 iterations of 50 equal launches: above the greatest value lies nothing.
    alike = np.repeat(generator().permutation(20) + 1.0, 50) * 1e6
    summary = summarise_latency(alike.tolist(), 50)
    assert summary.p99 == 20
    assert "independent samples" in summary.refused[interval_of("p99")]
    assert "independent samples" in summary.refused[interval_of("p95")]
    low, high = summary.intervals["p50"]
    assert high > low


@pytest.mark.parametrize("period", [2, 3, 5, 6, 7, 8, 20])
def test_a_period_is_no_dependence_that_lasts(period: int) -> None:
    # Of 1000 samples, lags are added up in groups of five.
    slow = np.arange(1000) % period == 0
    assert worth_of_share([slow], 0.95) > 500


def test_parts_do_not_follow_each_other_and_their_own_levels_do_not_count() -> None:
    apart = [generator(1).normal(0, 1, 500), generator(2).normal(50, 1, 500)]
    assert long_run(apart).variance == pytest.approx(1, rel=0.3)
    assert long_run([np.concatenate(apart)]).variance > 1000


@given(st.integers(1, 5), st.integers(0, 2**31))
def test_series_of_any_length_and_of_one_value(n: int, seed: int) -> None:
    few = generator(seed).lognormal(size=n)
    assert 0 < independent_samples([few], 0.5, 0.95) <= n
    assert mean_half_width([np.full(n, 3.0)], 0.95) == 0
    assert worth_of_share([np.ones(n, bool)], 0.95) == n


def sometimes_wrong(series: list[Values], truths: dict[str, float]) -> dict[str, float]:
    """Return the share of series whose interval of a percentile misses the truth."""
    wrong = dict.fromkeys(truths, 0)
    for each in series:
        found = summarise_latency(np.round(each * 1e6).tolist()).intervals
        for name, true in truths.items():
            wrong[name] += name in found and not found[name][0] <= true <= found[name][1]
    return {name: count / len(series) for name, count in wrong.items()}


@pytest.mark.parametrize("load", [0.5, 0.8, 0.9])
def test_intervals_of_a_queue_hold_or_are_refused(load: float) -> None:
    # M/M/1: the time in the system is exponential, its mean one service over what is idle.
    truths = {
        name: -math.log(1 - quantile) / (1 - load)
        for name, quantile in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    }
    series = [queue(3000, load, generator(seed), "M/M/1")[1] for seed in range(150)]
    # 5 % and three standard errors; independent samples would be wrong in 40 to 90 %.
    assert max(sometimes_wrong(series, truths).values()) <= 0.05 + 0.053


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_intervals_of_successive_iterations_hold(correlation: float) -> None:
    series = [autoregressive(1000, correlation, generator(seed)) for seed in range(150)]
    truths = {"p50": 20.0, "p95": 21.644854, "p99": 22.326348}
    assert max(sometimes_wrong(series, truths).values()) <= 0.05 + 0.053
    held = [abs(each.mean() - 20) <= mean_half_width([each], 0.95) for each in series]
    assert np.mean(held) >= 0.95 - 0.053
