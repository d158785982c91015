"""Which members of a group deviate from the others, at a known rate of false names.

Figures are logarithms of times, so that a deviation is a relative one. GPUs of one node share its
host, so each is compared with the others of its node, and nodes with each other: what a whole node
has in common neither names its GPUs one by one, nor hides one of them.

Repeats are split: the first, third, … raise suspicion, the others confirm it; both must pass the
same threshold, and so must the second fastest of all, since stalls make a median slow, and no run
fast. What is compared are the halves' medians, against the median of a member's others, in units of
their own spread: the root mean square of the three quarters nearest to zero. So up to a quarter can
be bad and hide nothing. The threshold is the quantile of the largest of these in healthy fleets of
the same shape, simulated as normal with a fixed seed; it holds for small fleets too, where the
spread itself is uncertain.

Whether a GPU's own repeats are further from its usual time than those of others is asked of ranks:
a stall may take one run of any GPU ten times as long, and among 64 GPUs one has two of those. That
a run is further off than others counts, and not by how much, so that the threshold holds whatever
the distribution of runs. Bonferroni's correction divides the rate among figures and questions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEAST = 5
"""Fewer are not compared."""
LEAST_REPEATS = 4
"""Two in each half."""
RATE = 0.01
"""Most healthy fleets in which a GPU is named."""
LEAST_EFFECT = 0.02
"""Smallest relative deviation, and smallest relative spread, that is worth naming."""

# GPUs of one model are not believed to agree better, whatever a few of them do.
_LEAST_SPREAD = 0.001
_FLEETS, _BATCH, _SEED = 20_000, 500, 20_260
_NEAREST = 0.75
# Of normal repeats, in standard deviations.
_MEDIAN_DISTANCE = 0.6745


@dataclass(frozen=True)
class Deviations:
    """Members compared with the others of their groups; arrays have shape (members,).

    Attributes:
        deviation: relative to the median of its others, from all repeats; 0.05 is 5 % slower.
            Not a number for a member without others.
        slow: whether a member is named for it.
        smallest: least relative deviation that could have been named.

    """

    deviation: Floats
    slow: NDArray[np.bool_]
    smallest: float


def compare(log_times: Floats, groups: Sequence[int], alpha: float) -> Deviations | None:
    """Compare each member with the others of its group, in one figure.

    Args:
        log_times: shape (members, repeats), natural logarithms of times, repeats in their order.
        groups: each member's group, by number.
        alpha: how many sets of healthy members may have one named.

    Returns:
        None if fewer than `LEAST` have others in their group.

    Raises:
        ValueError: if there are fewer than `LEAST_REPEATS`, or a time is not finite.

    """
    if log_times.shape[1] < LEAST_REPEATS:
        raise ValueError(f"{log_times.shape[1]} repeats: at least {LEAST_REPEATS} are needed")
    if not np.isfinite(log_times).all():
        raise ValueError("a time is not positive and finite")
    of_group = [np.flatnonzero(np.equal(groups, group)) for group in sorted(set(groups))]
    with_others = [members for members in of_group if len(members) > 1]
    if sum(map(len, with_others)) < LEAST:
        return None
    sizes = tuple(sorted(map(len, with_others)))
    least = math.log1p(LEAST_EFFECT)
    limits, slow = [], np.full(len(log_times), True)
    for times in map(_medians, _halves(log_times)):
        deviations = _deviations(times, with_others)
        spread = float(_robust_spread(deviations[np.isfinite(deviations)]))
        limit = max(location_threshold(sizes, alpha) * max(spread, _LEAST_SPREAD), least)
        limits.append(limit)
        slow &= deviations > limit
    slow &= _deviations(np.sort(log_times, axis=1)[:, 1], with_others) > max(limits)
    return Deviations(
        np.expm1(_deviations(_medians(log_times), with_others)), slow, math.expm1(max(limits))
    )


def _medians(log_times: Floats) -> Floats:
    return np.asarray(np.median(log_times, axis=1))


def _deviations(times: Floats, groups: Sequence[NDArray[np.intp]]) -> Floats:
    """Return each member's time less the median of its others; not a number without any."""
    deviations = np.full(len(times), math.nan)
    for members in groups:
        deviations[members] = _beside_others(times[members])
    return deviations


def _beside_others(values: Floats) -> Floats:
    """Return each value less the median of the others; along the last axis, two or more."""
    count = values.shape[-1]
    ordered = np.sort(values, axis=-1)
    rank = values.argsort(axis=-1).argsort(axis=-1)
    # The middle of the others, counted among all: a value that stands below them is one of these.
    middle = [
        np.take_along_axis(ordered, at + (rank <= at), axis=-1)
        for at in ((count - 2) // 2, (count - 1) // 2)
    ]
    return np.asarray(values - (middle[0] + middle[1]) / 2)


def _robust_spread(deviations: Floats) -> Floats:
    """Return the spread of the three quarters nearest to zero, along the last axis."""
    kept = math.ceil(_NEAREST * deviations.shape[-1])
    nearest = np.sort(np.abs(deviations), axis=-1)[..., :kept]
    return np.asarray(np.sqrt((nearest**2).mean(axis=-1)))


@lru_cache(maxsize=64)
def location_threshold(sizes: tuple[int, ...], alpha: float) -> float:
    """Return the 1 - alpha quantile of healthy groups' largest deviation over the spread of all.

    Args:
        sizes: of the groups, each 2 or more.
        alpha: how often the largest exceeds it.

    """

    def largest(random: np.random.Generator) -> Floats:
        deviations = np.concatenate(
            [_beside_others(random.standard_normal((_BATCH, size))) for size in sizes], axis=1
        )
        return np.asarray(deviations.max(axis=1) / _robust_spread(deviations))

    return _healthy_quantile(largest, alpha)


def distances(log_times: Floats) -> Floats:
    """Return how far each repeat is from its GPU's usual time, of the shape given.

    The usual time is the middle of the closest half of the repeats (the shorth: Andrews et al.,
    Robust Estimates of Location, 1972), which as many stalls as there are others do not move.

    Args:
        log_times: shape (GPUs, repeats), as for `compare`.

    """
    ordered = np.sort(log_times, axis=1)
    half = (ordered.shape[1] + 1) // 2
    widths = ordered[:, half - 1 :] - ordered[:, : ordered.shape[1] - half + 1]
    first = widths.argmin(axis=1)[:, np.newaxis]
    ends = (np.take_along_axis(ordered, first + at, axis=1) for at in (0, half - 1))
    return np.asarray(np.abs(log_times - sum(ends) / 2))


def spreads(log_times: Floats) -> Floats:
    """Return the standard deviation of each GPU's own repeats as their median distance shows it."""
    return np.asarray(np.median(distances(log_times), axis=1) / _MEDIAN_DISTANCE)


def scores(far: Floats) -> Floats:
    """Return for each repeat how far it is by its rank among all; 1 on average.

    They are the expected order statistics of the exponential distribution: the further, the more a
    rank counts (Savage, Annals of Mathematical Statistics 27, 1956).

    Args:
        far: of any shape; as `distances`, or what else is greater for a repeat that is further off.

    """
    expected = np.cumsum(1 / np.arange(far.size, 0, -1))
    # Those that are as far have the mean of their ranks: which is first says nothing.
    _, same, counts = np.unique(far, return_inverse=True, return_counts=True)
    of_each = np.add.reduceat(expected, np.cumsum(counts) - counts) / counts
    return np.asarray(of_each[same.reshape(far.shape)])


def unsteady(far: Floats, alpha: float) -> NDArray[np.bool_]:
    """Return which GPUs' own repeats are further off than those of the others.

    Args:
        far: as for `scores`, shape (GPUs, repeats).
        alpha: how many healthy fleets may have one named, whatever the distribution of repeats.

    """
    return np.asarray(scores(far).sum(axis=1) > score_threshold(*far.shape, alpha))


@lru_cache(maxsize=64)
def score_threshold(gpus: int, repeats: int, alpha: float) -> float:
    """Return the 1 - alpha quantile of a healthy fleet's largest sum of scores of a GPU."""
    expected = scores(np.arange(float(gpus * repeats)))

    def largest(random: np.random.Generator) -> Floats:
        fleets = random.permuted(np.tile(expected, (_BATCH, 1)), axis=1)
        return np.asarray(fleets.reshape(_BATCH, gpus, repeats).sum(axis=2).max(axis=1))

    return _healthy_quantile(largest, alpha)


def _healthy_quantile(largest: Callable[[np.random.Generator], Floats], alpha: float) -> float:
    """Return the 1 - alpha quantile of what ``largest`` finds in simulated healthy fleets."""
    random = np.random.default_rng(_SEED)
    found = [largest(random) for _ in range(_FLEETS // _BATCH)]
    return float(np.quantile(np.concatenate(found), 1 - alpha))


def _halves(log_times: Floats) -> tuple[Floats, Floats]:
    """Return the repeats that raise suspicion, and those that confirm it."""
    return log_times[:, 0::2], log_times[:, 1::2]
