"""Figures that the gate judges, and runs that are too short for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from pytest_hwqueue.baselines.runs import ITERATION
from pytest_hwqueue.baselines.runs import Run as StoredRun
from pytest_hwqueue.gate.runs import SHORT, ProcessRun, figure_of, short_runs
from pytest_hwqueue.gate.settings import (
    ITERATION_TIME,
    P99,
    THROUGHPUT,
    Quantity,
    fall_back,
    quantity,
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
        wanted: name of the requested quantity.
        n: how many samples of each run count, where samples are kept in order; else None.
        source: ``latency``, ``throughput``, or the name of a tag or ratio.
        kind: where in a stored run it stands.

    """

    quantity: Quantity
    wanted: str
    kind: str
    source: str
    n: int | None = None

    def run(self, stored: StoredRun) -> ProcessRun:
        """Return a run's figure; NaN if the run lacks it."""
        value, n = self._value(stored)
        return ProcessRun(value=value, n=n, session=stored.session, failed=stored.failed)

    def _value(self, stored: StoredRun) -> tuple[float, int]:
        missing = float("nan")
        if self.kind == "iteration":
            return iteration_ns(stored), stored.n
        if self.kind == "throughput":
            return stored.throughput.get(self.source, missing), stored.n
        quantile = self.quantity.quantile
        name = _quantile_name(quantile)
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


def known_names(runs: Sequence[StoredRun]) -> list[str]:
    """Return the names of all figures in these runs."""
    names = dict.fromkeys([*QUANTILES, THROUGHPUT.name, ITERATION_TIME.name])
    names |= dict.fromkeys(f"{ITERATION}.{q}" for q in _TAG_QUANTILES)
    for run in runs:
        names |= dict.fromkeys(f"{tag}.{q}" for tag in run.tags for q in _TAG_QUANTILES)
        for ratio in run.ratios:
            names |= dict.fromkeys([ratio, *(f"{ratio}.{q}" for q in _RATIO_QUANTILES)])
    return list(names)


def figure(
    name: str, baseline: Sequence[StoredRun], new: Sequence[StoredRun]
) -> GatedFigure | None:
    """Return the figure that a name means in a cell, or None if the cell lacks it.

    Quantiles of latency are taken from the first n samples of each run, n being that of the
    shortest run of both sides, because the bias of a quantile depends on n.

    Args:
        name: such as ``p99`` (of the primary latency), ``iteration.p99``, ``throughput``,
            ``TAG.p99``, ``RATIO`` (at P99) or ``RATIO.p50``.
        baseline: the baseline's runs, at least one.
        new: the new runs of the first pass.

    """
    first = baseline[0]
    owner, _, own = name.rpartition(".")
    if owner == ITERATION and owner not in first.tags:
        # Where a whole iteration is the primary latency.
        name, owner = own, ""
    if name in QUANTILES:
        n = min(run.n for run in (*baseline, *new))
        wanted = quantity(name)
        return GatedFigure(fall_back(wanted, n) or wanted, name, "latency", "latency", n)
    if name == ITERATION_TIME.name:
        return GatedFigure(ITERATION_TIME, name, "iteration", name)
    if name == THROUGHPUT.name:
        unit = next(iter(first.throughput), None)
        if unit is None:
            return None
        return GatedFigure(replace(THROUGHPUT, unit=unit), name, "throughput", unit)
    if owner in first.tags and own in _TAG_QUANTILES:
        counts = [run.tags[owner].n for run in (*baseline, *new) if owner in run.tags]
        plain = quantity(own)
        gated = fall_back(plain, min(counts)) or plain
        return GatedFigure(_of(gated, owner), name, "tag", owner)
    if name in first.ratios:
        return GatedFigure(_of(P99, name, ratio=True), name, "ratio", name)
    if owner in first.ratios and own in _RATIO_QUANTILES:
        return GatedFigure(_of(quantity(own), owner, ratio=True), name, "ratio", owner)
    return None


def iteration_ns(stored: StoredRun) -> float:
    """Return a run's mean time per iteration, in ns.

    Files of earlier versions do not have it; what they have as samples is whole iterations.
    """
    if stored.iteration_ns is not None:
        return stored.iteration_ns
    return float(stored.samples_ns().mean())


def _of(plain: Quantity, owner: str, *, ratio: bool = False) -> Quantity:
    label = f"{owner} at {plain.label}" if ratio else f"{plain.label} of {owner}"
    unit = "" if ratio else plain.unit
    return replace(plain, name=f"{owner}.{plain.name}", label=label, unit=unit)


def _quantile_name(quantile: float | None) -> str:
    return {0.5: "p50", 0.9: "p90", 0.95: "p95", 0.99: "p99", 0.999: "p999"}[quantile or 0.99]


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
    """Return the runs set aside for being short; see `gate.runs` for the rule.

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
