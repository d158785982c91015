"""Figures as people read them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.metrics import numbers

PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
TIME_UNITS = {"µs": 1e3, "ms": 1e6, "s": 1e9}


def is_rounded(printed: float, value: float) -> bool:
    """Whether ``printed`` is ``value`` to three significant digits, or better."""
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    return abs(printed - value) <= unit / 2 * (1 + 1e-9)


@given(st.floats(1e-3, 1e17), st.floats(1e3, 1e14))
def test_a_rate_and_a_time_come_back_from_their_scale(per_s: float, ns: float) -> None:
    rate = numbers.rate(per_s, "kernels/s")
    prefix = rate.unit.removesuffix("kernels/s").strip()
    assert is_rounded(float(rate.number) * PREFIXES[prefix], per_s)
    assert prefix in ("", "P") or 1 <= float(rate.number) < 1000
    time = numbers.milliseconds(ns / 1e6, numbers.time_unit(ns))
    assert is_rounded(float(time.number) * TIME_UNITS[time.unit], ns)
    assert time.unit == "s" or float(time.number) < 1000


@given(st.floats(-1e9, 1e9).filter(bool))
def test_a_difference_is_never_finer_than_a_nanosecond_nor_minus_zero(value: float) -> None:
    number = numbers.microseconds(value, (value - 1, value + 1)).number
    assert len(number.partition(".")[2]) <= 3
    assert not (float(number) == 0 and number.startswith("-"))


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (numbers.figure(1.234, (1.2, 1.2651), "ms"), "1.23 ms [1.20, 1.27]"),
        (numbers.figure(9.996), "10.0"),
        (numbers.figure(41_234.5), "41234"),
        (numbers.figure(0.0), "0"),
        (numbers.microseconds(0.0, (-0.25, 0.25)), "0.000 µs [-0.250, 0.250]"),
        (numbers.microseconds(-0.0004, (-0.2, 0.3)), "0.000 µs [-0.200, 0.300]"),
        (numbers.microseconds(2.314, (2.1, 2.55)), "2.31 µs [2.10, 2.55]"),
        (numbers.microseconds(143_653.0), "144 ms"),
        (numbers.rate(4_168_000, "kernels/s"), "4.17 M kernels/s"),
        (numbers.rate(999_600, "kernels/s"), "1.00 M kernels/s"),
        (numbers.rate(0.52, "samples/s"), "0.520 samples/s"),
        (numbers.rate(0.0131, "TFLOP/s", (0.01305, 0.01315)), "13.1 GFLOP/s [13.1, 13.2]"),
        (numbers.rate(1310, "TFLOP/s"), "1.31 PFLOP/s"),
        (numbers.rate(2500, "GB/s bus bandwidth"), "2.50 TB/s bus bandwidth"),
        (numbers.rate(931_000, "kernels/s", like=5e6), "0.931 M kernels/s"),
        (numbers.memory(1_288_490_189), "1.20 GiB"),
        (numbers.memory(1023), "1023 B"),
        (numbers.memory(1024 * 1024 - 1), "1.00 MiB"),
        (numbers.percent(0.9321), "93.2 %"),
        (numbers.percent(1.0), "100 %"),
        (numbers.percent(0.03125, (0.03, 0.0325)), "3.12 % [3.00, 3.25]"),
        (numbers.times(8.41, (7.92, 9.03)), "8.41× [7.92, 9.03]"),
        (numbers.REFUSED, "—"),
    ],
)
def test_figures_read_as_expected(shown: numbers.PrintedFigure, text: str) -> None:
    assert str(shown) == text


def test_the_unit_of_a_row_suits_its_median_unless_another_figure_grows_long() -> None:
    alone = [numbers.time_unit(value_ns).name for value_ns in (999_600, 999_400, 5e12)]
    assert alone == ["ms", "µs", "s"]
    assert [numbers.time_unit(15_000, [other]).name for other in (2_000_000, 2e9)] == ["µs", "ms"]
    counted = [numbers.counted(number, "cell") for number in (0, 1, 2)]
    assert counted == ["0 cells", "1 cell", "2 cells"]


def test_what_is_infinite_is_said_and_what_is_no_number_refused() -> None:
    assert str(numbers.figure(math.inf, (1.5, math.inf), "ms")) == "∞ ms [1.50, ∞]"
    assert str(numbers.figure(0.0, (-math.inf, 1.5))) == "0.00 [-∞, 1.50]"
    for value, interval in ((math.nan, None), (1.0, (0.0, math.nan))):
        with pytest.raises(ValueError, match="not a number"):
            numbers.figure(value, interval)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"), (5, "5 s"), (9.4, "9.4 s"), (9.96, "10 s"), (45.4, "45 s"),
        (59.6, "1 min"), (75, "1 min 15 s"), (3599, "59 min 59 s"), (3600, "1 h"),
        (3900, "1 h 5 min"),
    ],
)  # fmt: skip
def test_a_duration_has_two_units_at_most(seconds: float, text: str) -> None:
    assert numbers.duration(seconds) == text
