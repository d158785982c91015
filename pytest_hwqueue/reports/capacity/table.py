"""The result of ``hwq capacity`` in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from pytest_hwqueue.capacity.file import CapacityFile
from pytest_hwqueue.reports.capacity.words import (
    answers,
    goals_not_met,
    rates_head,
    rates_rows,
    remarks,
    settings,
    summary_head,
    summary_row,
    title,
)
from pytest_hwqueue.reports.grid import Column, Grid, Row, paragraph, print_below
from pytest_hwqueue.reports.which.words import SIMULATED


def draw_capacity(found: CapacityFile, console: Console) -> None:
    """Print the capacities, every rate, and the answer."""
    console.print(Text(title(found), style="bold"))
    if found.simulated:
        console.print(Text(SIMULATED, style="bold yellow"))
    for line in filter(None, (found.description, settings(found))):
        console.print(paragraph(line, console.width))
    head = summary_head(found)
    _draw([_row(head, summary_row(found, case), [], True) for case in found.cases], console)
    head = rates_head(found)
    for case in found.cases:
        rows = [
            _row(head, texts, goals_not_met(rate), number == 0)
            for number, (texts, rate) in enumerate(
                zip(rates_rows(found, case), case.rates, strict=True)
            )
        ]
        if rows:
            console.print()
            _draw(rows, console)
    for line in remarks(found):
        console.print(paragraph(line, console.width))
    for line in answers(found):
        console.print()
        console.print(paragraph(line, console.width, style="bold"))


def _row(head: Sequence[str], texts: Sequence[str], below: list[str], opens: bool) -> Row:
    return Row(
        texts=dict(zip(head, texts, strict=True)), opens=opens, below=[below] if below else []
    )


def _draw(rows: Sequence[Row], console: Console) -> None:
    grid = Grid([Column(name, name) for name in rows[0].texts], rows)
    if grid.width <= console.width:
        grid.draw(console)
        return
    # Too narrow for a table: one line for each figure.
    for row in rows:
        parts = [f"{name}: {text}" for name, text in row.texts.items() if text]
        console.print(paragraph(" · ".join(parts), console.width, style=""))
        print_below(console, row.below, console.width)
