"""What `hwq baseline` and `compare` say of what is stored: its reach, moves, noise, conditions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_hwqueue.baselines.folders import Move, describe_move
from pytest_hwqueue.baselines.runs import (
    CellBaseline,
    FieldDifference,
    condition_differences,
    soft_fields,
)
from pytest_hwqueue.baselines.sources import Source
from pytest_hwqueue.baselines.store import Store
from pytest_hwqueue.errors import BadInput
from pytest_hwqueue.gate.calibrate import (
    CONFIDENCE,
    LEAST_RUNS,
    LEAST_RUNS_EXACT,
    LEAST_SESSIONS,
    MOST_RUNS,
    Calibration,
    CellCalibration,
    can_convict,
    runs_needed,
    runs_to_convict,
)
from pytest_hwqueue.gate.runs import ProcessRun
from pytest_hwqueue.gate.verdict import GateSettings, Quantity, percent, refusal
from pytest_hwqueue.metrics.estimate import Interval
from pytest_hwqueue.metrics.numbers import (
    REFUSED,
    PrintedFigure,
    counted,
    decimals,
    fixed,
    rate,
    time_unit,
)
from pytest_hwqueue.reports.document import (
    Column,
    Document,
    Heading,
    Line,
    Paragraph,
    Part,
    Row,
    Table,
)
from pytest_hwqueue.reports.notes import Notes
from pytest_hwqueue.reports.verdict_words import (
    figure_value,
    least_detected,
    mean_value,
    tau_words,
)
from pytest_hwqueue.verdicts.figures import figure
from pytest_hwqueue.verdicts.stored import HOW_TO_RECORD, StoredFigure, describe_stored

_COMMIT_DIGITS = 9


@dataclass(frozen=True)
class BaselineRow:
    """A stored baseline; ``runs`` is the smallest and the largest number of a cell's runs.

    ``changed`` is when the newest run was measured, or the baseline moved, whichever came last
    (UTC, ISO 8601).
    """

    device: str
    name: str
    cells: int
    runs: tuple[int, int]
    sessions: int
    changed: str


@dataclass(frozen=True)
class CellRow:
    """A figure of a stored cell, and what a comparison with it can detect.

    ``mean`` is the geometric mean over runs, in the figure's unit; None if a run has no value that
    can be compared. ``notes`` say what limits the cell.
    """

    stored: StoredFigure
    quantity: Quantity
    mean: float | None
    notes: tuple[str, ...]


def describe_baselines(store: Store) -> list[BaselineRow]:
    """Describe every baseline of a store, by device and name.

    Raises:
        RecordError: naming the file that is damaged.

    """
    rows = []
    for device in store.devices():
        for name in store.names(device):
            cells = store.read(name, device).cells.values()
            runs = [run for cell in cells for run in cell.runs]
            moves = [move.when for move in store.history(name, device)]
            counts = [len(cell.runs) for cell in cells]
            rows.append(
                BaselineRow(
                    device=device,
                    name=name,
                    cells=len(counts),
                    runs=(min(counts), max(counts)),
                    sessions=len({run.session for run in runs}),
                    changed=max([*moves, *(run.when for run in runs)]),
                )
            )
    return rows


def describe_cells(
    cells: Mapping[str, CellBaseline], figures: Sequence[str], settings: GateSettings
) -> list[CellRow]:
    """Describe each figure of each cell of a baseline, by cell id; see `figures.figure`.

    Raises:
        BadInput: if no cell has a figure of a name.

    """
    every = describe_stored(cells, figures, settings)
    described = iter(every)
    rows = []
    known = set()
    for _, cell in sorted(cells.items()):
        for name in figures:
            chosen = figure(name, cell.runs, ())
            if chosen is not None:
                known.add(name)
                runs = [chosen.run(run) for run in cell.runs]
                rows.append(_row(next(described), chosen.quantity, runs, settings, len(every)))
    for name in figures:
        if name not in known:
            raise BadInput(f"no cell has a figure {name!r}")
    return rows


def baselines_document(rows: Sequence[BaselineRow]) -> Document:
    """Return a table of baselines."""
    columns = (
        Column("name", "name"), Column("device", "device"), Column("cells", "cells", right=True),
        Column("runs", "runs a cell", right=True), Column("sessions", "sessions", right=True),
        Column("changed", "last change", rank=1),
    )  # fmt: skip
    table = [
        Row({
            "name": row.name, "device": row.device, "cells": str(row.cells),
            "runs": "–".join(dict.fromkeys(map(str, row.runs))), "sessions": str(row.sessions),
            "changed": _when(row.changed),
        })
        for row in rows
    ]  # fmt: skip
    return Document([Heading("Baselines", 1), Table(columns, table)])


def cells_document(label: str, rows: Sequence[CellRow], settings: GateSettings) -> Document:
    """Return a baseline's cells and what they can detect."""
    columns = (
        Column("cell", "cell"), Column("figure", "figure"), Column("runs", "K", right=True),
        Column("sessions", "sessions", right=True, rank=2),
        Column("mean", "mean", unit_in_header=False), Column("sd", "sd", right=True, rank=1),
        Column("detects", "detects", right=True),
    )  # fmt: skip
    table = []
    for row in rows:
        cell = row.stored
        mean = REFUSED if row.mean is None else figure_value(row.quantity, row.mean, row.mean)
        detects = least_detected(row.quantity, cell.detectable) or str(REFUSED)
        texts = {
            "cell": cell.cell_id, "figure": cell.label, "runs": str(cell.runs),
            "sessions": str(cell.sessions), "sd": share(cell.sd), "detects": detects,
        }  # fmt: skip
        table.append(Row(texts, {"mean": [mean]}, opens=True))
    notes = Notes()
    notes.remark(table, [row.notes for row in rows])
    legend = (
        "Mean: geometric, over runs; sd: between runs, of its logarithm. Detects: the least "
        f"worsening found with {100 * settings.power:.3g} % power, if {100 * settings.rate:.3g} % "
        f"of unchanged suites may alarm. --tau: {tau_words(settings)}."
    )
    title = f"{label}: {counted(len({row.stored.cell_id for row in rows}), 'cell')}"
    return Document(
        [Heading(title, 1), Table(columns, table, notes.lines(len(rows))), Paragraph(legend)]
    )


_TIMES = {
    "p50": "P50", "p90": "P90", "p95": "P95", "p99": "P99", "p999": "P99.9", "max": "max",
}  # fmt: skip


def runs_document(label: str, cell: CellBaseline) -> Document:
    """Return every run of a cell, and the conditions they share."""
    worst_ns = [run.max_ns for run in cell.runs]
    unit = time_unit(statistics.median(run.p50_ns for run in cell.runs), worst_ns)
    places = decimals(cell.runs[0].p50_ns / unit.ns)
    columns = (
        Column("run", "run", right=True), Column("when", "measured"),
        *(
            Column(key, name, right=True, rank=0 if key in ("p50", "p99") else 2)
            for key, name in _TIMES.items()
        ),
        Column("n", "n", right=True, rank=1), Column("throughput", "throughput", rank=3),
        Column("commit", "commit", rank=4), Column("session", "session", rank=5),
    )  # fmt: skip
    rows = []
    for number, run in enumerate(cell.runs, start=1):
        texts = {
            "run": str(number), "session": run.session, "when": _when(run.when), "n": str(run.n),
            "commit": _commit(run.commit),
            **{key: fixed(getattr(run, f"{key}_ns") / unit.ns, places) for key in _TIMES},
        }  # fmt: skip
        rates = [rate(value, unit) for unit, value in run.throughput.items()]
        differs = [f"{name} = {value}" for name, value in run.soft.items()]
        below: list[Line] = [differs] if differs else []
        rows.append(Row(texts, {"throughput": rates}, opens=True, below=below))
    header = cell.header
    title = f"{label}, {header.cell.id}: {counted(len(cell.runs), 'run')}, times in {unit.name}"
    parts: list[Part] = [Heading(title, 1), Table(columns, rows)]
    for name, fields in (
        ("Parameters", header.cell.parameters),
        ("Must be the same to compare", header.hard),
        ("Of the first run", soft_fields(header, cell.runs[0])),
    ):
        listed = ", ".join(f"{name} = {value}" for name, value in sorted(fields.items()))
        parts.append(Paragraph(f"{name}: {listed or 'none'}"))
    return Document(parts)


def moves_document(
    label: str,
    moves: Sequence[Move],
    anchor: Mapping[str, CellBaseline],
    cells: Mapping[str, CellBaseline],
) -> Document:
    """Return when a baseline was moved, how far each time, and its distance from its anchor.

    Args:
        label: of the baseline.
        moves: oldest first.
        anchor: the cells' first accepted runs.
        cells: the cells' runs now.

    """
    parts: list[Part] = [Heading(f"{label} was never moved.", 1)]
    if moves:
        columns = (
            Column("when", "when"), Column("commit", "commit"),
            Column("cells", "cells", right=True), *_DISTANCES,
        )  # fmt: skip
        rows = [
            Row({
                "when": _when(move.when), "commit": _commit(move.commit),
                "cells": str(len(move.cells)), "previous": change(move.median_p99_ratio),
                "anchor": change(move.median_p99_ratio_to_anchor),
            }, opens=True, below=[*_changed(move), move.reason])
            for move in moves
        ]  # fmt: skip
        parts = [
            Heading(f"{label}: moved {counted(len(moves), 'time')}", 1), Table(columns, rows)
        ]  # fmt: skip
    now = describe_move(anchor, anchor, cells, "", None)
    ratios = {
        cell_id: cell.p99_ratio_to_anchor
        for cell_id, cell in now.cells.items()
        if cell.p99_ratio_to_anchor is not None
    }
    if ratios:
        farthest = max(ratios, key=lambda cell_id: abs(math.log(ratios[cell_id])))
        text = (
            f"Now P99 is {change(now.median_p99_ratio_to_anchor)} against the anchor (median of "
            f"{counted(len(ratios), 'cell')}); farthest: {farthest} {change(ratios[farthest])}."
        )
        parts.append(Paragraph(text, ""))
    return Document(parts)


_DISTANCES = (
    Column("previous", "P99", "to previous", right=True),
    Column("anchor", "P99", "to anchor", right=True),
)


def move_document(label: str, move: Move) -> Document:
    """Return how far each cell of a baseline was moved."""
    ratios = [(name, cell.p99_ratio, cell.p99_ratio_to_anchor) for name, cell in move.cells.items()]
    if len(ratios) > 1:
        ratios.append(("median", move.median_p99_ratio, move.median_p99_ratio_to_anchor))
    rows = [
        Row({"cell": name, "previous": change(ratio), "anchor": change(to_anchor)})
        for name, ratio, to_anchor in ratios
    ]
    heading = Heading(f"{label} moved: {counted(len(move.cells), 'cell')}", 1)
    table = Table((Column("cell", "cell"), *_DISTANCES), rows)
    return Document([heading, table, *(Paragraph(line, "") for line in _changed(move))])


def _changed(move: Move) -> list[str]:
    return [f"conditions that changed: {', '.join(move.changed)}"] if move.changed else []


def too_few_runs(cells: Iterable[CellBaseline]) -> str:
    """Return a warning about cells with too few runs to compare without assumptions, or nothing."""
    few = [cell for cell in cells if len(cell.runs) < LEAST_RUNS_EXACT]
    if not few:
        return ""
    return (
        f"{counted(len(few), 'cell')} with fewer than {LEAST_RUNS_EXACT} runs "
        f"(such as {few[0].header.cell.id}: {len(few[0].runs)}): with fewer than {LEAST_RUNS} "
        "nothing can be called a regression; 10 from 5 sessions are advised"
    )


def change(ratio: float | None) -> str:
    """Format a ratio as a signed change, or as refused if there is none."""
    return str(REFUSED) if ratio is None else percent(ratio - 1)


def share(value: float | None) -> str:
    """Format a fraction as percent with two decimals, or as refused if there is none."""
    return str(REFUSED) if value is None else f"{100 * value:.2f} %"


def _row(
    stored: StoredFigure,
    quantity: Quantity,
    runs: Sequence[ProcessRun],
    settings: GateSettings,
    figures: int,
) -> CellRow:
    refused = refusal(runs, (), quantity)
    if refused is not None:
        return CellRow(replace(stored, detectable=None), quantity, None, (refused.sentence,))
    notes = [stored.warning] if stored.runs > 1 else []
    if stored.detectable is None:
        needed = runs_to_convict(settings, figures)
        enough = LEAST_RUNS_EXACT if stored.runs < LEAST_RUNS or needed is None else needed
        notes.append(f"too few runs to tell: record {enough}")
    elif stored.detectable > settings.detect:
        assert stored.sd is not None  # or nothing could be detected
        wanted = runs_needed(stored.sd, settings.detect, settings, figures)
        how_many = f"more than {MOST_RUNS}" if wanted is None else wanted
        notes.append(f"needs K = T = {how_many} runs for {100 * settings.detect:+.3g} %")
    return CellRow(stored, quantity, mean_value(runs), tuple(filter(None, notes)))


def _when(text: str) -> str:
    return text[:16].replace("T", " ")


def _commit(commit: str | None) -> str:
    return (commit or "")[:_COMMIT_DIGITS]


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
        rows.append(Row(texts, figures, opens=True))
    notes = Notes()
    notes.remark(rows, [[each.warning] * bool(each.warning) for each in found.cells.values()])
    legend = (
        f"sd: standard deviation of the figure's logarithm, with its {100 * CONFIDENCE:.3g} % "
        "interval. Detects: the least rise that a baseline of K runs finds with "
        f"{100 * settings.power:.3g} % power; K = T: runs a side that find that of --detect."
    )
    lines = [*(f"left out: {reason}" for reason in left_out), *_advice(found)]
    return Document([
        Heading("Noise of unchanged code", 1), Table(columns, rows, notes.lines(len(rows))),
        Paragraph(legend),
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
