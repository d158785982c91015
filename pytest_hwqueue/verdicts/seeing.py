"""Finds another figure of the same runs that detects more than a blind one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from pytest_hwqueue.baselines.runs import Run as StoredRun
from pytest_hwqueue.gate.detectable import LEAST_RUNS, detectable_effect
from pytest_hwqueue.gate.quantity import ITERATION_TIME
from pytest_hwqueue.gate.runs import ProcessRun
from pytest_hwqueue.gate.settings import GateSettings
from pytest_hwqueue.gate.verdict import percent
from pytest_hwqueue.verdicts.comparing import prepare

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
        prepared = prepare(full, old, new)
        if prepared is None or prepared.figure.quantity.demoted_from:
            continue
        sd = _sd([prepared.baseline, prepared.new], settings.floor)
        if sd is not None and len(prepared.baseline) >= LEAST_RUNS:
            effect = detectable_effect(sd, len(prepared.baseline), settings, compared)
            seen[effect] = (full, prepared.figure.quantity.label)
    if not seen or min(seen) > settings.detect:
        return ""
    best, label = seen[min(seen)]
    return f"{label} of the same runs sees {percent(min(seen))}: --hwq-fail-on={name},{best}"


def _sd(sides: Sequence[Sequence[ProcessRun]], floor: float) -> float | None:
    """Return the standard deviation between runs, pooled within both sides, of the logarithm."""
    logs = []
    for runs in sides:
        if not all(math.isfinite(run.value) and run.value > 0 for run in runs):
            return None
        logs.append([math.log(run.value) for run in runs])
    freedom = sum(len(side) - 1 for side in logs if side)
    if freedom < 1:
        return None
    squares = math.fsum((value - fmean(side)) ** 2 for side in logs if side for value in side)
    return max(math.sqrt(squares / freedom), floor)
