"""Renders the tables at the end of a session: at a glance, or everything there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import StringIO

from rich.console import Console

from pytest_hwqueue.metrics.latency import CONFIDENCE
from pytest_hwqueue.records.cell import RunRecord
from pytest_hwqueue.records.cell_runs import gather
from pytest_hwqueue.reports.family_table import FamilyTable
from pytest_hwqueue.reports.glance import Changes, draw_glance
from pytest_hwqueue.reports.grid import paragraph
from pytest_hwqueue.reports.queue_switches import queue_switches
from pytest_hwqueue.reports.run_table import draw_runs, shown
from pytest_hwqueue.reports.scaling_table import draw_scaling

OWN_TESTS = "your own tests"
_LEGEND_NAME = 14


def render(
    records: Sequence[RunRecord],
    *,
    width: int,
    colour: bool,
    changes: Changes | None = None,
    scaling: bool = False,
) -> str:
    """Return a session at a glance, without a newline at the end; empty without records.

    A cell measured in several runs is shown once, by its middle run.

    Args:
        records: in the order measured, of any status.
        width: of the terminal in cells; no line is longer.
        colour: whether to write ANSI escape sequences.
        changes: of the cells that were compared with a baseline.
        scaling: whether to print the scaling tables of sweeps, too.

    """

    def draw(console: Console) -> None:
        cells = gather(records)
        draw_glance(console, cells, changes or {})
        if scaling:
            console.print()
            draw_scaling(console, [cell.middle for cell in cells], set())

    return drawn(draw, width, colour) if records else ""


def render_details(records: Sequence[RunRecord], *, width: int, colour: bool) -> str:
    """Return all tables of a session, as `render` does: per family, per sweep, and of runs.

    Narrow terminals get fewer columns; every figure stays in the records.
    """
    return drawn(lambda console: _draw(console, records), width, colour) if records else ""


def render_lines(lines: Sequence[str], width: int) -> str:
    """Return lines wrapped at the terminal's width, further ones indented."""
    return "\n".join(str(paragraph(line, width)) for line in lines)


def drawn(draw: Callable[[Console], None], width: int, colour: bool) -> str:
    """Return as text what is drawn on a console of that width, without trailing blanks."""
    buffer = StringIO()
    console = Console(
        file=buffer, width=max(width, 1), force_terminal=colour, force_jupyter=False,
        color_system="standard" if colour else None, no_color=not colour, highlight=False,
        markup=False, emoji=False, legacy_windows=False,
    )  # fmt: skip
    draw(console)
    lines = buffer.getvalue().split("\n")
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def _draw(console: Console, records: Sequence[RunRecord]) -> None:
    cells = gather(records)
    families: dict[str, list[RunRecord]] = {}
    for cell in cells:
        record = shown(cell)
        families.setdefault(record.family or OWN_TESTS, []).append(record)
    readings: set[str] = set()
    for family, members in families.items():
        FamilyTable(family, members, console.width).draw(console)
        console.print()
        draw_scaling(console, members, readings)
    draw_runs(console, cells)
    for name, meaning in _legend(records):
        console.print(paragraph(f"{name:<{_LEGEND_NAME}}{meaning}", console.width))


def _legend(records: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Explain in plain words what the tables show; the device's own figures stand here."""
    lines = []
    if any(record.metrics.latency is not None for record in records):
        lines.append(
            (
                "[low, high]",
                f"{CONFIDENCE * 100:.0f} % confidence interval, from the samples of this run",
            )
        )
    lines += [("queue switch", text) for text in queue_switches(records)]
    if any(record.metrics.ready_to_start is not None for record in records):
        lines.append(
            (
                "ready→start",
                "wait per kernel once nothing but the device holds it back, where the kernel that "
                "started before it was of another stream or of the same",
            )
        )
    return lines
