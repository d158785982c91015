"""Feeds the gate's calibration with runs of unchanged code from several sources."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from pytest_hwqueue.baselines.diff import Source
from pytest_hwqueue.baselines.runs import CellBaseline, add_runs
from pytest_hwqueue.errors import BaselineError
from pytest_hwqueue.gate.calibrate import Calibration, calibrate
from pytest_hwqueue.gate.runs import ProcessRun
from pytest_hwqueue.gate.settings import GateSettings
from pytest_hwqueue.verdicts.figures import figure
from pytest_hwqueue.verdicts.judging import UnknownFigure


class NothingToCalibrate(ValueError):
    """No cell has runs that show its noise; the text says why."""


def calibrate_sources(
    sources: Sequence[Source], figures: Sequence[str], settings: GateSettings
) -> tuple[Calibration, list[str]]:
    """Estimate the noise of runs and sessions from all runs of all sources.

    Args:
        sources: of unchanged code; a run that appears in several counts once.
        figures: names of the figures to calibrate for; see `figures.figure`. With several, each
            figure of a cell is a cell.
        settings: of the gate that will use these baselines.

    Returns:
        The estimates by cell id (with several figures, ``CELL FIGURE``), and a sentence for each
        cell that has none.

    Raises:
        BaselineError: if runs of one cell differ in their conditions, or have planted faults.
        UnknownFigure: if no cell has a figure of a name.
        NothingToCalibrate: if no cell is left.

    """
    gated: dict[str, list[ProcessRun]] = {}
    left_out = []
    for name in figures:
        known = False
        for cell_id, cell in _joined(sources).items():
            chosen = figure(name, cell.runs, ())
            if chosen is None:
                continue
            known = True
            key = cell_id if len(figures) == 1 else f"{cell_id} {name}"
            runs = [chosen.run(run) for run in cell.runs]
            reason = _unusable(runs, chosen.quantity.label)
            if reason:
                left_out.append(f"{key}: {reason}")
            else:
                gated[key] = runs
        if not known:
            raise UnknownFigure(f"no cell has a figure {name!r}")
    if not gated:
        raise NothingToCalibrate(f"no cell can be calibrated: {left_out[0]}")
    return calibrate(gated, settings), left_out


def _joined(sources: Sequence[Source]) -> dict[str, CellBaseline]:
    cells: dict[str, CellBaseline] = {}
    for source in sources:
        for cell_id, cell in source.cells.items():
            if cell.faults:
                raise BaselineError(
                    f"{source.label}: {cell_id} was measured with planted faults "
                    f"({', '.join(cell.faults)}), which say nothing of the machine's noise"
                )
            try:
                cells[cell_id] = add_runs(cells[cell_id], cell) if cell_id in cells else cell
            except BaselineError as error:
                raise BaselineError(f"{source.label}: {error}") from error
    return dict(sorted(cells.items()))


def _unusable(runs: Sequence[ProcessRun], label: str) -> str:
    if not all(math.isfinite(run.value) and run.value > 0 for run in runs):
        return f"a run has no {label} above 0"
    if max(Counter(run.session for run in runs).values()) < 2:
        return "no session has two runs of it, so runs and sessions cannot be told apart"
    return ""
