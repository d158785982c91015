"""The table of cells with several runs: the run that represents each, and their spread."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from statistics import median, stdev

from rich.console import Console
from rich.text import Text

from pytest_hwqueue.metrics.latency import shortfall
from pytest_hwqueue.metrics.numbers import (
    REFUSED,
    PrintedFigure,
    counted,
    milliseconds,
    percent,
    time_unit,
)
from pytest_hwqueue.records.cell import RunRecord
from pytest_hwqueue.records.cell_runs import CellRuns
from pytest_hwqueue.reports.cell_rows import NO_REASON, PERCENTILES
from pytest_hwqueue.reports.grid import Column, Grid, Row, paragraph, print_below
from pytest_hwqueue.reports.notes import Notes

_NS_PER_MS = 1e6
_TIMES = ("median", "least", "most")
_SHARE_OF_NAME = 0.3
_NUMBERS = re.compile(r"\d[\d.]*")
_MEANING = (
    "sd: standard deviation between runs, of the logarithm, so that 3 % is 3 % of the figure. "
    "Intervals above are of one run and do not contain it."
)


def shown(cell: CellRuns) -> RunRecord:
    """Return the middle run, with a note if there are others."""
    if len(cell.runs) == 1 or not cell.measured:
        return cell.middle
    count = counted(len(cell.measured), "run")
    if cell.percentile is None:
        note = f"the first of {count}"
    else:
        label = PERCENTILES[cell.percentile]
        which = "median" if len(cell.measured) % 2 else "lower middle"
        note = f"of {count} the one with the {which} {label}"
    if cell.bad:
        note += f"; {len(cell.bad)} more came to nothing"
    return cell.middle.model_copy(update={"notes": [*cell.middle.notes, f"{note}: see Runs"]})


def draw_runs(console: Console, cells: Sequence[CellRuns]) -> None:
    """Print the table of the cells with several runs; nothing if there are none."""
    several = [cell for cell in cells if len(cell.runs) > 1]
    if not several:
        return
    console.print(_title(several))
    for widest in (None, max(16, int(console.width * _SHARE_OF_NAME))):
        notes = Notes()
        grid = _grid(several, notes, widest)
        if grid.width <= console.width:
            width = grid.draw(console)
            break
    else:
        width = console.width
        for row in grid.rows:
            console.print(Text(row.texts["cell"], style=row.style or "bold"))
            parts = [f"{row.texts['runs']} runs"]
            parts += [f"{key} {shown[0]}" for key, shown in row.figures.items()]
            print_below(console, [parts, *row.below], width)
    for line in (*notes.lines(len(several)), _MEANING):
        console.print(paragraph(line, width))
    console.print()


def _title(cells: Sequence[CellRuns]) -> Text:
    title = Text.assemble(("Runs", "bold"), " of each cell, and how far they differ")
    bad = [run.status for cell in cells for run in cell.bad]
    if bad:
        counts = ", ".join(f"{bad.count(status)} {status}" for status in dict.fromkeys(bad))
        runs = sum(len(cell.runs) for cell in cells)
        title.append(f" · {counts} of {counted(runs, 'run')}", style="red")
    return title


def _grid(cells: Sequence[CellRuns], notes: Notes, widest: int | None) -> Grid:
    labels = dict.fromkeys(PERCENTILES[cell.percentile] for cell in cells if cell.percentile)
    # One label for all cells goes to the heading.
    label = f" {next(iter(labels))}" if len(labels) == 1 else ""
    columns = [
        Column("cell", "cell", widest=widest),
        Column("runs", "runs", right=True),
        Column("percentile", "figure"),
        Column("median", f"median{label}", shares=_TIMES),
        Column("least", "least", shares=_TIMES),
        Column("most", "most", shares=_TIMES),
        Column("sd", f"sd of ln{label}"),
        Column("shown", "shown", right=True),
    ]
    return Grid(columns, [_row(cell, notes, named=not label) for cell in cells])


def _row(cell: CellRuns, notes: Notes, named: bool) -> Row:
    name = cell.middle.cell_id
    row = Row(texts={"runs": cell.count}, opens=True, below=[_failure(run) for run in cell.bad])
    if row.below:
        row.style = "red"
    marks = [notes.footnote(remark) for remark in _remarks(cell)]
    row.texts["cell"] = " ".join([name, *marks])
    values = cell.values_ms
    if not values:
        return row
    assert cell.percentile is not None
    if named:
        row.texts["percentile"] = PERCENTILES[cell.percentile]
    row.texts["shown"] = f"run {cell.middle.run}"
    figures_ms = dict(zip(_TIMES, (median(values), min(values), max(values)), strict=True))
    unit = time_unit(figures_ms["median"] * _NS_PER_MS, [max(values) * _NS_PER_MS])
    row.figures |= {key: [milliseconds(value, unit)] for key, value in figures_ms.items()}
    row.figures["sd"] = [_spread(values, name, notes)]
    return row


def _spread(values_ms: Sequence[float], name: str, notes: Notes) -> PrintedFigure:
    if len(values_ms) < 2:
        notes.refuse("sd", shortfall(2, len(values_ms), "runs"), name)
    elif min(values_ms) <= 0:
        notes.refuse("sd", "a run's figure is 0: the clock is too coarse for it", name)
    else:
        return percent(stdev(map(math.log, values_ms)))
    return REFUSED


def _failure(run: RunRecord) -> Text:
    stage = f" in stage {run.stage}" if run.stage else ""
    text = f"run {run.run} {run.status.upper()}{stage}: {run.reason or NO_REASON}"
    return Text(text, style="red")


def _remarks(cell: CellRuns) -> list[str]:
    """Return the notes of runs not shown, unless the shown one has the same."""
    known = {_NUMBERS.sub("", note) for note in cell.middle.notes}
    runs: dict[str, list[int]] = {}
    texts: dict[str, str] = {}
    for run in cell.measured:
        for note in run.notes:
            # The same note differs from run to run in its numbers.
            kind = _NUMBERS.sub("", note)
            if kind not in known:
                texts.setdefault(kind, note)
                runs.setdefault(kind, []).append(run.run)
    return [
        f"{'runs' if len(which) > 1 else 'run'} {', '.join(map(str, which))}: {texts[kind]}"
        for kind, which in runs.items()
    ]
