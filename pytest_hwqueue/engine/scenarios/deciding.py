"""How long a window would decide a goal: before it is measured, and after one left it undecided.

The window is long enough to decide in four of five cases, what was seen being all that is known:
the probability is averaged over the figure's posterior (assurance: O'Hagan, Stevens and Campbell,
Pharmaceutical Statistics 4, 2005). It assumes that further requests are like those seen, arrive at
the same rate, and follow each other as those seen do; before anything is measured, that they are
independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

from pytest_hwqueue.data.figures.of_requests import worth_at
from pytest_hwqueue.data.metrics.dependence import binomial_quantile, normal_cdf, student_quantile
from pytest_hwqueue.data.metrics.latency import sufficient_samples
from pytest_hwqueue.data.metrics.numbers import duration

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pytest_hwqueue.data.figures.of_requests import ServedRequests
    from pytest_hwqueue.data.metrics.estimate import Estimate
    from pytest_hwqueue.engine.scenarios.goals import Goal, GoalResult

ASSURANCE = 0.85
"""Probability that the window decides, as far as those seen tell: of 100 simulated windows of that
length 80 or more do (docs/evidence/intervals.md)."""

_LONGEST_S = 24 * 3600.0
# Few requests beyond a percentile hardly show how they follow each other; so many times as many do.
_WIDER = 5
# Beyond it, the least number that can be met suffices nearly as often.
_FURTHEST = 0.999
_POSTERIOR_POINTS = 200
_BLOCKS = 8
_LEAST_CHANCE = 0.2


@dataclass(frozen=True)
class PlannedWindow:
    """How long a window decides a goal, before anything is measured.

    Attributes:
        goal: the goal.
        rate_per_s: at which its tenant's requests arrive.
        requests: that suffice if none is slow.
        least_s: how long it takes for so many that it can be met at all.
        none_s: how long those that suffice take: this decides if none is slow.
        half_s: decides in four of five cases if half as many are slow as may be; None if no window
            of up to 24 h does.

    """

    goal: Goal
    rate_per_s: float
    requests: int
    least_s: float
    none_s: float
    half_s: float | None

    def __str__(self) -> str:
        """Return the advice in a line."""
        half = "of more than 24 h" if self.half_s is None else f"of {_length(self.half_s)}"
        return (
            f"{self.goal} at {self.rate_per_s:g}/s: a window of {_length(self.none_s)} decides if "
            f"no request is slower; {half}, if half as many are as may be; a longer one, if "
            "requests wait for each other"
        )

    def too_short(self, window_s: float) -> str:
        """Return why a window cannot meet the goal; empty if it can."""
        if window_s >= self.least_s:
            return ""
        return (
            f"{self.goal} cannot be met in {duration(window_s)} at {self.rate_per_s:g}/s: "
            f"{self.requests} requests suffice, which take {_length(self.none_s)}"
        )


def _length(seconds: float) -> str:
    return duration(math.ceil(seconds))


def allowed_slow(goal: Goal) -> float | None:
    """Return the share of requests that may be slow; None if the goal counts no slow requests."""
    if goal.reference is not None:
        return None
    if goal.quantile is not None:
        return 1 - goal.quantile
    return 1 - goal.bound if goal.figure == "attainment" and 0 < goal.bound < 1 else None


def least_requests(goal: Goal, confidence: float) -> int | None:
    """Return the requests with which a goal on slow requests can be met, none being slow."""
    slow = allowed_slow(goal)
    return None if slow is None else math.ceil(math.log((1 - confidence) / 2) / math.log1p(-slow))


def agrees_in_blocks(
    goal: Goal,
    met: bool,
    windows: Sequence[ServedRequests],
    confidence: float,
    within_ns: float | None,
) -> bool:
    """Return whether a goal also comes to its verdict by the shares of slow requests in blocks.

    Requests that queue together are slow together. A window that is short against that shows one
    event as many, and nothing in it tells; but the event is in few of eight blocks of successive
    requests, whose shares then differ (batch means, with Student's t: Law and Carson, Operations
    Research 27, 1979). Goals on other figures agree.

    Args:
        goal: the goal.
        met: the verdict: met, or else missed.
        windows: of its tenant.
        confidence: of the shares' interval.
        within_ns: latency within which a request counts as attained, for that figure.

    """
    import numpy as np

    allowed = allowed_slow(goal)
    if allowed is None:
        return True
    bound_ns = goal.bound if goal.quantile is not None else within_ns
    assert bound_ns is not None
    # Requests that were never served are the last.
    slow = [
        late
        for each in windows
        for late in (
            *(ns > bound_ns for ns in each.latency_ns),
            *[True] * (each.issued - len(each.latency_ns)),
        )
    ]
    if len(slow) < _BLOCKS:
        return False
    shares = np.array([np.mean(block) for block in np.array_split(slow, _BLOCKS)])
    reach = student_quantile((1 + confidence) / 2, _BLOCKS - 1) / math.sqrt(_BLOCKS)
    half, mean = float(shares.std(ddof=1)) * reach, float(shares.mean())
    return mean + half <= allowed if met else mean - half > allowed


def decided_by_s(
    goal: Goal, windows: Sequence[ServedRequests], estimate: Estimate, confidence: float,
    within_ns: float | None,
) -> float | None:  # fmt: skip
    """Return the length in seconds of a window that would decide a goal that these left undecided.

    Args:
        goal: the goal.
        windows: of its tenant.
        estimate: of its figure, from them.
        confidence: of its interval.
        within_ns: latency within which a request counts as attained, for that figure.

    Returns:
        the window's length; None if it is over 24 h, or cannot be told.

    """
    seen_s = sum(window.window_ns for window in windows) / 1e9
    issued = sum(window.issued for window in windows)
    share = allowed_slow(goal)
    if issued == 0:
        return None
    if share is not None:
        worth, slow = _worth(share, windows, goal, confidence, within_ns)
        wider = worth_at(windows, 1 - min(0.5, _WIDER * share), confidence)
        if wider < worth:
            worth, slow = wider, round(slow * wider / worth)
        most = int(_LONGEST_S * worth / seen_s)
        requests = requests_to_decide(share, slow, worth, confidence, most)
        return None if requests is None else _late_s(windows) + requests * seen_s / worth
    if goal.reference is not None and estimate.sessions > 1:
        # How much sessions differ stays in the interval, however long they are.
        return None
    if estimate.value is None or estimate.refused or not estimate.low < estimate.high < math.inf:
        return None
    deviation = (estimate.high - estimate.low) / 2 / NormalDist().inv_cdf((1 + confidence) / 2)
    times = _times_longer(abs(estimate.value - goal.bound) / deviation, confidence)
    found_s = _late_s(windows) + times * seen_s
    return found_s if found_s <= _LONGEST_S else None


def both_ends_by_s(
    windows: Sequence[ServedRequests], quantile: float, confidence: float
) -> float | None:
    """Return the length in seconds of a window that gives a tail percentile both ends.

    Of as many samples as suffice where they are independent, had each the worth of those seen.

    Args:
        windows: of its tenant; with requests that never completed, no length is long enough.
        quantile: such as 0.99.
        confidence: of the interval.

    Returns:
        the window's length; None if it is over 24 h, or cannot be told.

    """
    issued = sum(window.issued for window in windows)
    if issued == 0 or sum(len(window.latency_ns) for window in windows) < issued:
        return None
    # As in `decided_by_s`: few requests beyond the percentile hardly show how they follow.
    levels = (quantile, 1 - _WIDER * (1 - quantile))
    worth = min(worth_at(windows, level, confidence) for level in levels)
    seen_s = sum(window.window_ns for window in windows) / 1e9
    found_s = _late_s(windows) + seen_s * sufficient_samples(quantile) / worth
    return found_s if found_s <= _LONGEST_S else None


def _late_s(windows: Sequence[ServedRequests]) -> float:
    """Return how long a window lasts in seconds before the tenant comes."""
    return max((window.from_ns for window in windows), default=0) / 1e9


def _worth(
    share: float,
    windows: Sequence[ServedRequests],
    goal: Goal,
    confidence: float,
    within_ns: float | None,
) -> tuple[int, int]:
    """Return how many independent requests windows are worth, and how many of those are slow."""
    bound_ns = goal.bound if goal.quantile is not None else within_ns
    assert bound_ns is not None
    issued = sum(window.issued for window in windows)
    fast = sum(each <= bound_ns for window in windows for each in window.latency_ns)
    worth = worth_at(windows, 1 - share, confidence)
    return worth, round((issued - fast) * worth / issued)


class Chances(NamedTuple):
    """How likely it is that a goal will be met, and missed, once its windows are over."""

    met: float
    missed: float


def chances(
    goal: Goal, result: GoalResult, windows: Sequence[ServedRequests], confidence: float,
    within_ns: float | None, longer: float,
) -> Chances:  # fmt: skip
    """Return the predictive probability that a goal is met, and missed, after further requests.

    What was seen counts, and further requests are like those, with all that is not known of them
    (Spiegelhalter, Freedman and Blackburn, Controlled Clinical Trials 7, 1986).

    Args:
        goal: the goal.
        result: its result so far.
        windows: of its tenant so far.
        confidence: at which it will be judged.
        within_ns: latency within which a request counts as attained, for that figure.
        longer: the whole time, by that of these windows.

    Returns:
        both are 1 where nothing can be told yet.

    """
    if result.verdict != "undecided":
        return Chances(float(result.verdict == "met"), float(result.verdict == "missed"))
    share = allowed_slow(goal)
    if share is not None and any(window.issued for window in windows):
        worth, slow = _worth(share, windows, goal, confidence, within_ns)
        further = round(worth * (longer - 1))
        shares = _posterior(slow, worth)
        return _chances(share, shares, worth + further, confidence, slow, further)
    found = result.figure
    low, high = found.ends
    if found.value is None or found.refused or low is None or high is None or not low < high:
        return Chances(1.0, 1.0)
    deviation = (high - low) / 2 / NormalDist().inv_cdf((1 + result.confidence) / 2)
    # A mean of n values, of which the first were seen, around theirs: s²(1/seen - 1/n).
    reach = NormalDist().inv_cdf((1 + confidence) / 2) * deviation / math.sqrt(longer)
    spread = deviation * math.sqrt(1 - 1 / longer)
    distance = found.value - goal.bound / goal.factor
    above = normal_cdf((distance - reach) / spread)
    below = normal_cdf((-distance - reach) / spread)
    return Chances(above, below) if goal.comparison.startswith(">") else Chances(below, above)


def may_decide(found: Sequence[Chances]) -> bool:
    """Whether a case's goals may yet be decided: one missed, or all met, in one of five cases."""
    met = min((each.met for each in found), default=1.0)
    return met + max((each.missed for each in found), default=1.0) >= _LEAST_CHANCE


# A search asks after every window, mostly of goals whose counts it has asked about before.
@lru_cache(maxsize=1024)
def requests_to_decide(
    allowed: float, slow: int, issued: int, confidence: float, most: int
) -> int | None:
    """Return how many requests decide whether the share of slow ones is within the allowed one.

    The share has Jeffreys' posterior, a beta distribution, after ``slow`` of ``issued``.

    Returns:
        the number; None if it is above ``most``.

    """
    return requests_if(allowed, _posterior(slow, issued), confidence, most)


def _posterior(slow: int, issued: int) -> NDArray[np.float64]:
    """Return shares of slow requests that are equally likely after so many slow ones."""
    import numpy as np
    from scipy.special import betaincinv

    at = (np.arange(_POSTERIOR_POINTS) + 0.5) / _POSTERIOR_POINTS
    shares: NDArray[np.float64] = betaincinv(slow + 0.5, issued - slow + 0.5, at)
    return shares


def requests_if(
    allowed: float, shares: float | NDArray[np.float64], confidence: float, most: int
) -> int | None:
    """Return how many requests decide it if the share of slow ones is one of ``shares``, alike.

    Returns:
        the number; None if it is above ``most``.

    """
    return _least(lambda n: sum(_chances(allowed, shares, n, confidence, 0, n)) >= ASSURANCE, most)


def _chances(
    allowed: float, shares: float | NDArray[np.float64], requests: int, confidence: float,
    slow: int, further: int,
) -> Chances:  # fmt: skip
    """Return how likely so many requests decide, of which the ``further`` ones are not yet seen."""
    import numpy as np
    from scipy.special import bdtr, bdtrc

    tail = (1 - confidence) / 2
    # As the exact intervals: met with at most so many slow requests, missed with so many.
    met = binomial_quantile(tail, requests, allowed) - 1 - slow
    missed = binomial_quantile(1 - tail, requests, allowed) + 1 - slow
    return Chances(
        0.0 if met < 0 else float(np.mean(bdtr(min(met, further), further, shares))),
        1.0 if missed <= 0 else float(np.mean(bdtrc(min(missed - 1, further), further, shares))),
    )


def planned_window(goal: Goal, rate_per_s: float, confidence: float) -> PlannedWindow | None:
    """Return how long a window decides a goal on slow requests; None for any other goal."""
    share, least = allowed_slow(goal), least_requests(goal, confidence)
    if share is None or least is None:
        return None
    enough = max(least, sufficient_samples(min(1 - share, _FURTHEST)))
    half = requests_if(share, share / 2, confidence, int(_LONGEST_S * rate_per_s))
    half_s = None if half is None else max(enough, half) / rate_per_s
    return PlannedWindow(goal, rate_per_s, enough, least / rate_per_s, enough / rate_per_s, half_s)


def _times_longer(distance: float, confidence: float) -> float:
    """Return how many times longer to measure a figure so many deviations from its bound.

    Figure and interval are taken for normal, and the deviation to fall with the root of the length.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)

    def decided(times: int) -> bool:
        deviation = math.sqrt(4 / times)
        spread = math.sqrt(1 + deviation**2)
        above = normal_cdf((distance - z * deviation) / spread)
        below = normal_cdf((-distance - z * deviation) / spread)
        return above + below >= ASSURANCE

    found = _least(decided, 10**6)
    return math.inf if found is None else found / 4


def _least(holds: Callable[[int], bool], most: int) -> int | None:
    """Return a least number for which something holds, from 1 to ``most``; None if none does."""
    high = 1
    while not holds(high):
        if high >= most:
            return None
        high = min(2 * high, most)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
