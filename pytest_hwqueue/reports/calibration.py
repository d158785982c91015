"""Calibration of a baseline, and conditions that differ."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_hwqueue.baselines.runs import FieldDifference, condition_differences
from pytest_hwqueue.baselines.sources import Source
from pytest_hwqueue.gate.calibrate import (
    CONFIDENCE,
    LEAST_SESSIONS,
    MOST_RUNS,
    Calibration,
    CellCalibration,
    can_convict,
)
from pytest_hwqueue.gate.verdict import GateSettings, percent
from pytest_hwqueue.metrics.numbers import REFUSED, Interval, PrintedFigure, counted
from pytest_hwqueue.reports.document import Column, Document, Heading, Paragraph, Row, Table

HOW_TO_RECORD = (
    f"Record unchanged code in {LEAST_SESSIONS} sessions, best on several days: "
    "hwq run P0 --runs 3 --save aa"
)


def calibration_document(
    found: Calibration, settings: GateSettings, left_out: Sequence[str]
) -> Document:
    """Return each cell's noise, and the session term and number of runs that it needs.

    Args:
        found: the estimates.
        settings: used for them.
        left_out: one sentence for each cell without an estimate.

    """
    columns = (
        Column("cell", "cell"), Column("runs", "K", right=True),
        Column("sessions", "sessions", right=True, rank=1), Column("run_sd", "run sd"),
        Column("session_sd", "session sd"), Column("detects", "detects", right=True),
        Column("needed", "K = T for", f"{100 * settings.detect:+.3g} %", right=True),
    )  # fmt: skip
    cells = max(1, len(found.cells))
    rows = []
    for cell_id, cell in found.cells.items():
        reach = can_convict(cell.runs, settings.last_look, settings, cells)
        texts = {
            "cell": cell_id, "runs": str(cell.runs), "sessions": str(cell.sessions),
            "detects": f"≥ {percent(cell.detectable)}" if reach else str(REFUSED),
            "needed": f"> {MOST_RUNS}" if cell.runs_needed is None else str(cell.runs_needed),
        }  # fmt: skip
        figures = {
            "run_sd": [_sd(cell.run_sd, cell.run_sd_interval)],
            "session_sd": [_sd(cell.session_sd, cell.session_sd_interval)],
        }
        rows.append(Row(texts, figures, opens=True, below=[cell.warning] if cell.warning else []))
    legend = (
        f"sd: standard deviation of the figure's logarithm, with its {100 * CONFIDENCE:.3g} % "
        "interval. Detects: the least rise that a baseline of K runs finds with "
        f"{100 * settings.power:.3g} % power; K = T: runs a side that find that of --detect."
    )
    lines = [*(f"left out: {reason}" for reason in left_out), *_advice(found)]
    return Document([
        Heading("Noise of unchanged code", 1), Table(columns, rows), Paragraph(legend),
        *(Paragraph(line, "") for line in lines),
    ])  # fmt: skip


def _advice(found: Calibration) -> list[str]:
    sessions = max((cell.sessions for cell in found.cells.values()), default=0)
    lines = []
    if found.tau is None:
        lines.append(
            "All runs come from one session, which cannot tell how sessions differ: there is no "
            "tau to recommend."
        )
    else:
        value = f"{100 * found.tau:.3g}%"
        lines.append(
            f"Recommended tau: {value} (--tau {value}, or hwq_tau = {value} in the ini file), from "
            f"{counted(len(_with_session(found)), 'cell')}. It is an estimate: the intervals of "
            "the session sd say how good."
        )
    if sessions < LEAST_SESSIONS:
        lines.append(HOW_TO_RECORD)
    return lines


def _with_session(found: Calibration) -> list[CellCalibration]:
    return [cell for cell in found.cells.values() if cell.session_sd is not None]


def _sd(value: float | None, interval: Interval | None) -> PrintedFigure:
    if value is None or interval is None:
        return REFUSED
    low, high = (f"{100 * end:.2f}" for end in interval)
    return PrintedFigure(f"{100 * value:.2f}", "%", f"[{low}, {high}]")


_MEANING = {
    "identity": "another measurement, never compared",
    "environment": "compared only with --allow-env",
}


def hard_differences(old: Source, new: Source) -> dict[str, tuple[FieldDifference, ...]]:
    """Return the conditions that differ, by id of each cell on both sides."""
    found = {
        cell_id: condition_differences(old.cells[cell_id].header, new.cells[cell_id].header)
        for cell_id in sorted(old.cells.keys() & new.cells.keys())
    }
    return {cell_id: differences for cell_id, differences in found.items() if differences}


def render_differences(found: dict[str, tuple[FieldDifference, ...]]) -> str:
    """Return a line per field and pair of values, with the number of cells; empty if none.

    Args:
        found: from `hard_differences`.

    """
    cells: dict[tuple[str, str, str, str], list[str]] = {}
    for cell_id, differences in found.items():
        for each in differences:
            key = (each.field, _in_words(each.a), _in_words(each.b), each.kind)
            cells.setdefault(key, []).append(cell_id)
    if not cells:
        return ""
    lines = ["Conditions that differ (baseline → test):"]
    for (field, a, b, kind), ids in cells.items():
        where = ids[0] if len(ids) == 1 else counted(len(ids), "cell")
        lines.append(f"  {field}: {a} → {b} ({where}; {_MEANING[kind]})")
    return "\n".join(lines)


def _in_words(values: tuple[object, ...]) -> str:
    return " or ".join("not known" if value is None else str(value) for value in values)
