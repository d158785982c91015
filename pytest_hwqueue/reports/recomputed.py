"""What was computed again, as ``hwq recompute`` prints it."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytest_hwqueue import __version__
from pytest_hwqueue.metrics.numbers import counted
from pytest_hwqueue.recompute.comparison import Recomputed
from pytest_hwqueue.recompute.records import Outcome
from pytest_hwqueue.reports.doctor import make_console

_MOST_ROWS = 100


def print_outcome(outcome: Outcome, console: Console | None = None) -> None:
    """Print the differences, what was left out, what is damaged, and the sum of it."""
    console = console or make_console()
    different = [record for record in outcome.records if record.differences]
    if different:
        console.print(_table(different))
        hidden = sum(len(record.differences) for record in different) - _MOST_ROWS
        if hidden > 0:
            console.print(Text(f"and {hidden} more"))
    for record in outcome.records:
        for reason in record.left_out:
            console.print(Text(f"not computed again: {record.id}: {reason}"), soft_wrap=True)
    for record in outcome.records:
        if not record.figures:
            text = f"nothing to compute again: {record.id} ({record.path})"
            console.print(Text(text), soft_wrap=True)
    for text in outcome.damaged:
        console.print(Text(f"damaged: {text}"), soft_wrap=True)
    console.print(Text(_summed_up(outcome, different)), soft_wrap=True)


def _table(different: list[Recomputed]) -> Table:
    table = Table("cell", "figure", "stored", "recomputed", box=None, pad_edge=False)
    rows = [(record.id, each) for record in different for each in record.differences]
    for cell, each in rows[:_MOST_ROWS]:
        table.add_row(*map(Text, (cell, each.figure, each.stored, each.recomputed)))
    return table


def _summed_up(outcome: Outcome, different: list[Recomputed]) -> str:
    parts = [f"{counted(outcome.figures, 'value')} of {counted(len(outcome.records), 'record')}"]
    parts.append("agree" if outcome.agrees else f"{len(different)} with differences")
    if outcome.damaged:
        parts.append(f"{counted(len(outcome.damaged), 'file')} damaged")
    text = ", ".join(parts) if not outcome.agrees else " ".join(parts)
    others = sorted({record.version or "an earlier version" for record in different})
    if others and others != [__version__]:
        text += f"; measured by {' and '.join(others)}, computed by {__version__}"
    return text
