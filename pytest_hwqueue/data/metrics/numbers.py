"""Numbers for people: three significant digits, readable units, the interval in brackets."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from pytest_hwqueue.data.metrics.estimate import Estimate, Interval

DIGITS = 3
"""Significant digits of every number; digits before the point are never dropped."""

LARGEST_RATIO = 1e9
"""Of what is estimated; beyond it nothing is known of a figure."""

Name = TypeVar("Name", bound=Hashable)
Whose = TypeVar("Whose")

_NS_PER_MS = 1e6
_TIME_UNITS = (("µs", 1e3), ("ms", 1e6), ("s", 1e9))
_FACTORS = (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("P", 1e15))
# Units that carry their prefix themselves, such as TFLOP/s or GB of one rank's bus traffic/s.
_PREFIXED = re.compile(r"(?P<prefix>[kMGTP]?)(?P<unit>(FLOP|B)([ /].*)?)")
# From here on a number takes the next unit, although its row's median would not.
_TOO_LONG = 1e5
_MOST_US = 10_000
_LARGEST_LOGARITHM = math.log(LARGEST_RATIO)


@dataclass(frozen=True)
class PrintedFigure:
    """A number, its unit and its interval as text; each part may be empty."""

    number: str
    unit: str = ""
    interval: str = ""

    def __str__(self) -> str:
        """Return text such as ``1.23 ms [1.20, 1.27]``; × and % follow the number directly."""
        joint = "" if self.unit.startswith("×") else " "
        text = f"{self.number}{joint}{self.unit}" if self.unit else self.number
        return f"{text} {self.interval}" if self.interval else text


REFUSED = PrintedFigure("—")
"""Stands where a number was refused; the notes below the table say why."""

NO_INTERVAL = "[—]"
"""Stands where only the interval was refused."""


def printed(
    estimate: Estimate, show: Callable[[float, Interval | None], PrintedFigure]
) -> PrintedFigure:
    """Format an estimate, or what stands in its place.

    Args:
        estimate: refused or not.
        show: formats a value and its interval, such as `percent`.

    """
    return REFUSED if estimate.value is None else show(estimate.value, estimate.interval)


def ratio_of(logarithm: float) -> float:
    """Return the ratio with this natural logarithm, `LARGEST_RATIO` at most.

    The tails of t with one degree of freedom ask for more than a float holds, and JSON has no
    infinity.
    """
    return math.exp(min(logarithm, _LARGEST_LOGARITHM))


def rise_of(logarithm: float) -> float:
    """Return the rise, as a fraction, of a ratio with this natural logarithm; see `ratio_of`."""
    return math.expm1(min(logarithm, _LARGEST_LOGARITHM))


@dataclass(frozen=True)
class TimeUnit:
    """A unit of time, and its length in nanoseconds."""

    name: str
    ns: float


def decimals(value: float) -> int:
    """Return the decimal places that show three significant digits of ``value``."""
    if value == 0 or not math.isfinite(value):
        return 0
    # Formatting rounds first, so 9.996 counts as 10.0: two digits before the point.
    exponent = int(f"{value:.{DIGITS - 1}e}".partition("e")[2])
    return max(0, DIGITS - 1 - exponent)


def fixed(value: float, places: int) -> str:
    """Return ``value`` with ``places`` decimals, never a negative zero; or ``∞`` with its sign.

    Raises:
        ValueError: if the value is not a number.

    """
    if math.isnan(value):
        raise ValueError(f"cannot print {value}: it is not a number")
    if math.isinf(value):
        return "-∞" if value < 0 else "∞"
    text = f"{value:.{places}f}"
    return text.lstrip("-") if float(text) == 0 else text


def figure(
    value: float,
    interval: Interval | None = None,
    unit: str = "",
    finest: int | None = None,
) -> PrintedFigure:
    """Format a value with three significant digits, and its interval with as many decimals.

    Args:
        value: in ``unit``.
        interval: its lower and upper end, in ``unit``; one that is missing is infinite.
        unit: as printed.
        finest: the most decimals that carry meaning, such as 3 for µs from a ns clock.

    Raises:
        ValueError: if a number is none.

    """
    ends = interval or ()
    # Zero and infinity have no first digit; the interval's greater finite end lends its decimals.
    first = value if math.isfinite(value) else 0.0
    places = decimals(first or max((abs(end) for end in ends if math.isfinite(end)), default=0.0))
    if finest is not None:
        places = min(places, finest)
    return with_places(value, interval, unit, places)


def with_places(value: float, interval: Interval | None, unit: str, places: int) -> PrintedFigure:
    """Format a value and its interval with so many decimals."""
    shown = ", ".join(fixed(end, places) for end in interval or ())
    return PrintedFigure(fixed(value, places), unit, f"[{shown}]" if shown else "")


def time_unit(first_ns: float, others_ns: Iterable[float] = ()) -> TimeUnit:
    """Choose the unit for a row of times: it suits the first, unless others would grow long.

    Args:
        first_ns: the row's leading figure, mostly the median, in nanoseconds.
        others_ns: the row's further figures, in nanoseconds.

    """
    longest = max([first_ns, *others_ns])
    for name, ns in _TIME_UNITS:
        # 999.6 would be printed as 1000, which the next unit shows as 1.00.
        if float(f"{first_ns / ns:.3g}") < 1000 and longest / ns < _TOO_LONG:
            return TimeUnit(name, ns)
    return TimeUnit(*_TIME_UNITS[-1])


def milliseconds(
    value_ms: float, unit: TimeUnit | None = None, interval_ms: Interval | None = None
) -> PrintedFigure:
    """Format a time in ms in another unit, by default its own; never finer than a nanosecond."""
    unit = unit or time_unit(value_ms * _NS_PER_MS)
    factor = _NS_PER_MS / unit.ns
    finest = round(math.log10(unit.ns))
    return figure(value_ms * factor, _scaled(interval_ms, factor), unit.name, finest)


def microseconds(value_us: float, interval_us: Interval | None = None) -> PrintedFigure:
    """Format a time or a difference in microseconds; never finer than a nanosecond.

    From 10 ms on in milliseconds: a kernel that waits for a full device waits that long.
    """
    if abs(value_us) < _MOST_US:
        return figure(value_us, interval_us, "µs", finest=3)
    ends = None if interval_us is None else (interval_us[0] / 1000, interval_us[1] / 1000)
    return figure(value_us / 1000, ends, "ms", finest=6)


def rate(
    value: float, unit: str, interval: Interval | None = None, like: float | None = None
) -> PrintedFigure:
    """Format a rate in a readable scale, such as ``4.20 M kernels/s`` or ``1.31 TFLOP/s``.

    Args:
        value: in ``unit``.
        unit: work per second; FLOP and B may have their own prefix.
        interval: of the value, in ``unit``.
        like: scale as this value would be, so that a column has one unit.

    """
    prefixed = _PREFIXED.fullmatch(unit)
    factors = dict(_FACTORS)
    base = factors[prefixed["prefix"]] if prefixed else 1.0
    prefix, factor = _scale((value if like is None else like) * base)
    scaled = base / factor
    name = prefix + prefixed["unit"] if prefixed else f"{prefix} {unit}".lstrip()
    return figure(value * scaled, _scaled(interval, scaled), name)


def rate_of(given: Estimate) -> PrintedFigure:
    """Format a rate that may be refused, in a readable scale of its own unit."""
    return printed(given, lambda value, ends: rate(value, given.unit, ends))


def rate_in_short(value: float, unit: str) -> PrintedFigure:
    """Format a rate without what is counted per second, such as ``4.20 M``; see `work_unit`."""
    shown = rate(value, unit)
    return PrintedFigure(shown.number, shown.unit.removesuffix(f"{work_unit(unit)}/s").strip())


def work_unit(unit: str) -> str:
    """Return what a rate counts, without a prefix: ``FLOP`` of ``TFLOP/s``."""
    prefixed = _PREFIXED.fullmatch(unit)
    return (prefixed["unit"] if prefixed else unit).removesuffix("/s")


def memory(value_bytes: int) -> PrintedFigure:
    """Format bytes in powers of 1024, such as ``1.20 GiB``."""
    value, names = float(value_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    index = 0
    while round(value) >= 1024 and index < len(names) - 1:
        value, index = value / 1024, index + 1
    return figure(value, unit=names[index], finest=0 if index == 0 else None)


def percent(share: float, interval: Interval | None = None) -> PrintedFigure:
    """Format a share of one as percent, with two decimals at most."""
    return figure(share * 100, _scaled(interval, 100), "%", finest=2)


def times(value: float, interval: Interval | None = None) -> PrintedFigure:
    """Format a ratio, such as ``8.41× [7.92, 9.03]``."""
    return figure(value, interval, "×")


def in_unit(given: Estimate, unit: str) -> PrintedFigure:
    """Format an estimate in ``unit``: ms, ×, a rate, or % and share for a share of one.

    A refused percentile shows what it is at least. A ``share`` has two decimals, as goals such as
    99.95 % ask for them.
    """
    if given.value is None:
        if unit == "ms" and 0 < given.low < math.inf:
            # Of a percentile with too few requests.
            return PrintedFigure(f"> {figure(given.low, None, unit, finest=6).number}", unit)
        return REFUSED
    if unit not in ("share", "ms", "%", "×"):
        return rate(given.value, unit, given.interval)
    factor = 1.0 if unit in ("ms", "×") else 100.0
    ends = None if given.ends == (None, None) else (given.low * factor, given.high * factor)
    if unit == "share":
        return with_places(given.value * factor, ends, "%", 2)
    # Never finer than a nanosecond.
    return figure(given.value * factor, ends, unit, finest=6 if unit == "ms" else 2)


def counted(number: int, noun: str) -> str:
    """Return ``1 cell`` or ``3 cells``; only for nouns that take an s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(names: Iterable[str]) -> str:
    """Return ``a``, ``a and b`` or ``a, b and c``, of at least one name."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def grouped(pairs: Iterable[tuple[Name, Whose]]) -> dict[Name, list[Whose]]:
    """Return whose belongs to each name, in the order given."""
    found: dict[Name, list[Whose]] = {}
    for name, whose in pairs:
        found.setdefault(name, []).append(whose)
    return found


def duration(seconds: float) -> str:
    """Return a time for people: ``45 s``, ``4 min 30 s``, ``1 h 5 min``."""
    whole = round(seconds)
    if whole < 10 and seconds != whole:
        return f"{seconds:.1f} s"
    if whole < 60:
        return f"{whole} s"
    big, small, names = (whole // 60, whole % 60, ("min", "s"))
    if whole >= 3600:
        big, small, names = (whole // 3600, whole % 3600 // 60, ("h", "min"))
    return f"{big} {names[0]}" + (f" {small} {names[1]}" if small else "")


def _scaled(interval: Interval | None, factor: float) -> Interval | None:
    return interval and (interval[0] * factor, interval[1] * factor)


def _scale(value: float) -> tuple[str, float]:
    rounded = abs(float(f"{value:.3g}"))
    for prefix, factor in _FACTORS:
        if rounded < 1000 * factor:
            return prefix, factor
    return _FACTORS[-1]
