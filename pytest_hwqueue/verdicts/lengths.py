"""Finds runs with too few samples to be compared with the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from pytest_hwqueue.gate.short_runs import SHORT, short_runs

SideName = Literal["baseline", "new"]


@dataclass(frozen=True)
class ShortRun:
    """A run set aside because it has far fewer samples than the others.

    Attributes:
        side: that it belongs to.
        number: in the order of its side, from 1.
        session: that measured it.
        n: its samples.
        usual: samples of a run that is not short.

    """

    side: SideName
    number: int
    session: str
    n: int
    usual: int

    def __str__(self) -> str:
        return (
            f"{self.side} run {self.number} (session {self.session}) has {self.n} samples of the "
            f"usual {self.usual}"
        )


def usual_length(counts: Sequence[int]) -> int:
    """Return the median number of samples of full-length runs, rounded down.

    Args:
        counts: samples of each run, at least one.

    """
    limit = SHORT * median(counts)
    return int(median([count for count in counts if count >= limit]))


def set_aside_short(
    old: Sequence[tuple[str, int]], new: Sequence[tuple[str, int]]
) -> tuple[ShortRun, ...]:
    """Return the runs set aside for being short; see `short_runs` for the rule.

    Args:
        old: session and number of samples of each baseline run.
        new: the same of the new runs.

    """
    counts = [count for _, count in (*old, *new)]
    if not counts:
        return ()
    chosen = short_runs([count for _, count in old], [count for _, count in new])
    usual = usual_length(counts)
    sides: tuple[SideName, SideName] = ("baseline", "new")
    return tuple(
        ShortRun(side, index + 1, *runs[index], usual)
        for side, runs, indices in zip(sides, (old, new), chosen, strict=True)
        for index in sorted(indices)
    )
