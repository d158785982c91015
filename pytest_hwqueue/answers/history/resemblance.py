"""How much sessions may resemble their predecessors, and what that makes of a series by chance.

Machines warm up, neighbours come and go: a session is often like the one before. Such a series
wanders, and tests for independent sessions take that for steps: of flat series with a lag-1
correlation of 0.7, four of five had one. So the correlation is estimated first, around a step or a
line so that neither counts as correlation, and its upper bound is allowed for: a series of a few
sessions, which hardly shows whether they are independent, is not taken to be.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Of the bound on a correlation, one-sided. tools/history_rates.py counts what it leaves: of flat
# autoregressive series at most 2 % have a step.
_BELOW = 0.1
_CORRELATIONS = (*np.arange(10) / 10, 0.95, 0.98)
_DRAWS, _SEED = 1000, 3
# Lengths for which bounds are simulated; one between two has that of the shorter, which is wider.
_LENGTHS = (3, 5, 7, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100, 150, 200, 300, 500, 1000)


def separations(rows: Floats) -> Floats:
    """Return the variance between both sides of each place, shape (rows, sessions - 1).

    With the total fixed, as it is between permutations, it grows with |t|.
    """
    length = rows.shape[1]
    counts = np.arange(1, length)
    left = np.cumsum(rows - rows.mean(axis=1, keepdims=True), axis=1)[:, :-1]
    found: Floats = left**2 * length / (counts * (length - counts))
    return found


def without_step(rows: Floats) -> Floats:
    """Return what is left of series around the step that separates each best; rows alike."""
    places = separations(rows).argmax(axis=1)[:, np.newaxis] + 1
    before = np.arange(rows.shape[1]) < places
    left = np.where(before, rows, 0).sum(axis=1, keepdims=True) / places
    right = np.where(before, 0, rows).sum(axis=1, keepdims=True) / (rows.shape[1] - places)
    return np.asarray(rows - np.where(before, left, right))


def without_line(rows: Floats) -> Floats:
    """Return what is left of series around the line of least squares through each; rows alike."""
    places = np.arange(rows.shape[1]) - (rows.shape[1] - 1) / 2
    centred = rows - rows.mean(axis=1, keepdims=True)
    slopes = centred @ places / (places @ places)
    return np.asarray(centred - slopes[:, np.newaxis] * places)


def greatest_correlation(series: Floats, around: Callable[[Floats], Floats]) -> float:
    """Return the greatest lag-1 correlation that a series leaves likely.

    Args:
        series: shape (sessions,), three or more.
        around: `without_step` or `without_line`: what is taken away before sessions are compared
            with their predecessors. That takes correlation away, too, which the bound allows for.

    """
    length = max(each for each in _LENGTHS if each <= len(series))
    seen = float(_correlations(around(series[np.newaxis, :]))[0])
    return float(np.interp(seen, _least_seen(length, around), _CORRELATIONS))


@lru_cache(maxsize=64)
def _least_seen(length: int, around: Callable[[Floats], Floats]) -> Floats:
    """Return what hardly a series of each correlation lies below; ascending."""
    normal = np.random.default_rng(_SEED).standard_normal((_DRAWS, length))
    seen = [_correlations(around(coloured(normal, each))) for each in _CORRELATIONS]
    return np.asarray(np.maximum.accumulate([np.quantile(each, _BELOW) for each in seen]))


def _correlations(rows: Floats) -> Floats:
    scale = (rows**2).sum(axis=1)
    # Equal sessions follow nothing.
    return np.asarray((rows[:, 1:] * rows[:, :-1]).sum(axis=1) / np.where(scale > 0, scale, 1))


def coloured(innovations: Floats, correlation: float) -> Floats:
    """Return stationary series of which each session resembles the one before; rows alike."""
    from scipy.signal import lfilter

    own = np.array(innovations)
    own[..., 0] /= (1 - correlation**2) ** 0.5
    return np.asarray(lfilter([1.0], [1.0, -correlation], own, axis=-1))


def innovations_of(series: Floats, correlation: float) -> Floats:
    """Return what each session adds to what it has from the one before; `coloured` undone."""
    own = series - series.mean()
    own[1:] -= correlation * own[:-1].copy()
    own[0] *= (1 - correlation**2) ** 0.5
    return np.asarray(own)
