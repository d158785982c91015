"""Settings, gated quantities and runs: what is valid, what stands in, what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.judge.runs import ProcessRun, figure_of
from pytest_hwqueue.judge.verdict import (
    P50,
    P90,
    P95,
    P99,
    P999,
    QUANTITIES,
    THROUGHPUT,
    GateSettings,
    Quantity,
    fall_back,
)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rate": 0}, "rate must be above 0 and below 1, is 0"),
        ({"rate": 1.0}, "rate must be above 0"),
        ({"rate": float("nan")}, "rate must be"),
        ({"rate": 0.3}, r"screen must be at least rate \(0.3\), is 0.2"),
        ({"warn": -1}, "warn must be"),
        ({"screen": 2}, "screen must be"),
        ({"min_effect": 5, "detect": 10}, "detect must be"),
        ({"min_effect": -0.1}, "min_effect must be above 0"),
        ({"floor": 0}, "floor must be"),
        ({"suite_shift": 0}, "suite_shift must be"),
        ({"tau": -0.01}, "tau must be 0 or more"),
        ({"power": 0.5}, "power must be above 0.5"),
        ({"first_runs": 1}, "first_runs must be 2 or more, is 1"),
        ({"first_runs": 5}, r"looks must be ascending numbers of runs from first_runs \(5\)"),
        ({"pairs": 1}, "pairs must be 2 or more"),
        ({"looks": (4, 4, 8)}, "looks must be ascending"),
        ({"looks": (), "weights": ()}, "looks must be"),
        ({"looks": (4, 8)}, r"weights must be as many as looks \(2\)"),
        ({"weights": (0, 0.5, 0.6)}, "weights must be .* 1 in all"),
        ({"weights": (0.5, 0.5, 0)}, "weights must be .* above 0 at the last look"),
        ({"weights": (-0.5, 0.5, 1)}, "weights must be 0 or more each"),
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"GateSettings.{message}"):
        GateSettings(**wrong)


@given(st.floats(0.01, 0.9999))
def test_least_n_bounds_the_quantile(q: float) -> None:
    least = Quantity("q", "q", q).least_n
    assert 1 - q**least >= 0.95
    assert least == 1 or 1 - q ** (least - 1) < 0.95 + 1e-12


@pytest.mark.parametrize(
    ("wanted", "n", "gated"),
    [(P999, 2995, P999), (P999, 2994, P99), (P99, 299, P99), (P99, 298, P95), (P99, 59, P95),
     (P99, 58, P90), (P99, 28, None), (P95, 58, P90), (P90, 29, P90), (P90, 28, None),
     (P50, 5, P50), (P50, 4, None), (THROUGHPUT, 1, THROUGHPUT)],
)  # fmt: skip
def test_what_is_gated_with_so_many_samples(
    wanted: Quantity, n: int, gated: Quantity | None
) -> None:
    stands_in = gated is not None and gated != wanted
    expected = replace(gated, demoted_from=wanted.label) if gated and stands_in else gated
    assert fall_back(wanted, n) == expected
    assert QUANTITIES[wanted.name] is wanted


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=50), st.floats(0.01, 0.99), st.data())
def test_figure_is_the_quantile_of_the_first_n(
    samples: list[float], q: float, data: st.DataObject
) -> None:
    n = data.draw(st.integers(1, len(samples)))
    expected = np.quantile(samples[:n], q)
    assert figure_of([*samples[:n], math.nan, -1.0], q, n) == expected
    for bad in (math.nan, math.inf, -1.0):
        assert math.isnan(figure_of([bad, *samples], q, n))


def test_shares_are_of_all_requests_and_wrong_arguments_are_refused() -> None:
    assert ProcessRun(1.0, 75, "s", failed=25).failure_share == 0.25
    assert ProcessRun(1.0, 0, "s").failure_share == 0.0
    with pytest.raises(ValueError, match="n must be between 1 and the 2 samples, is 3"):
        figure_of([1.0, 2.0], 0.5, 3)
    with pytest.raises(ValueError, match="quantile must be between 0 and 1"):
        figure_of([1.0, 2.0], 99, 2)
    with pytest.raises(ValueError, match=r"Run\.failed must not be negative, is -1"):
        ProcessRun(1.0, 10, "s", failed=-1)
