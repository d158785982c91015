"""Latency and throughput: percentiles, shares and rates with intervals that dependence widens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from pydantic import Field

from pytest_hwqueue.data.metrics.dependence import (
    binomial_cdf,
    binomial_quantile,
    binomial_sf,
    independent_samples,
    normal_cdf,
    proportion_interval,
    student_quantile,
)
from pytest_hwqueue.data.metrics.drift import MeanInterval, mean_interval
from pytest_hwqueue.data.metrics.estimate import Estimate, PlainData
from pytest_hwqueue.data.metrics.numbers import TimeUnit, percent

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray


CONFIDENCE = 0.95
"""The confidence of every interval reported here, unless a caller asks for another."""

ABOVE_MEDIAN = 0.9
"""From this quantile on, a quantile lies above the median, however much samples follow each other
(`spread_interval`)."""

_MEDIAN = 0.5
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}
_MS = TimeUnit("ms", 1e6)
# Share of samples at each end that says nothing of a median: outliers.
_OUTERMOST = 0.005


class LatencySummary(PlainData):
    """The latency of one series of samples, in milliseconds.

    ``mean`` and ``max`` have no interval: the mean of an unknown distribution has no
    distribution-free interval at any number of samples (Bahadur & Savage, Ann. Math. Statist. 27,
    1956), and the largest sample shows what happened in this run, not what can happen.
    """

    n: int
    mean: float = Field(description="in ms, as all others")
    max: float
    p50: Estimate
    p95: Estimate
    p99: Estimate
    p999: Estimate


def shortfall(needed: int, present: int, noun: str = "samples") -> str:
    """Return why a number is refused: how many samples it needs, and how many there are."""
    return f"needs at least {needed} {noun}, has {present} ({needed - present} missing)"


# By quantile. Dependence is taken at its upper bound also where there is none, so that fewer do not
# always suffice (`minimum_samples` bounds a quantile of samples that are known to be independent):
# tools/coverage.py counts.
_SUFFICIENT = {0.5: 6, 0.9: 250, 0.95: 350, 0.99: 1000, 0.999: 5500}


def sufficient_samples(quantile: float) -> int:
    """Return how many samples give a quantile both ends in 95 of 100 independent series.

    It is that of P50, P90, P95, P99 or P99.9, whichever is the next that is as far from the median.

    Raises:
        ValueError: if the quantile is beyond P99.9, or its counterpart below the median.

    """
    from_median = max(quantile, 1 - quantile)
    for known, samples in _SUFFICIENT.items():
        if from_median <= known:
            return samples
    raise ValueError(f"how many samples suffice for quantile {quantile} is not known")


def too_few(
    quantile: float, n: int, worth: float = 0.0, noun: str = "samples",
    confidence: float = CONFIDENCE,
) -> str:  # fmt: skip
    """Return why a quantile has no interval of ``n`` samples worth so many independent ones."""
    more = minimum_samples(quantile, confidence) / minimum_samples(quantile)
    enough = math.ceil(sufficient_samples(quantile) * more)
    if n < enough and not 0 < worth < n:
        return f"has {n} {noun}; {enough} independent ones suffice"
    # However they follow each other, there is one.
    counted = max(1, int(worth))
    if n < enough:
        return f"has {n} {noun}, as good as {counted} independent ones at least; {enough} suffice"
    return f"has {n} {noun}, which are correlated and as good as {counted} independent ones"


def minimum_samples(quantile: float, confidence: float = CONFIDENCE) -> int:
    """Return the least number of samples that bounds a quantile on both sides.

    It is the least n for which neither all n samples lie below the quantile nor all lie above
    it with a probability over ``(1 - confidence) / 2``: ``max(q, 1 - q) ** n <= alpha / 2``
    (Hahn & Meeker, Statistical Intervals, section 5.2).

    Args:
        quantile: between 0 and 1, both excluded; 0.99 is P99.
        confidence: two-sided and equal-tailed, between 0 and 1, both excluded.

    Raises:
        ValueError: if either argument is not between 0 and 1.
    """
    _require_fraction("quantile", quantile)
    _require_fraction("confidence", confidence)
    tail = (1 - confidence) / 2
    largest = max(quantile, 1 - quantile)
    needed = max(1, math.ceil(math.log(tail) / math.log(largest)))
    # The quotient of two rounded logarithms can land on the wrong side of a whole number.
    while needed > 1 and largest ** (needed - 1) <= tail:
        needed -= 1
    while largest**needed > tail:
        needed += 1
    return needed


def quantile_interval(
    ordered: Sequence[float] | NDArray[np.float64], quantile: float, confidence: float
) -> tuple[float, float]:
    """Return a distribution-free interval for a quantile.

    Its ends are two of the samples: the greatest one that exceeds the quantile, and the least
    one that falls short of it, with a probability of at most ``(1 - confidence) / 2`` each. The
    number of samples below a quantile is binomial, so coverage is at least ``confidence`` for
    every distribution, with ties or without; the samples must be independent (David & Nagaraja,
    Order Statistics, 3rd ed., section 7.1; Hahn & Meeker, Statistical Intervals, section 5.2).

    Args:
        ordered: the samples, shape (n,), ascending, in any unit; the result has the same unit.
        quantile: between 0 and 1, both excluded.
        confidence: two-sided and equal-tailed, between 0 and 1, both excluded.

    Raises:
        ValueError: if there are fewer than ``minimum_samples(quantile, confidence)`` samples
            (the message names that number), if they do not ascend or are not all numbers, or if
            an argument is not between 0 and 1.
    """
    import numpy as np

    values = np.asarray(ordered, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"samples must have one dimension, have {values.ndim}")
    n = int(values.size)
    needed = minimum_samples(quantile, confidence)
    if n < needed:
        reason = shortfall(needed, n)
        raise ValueError(f"an interval of quantile {quantile} at {confidence:.4g} {reason}")
    if bool(np.isnan(values).any()) or bool((values[1:] < values[:-1]).any()):
        raise ValueError("samples must be numbers in ascending order")
    lower, upper = _ranks(n, quantile, confidence)
    return float(values[lower - 1]), float(values[upper - 1])


def spread_interval(
    ordered: NDArray[np.float64],
    quantile: float,
    confidence: float,
    worth: float,
    block: int = 1,
) -> tuple[float, float]:
    """Return the interval of a quantile of samples that are worth fewer independent ones.

    It has the ranks that `quantile_interval` has among ``worth`` samples, spread over all
    (Woodruff, JASA 47, 1952). An end for which they do not suffice is 0 or infinity. However much
    samples follow each other, a median lies among all but the outermost, and P90 or more above half
    of them: so it was in simulations of queues, batches and autocorrelated series
    (tools/coverage.py), and with as many iterations as a median needs, these are ends.

    Args:
        ordered: the samples, shape (n,), n above 0, ascending, not negative, in any unit.
        quantile: between 0 and 1, both excluded.
        confidence: two-sided and equal-tailed, between 0 and 1, both excluded.
        worth: at most n, from `dependence.independent_samples`.
        block: samples of one iteration.

    """
    n, whole, tail = int(ordered.size), int(worth), (1 - confidence) / 2
    low, high = 0.0, math.inf
    needed = minimum_samples(_MEDIAN, confidence)
    if -(-n // block) >= needed:
        if quantile >= ABOVE_MEDIAN:
            low = float(ordered[n // 2 - 1])
        elif quantile == _MEDIAN and whole < needed:
            outermost = int(n * _OUTERMOST)
            return float(ordered[outermost]), float(ordered[n - 1 - outermost])
    if (1 - quantile) ** whole <= tail:
        rank, _ = _ranks(whole, quantile, confidence)
        # Of so few that their greatest would do, it may lie anywhere above the one before.
        rank = min(rank, whole - 1)
        low = max(low, float(ordered[max(1, rank * n // whole) - 1]))
    if quantile**whole <= tail:
        _, rank = _ranks(whole, quantile, confidence)
        high = float(ordered[-(-rank * n // whole) - 1])
    return low, high


def percentile(values: ArrayLike, quantile: float) -> float:
    """Return a percentile of a series, which table, store and gate all have from here.

    The sample quantile of type 7, numpy's ``linear`` (Hyndman & Fan, The American Statistician 50,
    1996); where a value is infinite, that of type 1, since nothing lies between it and another.

    Args:
        values: shape (n,), n >= 1, in any order.
        quantile: between 0 and 1; 0.99 is P99.

    """
    import numpy as np

    series = np.asarray(values, dtype=np.float64)
    finite = bool(np.isfinite(series).all())
    return float(np.quantile(series, quantile, method="linear" if finite else "inverted_cdf"))


def median_estimate(values: Sequence[float], unit: str) -> Estimate:
    """Return the median of independent values with `quantile_interval`'s interval.

    Args:
        values: at least one, in ``unit``.
        unit: of the estimate.

    """
    middle = Estimate(value=median(values), n=len(values), unit=unit)
    needed = minimum_samples(_MEDIAN)
    if len(values) < needed:
        return middle.model_copy(update={"refused": shortfall(needed, len(values), "rounds")})
    low, high = quantile_interval(sorted(values), _MEDIAN, CONFIDENCE)
    return middle.model_copy(update={"low": low, "high": high})


def summarise_latency(samples_ns: Sequence[float], block: int = 1) -> LatencySummary:
    """Summarise latencies (ns) as mean, maximum and percentiles (ms).

    A `percentile` is refused below ``minimum_samples``, and says how many suffice. For its
    interval, samples that follow each other count less (`dependence.independent_samples`); where
    too few remain, the interval has no upper end.

    Args:
        samples_ns: shape (n,), integer nanoseconds, one for each request, in the order taken.
        block: how many successive samples one iteration has.

    Raises:
        ValueError: if there is no sample, or one is negative, infinite or not a number.
    """
    import numpy as np

    in_order = np.asarray(samples_ns, dtype=np.float64)
    samples = np.sort(in_order)
    if samples.ndim != 1 or samples.size == 0:
        raise ValueError("needs at least one latency sample, in one dimension")
    if not bool(np.isfinite(samples).all()) or samples[0] < 0:
        raise ValueError("latency samples must be finite and not negative")
    n = int(samples.size)
    percentiles = {
        name: quantile_estimate([in_order], samples, quantile, _MS, block=block)
        for name, quantile in PERCENTILES.items()
    }
    return LatencySummary(
        n=n,
        # Whole nanoseconds add up exactly, so the mean of equal samples is that very sample.
        mean=math.fsum(samples.tolist()) / n / _MS.ns,
        max=float(samples[-1]) / _MS.ns,
        **percentiles,
    )


def quantile_estimate(
    parts: Sequence[NDArray[np.float64]], ordered: NDArray[np.float64], quantile: float,
    unit: TimeUnit, noun: str = "samples", block: int = 1,
) -> Estimate:  # fmt: skip
    """Return a quantile as `summarise_latency` takes it.

    Args:
        parts: samples in ns, as `dependence.long_run`'s.
        ordered: all of them, ascending.
        quantile: between 0 and 1, both excluded.
        unit: of the result.
        noun: what samples are, for the reason.
        block: successive samples of one iteration.

    """
    n = int(ordered.size)
    if n < minimum_samples(quantile, CONFIDENCE):
        return Estimate(n=n, unit=unit.name, refused=too_few(quantile, n, noun=noun))
    worth = independent_samples(parts, quantile, CONFIDENCE, block)
    low, high = spread_interval(ordered, quantile, CONFIDENCE, worth, block)
    return Estimate(
        value=percentile(ordered, quantile) / unit.ns,
        low=low / unit.ns,
        high=high / unit.ns,
        n=n,
        unit=unit.name,
        refused=too_few(quantile, n, worth, noun) if math.isinf(high) else "",
    )


def _require_fraction(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"{name} must be between 0 and 1, both excluded, is {value}")


def _ranks(n: int, quantile: float, confidence: float) -> tuple[int, int]:
    """Return the ranks, from 1, of the two samples that bound the quantile."""
    tail = (1 - confidence) / 2
    # Greatest r with P(fewer than r samples below) <= tail. The inverse distribution function
    # gives the least k with P(at most k below) >= tail, which is r unless the two are equal.
    lower = binomial_quantile(tail, n, quantile)
    if binomial_cdf(lower, n, quantile) <= tail:
        lower += 1
    # Least s with P(at least s samples below) <= tail.
    upper = binomial_quantile(1 - tail, n, quantile) + 1
    if binomial_sf(upper - 1, n, quantile) > tail:
        upper += 1
    elif binomial_sf(upper - 2, n, quantile) <= tail:
        upper -= 1
    # Rounding must not contradict minimum_samples, which has already found both ends to exist.
    return max(lower, 1), min(upper, n)


def share_of(number: int, n: int) -> Estimate:
    """Return a count out of ``n`` as a share of one; ValueError if ``n`` is 0.

    The interval is Clopper and Pearson's (Biometrika 26, 1934).
    """
    low, high = proportion_interval(number, n, CONFIDENCE)
    return Estimate(value=number / n, low=low, high=high, n=n)


def above_percentiles(
    values: NDArray[np.float64], noun: str, nothing: str, refused: dict[str, str]
) -> dict[str, tuple[float, NDArray[np.bool_]]]:
    """Return P95 and P99 of values by name, each with which of them are greater.

    Args:
        values: shape (n,), in any unit and order.
        noun: what they are of, for the reason.
        nothing: why there is none above a percentile.
        refused: gets the reason for each percentile that is missing.

    """

    found = {}
    for name, quantile in (("p95", 0.95), ("p99", 0.99)):
        needed, n = minimum_samples(quantile), int(values.size)
        if n < needed:
            refused[name] = too_few(quantile, n, noun=noun)
            continue
        threshold = percentile(values, quantile)
        above = values > threshold
        if above.any():
            found[name] = threshold, above
        else:
            refused[name] = nothing
    return found


MOST_BLOCKS = 20
LEAST_BLOCKS = 10
LEAST_BLOCK_ITERATIONS = 5
LEAST_ITERATIONS = LEAST_BLOCKS * LEAST_BLOCK_ITERATIONS
"""The number of iterations below which no interval of a throughput is given."""

_NS_PER_S = 1e9


def block_count(iterations: int) -> int:
    """Return how many blocks ``contiguous_blocks`` makes of a series of iterations."""
    return min(MOST_BLOCKS, iterations // LEAST_BLOCK_ITERATIONS)


def contiguous_blocks(
    iteration_ns: Sequence[float],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Cut a series of iterations into contiguous blocks for batch means or a block bootstrap.

    There are as many blocks as leave each at least 5 iterations, and at most 20: with 10 to 30
    batches more only add degrees of freedom that hardly narrow the interval, while fewer and
    longer ones are closer to independent (Schmeiser, Operations Research 30, 1982). No iteration
    is dropped: blocks differ in length by at most one.

    Args:
        iteration_ns: shape (n,), the iterations' durations in nanoseconds, in the order measured.

    Returns:
        Two arrays of shape (blocks,): the blocks' total durations in nanoseconds, and their
        numbers of iterations.

    Raises:
        ValueError: with fewer than 50 iterations (10 blocks), or a duration that is not finite
            and above zero.
    """
    import numpy as np

    durations = _durations(iteration_ns)
    if durations.size < LEAST_ITERATIONS:
        raise ValueError(shortfall(LEAST_ITERATIONS, int(durations.size), "iterations"))
    blocks = np.array_split(durations, block_count(int(durations.size)))
    totals = np.array([block.sum() for block in blocks], dtype=np.float64)
    sizes = np.array([block.size for block in blocks], dtype=np.float64)
    return totals, sizes


def block_interval(resamples: NDArray[np.float64], iterations: int) -> tuple[float, float]:
    """Return the interval that resamples of so many iterations' blocks show.

    Less than 2.5 % is cut from each end, as Student's t asks for so few blocks (Hesterberg, The
    American Statistician 69, 2015, "expanded percentile").
    """
    import numpy as np

    blocks = block_count(iterations)
    critical = student_quantile((1 + CONFIDENCE) / 2, blocks - 1)
    tail = normal_cdf(-math.sqrt(blocks / (blocks - 1)) * critical)
    low, high = np.quantile(resamples, [tail, 1 - tail]).tolist()
    return low, high


def block_estimate(
    value: float, resamples: NDArray[np.float64] | None, n: int, noun: str, unit: str = ""
) -> Estimate:
    """Return a value with the interval of its resamples; without, if ``n`` are too few for any."""
    if resamples is None or n < LEAST_ITERATIONS:
        reason = shortfall(LEAST_ITERATIONS, n, noun)
        return Estimate(value=value, n=n, unit=unit, refused=reason)
    low, high = block_interval(resamples, n)
    return Estimate(value=value, low=low, high=high, n=n, unit=unit)


def throughput(work_per_iteration: float, iteration_ns: Sequence[float], unit: str) -> Estimate:
    """Return the work per second of a series of iterations.

    The value is the total work divided by the total time. The interval is that of the mean
    duration (`drift.mean_interval`), taken on a logarithmic scale: durations are skewed. Where
    durations drift, it is of this window's mean, and the drift is told.

    Args:
        work_per_iteration: finite and above zero, counted in what ``unit`` counts.
        iteration_ns: shape (n,), the iterations' durations in nanoseconds, in the order measured.
        unit: work per second, for example "kernels/s"; names the result's unit.

    Raises:
        ValueError: if there is no iteration, or the work or a duration is not finite and above
            zero.
    """
    if not (math.isfinite(work_per_iteration) and work_per_iteration > 0):
        raise ValueError(f"work per iteration must be finite and above 0, is {work_per_iteration}")
    durations = _durations(iteration_ns)
    n = int(durations.size)
    mean_ns = math.fsum(durations.tolist()) / n
    work_ns = float(work_per_iteration) * _NS_PER_S
    rate = Estimate(value=work_ns / mean_ns, n=n, unit=unit)
    if n < LEAST_ITERATIONS:
        reason = shortfall(LEAST_ITERATIONS, n, "iterations")
        return rate.model_copy(update={"refused": reason})
    mean = _mean_interval(durations)
    relative = mean.half_width / mean_ns
    if relative >= 1:
        reason = "durations vary so much that the interval of their mean reaches 0"
        if mean.outlasts:
            reason = wandering("durations wander", durations)
        return rate.model_copy(update={"refused": reason})
    low, high = (work_ns / mean_ns * math.exp(half) for half in (-relative, relative))
    # A rate falls as the time it takes rises.
    drift = None if mean.drift is None else _of_rate(mean.drift / mean_ns)
    return rate.model_copy(update={"low": low, "high": high, "drift": drift})


def _durations(iteration_ns: Sequence[float]) -> NDArray[np.float64]:
    import numpy as np

    durations = np.asarray(iteration_ns, dtype=np.float64)
    if durations.ndim != 1 or durations.size == 0:
        raise ValueError("needs at least one iteration, in one dimension")
    if not bool(np.isfinite(durations).all()) or bool((durations <= 0).any()):
        raise ValueError("iteration durations must be finite and above 0 ns")
    return durations


# A line that rises by twice its mean begins at 0.
_STEEPEST = 2.0


def _of_rate(rise: float) -> float:
    """Return how far a rate drifts whose durations rise by so much, both as shares of their means.

    Of a line that begins below nothing, only the direction is known, and that it is this far.
    """
    if abs(rise) >= _STEEPEST:
        return -rise
    return 1 / (1 + rise / 2) - 1 / (1 - rise / 2)


def wandering(what: str, values: NDArray[np.float64]) -> str:
    """Return why a mean has no interval: its values follow each other for too long.

    Args:
        what: the subject of the sentence, with its verb.
        values: shape (n,), n at least 20, in the order measured.

    """
    import numpy as np

    levels = [float(part.mean()) for part in np.array_split(values, LEAST_BLOCKS)]
    apart = (max(levels) - min(levels)) / float(values.mean())
    return f"{what} for as long as the window lasts: its tenths differ by {percent(apart)}"


def _mean_interval(durations: NDArray[np.float64]) -> MeanInterval:
    """Return the interval of the mean duration, in ns.

    Durations come from a clock of nanoseconds: equal ones still have the standard uncertainty of
    such an indication, 1/√12 ns (JCGM 100:2008, F.2.2.1).
    """
    found = mean_interval([durations], CONFIDENCE)
    return replace(found, half_width=max(found.half_width, 1 / math.sqrt(12 * durations.size)))
