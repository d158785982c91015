"""Files a sweep writes next to its records: scaling tables and one plot per workload."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_hwqueue.harness.summary import find_sweeps, scaling_of
from pytest_hwqueue.metrics.numbers import counted
from pytest_hwqueue.records.cell import RunRecord
from pytest_hwqueue.records.files import write_text
from pytest_hwqueue.records.stored import gather
from pytest_hwqueue.reports.charts import ScalingCurve, scaling_chart
from pytest_hwqueue.reports.drawing import INSTALL, Spec, can_plot, stacked_svg
from pytest_hwqueue.reports.grid import rendered
from pytest_hwqueue.reports.tables import scaling_parts

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
    sweeps: dict[str, list[list[RunRecord]]] = {}
    for sweep in find_sweeps(shown):
        sweeps.setdefault(sweep[0].cell.name, []).append(sweep)
    lines = []
    if sweeps:
        table = rendered(scaling_parts(shown, set()), _WIDTH, False)
        write_text(folder / _TABLE, f"{table}\n")
        lines.append(f"scaling: {folder / _TABLE}")
        if not can_plot():
            lines.append(INSTALL)
    for name in dict.fromkeys(record.cell.name for record in shown):
        if name not in sweeps:
            lines.append(f"{name}: no scaling, {_measured(name, shown)}")
        elif can_plot():
            charts = _charts(sweeps[name])
            if charts:
                plot = folder / f"{name.replace('/', '_')}.svg"
                write_text(plot, stacked_svg(f"Scaling of {name}", charts))
                lines.append(f"plot: {plot}")
    return lines


def _measured(name: str, shown: Sequence[RunRecord]) -> str:
    ok = {r.cell.streams for r in shown if r.cell.name == name and r.status == "ok"}
    if len(ok) > 1:
        return "its cells differ in more than streams, or count no work"
    return f"measured at {counted(len(ok), 'count')} of streams"


def _charts(sweeps: Sequence[Sequence[RunRecord]]) -> list[tuple[str, Spec]]:
    """Return a chart for each device, size and unit."""
    panels: dict[tuple[str, str], list[ScalingCurve]] = {}
    for sweep in sweeps:
        try:
            scaling = scaling_of(sweep)
        except ValueError:
            # The table says why.
            continue
        cell = sweep[0].cell
        parts = [cell.scheduler, cell.dispatch]
        if cell.sync_mode != "per_iteration":
            parts.append(cell.sync_mode)
        parts += [cell.variant] if cell.variant else []
        curve = ScalingCurve(", ".join(parts), scaling)
        panels.setdefault((_title(sweep[0]), scaling.unit), []).append(curve)
    return [(title, scaling_chart(curves)) for (title, _), curves in panels.items()]


def _title(record: RunRecord) -> str:
    hard = {} if record.fingerprint is None else record.fingerprint.hard
    device = record.cell.device
    name = f"{hard['device_name']} ({device})" if "device_name" in hard else device
    size = "" if record.cell.size is None else f", size {record.cell.size}"
    model = ": a model's figures, not measured" if record.simulated else ""
    return f"{name}{size}{model}"
