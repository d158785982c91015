"""Turns of noises."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.noise.interleave import interleaved


def letters(turns: list[tuple[int, str]]) -> str:
    return "".join(noise for _, noise in turns)


def test_rounds_follow_one_another() -> None:
    assert interleaved("ABC", 2) == [(1, "A"), (1, "B"), (1, "C"), (2, "A"), (2, "B"), (2, "C")]


def test_mirrored() -> None:
    assert letters(interleaved("ABC", 3, mirrored=True)) == "ABCCBAABC"
    assert letters(interleaved("AB", 2, mirrored=True)) == "ABBA"


@given(st.sets(st.text(min_size=1), min_size=1, max_size=6), st.integers(1, 20), st.booleans())
def test_each_has_one_turn_in_each_round(noises: set[str], rounds: int, mirrored: bool) -> None:
    turns = interleaved(sorted(noises), rounds, mirrored=mirrored)
    assert [number for number, _ in turns] == sorted(number for number, _ in turns)
    assert Counter(turns) == {(r, n): 1 for r in range(1, rounds + 1) for n in noises}


@given(st.integers(1, 6), st.integers(1, 10))
def test_a_steady_drift_falls_on_all_alike_when_mirrored(noises: int, pairs: int) -> None:
    names = [str(number) for number in range(noises)]
    turns = interleaved(names, 2 * pairs, mirrored=True)
    drift = {
        name: sum(when for when, (_, noise) in enumerate(turns) if noise == name) for name in names
    }
    assert len(set(drift.values())) == 1


@pytest.mark.parametrize(("noises", "rounds"), [([], 1), (["A", "A"], 1), (["A"], 0)])
def test_what_gives_no_order(noises: list[str], rounds: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        interleaved(noises, rounds)
