"""Prints `hwq baseline list`, `show`, `history` and `accept`: what is stored, and its reach."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from pytest_hwqueue.baselines.folders import Move, describe_move
from pytest_hwqueue.baselines.runs import CellBaseline, soft_fields
from pytest_hwqueue.baselines.store import Store
from pytest_hwqueue.gate.calibrate import (
    LEAST_RUNS,
    LEAST_RUNS_EXACT,
    MOST_RUNS,
    runs_needed,
    runs_to_convict,
)
from pytest_hwqueue.gate.runs import ProcessRun
from pytest_hwqueue.gate.verdict import GateSettings, Quantity, percent, refusal
from pytest_hwqueue.metrics.numbers import REFUSED, counted, decimals, fixed, rate, time_unit
from pytest_hwqueue.reports.doctor import make_console
from pytest_hwqueue.reports.verdict_words import figure_value, mean_value, tau_words
from pytest_hwqueue.verdicts.figures import figure
from pytest_hwqueue.verdicts.judging import UnknownFigure
from pytest_hwqueue.verdicts.stored import StoredFigure, describe_stored

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
        BaselineError: naming the file that is damaged.

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
        UnknownFigure: if no cell has a figure of a name.

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
            raise UnknownFigure(f"no cell has a figure {name!r}")
    return rows


def print_baselines(rows: Sequence[BaselineRow], console: Console | None = None) -> None:
    """Print a table of baselines."""
    table = folded_table(
        "Baselines", "Device", "Name", "Cells", "Runs a cell", "Sessions", "Last change"
    )
    for row in rows:
        least, most = row.runs
        runs = str(least) if least == most else f"{least}–{most}"
        table.add_row(
            row.device, row.name, str(row.cells), runs, str(row.sessions), _when(row.changed)
        )
    (console or make_console()).print(table)


def print_cells(
    label: str, rows: Sequence[CellRow], settings: GateSettings, console: Console | None = None
) -> None:
    """Print a baseline's cells and what they can detect."""
    table = folded_table(
        f"{label}: {counted(len({row.stored.cell_id for row in rows}), 'cell')}",
        "Cell", "Figure", "K", "Sessions", "Mean", "sd", "Detects", "Note",
    )  # fmt: skip
    for row in rows:
        cell = row.stored
        mean = REFUSED if row.mean is None else figure_value(row.quantity, row.mean, row.mean)
        detects = str(REFUSED)
        if cell.detectable is not None:
            detects = least_change(row.quantity, cell.detectable)
        table.add_row(
            escape(cell.cell_id), cell.label, str(cell.runs), str(cell.sessions),
            str(mean), share(cell.sd), detects, escape("; ".join(row.notes)),
        )  # fmt: skip
    legend = Text(
        "Mean: geometric, over runs; sd: between runs, of its logarithm. Detects: the least "
        f"worsening found with {100 * settings.power:.3g} % power, if {100 * settings.rate:.3g} % "
        f"of unchanged suites may alarm. --tau: {tau_words(settings)}."
    )
    (console or make_console()).print(Group(table, legend))


def print_runs(label: str, cell: CellBaseline, console: Console | None = None) -> None:
    """Print every run of a cell, and the conditions they share."""
    worst_ns = [run.max_ns for run in cell.runs]
    unit = time_unit(statistics.median(run.p50_ns for run in cell.runs), worst_ns)
    table = folded_table(
        f"{label}, {cell.header.cell.id}: {counted(len(cell.runs), 'run')}, times in {unit.name}",
        "Run", "Session", "Measured", "Commit", "n",
        "P50", "P90", "P95", "P99", "P99.9", "Max", "Throughput", "Differs",
    )  # fmt: skip
    places = decimals(cell.runs[0].p50_ns / unit.ns)
    for number, run in enumerate(cell.runs, start=1):
        times = (run.p50_ns, run.p90_ns, run.p95_ns, run.p99_ns, run.p999_ns, run.max_ns)
        rates = [str(rate(value, unit)) for unit, value in run.throughput.items()]
        differs = [f"{name} = {value}" for name, value in run.soft.items()]
        table.add_row(
            str(number), run.session, _when(run.when), _commit(run.commit), str(run.n),
            *(fixed(value / unit.ns, places) for value in times),
            escape("\n".join(rates)), escape("\n".join(differs)),
        )  # fmt: skip
    header = cell.header
    parts: list[RenderableType] = [table]
    for title, fields in (
        ("Parameters", header.cell.parameters),
        ("Must be the same to compare", header.hard),
        ("Of the first run", soft_fields(header, cell.runs[0])),
    ):
        listed = ", ".join(f"{name} = {value}" for name, value in sorted(fields.items()))
        parts.append(Text(f"{title}: {listed or 'none'}"))
    (console or make_console()).print(Group(*parts))


def print_history(
    label: str,
    moves: Sequence[Move],
    anchor: Mapping[str, CellBaseline],
    cells: Mapping[str, CellBaseline],
    console: Console | None = None,
) -> None:
    """Print when a baseline was moved, how far each time, and its distance from its anchor.

    Args:
        label: of the baseline.
        moves: oldest first.
        anchor: the cells' first accepted runs.
        cells: the cells' runs now.
        console: to print on.

    """
    console = console or make_console()
    if not moves:
        console.print(Text(f"{label} was never moved."))
    else:
        table = folded_table(
            f"{label}: moved {counted(len(moves), 'time')}",
            "When", "Commit", "Cells", "P99 to previous", "P99 to anchor", "Changed", "Reason",
        )  # fmt: skip
        for move in moves:
            table.add_row(
                _when(move.when), _commit(move.commit), str(len(move.cells)),
                change(move.median_p99_ratio), change(move.median_p99_ratio_to_anchor),
                escape(", ".join(move.changed)), escape(move.reason),
            )  # fmt: skip
        console.print(table)
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
        console.print(Text(text))


def print_move(label: str, move: Move, console: Console | None = None) -> None:
    """Print how far each cell of a baseline was moved."""
    table = folded_table(
        f"{label} moved: {counted(len(move.cells), 'cell')}",
        "Cell", "P99 to previous", "P99 to anchor",
    )  # fmt: skip
    for cell_id, cell in move.cells.items():
        table.add_row(escape(cell_id), change(cell.p99_ratio), change(cell.p99_ratio_to_anchor))
    if len(move.cells) > 1:
        table.add_section()
        table.add_row(
            "median", change(move.median_p99_ratio), change(move.median_p99_ratio_to_anchor)
        )
    parts: list[RenderableType] = [table]
    if move.changed:
        parts.append(Text(f"Conditions that changed: {', '.join(move.changed)}"))
    (console or make_console()).print(Group(*parts))


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


def least_change(quantity: Quantity, detectable: float) -> str:
    """Format the smallest worsening detected as a change: ``≥ +8.7 %``, or ``≤ -8.0 %``."""
    if quantity.higher_is_worse:
        return f"≥ {percent(detectable)}"
    return f"≤ {percent(1 / (1 + detectable) - 1)}"


def folded_table(title: str, *columns: str) -> Table:
    """Return a table whose cells wrap, so a narrow terminal loses nothing."""
    headings = [Column(column, overflow="fold") for column in columns]
    return Table(*headings, title=escape(title), title_justify="left", title_style="bold")


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
