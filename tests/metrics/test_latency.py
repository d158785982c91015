"""Percentiles with distribution-free intervals: known answers, agreement with scipy, coverage."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import binom, quantile_test

from pytest_hwqueue.metrics.latency import (
    interval_of,
    minimum_samples,
    quantile_interval,
    shortfall,
    summarise_latency,
)

QUANTILES = st.floats(0.01, 0.99)
CONFIDENCES = st.floats(0.8, 0.999)
NAMES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}


def test_minimum_samples_known() -> None:
    quantiles, confidences = (0.5, 0.95, 0.99, 0.999, 0.01), (0.975, 1 - 2**-5, 0.01)
    assert [minimum_samples(each) for each in quantiles] == [6, 72, 368, 3688, 368]
    assert [minimum_samples(0.5, each) for each in confidences] == [7, 6, 2]


@given(QUANTILES, CONFIDENCES)
def test_minimum_samples_is_the_least(quantile: float, confidence: float) -> None:
    needed = minimum_samples(quantile, confidence)
    outer = max(quantile, 1 - quantile)
    assert outer**needed <= (1 - confidence) / 2 < outer ** (needed - 1)
    quantile_interval(range(needed), quantile, confidence)
    with pytest.raises(ValueError, match=f"needs at least {needed} samples"):
        quantile_interval(range(needed - 1), quantile, confidence)


@pytest.mark.parametrize("outside", [0.0, 1.0, -0.1, 99.0, float("nan")])
def test_quantile_and_confidence_are_fractions(outside: float) -> None:
    with pytest.raises(ValueError, match="quantile must be between 0 and 1"):
        minimum_samples(outside)
    with pytest.raises(ValueError, match="confidence must be between 0 and 1"):
        minimum_samples(0.5, outside)


@given(st.integers(1, 3000), QUANTILES, CONFIDENCES)
def test_ranks_are_the_tightest_that_cover(
    surplus: int, quantile: float, confidence: float
) -> None:
    n = minimum_samples(quantile, confidence) + surplus
    lower, upper = (int(rank) for rank in quantile_interval(range(1, n + 1), quantile, confidence))
    tail = (1 - confidence) / 2
    assert 1 <= lower <= upper <= n
    assert binom.cdf(lower - 1, n, quantile) <= tail < binom.cdf(lower, n, quantile)
    assert binom.sf(upper - 1, n, quantile) <= tail < binom.sf(upper - 2, n, quantile)


def test_interval_known_answers_and_refusals() -> None:
    # Conover, Practical Nonparametric Statistics: the median of 6 lies between least and greatest.
    assert quantile_interval([1, 2, 3, 4, 5, 6], 0.5, 0.95) == (1.0, 6.0)
    # Hahn & Meeker, table of ranks: the median of 100 at 95 % lies between the 40th and the 61st.
    assert quantile_interval(range(1, 101), 0.5, 0.95) == (40.0, 61.0)
    with pytest.raises(ValueError, match="ascending"):
        quantile_interval([1, 2, 3, 5, 4, 6, 7], 0.5, 0.95)
    with pytest.raises(ValueError, match="must be numbers"):
        quantile_interval([1, 2, 3, 4, 5, 6, float("nan")], 0.5, 0.95)


@given(st.lists(st.floats(-1e6, 1e6), min_size=20, max_size=300), st.floats(0.2, 0.8), CONFIDENCES)
def test_interval_agrees_with_scipy(
    samples: list[float], quantile: float, confidence: float
) -> None:
    assume(len(samples) >= minimum_samples(quantile, confidence))
    # The stubs take each end of a scipy interval for the whole of it.
    theirs: Any = quantile_test(samples, p=quantile).confidence_interval(confidence)
    assert quantile_interval(sorted(samples), quantile, confidence) == (theirs.low, theirs.high)


@pytest.mark.parametrize(("name", "n"), [("p50", 25), ("p95", 120), ("p99", 500)])
def test_coverage_is_at_least_the_confidence(name: str, n: int) -> None:
    samples = np.sort(np.random.default_rng(20240607).exponential(size=(1500, n)), axis=1)
    found = [quantile_interval(row, NAMES[name], 0.95) for row in samples.tolist()]
    low, high = np.transpose(found)
    truth = -np.log(1 - NAMES[name])
    # The seed is fixed; three standard errors (0.017) leave room to change the generator.
    assert np.mean((low <= truth) & (truth <= high)) >= 0.95 - 0.017


def test_summary_known() -> None:
    summary = summarise_latency([index * 1_000_000 for index in range(100, -1, -1)])
    assert (summary.unit, summary.n, summary.confidence) == ("ms", 101, 0.95)
    assert (summary.mean, summary.max) == (50.0, 100.0)
    assert (summary.p50, summary.p95, summary.p99, summary.p999) == (50.0, 95.0, None, None)
    # They fall from first to last: their range is all that is known of the median of what comes.
    assert summary.intervals == {"p50": (0.0, 100.0)}
    assert summary.refused == {
        "p95_interval": "needs at least 72 independent samples; the 101 taken follow each other "
        "and are worth 1",
        "p99": "needs at least 368 samples, has 101 (267 missing)",
        "p999": "needs at least 3688 samples, has 101 (3587 missing)",
    }
    one = summarise_latency([1_500_000])
    assert (one.mean, one.max, one.n, one.intervals) == (1.5, 1.5, 1, {})
    assert one.refused.keys() == NAMES.keys()
    assert shortfall(50, 49, "iterations") == "needs at least 50 iterations, has 49 (1 missing)"


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
            assert value == pytest.approx(float(np.quantile(samples, quantile)) / 1e6)
    written = json.loads(json.dumps(dataclasses.asdict(summary)))
    assert (written["n"], written["refused"]) == (len(samples), summary.refused)


@pytest.mark.parametrize(
    "samples", [[], [1, -1], [1.0, float("nan")], [1.0, float("inf")], [[1.0], [2.0]]]
)
def test_summary_refuses_what_is_no_latency(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="latency sample"):
        summarise_latency(samples)


def test_no_numpy_scalar_leaks() -> None:
    summary = summarise_latency(np.random.default_rng(0).permutation(6000).tolist())
    assert summary.refused == {}
    values = dataclasses.astuple(summary)
    ends = [end for pair in summary.intervals.values() for end in pair]
    assert {type(value) for value in values} <= {str, int, float, dict}
    assert {type(end) for end in ends} == {float}
