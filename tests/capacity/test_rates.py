"""The rates that a capacity search tries: it ends, and its bracket holds the truth."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.capacity.rates import (
    RateVerdict,
    bracket,
    first_index,
    make_grid,
    next_index,
    planned_windows,
)
from pytest_hwqueue.errors import BadOption

GRID = make_grid(20.0, 0.1, 20 / 16, 20 * 64)


def verdict_at(index: int, truth: float, blur: int) -> RateVerdict:
    if abs(index - truth) <= blur:
        return "undecided"
    return "held" if index < truth else "broken"


@given(st.floats(-60, 80), st.integers(0, 3), st.floats(0.1, 1e5))
def test_search_ends_with_neighbours_round_the_truth(
    truth: float, blur: int, served_per_s: float
) -> None:
    verdicts: dict[int, RateVerdict] = {}
    first = first_index(GRID, served_per_s)
    while (index := next_index(GRID, verdicts, first)) is not None:
        assert index not in verdicts
        assert GRID.least <= index <= GRID.most
        verdicts[index] = verdict_at(index, truth, blur)
    low, high = bracket(verdicts)
    assert len(verdicts) <= 24
    if low is not None and high is not None:
        assert low < truth < high
        assert {verdict_at(i, truth, blur) for i in range(low + 1, high)} <= {"undecided"}
    elif low is None:
        assert truth <= GRID.least + blur
    else:
        assert truth >= GRID.most - blur


@given(st.dictionaries(st.integers(GRID.least, GRID.most), st.sampled_from(["held", "broken"])))
def test_contradictions_end_at_the_lowest_rate_that_broke(
    verdicts: dict[int, RateVerdict],
) -> None:
    low, high = bracket(verdicts)
    assert high == min((i for i, each in verdicts.items() if each == "broken"), default=None)
    assert low is None or high is None or low < high


def test_grid_is_as_fine_as_asked_and_a_usual_search_spends_its_windows_next_to_the_edge() -> None:
    grid = make_grid(20.0, 0.1, 10.0, 40.0)
    rates = [grid.rate_per_s(i) for i in range(grid.least, grid.most + 1)]
    assert (rates[0], rates[-1], grid.rate_per_s(0)) == (10.0, 40.0, 20.0)
    assert all(b / a <= 1.1 for a, b in pairwise(rates))
    with pytest.raises(BadOption, match="starts at 50/s"):
        make_grid(50.0, 0.1, 10.0, 40.0)
    for first in (0, 4 * GRID.steps):
        rate = GRID.rate_per_s(first)
        assert {
            count
            for each, count in planned_windows(GRID, 6, first)
            if not 0.75 < each / rate < 1.25
        } == {1}


@given(st.floats(0.1, 1e5))
def test_search_begins_at_a_quarter_to_half_of_what_is_served_alone(served_per_s: float) -> None:
    first = first_index(GRID, served_per_s)
    assert first % GRID.steps == 0 or first in (GRID.least, GRID.most)
    if GRID.least < first < GRID.most:
        assert served_per_s / 4 < GRID.rate_per_s(first) * 1.0001
        assert GRID.rate_per_s(first) < served_per_s / 2 * 1.0001
