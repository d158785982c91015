"""Whether a slow-down is that of the device's clock: then it says nothing of the code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from pytest_hwqueue.judge.cell_gate import CellGate
from pytest_hwqueue.judge.runs import ProcessRun
from pytest_hwqueue.judge.verdict import LEAST_FIRST_RUNS, Quantity

LEAST_CHANGE = 0.01
"""Clocks nearer than this are the same: GPUs set them in steps of up to 15 of some 1,500 MHz."""


class Clocks(NamedTuple):
    """The clock of the multiprocessors while each side was measured, in MHz."""

    baseline_mhz: float
    new_mhz: float

    @property
    def lower(self) -> bool:
        """Whether the new runs had a lower clock."""
        return self.new_mhz < self.baseline_mhz * (1 - LEAST_CHANGE)


def clocks_of(baseline: Sequence[ProcessRun], new: Sequence[ProcessRun]) -> Clocks | None:
    """Return both sides' clocks, geometric means over runs; None if a run does not know its own."""
    means = []
    for side in (baseline, new):
        known = [run.sm_clock_mhz for run in side if run.sm_clock_mhz]
        if not known or len(known) < len(side):
            return None
        means.append(math.exp(math.fsum(map(math.log, known)) / len(known)))
    return Clocks(*means)


def judged_in_cycles(cell: CellGate) -> CellGate | None:
    """Judge a cell once more, by all its runs at one look, with times in cycles of the clock.

    Returns:
        The cell; None if the clock acts on no time of it: a ratio has no unit.

    """
    quantity, runs = cell.quantity, len(cell.new)
    if not quantity.unit or runs < LEAST_FIRST_RUNS:
        return None
    settings = replace(cell.settings, first_runs=runs, looks=(runs,), weights=(1.0,))
    companion = replace(cell.companion_settings, first_runs=runs, looks=(runs,), weights=(1.0,))
    baseline = [_in_cycles(run, quantity) for run in cell.baseline]
    found = CellGate(baseline, quantity, settings, cell.cells, companion)
    for run in cell.new:
        found.add(_in_cycles(run, quantity))
    return found


def _in_cycles(run: ProcessRun, quantity: Quantity) -> ProcessRun:
    clock_mhz = run.sm_clock_mhz
    assert clock_mhz is not None
    # A latency in ns at so many MHz is as many thousandths of a cycle; a throughput is per cycle.
    value = run.value * clock_mhz if quantity.higher_is_worse else run.value / clock_mhz
    time = None if run.iteration_ns is None else run.iteration_ns * clock_mhz
    return replace(run, value=value, iteration_ns=time)
