"""Prepares one figure of a cell's runs for comparison: full-length runs, all at one n."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pytest_hwqueue.baselines.runs import Run as StoredRun
from pytest_hwqueue.gate.runs import ProcessRun
from pytest_hwqueue.verdicts.figures import GatedFigure, figure, iteration_ns
from pytest_hwqueue.verdicts.lengths import ShortRun, SideName, set_aside_short

MOST_N_RATIO = 1.1
"""A quantile whose samples were not kept cannot be cut; beyond this ratio of n it is said."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Prepared:
    """One figure of a cell's runs, all at the same number of samples.

    Attributes:
        figure: taken from each run; a quantile lower than requested has its own name, and its
            quantity says what it stands in for.
        baseline: the runs that count.
        new: likewise; in the order measured.
        short: runs that were set aside because they are far shorter than the others.
        remark: what a reader should know about the sample counts; empty if nothing.

    """

    figure: GatedFigure
    baseline: tuple[ProcessRun, ...]
    new: tuple[ProcessRun, ...]
    short: tuple[ShortRun, ...] = ()
    remark: str = ""


def prepare(name: str, old: Sequence[StoredRun], new: Sequence[StoredRun]) -> Prepared | None:
    """Make a figure of both sides' runs comparable, or return None if the cell lacks it.

    Runs far shorter than the others are set aside; quantiles of all others are taken from their
    first n samples, n being the least, because the bias of a quantile depends on n. Neither looks
    at which run is of which side, so relabelling the runs that are left is still exact.

    Args:
        name: see `figures.figure`.
        old: the baseline's runs; with none, ``new`` are the only ones.
        new: the new ones, in the order measured.

    """
    plain = figure(name, [*old, *new], ())
    if plain is None:
        return None
    if plain.quantity.quantile is None:
        return Prepared(plain, tuple(map(plain.run, old)), tuple(map(plain.run, new)))
    # What a run has without the others: its own number of samples.
    whole = replace(plain, n=None)
    lengths = [[(run.session, whole.run(run).n) for run in side] for side in (old, new)]
    aside = set_aside_short(*lengths)
    kept_old, kept_new = _kept(old, "baseline", aside), _kept(new, "new", aside)
    chosen = figure(name, [*kept_old, *kept_new], ())
    assert chosen is not None
    counts = [whole.run(run).n for run in (*kept_old, *kept_new)]
    least, most = min(counts), max(counts)
    remark = ""
    if chosen.kind != "latency" and most > MOST_N_RATIO * least:
        remark = (
            f"runs have between {least} and {most} samples, and of {chosen.source} only quantiles "
            "are kept, which cannot be cut to one n"
        )
    baseline, runs = (
        tuple(_accompanied(chosen, run, least) for run in side) for side in (kept_old, kept_new)
    )
    return Prepared(chosen, baseline, runs, aside, remark)


def _accompanied(chosen: GatedFigure, stored: StoredRun, n: int) -> ProcessRun:
    """Return a run's figure with its time per iteration, the fallback if it cannot be judged.

    A ratio says nothing about how long anything took, and is also compared across devices.
    """
    time = None if chosen.kind == "ratio" else iteration_ns(stored)
    return replace(chosen.run(stored), n=n, iteration_ns=time)


def _kept(runs: Sequence[_T], side: SideName, aside: Sequence[ShortRun]) -> list[_T]:
    gone = {run.number for run in aside if run.side == side}
    return [run for number, run in enumerate(runs, start=1) if number not in gone]
