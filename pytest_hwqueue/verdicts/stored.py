"""Stored runs for the gate, and its calibration from them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev

from pytest_hwqueue.baselines.runs import CellBaseline, add_runs
from pytest_hwqueue.baselines.sources import Source
from pytest_hwqueue.errors import BaselineError
from pytest_hwqueue.gate.calibrate import (
    Calibration,
    calibrate,
    can_convict,
    detectable_effect,
    drift_alarm,
)
from pytest_hwqueue.gate.cell_gate import can_be_convicted
from pytest_hwqueue.gate.runs import ProcessRun
from pytest_hwqueue.gate.sessions import with_session_effect
from pytest_hwqueue.gate.settings import GateSettings
from pytest_hwqueue.gate.statistics import session_share
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


@dataclass(frozen=True)
class StoredFigure:
    """One figure of one stored cell.

    Attributes:
        cell_id: of the cell.
        label: of the gated figure, which may be a lower quantile than requested.
        runs: K.
        sessions: in which the runs were made.
        sd: standard deviation of the figure's logarithm between runs; None with one run.
        detectable: least true worsening that is found, as a fraction; None if the runs are too few.
        warning: why the runs may not be independent; empty if nothing speaks against them.

    """

    cell_id: str
    label: str
    runs: int
    sessions: int
    sd: float | None
    detectable: float | None
    warning: str


def describe_stored(
    cells: Mapping[str, CellBaseline], figures: Sequence[str], settings: GateSettings
) -> list[StoredFigure]:
    """Describe each figure of each cell; those that can fail share the error rate."""
    found = {}
    for cell_id, cell in sorted(cells.items()):
        for name in figures:
            gated = figure(name, cell.runs, ())
            if gated is not None:
                runs = [gated.run(run) for run in cell.runs]
                found[f"{cell_id}\n{name}"] = cell_id, gated.quantity, runs
    compared = max(1, sum(can_be_convicted(runs, quantity) for _, quantity, runs in found.values()))
    described = []
    allowing = with_session_effect(
        {key: runs for key, (_, _, runs) in found.items()},
        {key: quantity for key, (_, quantity, _) in found.items()},
        settings,
    )
    for key, (cell_id, quantity, runs) in found.items():
        logs = [math.log(run.value) for run in runs if run.value > 0]
        sound = len(logs) == len(runs)
        sd = max(stdev(logs), settings.floor) if sound and len(logs) > 1 else None
        detectable = None
        if sd is not None and can_convict(len(runs), settings.last_look, settings, compared):
            # New runs are all of one session.
            share = 1 + session_share([run.session for run in runs])
            detectable = detectable_effect(
                sd, len(runs), allowing[key], compared, session_share=share
            )
        described.append(
            StoredFigure(
                cell_id,
                quantity.label,
                len(runs),
                len({run.session for run in runs}),
                sd,
                detectable,
                drift_alarm(runs) if sound else "a run's figure is not above 0",
            )
        )
    return described
