"""Tables of a family's cells, and of scaling over streams."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_hwqueue.harness.summary import find_sweeps, scaling_of
from pytest_hwqueue.metrics.numbers import REFUSED, counted, percent, rate, times
from pytest_hwqueue.metrics.scaling import SATURATED_SHARE, Scaling
from pytest_hwqueue.records.cell import Cell, RunRecord
from pytest_hwqueue.reports.cell_rows import COLUMNS, CellRows, other_series
from pytest_hwqueue.reports.charts import ScalingCurve, scaling_chart
from pytest_hwqueue.reports.document import Chart, Column, Heading, Paragraph, Part, Row, Table
from pytest_hwqueue.reports.notes import CellNames, Notes, how_timed, title


def saturated_from(records: Sequence[RunRecord]) -> list[tuple[Cell, str]]:
    """Return each sweep's first cell, and the least number of streams that saturates it."""
    found = []
    for sweep in find_sweeps(records):
        try:
            result = scaling_of(sweep)
        except ValueError:
            # Its table, which -v prints, says why.
            words = "unknown"
        else:
            least = result.saturation_streams
            words = f"none up to {sweep[-1].cell.streams}" if least is None else str(least)
        found.append((sweep[0].cell, words))
    return found


def scaling_parts(records: Sequence[RunRecord], readings: set[str]) -> list[Part]:
    """Return a table for each cell measured at two or more numbers of streams.

    Args:
        records: of any status; those that were not measured are left out.
        readings: explanations already given; new ones are added.

    """
    parts: list[Part] = []
    for sweep in find_sweeps(records):
        try:
            result = scaling_of(sweep)
        except ValueError as error:
            parts.append(Heading(_title(sweep[0].cell, "Scaling")))
            parts.append(Paragraph(f"cannot be told: {error}", "red"))
            continue
        parts.append(Heading(_title(sweep[0].cell, f"{result.kind} scaling".capitalize())))
        parts += [_scaling_table(result), Paragraph(saturation(result), "")]
        curve = scaling_chart([ScalingCurve("", result)], simulated=sweep[0].simulated)
        parts.append(Chart("Throughput over streams", curve, "With 95 % intervals."))
        if result.reading not in readings:
            readings.add(result.reading)
            parts.append(Paragraph(result.reading))
    return parts


def _title(cell: Cell, what: str) -> str:
    parts = [cell.device, f"scheduler {cell.scheduler}", f"dispatch {cell.dispatch}"]
    if cell.sync_mode != "per_iteration":
        parts.append(f"sync mode {cell.sync_mode}")
    if cell.variant:
        parts.append(cell.variant)
    return f"{what} of {cell.name} over streams: {', '.join(parts)}"


def _scaling_table(result: Scaling) -> Table:
    notes = Notes()
    rows = []
    greatest = max(point.throughput.value for point in result.points)
    for point in result.points:
        name = counted(point.streams, "stream")
        given = point.throughput
        if given.interval is None:
            notes.refuse("interval of throughput", given.refused["interval"], name)
        # The base is compared with itself: its ones are by definition, not measured.
        base = point.streams == result.base_streams
        for field, reason in point.refused.items():
            whole = not field.endswith("_interval")
            told_above = field.removesuffix("_interval") in point.refused and not whole
            if not base and not told_above:
                notes.refuse(field.replace("_interval", "'s interval"), reason, name)
        saturated = point.streams == result.saturation_streams
        row = Row({"streams": str(point.streams), "mark": "saturated" if saturated else ""})
        row.figures["throughput"] = [rate(given.value, result.unit, given.interval, like=greatest)]
        for key, show in (("speedup", times), ("efficiency", percent)):
            value, interval = getattr(point, key), getattr(point, f"{key}_interval")
            shown = REFUSED if value is None else show(value, None if base else interval)
            row.figures[key] = [shown]
        rows.append(row)
    against = f"against {counted(result.base_streams, 'stream')}"
    columns = [
        Column("streams", "streams", right=True),
        Column("throughput", "throughput", interval_rank=1, kept=False),
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


def family_parts(family: str, records: Sequence[RunRecord]) -> list[Part]:
    """Return one family's cells, with every figure that they have."""
    names = CellNames([record.cell for record in records])
    named = f"{family} in {names.file}" if names.file else family
    # A percentile that was refused everywhere has no column: the option's help says what it needs,
    # and P50 to P99 say it below the table.
    refused = all(_refused(record, "p999") for record in records)
    notes = Notes()
    ratios = [name for record in records for name in record.metrics.ratios]
    once = len(ratios) > len(set(ratios))
    rows: list[Row] = []
    for record in records:
        settings = ", ".join(names.settings(record.cell))
        workload = names.workload(record.cell)
        name = f"{workload} ({settings})" if settings else workload
        texts = {"workload": workload} | {key: say(record.cell) for key, _, say in names.varying}
        rows += CellRows(record, name, notes, ["p999"] * refused).rows(texts, once)
    # What tells cells apart is the last to go.
    columns = [Column("workload", "workload")]
    columns += [
        Column(key, header, right=key == "streams", rank=1) for key, header, _ in names.varying
    ]
    return [
        title(named, records, f": {_what(records)}"),
        *names.constants(),
        Table([*columns, *COLUMNS], rows, notes.lines(len(records))),
    ]


def _what(records: Sequence[RunRecord]) -> str:
    measured = [record for record in records if record.samples is not None]
    if not measured:
        return "nothing was measured"
    whole = [record for record in measured if record.primary.per == "iteration"]
    if not whole:
        return "latency of what stands behind each name, from events"
    how = how_timed(whole)
    if len(whole) == len(measured):
        return f"latency per iteration, {how}"
    return f"latency of what stands behind each name; whole iterations {how}"


def _refused(record: RunRecord, key: str) -> bool:
    summaries = [record.metrics.latency, *other_series(record).values()]
    return all(summary is None or getattr(summary, key) is None for summary in summaries)
