"""A cell's runs beside its baseline's, and how many of them show a change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TypeVar

from pytest_hwqueue.baselines.runs import Run as StoredRun
from pytest_hwqueue.gate.calibrate import LEAST_RUNS, detectable_effect
from pytest_hwqueue.gate.runs import ProcessRun
from pytest_hwqueue.gate.settings import ITERATION_TIME, GateSettings
from pytest_hwqueue.gate.statistics import compare_pairs
from pytest_hwqueue.gate.verdict import percent
from pytest_hwqueue.verdicts.figures import (
    GatedFigure,
    ShortRun,
    SideName,
    figure,
    iteration_ns,
    set_aside_short,
)

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


def prepare(
    name: str, old: Sequence[StoredRun], new: Sequence[StoredRun], *, paired: bool = False
) -> Prepared | None:
    """Make a figure of both sides' runs comparable, or return None if the cell lacks it.

    Runs far shorter than the others are set aside; quantiles of all others are taken from their
    first n samples, n being the least, because the bias of a quantile depends on n. Neither looks
    at which run is of which side, so relabelling the runs that are left is still exact.

    Args:
        name: see `figures.figure`.
        old: the baseline's runs; with none, ``new`` are the only ones.
        new: the new ones, in the order measured.
        paired: whether a run that is set aside takes the other one of its pair with it.

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
    both: tuple[SideName, SideName] = ("baseline", "new")
    kept_old = _kept(old, both if paired else both[:1], aside)
    kept_new = _kept(new, both if paired else both[1:], aside)
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


def _kept(runs: Sequence[_T], sides: Sequence[SideName], aside: Sequence[ShortRun]) -> list[_T]:
    gone = {run.number for run in aside if run.side in sides}
    return [run for number, run in enumerate(runs, start=1) if number not in gone]


_OTHERS = ("p95", "p90", "p50", ITERATION_TIME.name)


def seen_by_others(
    name: str,
    old: Sequence[StoredRun],
    new: Sequence[StoredRun],
    settings: GateSettings,
    compared: int,
) -> str:
    """Name the figure of the same runs that detects the smallest worsening, and how to gate it.

    Args:
        name: of the figure that sees too little.
        old: the baseline's runs.
        new: the new ones.
        settings: of the gate.
        compared: number of figures that share the error rate.

    Returns:
        A clause; empty if no other figure sees ``settings.detect``.

    """
    owner = name.rpartition(".")[0]
    seen = {}
    for other in _OTHERS:
        full = f"{owner}.{other}" if owner and other != ITERATION_TIME.name else other
        if full == name:
            continue
        prepared = prepare(full, old, new, paired=settings.paired)
        if prepared is None or prepared.figure.quantity.demoted_from:
            continue
        sd = _sd(prepared, settings)
        if sd is not None and len(prepared.baseline) >= LEAST_RUNS:
            effect = detectable_effect(sd, len(prepared.baseline), settings, compared)
            seen[effect] = (full, prepared.figure.quantity.label)
    if not seen or min(seen) > settings.detect:
        return ""
    best, label = seen[min(seen)]
    return f"{label} of the same runs sees {percent(min(seen))}: --hwq-fail-on={name},{best}"


def _sd(prepared: Prepared, settings: GateSettings) -> float | None:
    """Return the standard deviation between runs of the logarithm, within sides or pairs."""
    sides = prepared.baseline, prepared.new
    if not all(math.isfinite(run.value) and run.value > 0 for side in sides for run in side):
        return None
    x, y = ([math.log(run.value) for run in side] for side in sides)
    if settings.paired and len(x) > 1:
        return compare_pairs(x, y, settings.floor).sd
    freedom = sum(len(side) - 1 for side in (x, y) if side)
    if freedom < 1:
        return None
    squares = math.fsum((value - fmean(side)) ** 2 for side in (x, y) if side for value in side)
    return max(math.sqrt(squares / freedom), settings.floor)
