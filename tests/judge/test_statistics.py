"""Tests of differences equal what listing, scipy or the definition gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control, t, ttest_ind, ttest_rel

from pytest_hwqueue.judge.statistics import (
    GRID,
    compare,
    compare_pairs,
    least_p,
    permutation_p,
    rejected,
    session_share,
    sign_flip_p,
    turns,
)

# Few distinct values make ties, and a wild one makes the rounding coarse.
LUMPY = st.lists(st.sampled_from([0.0, 0.1, 0.1001, 0.2, 1.0, 50.0]), min_size=1, max_size=5)
SIDES = st.lists(st.floats(-5, 5), min_size=1, max_size=5) | LUMPY
PAIRS = st.lists(st.tuples(st.integers(-20, 20), st.integers(-20, 20)), min_size=1, max_size=9)
RUNS = st.lists(st.floats(-1, 1), min_size=2, max_size=12).filter(lambda v: np.ptp(v) > 0.1)
P_VALUES = st.lists(
    st.floats(1e-7, 1) | st.sampled_from([0.001, 0.002, 0.01, 1.0]), min_size=1, max_size=30
)


def _by_listing(x: Sequence[float], y: Sequence[float]) -> float:
    values = [*x, *y]
    least, span = min(values), max(values) - min(values)
    if not span:
        return 1.0
    if min(y) > max(x):
        return 1 / math.comb(len(values), len(y))
    steps = [round((value - least) / span * GRID) for value in values]
    sums = [sum(chosen) for chosen in combinations(steps, len(y))]
    return sum(total >= sum(steps[len(x) :]) for total in sums) / len(sums)


@given(SIDES, SIDES)
def test_permutation_p_counts_every_relabelling(x: list[float], y: list[float]) -> None:
    assert permutation_p(x, y) == pytest.approx(_by_listing(x, y), rel=1e-12)


@given(st.integers(1, 12), st.integers(1, 15))
def test_disjoint_runs_have_the_least_p_and_equal_ones_the_most(old: int, new: int) -> None:
    p = permutation_p([float(i) for i in range(old)], [100.0 + i**3 for i in range(new)])
    assert p == least_p(old, new, paired=False) == pytest.approx(1 / math.comb(old + new, old))
    assert permutation_p([1.0] * old, [1.0] * new) == 1.0


@given(PAIRS)
def test_sign_flip_p_counts_every_way_to_call_one_run_of_a_pair_new(
    pairs: list[tuple[int, int]],
) -> None:
    differences = [new - old for old, new in pairs]
    most = max(1, *map(abs, differences))
    steps = [round(abs(d) / most * GRID) * (1 if d > 0 else -1) for d in differences]
    ways = list(product((1, -1), repeat=len(pairs)))
    found = [sum(s * d for s, d in zip(way, steps, strict=True)) for way in ways]
    expected = sum(each >= sum(steps) for each in found) / len(ways)
    assert sign_flip_p(*zip(*pairs, strict=True)) == pytest.approx(expected, rel=1e-12)


def test_the_least_sign_flip_p_halves_with_every_pair() -> None:
    for pairs in (1, 7, 14, 60):
        assert sign_flip_p([0.0] * pairs, [1e-9, *[1.0] * (pairs - 1)]) == 0.5**pairs
    assert sign_flip_p([1.0] * 9, [1.0] * 9) == 1.0


@given(RUNS, RUNS)
def test_without_session_term_it_is_the_pooled_t_in_any_order(
    x: list[float], y: list[float]
) -> None:
    difference = compare(x, y, 1e-9, 1.0)
    expected = ttest_ind(y, x, alternative="greater")
    assert difference.p_above(0) == pytest.approx(expected.pvalue, rel=1e-6)
    assert difference.p_below(0) == pytest.approx(1 - expected.pvalue, rel=1e-6, abs=1e-12)
    interval = ttest_ind(y, x).confidence_interval(0.95)
    assert difference.interval(0, 0.95) == pytest.approx((interval.low, interval.high))
    assert compare(x[::-1], sorted(y), 1e-9, 1.0) == difference


@given(RUNS)
def test_pairs_are_compared_by_the_paired_t(x: list[float]) -> None:
    y = [value + 0.1 + 0.3 * math.sin(i) for i, value in enumerate(x)]
    expected = ttest_rel(y, x, alternative="greater")
    assert compare_pairs(x, y, 1e-9).p_above(0) == pytest.approx(expected.pvalue, rel=1e-6)


def test_session_term_adds_to_the_error() -> None:
    share = session_share(["a", "a", "a"]) + session_share(["a", "b", "b", "c"])
    assert share == pytest.approx(1 + 6 / 16)
    difference = compare([0.0, 0.02, 0.04], [0.05, 0.07], 0.005, share)
    of_runs = difference.sd**2 * (1 / 3 + 1 / 2)
    error = math.sqrt(of_runs + 0.01**2 * share)
    assert difference.error(0.01) == pytest.approx(error)
    # Only the sd is estimated, so that the greater tau, the nearer is t to the normal distribution.
    expected = float(t.sf(difference.mean / error, 3 * (error**2 / of_runs) ** 2))
    assert difference.p_above(0.01) == pytest.approx(expected)
    # Noise below the floor is not believed.
    assert compare([0.0, 0.0], [0.001, 0.001], 0.005, 1.0).sd == 0.005


# Irrational rates, so that no p stands exactly on a threshold.
@given(P_VALUES, st.sampled_from([math.pi / 314, math.e / 50]), st.integers(0, 50))
def test_cells_are_rejected_as_benjamini_and_hochberg_do(
    values: list[float], rate: float, others: int
) -> None:
    adjusted = false_discovery_control([*values, *[1.0] * others])
    expected = {str(i) for i in range(len(values)) if adjusted[i] <= rate}
    p_values = {str(i): p for i, p in enumerate(values)}
    assert rejected(p_values, rate, len(values) + others) == expected


def test_a_p_on_its_threshold_is_rejected_and_too_few_cells_are_refused() -> None:
    assert rejected({"a": 0.005, "b": 0.02}, 0.01, 2) == {"a"}
    assert rejected({"a": 0.01, "b": 0.01}, 0.01, 2) == {"a", "b"}
    assert rejected({}, 0.01, 1) == set()
    with pytest.raises(ValueError, match="at least the 2 p-values, is 1"):
        rejected({"a": 0.1, "b": 0.2}, 0.01, 1)


def test_every_second_round_runs_backwards_so_that_a_drift_falls_on_all_alike() -> None:
    assert turns("AB", 2) == [(1, "A"), (1, "B"), (2, "B"), (2, "A")]
    assert "".join(item for _, item in turns("ABC", 3)) == "ABCCBAABC"
    assert len(turns("A", 1)) == 1
    for items, rounds in (("", 1), ("A", 0)):
        with pytest.raises(ValueError, match="must be"):
            turns(items, rounds)
