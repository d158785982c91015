"""Energy of a window and of a request: what the counter's steps leave open is in the interval."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.metrics.energy import (
    EnergyReading,
    EnergyWindow,
    energy_of_a_request,
    mean_power,
)
from pytest_hwqueue.data.metrics.estimate import Estimate

STEP_S = 0.1


@given(st.floats(50, 1000), st.floats(5.2, 600), st.floats(0, 5))
def test_a_constant_power_is_within_the_ends_wherever_the_steps_fall(
    power_w: float, window_s: float, phase_s: float
) -> None:
    def counter_mj(when_s: float) -> int:
        steps = (when_s + phase_s) // STEP_S
        return round(power_w * steps * STEP_S * 1e3)

    first, last = EnergyReading(0, counter_mj(0)), EnergyReading(round(window_s * 1e9), 0)
    found = mean_power(first, last._replace(energy_mj=counter_mj(window_s)))

    rounding = 0.002 / window_s
    assert found.low - rounding <= power_w <= found.high + rounding
    assert found.high / found.low < 1.05


def test_a_short_window_is_refused() -> None:
    found = mean_power(EnergyReading(0, 0), EnergyReading(2_000_000_000, 800_000))
    assert (found.value, found.refused) == (None, "a window of 2 s; 5 s suffice")


def estimate(value: float, low: float, high: float) -> Estimate:
    return Estimate(value=value, low=low, high=high, n=100)


def test_a_request_has_its_share_of_the_whole_devices_energy() -> None:
    windows = [
        EnergyWindow(estimate(390, 380, 400), 10), EnergyWindow(estimate(420, 410, 430), 20),
    ]  # fmt: skip
    # Of 600 requests a quarter failed or came too late.
    found = energy_of_a_request(windows, 600, estimate(0.75, 0.7, 0.8))

    assert found.value == pytest.approx((3900 + 8400) / 450)
    assert found.low == pytest.approx((3800 + 8200) / 480)
    assert found.high == pytest.approx((4000 + 8600) / 420)
    assert (found.unit, found.n, found.refused) == ("J", 100, "")


KNOWN = estimate(9, 9, 9)


@pytest.mark.parametrize(
    ("power", "attained", "reason"),
    [
        (Estimate(refused="why"), estimate(1, 1, 1), "why"),
        (KNOWN, Estimate(refused="no share"), "no share"),
        (KNOWN, estimate(0, 0, 0), "no request was served in time"),
    ],
)
def test_what_cannot_be_divided_is_refused(
    power: Estimate, attained: Estimate, reason: str
) -> None:
    found = energy_of_a_request([EnergyWindow(power, 10)], 20, attained)
    assert (found.value, found.refused) == (None, reason)


def test_without_an_end_of_the_share_the_energy_has_none() -> None:
    attained = Estimate(value=1, low=0.0, high=1.0, n=3, refused="has 3 requests")
    found = energy_of_a_request([EnergyWindow(estimate(400, 390, 410), 10)], 200, attained)
    assert (found.value, found.interval, found.refused) == (20.0, None, "has 3 requests")
