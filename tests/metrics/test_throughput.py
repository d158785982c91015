"""Throughput: known rates, intervals, what is refused."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student_t

from pytest_hwqueue.metrics.latency import block_count, contiguous_blocks, throughput

durations = st.lists(st.integers(1, 10**10), min_size=1, max_size=200)


def test_known_rate_of_constant_iterations() -> None:
    result = throughput(400, [2_000_000] * 100, "kernels/s")
    assert result.value == 200_000.0
    assert result.interval is not None
    low, high = result.interval
    # The clock's nanosecond is left: no interval has no width.
    assert low < 200_000 < high
    assert high - low < 1e-7 * 200_000
    assert (result.unit, result.n, result.confidence) == ("kernels/s", 100, 0.95)
    assert result.refused == {}


def test_value_is_total_work_by_total_time() -> None:
    # Not the mean of the rates, which would be 7500/s.
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


def test_few_iterations_have_no_interval() -> None:
    result = throughput(1, [10] * 49, "x/s")
    assert result.interval is None
    assert result.refused == {"interval": "needs at least 50 iterations, has 49 (1 missing)"}
    with pytest.raises(ValueError, match="needs at least 50 iterations, has 49"):
        contiguous_blocks([10] * 49)


def test_one_huge_stall_has_no_interval() -> None:
    result = throughput(1, [1] * 99 + [10**9], "x/s")
    assert result.interval is None
    assert "reaches 0" in result.refused["interval"]


@settings(deadline=None)
@given(durations, st.floats(1e-3, 1e9))
def test_interval_contains_the_value(iterations: list[int], work: float) -> None:
    result = throughput(work, iterations, "x/s")
    assert result.value == pytest.approx(work * len(iterations) / (sum(iterations) / 1e9))
    assert (result.interval is None) == ("interval" in result.refused)
    if result.interval is not None:
        assert result.interval[0] <= result.value <= result.interval[1]
    json.dumps(dataclasses.asdict(result))


@settings(deadline=None)
@given(st.lists(st.integers(1, 1000), min_size=50, max_size=500))
def test_blocks_are_contiguous_and_near_equal_and_drop_nothing(iterations: list[int]) -> None:
    totals, sizes = contiguous_blocks(iterations)
    assert 10 <= len(totals) == len(sizes) == block_count(len(iterations)) <= 20
    assert sizes.min() >= 5
    assert sizes.max() - sizes.min() <= 1
    assert sizes.sum() == len(iterations)
    begin = 0
    for total, size in zip(totals, sizes.astype(int), strict=True):
        assert total == sum(iterations[begin : begin + size])
        begin += size


def _coverage(correlation: float, n: int) -> float:
    """Return how often the interval holds the true rate of autocorrelated iterations."""
    generator = np.random.default_rng(7)
    runs = 400
    noise = generator.standard_normal((runs, n))
    series = np.empty_like(noise)
    series[:, 0] = noise[:, 0] / math.sqrt(1 - correlation**2)
    for step in range(1, n):
        series[:, step] = correlation * series[:, step - 1] + noise[:, step]
    covered = 0
    for row in (1000 + 10 * series).tolist():
        interval = throughput(1, row, "x/s").interval
        assert interval is not None
        covered += interval[0] <= 1e6 <= interval[1]
    return covered / runs


@pytest.mark.parametrize(("correlation", "n"), [(0.0, 50), (0.0, 117), (0.7, 1000)])
def test_coverage_also_with_autocorrelation(correlation: float, n: int) -> None:
    # Three standard errors of 400 runs are 0.033.
    assert _coverage(correlation, n) >= 0.95 - 0.033


@pytest.mark.parametrize(
    "iterations", [[], [1, 0], [1, -1], [1.0, float("nan")], [float("inf")], [[1.0]]]
)
def test_refuses_what_is_no_duration(iterations: list[float]) -> None:
    with pytest.raises(ValueError, match="iteration"):
        throughput(1, iterations, "x/s")


@pytest.mark.parametrize("work", [0.0, -1.0, float("nan"), float("inf")])
def test_refuses_what_is_no_work(work: float) -> None:
    with pytest.raises(ValueError, match="work per iteration"):
        throughput(work, [1], "x/s")
