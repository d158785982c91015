"""Finds where a series of sessions changed: candidates by apache-otava, confidence by permutation.

apache-otava (formerly Hunter; Fleming et al., Hunter: Using Change Point Detection to Hunt for
Performance Regressions, ICPE 2023) proposes the places: E-divisive means (Matteson & James, JASA
109, 2014) in sliding windows with a t-test. Its p is that of a place chosen beforehand, although
the place is chosen as the most conspicuous one: at its default of 0.001, 4 of 100 flat histories of
60 sessions have a change point. So each candidate has to pass a permutation test that chooses its
place as well, and that test's p is what is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pytest_hwqueue.metrics.distributions import student_quantile

LEAST_SESSIONS = 10
"""With fewer sessions no change can be found at 1 %, however large: of the arrangements of nine
sessions, more than 1 % put the same values on one side of a place."""

# Generous, as the permutation test decides: otava's first pass then takes 0.1.
_PROPOSING_P = 0.01
_WINDOW = 50
_PERMUTATIONS = 4999
LEAST_P = 1 / (_PERMUTATIONS + 1)
"""The least p, and so the least rate that means anything."""

_SEED = 0
_CONFIDENCE = 0.95


class OtavaMissing(RuntimeError):
    """apache-otava is not installed; the text says how to get it."""


@dataclass(frozen=True)
class ChangePoint:
    """A place where a series changed.

    Attributes:
        index: of the first session after the change.
        ratio: geometric mean of the sessions after over that before, each up to the next change.
        interval: 95 %, of ``ratio``: Welch's t interval, not corrected for the choice of the place.
        p: of the permutation test; `1 - p` is the confidence that there is a change.

    """

    index: int
    ratio: float
    interval: tuple[float, float]
    p: float


def find_change_points(
    values: Sequence[float] | NDArray[np.float64], rate: float
) -> list[ChangePoint]:
    """Return a series' change points in order.

    Args:
        values: one figure per session, finite and above 0, oldest first.
        rate: share of flat series that may have a change point.

    Raises:
        OtavaMissing: if apache-otava is not installed.
        ValueError: if a value is not finite and above 0.

    """
    logs = np.log(np.asarray(values, dtype=np.float64))
    if not np.all(np.isfinite(logs)):
        raise ValueError("every session's value must be finite and above 0 to find changes")
    places = _proposed(logs)
    p_values = {place: _p(logs, places, place) for place in places}
    # As in Hunter's merging: without the weakest, its neighbours stand between longer stretches.
    while p_values and max(p_values.values()) > rate:
        weakest = max(p_values, key=lambda place: p_values[place])
        at = places.index(weakest)
        places.remove(weakest)
        del p_values[weakest]
        for neighbour in places[max(0, at - 1) : at + 1]:
            p_values[neighbour] = _p(logs, places, neighbour)
    return [ChangePoint(place, *_change(logs, places, place), p_values[place]) for place in places]


def levels(
    values: Sequence[float] | NDArray[np.float64], changes: Sequence[ChangePoint]
) -> list[float]:
    """Return the geometric mean of each stretch between change points, oldest first."""
    logs = np.log(np.asarray(values, dtype=np.float64))
    ends = [0, *(change.index for change in changes), len(logs)]
    return [float(np.exp(logs[start:end].mean())) for start, end in pairwise(ends)]


def _proposed(logs: NDArray[np.float64]) -> list[int]:
    """Return apache-otava's change points."""
    try:
        # Only NumPy and SciPy are imported with this module, none of otava's data bases.
        from otava.analysis import compute_change_points
    except ModuleNotFoundError as error:
        raise OtavaMissing(
            "change points are found by apache-otava, which is not installed "
            f"({error.name} is missing): pip install 'pytest-hwqueue[history]', or, to keep your "
            "NumPy and SciPy, pip install --no-deps apache-otava"
        ) from error
    # A t-test between constant stretches divides by zero; its p is then 0, or not a number.
    with np.errstate(all="ignore"):
        found, _ = compute_change_points(
            logs.tolist(), window_len=_WINDOW, max_pvalue=_PROPOSING_P, min_magnitude=0.0
        )
    return sorted({int(point.index) for point in found})


def _stretch(logs: NDArray[np.float64], places: Sequence[int], place: int) -> tuple[int, int]:
    """Return where the stretches on both sides of a place begin and end."""
    before = max((other for other in places if other < place), default=0)
    after = min((other for other in places if other > place), default=len(logs))
    return before, after


def _p(logs: NDArray[np.float64], places: Sequence[int], place: int) -> float:
    """Return the p of a place against sessions in any order.

    The statistic of a permuted stretch is its largest |t| over all places, so the p holds although
    the place was picked (Good, Permutation, Parametric and Bootstrap Tests, 2005, section 3.2).
    """
    start, end = _stretch(logs, places, place)
    stretch = logs[start:end]
    if np.ptp(stretch) == 0:
        return 1.0
    observed = _separations(stretch[np.newaxis, :])[0, place - start - 1]
    generator = np.random.default_rng(_SEED)
    permuted = generator.permuted(np.tile(stretch, (_PERMUTATIONS, 1)), axis=1)
    greatest = _separations(permuted).max(axis=1)
    # Sums in another order differ in their last digits.
    reached = int(np.count_nonzero(greatest >= observed * (1 - 1e-9)))
    return (reached + 1) / (_PERMUTATIONS + 1)


def _separations(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the variance between both sides of each place, shape (rows, sessions - 1).

    With the total fixed, as it is between permutations, it grows with |t|.
    """
    length = rows.shape[1]
    counts = np.arange(1, length)
    left = np.cumsum(rows - rows.mean(axis=1, keepdims=True), axis=1)[:, :-1]
    separations: NDArray[np.float64] = left**2 * length / (counts * (length - counts))
    return separations


def _change(
    logs: NDArray[np.float64], places: Sequence[int], place: int
) -> tuple[float, tuple[float, float]]:
    start, end = _stretch(logs, places, place)
    sides = logs[start:place], logs[place:end]
    difference = float(sides[1].mean() - sides[0].mean())
    if min(map(len, sides)) < 2:
        # One session has no spread of its own: that of the other side stands for both.
        longer = max(sides, key=len)
        variance, freedom = float(longer.var(ddof=1)) * (1 + 1 / len(longer)), len(longer) - 1.0
    else:
        parts = [float(side.var(ddof=1)) / len(side) for side in sides]
        variance = sum(parts)
        weights = sum(part**2 / (len(side) - 1) for part, side in zip(parts, sides, strict=True))
        freedom = variance**2 / weights if weights > 0 else 1.0
    half = student_quantile((1 + _CONFIDENCE) / 2, freedom) * variance**0.5
    low, high = np.exp([difference - half, difference + half])
    return float(np.exp(difference)), (float(low), float(high))
