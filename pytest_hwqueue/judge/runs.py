"""Runs as the gate sees them, and those that it sets aside."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import PlainSerializer

from pytest_hwqueue.data.metrics.latency import percentile


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


FiniteInJson = Annotated[float, PlainSerializer(_finite, return_type=float | None)]
"""A figure that is null in JSON, which has no NaN and no infinity, where a run has none."""


@dataclass(frozen=True, slots=True)
class ProcessRun:
    """The figure of one process run.

    ``value`` is the gated figure in its own unit (a latency, a throughput or a ratio). The value
    may be non-finite or not above zero: the gate then refuses to compare it and says why. ``n``
    counts the samples behind the value, and ``failed`` the requests that failed; ``session`` names
    the session in which the run was made (one host, one boot, one day). ``iteration_ns`` is the
    run's mean time per iteration, in nanoseconds: the figure that is judged where ``value`` cannot
    be (`verdict.ITERATION_TIME`); ``None`` if it is not known. ``sm_clock_mhz`` is the clock of
    the multiprocessors meanwhile, ``None`` where the device does not tell it.
    """

    value: FiniteInJson
    n: int
    session: str
    failed: int = 0
    iteration_ns: FiniteInJson | None = None
    sm_clock_mhz: float | None = None

    def __post_init__(self) -> None:
        for field, count in (("n", self.n), ("failed", self.failed)):
            if count < 0:
                raise ValueError(f"ProcessRun.{field} must not be negative, is {count}")

    @property
    def failure_share(self) -> float:
        """The share of the run's requests that failed."""
        return self.failed / (self.n + self.failed) if self.failed else 0.0


def figure_of(samples_ns: Sequence[float] | NDArray[np.float64], quantile: float, n: int) -> float:
    """Return a quantile of a run's first ``n`` samples, in nanoseconds.

    It is the sample quantile of type 7, numpy's ``linear`` (Hyndman & Fan, The American
    Statistician 50, 1996). Its bias depends on the number of samples, so all runs of a
    comparison are cut to the least n among them. One sample that is negative, infinite or not a
    number makes the figure ``nan``, which the gate refuses to compare.

    Args:
        samples_ns: at least ``n`` latencies in nanoseconds, in the order measured.
        quantile: between 0 and 1, both excluded; 0.99 is P99.
        n: how many of the first samples count.

    Raises:
        ValueError: if ``n`` is not between 1 and the number of samples, or ``quantile`` not
            between 0 and 1.
    """
    if not 0 < quantile < 1:
        raise ValueError(f"quantile must be between 0 and 1, both excluded, is {quantile}")
    if not 1 <= n <= len(samples_ns):
        raise ValueError(f"n must be between 1 and the {len(samples_ns)} samples, is {n}")
    samples = np.asarray(samples_ns[:n], dtype=np.float64)
    if not bool(np.isfinite(samples).all()) or bool((samples < 0).any()):
        return math.nan
    return percentile(samples, quantile)


SHARE = 10
"""At most one run in so many is set aside at either end; among few runs, one."""

LEAST_GAP = 0.15
"""Runs nearer than this to the rest, in logarithms, are never set aside."""

SPREADS = 5.0
"""Nor are runs nearer to the rest than this many times what the rest differ by."""

SPREAD_OF_NORMAL = math.sqrt(1 - 2 / math.pi)
"""What `least_spread` sees of many normal values with a standard deviation of 1: 0.6."""


CLEAR = 5.0
"""Two levels so many standard deviations apart have hardly a value in common."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """A run that was excluded from judging a figure.

    ``number`` counts from 1 on its side. ``factor`` says how many times worse the run is than the
    geometric mean of the kept runs of both sides; below 1 it is better.
    """

    side: Literal["baseline", "new"]
    number: int
    session: str
    factor: float


def most_set_aside(runs: int, new_runs: int) -> int:
    """Return how many runs may be set aside at each end.

    A tenth of all runs and a quarter of the smaller side, both rounded down, but at least one. The
    quarter keeps a whole side from being set aside however many runs the other has: new runs that
    are all slow are never isolated.
    """
    return max(1, min((runs + new_runs) // SHARE, min(runs, new_runs) // 4))


def isolated(values: Sequence[float], most: int) -> frozenset[int]:
    """Return the indices of isolated values at either end.

    The outermost ``most`` values or fewer are isolated if the gap between them and the rest is
    above 0.15 and above 5 times the spread of the values without the outermost ``most`` at both
    ends (`least_spread`, which a shift of some runs does not widen). The widest such set is taken.
    Of 12 to 25 normal values, however wide, 3 to 8 % of samples lose one.

    The choice depends on the values alone. So a test that relabels the runs that are left stays
    exact: given which runs those are and how many of them are new, all labellings of exchangeable
    runs are equally likely (Lehmann & Romano, Testing Statistical Hypotheses, section 15.2).

    Args:
        values: shape (N,), N >= 2, logarithms of both sides together.
        most: how many may be set aside at each end; with 2 ``most`` >= N none is.
    """
    count = len(values)
    if 2 * most >= count:
        return frozenset()
    order = sorted(range(count), key=values.__getitem__)
    inner = [values[i] for i in order[most : count - most]]
    least = max(LEAST_GAP, SPREADS * least_spread(inner))
    found: set[int] = set()
    for outermost in (order, order[::-1]):
        for size in range(most, 0, -1):
            if abs(values[outermost[size]] - values[outermost[size - 1]]) > least:
                found.update(outermost[:size])
                break
    return frozenset(found)


def separation(values: Sequence[float], upper: int, floor: float) -> float:
    """Return how far the larger values lie above the others, in standard deviations of both.

    It is what a comparison could show at most if it called the ``upper`` largest values new; which
    ones are, it does not know. Of normal values, half of them ``upper``, it is about 2.6; beyond
    `CLEAR` it tells no further.

    Args:
        values: shape (N,).
        upper: how many of the largest, from 1 to N - 1; else 0 is returned.
        floor: the least standard deviation believed.
    """
    rest = len(values) - upper
    if upper < 1 or rest < 1:
        return 0.0
    ranked = sorted(values)
    sides = ranked[:rest], ranked[rest:]
    low, high = (math.fsum(side) / len(side) for side in sides)
    squares = math.fsum((v - low) ** 2 for v in sides[0])
    squares += math.fsum((v - high) ** 2 for v in sides[1])
    return min(CLEAR, (high - low) / max(math.sqrt(squares / max(1, len(values) - 2)), floor))


def pairs_separation(x: Sequence[float], y: Sequence[float], floor: float) -> float:
    """Return the same of the runs of pairs: how far they lie apart at most, whichever is new.

    Args:
        x: shape (P,), one run of each pair.
        y: shape (P,), the other.
        floor: the least standard deviation believed, of a run.
    """
    gaps = pair_gaps(x, y)
    return min(CLEAR, math.fsum(gaps) / len(gaps) / max(gaps_spread(gaps), floor))


def pair_gaps(x: Sequence[float], y: Sequence[float]) -> list[float]:
    """Return how far apart the runs of each pair are, whichever is greater; shape (P,)."""
    return [abs(b - a) for a, b in zip(x, y, strict=True)]


def gaps_spread(gaps: Sequence[float]) -> float:
    """Return the standard deviation of one run, as far as a shift of all new ones leaves it.

    Like `least_spread`, it sees `SPREAD_OF_NORMAL` of unshifted normal runs: sizes of their
    differences are half-normal.

    Args:
        gaps: shape (P,), of `pair_gaps`; 0 for fewer than 2.
    """
    return stdev(gaps) / math.sqrt(2) if len(gaps) > 1 else 0.0


def isolated_pairs(x: Sequence[float], y: Sequence[float]) -> frozenset[int]:
    """Return the indices of pairs whose runs lie isolated far apart, whichever is the greater one.

    Each difference counts with both signs, so that no sign flip changes the choice: a test by sign
    flips of the pairs that are left stays exact.

    Args:
        x: shape (P,), one run of each pair, as logarithms.
        y: shape (P,), the other.
    """
    gaps = pair_gaps(x, y)
    both = (*gaps, *(-gap for gap in gaps))
    found = isolated(both, most_set_aside(len(gaps), len(gaps)))
    return frozenset(pair for pair in found if pair < len(gaps))


def least_spread(values: Sequence[float]) -> float:
    """Return the smallest standard deviation left after splitting the sorted values in two.

    It measures noise without looking at labels: a shift of some of the runs does not count,
    whichever they are. Of unshifted normal values it sees `SPREAD_OF_NORMAL`.

    Args:
        values: shape (N,); 0 for fewer than 3.
    """
    ranked = sorted(values)
    count = len(ranked)
    if count < 3:
        return 0.0
    centre = ranked[count // 2]
    total = total_squares = 0.0
    sums = [(0.0, 0.0)]
    for value in ranked:
        total += value - centre
        total_squares += (value - centre) ** 2
        sums.append((total, total_squares))
    best = math.inf
    for size in range(1, count):
        part, part_squares = sums[size]
        rest = total - part
        within = part_squares - part**2 / size
        within += total_squares - part_squares - rest**2 / (count - size)
        best = min(best, within)
    return math.sqrt(max(0.0, best) / (count - 2))
