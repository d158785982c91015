"""Sets isolated runs aside, blind to which of them are old and which are new."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

SHARE = 10
"""At most one run in so many is set aside at either end; among few runs, one."""

LEAST_GAP = 0.15
"""Runs nearer than this to the rest, in logarithms, are never set aside."""

SPREADS = 5.0
"""Nor are runs nearer to the rest than this many times what the rest differ by."""

SPREAD_OF_NORMAL = math.sqrt(1 - 2 / math.pi)
"""What `least_spread` sees of many normal values with a standard deviation of 1: 0.6."""


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
    ranked = [values[i] for i in order]
    least = max(LEAST_GAP, SPREADS * least_spread(ranked[most : count - most]))
    found: set[int] = set()
    for size in range(most, 0, -1):
        if ranked[size] - ranked[size - 1] > least:
            found.update(order[:size])
            break
    for size in range(most, 0, -1):
        if ranked[count - size] - ranked[count - size - 1] > least:
            found.update(order[count - size :])
            break
    return frozenset(found)


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
