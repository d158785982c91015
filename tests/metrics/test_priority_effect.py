"""The verdict of the priority probe: what proves an effect, what refutes it, how often it errs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.metrics.interference import (
    CONFIDENCE,
    LEAST_ROUNDS,
    PROVING,
    PriorityEffect,
    priority_effect,
)

US = 1_000


def judged(urgent_ns: list[int], other_ns: list[int], alone_ns: int = 20 * US) -> PriorityEffect:
    return priority_effect(
        "high", "low", urgent_ns, other_ns, alone_ns=alone_ns, load_ns=400 * US, requests=10
    )


def test_urgent_work_that_is_served_first_is_proven() -> None:
    found = judged([25 * US, 26 * US] * 6, [400 * US, 410 * US] * 6)
    assert (found.verdict, found.effective, found.reason) == ("proven", True, "")
    assert found.ratio == pytest.approx(0.0629, rel=1e-2)
    assert found.described.startswith("high's small kernels took 0.063")


def test_equal_work_is_no_effect() -> None:
    found = judged([400 * US, 404 * US] * 6, [404 * US, 400 * US] * 6)
    assert (found.verdict, found.effective) == ("not seen", False)
    assert found.described == found.reason
    assert "an effect is below 0.8×" in found.reason


def test_urgent_work_that_is_served_last_is_no_effect() -> None:
    assert judged([400 * US, 404 * US] * 6, [25 * US, 26 * US] * 6).verdict == "not seen"


def test_a_load_that_holds_nothing_up_decides_nothing() -> None:
    found = judged([20 * US, 21 * US] * 6, [22 * US, 20 * US] * 6)
    assert (found.verdict, found.effective) == ("undecided", None)
    assert "too little for an order to show" in found.reason


def test_rounds_that_differ_too_much_decide_nothing() -> None:
    found = judged([50 * US, 900 * US] * 4, [400 * US] * 8)
    assert found.verdict == "undecided"
    assert "all of it must be below 0.8×" in found.reason


def test_too_few_rounds_are_refused() -> None:
    found = judged([25 * US] * (LEAST_ROUNDS - 1), [400 * US] * (LEAST_ROUNDS - 1))
    assert (found.verdict, found.ratio, found.interval) == ("undecided", None, None)
    assert f"in {LEAST_ROUNDS - 1} rounds" in found.reason


_TIMES = st.integers(min_value=US, max_value=10**9)


@given(st.lists(st.tuples(_TIMES, _TIMES), min_size=LEAST_ROUNDS, max_size=20))
def test_only_an_interval_below_the_margin_proves(rounds: list[tuple[int, int]]) -> None:
    found = judged([urgent for urgent, _ in rounds], [other for _, other in rounds])
    assert found.ratio is not None
    assert found.interval is not None
    low, high = found.interval
    assert low <= found.ratio * (1 + 1e-9)
    assert found.ratio <= high * (1 + 1e-9)
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
        proven += judged(rounds[0], rounds[1]).verdict == "proven"
    # One-sided; three standard deviations of the count above what is allowed.
    allowed = tries * (1 - CONFIDENCE) / 2
    assert proven <= allowed + 3 * allowed**0.5
