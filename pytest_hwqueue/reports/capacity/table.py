"""The result of ``hwq capacity`` in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from pytest_hwqueue.capacity.file import CapacityFile
from pytest_hwqueue.reports.capacity.words import (
    answers,
    rates_head,
    rates_rows,
    remarks,
    settings,
    summary_head,
    summary_row,
    title,
)
from pytest_hwqueue.reports.grid import Column, Grid, Row, paragraph
from pytest_hwqueue.reports.which.words import SIMULATED


def draw_capacity(found: CapacityFile, console: Console) -> None:
    """Print the capacities, every rate, and the answer."""
    console.print(Text(title(found), style="bold"))
    if found.simulated:
        console.print(Text(SIMULATED, style="bold yellow"))
    for line in filter(None, (found.description, settings(found))):
        console.print(paragraph(line, console.width))
    _draw(summary_head(found), [[summary_row(found, case)] for case in found.cases], console)
    console.print()
    _draw(rates_head(found), [rates_rows(found, case) for case in found.cases], console)
    for line in remarks(found):
        console.print(paragraph(line, console.width))
    for line in answers(found):
        console.print()
        console.print(paragraph(line, console.width, style="bold"))


def _draw(head: Sequence[str], blocks: Sequence[list[list[str]]], console: Console) -> None:
    rows = [
        Row(texts=dict(zip(head, texts, strict=True)), opens=number == 0)
        for block in blocks
        for number, texts in enumerate(block)
    ]
    grid = Grid([Column(name, name) for name in head], rows)
    if grid.width <= console.width:
        grid.draw(console)
        return
    # Too narrow for a table: one line for each figure.
    for row in rows:
        parts = [f"{name}: {text}" for name, text in row.texts.items() if text]
        console.print(paragraph(" · ".join(parts), console.width, style=""))
