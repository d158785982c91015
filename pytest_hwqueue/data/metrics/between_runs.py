"""What several runs say of a percentile that none of them has an interval of.

A run whose samples follow each other may be worth too few for an interval of its P99, however many
there are. Runs in fresh processes are independent: they bound the P99 of the *median run*, the one
that half of this session's runs would exceed. It is no prediction: of a seventh run it holds in 5
of 7 cases, and another session differs by more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance

from pytest_hwqueue.data.metrics.dependence import binomial_cdf, student_quantile
from pytest_hwqueue.data.metrics.estimate import Interval
from pytest_hwqueue.data.metrics.numbers import counted

_LEAST_FOR_RANKS = 6
_LEAST_FOR_T = 3


@dataclass(frozen=True)
class RunSpread:
    """How much runs of one session differ, as runs before show it.

    Attributes:
        sd: standard deviation of the figure's logarithm between the runs of a session.
        freedom: degrees of freedom with which it is known.

    """

    sd: float
    freedom: int


def spread_within(sessions: Sequence[Sequence[float]]) -> RunSpread | None:
    """Return how much runs of one session differ; None where no session has two.

    Args:
        sessions: each session's figures, all above 0.

    """
    several = [[math.log(value) for value in runs] for runs in sessions if len(runs) > 1]
    freedom = sum(len(runs) - 1 for runs in several)
    if not freedom:
        return None
    squares = sum(variance(runs) * (len(runs) - 1) for runs in several)
    return RunSpread(math.sqrt(squares / freedom), freedom)


@dataclass(frozen=True)
class MedianRun:
    """The interval of the median run's figure.

    Attributes:
        interval: in the figure's unit.
        by: the runs and the method.

    """

    interval: Interval
    by: str


def median_run(
    values: Sequence[float], confidence: float, known: RunSpread | None = None
) -> MedianRun | None:
    """Return the interval of the median run's figure, or None for too few runs.

    From 6 runs on its ends are two of them, whatever the distribution: of 6, the least and the
    greatest hold the median in 96.9 % of cases (David & Nagaraja, Order Statistics, 3rd ed.,
    section 7.1). 3 to 5 have that of Student's t for the mean logarithm, and fewer that of t with a
    spread known before.

    Args:
        values: one a run of the session, all above 0.
        confidence: two-sided, between 0 and 1, both excluded.
        known: the spread between earlier runs.

    """
    count = len(values)
    if count >= _LEAST_FOR_RANKS:
        return MedianRun(_ranked(sorted(values), confidence), f"{count} runs")
    if count >= _LEAST_FOR_T:
        spread = RunSpread(stdev(map(math.log, values)), count - 1)
        by = f"{count} runs, Student's t"
    elif known is not None and count:
        spread = known
        by = f"{counted(count, 'run')} and how far the baseline's differ within a session"
    else:
        return None
    half = student_quantile((1 + confidence) / 2, spread.freedom) * spread.sd / math.sqrt(count)
    middle = fmean(map(math.log, values))
    return MedianRun((math.exp(middle - half), math.exp(middle + half)), by)


def _ranked(ordered: Sequence[float], confidence: float) -> Interval:
    """Return the narrowest two of the runs that hold the median with this confidence."""
    count, tail = len(ordered), (1 - confidence) / 2
    rank = 1
    while 2 * (rank + 1) <= count and binomial_cdf(rank, count, 0.5) <= tail:
        rank += 1
    return ordered[rank - 1], ordered[count - rank]
