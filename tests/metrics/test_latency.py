"""Percentiles and rates: known answers, agreement with scipy, coverage, what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import binom, quantile_test
from scipy.stats import t as student_t

from pytest_hwqueue.metrics.latency import (
    LatencySummary,
    block_count,
    contiguous_blocks,
    minimum_samples,
    quantile_interval,
    shortfall,
    summarise_latency,
    throughput,
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
    assert (summary.n, summary.mean, summary.max) == (101, 50.0, 100.0)
    figures = {name: getattr(summary, name) for name in NAMES}
    assert {(each.n, each.unit) for each in figures.values()} == {(101, "ms")}
    assert [each.value for each in figures.values()] == [50.0, 95.0, None, None]
    # They fall from first to last: their range is all that is known of the median of what comes.
    intervals = [each.interval for each in figures.values()]
    assert intervals == [(0.0, 100.0), None, None, None]
    assert [each.refused for each in figures.values()] == [
        "",
        "needs at least 72 independent samples; the 101 taken follow each other and are worth 1",
        "needs at least 368 samples, has 101 (267 missing)",
        "needs at least 3688 samples, has 101 (3587 missing)",
    ]
    one = summarise_latency([1_500_000])
    assert (one.mean, one.max, one.n) == (1.5, 1.5, 1)
    assert [getattr(one, name).value for name in NAMES] == [None] * 4
    assert shortfall(50, 49, "iterations") == "needs at least 50 iterations, has 49 (1 missing)"


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=600))
def test_summary_is_consistent_and_plain(samples: list[int]) -> None:
    summary = summarise_latency(samples)
    assert min(samples) / 1e6 <= summary.mean <= summary.max == max(samples) / 1e6
    for name, quantile in NAMES.items():
        found = getattr(summary, name)
        assert (found.interval is None) == bool(found.refused)
        if found.value is not None:
            assert found.low <= found.value <= found.high
            assert found.interval is None or found.high <= summary.max
            assert found.value == pytest.approx(float(np.quantile(samples, quantile)) / 1e6)
    assert LatencySummary.model_validate_json(summary.model_dump_json()) == summary


@pytest.mark.parametrize(
    "samples", [[], [1, -1], [1.0, float("nan")], [1.0, float("inf")], [[1.0], [2.0]]]
)
def test_summary_refuses_what_is_no_latency(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="latency sample"):
        summarise_latency(samples)


def test_no_numpy_scalar_leaks() -> None:
    summary = summarise_latency(np.random.default_rng(0).permutation(6000).tolist())
    assert {type(value) for value in (summary.n, summary.mean, summary.max)} == {int, float}
    for name in NAMES:
        found = getattr(summary, name)
        assert {type(value) for value in (found.value, found.low, found.high)} == {float}


# Throughput


def test_known_rates() -> None:
    result = throughput(400, [2_000_000] * 100, "kernels/s")
    assert (result.value, result.refused) == (200_000.0, "")
    assert result.interval is not None
    low, high = result.interval
    # The clock's nanosecond is left: no interval has no width.
    assert low < 200_000 < high
    assert high - low < 1e-7 * 200_000
    assert (result.unit, result.n) == ("kernels/s", 100)
    # Total work by total time, not the mean of the rates, which would be 7500/s.
    assert throughput(10, [1_000_000, 2_000_000], "x/s").value == pytest.approx(20 / 3e-3)


def test_interval_of_independent_durations_is_nearly_students() -> None:
    widths = []
    for seed in range(20):
        durations = np.random.default_rng(seed).normal(100, 10, 2000)
        interval = throughput(1, durations.tolist(), "x/s").interval
        assert interval is not None
        half = student_t.ppf(0.975, 1999) * durations.std(ddof=1) / math.sqrt(2000)
        widths.append(math.log(interval[1] / interval[0]) / 2 / (half / durations.mean()))
    assert min(widths) >= 0.999
    assert np.median(widths) < 1.1


@pytest.mark.parametrize(
    ("iterations", "said"),
    [
        ([10] * 49, "needs at least 50 iterations, has 49 (1 missing)"),
        ([1] * 99 + [10**9], "reaches 0"),  # one huge stall
    ],
)
def test_no_interval(iterations: list[int], said: str) -> None:
    result = throughput(1, iterations, "x/s")
    assert result.interval is None
    assert said in result.refused


@given(st.lists(st.integers(1, 10**10), min_size=1, max_size=200), st.floats(1e-3, 1e9))
def test_interval_contains_the_value(iterations: list[int], work: float) -> None:
    result = throughput(work, iterations, "x/s")
    assert result.value == pytest.approx(work * len(iterations) / (sum(iterations) / 1e9))
    assert (result.interval is None) == bool(result.refused)
    assert result.low <= result <= result.high


@given(st.lists(st.integers(1, 1000), min_size=49, max_size=500))
def test_blocks_are_contiguous_and_near_equal_and_drop_nothing(iterations: list[int]) -> None:
    if len(iterations) < 50:
        with pytest.raises(ValueError, match="needs at least 50 iterations, has 49"):
            contiguous_blocks(iterations)
        return
    totals, sizes = contiguous_blocks(iterations)
    assert 10 <= len(totals) == len(sizes) == block_count(len(iterations)) <= 20
    assert sizes.min() >= 5
    assert sizes.max() - sizes.min() <= 1
    ends = np.cumsum(sizes).astype(int).tolist()
    assert ends[-1] == len(iterations)
    assert np.cumsum(totals).tolist() == [sum(iterations[:end]) for end in ends]


@pytest.mark.parametrize(("correlation", "n"), [(0.0, 50), (0.0, 117), (0.7, 1000)])
def test_coverage_also_with_autocorrelation(correlation: float, n: int) -> None:
    noise = np.random.default_rng(7).standard_normal((400, n))
    series = np.empty_like(noise)
    series[:, 0] = noise[:, 0] / math.sqrt(1 - correlation**2)
    for step in range(1, n):
        series[:, step] = correlation * series[:, step - 1] + noise[:, step]
    found = [throughput(1, row, "x/s").interval for row in (1000 + 10 * series).tolist()]
    low, high = np.transpose([interval or (math.nan, math.nan) for interval in found])
    # Three standard errors of 400 runs are 0.033.
    assert np.mean((low <= 1e6) & (high >= 1e6)) >= 0.95 - 0.033


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("work", "iterations", "said"),
    [
        *((1, each, "iteration") for each in ([], [1, 0], [1, -1], [1, NAN], [INF], [[1]])),
        *((each, [1], "work per iteration") for each in (0.0, -1.0, NAN, INF)),
    ],
)
def test_refuses_what_is_no_duration_or_no_work(
    work: float, iterations: list[float], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        throughput(work, iterations, "x/s")
