"""Judges whether a scenario's goals hold at an arrival rate, with a stated error rate.

A rate is measured in up to so many windows. A window always runs to its end; after each, all
windows of the rate are judged together, and the rate is decided as soon as they suffice. Looking
several times would raise the error, so each look has its share of it (Bonferroni). Requests that
wait in one queue are slow together: they are not taken for independent (`effective_requests`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_hwqueue.capacity.rates import RateVerdict
from pytest_hwqueue.metrics.latency import minimum_samples
from pytest_hwqueue.scenarios.goals import Goal, GoalResult, parse_goal
from pytest_hwqueue.scenarios.planned_runs import Case
from pytest_hwqueue.scenarios.runs import ScenarioRuns

ERROR = 0.05
"""Of one rate, half for each side: that it is called held and is not, or broken and is not."""

# A figure almost three times its bound says no more about where it crosses it.
_FAR = 1.0


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
    met = runs.judge(case, confidence=looks.confidence, correlated=True)
    if all(goal.verdict == "met" for goal in met):
        return "held", met
    each = 1 - (1 - looks.confidence) / len(met)
    strict = runs.judge(case, confidence=each, correlated=True)
    if any(goal.verdict == "missed" for goal in strict):
        return "broken", strict
    return "undecided", met


def margin_of(result: GoalResult, far: float = _FAR) -> float | None:
    """Return how far a figure is beyond its bound, as a logarithm; negative if it keeps to it.

    It is at most ``far``, also if the figure is infinite, and at least minus that.
    """
    goal = parse_goal(result.goal)
    upwards = goal.comparison in ("<", "<=")
    if not result.n or goal.number <= 0:
        return None
    if result.value is None:
        return far
    if result.value <= 0:
        return -far if upwards else far
    beyond = math.log(result.value / goal.number)
    return min(max(beyond if upwards else -beyond, -far), far)
