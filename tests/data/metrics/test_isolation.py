"""How much slower, with an interval that holds the truth; and worse is never a better verdict."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.isolation import (
    ClaimVerdict,
    at_most,
    kept_apart,
    mean_ratio,
    slowdown,
)

BOUND = 0.1
ORDER: list[ClaimVerdict] = ["shown", "not decided", "refuted"]
shares = st.floats(-0.9, 10.0)
times_ns = st.lists(st.floats(1e3, 1e9), min_size=2, max_size=9)


def figure(low: float, high: float) -> Estimate:
    return Estimate(value=(low + high) / 2, low=low, high=high, n=5)


@given(times_ns, st.floats(0.1, 10.0))
def test_what_is_as_much_slower_in_every_round_is_known_exactly(
    alone_ns: list[float], ratio: float
) -> None:
    found = slowdown(alone_ns, [each * ratio for each in alone_ns], 0.95)
    for end in (found.value, found.low, found.high):
        assert end == pytest.approx(ratio - 1, abs=1e-6)
    assert found.n == len(alone_ns)


@given(times_ns, st.randoms(use_true_random=False))
def test_both_ways_say_the_same(alone_ns: list[float], random: Random) -> None:
    beside_ns = [each * random.uniform(0.5, 3.0) for each in alone_ns]
    there, back = mean_ratio(beside_ns, alone_ns, 0.95), mean_ratio(alone_ns, beside_ns, 0.95)
    assert float(there) * float(back) == pytest.approx(1)
    assert there.low * back.high == pytest.approx(1)
    assert slowdown(alone_ns, beside_ns, 0.95).low == pytest.approx(there.low - 1)


def test_one_round_has_no_ratio() -> None:
    assert slowdown([1.0], [2.0], 0.95).refused == "1 of at least 2 runs have it"


def test_of_intervals_most_hold_the_truth() -> None:
    random, truth, rounds, draws = np.random.default_rng(1), 0.12, 5, 1000
    held = 0
    for _ in range(draws):
        # What drifts from round to round is in both sides.
        alone_ns = 1e6 * np.exp(random.normal(0, 0.3, rounds))
        beside_ns = alone_ns * (1 + truth) * np.exp(random.normal(0, 0.02, rounds))
        found = slowdown([*alone_ns], [*beside_ns], 0.95)
        held += found.low <= truth <= found.high
    assert 0.93 <= held / draws <= 0.97


@given(shares, st.floats(0, 5), st.floats(0, 5), st.floats(-0.5, 2))
def test_worse_is_never_a_better_verdict(low: float, wide: float, worse: float, bound: float) -> (
    None
):  # fmt: skip
    verdicts = [at_most(figure(low + by, low + by + wide), bound) for by in (0.0, worse)]
    assert ORDER.index(verdicts[0]) <= ORDER.index(verdicts[1])


@given(shares, st.floats(0, 5), shares, st.floats(0, 5))
def test_apart_is_what_would_be_slower_without_the_mode(
    low: float, wide: float, native_low: float, native_wide: float
) -> None:
    slower = figure(low, low + wide)
    native = figure(native_low, native_low + native_wide)
    found = kept_apart(slower, native, BOUND)
    assert (found == "shown") == (low + wide <= BOUND < native_low)
    # Whoever is slower under the mode is not kept apart, whatever native does.
    assert (found == "refuted") == (low > BOUND)


@pytest.mark.parametrize(
    ("slower", "verdict"),
    [
        (figure(0.01, 0.03), "shown"),
        (figure(-0.05, 0.1), "shown"),
        (figure(0.05, 0.11), "not decided"),
        (figure(0.11, 0.12), "refuted"),
        (Estimate(value=0.01), "not decided"),
        (Estimate(refused="nothing was measured"), "not decided"),
        (Estimate(value=0.2, low=0.15), "not decided"),
    ],
)
def test_a_claim_needs_all_of_the_interval(slower: Estimate, verdict: ClaimVerdict) -> None:
    assert kept_apart(slower, figure(0.9, 1.0), BOUND) == verdict


@pytest.mark.parametrize(
    "native", [figure(0.0, 0.05), figure(0.05, 1.0), Estimate(refused="no"), Estimate(value=2.0)]
)
def test_a_stressor_that_slows_nobody_shows_nothing(native: Estimate) -> None:
    assert kept_apart(figure(0.0, 0.02), native, BOUND) == "not decided"
    assert math.isinf(Estimate().high)
