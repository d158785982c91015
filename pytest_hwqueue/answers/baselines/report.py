"""What `hwq baseline` and `compare` say of what is stored: its reach, moves, noise, conditions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from pytest_hwqueue.data.document.document import (
    Column,
    Document,
    Heading,
    Line,
    Paragraph,
    Part,
    Row,
    Table,
)
from pytest_hwqueue.data.document.notes import Notes
from pytest_hwqueue.data.errors import BadInput
from pytest_hwqueue.data.metrics.estimate import Interval
from pytest_hwqueue.data.metrics.numbers import (
    REFUSED,
    PrintedFigure,
    counted,
    decimals,
    fixed,
    grouped,
    rate,
    time_unit,
)
from pytest_hwqueue.judge.baselines.folders import Move, describe_move
from pytest_hwqueue.judge.baselines.runs import (
    CellBaseline,
    FieldDifference,
    condition_differences,
    in_words,
    soft_fields,
)
from pytest_hwqueue.judge.baselines.sources import Source
from pytest_hwqueue.judge.baselines.store import Store
from pytest_hwqueue.judge.calibrate import (
    CONFIDENCE,
    LEAST_RUNS,
    LEAST_RUNS_EXACT,
    LEAST_SESSIONS,
    MOST_RUNS,
    Calibration,
    can_convict,
    runs_needed,
    runs_to_convict,
)
from pytest_hwqueue.judge.figures import figure
from pytest_hwqueue.judge.stored import HOW_TO_RECORD, StoredFigure, describe_stored
from pytest_hwqueue.judge.verdict import GateSettings, percent, refusal, sd_words
from pytest_hwqueue.judge.words import figure_value, least_detected, mean_value, tau_words

_COMMIT_DIGITS = 9


def baselines_document(store: Store) -> Document | None:
    """Return a table of a store's baselines, by device and name; None if there is none.

    A baseline's last change is when its newest run was measured, or it was moved.

    Raises:
        RecordError: naming the file that is damaged.

    """
    columns = (
        Column("name", "name"), Column("device", "device"), Column("cells", "cells", right=True),
        Column("runs", "runs a cell", right=True), Column("sessions", "sessions", right=True),
        Column("changed", "last change", rank=1),
    )  # fmt: skip
    rows = []
    for device, name in [(each, name) for each in store.devices() for name in store.names(each)]:
        cells = store.read(name, device).values()
        runs = [run for cell in cells for run in cell.runs]
        counts = [len(cell.runs) for cell in cells]
        moves = [move.when for move in store.history(name, device)]
        rows.append(Row({
            "name": name, "device": device, "cells": str(len(counts)),
            "runs": "–".join(dict.fromkeys(map(str, (min(counts), max(counts))))),
            "sessions": str(len({run.session for run in runs})),
            "changed": _when(max([*moves, *(run.when for run in runs)])),
        }))  # fmt: skip
    return Document([Heading("Baselines", 1), Table(columns, rows)]) if rows else None


def cells_document(
    label: str, cells: Mapping[str, CellBaseline], figures: Sequence[str], settings: GateSettings
) -> Document:
    """Return each figure of each cell of a baseline, and what a comparison with it can detect.

    Args:
        label: of the baseline.
        cells: by id.
        figures: their names; see `figures.figure`.
        settings: of the gate.

    Raises:
        BadInput: if no cell has a figure of a name.

    """
    columns = (
        Column("cell", "cell"), Column("figure", "figure"), Column("runs", "K", right=True),
        Column("sessions", "sessions", right=True, rank=2),
        Column("mean", "mean", unit_in_header=False), Column("sd", "sd", right=True, rank=1),
        Column("detects", "detects", right=True),
    )  # fmt: skip
    for name in figures:
        if all(figure(name, cell.runs, ()) is None for cell in cells.values()):
            raise BadInput(f"no cell has a figure {name!r}")
    every = describe_stored(cells, figures, settings)
    rows, remarks = [], []
    for stored in every:
        quantity = stored.quantity
        refused = refusal(stored.runs, (), quantity)
        mean = None if refused else mean_value(stored.runs)
        detects = least_detected(quantity, None if refused else stored.detectable)
        texts = {
            "cell": stored.cell_id, "figure": quantity.label, "runs": str(len(stored.runs)),
            "sessions": str(len({run.session for run in stored.runs})),
            "detects": detects or str(REFUSED),
            "sd": str(REFUSED)
            if stored.sd is None
            else sd_words(stored.sd, stored.sd_is_floor, places=2),
        }  # fmt: skip
        shown = REFUSED if mean is None else figure_value(quantity, mean, mean)
        rows.append(Row(texts, {"mean": [shown]}, opens=True))
        remarks.append([refused.sentence] if refused else _limits(stored, settings, len(every)))
    title = f"{label}: {counted(len({row.texts['cell'] for row in rows}), 'cell')}"
    notes = Notes()
    notes.remark(rows, remarks)
    legend = (
        "Mean: geometric, over runs; sd: between runs, of its logarithm. Detects: the least "
        f"worsening found with {100 * settings.power:.3g} % power, if {100 * settings.rate:.3g} % "
        f"of unchanged suites may alarm. --tau: {tau_words(settings)}."
    )
    return Document(
        [Heading(title, 1), Table(columns, rows, notes.lines(len(rows))), Paragraph(legend)]
    )


def _limits(stored: StoredFigure, settings: GateSettings, figures: int) -> list[str]:
    """Return what limits what a comparison with a cell detects, and how many runs it needs."""
    runs = len(stored.runs)
    notes = [stored.warning] if runs > 1 and stored.warning else []
    notes += [stored.limit] * bool(stored.limit)
    if stored.detectable is None:
        needed = runs_to_convict(settings, figures)
        enough = LEAST_RUNS_EXACT if runs < LEAST_RUNS or needed is None else needed
        notes.append(f"too few runs to tell: record {enough}")
    elif stored.detectable > settings.detect:
        assert stored.sd is not None  # or nothing could be detected
        wanted = runs_needed(stored.sd, settings.detect, settings, figures)
        how_many = f"more than {MOST_RUNS}" if wanted is None else wanted
        notes.append(f"needs K = T = {how_many} runs for {100 * settings.detect:+.3g} %")
    return notes


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
    columns = (
        Column("when", "when"), Column("commit", "commit"),
        Column("cells", "cells", right=True), *_DISTANCES,
    )  # fmt: skip
    rows = [
        Row({
            "when": _when(move.when), "commit": _commit(move.commit),
            "cells": str(len(move.cells)), **_distances(move),
        }, opens=True, below=[*_changed(move), move.reason])
        for move in moves
    ]  # fmt: skip
    title = (
        f"{label}: moved {counted(len(moves), 'time')}" if moves else f"{label} was never moved."
    )
    parts: list[Part] = [Heading(title, 1), *[Table(columns, rows)] * bool(rows)]
    now = describe_move(anchor, anchor, cells, "", None)
    ratios = {
        cell_id: cell.p99_ratio_to_anchor
        for cell_id, cell in now.cells.items()
        if cell.p99_ratio_to_anchor is not None
    }
    if ratios:
        farthest = max(ratios, key=lambda cell_id: abs(math.log(ratios[cell_id])))
        text = (
            f"Now P99 is {_change(now.median_p99_ratio_to_anchor)} against the anchor (median of "
            f"{counted(len(ratios), 'cell')}); farthest: {farthest} {_change(ratios[farthest])}."
        )
        parts.append(Paragraph(text, ""))
    return Document(parts)


_DISTANCES = (
    Column("previous", "P99", "to previous", right=True),
    Column("anchor", "P99", "to anchor", right=True),
)


def move_document(label: str, move: Move) -> Document:
    """Return how far each cell of a baseline was moved."""
    rows = [
        Row({
            "cell": name, "previous": _change(cell.p99_ratio),
            "anchor": _change(cell.p99_ratio_to_anchor),
        })
        for name, cell in move.cells.items()
    ]  # fmt: skip
    rows += [Row({"cell": "median", **_distances(move)})] * (len(rows) > 1)
    heading = Heading(f"{label} moved: {counted(len(move.cells), 'cell')}", 1)
    table = Table((Column("cell", "cell"), *_DISTANCES), rows)
    return Document([heading, table, *(Paragraph(line, "") for line in _changed(move))])


def _distances(move: Move) -> dict[str, str]:
    return {
        "previous": _change(move.median_p99_ratio),
        "anchor": _change(move.median_p99_ratio_to_anchor),
    }


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


def _change(ratio: float | None) -> str:
    """Format a ratio as a signed change, or as refused if there is none."""
    return str(REFUSED) if ratio is None else percent(ratio - 1)


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
    taken = f"judged with an sd of {sd_words(settings.floor, is_floor=True)}"
    notes.remark(
        rows,
        [
            [each.warning] * bool(each.warning) + [taken] * each.sd_is_floor
            for each in found.cells.values()
        ],
    )
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
    lines = []
    if found.tau is None:
        lines.append(
            "All runs come from one session, which cannot tell how sessions differ: there is no "
            "tau to recommend."
        )
    else:
        value = f"{100 * found.tau:.3g}%"
        known = sum(cell.session_sd is not None for cell in found.cells.values())
        lines.append(
            f"Recommended tau: {value} (--tau {value}, or hwq_tau = {value} in the ini file), from "
            f"{counted(known, 'cell')}. "
            + (
                f"Sessions differ by {sd_words(found.tau, is_floor=True)}."
                if found.tau_is_floor
                else "It is an estimate: the intervals of the session sd say how good."
            )
        )
    few = max((cell.sessions for cell in found.cells.values()), default=0) < LEAST_SESSIONS
    return lines + [HOW_TO_RECORD] * few


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
    cells = grouped(
        ((f"  {each.field}: {in_words(each.a)} → {in_words(each.b)}", _MEANING[each.kind]), cell_id)
        for cell_id, differences in found.items()
        for each in differences
    )
    if not cells:
        return ""
    lines = [
        f"{line} ({ids[0] if len(ids) == 1 else counted(len(ids), 'cell')}; {meaning})"
        for (line, meaning), ids in cells.items()
    ]
    return "\n".join(["Conditions that differ (baseline → test):", *lines])
