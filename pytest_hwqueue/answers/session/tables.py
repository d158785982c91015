"""Tables in the terminal at the end of a session."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median, stdev
from types import MappingProxyType

from pytest_hwqueue.answers.session.glance import Changes, Glance
from pytest_hwqueue.data.document.cell_rows import (
    PERCENTILES,
    figures_table,
    other_series,
    shown,
    status_of,
)
from pytest_hwqueue.data.document.document import Column, Paragraph, Part, Row, Table
from pytest_hwqueue.data.document.notes import (
    NO_REASON,
    PACE_IN_WORDS,
    CellNames,
    Notes,
    by_kind,
    heading,
    title,
)
from pytest_hwqueue.data.document.scaling import scaling_parts
from pytest_hwqueue.data.document.terminal import rendered
from pytest_hwqueue.data.metrics.between_runs import RunSpread
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.latency import CONFIDENCE, shortfall
from pytest_hwqueue.data.metrics.numbers import (
    REFUSED,
    PrintedFigure,
    counted,
    grouped,
    microseconds,
    milliseconds,
    percent,
    printed,
    time_unit,
)
from pytest_hwqueue.data.records.cell import RunRecord
from pytest_hwqueue.data.records.stored import CellRuns, gather

_WHAT = "extra wait per kernel on many streams against one, of a probe (50 µs kernels)"


def queue_switches(records: Sequence[RunRecord]) -> list[str]:
    """Return a line on all probes of several streams, by device, mode and streams; or nothing.

    Every cell's probe measures the same property of its device, so several are one figure: the
    median, and the range of all.
    """
    probed = [(each.cell, each.metrics.queue_switch) for each in records]
    groups = grouped(
        ((cell.device, cell.scheduler, cell.streams), found.overhead.difference)
        for cell, found in probed
        if found is not None and cell.streams > 1
    )
    several = [len({key[at] for key in groups}) > 1 for at in (0, 1)]
    parts = []
    for (device, mode, streams), probes in sorted(groups.items()):
        where = [device] * several[0] + [mode] * several[1] + [str(streams)]
        parts.append(f"{_figure(probes)} on {' '.join(where)} streams")
    return [f"{_WHAT}: {'; '.join(parts)}"] if parts else []


def _figure(probes: Sequence[Estimate]) -> str:
    given = sorted(probe for probe in probes if probe.value is not None)
    if not given:
        return f"{REFUSED} ({probes[-1].refused or NO_REASON})"
    if len(given) == 1:
        return str(printed(given[0], microseconds))
    middle = microseconds(float(given[len(given) // 2]), (float(given[0]), float(given[-1])))
    return f"{middle} (middle and range of {counted(len(given), 'cell')})"


_NS_PER_MS = 1e6
_TIMES: dict[str, Callable[[Sequence[float]], float]] = {
    "median": median,
    "least": min,
    "most": max,
}
_MEANING = (
    "sd: standard deviation between runs, of the logarithm, so that 3 % is 3 % of the figure. "
    "An interval from the samples of one run does not contain it."
)


def runs_parts(cells: Sequence[CellRuns]) -> list[Part]:
    """Return the table of the cells with several runs; nothing if there are none."""
    several = [cell for cell in cells if len(cell.runs) > 1]
    if not several:
        return []
    bad = [run.status for cell in several for run in cell.bad]
    runs = counted(sum(len(cell.runs) for cell in several), "run")
    named = heading("Runs of each cell, and how far they differ", bad, runs)
    return [named, _table(several), Paragraph(_MEANING)]


def _table(cells: Sequence[CellRuns]) -> Table:
    notes = Notes()
    columns = [
        Column("cell", "cell"),
        Column("runs", "runs", right=True),
        Column("percentile", "figure"),
        Column("median", "median", shares=tuple(_TIMES)),
        Column("least", "least", shares=tuple(_TIMES)),
        Column("most", "most", shares=tuple(_TIMES)),
        Column("sd", "sd of ln"),
        Column("shown", "shown", right=True, rank=1),
    ]
    rows = [_row(cell, notes) for cell in cells]
    return Table(columns, rows, notes.lines(len(cells)))


def _row(cell: CellRuns, notes: Notes) -> Row:
    name = cell.middle.cell_id
    row = Row({"runs": cell.count}, style="red" if cell.bad else "", opens=True)
    row.below += [f"run {run.run} {status_of(run)}" for run in cell.bad]
    marks = [notes.footnote(remark) for remark in _remarks(cell)]
    row.texts["cell"] = " ".join([name, *marks])
    values = cell.values_ms
    if not values:
        return row
    assert cell.percentile is not None
    row.texts |= {"percentile": PERCENTILES[cell.percentile], "shown": f"run {cell.middle.run}"}
    unit = time_unit(median(values) * _NS_PER_MS, [max(values) * _NS_PER_MS])
    for key, of in _TIMES.items():
        row.figures[key] = [milliseconds(of(values), unit)]
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


def _remarks(cell: CellRuns) -> list[str]:
    """Return the notes of runs not shown, unless the shown one has the same."""
    known = by_kind([(note, 0) for note in cell.middle.notes])
    noted = by_kind([(note, run.run) for run in cell.measured for note in run.notes])
    return [
        f"{'runs' if len(which) > 1 else 'run'} {', '.join(map(str, which))}: {text}"
        for kind, (text, which) in noted.items()
        if kind not in known
    ]


def family_parts(family: str, records: Sequence[RunRecord]) -> list[Part]:
    """Return one family's cells, with every figure that they have."""
    names = CellNames([record.cell for record in records])
    named = f"{family} in {names.file}" if names.file else family
    # A percentile that was refused everywhere has no column: the option's help says what it needs,
    # and P50 to P99 say it below the table.
    series = [each for r in records for each in (r.metrics.judged, *other_series(r).values())]
    refused = all(each is None or each.p999.value is None for each in series)
    ratios = [name for record in records for name in record.metrics.ratios]
    cells = []
    for record in records:
        settings = ", ".join(names.settings(record.cell))
        workload = names.workload(record.cell)
        name = f"{workload} ({settings})" if settings else workload
        texts = {"workload": workload} | {key: say(record.cell) for key, _, say in names.varying}
        cells.append((record, name, texts))
    # What tells cells apart is the last to go.
    columns = [Column("workload", "workload")]
    columns += [
        Column(key, header, right=key == "streams", rank=1) for key, header, _ in names.varying
    ]
    once = len(ratios) > len(set(ratios))
    return [
        title(named, records, f": {_what(records)}"),
        *names.constants(),
        figures_table(cells, columns, ["p999"] * refused, ratios_once=once),
    ]


def _what(records: Sequence[RunRecord]) -> str:
    measured = [record for record in records if record.samples is not None]
    if not measured:
        return "nothing was measured"
    paced = [record for record in measured if record.has_pace]
    whole = [each for each in measured if each.primary.per == "iteration" and not each.has_pace]
    if len(paced) == len(measured):
        return f"pace, not latency: {PACE_IN_WORDS}"
    said = ["latency of what stands behind each name"]
    if whole:
        said.append("whole iterations seen by the host")
    if paced:
        said.append(f"pace: {PACE_IN_WORDS}")
    if len(whole) == len(measured):
        return "latency per iteration, seen by the host"
    return "; ".join(said) if whole or paced else f"{said[0]}, from events"


OWN_TESTS = "your own tests"


def render(
    records: Sequence[RunRecord],
    *,
    width: int,
    colour: bool,
    changes: Changes | None = None,
    spreads: Mapping[str, RunSpread] = MappingProxyType({}),
    scaling: bool = False,
) -> str:
    """Return a session at a glance, without a newline at the end; empty without records.

    A cell measured in several runs is shown once, by its middle run.

    Args:
        records: in the order measured, of any status.
        width: of the terminal in cells; no line is longer.
        colour: whether to write ANSI escape sequences.
        changes: of the cells that were compared with a baseline.
        spreads: how far that baseline's runs differ within a session, by cell id.
        scaling: whether to print the scaling tables of sweeps, too.

    """
    if not records:
        return ""
    cells = gather(records)
    parts = Glance(cells, spreads).parts(changes or {})
    if scaling:
        parts += scaling_parts([cell.middle for cell in cells], set())
    return rendered(parts, width, colour)


def render_details(
    records: Sequence[RunRecord],
    *,
    width: int,
    colour: bool,
    spreads: Mapping[str, RunSpread] = MappingProxyType({}),
) -> str:
    """Return all tables of a session, as `render` does: per family, per sweep, and of runs.

    Narrow terminals get fewer columns; every figure stays in the records.
    """
    cells = gather(records)
    records_shown = (shown(cell, spreads) for cell in cells)
    families = grouped((record.family or OWN_TESTS, record) for record in records_shown)
    parts: list[Part] = []
    readings: set[str] = set()
    for family, members in families.items():
        parts += family_parts(family, members) + scaling_parts(members, readings)
    return rendered([*parts, *runs_parts(cells), *_legend(records)], width, colour)


def render_lines(lines: Sequence[str], width: int) -> str:
    """Return lines wrapped at the terminal's width, further ones indented."""
    return rendered([Paragraph(line) for line in lines], width, False)


def _legend(records: Sequence[RunRecord]) -> list[Part]:
    """Explain in plain words what the tables show; the device's own figures stand here."""
    lines = []
    if any(record.metrics.judged is not None for record in records):
        share = f"{CONFIDENCE * 100:.0f} %"
        lines.append(
            f"[low, high]: {share} confidence interval, from the samples of this run unless a note "
            "says otherwise"
        )
    lines += [f"queue switch: {text}" for text in queue_switches(records)]
    if any(record.metrics.ready_to_start is not None for record in records):
        lines.append(
            "ready→start: wait per kernel once nothing but the device holds it back, where the "
            "kernel that started before it was of another stream or of the same"
        )
    return [Paragraph(line) for line in lines]
