"""Figures that the gate judges, runs too short for one, and a cell's runs beside its baseline's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from pytest_hwqueue.data.errors import BadInput
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.interference import quantile_ratio
from pytest_hwqueue.data.records.declared import PACE
from pytest_hwqueue.judge.baselines.runs import ITERATION, StoredRun
from pytest_hwqueue.judge.calibrate import LEAST_RUNS, detectable_effect
from pytest_hwqueue.judge.runs import ProcessRun, figure_of, most_set_aside
from pytest_hwqueue.judge.statistics import compare, compare_pairs
from pytest_hwqueue.judge.verdict import (
    ITERATION_TIME,
    QUANTITIES,
    THROUGHPUT,
    GateSettings,
    Quantity,
    fall_back,
    percent,
)

QUANTILES = ("p50", "p90", "p95", "p99", "p999")
_TAG_QUANTILES = ("p50", "p90", "p95", "p99")
_RATIO_QUANTILES = ("p50", "p99")


@dataclass(frozen=True)
class GatedFigure:
    """One gated figure of a cell's runs.

    Attributes:
        quantity: how the gate treats it; a tail quantile for which runs are too short is
            replaced by a lower one, which has its own name.
        n: how many samples of each run count, where samples are kept in order; else None.
        source: ``latency``, ``pace``, ``throughput``, or the name of a tag or ratio.
        kind: where in a stored run it stands.

    """

    quantity: Quantity
    kind: str
    source: str
    n: int | None = None

    def run(self, stored: StoredRun) -> ProcessRun:
        """Return a run's figure; NaN if the run lacks it."""
        value, n = self._value(stored)
        return ProcessRun(
            value=value, n=n, session=stored.session, failed=stored.failed,
            sm_clock_mhz=stored.sm_clock_mhz,
        )  # fmt: skip

    def change(self, old: StoredRun, new: StoredRun) -> Estimate:
        """Return what one run shows beside one other: a ratio, with the interval of their samples.

        What runs differ by is not in it.
        """
        quantile = self.quantity.quantile
        if self.kind not in ("latency", "pace") or quantile is None:
            sides = self.run(old).value, self.run(new).value
            value = sides[1] / sides[0] if sides[0] else math.nan
            reason = "stored runs have the samples of their primary latency alone"
            if not math.isfinite(value):
                return Estimate(refused="a run lacks the figure")
            return Estimate(value=value, n=min(old.n, new.n), refused=reason)
        n = self.n or min(old.n, new.n)
        samples = new.samples_ns()[:n], old.samples_ns()[:n]
        return quantile_ratio(*samples, quantile, (_block(new), _block(old)))

    def _value(self, stored: StoredRun) -> tuple[float, int]:
        missing = float("nan")
        if self.kind == "iteration":
            return stored.iteration_ns, stored.n
        if self.kind == "throughput":
            return stored.throughput.get(self.source, missing), stored.n
        quantile, name = self.quantity.quantile, self.quantity.name.rpartition(".")[2]
        if self.kind == "ratio":
            figures = stored.ratios.get(self.source)
            value = getattr(figures, name, None)
            return (missing if value is None else value), stored.n
        if self.kind == "tag":
            tag = stored.tags.get(self.source)
            return (missing, 0) if tag is None else (getattr(tag, f"{name}_ns"), tag.n)
        if self.n is None or self.n >= stored.n:
            return getattr(stored, f"{name}_ns"), stored.n
        assert quantile is not None
        return figure_of(stored.samples_ns(), quantile, self.n), self.n


def _block(stored: StoredRun) -> int:
    """Return how many successive samples one iteration has."""
    iterations = stored.tags.get(ITERATION)
    return 1 if iterations is None else -(-stored.n // max(1, iterations.n))


def known_names(runs: Sequence[StoredRun]) -> list[str]:
    """Return the names of all figures in these runs."""
    names = dict.fromkeys([*QUANTILES, THROUGHPUT.name, ITERATION_TIME.name])
    names |= dict.fromkeys(f"{ITERATION}.{q}" for q in _TAG_QUANTILES)
    for run in runs:
        names |= dict.fromkeys(f"{tag}.{q}" for tag in run.tags for q in _TAG_QUANTILES)
        for ratio in run.ratios:
            names |= dict.fromkeys([ratio, *(f"{ratio}.{q}" for q in _RATIO_QUANTILES)])
    return list(names)


def require_known(names: Sequence[str], runs: Sequence[StoredRun], label: str) -> None:
    """Refuse a figure that no cell has, where any run is there to tell.

    Args:
        names: of figures.
        runs: one of each cell.
        label: of the runs, for people.

    Raises:
        BadInput: naming the figures that there are.

    """
    known = known_names(runs)
    for name in names:
        if runs and name not in known:
            raise BadInput(
                f"no cell of {label} has a figure {name!r}; there are {', '.join(known)}"
            )


def figure(
    name: str, baseline: Sequence[StoredRun], new: Sequence[StoredRun], *, pace: bool = False
) -> GatedFigure | None:
    """Return the figure that a name means in a cell, or None if the cell lacks it.

    Quantiles of latency are taken from the first n samples of each run, n being that of the
    shortest run of both sides, because the bias of a quantile depends on n.

    Args:
        name: such as ``p99`` (of the primary latency), ``iteration.p99``, ``throughput``,
            ``TAG.p99``, ``RATIO`` (at P99) or ``RATIO.p50``.
        baseline: the baseline's runs, at least one.
        new: the new runs of the first pass.
        pace: whether their samples are paces (`CellHeader.has_pace`), which the label says.

    """
    first = baseline[0]
    owner, _, own = name.rpartition(".")
    if owner == ITERATION and owner not in first.tags:
        # Where a whole iteration is the primary latency.
        name, owner = own, ""
    if name in QUANTILES:
        n = min(run.n for run in (*baseline, *new))
        wanted = QUANTITIES[name]
        gated = fall_back(wanted, n) or wanted
        if pace:
            gated = replace(gated, label=f"{gated.label} of the pace")
        return GatedFigure(gated, "latency", PACE.name if pace else "latency", n)
    if name == ITERATION_TIME.name:
        return GatedFigure(ITERATION_TIME, "iteration", name)
    if name == THROUGHPUT.name:
        unit = next(iter(first.throughput), None)
        if unit is None:
            return None
        return GatedFigure(replace(THROUGHPUT, unit=unit), "throughput", unit)
    if owner in first.tags and own in _TAG_QUANTILES:
        counts = [run.tags[owner].n for run in (*baseline, *new) if owner in run.tags]
        plain = QUANTITIES[own]
        gated = fall_back(plain, min(counts)) or plain
        return GatedFigure(_of(gated, owner), "tag", owner)
    if name in first.ratios:
        return GatedFigure(_of(QUANTITIES["p99"], name, ratio=True), "ratio", name)
    if owner in first.ratios and own in _RATIO_QUANTILES:
        return GatedFigure(_of(QUANTITIES[own], owner, ratio=True), "ratio", owner)
    return None


def _of(plain: Quantity, owner: str, *, ratio: bool = False) -> Quantity:
    label = f"{owner} at {plain.label}" if ratio else f"{plain.label} of {owner}"
    unit = "" if ratio else plain.unit
    return replace(plain, name=f"{owner}.{plain.name}", label=label, unit=unit)


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


SHORT = 0.5
"""A run with fewer samples than this share of the median run's is short."""


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
    """Return the runs set aside for having fewer than half of the median run's samples.

    They are no more than `most_set_aside` allows, of both sides together. If more are that short,
    none is exceptional: nothing is set aside, and all runs are cut to the shortest. So new runs
    that are all short, because the code got slow, are never set aside. The choice depends on the
    pooled numbers of samples alone, so relabelling what is left is exact; but for a side's only
    run, which stays, and with which nothing can be told from noise.

    Args:
        old: session and number of samples of each baseline run.
        new: the same of the new runs.

    """
    if not old or not new:
        return ()
    counts = [count for _, count in (*old, *new)]
    limit, usual = SHORT * median(counts), usual_length(counts)
    sides: tuple[tuple[SideName, Sequence[tuple[str, int]]], ...] = ("baseline", old), ("new", new)
    short = tuple(
        ShortRun(side, number, session, count, usual)
        for side, runs in sides
        for number, (session, count) in enumerate(runs, start=1)
        if count < limit
    )
    whole_side = any(sum(each.side == side for each in short) == len(runs) for side, runs in sides)
    return () if whole_side or len(short) > most_set_aside(len(old), len(new)) else short


MOST_N_RATIO = 1.1
"""A quantile whose samples were not kept cannot be cut; beyond this ratio of n it is said."""


@dataclass(frozen=True)
class PreparedFigure:
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
    name: str,
    old: Sequence[StoredRun],
    new: Sequence[StoredRun],
    *,
    pace: bool = False,
    paired: bool = False,
) -> PreparedFigure | None:
    """Make a figure of both sides' runs comparable, or return None if the cell lacks it.

    Runs far shorter than the others are set aside; quantiles of all others are taken from their
    first n samples, n being the least, because the bias of a quantile depends on n. Neither looks
    at which run is of which side, so relabelling the runs that are left is still exact.

    Args:
        name: see `figures.figure`.
        old: the baseline's runs; with none, ``new`` are the only ones.
        new: the new ones, in the order measured.
        pace: as `figure` takes it.
        paired: whether a run that is set aside takes the other one of its pair with it.

    """
    plain = figure(name, [*old, *new], (), pace=pace)
    if plain is None:
        return None
    if plain.quantity.quantile is None:
        return PreparedFigure(plain, tuple(map(plain.run, old)), tuple(map(plain.run, new)))
    # What a run has without the others: its own number of samples.
    whole = replace(plain, n=None)
    lengths = [[(run.session, whole.run(run).n) for run in side] for side in (old, new)]
    aside = set_aside_short(*lengths)
    both: tuple[SideName, SideName] = ("baseline", "new")
    kept_old = _kept(old, both if paired else both[:1], aside)
    kept_new = _kept(new, both if paired else both[1:], aside)
    chosen = figure(name, [*kept_old, *kept_new], (), pace=pace)
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
    return PreparedFigure(chosen, baseline, runs, aside, remark)


def _accompanied(chosen: GatedFigure, stored: StoredRun, n: int) -> ProcessRun:
    """Return a run's figure with its time per iteration, the fallback if it cannot be judged.

    A ratio says nothing about how long anything took, and is also compared across devices.
    """
    time = None if chosen.kind == "ratio" else stored.iteration_ns
    return replace(chosen.run(stored), n=n, iteration_ns=time)


def _kept(
    runs: Sequence[StoredRun], sides: Sequence[SideName], aside: Sequence[ShortRun]
) -> list[StoredRun]:
    gone = {run.number for run in aside if run.side in sides}
    return [run for number, run in enumerate(runs, start=1) if number not in gone]


_OTHERS = ("p95", "p90", "p50", ITERATION_TIME.name)


def seen_by_others(
    name: str,
    old: Sequence[StoredRun],
    new: Sequence[StoredRun],
    settings: GateSettings,
    compared: int,
    *,
    pace: bool = False,
) -> str:
    """Name the figure of the same runs that detects the smallest worsening, and how to gate it.

    Args:
        name: of the figure that sees too little.
        old: the baseline's runs.
        new: the new ones.
        settings: of the gate.
        compared: number of figures that share the error rate.
        pace: as `figure` takes it.

    Returns:
        A clause; empty if no other figure sees ``settings.detect``.

    """
    owner = name.rpartition(".")[0]
    seen = {}
    for other in _OTHERS:
        full = f"{owner}.{other}" if owner and other != ITERATION_TIME.name else other
        if full == name:
            continue
        prepared = prepare(full, old, new, pace=pace, paired=settings.paired)
        if prepared is None or prepared.figure.quantity.demoted_from:
            continue
        sd = _sd(prepared, settings) if len(prepared.baseline) >= LEAST_RUNS else None
        if sd is not None:
            effect = detectable_effect(sd, len(prepared.baseline), settings, compared)
            seen[effect] = (full, prepared.figure.quantity.label)
    if not seen or min(seen) > settings.detect:
        return ""
    best, label = seen[min(seen)]
    return f"{label} of the same runs sees {percent(min(seen))}: --hwq-fail-on={name},{best}"


def _sd(prepared: PreparedFigure, settings: GateSettings) -> float | None:
    """Return the standard deviation between runs of the logarithm, within sides or pairs."""
    sides = prepared.baseline, prepared.new
    if not all(math.isfinite(run.value) and run.value > 0 for side in sides for run in side):
        return None
    x, y = ([math.log(run.value) for run in side] for side in sides)
    if settings.paired:
        return compare_pairs(x, y, settings.floor).sd
    return compare(x, y, settings.floor, session_share=0.0).sd
