"""Gated quantities: samples they need, and what is gated instead."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.gate.verdict import (
    P50,
    P90,
    P95,
    P99,
    P999,
    THROUGHPUT,
    Quantity,
    fall_back,
    quantity,
)


@pytest.mark.parametrize(
    ("gated", "least"),
    [(P50, 5), (P90, 29), (P95, 59), (P99, 299), (P999, 2995), (THROUGHPUT, 1)],
)
def test_least_n(gated: Quantity, least: int) -> None:
    assert gated.least_n == least


@given(st.floats(0.01, 0.9999))
def test_least_n_bounds_the_quantile(q: float) -> None:
    least = Quantity("q", "q", q).least_n
    assert 1 - q**least >= 0.95
    assert least == 1 or 1 - q ** (least - 1) < 0.95 + 1e-12


@pytest.mark.parametrize(
    ("wanted", "n", "gated"),
    [
        (P999, 2994, P99),
        (P99, 299, P99),
        (P99, 298, P95),
        (P99, 59, P95),
        (P99, 58, P90),
        (P99, 28, None),
        (P95, 58, P90),
        (P50, 4, None),
        (THROUGHPUT, 1, THROUGHPUT),
    ],
)
def test_fall_back(wanted: Quantity, n: int, gated: Quantity | None) -> None:
    found = fall_back(wanted, n)
    if gated is None or gated == wanted:
        assert found == gated
    else:
        assert found == replace(gated, demoted_from=wanted.label)


def test_by_name() -> None:
    assert quantity("p99") is P99
    with pytest.raises(ValueError, match=r"'max'; known are p50, p90, p95, p99, p999, through"):
        quantity("max")
