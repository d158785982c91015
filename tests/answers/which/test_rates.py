"""The rates that a capacity search tries: it ends, and its bracket holds the truth."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.answers.which.rates import (
    RateVerdict,
    bracket,
    first_index,
    make_grid,
    next_index,
)
from pytest_hwqueue.data.errors import BadOption

GRID = make_grid(20.0, 0.1, 20 / 16, 20 * 64)


def verdict_at(index: int, truth: float, blur: int) -> RateVerdict:
    if abs(index - truth) <= blur:
        return "undecided"
    return "held" if index < truth else "broken"


def searched(
    truth: float, blur: int, first: int, windows: int = 4
) -> tuple[dict[int, RateVerdict], dict[int, int]]:
    """What a search finds whose figures cross their bound at ``truth``, and its windows."""
    verdicts: dict[int, RateVerdict] = {}
    counts: dict[int, int] = {}
    meets: dict[int, bool] = {}
    while (index := next_index(GRID, verdicts, meets, first)) is not None:
        assert index not in verdicts
        assert GRID.least <= index <= GRID.most
        counts[index] = counts.get(index, 0) + 1
        meets[index] = index < truth
        verdict = verdict_at(index, truth, blur)
        if verdict != "undecided" or counts[index] == windows:
            verdicts[index] = verdict
    return verdicts, counts


@given(st.floats(-60, 80), st.integers(0, 3), st.floats(0.1, 1e5))
def test_search_ends_with_neighbours_round_the_truth(
    truth: float, blur: int, served_per_s: float
) -> None:
    verdicts, counts = searched(truth, blur, first_index(GRID, served_per_s))
    low, high = bracket(verdicts)
    assert len(counts) <= 24
    if low is not None and high is not None:
        assert low < truth < high
        assert {verdict_at(i, truth, blur) for i in range(low + 1, high)} <= {"undecided"}
    elif low is None:
        assert truth <= GRID.least + blur
    else:
        assert truth >= GRID.most - blur


@given(st.integers(GRID.least, GRID.most))
def test_a_mode_that_is_broken_at_the_lowest_rate_is_tried_at_few_others(first: int) -> None:
    verdicts, counts = searched(GRID.least - 0.5, 0, first)
    # By halves it would be up to ten.
    assert len(counts) <= 5
    assert set(counts.values()) == {1}
    assert bracket(verdicts) == (None, GRID.least)


def test_a_search_that_begins_at_the_lowest_rate_ends_at_once_if_it_breaks() -> None:
    verdicts, counts = searched(GRID.least - 0.5, 0, GRID.least)
    assert (verdicts, counts) == ({GRID.least: "broken"}, {GRID.least: 1})


@given(st.floats(-20, 40), st.integers(0, 3))
def test_a_coarse_bracket_comes_early(truth: float, blur: int) -> None:
    # First a window of each rate until it is known where goals break, then a rate on either side.
    first = math.floor(truth / GRID.steps) * GRID.steps
    meets: dict[int, bool] = {}
    while (index := next_index(GRID, {}, meets, first)) not in meets:
        assert index is not None
        meets[index] = index < truth
    assert len(meets) <= 5
    assert max(i for i, met in meets.items() if met) >= truth - 3
    verdicts: dict[int, RateVerdict] = {}
    while None in bracket(verdicts):
        index = next_index(GRID, verdicts, meets, first)
        assert index is not None
        meets[index] = index < truth
        verdicts[index] = verdict_at(index, truth, blur)
    assert len(verdicts) <= 5


def test_where_the_least_rate_stays_undecided_the_search_goes_up() -> None:
    coarse = make_grid(100.0, 1.0, 100.0, 6400.0)
    assert (coarse.steps, coarse.least, coarse.most) == (1, 0, 6)
    assert next_index(coarse, {0: "undecided"}, {0: False}, 0) == 1
    # Up to the last, and no further.
    undecided: dict[int, RateVerdict] = dict.fromkeys(range(7), "undecided")
    assert next_index(coarse, undecided, dict.fromkeys(range(7), False), 0) is None


@given(st.dictionaries(st.integers(GRID.least, GRID.most), st.sampled_from(["held", "broken"])))
def test_contradictions_end_at_the_lowest_rate_that_broke(
    verdicts: dict[int, RateVerdict],
) -> None:
    low, high = bracket(verdicts)
    assert high == min((i for i, each in verdicts.items() if each == "broken"), default=None)
    assert low is None or high is None or low < high


def test_grid_is_as_fine_as_asked() -> None:
    grid = make_grid(20.0, 0.1, 10.0, 40.0)
    rates = [grid.rate_per_s(i) for i in range(grid.least, grid.most + 1)]
    assert (rates[0], rates[-1], grid.rate_per_s(0)) == (10.0, 40.0, 20.0)
    assert all(b / a <= 1.1 for a, b in pairwise(rates))
    with pytest.raises(BadOption, match="starts at 50/s"):
        make_grid(50.0, 0.1, 10.0, 40.0)


@given(st.floats(0.1, 1e5))
def test_search_begins_at_a_quarter_to_half_of_what_is_served_alone(served_per_s: float) -> None:
    first = first_index(GRID, served_per_s)
    assert first % GRID.steps == 0 or first in (GRID.least, GRID.most)
    if GRID.least < first < GRID.most:
        assert served_per_s / 4 < GRID.rate_per_s(first) * 1.0001
        assert GRID.rate_per_s(first) < served_per_s / 2 * 1.0001
