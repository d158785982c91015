"""Percentiles with distribution-free intervals: known answers, agreement with scipy, coverage."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import binom, quantile_test

from pytest_hwqueue.metrics.latency import (
    LatencySummary,
    interval_of,
    minimum_samples,
    quantile_interval,
    shortfall,
    summarise_latency,
)

quantiles = st.floats(0.01, 0.99)
confidences = st.floats(0.8, 0.999)
NAMES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}


@pytest.mark.parametrize(
    ("quantile", "confidence", "needed"),
    [
        (0.5, 0.95, 6),
        (0.95, 0.95, 72),
        (0.99, 0.95, 368),
        (0.999, 0.95, 3688),
        (0.01, 0.95, 368),
        (0.5, 0.975, 7),
        (0.5, 1 - 2**-5, 6),
        (0.5, 0.01, 2),
    ],
)
def test_minimum_samples_known(quantile: float, confidence: float, needed: int) -> None:
    assert minimum_samples(quantile, confidence) == needed


@settings(deadline=None)
@given(quantiles, confidences)
def test_minimum_samples_is_the_least(quantile: float, confidence: float) -> None:
    needed = minimum_samples(quantile, confidence)
    tail = (1 - confidence) / 2
    assert max(quantile, 1 - quantile) ** needed <= tail
    assert max(quantile, 1 - quantile) ** (needed - 1) > tail
    quantile_interval(range(needed), quantile, confidence)
    with pytest.raises(ValueError, match=f"needs at least {needed} samples"):
        quantile_interval(range(needed - 1), quantile, confidence)


@pytest.mark.parametrize("outside", [0.0, 1.0, -0.1, 99.0, float("nan")])
def test_quantile_and_confidence_are_fractions(outside: float) -> None:
    with pytest.raises(ValueError, match="quantile must be between 0 and 1"):
        minimum_samples(outside)
    with pytest.raises(ValueError, match="confidence must be between 0 and 1"):
        minimum_samples(0.5, outside)


def test_interval_known_answers() -> None:
    # Conover, Practical Nonparametric Statistics: the median of 6 lies between least and greatest.
    assert quantile_interval([1, 2, 3, 4, 5, 6], 0.5, 0.95) == (1.0, 6.0)
    # Hahn & Meeker, table of ranks: the median of 100 at 95 % lies between the 40th and the 61st.
    assert quantile_interval(range(1, 101), 0.5, 0.95) == (40.0, 61.0)


@settings(deadline=None)
@given(st.integers(1, 3000), quantiles, confidences)
def test_ranks_are_the_tightest_that_cover(
    surplus: int, quantile: float, confidence: float
) -> None:
    n = minimum_samples(quantile, confidence) + surplus
    lower, upper = (int(rank) for rank in quantile_interval(range(1, n + 1), quantile, confidence))
    tail = (1 - confidence) / 2
    assert 1 <= lower <= upper <= n
    assert binom.cdf(lower - 1, n, quantile) <= tail < binom.cdf(lower, n, quantile)
    assert binom.sf(upper - 1, n, quantile) <= tail < binom.sf(upper - 2, n, quantile)


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=20, max_size=300), st.floats(0.2, 0.8), confidences)
def test_interval_agrees_with_scipy(
    samples: list[float], quantile: float, confidence: float
) -> None:
    assume(len(samples) >= minimum_samples(quantile, confidence))
    # The stubs take each end of a scipy interval for the whole of it.
    theirs: Any = quantile_test(samples, p=quantile).confidence_interval(confidence)
    ours = quantile_interval(sorted(samples), quantile, confidence)
    assert ours == (theirs.low, theirs.high)


@settings(deadline=None)
@given(st.integers(800, 3000), quantiles, quantiles, confidences, confidences)
def test_interval_is_monotone(
    n: int, quantile: float, other: float, confidence: float, another: float
) -> None:
    low, high = sorted((quantile, other))
    less, more = sorted((confidence, another))
    at_low = quantile_interval(range(n), low, more)
    at_high = quantile_interval(range(n), high, more)
    assert at_low[0] <= at_high[0]
    assert at_low[1] <= at_high[1]
    narrow = quantile_interval(range(n), low, less)
    assert at_low[0] <= narrow[0] <= narrow[1] <= at_low[1]


def test_interval_refuses_disorder() -> None:
    with pytest.raises(ValueError, match="ascending"):
        quantile_interval([1, 2, 3, 5, 4, 6, 7], 0.5, 0.95)
    with pytest.raises(ValueError, match="must be numbers"):
        quantile_interval([1, 2, 3, 4, 5, 6, float("nan")], 0.5, 0.95)


@pytest.mark.parametrize(("name", "n"), [("p50", 25), ("p95", 120), ("p99", 500)])
def test_coverage_is_at_least_the_confidence(name: str, n: int) -> None:
    generator = np.random.default_rng(20240607)
    runs = 1500
    samples = np.sort(generator.exponential(size=(runs, n)), axis=1)
    truth = -np.log(1 - NAMES[name])
    covered = 0
    for row in samples.tolist():
        low, high = quantile_interval(row, NAMES[name], 0.95)
        covered += low <= truth <= high
    # The seed is fixed; three standard errors (0.017) leave room to change the generator.
    assert covered / runs >= 0.95 - 0.017


def test_summary_known() -> None:
    summary = summarise_latency([index * 1_000_000 for index in range(100, -1, -1)])
    assert (summary.unit, summary.n, summary.confidence) == ("ms", 101, 0.95)
    assert (summary.mean, summary.max) == (50.0, 100.0)
    assert (summary.p50, summary.p95) == (50.0, 95.0)
    # They fall from first to last: their range is all that is known of the median of what comes.
    assert summary.intervals == {"p50": (0.0, 100.0)}
    assert summary.p99 is None
    assert summary.p999 is None
    assert summary.refused == {
        "p95_interval": "needs at least 72 independent samples; the 101 taken follow each other "
        "and are worth 1",
        "p99": "needs at least 368 samples, has 101 (267 missing)",
        "p999": "needs at least 3688 samples, has 101 (3587 missing)",
    }


def test_one_sample_gives_mean_and_max_only() -> None:
    summary = summarise_latency([1_500_000])
    assert (summary.mean, summary.max, summary.n) == (1.5, 1.5, 1)
    assert set(summary.refused) == set(NAMES)
    assert summary.intervals == {}


@settings(deadline=None)
@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=600))
def test_summary_is_consistent_and_plain(samples: list[int]) -> None:
    summary = summarise_latency(samples)
    assert min(samples) / 1e6 <= summary.mean <= summary.max == max(samples) / 1e6
    for name, quantile in NAMES.items():
        value = getattr(summary, name)
        assert (value is None) == (name in summary.refused)
        no_interval = value is None or interval_of(name) in summary.refused
        assert no_interval == (name not in summary.intervals)
        if value is not None:
            low, high = summary.intervals.get(name, (value, value))
            assert low <= value <= high <= summary.max
            expected = np.quantile(np.array(samples, dtype=float), quantile) / 1e6
            assert value == pytest.approx(float(expected))
    written = dataclasses.asdict(summary)
    assert written["n"] == len(samples)
    assert json.loads(json.dumps(written))["refused"] == summary.refused


@pytest.mark.parametrize(
    "samples", [[], [1, -1], [1.0, float("nan")], [1.0, float("inf")], [[1.0], [2.0]]]
)
def test_summary_refuses_what_is_no_latency(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="latency sample"):
        summarise_latency(samples)


def test_no_numpy_scalar_leaks() -> None:
    summary = summarise_latency(np.random.default_rng(0).permutation(6000).tolist())
    assert summary.refused == {}
    for field in dataclasses.fields(LatencySummary):
        value = getattr(summary, field.name)
        assert type(value) in (str, int, float, dict)
    assert all(type(end) is float for pair in summary.intervals.values() for end in pair)


def test_shortfall_counts_what_is_missing() -> None:
    assert shortfall(368, 100) == "needs at least 368 samples, has 100 (268 missing)"
    assert shortfall(50, 49, "iterations") == "needs at least 50 iterations, has 49 (1 missing)"
