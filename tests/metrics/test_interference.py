"""Ratios of latencies: their intervals hold the truth, and too few samples are refused."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.metrics.interference import latency_ratio
from pytest_hwqueue.metrics.latency import minimum_samples

# Both sides' intervals hold at half the error.
P50_NEEDS = minimum_samples(0.5, 0.975)
P99_NEEDS = minimum_samples(0.99, 0.975)

SAMPLES = st.lists(st.integers(1, 10**9), min_size=P50_NEEDS, max_size=60)
LONG = st.builds(
    lambda seed, n, spread: [
        round(1000 * math.exp(spread * random.Random(seed + i).gauss(0, 1))) + 1 for i in range(n)
    ],
    st.integers(0, 10**6),
    st.integers(P99_NEEDS, P99_NEEDS + 200),
    st.floats(0, 1),
)


def test_sample_counts_needed() -> None:
    assert (P50_NEEDS, P99_NEEDS) == (7, 437)


@settings(deadline=None)
@given(SAMPLES, SAMPLES)
def test_median_is_in_its_interval(samples: list[int], reference: list[int]) -> None:
    result = latency_ratio(samples, reference, "d")
    assert result.p50 == float(np.median(samples)) / float(np.median(reference))
    low, high = result.intervals["p50"]
    assert 0 < low <= result.p50 <= high
    assert (result.n, result.reference_n, result.description) == (
        len(samples),
        len(reference),
        "d",
    )
    assert "p50" not in result.refused


@settings(deadline=None, max_examples=30)
@given(LONG, LONG)
def test_p99_is_in_its_interval(samples: list[int], reference: list[int]) -> None:
    result = latency_ratio(samples, reference, "d")
    assert result.p99 is not None
    assert result.p99 == pytest.approx(np.quantile(samples, 0.99) / np.quantile(reference, 0.99))
    # So few samples do not show that they are independent, unless all are equal.
    assert result.refused.keys() == {"p99_interval"} - {
        f"{name}_interval" for name in result.intervals
    }
    low, high = result.intervals.get("p99", (result.p99, result.p99))
    assert 0 < low <= result.p99 <= high


@settings(deadline=None, max_examples=30)
@given(LONG)
def test_distribution_is_like_itself(samples: list[int]) -> None:
    result = latency_ratio(samples, list(reversed(samples)), "d")
    assert (result.p50, result.p99) == (1.0, 1.0)
    for low, high in result.intervals.values():
        assert low <= 1 <= high
        # The two sides are alike, so the interval is as wide upwards as downwards.
        assert low * high == pytest.approx(1)


@settings(deadline=None)
@given(SAMPLES, SAMPLES, st.integers(2, 1000))
def test_ratio_grows_with_the_samples_and_not_with_the_unit(
    samples: list[int], reference: list[int], factor: int
) -> None:
    base = latency_ratio(samples, reference, "d")
    longer = latency_ratio([factor * each for each in samples], reference, "d")
    both = latency_ratio(
        [factor * each for each in samples], [factor * each for each in reference], "d"
    )
    assert base.p50 is not None
    assert longer.p50 == pytest.approx(factor * base.p50)
    assert longer.intervals["p50"] == pytest.approx(
        tuple(factor * end for end in base.intervals["p50"])
    )
    assert both.p50 == pytest.approx(base.p50)
    assert both.intervals["p50"] == pytest.approx(base.intervals["p50"])


@pytest.mark.parametrize(
    ("n", "reference_n", "refused"),
    [
        (0, 0, {"p50", "p99"}),
        (P50_NEEDS - 1, 1000, {"p50", "p99"}),
        (1000, P50_NEEDS - 1, {"p50", "p99"}),
        (P50_NEEDS, P50_NEEDS, {"p99"}),
        (P99_NEEDS - 1, P99_NEEDS, {"p99"}),
        (P99_NEEDS, P99_NEEDS - 1, {"p99"}),
        (P99_NEEDS, P99_NEEDS, set()),
    ],
)
def test_quantile_with_too_few_samples_on_either_side_is_refused(
    n: int, reference_n: int, refused: set[str]
) -> None:
    result = latency_ratio([5] * n, [5] * reference_n, "d")
    assert result.refused.keys() == refused
    assert result.intervals.keys() == {"p50", "p99"} - refused
    for name, value in (("p50", result.p50), ("p99", result.p99)):
        assert (value is None) == (name in refused)
    for name, needed in (("p50", P50_NEEDS), ("p99", P99_NEEDS)):
        if name in refused:
            fewer = min(n, reference_n)
            reason = f"needs at least {needed} samples on both sides, has {fewer}"
            assert result.refused[name] == reason


def test_reference_that_took_no_time_is_refused() -> None:
    result = latency_ratio([5] * 500, [0] * 500, "d")
    assert (result.p50, result.p99) == (None, None)
    assert result.refused.keys() == {"p50", "p99"}
    assert "not above zero" in result.refused["p50"]


def test_higher_confidence_is_wider_and_needs_more() -> None:
    samples = (np.random.default_rng(0).permutation(600) + 1).tolist()
    usual, sure = (
        latency_ratio(samples, samples, "d", confidence=confidence) for confidence in (0.95, 0.999)
    )
    assert sure.intervals["p50"][0] < usual.intervals["p50"][0]
    assert sure.intervals["p50"][1] > usual.intervals["p50"][1]
    assert sure.confidence == 0.999
    assert "p50" in latency_ratio(samples[:7], samples[:7], "d", confidence=0.999).refused


def test_intervals_cover_the_true_ratio() -> None:
    """Of 400 pairs drawn from one distribution, far more than 95 % must hold 1 (conservative)."""
    drawn = random.Random(1)
    held = 0
    for _ in range(400):
        one, other = ([round(drawn.expovariate(1) * 1e6) + 1 for _ in range(40)] for _ in "ab")
        low, high = latency_ratio(one, other, "d").intervals["p50"]
        held += low <= 1 <= high
    assert held >= 380
