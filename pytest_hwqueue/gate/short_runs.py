"""Finds runs that are too short to compare with the others, blind to labels."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from pytest_hwqueue.gate.set_aside import most_set_aside

SHORT = 0.5
"""A run with fewer samples than this share of the median run's is short."""


def short_runs(
    baseline: Sequence[int], new: Sequence[int]
) -> tuple[frozenset[int], frozenset[int]]:
    """Return the indices of short runs, of the baseline and of the new runs.

    Runs are short if they have fewer than half of the median run's samples, both sides taken
    together, and are no more than `most_set_aside` allows. If more are that short, none is
    exceptional: nothing is set aside, and all runs are cut to the shortest. So new runs that are
    all short, because the code got slow, are never set aside.

    The choice depends on the pooled numbers of samples alone, so relabelling what is left is exact.
    Compare the rest cut to their least number of samples, and name the runs set aside.

    Args:
        baseline: numbers of samples of the baseline's runs.
        new: the same of the new runs.
    """
    counts = [*baseline, *new]
    if not baseline or not new:
        return frozenset(), frozenset()
    limit = SHORT * median(counts)
    short = [i for i, count in enumerate(counts) if count < limit]
    if len(short) > most_set_aside(len(baseline), len(new)):
        return frozenset(), frozenset()
    runs = len(baseline)
    return frozenset(i for i in short if i < runs), frozenset(i - runs for i in short if i >= runs)
