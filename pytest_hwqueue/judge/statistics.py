"""Tests of a difference: exact, Student's, and over many cells.

Runs measured in pairs need to be exchangeable within their pair only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pytest_hwqueue.data.metrics.dependence import student_cdf, student_quantile

GRID = 2000
"""Values are rounded to this fraction of their range before they are summed and compared."""


def least_p(runs: int, new_runs: int, *, paired: bool) -> float:
    """Return the smallest p that ``exact_p`` can return for these numbers of runs."""
    ways = 2 ** min(runs, new_runs) if paired else math.comb(runs + new_runs, new_runs)
    return 1 / ways


def exact_p(x: Sequence[float], y: Sequence[float], *, paired: bool) -> float:
    """Return the p of ``sign_flip_p`` for pairs, else of ``permutation_p``."""
    return sign_flip_p(x, y) if paired else permutation_p(x, y)


def permutation_p(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the exact one-sided permutation p for ``y`` having the greater mean.

    It is the share of all C(K+M, M) ways to call M of the runs new whose mean difference is at
    least the observed one (Fisher, The Design of Experiments, 1935, section 21). They are
    counted by dynamic programming over sums (Pagano & Tritchler, JASA 78, 1983) of values rounded
    to 1/2000 of their range. The rounding knows nothing of the labels, so the p stays exact; ties
    that it makes count against an alarm. If every ``y`` exceeds every ``x`` there is one such way.

    Args:
        x: shape (K,), K >= 1, finite, larger is worse.
        y: shape (M,), M >= 1, the same.
    """
    least, most = min(*x, *y), max(*x, *y)
    if least == most:
        return 1.0
    if min(y) > max(x):
        return least_p(len(x), len(y), paired=False)
    steps = [_steps(value - least, most - least) for value in (*x, *y)]
    low = sum(steps[: len(x)])
    # "The new runs' sum is at least as high" and "the baseline's is at most as low" count the
    # same relabellings; the cheaper table is the one with fewer rows and sums.
    reflected = [GRID - step for step in steps]
    high = sum(reflected[len(x) :])
    if len(x) * low <= len(y) * high:
        count = _subsets_up_to(steps, len(x), low)
    else:
        count = _subsets_up_to(reflected, len(y), high)
    return count / math.comb(len(steps), len(x))


def sign_flip_p(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the exact one-sided p for the new runs of pairs being greater.

    It is the share of all 2^P ways to call one run of each pair new whose mean difference is at
    least the observed one (Fisher, The Design of Experiments, 1935, section 21). Differences are
    rounded to 1/2000 of the largest, by size alone, so the p stays exact; ties count against an
    alarm. If every new run is the greater one of its pair there is one such way.

    Args:
        x: shape (P,), P >= 1, finite, larger is worse: the old run of each pair.
        y: shape (P,), the new run.
    """
    differences = [new - old for old, new in zip(x, y, strict=True)]
    if min(differences) > 0:
        return least_p(len(x), len(y), paired=True)
    most = max(map(abs, differences))
    if most == 0:
        return 1.0
    # A way has at least this difference if the sizes of its falls add up to at most the observed.
    limit = sum(_steps(-value, most) for value in differences if value < 0)
    ways: NDArray[np.float64] = np.zeros(limit + 1)
    ways[0] = 1
    for value in differences:
        step = _steps(abs(value), most)
        if step <= limit:
            ways[step:] += ways[: limit + 1 - step].copy()
    return float(ways.sum()) * 0.5 ** len(differences)


def _steps(value: float, span: float) -> int:
    return round(value / span * GRID)


def _subsets_up_to(steps: Sequence[int], size: int, limit: int) -> float:
    """Count the subsets of ``size`` of the steps whose sum is at most ``limit``."""
    ways: NDArray[np.float64] = np.zeros((size + 1, limit + 1))
    ways[0, 0] = 1
    for taken, step in enumerate(steps, start=1):
        if step <= limit:
            rows = min(taken, size)
            ways[1 : rows + 1, step:] += ways[:rows, : limit + 1 - step].copy()
    return float(ways[size].sum())


Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class MeanDifference:
    """The difference of two means of logarithms, and the parts of its error.

    ``sd`` is pooled within both sides and not below the floor, ``seen_sd`` the same without a
    floor; ``inverse_runs`` is 1/K + 1/M, and ``session_share`` the part of a session effect's
    variance that stays in the difference.
    """

    mean: float
    sd: float
    freedom: int
    inverse_runs: float
    session_share: float
    seen_sd: float

    @property
    def sd_is_floor(self) -> bool:
        """Whether ``sd`` is the floor: the runs' own is below it."""
        return self.seen_sd < self.sd

    def error(self, tau: float) -> float:
        """Return the standard error of the mean difference; ``tau`` is the session sd."""
        return math.sqrt(self.sd**2 * self.inverse_runs + tau**2 * self.session_share)

    def freedom_with(self, tau: float) -> float:
        """Return the degrees of freedom of `error`: ``tau`` is known, only ``sd`` is estimated.

        Welch and Satterthwaite's (Biometrics Bulletin 2, 1946).
        """
        return self.freedom * (self.error(tau) / self.error(0)) ** 4

    def p_above(self, tau: float) -> float:
        """Return the one-sided p for the new mean being greater."""
        return student_cdf(-self.mean / self.error(tau), self.freedom_with(tau))

    def p_below(self, tau: float) -> float:
        """Return the one-sided p for the new mean being smaller."""
        return student_cdf(self.mean / self.error(tau), self.freedom_with(tau))

    def interval(self, tau: float, confidence: float) -> tuple[float, float]:
        """Return the two-sided t interval of the mean difference."""
        half = student_quantile((1 + confidence) / 2, self.freedom_with(tau)) * self.error(tau)
        return self.mean - half, self.mean + half


def compare_pairs(x: Sequence[float], y: Sequence[float], floor: float) -> MeanDifference:
    """Compare the two sides of pairs of runs of one session by the paired t.

    ``sd`` is that of one run without what the pair shares, so its error is that of the mean of
    the pairs' differences.

    Args:
        x: shape (P,), P >= 2, logarithms of the old runs' figures.
        y: shape (P,), the new runs of the same pairs.
        floor: the least standard deviation believed.
    """
    differences = [new - old for old, new in zip(x, y, strict=True)]
    mean = math.fsum(differences) / len(differences)
    squares = math.fsum((difference - mean) ** 2 for difference in differences)
    freedom = len(differences) - 1
    seen = math.sqrt(squares / freedom / 2)
    return MeanDifference(
        mean,
        max(seen, floor),
        freedom,
        inverse_runs=2 / len(differences),
        session_share=0.0,
        seen_sd=seen,
    )


def session_share(sessions: Sequence[str]) -> float:
    """Return the share of a session effect's variance that stays in the mean of runs.

    It is the sum of the squared shares of runs by session: 1/K if every run has its own session, 1
    if all came from one.
    """
    return math.fsum((count / len(sessions)) ** 2 for count in Counter(sessions).values())


def compare(
    x: Sequence[float], y: Sequence[float], floor: float, session_share: float
) -> MeanDifference:
    """Compare two sides of runs by the pooled two-sample t.

    Sums are exactly rounded, so that the order of the runs does not matter.

    Args:
        x: shape (K,), logarithms of the baseline runs' figures.
        y: shape (M,), the same of the new runs; K + M >= 3.
        floor: the smallest credible standard deviation. A few runs agree by chance, and clocks
            tick.
        session_share: of both sides together.
    """
    freedom = len(x) + len(y) - 2
    mean_x, mean_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
    squares = math.fsum((v - mean_x) ** 2 for v in x) + math.fsum((v - mean_y) ** 2 for v in y)
    seen = math.sqrt(squares / freedom)
    return MeanDifference(
        mean=mean_y - mean_x,
        sd=max(seen, floor),
        freedom=freedom,
        inverse_runs=1 / len(x) + 1 / len(y),
        session_share=session_share,
        seen_sd=seen,
    )


def turns(items: Sequence[Item], rounds: int) -> list[tuple[int, Item]]:
    """Return turns in which steady drift of a machine affects all alike: ABC CBA ABC.

    Each has its round's number, from 1, and an item.

    Raises:
        ValueError: if there are no items, or ``rounds`` is below 1.

    """
    if not items or rounds < 1:
        raise ValueError(f"there must be items and rounds, are {len(items)} and {rounds}")
    return [
        (number, item)
        for number in range(1, rounds + 1)
        for item in items[:: 1 if number % 2 else -1]
    ]


def rejected(p_values: Mapping[Item, float], rate: float, cells: int) -> set[Item]:
    """Return the keys that Benjamini and Hochberg's procedure rejects at ``rate``.

    The k least p-values are rejected, k being the greatest rank with p <= rate k / cells
    (Benjamini & Hochberg, JRSS B 57, 1995). In an unchanged suite any alarm has a probability of at
    most ``rate``, for independent and for positively dependent cells (Benjamini & Yekutieli,
    Annals of Statistics 29, 2001).

    Args:
        p_values: one p per key.
        rate: between 0 and 1.
        cells: how many cells were compared, at least as many as ``p_values`` holds; those
            without a p there count with p = 1.

    Raises:
        ValueError: if ``cells`` is below the number of p-values.
    """
    if cells < len(p_values):
        raise ValueError(f"cells must be at least the {len(p_values)} p-values, is {cells}")
    threshold = -1.0
    for rank, p in enumerate(sorted(p_values.values()), start=1):
        if p <= rate * rank / cells:
            threshold = p
    return {key for key, p in p_values.items() if p <= threshold}
