"""Estimates that tell too little are refused, and say so when used."""

from __future__ import annotations

import copy
import json
import math
import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.errors import RefusedFigure
from pytest_hwqueue.data.metrics.estimate import Estimate, Interval, named
from pytest_hwqueue.data.metrics.latency import summarise_latency

ANY = (-math.inf, math.inf)
AT_MOST_3 = (-math.inf, 3.0)
WIDE, OUTSIDE = "wider than", "than is possible"


def too_little(
    value: float, interval: Interval | None, least: float = -math.inf, most: float = math.inf
) -> str:
    """Return why a figure is refused; empty if it is told, unchanged."""
    low, high = interval or ANY
    given = Estimate(value=value, low=low, high=high, n=9)
    found = given.informative(least=least, most=most)
    assert found == given if found.value is not None else found.n == 9
    return found.refused


@pytest.mark.parametrize(
    ("value", "interval", "limits", "reason"),
    [
        (-4.85, (-135.35, 0.75), ANY, WIDE),  # lost -485 % [-13535, 75]
        (1.5, (0.37, 2.64), ANY, WIDE),  # gained 150 % [37, 264]
        (-12.33, None, (-1.25, math.inf), OUTSIDE),
        (161.76, None, AT_MOST_3, OUTSIDE),
        (161.76, (140.0, 180.0), AT_MOST_3, OUTSIDE),
        (0.088, (0.02, 0.15), ANY, None),
        (0.5, (0.0, 1.0), ANY, None),
        (8.41, (7.92, 9.03), ANY, None),
        (1.17, (1.07, 1.39), ANY, None),
        (1.05, (0.92, 1.81), ANY, None),
        (2.9, (2.0, 4.0), AT_MOST_3, None),  # may be possible
        (3.4, (3.0, 4.0), AT_MOST_3, None),  # exactly
        (-1.4, (-1.5, -1.25), (-1.25, math.inf), None),
        (0.95, None, (-math.inf, 1.25), None),
    ],
)
def test_what_tells_nothing_is_refused_with_the_reason(
    value: float, interval: Interval | None, limits: Interval, reason: str | None
) -> None:
    found = too_little(value, interval, *limits)
    assert found == "" if reason is None else reason in found


# Refused estimates: null in JSON, and whatever compares or computes with one says why

PLAIN = summarise_latency([1_000_000 * i for i in range(1, 101)])
NAMED = named(PLAIN, "mine[cpu]", "measure more")
REASON = "has 100 samples; 1000 independent ones suffice; measure more"
TEXT = f"P99 of mine[cpu] is refused: {REASON}"
OPERATORS: list[Callable[[Any, Any], object]] = [
    operator.lt, operator.le, operator.gt, operator.ge, operator.add, operator.sub, operator.mul,
    operator.truediv, operator.floordiv, operator.mod,
]  # fmt: skip
SINGLE: list[Callable[[Any], object]] = [
    abs, float, int, operator.neg, lambda value: round(value, 1), lambda value: f"{value:.3g}",
]  # fmt: skip
USES: list[Callable[[Any], object]] = [
    *SINGLE,
    *(lambda p99, use=use: use(p99, 12.0) for use in (*OPERATORS, operator.eq, operator.ne)),
    *(lambda p99, use=use: use(2, p99) for use in OPERATORS),
    lambda p99: p99 < Estimate(value=1.0),
    lambda p99: np.array([p99], dtype=np.float64),
    lambda p99: pytest.approx(p99) == 1.0,
    lambda p99: p99 == pytest.approx(1.0),
]


@pytest.mark.parametrize("use", USES)
def test_whatever_uses_a_refused_estimate_fails_with_the_reason(
    use: Callable[[Any], object],
) -> None:
    for other in (NAMED, copy.deepcopy(NAMED), pickle.loads(pickle.dumps(NAMED))):
        assert other == NAMED
        with pytest.raises(RefusedFigure) as raised:
            use(other.p99)
        assert str(raised.value) == TEXT
        assert isinstance(raised.value, AssertionError)
    use(Estimate(value=1.0))


def test_it_is_about_as_large_as_its_value_is() -> None:
    given = Estimate(value=2.31071, low=2.0, high=2.5, n=400, unit="ms")
    assert given == pytest.approx(2.31, rel=0.005)
    assert 2.31 == pytest.approx(given, rel=0.005)  # noqa: SIM300
    assert given != pytest.approx(2.31, rel=1e-6)
    assert {"p99": given} == pytest.approx({"p99": 2.31}, rel=0.005)
    # Two estimates are the same in all they say, or not.
    assert given != given.model_copy(update={"n": 300})


def test_it_shows_its_reason_and_differs_from_others() -> None:
    for found in (NAMED.p99, NAMED.p50, Estimate(value=0.0)):
        with pytest.raises(TypeError, match="neither true nor false"):
            bool(found)
    assert f"{NAMED.p99}" == str(NAMED.p99) == f"refused ({TEXT})"
    assert repr(NAMED.p50) == "<50.5 ms [1, 100], n=100>"
    assert "P99.9 of mine[cpu]" in str(NAMED.p999)
    assert NAMED != PLAIN
    assert NAMED.p99 != NAMED.p999
    assert len({NAMED.p99, NAMED.p999, copy.copy(NAMED.p99)}) == 2
    # Given figures stay what they are.
    assert (NAMED.p50, NAMED.p95) == (PLAIN.p50, PLAIN.p95)


@given(st.floats(-1e6, 1e6).filter(bool), st.floats(-1e6, 1e6).filter(bool))
def test_it_computes_as_its_value(value: float, other: float) -> None:
    estimate = Estimate(value=value, low=value - 1, high=value + 1)
    for use in (*OPERATORS, operator.eq):
        assert use(estimate, other) == use(value, other)
        assert use(other, estimate) == use(other, value)
        assert use(estimate, value) == use(value, value)
    for single in SINGLE:
        assert single(estimate) == single(value)
    assert estimate**2 == value**2
    with pytest.raises(TypeError):
        estimate < "x"  # noqa: B015


ENDS = st.floats(allow_nan=False)


@given(st.none() | st.floats(allow_nan=False, allow_infinity=False), ENDS, ENDS)
def test_json_has_null_for_what_is_missing(value: float | None, low: float, high: float) -> None:
    estimate = Estimate(value=value, low=low, high=high)
    # No end is on the other side of all numbers.
    plain = estimate.model_copy(
        update={"low": min(low, -low) if math.isinf(low) else low,
                "high": max(high, -high) if math.isinf(high) else high}
    )  # fmt: skip
    text = estimate.model_dump_json()
    assert "Infinity" not in text
    assert Estimate.model_validate_json(text) == plain
    assert json.loads(text) == estimate.model_dump(mode="json")
    assert plain.ends == (json.loads(text)["low"], json.loads(text)["high"])


def test_figures_do_not_each_keep_which_fields_were_given() -> None:
    one, other = Estimate(value=1.0), Estimate.model_validate_json('{"value": 2.0, "n": 3}')
    assert one.model_fields_set is other.model_fields_set
    assert one.model_copy(update={"n": 5}).n == 5
    assert not one.model_fields_set
