"""Percentiles and rates: known answers, agreement with scipy, coverage, what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import binom
from scipy.stats import t as student_t

from pytest_hwqueue.data.metrics.latency import (
    LatencySummary,
    block_count,
    contiguous_blocks,
    minimum_samples,
    quantile_interval,
    spread_interval,
    summarise_latency,
    throughput,
)
from tools.coverage import autoregressive

NAN, INF = math.nan, math.inf
QUANTILES = st.floats(0.01, 0.99)
CONFIDENCES = st.floats(0.8, 0.999)
NAMES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}


@given(QUANTILES, CONFIDENCES)
def test_minimum_samples_is_the_least(quantile: float, confidence: float) -> None:
    needed = minimum_samples(quantile, confidence)
    outer = max(quantile, 1 - quantile)
    assert outer**needed <= (1 - confidence) / 2 < outer ** (needed - 1)
    assert (minimum_samples(0.99), minimum_samples(0.5, 1 - 2**-5)) == (368, 6)
    quantile_interval(range(needed), quantile, confidence)
    with pytest.raises(ValueError, match=f"needs at least {needed} samples"):
        quantile_interval(range(needed - 1), quantile, confidence)


@pytest.mark.parametrize("outside", [0.0, 1.0, -0.1, 99.0, NAN])
def test_quantile_and_confidence_are_fractions(outside: float) -> None:
    with pytest.raises(ValueError, match="quantile must be between 0 and 1"):
        minimum_samples(outside)
    with pytest.raises(ValueError, match="confidence must be between 0 and 1"):
        minimum_samples(0.5, outside)


@given(st.integers(1, 3000), QUANTILES, CONFIDENCES)
# Nothing and everything below the median of seven: exactly the error that may be.
@example(0, 0.5, 1 - 2 / 2**7)
def test_ranks_are_the_tightest_that_cover(
    surplus: int, quantile: float, confidence: float
) -> None:
    n = minimum_samples(quantile, confidence) + surplus
    lower, upper = (int(rank) for rank in quantile_interval(range(1, n + 1), quantile, confidence))
    tail = (1 - confidence) / 2
    assert 1 <= lower <= upper <= n
    assert binom.cdf(lower - 1, n, quantile) <= tail < binom.cdf(lower, n, quantile)
    assert binom.sf(upper - 1, n, quantile) <= tail < binom.sf(upper - 2, n, quantile)


@pytest.mark.parametrize("each", [1, 2, 7, 40])
@pytest.mark.parametrize("quantile", [0.5, 0.95, 0.99])
def test_samples_worth_fewer_have_the_ranks_of_those_spread_over_all(
    quantile: float, each: int
) -> None:
    worth = minimum_samples(quantile) + 30
    low, high = quantile_interval(range(1, worth + 1), quantile, 0.95)
    samples = np.arange(1, each * worth + 1, dtype=np.float64)
    assert spread_interval(samples, quantile, 0.95, worth) == (low * each, high * each)


def test_samples_worth_next_to_nothing_bound_a_percentile_by_the_median() -> None:
    samples = np.arange(1, 101, dtype=np.float64)
    assert spread_interval(samples, 0.95, 0.95, 1) == (50.0, math.inf)


@given(st.integers(368, 5000), st.data(), st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999]))
def test_an_interval_holds_its_value_however_little_the_samples_are_worth(
    n: int, data: st.DataObject, quantile: float
) -> None:
    samples = np.arange(n, dtype=float)
    worth = data.draw(st.integers(1, n) | st.integers(1, 40), label="worth")
    block = data.draw(st.integers(1, n), label="block")
    low, high = spread_interval(samples, quantile, 0.95, worth, block)
    assert low <= np.quantile(samples, quantile) <= high


def test_samples_of_an_interval_ascend() -> None:
    with pytest.raises(ValueError, match="ascending"):
        quantile_interval([1, 2, 3, 5, 4, 6, 7], 0.5, 0.95)
    with pytest.raises(ValueError, match="must be numbers"):
        quantile_interval([1, 2, 3, 4, 5, 6, NAN], 0.5, 0.95)


def test_summary_known() -> None:
    summary = summarise_latency([index * 1_000_000 for index in range(100, -1, -1)])
    assert (summary.n, summary.mean, summary.max) == (101, 50.0, 100.0)
    figures = [getattr(summary, name) for name in NAMES]
    assert {(each.n, each.unit) for each in figures} == {(101, "ms")}
    # They fall from first to last: their range is all that is known of the median of what comes.
    assert [(each.value, each.interval, each.refused) for each in figures] == [
        (50.0, (0.0, 100.0), ""),
        (95.0, None, "has 101 samples, as good as 1 independent ones at least; 350 suffice"),
        (None, None, "has 101 samples; 1000 independent ones suffice"),
        (None, None, "has 101 samples; 5500 independent ones suffice"),
    ]  # fmt: skip


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


@pytest.mark.parametrize("samples", [[], [1, -1], [1.0, NAN], [1.0, INF], [[1.0], [2.0]]])
def test_summary_refuses_what_is_no_latency(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="latency sample"):
        summarise_latency(samples)


# Throughput


def test_known_rates() -> None:
    result = throughput(400, [2_000_000] * 100, "kernels/s")
    assert (result.unit, result.n, result.refused) == ("kernels/s", 100, "")
    # The clock's nanosecond is left: no interval has no width.
    assert result.low < 200_000 < result.high < result.low + 1e-7 * 200_000
    # Total work by total time, not the mean of the rates, which would be 7500/s.
    assert throughput(10, [1_000_000, 2_000_000], "x/s").value == pytest.approx(20 / 3e-3)


def test_interval_of_independent_durations_is_nearly_students() -> None:
    widths = []
    for seed in range(20):
        durations = np.random.default_rng(seed).normal(100, 10, 2000)
        rate = throughput(1, durations.tolist(), "x/s")
        half = student_t.ppf(0.975, 1999) * durations.std(ddof=1) / math.sqrt(2000)
        widths.append(math.log(rate.high / rate.low) / 2 / (half / durations.mean()))
    assert min(widths) >= 0.999
    assert np.median(widths) < 1.1


def test_durations_that_vary_much_have_no_interval() -> None:
    stalled = throughput(1, [1] * 99 + [10**9], "x/s")
    assert (stalled.interval, "reaches 0" in stalled.refused) == (None, True)


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


@pytest.mark.parametrize(("correlation", "n"), [(0.0, 50), (0.7, 1000)])
def test_coverage_also_with_autocorrelation(correlation: float, n: int) -> None:
    series = [autoregressive(n, correlation, np.random.default_rng(seed)) for seed in range(400)]
    found = [throughput(1, each.tolist(), "x/s").interval or (NAN, NAN) for each in series]
    # Three standard errors of 400 runs are 0.033.
    assert np.mean([low <= 1e9 / 20 <= high for low, high in found]) >= 0.95 - 0.033


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
