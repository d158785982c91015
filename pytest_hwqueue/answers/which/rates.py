"""The rates of a search: a geometric grid, and which of them to judge next."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pytest_hwqueue.data.errors import BadOption

RateVerdict = Literal["held", "broken", "undecided"]


@dataclass(frozen=True)
class RateGrid:
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


def make_grid(
    start_per_s: float, precision: float, least_per_s: float, most_per_s: float
) -> RateGrid:
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
    return RateGrid(start_per_s, steps, least, most)


def bracket(verdicts: Mapping[int, RateVerdict]) -> tuple[int | None, int | None]:
    """Return the highest index that held, and the lowest that broke; None where there is none.

    A rate that held above one that broke counts for nothing: the broken one bounds the interval.
    """
    high = min((i for i, verdict in verdicts.items() if verdict == "broken"), default=None)
    held = [i for i, verdict in verdicts.items() if verdict == "held"]
    return max((i for i in held if high is None or i < high), default=None), high


def first_index(grid: RateGrid, served_per_s: float) -> int:
    """Return where to begin: half of what the tenant serves alone, less up to a factor of two.

    The capacity is below that, and higher rates cost less: they take less time for as many
    requests, and break at once. Rates begin at whole doublings, whatever was served exactly, so
    that a search that is continued meets the same ones.
    """
    doublings = math.floor(math.log2(served_per_s / 2 / grid.start_per_s))
    return min(max(doublings * grid.steps, grid.least), grid.most)


def next_index(
    grid: RateGrid, verdicts: Mapping[int, RateVerdict], meets: Mapping[int, bool], first: int
) -> int | None:
    """Return the rate of the next window, by its index; None if the search is over.

    First it finds about where goals break, by a window of each rate: from the first, rates are
    doubled until a figure misses its bound, or lowered until all keep to it, by a factor of 2, then
    of 4, of 16 and so on, since a mode that holds at no rate must not be tried at each; then the
    gap is bisected. No verdict is needed for that, and next to the edge there hardly is one.

    Then it decides a rate a little below and one a little above, and where all windows of a rate
    leave it undecided, one farther off. At last the gaps between those that held or broke and those
    that stayed undecided are bisected, the wider first, until neighbours on the grid meet.

    Args:
        grid: of the rates.
        verdicts: of the rates that are decided, or had all their windows.
        meets: whether the figures of a rate meet its goals so far, of all that had a window.
        first: where to begin.

    """
    if not meets:
        return first
    best, worst = _located(verdicts, meets)
    if worst is None and max(meets) < grid.most:
        return min(max(meets) + grid.steps, grid.most)
    if best is None and (lowest := min(meets)) > grid.least:
        return max(lowest - max(first - lowest, 0) - grid.steps, grid.least)
    near = max(1, grid.steps // 4)
    if best is not None and worst is not None and worst - best > near:
        return (best + worst) // 2
    low, high = bracket(verdicts)
    # Two thirds of a rate: in queues with Poisson arrivals four windows of 1,000 requests show of
    # nine in ten such rates that their P99 holds, and farther up of few. Breaking takes less.
    far = max(1, round(5 * grid.steps / 8))
    below = above = None
    if best is not None:
        start = best if worst is None else best - far
        below = _outward(verdicts, "held", start, -far, grid)
        begun = [i for i in meets if i not in verdicts and i < start]
        if verdicts.get(start) == "undecided" and begun:
            # Rather one that has a window: it needs fewer.
            below = max(begun)
    if worst is not None:
        start = worst if best is None else worst + near - 1
        above = _outward(verdicts, "broken", start, far, grid)
    if below is not None and (low is None or low < below):
        return below
    if above is not None and (high is None or high > above):
        return above
    return _between(verdicts)


def _located(
    verdicts: Mapping[int, RateVerdict], meets: Mapping[int, bool]
) -> tuple[int | None, int | None]:
    """Return between which rates goals break, by verdict or by figures so far.

    The second is the least rate that does not keep them, the first the greatest below it.
    """
    decided = {i: verdict == "held" for i, verdict in verdicts.items() if verdict != "undecided"}
    keeps = {**meets, **decided}
    worst = min((i for i, kept in keeps.items() if not kept), default=None)
    good = (i for i, kept in keeps.items() if kept and (worst is None or i < worst))
    return max(good, default=None), worst


def _outward(
    verdicts: Mapping[int, RateVerdict], wanted: RateVerdict, index: int, step: int, grid: RateGrid
) -> int | None:
    """Return the first rate from an index on that lacks a verdict; None after a wanted one."""
    index = min(max(index, grid.least), grid.most)
    end = grid.most if step > 0 else grid.least
    while verdicts.get(index) not in (None, wanted) and index != end:
        index = min(max(index + step, grid.least), grid.most)
    return None if index in verdicts else index


def _between(verdicts: Mapping[int, RateVerdict]) -> int | None:
    """Return a rate in the wider gap next to an end of the bracket; None if neighbours meet."""
    low, high = bracket(verdicts)
    between = [i for i in verdicts if (low is None or i > low) and (high is None or i < high)]
    above = min(between, default=high)
    below = max(between, default=low)
    above_low = 0 if low is None or above is None else above - low
    below_high = 0 if high is None or below is None else high - below
    if max(above_low, below_high) <= 1:
        return None
    if low is not None and above_low >= below_high:
        return low + above_low // 2
    assert high is not None
    return high - below_high // 2
