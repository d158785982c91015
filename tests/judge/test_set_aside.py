"""Runs set aside: the choice, its limits, and the exact test that follows it."""

from __future__ import annotations

import math
import random
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.judge.look import FigureEvidence, weigh
from pytest_hwqueue.judge.runs import (
    gaps_spread,
    isolated,
    least_spread,
    most_set_aside,
    pairs_separation,
    separation,
)
from pytest_hwqueue.judge.verdict import GateSettings

QUIET = [0.00, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.10]
WIDE = [0.3 * value for value in range(12)]
# Five times the spread of halves of 5 and 6 equal steps: the noise makes such a gap.
GAP = WIDE[-1] + 5 * 0.3 * math.sqrt(27.5 / 9)


def weighed(x: list[float], y: list[float]) -> FigureEvidence:
    return weigh([*x, *y], ["old"] * len(x) + ["new"] * len(y), len(x), GateSettings())


@given(st.integers(1, 300), st.integers(2, 300))
def test_a_whole_side_is_never_set_aside(runs: int, new_runs: int) -> None:
    """However slow all new runs are, no end of the pooled runs that may be taken holds them all."""
    most = most_set_aside(runs, new_runs)
    assert 1 <= most < new_runs
    assert most == 1 or (10 * most <= runs + new_runs and 4 * most <= min(runs, new_runs))
    assert [most_set_aside(*each) for each in ((10, 15), (20, 20), (200, 15))] == [2, 4, 3]


@pytest.mark.parametrize(
    ("values", "most", "found"),
    [
        ([*QUIET, 2.3], 1, {11}),
        ([*QUIET, -2.3], 1, {11}),
        ([*QUIET, 2.3, -2.3], 1, {11, 12}),
        ([*QUIET, 0.249], 1, set()),
        ([*QUIET, 0.251], 1, {11}),
        # Two near each other are a second mode, where one is allowed.
        ([*QUIET, 2.3, 2.4], 1, set()),
        ([*QUIET, 2.3, 2.4], 2, {11, 12}),
        ([*QUIET, 0.8, 2.4], 2, {11, 12}),
        ([*QUIET, 0.15, 2.4], 2, {12}),
        # Exactly what is needed at least.
        ([0.0] * 11 + [0.15], 1, set()),
        ([*WIDE, GAP - 0.01], 1, set()),
        ([*WIDE, GAP + 0.01], 1, {12}),
        ([0.0, 5.0], 1, set()),
    ],
)
def test_isolated(values: list[float], most: int, found: set[int]) -> None:
    assert isolated(values, most) == found
    # It depends on the values alone, not on where they stand.
    backwards = isolated(values[::-1], most)
    assert {len(values) - 1 - i for i in backwards} == found


def test_wide_normal_noise_seldom_loses_a_run() -> None:
    rng = random.Random(1)
    lost = [bool(isolated([rng.gauss(0, 0.5) for _ in range(18)], 1)) for _ in range(1000)]
    assert sum(lost) < 60


@settings(max_examples=40)
@given(
    st.lists(
        st.floats(-0.2, 0.2) | st.sampled_from([0.0, 2.0, -2.0, 3.0]), min_size=10, max_size=10
    )
)
def test_exact_p_after_it_holds_its_level(values: list[float]) -> None:
    """Of all ways to call 4 of 10 runs new, at most a share p has an exact p of p or less."""
    found = []
    for chosen in combinations(range(10), 4):
        old = [value for i, value in enumerate(values) if i not in chosen]
        found.append(weighed(old, [values[i] for i in chosen]).exact())
    for level in (0.01, 0.05, 0.2, 0.5):
        assert sum(p <= level for p in found) <= level * len(found) + 1e-9


def test_without_it_one_wild_run_costs_the_test_its_power() -> None:
    old, new = QUIET[:10], [0.3 + value for value in QUIET[:7]]
    assert weighed([*old[:9], 2.0], new).exact() == pytest.approx(1 / math.comb(16, 7))
    assert weighed(old, [*new, 3.0]).exact() == pytest.approx(1 / math.comb(17, 7))


@given(st.lists(st.floats(-0.05, 0.05), min_size=20, max_size=20), st.floats(0.5, 7))
def test_spread_does_not_see_a_shift(values: list[float], shift: float) -> None:
    shifted = [value + shift * (i % 2) for i, value in enumerate(values)]
    assert least_spread(shifted) <= 0.1 / math.sqrt(2)
    assert least_spread(values) == pytest.approx(least_spread([v + 9 for v in values]), abs=1e-6)


def test_of_five_pairs_one_that_lies_apart_is_set_aside_and_of_four_none() -> None:
    x, y = [0.0] * 5, [0.01, 0.0, 0.02, 0.01, 3.0]
    paired = GateSettings(paired=True)
    for pairs, aside in ((5, {("new", 5)}), (4, set())):
        old, new = x[-pairs:], y[-pairs:]
        found = weigh([*old, *new], ["s"] * 2 * pairs, pairs, paired)
        assert {(each.side, each.number) for each in found.aside} == aside


def test_one_pair_has_no_spread() -> None:
    assert gaps_spread([]) == gaps_spread([0.3]) == 0.0
    assert gaps_spread([0.0, 1.0]) == pytest.approx(0.5)


def test_more_runs_than_the_last_look_are_never_futile() -> None:
    settings = GateSettings(first_runs=2, looks=(4,), weights=(1.0,))
    lower = [value - 0.5 for value in QUIET]
    weighed = {
        new: weigh([*QUIET, *lower[:new]], ["s"] * (11 + new), 11, settings).futile
        for new in (2, 4, 6)
    }
    assert weighed == {2: True, 4: False, 6: False}


def test_two_levels_are_so_many_standard_deviations_apart() -> None:
    assert separation([0.0, 7.0, 2.0, 5.0], 2, 0.005) == pytest.approx(5 / math.sqrt(2))
    assert separation([0.0, 1.0, 2.0, 5.0], 2, 2.0) == pytest.approx(1.5)
    assert separation([0.0, 1.0], 1, 0.005) == separation([1.0] * 3 + [2.0], 1, 0.005) == 5.0
    assert separation([0.0, 1.0], 0, 0.005) == separation([0.0, 1.0], 2, 0.005) == 0.0
    assert pairs_separation([0.0] * 3, [1.0, -3.0, 2.0], 0.005) == pytest.approx(2 * math.sqrt(2))
