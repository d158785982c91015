"""Describes a stored baseline: what its cells can detect, and what speaks against its runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev

from pytest_hwqueue.baselines.runs import CellBaseline
from pytest_hwqueue.gate.calibrate import drift_alarm
from pytest_hwqueue.gate.cell_gate import can_be_convicted
from pytest_hwqueue.gate.detectable import can_convict, detectable_effect
from pytest_hwqueue.gate.settings import GateSettings
from pytest_hwqueue.gate.student import session_share
from pytest_hwqueue.verdicts.figures import figure


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
    found = []
    for cell_id, cell in sorted(cells.items()):
        for name in figures:
            gated = figure(name, cell.runs, ())
            if gated is not None:
                found.append((cell_id, gated.quantity, [gated.run(run) for run in cell.runs]))
    compared = max(1, sum(can_be_convicted(runs, quantity) for _, quantity, runs in found))
    described = []
    for cell_id, quantity, runs in found:
        logs = [math.log(run.value) for run in runs if run.value > 0]
        sound = len(logs) == len(runs)
        sd = max(stdev(logs), settings.floor) if sound and len(logs) > 1 else None
        detectable = None
        if sd is not None and can_convict(len(runs), settings.last_look, settings, compared):
            # New runs are all of one session.
            share = 1 + session_share([run.session for run in runs])
            detectable = detectable_effect(sd, len(runs), settings, compared, session_share=share)
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
