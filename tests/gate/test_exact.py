"""Exact p-values: equal to listing every relabelling, and valid whatever the values are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import permutation_test

from pytest_hwqueue.gate.statistics import GRID, permutation_floor, permutation_p, sign_flip_p

FEW = st.lists(st.floats(-5, 5), min_size=1, max_size=5)
# Few distinct values make ties, and a wild one makes the rounding coarse.
LUMPY = st.lists(st.sampled_from([0.0, 0.1, 0.1001, 0.2, 1.0, 50.0]), min_size=1, max_size=5)
SIDES = FEW | LUMPY


def _rounded(values: Sequence[float]) -> list[int]:
    least, span = min(values), max(values) - min(values)
    return [round((value - least) / span * GRID) for value in values]


def _by_listing(x: Sequence[float], y: Sequence[float]) -> float:
    values = [*x, *y]
    if min(values) == max(values):
        return 1.0
    if min(y) > max(x):
        return 1 / math.comb(len(values), len(y))
    steps = _rounded(values)
    observed = sum(steps[len(x) :])
    sums = [sum(chosen) for chosen in combinations(steps, len(y))]
    return sum(total >= observed for total in sums) / len(sums)


@given(SIDES, SIDES)
def test_permutation_p_counts_every_relabelling(x: list[float], y: list[float]) -> None:
    assert permutation_p(x, y) == pytest.approx(_by_listing(x, y), rel=1e-12)


WHOLE = st.lists(st.integers(0, GRID), min_size=2, max_size=6)


@settings(max_examples=40)
@given(WHOLE, WHOLE)
def test_permutation_p_is_scipys_where_nothing_is_rounded(x: list[int], y: list[int]) -> None:
    x, y = [0, *x], [*y, GRID]

    def sum_of_second(first: Sequence[int], second: Sequence[int]) -> float:
        return float(sum(second))

    expected = permutation_test(
        (x, y), sum_of_second, alternative="greater", n_resamples=10**9, vectorized=False
    )
    assert permutation_p(x, y) == pytest.approx(float(expected.pvalue), rel=1e-9)


@settings(max_examples=40)
@given(st.lists(st.floats(-3, 3), min_size=3, max_size=8) | LUMPY, st.data())
def test_share_of_relabellings_with_small_p_is_small(
    values: list[float], data: st.DataObject
) -> None:
    """P(p <= a) <= a for every a, given the values and whatever they are: no simulation."""
    values = [*values, 0.5]
    size = data.draw(st.integers(1, len(values) - 1))
    numbers = range(len(values))
    p_values = []
    for chosen in combinations(numbers, size):
        y = [values[i] for i in chosen]
        x = [values[i] for i in numbers if i not in chosen]
        p_values.append(permutation_p(x, y))
    for p in p_values:
        assert sum(other <= p for other in p_values) / len(p_values) <= p * (1 + 1e-12)


@given(st.integers(1, 12), st.integers(1, 15))
def test_disjoint_runs_have_the_least_p(runs: int, new_runs: int) -> None:
    x = [float(i) for i in range(runs)]
    y = [100.0 + i**3 for i in range(new_runs)]
    floor = 1 / math.comb(runs + new_runs, runs)
    assert permutation_p(x, y) == permutation_floor(runs, new_runs) == pytest.approx(floor)


def test_known_value() -> None:
    # Of the 10 pairs among 0 1 2 3 4, four have a sum of at least 2 + 3.
    assert permutation_p([0.0, 1.0, 4.0], [2.0, 3.0]) == pytest.approx(4 / 10)


def test_equal_runs_are_no_evidence() -> None:
    assert permutation_p([1.0] * 10, [1.0] * 15) == 1.0


@given(
    st.lists(st.integers(0, GRID), min_size=3, max_size=9),
    st.lists(st.integers(0, GRID), min_size=1, max_size=9),
    st.data(),
)
def test_a_larger_new_value_is_more_evidence(
    x: list[int], y: list[int], data: st.DataObject
) -> None:
    x = [0, GRID, *x]  # fixes the range, so that nothing is rounded
    which = data.draw(st.integers(0, len(y) - 1))
    larger = list(y)
    larger[which] = data.draw(st.integers(y[which], GRID))
    assert permutation_p(x, larger) <= permutation_p(x, y) * (1 + 1e-12)


@given(SIDES, SIDES)
def test_order_of_runs_does_not_matter(x: list[float], y: list[float]) -> None:
    p = permutation_p(x, y)
    assert permutation_p(x[::-1], sorted(y)) == pytest.approx(p, rel=1e-12)


PAIRS = st.lists(st.tuples(st.integers(-20, 20), st.integers(-20, 20)), min_size=1, max_size=9)


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


@given(st.lists(st.floats(-1, 1), min_size=8, max_size=8), st.sampled_from([0.01, 0.05, 0.3]))
def test_sign_flips_hold_the_level(differences: list[float], level: float) -> None:
    alarms = 0
    for way in product((1, -1), repeat=8):
        flipped = [s * d for s, d in zip(way, differences, strict=True)]
        alarms += sign_flip_p([0.0] * 8, flipped) <= level
    assert alarms / 2**8 <= level


def test_the_least_sign_flip_p_halves_with_every_pair() -> None:
    for pairs in (1, 7, 14, 60):
        assert sign_flip_p([0.0] * pairs, [1e-9, *[1.0] * (pairs - 1)]) == 0.5**pairs
    assert sign_flip_p([1.0] * 9, [1.0] * 9) == 1.0
