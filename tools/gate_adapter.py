"""The gate as a plain function of samples, for benches that compare gates.

A bench calls ``gate(baseline, new, rerun)``: a list of arrays of samples for each side, one per
process run, and a callable that makes one more new run. It returns the verdict's state for one
cell out of 100.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pytest_hwqueue.gate.cell_gate import CellGate
from pytest_hwqueue.gate.conclude import conclude
from pytest_hwqueue.gate.quantity import P99
from pytest_hwqueue.gate.runs import ProcessRun, figure_of
from pytest_hwqueue.gate.settings import GateSettings

SUITE_CELLS = 100
SETTINGS = GateSettings()

Samples = NDArray[np.float64]


def gate(baseline: list[Samples], new: list[Samples], rerun: Callable[[], Samples]) -> str:
    """Judge the P99 of one cell; each baseline run counts as a session of its own.

    A sample counts as an iteration, whose mean time is judged where the P99 cannot be.
    """
    least = min(len(samples) for samples in (*baseline, *new))

    def run(samples: Samples, session: str) -> ProcessRun:
        value = figure_of(samples, 0.99, least) if len(samples) >= least else math.nan
        return ProcessRun(value, least, session, iteration_ns=float(np.mean(samples)))

    old = [run(samples, f"baseline {i}") for i, samples in enumerate(baseline)]
    cell = CellGate(old, P99, SETTINGS, SUITE_CELLS)
    for samples in new:
        cell.add(run(samples, "new"))
    while cell.wanted:
        cell.add(run(rerun(), "new"))
    return conclude(cell, cell.p <= SETTINGS.rate / SUITE_CELLS).state
