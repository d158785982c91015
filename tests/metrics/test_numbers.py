"""Numbers keep three significant digits, a fitting unit, and an interval of equal decimals."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_hwqueue.metrics.numbers import (
    REFUSED,
    PrintedFigure,
    counted,
    decimals,
    figure,
    memory,
    microseconds,
    milliseconds,
    percent,
    rate,
    time_unit,
    times,
)

PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
TIME_UNITS = {"µs": 1e3, "ms": 1e6, "s": 1e9}
NUMBERS = st.floats(min_value=1e-9, max_value=1e15)


def is_rounded(printed: float, value: float) -> bool:
    """Whether ``printed`` is ``value`` to three significant digits, or better."""
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    return abs(printed - value) <= unit / 2 * (1 + 1e-9)


@given(NUMBERS, st.booleans())
def test_a_number_comes_back_within_three_significant_digits(value: float, minus: bool) -> None:
    value = -value if minus else value
    assert is_rounded(float(figure(value).number), value)


@given(NUMBERS)
def test_a_number_has_at_least_three_digits_and_no_exponent(value: float) -> None:
    number = figure(value).number
    assert re.fullmatch(r"\d+(\.\d+)?", number)
    assert len(number.replace(".", "").lstrip("0")) >= 3


@given(st.floats(min_value=1e-3, max_value=1e17))
def test_a_rate_comes_back_from_its_scale(value: float) -> None:
    shown = rate(value, "kernels/s")
    prefix, _, unit = shown.unit.rpartition(" kernels/s")[0].partition(" ")
    assert not unit
    assert is_rounded(float(shown.number) * PREFIXES[prefix], value)
    if prefix and prefix != "P":
        assert 1 <= float(shown.number) < 1000


@given(st.floats(min_value=1e3, max_value=1e14))
def test_a_time_comes_back_from_its_unit(value_ns: float) -> None:
    unit = time_unit(value_ns)
    shown = milliseconds(value_ns / 1e6, unit)
    assert is_rounded(float(shown.number) * TIME_UNITS[shown.unit], value_ns)
    if shown.unit != "s":
        assert float(shown.number) < 1000


@given(NUMBERS, NUMBERS, NUMBERS)
def test_an_interval_has_as_many_decimals_as_its_value(a: float, b: float, c: float) -> None:
    low, value, high = sorted((a, b, c))
    shown = figure(value, (low, high))
    found = re.fullmatch(r"\[(\S+), (\S+)\]", shown.interval)
    assert found is not None
    places = {len(number.partition(".")[2]) for number in (shown.number, *found.groups())}
    assert places == {decimals(value)}


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e9, max_value=1e9))
def test_a_difference_is_never_finer_than_a_nanosecond_nor_minus_zero(value: float) -> None:
    assume(value != 0)
    number = microseconds(value, (value - 1, value + 1)).number
    assert len(number.partition(".")[2]) <= 3
    assert not (float(number) == 0 and number.startswith("-"))


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (figure(1.234, (1.2, 1.2651), "ms"), "1.23 ms [1.20, 1.27]"),
        (figure(9.996), "10.0"),
        (figure(41_234.5), "41234"),
        (figure(0.0), "0"),
        (figure(0.0, (-0.25, 0.25), "µs"), "0.000 µs [-0.250, 0.250]"),
        (microseconds(0.0, (-0.25, 0.25)), "0.000 µs [-0.250, 0.250]"),
        (microseconds(-0.0004, (-0.2, 0.3)), "0.000 µs [-0.200, 0.300]"),
        (microseconds(2.314, (2.1, 2.55)), "2.31 µs [2.10, 2.55]"),
        (microseconds(143_653.0), "144 ms"),
        (rate(4_168_000, "kernels/s"), "4.17 M kernels/s"),
        (rate(999_600, "kernels/s"), "1.00 M kernels/s"),
        (rate(0.52, "samples/s"), "0.520 samples/s"),
        (rate(1.31, "TFLOP/s"), "1.31 TFLOP/s"),
        (rate(0.0131, "TFLOP/s", (0.01305, 0.01315)), "13.1 GFLOP/s [13.1, 13.2]"),
        (rate(1310, "TFLOP/s"), "1.31 PFLOP/s"),
        (rate(2500, "GB/s bus bandwidth"), "2.50 TB/s bus bandwidth"),
        (rate(931_000, "kernels/s", like=5e6), "0.931 M kernels/s"),
        (memory(1_288_490_189), "1.20 GiB"),
        (memory(1023), "1023 B"),
        (memory(1024 * 1024 - 1), "1.00 MiB"),
        (memory(0), "0 B"),
        (percent(0.9321), "93.2 %"),
        (percent(1.0), "100 %"),
        (percent(0.03125, (0.03, 0.0325)), "3.12 % [3.00, 3.25]"),
        (times(8.41, (7.92, 9.03)), "8.41× [7.92, 9.03]"),
        (REFUSED, "—"),
    ],
)
def test_figures_read_as_expected(shown: PrintedFigure, text: str) -> None:
    assert str(shown) == text


def test_the_unit_of_a_row_suits_its_median_unless_another_figure_grows_long() -> None:
    assert time_unit(999_600).name == "ms"
    assert time_unit(999_400).name == "µs"
    assert time_unit(15_000, [2_000_000]).name == "µs"
    assert time_unit(15_000, [2e9]).name == "ms"
    assert time_unit(5e12).name == "s"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        figure(value)
    with pytest.raises(ValueError, match="not finite"):
        figure(1.0, (0.0, value))


def test_counted_nouns() -> None:
    assert [counted(number, "cell") for number in (0, 1, 2)] == ["0 cells", "1 cell", "2 cells"]
