"""Ratios of latencies hold the truth or are refused; what proves that a priority has an effect."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from pytest_hwqueue.data.metrics.interference import (
    LEAST_ROUNDS,
    PROVING,
    PriorityEffect,
    latency_ratio,
    priority_effect,
)

# Both sides' intervals hold at half the error.
P50_NEEDS, P99_NEEDS = 7, 437


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(P99_NEEDS, P99_NEEDS + 200), st.floats(0, 1))
def test_p99_is_in_its_interval(seed: int, n: int, spread: float) -> None:
    drawn = np.random.default_rng(seed).lognormal(7, spread, (2, n)).round() + 1
    samples, reference = drawn.tolist()
    result = latency_ratio(samples, reference, "d")
    assert result.p50.value == pytest.approx(float(np.median(samples) / np.median(reference)))
    p99 = float(np.quantile(samples, 0.99) / np.quantile(reference, 0.99))
    assert result.p99.value == pytest.approx(p99)
    # So few samples do not show that they are independent, unless all are equal.
    assert (result.p99.interval is None) == bool(result.p99.refused)
    assert 0 <= result.p99.low <= p99 <= result.p99.high
    itself = latency_ratio(samples, samples[::-1], "d")
    assert (itself.p50.value, itself.p99.value) == (1.0, 1.0)
    for low, high in filter(None, (itself.p50.interval, itself.p99.interval)):
        assert low <= 1 <= high
        # The two sides are alike, so the interval is as wide upwards as downwards.
        assert low * high == pytest.approx(1)


@pytest.mark.parametrize(
    ("n", "reference_n", "refused"),
    [
        (0, 0, {"p50": P50_NEEDS, "p99": P99_NEEDS}),
        (1000, P50_NEEDS - 1, {"p50": P50_NEEDS, "p99": P99_NEEDS}),
        (P50_NEEDS, P50_NEEDS, {"p99": P99_NEEDS}),
        (P99_NEEDS - 1, P99_NEEDS, {"p99": P99_NEEDS}),
        (P99_NEEDS, P99_NEEDS, {}),
    ],
)
def test_quantile_with_too_few_samples_on_either_side_is_refused(
    n: int, reference_n: int, refused: dict[str, int]
) -> None:
    result = latency_ratio([5] * n, [5] * reference_n, "d")
    fewer = min(n, reference_n)
    for name, ratio in (("p50", result.p50), ("p99", result.p99)):
        assert (ratio.value is None) == (ratio.interval is None) == (name in refused)
        enough = P50_NEEDS if name == "p50" else 1188
        reason = f"the smaller side has {fewer} samples; {enough} independent ones suffice"
        assert ratio.refused == (reason if name in refused else "")


def test_reference_that_took_no_time_is_refused() -> None:
    result = latency_ratio([5] * 500, [0] * 500, "d")
    for ratio in (result.p50, result.p99):
        assert (ratio.value, "not above zero" in ratio.refused) == (None, True)


# The priority probe

US = 1_000
FAST, SLOW = [25 * US, 26 * US] * 6, [400 * US, 410 * US] * 6


def judged(urgent_ns: list[int], other_ns: list[int]) -> PriorityEffect:
    given_ns = {"alone_ns": 20 * US, "load_ns": 400 * US}
    return priority_effect(("high", "low"), urgent_ns, other_ns, **given_ns, requests=10)


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
    proven = "high's small kernels took 0.0630× [" if verdict == "proven" else found.reason
    assert found.described.startswith(proven)
    few = len(urgent) < LEAST_ROUNDS
    assert (found.ratio is None, found.interval is None) == (few, few)


_TIMES = st.integers(min_value=US, max_value=10**9)


@given(st.lists(st.tuples(_TIMES, _TIMES), min_size=LEAST_ROUNDS, max_size=20))
def test_only_an_interval_below_the_margin_proves(rounds: list[tuple[int, int]]) -> None:
    found = judged([urgent for urgent, _ in rounds], [other for _, other in rounds])
    assert found.ratio is not None
    assert found.interval is not None
    logs = [math.log(urgent / other) for urgent, other in rounds]
    low, high = found.interval
    if low < high:
        theirs = ttest_1samp(logs, 0).confidence_interval(0.99)
        assert found.interval == pytest.approx((math.exp(theirs.low), math.exp(theirs.high)))
    assert found.ratio == pytest.approx(math.exp(np.mean(logs)))
    assert (found.verdict == "proven") == (high < PROVING)
    assert found.verdict != "not seen" or low > PROVING
    assert bool(found.reason) == (found.verdict != "proven")
