"""Runs and their figures."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.gate.runs import ProcessRun, figure_of


@given(
    st.lists(st.floats(0, 1e12), min_size=1, max_size=50),
    st.floats(0.01, 0.99),
    st.data(),
)
def test_figure_is_the_quantile_of_the_first_n(
    samples: list[float], q: float, data: st.DataObject
) -> None:
    n = data.draw(st.integers(1, len(samples)))
    assert figure_of(samples, q, n) == np.quantile(samples[:n], q)
    assert figure_of([*samples[:n], math.nan, -1.0], q, n) == np.quantile(samples[:n], q)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_a_bad_sample_spoils_the_figure(bad: float) -> None:
    assert math.isnan(figure_of([1.0, bad, 2.0], 0.5, 3))


def test_zeros_below_the_quantile_are_legal() -> None:
    assert figure_of([0.0] * 50 + [7.0] * 50, 0.99, 100) == 7.0


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="n must be between 1 and the 2 samples, is 3"):
        figure_of([1.0, 2.0], 0.5, 3)
    with pytest.raises(ValueError, match="quantile must be between 0 and 1"):
        figure_of([1.0, 2.0], 99, 2)
    with pytest.raises(ValueError, match=r"Run\.failed must not be negative, is -1"):
        ProcessRun(1.0, 10, "s", failed=-1)


def test_failure_share_is_of_all_requests() -> None:
    assert ProcessRun(1.0, 75, "s", failed=25).failure_share == 0.25
    assert ProcessRun(1.0, 0, "s").failure_share == 0.0
