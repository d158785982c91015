"""The rates of a search: a geometric grid, and which of them to judge next."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_hwqueue.errors import BadOption

RateVerdict = Literal["held", "broken", "undecided"]


@dataclass(frozen=True)
class Grid:
    """Rates ``start * 2 ** (index / steps)``; index 0 is the start.

    Attributes:
        start_per_s: the first rate.
        steps: rates for each doubling.
        least: lowest index that is searched.
        most: highest.

    """

    start_per_s: float
    steps: int
    least: int
    most: int

    def rate_per_s(self, index: int) -> float:
        """Return a rate with five digits, as it stands in plans."""
        return float(f"{self.start_per_s * 2 ** (index / self.steps):.5g}")


def make_grid(start_per_s: float, precision: float, least_per_s: float, most_per_s: float) -> Grid:
    """Return a grid whose neighbouring rates differ by at most ``precision``, such as 0.1.

    Raises:
        BadOption: if the start is not between the bounds.

    """
    if not least_per_s <= start_per_s <= most_per_s:
        raise BadOption(
            "--rates", f"{least_per_s:g}-{most_per_s:g}",
            f"the search starts at {start_per_s:g}/s, which must lie between them",
        )  # fmt: skip
    steps = math.ceil(math.log(2) / math.log1p(precision))
    # Of rates that are bounds themselves, rounding must lose none.
    least = math.ceil(steps * math.log2(least_per_s / start_per_s) - 1e-9)
    most = math.floor(steps * math.log2(most_per_s / start_per_s) + 1e-9)
    return Grid(start_per_s, steps, least, most)


def bracket(verdicts: Mapping[int, RateVerdict]) -> tuple[int | None, int | None]:
    """Return the highest index that held, and the lowest that broke; None where there is none.

    A rate that held above one that broke counts for nothing: the broken one bounds the interval.
    """
    high = min((i for i, verdict in verdicts.items() if verdict == "broken"), default=None)
    held = [i for i, verdict in verdicts.items() if verdict == "held"]
    return max((i for i in held if high is None or i < high), default=None), high


def first_index(grid: Grid, served_per_s: float) -> int:
    """Return where to begin: half of what the tenant serves alone, less up to a factor of two.

    The capacity is below that, and higher rates cost less: they take less time for as many
    requests, and break at once. Rates begin at whole doublings, whatever was served exactly, so
    that a search that is continued meets the same ones.
    """
    doublings = math.floor(math.log2(served_per_s / 2 / grid.start_per_s))
    return min(max(doublings * grid.steps, grid.least), grid.most)


def next_index(grid: Grid, verdicts: Mapping[int, RateVerdict], first: int) -> int | None:
    """Return the next rate to judge, by its index; None if the search is over.

    From the first, the rate is doubled until it breaks, and halved until it holds. Then the gap
    between the highest rate that held and the lowest that did not is bisected, and likewise the gap
    below the lowest that broke, until neighbours on the grid meet. Rates that stay undecided lie
    between.
    """
    if not verdicts:
        return first
    low, high = bracket(verdicts)
    if high is None and max(verdicts) < grid.most:
        return min(max(verdicts) + grid.steps, grid.most)
    if low is None and min(verdicts) > grid.least:
        return max(min(verdicts) - grid.steps, grid.least)
    between = [i for i in verdicts if (low is None or i > low) and (high is None or i < high)]
    if low is not None:
        above = min(between, default=high)
        if above is not None and above - low > 1:
            return (low + above) // 2
    if high is not None:
        below = max(between, default=low)
        if below is not None and high - below > 1:
            return (below + high + 1) // 2
    return None


def planned_windows(grid: Grid, at_most: int, first: int) -> Sequence[tuple[float, int]]:
    """Return a usual search's rates and their windows: the capacity lies just above the first.

    Rates next to it need all windows, those farther off one; what a search really needs depends on
    what it sees.
    """
    verdicts: dict[int, RateVerdict] = {}
    windows = []
    # Between the first and the next rate, so that neither is the capacity itself.
    while (index := next_index(grid, verdicts, first)) is not None:
        near = index in (first, first + 1)
        verdicts[index] = "undecided" if near else "held" if index < first else "broken"
        windows.append((grid.rate_per_s(index), at_most if near else 1))
    return windows
