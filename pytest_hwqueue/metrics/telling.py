"""When a ratio or a share says too little to be printed: one rule for all of them.

A share (a loss, an efficiency) or a ratio is refused

- if its interval is wider than 1, which is 100 percentage points or once the reference, and wider
  than the figure itself: "lost -485 % [-13535, 75]" does not say whether anything was lost, while
  "8.4 times as long [7.9, 9.0]" says how much longer;
- if all of it lies outside what is possible: 2 streams do not do 162 times the work of one. A
  figure without an interval is refused only for this reason.

Goals' verdicts do not use this rule: even a wide interval may lie on one side of a bound.
"""

from __future__ import annotations

import math

from pytest_hwqueue.metrics.numbers import Interval

WIDEST = 1.0
"""Width up to which an interval always tells something: 100 percentage points."""


def untold(
    value: float,
    interval: Interval | None,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    unit: str = "%",
) -> str | None:
    """Return why a figure says too little to be printed, or None if it may be.

    Args:
        value: of a share or a ratio, 1 being 100 % or once the reference.
        interval: its ends; None without one.
        least: the smallest possible value.
        most: the greatest possible value.
        unit: of the figures in the reason: ``%`` or ``×``.

    """
    low, high = (value, value) if interval is None else interval
    if low > most:
        return f"{_text(low, unit)} is more than is possible, {_text(most, unit)} at most"
    if high < least:
        return f"{_text(high, unit)} is less than is possible, {_text(least, unit)} at least"
    if high - low > max(WIDEST, abs(value)):
        than = "100 percentage points" if unit == "%" else "once the reference"
        return (
            f"its interval, {_text(low, unit)} to {_text(high, unit)}, is wider than {than} and "
            "than the figure itself"
        )
    return None


def _text(value: float, unit: str) -> str:
    if math.isinf(value):
        return "-∞" if value < 0 else "∞"
    return f"{value * 100:.4g} %" if unit == "%" else f"{value:.3g}×"
