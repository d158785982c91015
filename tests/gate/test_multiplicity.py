"""Benjamini-Hochberg: its definition and scipy's."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control

from pytest_hwqueue.gate.statistics import rejected

P_VALUES = st.lists(
    st.floats(1e-7, 1) | st.sampled_from([0.001, 0.002, 0.01, 1.0]), min_size=1, max_size=30
)


def _by_definition(p_values: dict[str, float], rate: float, cells: int) -> set[str]:
    ranked = sorted(p_values, key=lambda key: p_values[key])
    most = max(
        (k for k in range(1, len(ranked) + 1) if p_values[ranked[k - 1]] <= rate * k / cells),
        default=0,
    )
    return set(ranked[:most])


@given(P_VALUES, st.sampled_from([0.01, 0.05, 0.2]), st.integers(0, 50))
def test_against_its_definition(values: list[float], rate: float, others: int) -> None:
    p_values = {str(i): p for i, p in enumerate(values)}
    found = rejected(p_values, rate, len(values) + others)
    assert found == _by_definition(p_values, rate, len(values) + others)


# Irrational rates, so that no p stands exactly on a threshold.
@given(P_VALUES, st.sampled_from([math.pi / 314, math.e / 50]), st.integers(0, 50))
def test_against_scipy(values: list[float], rate: float, others: int) -> None:
    p_values = {str(i): p for i, p in enumerate(values)}
    adjusted = false_discovery_control([*values, *[1.0] * others])
    expected = {str(i) for i in range(len(values)) if adjusted[i] <= rate}
    assert rejected(p_values, rate, len(values) + others) == expected


@given(P_VALUES)
def test_below_the_rate_of_one_cell_is_always_rejected(values: list[float]) -> None:
    p_values = {str(i): p for i, p in enumerate(values)}
    alone = {key for key, p in p_values.items() if p <= 0.01 / len(values)}
    assert alone <= rejected(p_values, 0.01, len(values))


def test_nothing_compared() -> None:
    assert rejected({}, 0.01, 1) == set()


def test_fewer_cells_than_p_values() -> None:
    with pytest.raises(ValueError, match="at least the 2 p-values, is 1"):
        rejected({"a": 0.1, "b": 0.2}, 0.01, 1)
