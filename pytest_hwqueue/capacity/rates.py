"""Chooses and judges the arrival rates of a capacity search.

Rates are doubled, then bisected on a geometric grid. All searches of one command share the grid, so
that schedulers meet at equal rates and share the runs that their goals are compared with.

A rate is measured in up to so many windows. A window always runs to its end; after each, all
windows of the rate are judged together, and the rate is decided as soon as they suffice. Looking
several times would raise the error, so each look has its share of it (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_hwqueue.errors import BadOption
from pytest_hwqueue.metrics.latency import minimum_samples
from pytest_hwqueue.scenarios.goals import Goal, GoalResult, parse_goal
from pytest_hwqueue.scenarios.planned_runs import Case
from pytest_hwqueue.scenarios.runs import ScenarioRuns

RateVerdict = Literal["held", "broken", "undecided"]

ERROR = 0.05
"""Of one rate, half for each side: that it is called held and is not, or broken and is not."""

# A figure almost three times its bound says no more about where it crosses it.
_FAR = 1.0


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


def next_index(grid: Grid, verdicts: Mapping[int, RateVerdict]) -> int | None:
    """Return the next rate to judge, by its index; None if the search is over.

    The rate is doubled until it breaks, and halved until it holds. Then the gap between the highest
    rate that held and the lowest that did not is bisected, and likewise the gap below the lowest
    that broke, until neighbours on the grid meet. Rates that stay undecided lie between.
    """
    if not verdicts:
        return 0
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


def planned_windows(grid: Grid, at_most: int) -> Sequence[tuple[float, int]]:
    """Return a usual search's rates and their windows: the capacity lies just above the start.

    Rates next to it need all windows, those farther off one; what a search really needs depends on
    what it sees.
    """
    verdicts: dict[int, RateVerdict] = {}
    windows = []
    # Between the start and the next rate, so that neither is the capacity itself.
    while (index := next_index(grid, verdicts)) is not None:
        near = index in (0, 1)
        verdicts[index] = "undecided" if near else "held" if index < 0 else "broken"
        windows.append((grid.rate_per_s(index), at_most if near else 1))
    return windows


@dataclass(frozen=True)
class Looks:
    """How often a rate is looked at, and in how long windows.

    Attributes:
        at_most: windows of one rate.
        requests: expected in each.
        least_s: length of a window at any rate.

    """

    at_most: int
    requests: int
    least_s: float

    def window_s(self, rate_per_s: float) -> float:
        """Return a window's length in seconds, rounded up to milliseconds."""
        return max(self.least_s, -(-1000 * self.requests // rate_per_s) / 1000)

    @property
    def confidence(self) -> float:
        """Of a goal's interval at one look."""
        return 1 - ERROR / self.at_most


def least_requests(goals: Sequence[Goal], at_most: int) -> int:
    """Return with how many independent requests every percentile among goals can be judged."""
    confidence = Looks(at_most, 0, 0.0).confidence
    quantiles = [goal.quantile for goal in goals if goal.quantile is not None]
    return max((minimum_samples(each, confidence) for each in quantiles), default=1)


def verdict_on(
    runs: ScenarioRuns, case: Case, looks: Looks
) -> tuple[RateVerdict, list[GoalResult]]:
    """Return whether a rate holds, from all its windows, and its goals' results.

    It holds if every goal is met, which needs no correction for their number (Berger, Technometrics
    24, 1982), and is broken if any is missed, which does. The results are those of the judgement
    that decided.
    """
    met = runs.judge(case, confidence=looks.confidence)
    if all(goal.verdict == "met" for goal in met):
        return "held", met
    each = 1 - (1 - looks.confidence) / len(met)
    strict = runs.judge(case, confidence=each)
    if any(goal.verdict == "missed" for goal in strict):
        return "broken", strict
    return "undecided", met


def margin_of(result: GoalResult) -> float | None:
    """Return how far a figure is beyond its bound, as a logarithm; negative if it keeps to it.

    It is at most `_FAR`, also if the figure is infinite, and at least minus that.
    """
    goal = parse_goal(result.goal)
    upwards = goal.comparison in ("<", "<=")
    if not result.n or goal.number <= 0:
        return None
    if result.value is None:
        return _FAR
    if result.value <= 0:
        return -_FAR if upwards else _FAR
    beyond = math.log(result.value / goal.number)
    return min(max(beyond if upwards else -beyond, -_FAR), _FAR)
