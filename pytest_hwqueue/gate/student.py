"""Student's t over runs, with a noise floor and a session term."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_hwqueue.metrics.distributions import student_cdf, student_quantile


@dataclass(frozen=True, slots=True)
class MeanDifference:
    """The difference of two means of logarithms, and the parts of its error.

    ``sd`` is pooled within both sides and not below the floor; ``inverse_runs`` is 1/K + 1/M, and
    ``session_share`` the part of a session effect's variance that stays in the difference.
    """

    mean: float
    sd: float
    freedom: int
    inverse_runs: float
    session_share: float

    def error(self, tau: float) -> float:
        """Return the standard error of the mean difference; ``tau`` is the session sd."""
        return math.sqrt(self.sd**2 * self.inverse_runs + tau**2 * self.session_share)

    def p_above(self, tau: float) -> float:
        """Return the one-sided p for the new mean being greater."""
        return student_cdf(-self.mean / self.error(tau), self.freedom)

    def p_below(self, tau: float) -> float:
        """Return the one-sided p for the new mean being smaller."""
        return student_cdf(self.mean / self.error(tau), self.freedom)

    def interval(self, tau: float, confidence: float) -> tuple[float, float]:
        """Return the two-sided t interval of the mean difference."""
        half = student_quantile((1 + confidence) / 2, self.freedom) * self.error(tau)
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
    sd = max(math.sqrt(squares / freedom / 2), floor)
    return MeanDifference(mean, sd, freedom, inverse_runs=2 / len(differences), session_share=0.0)


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
    return MeanDifference(
        mean=mean_y - mean_x,
        sd=max(math.sqrt(squares / freedom), floor),
        freedom=freedom,
        inverse_runs=1 / len(x) + 1 / len(y),
        session_share=session_share,
    )
