"""Scaling over streams: its tables, and the files that a sweep writes next to its records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_hwqueue.data.document.charts import scaling_chart
from pytest_hwqueue.data.document.document import (
    Chart,
    Column,
    Heading,
    Paragraph,
    Part,
    Row,
    Table,
)
from pytest_hwqueue.data.document.drawing import INSTALL, Spec, can_plot, stacked_svg
from pytest_hwqueue.data.document.notes import Notes, device_name, setting_words
from pytest_hwqueue.data.document.terminal import rendered
from pytest_hwqueue.data.figures.of_cell import find_sweeps, scaling_of
from pytest_hwqueue.data.metrics.numbers import (
    REFUSED,
    counted,
    grouped,
    percent,
    printed,
    rate,
    times,
)
from pytest_hwqueue.data.metrics.scaling import SATURATED_SHARE, Scaling
from pytest_hwqueue.data.records.cell import Cell, RunRecord
from pytest_hwqueue.data.records.stored import gather
from pytest_hwqueue.data.safe_files import write_text


def _sweeps(records: Sequence[RunRecord]) -> Iterator[tuple[list[RunRecord], Scaling | None, str]]:
    """Return each sweep with its scaling, or with why that cannot be told."""
    for sweep in find_sweeps(records):
        try:
            yield sweep, scaling_of(sweep), ""
        except ValueError as error:
            yield sweep, None, str(error)


def saturated_from(records: Sequence[RunRecord]) -> list[tuple[Cell, str]]:
    """Return each sweep's first cell, and the least number of streams that saturates it."""
    found = []
    for sweep, result, _ in _sweeps(records):
        least = None if result is None else result.saturation_streams
        # Why it is unknown its table says, which -v prints.
        none = "unknown" if result is None else f"none up to {sweep[-1].cell.streams}"
        found.append((sweep[0].cell, none if least is None else str(least)))
    return found


def scaling_parts(records: Sequence[RunRecord], readings: set[str]) -> list[Part]:
    """Return a table for each cell measured at two or more numbers of streams.

    Args:
        records: of any status; those that were not measured are left out.
        readings: explanations already given; new ones are added.

    """
    parts: list[Part] = []
    for sweep, result, refused in _sweeps(records):
        what = "Scaling" if result is None else f"{result.kind} scaling".capitalize()
        parts.append(Heading(_title(sweep[0].cell, what)))
        if result is None:
            parts.append(Paragraph(f"cannot be told: {refused}", "red"))
            continue
        parts += [_scaling_table(result), Paragraph(saturation(result), "")]
        curve = scaling_chart([("", result)], simulated=sweep[0].simulated)
        parts.append(Chart("Throughput over streams", curve, "With 95 % intervals."))
        if result.reading not in readings:
            readings.add(result.reading)
            parts.append(Paragraph(result.reading))
    return parts


def _title(cell: Cell, what: str) -> str:
    words = setting_words(cell) | {"size": ""}
    parts = ", ".join(filter(None, (cell.device, *words.values())))
    return f"{what} of {cell.name} over streams: {parts}"


def _scaling_table(result: Scaling) -> Table:
    notes = Notes()
    rows = []
    greatest = max(float(point.throughput) for point in result.points)
    for point in result.points:
        name = counted(point.streams, "stream")
        given = point.throughput
        notes.note(given, "throughput", name)
        # The base is compared with itself: its ones are by definition, not measured.
        base = point.streams == result.base_streams
        saturated = point.streams == result.saturation_streams
        row = Row({"streams": str(point.streams), "mark": "saturated" if saturated else ""})
        shown = rate(float(given), result.unit, given.interval, like=greatest)
        row.figures["throughput"] = [shown]
        # A count divides it exactly: its interval is that of the throughput.
        each = float(given) / point.streams
        row.figures["per_stream"] = [rate(each, result.unit, None, like=greatest)]
        for key, show in (("speedup", times), ("efficiency", percent)):
            value = getattr(point, key)
            row.figures[key] = [show(float(value)) if base else printed(value, show)]
            if not base:
                notes.note(value, key, name)
        rows.append(row)
    against = f"against {counted(result.base_streams, 'stream')}"
    columns = [
        Column("streams", "streams", right=True),
        Column("throughput", "throughput", interval_rank=1, kept=False),
        Column("per_stream", "per stream", kept=False),
        Column("speedup", "speedup", against, unit_in_header=False, interval_rank=1, kept=False),
        Column(
            "efficiency", "efficiency", "per stream", unit_in_header=False,
            interval_rank=1, kept=False,
        ),
        Column("mark", ""),
    ]  # fmt: skip
    return Table(columns, rows, notes.lines(len(result.points)))


def saturation(result: Scaling) -> str:
    """Return from which count of streams on throughput is saturated, or why that is not known."""
    if result.saturation_streams is None or result.saturation_range is None:
        return f"Saturation {REFUSED}: {result.refused['saturation_streams']}."
    low, high = result.saturation_range
    within = f"{low}" if low == high else f"{low} to {high}"
    return (
        f"Saturated from {counted(result.saturation_streams, 'stream')} on ({within} in "
        f"{result.confidence * 100:.0f} % of resamples): the least count that reaches "
        f"{SATURATED_SHARE * 100:.0f} % of the greatest throughput."
    )


_TABLE = "scaling.txt"
_WIDTH = 100


def write_scaling(folder: Path, records: Sequence[RunRecord]) -> list[str]:
    """Write a session's tables and plots; return lines that say where they are.

    Args:
        folder: receives them; NAME.svg is a workload's plot.
        records: of any status.

    Raises:
        RecordError: if a file cannot be written.

    """
    shown = [cell.middle for cell in gather(records)]
    swept = {sweep[0].cell.name for sweep in find_sweeps(shown)}
    charts = _charts(shown)
    lines = []
    if swept:
        table = rendered(scaling_parts(shown, set()), _WIDTH, False)
        write_text(folder / _TABLE, f"{table}\n")
        lines.append(f"scaling: {folder / _TABLE}")
        if not can_plot():
            lines.append(INSTALL)
    for name in dict.fromkeys(record.cell.name for record in shown):
        if name not in swept:
            lines.append(f"{name}: no scaling, {_measured(name, shown)}")
        elif can_plot() and name in charts:
            plot = folder / f"{name.replace('/', '_')}.svg"
            write_text(plot, stacked_svg(f"Scaling of {name}", charts[name]))
            lines.append(f"plot: {plot}")
    return lines


def _measured(name: str, shown: Sequence[RunRecord]) -> str:
    ok = {r.cell.streams for r in shown if r.cell.name == name and r.status == "ok"}
    if len(ok) > 1:
        return "its cells differ in more than streams, or count no work"
    return f"measured at {counted(len(ok), 'count')} of streams"


def _charts(records: Sequence[RunRecord]) -> dict[str, list[tuple[str, Spec]]]:
    """Return by workload a chart for each device, size and unit."""
    curves = []
    for sweep, scaling, _ in _sweeps(records):
        if scaling is None:
            # The table says why.
            continue
        first, cell = sweep[0], sweep[0].cell
        known, size = device_name(first), f", size {cell.size}" if cell.size else ""
        title = (f"{known} ({cell.device})" if known else cell.device) + size
        title += ": a model's figures, not measured" if first.simulated else ""
        mode = cell.sync_mode if cell.sync_mode != "per_iteration" else ""
        cache = f"{cell.cache} cache" if cell.cache != "hot" else ""
        label = ", ".join(filter(None, (cell.scheduler, cell.dispatch, mode, cache, cell.variant)))
        curves.append(((cell.name, title, scaling.unit), (label, scaling)))
    panels = grouped(curves)
    return grouped(
        (name, (title, scaling_chart(those))) for (name, title, _), those in panels.items()
    )
