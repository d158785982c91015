"""The distributions that intervals need, built on scipy.special.

scipy.stats has them too, but is slow to import; scipy.special loads on first use.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Counts = int | Sequence[int] | NDArray[np.int64]


def normal_cdf(x: float) -> float:
    """Return P(X <= x) of the standard normal distribution."""
    return math.erfc(-x / math.sqrt(2)) / 2


@lru_cache(maxsize=4096)
def student_quantile(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t, ``freedom`` being at least 1."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))


def student_cdf(x: float, freedom: int) -> float:
    """Return P(X <= x) of Student's t."""
    from scipy.special import stdtr

    return float(stdtr(freedom, x))


def chi2_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of chi-squared, ``freedom`` being at least 1."""
    from scipy.special import gammaincinv

    return 2 * float(gammaincinv(freedom / 2, probability))


def f_quantile(probability: float, numerator: int, denominator: int) -> float:
    """Return the quantile of F with these degrees of freedom."""
    from scipy.special import fdtri

    return float(fdtri(numerator, denominator, probability))


def binomial_cdf(counts: Counts, n: int, p: float) -> NDArray[np.float64]:
    """Return P(X <= count) of X successes in ``n`` trials, for each count from -1 to n."""
    import numpy as np
    from scipy.special import bdtr

    found = np.asarray(counts, dtype=np.float64)
    return np.where(found < 0, 0.0, bdtr(np.maximum(found, 0), n, p))


def binomial_sf(counts: Counts, n: int, p: float) -> NDArray[np.float64]:
    """Return P(X > count) of X successes in ``n`` trials, for each count from -1 to n."""
    import numpy as np
    from scipy.special import bdtrc

    found = np.asarray(counts, dtype=np.float64)
    return np.where(found < 0, 1.0, bdtrc(np.maximum(found, 0), n, p))


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
