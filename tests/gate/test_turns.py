"""Turns: each item once in each round, and a steady drift falls on all alike."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.gate.statistics import turns


def letters(items: str, rounds: int) -> str:
    return "".join(item for _, item in turns(items, rounds))


def test_every_second_round_runs_backwards() -> None:
    assert turns("AB", 2) == [(1, "A"), (1, "B"), (2, "B"), (2, "A")]
    assert letters("ABC", 3) == "ABCCBAABC"


@given(st.sets(st.text(min_size=1), min_size=1, max_size=6), st.integers(1, 20))
def test_each_has_one_turn_in_each_round(names: set[str], rounds: int) -> None:
    order = turns(sorted(names), rounds)
    assert [number for number, _ in order] == sorted(number for number, _ in order)
    assert Counter(order) == {(r, name): 1 for r in range(1, rounds + 1) for name in names}


@given(st.integers(1, 6), st.integers(1, 10))
def test_a_steady_drift_falls_on_all_alike(count: int, pairs: int) -> None:
    order = turns(range(count), 2 * pairs)
    drift = {name: sum(when for when, (_, one) in enumerate(order) if one == name)
             for name in range(count)}  # fmt: skip
    assert len(set(drift.values())) == 1


@pytest.mark.parametrize(("items", "rounds"), [("", 1), ("A", 0)])
def test_what_gives_no_order(items: str, rounds: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        turns(items, rounds)
