"""Runs set aside: the choice, its limits, and the exact test that follows it."""

from __future__ import annotations

import math
import random
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.gate.look import FigureEvidence, Figures, weigh
from pytest_hwqueue.gate.runs import isolated, least_spread, most_set_aside, short_runs
from pytest_hwqueue.gate.verdict import GateSettings

SETTINGS = GateSettings()
QUIET = [0.00, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.10]


def weighed(x: list[float], y: list[float]) -> FigureEvidence:
    figures = Figures(tuple(x), tuple(y), ("old",) * len(x), ("new",) * len(y))
    return weigh(figures, SETTINGS)


@pytest.mark.parametrize(
    ("runs", "new_runs", "most"),
    [(5, 2, 1), (10, 2, 1), (10, 8, 1), (10, 15, 2), (12, 12, 2), (20, 20, 4), (200, 15, 3)],
)
def test_how_many_at_most(runs: int, new_runs: int, most: int) -> None:
    assert most_set_aside(runs, new_runs) == most


@given(st.integers(1, 300), st.integers(2, 300))
def test_a_whole_side_is_never_set_aside(runs: int, new_runs: int) -> None:
    """However slow all new runs are, no end of the pooled runs that may be taken holds them all."""
    assert most_set_aside(runs, new_runs) < new_runs


@pytest.mark.parametrize(
    ("wild", "found"),
    [
        ([2.3], {11}),
        ([-2.3], {11}),
        ([2.3, -2.3], {11, 12}),
        ([0.24], set()),  # a gap of 0.14
        ([0.26], {11}),
        ([2.3, 2.4], set()),  # two near each other are a second mode, where one is allowed
    ],
)
def test_isolated(wild: list[float], found: set[int]) -> None:
    assert isolated([*QUIET, *wild], 1) == found


def test_several_at_one_end() -> None:
    assert isolated([*QUIET, 2.3, 2.4], 2) == {11, 12}
    assert isolated([*QUIET, 0.8, 2.4], 2) == {11, 12}
    assert isolated([*QUIET, 0.15, 2.4], 2) == {12}


def test_a_gap_that_the_noise_makes_isolates_nothing() -> None:
    noisy = [0.3 * value for value in range(12)]
    limit = 5 * least_spread(noisy[1:])
    assert limit == pytest.approx(5 * 0.3 * math.sqrt(27.5 / 9))  # halves of 5 and 6 equal steps
    assert isolated([*noisy, noisy[-1] + limit - 0.01], 1) == set()
    assert isolated([*noisy, noisy[-1] + limit + 0.01], 1) == {12}


def test_wide_normal_noise_seldom_loses_a_run() -> None:
    rng = random.Random(1)
    lost = [bool(isolated([rng.gauss(0, 0.5) for _ in range(18)], 1)) for _ in range(1000)]
    assert sum(lost) < 60


def test_two_values_are_too_few() -> None:
    assert isolated([0.0, 5.0], 1) == set()


@given(st.lists(st.floats(-3, 3), min_size=3, max_size=25), st.randoms(use_true_random=False))
def test_the_choice_depends_on_the_pooled_values_alone(
    values: list[float], rng: random.Random
) -> None:
    order = list(range(len(values)))
    rng.shuffle(order)
    shuffled = isolated([values[i] for i in order], 2)
    assert sorted(values[order[i]] for i in shuffled) == sorted(
        values[i] for i in isolated(values, 2)
    )


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
        evidence = weighed(old, [values[i] for i in chosen])
        found.append(evidence.exact())
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


# ------------------------------------------------------------------ short runs
def test_short_runs() -> None:
    nothing: frozenset[int] = frozenset()
    assert short_runs([1000] * 10, [1000, 400]) == (nothing, frozenset({1}))
    assert short_runs([1000] * 9 + [290], [1000] * 2) == (frozenset({9}), nothing)
    assert short_runs([1000] * 10, [1000, 500]) == (nothing, nothing)
    assert short_runs([1000] * 10, []) == (nothing, nothing)


@given(st.integers(3, 100), st.integers(2, 40), st.integers(1, 499))
def test_new_runs_that_are_all_short_are_not_set_aside(runs: int, new_runs: int, n: int) -> None:
    assert short_runs([1000] * runs, [n] * new_runs) == (frozenset(), frozenset())
