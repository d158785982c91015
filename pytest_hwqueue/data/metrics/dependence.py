"""Dependence of samples, and distributions.

scipy.stats has these distributions too, but is slow to import; scipy.special loads on first use.

Requests of one queue, iterations on one machine and launches of one iteration resemble those
before them. Intervals that took them for independent covered 9 % of the time where they promised
95 % (M/D/1 at load 0.9). Every interval of a series is formed here, or from its worth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def normal_cdf(x: float) -> float:
    """Return P(X <= x) of the standard normal distribution."""
    return math.erfc(-x / math.sqrt(2)) / 2


@lru_cache(maxsize=4096)
def student_quantile(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t, ``freedom`` being at least 1."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))


def student_cdf(x: float, freedom: float) -> float:
    """Return P(X <= x) of Student's t."""
    from scipy.special import stdtr

    return float(stdtr(freedom, x))


def chi2_quantile(probability: float, freedom: float) -> float:
    """Return the quantile of chi-squared, ``freedom`` being at least 1."""
    from scipy.special import gammaincinv

    return 2 * float(gammaincinv(freedom / 2, probability))


def f_quantile(probability: float, numerator: int, denominator: int) -> float:
    """Return the quantile of F with these degrees of freedom."""
    from scipy.special import fdtri

    return float(fdtri(numerator, denominator, probability))


def f_sf(x: float, numerator: float, denominator: float) -> float:
    """Return P(X > x) of F with these degrees of freedom, for an x of at least 0."""
    from scipy.special import fdtrc

    return float(fdtrc(numerator, denominator, x))


def binomial_cdf(count: int, n: int, p: float) -> float:
    """Return P(X <= count) of X successes in ``n`` trials, for a count from -1 to n."""
    from scipy.special import bdtr

    return float(bdtr(count, n, p)) if count >= 0 else 0.0


def binomial_sf(count: int, n: int, p: float) -> float:
    """Return P(X > count) of X successes in ``n`` trials, for a count from -1 to n."""
    from scipy.special import bdtrc

    return float(bdtrc(count, n, p)) if count >= 0 else 1.0


def binomial_quantile(probability: float, n: int, p: float) -> int:
    """Return the least count k with P(X <= k) >= ``probability``."""
    from scipy.special import bdtrik

    # The function is continuous in k; rounding may put it a count too high.
    count = max(0, math.ceil(float(bdtrik(probability, n, p))))
    return count - 1 if count > 0 and binomial_cdf(count - 1, n, p) >= probability else count


def proportion_interval(number: int, n: int, confidence: float) -> tuple[float, float]:
    """Return the exact interval of a proportion (Clopper & Pearson, Biometrika 26, 1934).

    Args:
        number: successes, 0 to n.
        n: independent trials, at least 1.
        confidence: of both ends together.

    """
    from scipy.special import betaincinv

    if not 0 <= number <= n or n < 1:
        raise ValueError(f"{number} of {n} is no proportion")
    tail = (1 - confidence) / 2
    low = 0.0 if number == 0 else float(betaincinv(number, n - number + 1, tail))
    high = 1.0 if number == n else float(betaincinv(number + 1, n - number, 1 - tail))
    return low, high


# Dependence is seen poorly in a series that it nearly outlasts: what it adds to the variance is
# taken at its upper bound. tools/coverage.py measures what that leaves uncovered.
_BOUND = 0.98
# What few samples beyond a percentile show is held against what so many times as many do.
_MORE = 1.4


@dataclass(frozen=True)
class LongRun:
    """How much the mean of a series varies.

    Attributes:
        variance: n times the variance of the mean of n values, at its upper bound; that of a value
            if values are independent.
        freedom: degrees of freedom with which it is known.

    """

    variance: float
    freedom: float


def long_run(parts: Sequence[NDArray[np.float64]]) -> LongRun:
    """Return how much the mean of a series varies, successive values being dependent or not.

    It is the initial monotone sequence estimate (Geyer, Statistical Science 7, 1992): lags are
    added up in groups until a group's sum of autocovariances is no longer positive, and no group
    counts more than the one before it. Groups have the fourth root of n lags, so that a short
    period, such as that of requests in batches, does not end the sum. Dependence that makes a mean
    more precise is not counted. The degrees of freedom are n over the lags on both sides
    (Priestley, Spectral Analysis and Time Series, 1981, section 6.2.3, for a flat window); the
    share that the mean takes out of autocovariances is put back, and what dependence adds to the
    variance is divided by its chi-squared quantile of 2 %.

    Args:
        parts: arrays of shape (n_i,), in the order taken. Between parts (windows) nothing depends,
            and each is taken around its own mean: how much runs differ is not seen here.

    """
    import numpy as np

    n = sum(part.size for part in parts)
    group = max(2, math.floor(n**0.25))
    longest = max(part.size for part in parts)
    lags = np.zeros(-(-longest // group) * group)
    for part in parts:
        spectrum = np.fft.rfft(part - part.mean(), 1 << (2 * part.size - 1).bit_length())
        lags[: part.size] += np.fft.irfft(np.abs(spectrum) ** 2)[: part.size] / n
    own = float(lags[0])
    if own <= 0 or n < 2:
        return LongRun(0.0, max(1, n - 1))
    sums = lags.reshape(-1, group).sum(axis=1)
    # The ends of the series alone leave so much of a period as long as a group.
    ended = np.flatnonzero(sums <= own * group / n)
    kept = np.minimum.accumulate(sums[: ended[0] if ended.size else sums.size])
    window = max(1, 2 * group * kept.size - 1)
    freedom = max(1.0, min(n / window, n - 1.0))
    summed = max(own, 2 * float(kept.sum()) - own) / max(1 - 2 * window / n, 1 / n)
    surely = chi2_quantile(1 - _BOUND, freedom) / freedom
    return LongRun(own + (summed - own) / surely, freedom)


def worth_of_share(parts: Sequence[NDArray[np.bool_]], confidence: float, block: int = 1) -> float:
    """Return how many independent samples tell as much about a share as these do.

    The long-run variance of the share over that of independent samples is the design effect, which
    divides n (Korn & Graubard, Survey Methodology 24, 1998). Samples of one block (an iteration)
    are counted together, so they may depend on each other in any way.

    Args:
        parts: arrays of shape (n_i,) of whether each sample counts, as `long_run`'s.
        confidence: of the interval to form. The fewer degrees of freedom the variance has, the
            less the samples are worth, as Student's t says.
        block: successive samples of one iteration; the last block may be shorter.

    Returns:
        at most n, the number of all samples.

    """
    import numpy as np

    n = sum(part.size for part in parts)
    share = sum(int(part.sum()) for part in parts) / n
    if not 0 < share < 1:
        return float(n)
    counts = [part.astype(np.float64) - share for part in parts]
    if block > 1:
        counts = [np.add.reduceat(part, np.arange(0, part.size, block)) for part in counts]
    found = long_run(counts)
    blocks = sum(part.size for part in counts)
    effect = max(1.0, found.variance * blocks / n / (share * (1 - share)))
    tail = (1 + confidence) / 2
    known = student_quantile(tail, max(1, n - 1)) / student_quantile(tail, found.freedom)
    return min(float(n), n / effect * known**2)


def independent_samples(
    parts: Sequence[NDArray[np.float64]], quantile: float, confidence: float, block: int = 1
) -> float:
    """Return how many independent samples tell as much about a quantile as these do.

    It is `worth_of_share` of the samples above the quantile (Woodruff, JASA 47, 1952), and of those
    not below it: where samples are equal to the quantile, either may be all or nothing. Above the
    median it is also that of 1.4 times as many samples, and the least counts.

    Args:
        parts: arrays of shape (n_i,), as `long_run`'s; infinite samples are the slowest.
        quantile: between 0 and 1, both excluded.
        confidence: as `worth_of_share`'s.
        block: likewise.

    """
    import numpy as np

    values = np.concatenate(parts)
    worth = float(values.size)
    levels = [quantile] if quantile <= 0.5 else [quantile, 1 - _MORE * (1 - quantile)]
    for level in levels:
        at = np.quantile(values, level, method="inverted_cdf")
        worth = min(worth, worth_of_share([part > at for part in parts], confidence, block))
        if np.count_nonzero(values == at) > 1:
            worth = min(worth, worth_of_share([part >= at for part in parts], confidence, block))
    return worth
