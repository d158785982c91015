"""Throughput: known rates, intervals, what is refused."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student_t

from pytest_hwqueue.metrics.throughput import block_count, contiguous_blocks, throughput


def test_known_rates() -> None:
    result = throughput(400, [2_000_000] * 100, "kernels/s")
    assert (result.value, result.refused) == (200_000.0, {})
    assert result.interval is not None
    low, high = result.interval
    # The clock's nanosecond is left: no interval has no width.
    assert low < 200_000 < high
    assert high - low < 1e-7 * 200_000
    assert (result.unit, result.n, result.confidence) == ("kernels/s", 100, 0.95)
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
    assert result.refused.keys() == {"interval"}
    assert said in result.refused["interval"]


@given(st.lists(st.integers(1, 10**10), min_size=1, max_size=200), st.floats(1e-3, 1e9))
def test_interval_contains_the_value(iterations: list[int], work: float) -> None:
    result = throughput(work, iterations, "x/s")
    assert result.value == pytest.approx(work * len(iterations) / (sum(iterations) / 1e9))
    assert (result.interval is None) == ("interval" in result.refused)
    low, high = result.interval or (result.value, result.value)
    assert low <= result.value <= high
    json.dumps(dataclasses.asdict(result))


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
