"""What samples that follow each other are worth, how often their intervals hold; distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from pytest_hwqueue.data.metrics import dependence
from pytest_hwqueue.data.metrics.dependence import (
    independent_samples,
    long_run,
    worth_of_share,
)
from pytest_hwqueue.data.metrics.drift import mean_interval
from pytest_hwqueue.data.metrics.latency import summarise_latency
from tools.coverage import autoregressive, queue

Values = NDArray[np.float64]
SEEDS = st.integers(0, 2**31)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    ("correlation", "quantile"), [(0.0, 0.5), (0.0, 0.95), (0.0, 0.99), (0.5, 0.5), (0.9, 0.5)]
)
def test_worth_falls_with_the_dependence_as_theory_says(
    correlation: float, quantile: float
) -> None:
    # The sign of a Gaussian AR(1) series has the correlations 2/pi asin(c ** lag).
    lags = correlation ** np.arange(1, 400)
    effect = 1 + 2 * float((2 / math.pi * np.arcsin(lags)).sum())
    series = [autoregressive(20_000, correlation, generator(seed)) for seed in range(8)]
    worth = np.mean([independent_samples([each], quantile, 0.95) for each in series])
    # Never more than theory has, and not much less: what is uncertain counts as dependence.
    assert 0.7 * 20_000 / effect < worth < 1.05 * 20_000 / effect


@given(st.integers(30, 120), st.integers(2, 50), SEEDS)
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
    for figure in (summary.p95, summary.p99):
        assert (figure.interval, "are correlated" in figure.refused) == (None, True)
    assert summary.p50.interval is not None
    assert summary.p50.high > summary.p50.low


@pytest.mark.parametrize("period", [2, 3, 5, 6, 7, 8, 20])
def test_a_period_is_no_dependence_that_lasts(period: int) -> None:
    # Of 1000 samples, lags are added up in groups of five.
    assert worth_of_share([np.arange(1000) % period == 0], 0.95) > 500


def test_parts_do_not_follow_each_other_and_their_own_levels_do_not_count() -> None:
    apart = [generator(1).normal(0, 1, 500), generator(2).normal(50, 1, 500)]
    assert long_run(apart).variance == pytest.approx(1, rel=0.3)
    assert long_run([np.concatenate(apart)]).variance > 1000


@given(st.integers(1, 5), SEEDS)
def test_series_of_any_length_and_of_one_value(n: int, seed: int) -> None:
    assert 0 < independent_samples([generator(seed).lognormal(size=n)], 0.5, 0.95) <= n
    assert mean_interval([np.full(n, 3.0)], 0.95).half_width == 0
    assert worth_of_share([np.ones(n, bool)], 0.95) == n


def sometimes_wrong(series: list[Values], truths: list[float]) -> float:
    """Return how often the interval of the percentile that misses its truth most does so."""
    wrong = dict.fromkeys(("p50", "p95", "p99"), 0)
    for each in series:
        found = summarise_latency(np.round(each * 1e6).tolist())
        for name, true in zip(wrong, truths, strict=True):
            interval = getattr(found, name).interval
            wrong[name] += interval is not None and not interval[0] <= true <= interval[1]
    return max(wrong.values()) / len(series)


@pytest.mark.parametrize("load", [0.5, 0.8, 0.9])
def test_intervals_of_a_queue_hold_or_are_refused(load: float) -> None:
    # M/M/1: the time in the system is exponential, its mean one service over what is idle.
    truths = [-math.log(1 - quantile) / (1 - load) for quantile in (0.5, 0.95, 0.99)]
    series = [queue(3000, load, generator(seed), "M/M/1")[1] for seed in range(150)]
    # 5 % and three standard errors; independent samples would be wrong in 40 to 90 %.
    assert sometimes_wrong(series, truths) <= 0.05 + 0.053


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_intervals_of_successive_iterations_hold(correlation: float) -> None:
    series = [autoregressive(1000, correlation, generator(seed)) for seed in range(150)]
    assert sometimes_wrong(series, [20.0, 21.644854, 22.326348]) <= 0.05 + 0.053
    held = [abs(each.mean() - 20) <= mean_interval([each], 0.95).half_width for each in series]
    assert np.mean(held) >= 0.95 - 0.053


# Distributions: those of scipy.stats, which nothing imports

P = st.floats(0.001, 0.999)
COUNTS = st.integers(1, 20_000)
FREEDOMS = st.integers(1, 2_000)


@given(P, COUNTS, P)
def test_binomial(probability: float, n: int, p: float) -> None:
    binomial = stats.binom(n, p)
    count = dependence.binomial_quantile(probability, n, p)
    # By its definition, so that rounding of either side does not matter.
    assert binomial.cdf(count) >= probability * (1 - 1e-9)
    assert binomial.cdf(count - 1) < probability * (1 + 1e-9)
    counts = np.unique(np.clip([-1, 0, count - 1, count, n - 1, n], -1, n))
    for name in ("cdf", "sf"):
        known = getattr(binomial, name)
        found = [getattr(dependence, f"binomial_{name}")(each, n, p) for each in counts]
        assert found == pytest.approx(known(counts), rel=1e-8, abs=1e-14)


@given(P, FREEDOMS, FREEDOMS, st.floats(-30, 30))
def test_continuous_distributions(p: float, freedom: int, other: int, x: float) -> None:
    for name, degrees in (("student", [freedom]), ("chi2", [freedom]), ("f", [freedom, other])):
        ours = getattr(dependence, f"{name}_quantile")(p, *degrees)
        theirs = getattr(stats, name.replace("student", "t"))(*degrees)
        assert theirs.cdf(ours) == pytest.approx(p, rel=1e-6), name
    assert dependence.normal_cdf(x) == pytest.approx(stats.norm.cdf(x), rel=1e-9, abs=1e-300)
    theirs = stats.t.cdf(x, freedom)
    assert dependence.student_cdf(x, freedom) == pytest.approx(theirs, rel=1e-7, abs=1e-300)


@given(COUNTS, st.data())
def test_proportion_interval(n: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, n))
    theirs = stats.binomtest(number, n).proportion_ci(0.95, method="exact")
    ours = dependence.proportion_interval(number, n, 0.95)
    assert ours == pytest.approx((float(theirs.low), float(theirs.high)), rel=1e-6, abs=1e-12)
    for wrong, of in ((-1, n), (n + 1, n), (0, 0)):
        with pytest.raises(ValueError, match="is no proportion"):
            dependence.proportion_interval(wrong, of, 0.95)
