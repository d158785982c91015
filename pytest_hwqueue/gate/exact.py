"""Exact p-values by relabelling runs: valid for any distribution if runs are exchangeable."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

GRID = 2000
"""Values are rounded to this fraction of their range before they are summed and compared."""


def permutation_floor(runs: int, new_runs: int) -> float:
    """Return the smallest p that ``permutation_p`` can return for these numbers of runs."""
    return 1 / math.comb(runs + new_runs, new_runs)


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
        return permutation_floor(len(x), len(y))
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
