"""What is left is what counting all tests again would give, at a cost that does not grow."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.plugin.budget import TimeLeft

NAMES = ("a", "b", "c", "d")
SECONDS = st.floats(0.001, 1000)


def counted_again(
    runs: dict[str, int], earlier_s: dict[str, float], ended: list[tuple[str, float]]
) -> float | None:
    """The time left, from the beginning."""
    took_s = dict(ended)
    ran = Counter(name for name, _ in ended)
    left_s = 0.0
    for name, planned in runs.items():
        left = max(0, planned - ran[name])
        expected = took_s.get(name, earlier_s.get(name))
        if expected is None and left and not took_s:
            return None
        if expected is None:
            expected = sum(took_s.values()) / len(took_s) if took_s else 0.0
        left_s += left * expected
    return left_s


@given(
    st.dictionaries(st.sampled_from(NAMES), st.integers(1, 4), min_size=1),
    st.dictionaries(st.sampled_from(NAMES), SECONDS),
    st.lists(st.tuples(st.sampled_from(NAMES), SECONDS), max_size=20),
)
def test_as_counted_again(
    runs: dict[str, int], earlier_s: dict[str, float], ended: list[tuple[str, float]]
) -> None:
    left = TimeLeft(runs, earlier_s)
    for number, (name, seconds) in enumerate(ended):
        assert left.in_all_s() == approximately(counted_again(runs, earlier_s, ended[:number]))
        left.ended(name, seconds)
    assert left.in_all_s() == approximately(counted_again(runs, earlier_s, ended))
    assert (left.done, left.planned) == (len(ended), sum(runs.values()))
    assert left.took_s == dict(ended)


def approximately(seconds: float | None) -> Any:
    return None if seconds is None else pytest.approx(seconds, rel=1e-9, abs=1e-6)


class Asked(dict[str, float]):
    """Counts how often a test is looked up."""

    times = 0

    def get(self, *arguments: Any) -> Any:
        self.times += 1
        return super().get(*arguments)


@pytest.mark.parametrize("tests", [10, 10_000])
def test_a_step_costs_the_same_however_many_tests_there_are(tests: int) -> None:
    asked = Asked()
    left = TimeLeft({str(number): 1 for number in range(tests)}, asked)
    left.ended("0", 1.0)
    asked.times = 0
    left.ended("1", 3.0)
    assert left.in_all_s() == (tests - 2) * 2.0
    assert left.expected_s("2") == 2.0
    assert asked.times <= 3
