"""Shares of a device's limits: both rates' intervals are in a share's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.limits import limit_share
from pytest_hwqueue.data.records.cell import Metrics

values = st.floats(1e-3, 1e12)
widths = st.floats(1, 3)


def rate(value: float, width: float, n: int = 20) -> Estimate:
    return Estimate(value=value, low=value / width, high=value * width, n=n, unit="kernels/s")


@given(values, widths, values, widths)
def test_the_ends_are_of_both_rates_at_their_worst(
    reached: float, wide: float, most: float, wider: float
) -> None:
    found = limit_share("front end", rate(reached, wide), rate(most, wider, n=7)).share

    assert found.value == pytest.approx(reached / most)
    assert found.low == pytest.approx(reached / most / (wide * wider))
    assert found.high == pytest.approx(reached / most * (wide * wider))
    assert (found.n, found.refused, found.unit) == (7, "", "")


def test_a_models_own_limit_is_exact() -> None:
    own = Estimate(value=50.0, unit="kernels/s", refused="the model's own figure, not measured")

    found = limit_share("front end", rate(40.0, 2.0), own).share

    assert (found.value, found.interval, found.n) == (0.8, (0.4, 1.6), 20)
    assert found.refused == ""


def test_what_has_no_interval_leaves_the_share_without_one_and_says_why() -> None:
    few = Estimate(value=50.0, n=3, unit="kernels/s", refused="has 3 rounds")

    found = limit_share("front end", rate(40.0, 2.0), few).share

    assert (found.value, found.interval, found.refused) == (0.8, None, "has 3 rounds")


def test_what_was_not_measured_has_no_share() -> None:
    nothing = Estimate(unit="kernels/s", refused="has no iterations")

    assert limit_share("front end", nothing, rate(40.0, 1.0)).share.refused == "has no iterations"
    assert limit_share("front end", rate(40.0, 1.0), nothing).share.value is None


def test_the_nearest_limit_has_the_greatest_known_share() -> None:
    shares = [
        limit_share(name, rate(reached, 1.1), rate(100.0, 1.0))
        for name, reached in (("front end", 20.0), ("memory", 70.0))
    ]
    unknown = limit_share("H2D copy", Estimate(refused="why"), rate(100.0, 1.0))

    nearest = Metrics(limits=[unknown, *shares]).nearest_limit

    assert nearest is not None
    assert nearest.limit == "memory"
    assert Metrics(limits=[unknown]).nearest_limit is None
