"""Ratios of latencies hold the truth or are refused; what proves that a priority has an effect."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.metrics.interference import (
    CONFIDENCE,
    LEAST_ROUNDS,
    PROVING,
    PriorityEffect,
    latency_ratio,
    priority_effect,
)

# Both sides' intervals hold at half the error.
P50_NEEDS, P99_NEEDS = 7, 437
SAMPLES = st.lists(st.integers(1, 10**9), min_size=P50_NEEDS, max_size=60)
LONG = st.builds(
    lambda seed, n, spread: [
        round(1000 * math.exp(spread * random.Random(seed + i).gauss(0, 1))) + 1 for i in range(n)
    ],
    st.integers(0, 10**6),
    st.integers(P99_NEEDS, P99_NEEDS + 200),
    st.floats(0, 1),
)


@given(SAMPLES, SAMPLES, st.integers(2, 1000))
def test_ratio_of_medians_grows_with_the_samples_and_not_with_the_unit(
    samples: list[int], reference: list[int], factor: int
) -> None:
    result = latency_ratio(samples, reference, "d")
    assert result.p50 == float(np.median(samples)) / float(np.median(reference))
    assert (result.n, result.reference_n) == (len(samples), len(reference))
    assert result.description == "d"
    low, high = result.intervals["p50"]
    assert 0 < low <= result.p50 <= high
    scaled = [factor * each for each in samples]
    for over, by in ((reference, factor), ([factor * each for each in reference], 1)):
        other = latency_ratio(scaled, over, "d")
        assert other.p50 == pytest.approx(by * result.p50)
        assert other.intervals["p50"] == pytest.approx((by * low, by * high))


@settings(max_examples=30)
@given(LONG, LONG)
def test_p99_is_in_its_interval(samples: list[int], reference: list[int]) -> None:
    result = latency_ratio(samples, reference, "d")
    p99 = float(np.quantile(samples, 0.99) / np.quantile(reference, 0.99))
    assert result.p99 == pytest.approx(p99)
    # So few samples do not show that they are independent, unless all are equal.
    assert result.refused.keys() == (set() if "p99" in result.intervals else {"p99_interval"})
    low, high = result.intervals.get("p99", (p99, p99))
    assert 0 < low <= p99 <= high
    itself = latency_ratio(samples, list(reversed(samples)), "d")
    assert (itself.p50, itself.p99) == (1.0, 1.0)
    for low, high in itself.intervals.values():
        assert low <= 1 <= high
        # The two sides are alike, so the interval is as wide upwards as downwards.
        assert low * high == pytest.approx(1)


@pytest.mark.parametrize(
    ("n", "reference_n", "refused"),
    [
        (0, 0, {"p50": P50_NEEDS, "p99": P99_NEEDS}),
        (P50_NEEDS - 1, 1000, {"p50": P50_NEEDS, "p99": P99_NEEDS}),
        (1000, P50_NEEDS - 1, {"p50": P50_NEEDS, "p99": P99_NEEDS}),
        (P50_NEEDS, P50_NEEDS, {"p99": P99_NEEDS}),
        (P99_NEEDS - 1, P99_NEEDS, {"p99": P99_NEEDS}),
        (P99_NEEDS, P99_NEEDS - 1, {"p99": P99_NEEDS}),
        (P99_NEEDS, P99_NEEDS, {}),
    ],
)
def test_quantile_with_too_few_samples_on_either_side_is_refused(
    n: int, reference_n: int, refused: dict[str, int]
) -> None:
    result = latency_ratio([5] * n, [5] * reference_n, "d")
    fewer = min(n, reference_n)
    assert result.refused == {
        name: f"needs at least {needed} samples on both sides, has {fewer}"
        for name, needed in refused.items()
    }
    assert result.intervals.keys() == {"p50", "p99"} - refused.keys()
    assert (result.p50 is None, result.p99 is None) == ("p50" in refused, "p99" in refused)


def test_reference_that_took_no_time_is_refused() -> None:
    result = latency_ratio([5] * 500, [0] * 500, "d")
    assert (result.p50, result.p99) == (None, None)
    assert result.refused.keys() == {"p50", "p99"}
    assert "not above zero" in result.refused["p50"]


def test_higher_confidence_is_wider_and_needs_more() -> None:
    samples = (np.random.default_rng(0).permutation(600) + 1).tolist()
    usual, sure = (latency_ratio(samples, samples, "d", confidence=each) for each in (0.95, 0.999))
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


# The priority probe

US = 1_000
FAST, SLOW = [25 * US, 26 * US] * 6, [400 * US, 410 * US] * 6


def judged(urgent_ns: list[int], other_ns: list[int]) -> PriorityEffect:
    given_ns = {"alone_ns": 20 * US, "load_ns": 400 * US}
    return priority_effect("high", "low", urgent_ns, other_ns, **given_ns, requests=10)


@pytest.mark.parametrize(
    ("urgent", "other", "verdict", "effective", "said"),
    [
        (FAST, SLOW, "proven", True, ""),
        ([400 * US, 404 * US] * 6, [404 * US, 400 * US] * 6, "not seen", False,
         "an effect is below 0.8×"),
        (SLOW, FAST, "not seen", False, ""),
        # A load that holds nothing up.
        ([20 * US, 21 * US] * 6, [22 * US, 20 * US] * 6, "undecided", None,
         "too little for an order to show"),
        ([50 * US, 900 * US] * 4, [400 * US] * 8, "undecided", None,
         "all of it must be below 0.8×"),
        (FAST[: LEAST_ROUNDS - 1], SLOW[: LEAST_ROUNDS - 1], "undecided", None,
         f"in {LEAST_ROUNDS - 1} rounds"),
    ],
)  # fmt: skip
def test_verdict_of_the_priority_probe(
    urgent: list[int], other: list[int], verdict: str, effective: bool | None, said: str
) -> None:
    found = judged(urgent, other)
    assert (found.verdict, found.effective) == (verdict, effective)
    assert said in found.reason
    if verdict == "proven":
        assert found.ratio == pytest.approx(0.0629, rel=1e-2)
        assert found.described.startswith("high's small kernels took 0.063")
    else:
        assert found.described == found.reason
    if len(urgent) < LEAST_ROUNDS:
        assert (found.ratio, found.interval) == (None, None)


_TIMES = st.integers(min_value=US, max_value=10**9)


@given(st.lists(st.tuples(_TIMES, _TIMES), min_size=LEAST_ROUNDS, max_size=20))
def test_only_an_interval_below_the_margin_proves(rounds: list[tuple[int, int]]) -> None:
    found = judged([urgent for urgent, _ in rounds], [other for _, other in rounds])
    assert found.ratio is not None
    assert found.interval is not None
    low, high = found.interval
    assert low * (1 - 1e-9) <= found.ratio <= high * (1 + 1e-9)
    assert (found.verdict == "proven") == (high < PROVING)
    assert found.verdict != "not seen" or low > PROVING
    assert bool(found.reason) == (found.verdict != "proven")


def test_an_effect_just_at_the_margin_is_seldom_called_proven() -> None:
    random = np.random.default_rng(1)
    tries = 4000
    proven = 0
    for _ in range(tries):
        urgent = 400 * US * PROVING * random.lognormal(0, 0.2, 12)
        other = 400 * US * random.lognormal(0, 0.2, 12)
        rounds = [[round(value) for value in side] for side in (urgent, other)]
        proven += judged(*rounds).verdict == "proven"
    # One-sided; three standard deviations of the count above what is allowed.
    allowed = tries * (1 - CONFIDENCE) / 2
    assert proven <= allowed + 3 * allowed**0.5
