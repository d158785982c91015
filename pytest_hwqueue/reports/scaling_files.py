"""Files a sweep writes next to its records: scaling tables and one plot per workload."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_hwqueue.metrics.numbers import counted
from pytest_hwqueue.records.cell import RunRecord
from pytest_hwqueue.records.cell_runs import gather
from pytest_hwqueue.records.files import write_text
from pytest_hwqueue.reports.latency_plot import INSTALL, can_plot
from pytest_hwqueue.reports.scaling_plot import ScalingCurve, ScalingPanel, scaling_svg
from pytest_hwqueue.reports.scaling_table import draw_scaling
from pytest_hwqueue.reports.terminal import drawn
from pytest_hwqueue.sweeps.earlier import origin
from pytest_hwqueue.sweeps.sweeps import find_sweeps, scaling_of

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
        table = drawn(lambda console: draw_scaling(console, shown, set()), _WIDTH, False)
        write_text(folder / _TABLE, f"{table}\n")
        lines.append(f"scaling: {folder / _TABLE}")
        if not can_plot():
            lines.append(INSTALL)
    for name in dict.fromkeys(record.cell.name for record in shown):
        if name not in sweeps:
            lines.append(f"{name}: no scaling, {_measured(name, shown)}")
        elif can_plot():
            panels = _panels(sweeps[name])
            if panels:
                plot = folder / f"{name.replace('/', '_')}.svg"
                write_text(plot, scaling_svg(f"Scaling of {name}", panels))
                lines.append(f"plot: {plot}")
    return lines


def _measured(name: str, shown: Sequence[RunRecord]) -> str:
    ok = {r.cell.streams for r in shown if r.cell.name == name and r.status == "ok"}
    if len(ok) > 1:
        return "its cells differ in more than streams, or count no work"
    return f"measured at {counted(len(ok), 'count')} of streams"


def _panels(sweeps: Sequence[Sequence[RunRecord]]) -> list[ScalingPanel]:
    """Group the curves by device, size and unit."""
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
        taken = frozenset(r.cell.streams for r in sweep if origin(r) is not None)
        curve = ScalingCurve(", ".join(parts), scaling, taken)
        panels.setdefault((_title(sweep[0]), scaling.unit), []).append(curve)
    return [ScalingPanel(title, unit, curves) for (title, unit), curves in panels.items()]


def _title(record: RunRecord) -> str:
    hard = {} if record.fingerprint is None else record.fingerprint.hard
    device = record.cell.device
    name = f"{hard['device_name']} ({device})" if "device_name" in hard else device
    size = "" if record.cell.size is None else f", size {record.cell.size}"
    model = ": a model's figures, not measured" if record.simulated else ""
    return f"{name}{size}{model}"
