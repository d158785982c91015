"""The result of ``hwq tune`` in a terminal."""

from __future__ import annotations

import math

from rich.console import Console
from rich.text import Text

from pytest_hwqueue.capacity.tune_file import TuneFile, TuneTrial
from pytest_hwqueue.metrics.numbers import counted
from pytest_hwqueue.reports.grid import Column, Grid, Row, paragraph
from pytest_hwqueue.reports.which.words import SIMULATED, printed
from pytest_hwqueue.scenarios.goals import GoalResult

_MOST_ROWS = 10


def draw_tuning(found: TuneFile, console: Console) -> None:
    """Print the best trials, the confirmation, and the answer."""
    width = console.width
    console.print(Text(f"Which parameters for {found.case} in {found.scenario}?", style="bold"))
    if found.simulated:
        console.print(Text(SIMULATED, style="bold yellow"))
    searched = ", ".join(f"{name} {low} to {high}" for name, (low, high) in found.space.items())
    console.print(paragraph(f"{searched} · seed {found.seed}", width))
    ranked = sorted(found.trials, key=lambda trial: -math.inf if trial.score is None
                    else trial.score, reverse=True)  # fmt: skip
    rows = [
        Row(texts={"scheduler": trial.scheduler, "seen": seen(trial)}, opens=True)
        for trial in ranked[:_MOST_ROWS]
    ]
    if rows:
        grid = Grid([Column("scheduler", "scheduler"), Column("seen", "in one window")], rows)
        if grid.width <= width:
            grid.draw(console)
        else:
            for row in rows:
                console.print(paragraph(" · ".join(row.texts.values()), width, style=""))
    if len(ranked) > _MOST_ROWS:
        console.print(paragraph(f"and {counted(len(ranked) - _MOST_ROWS, 'trial')} more", width))
    for name, goals in (("native", found.native_goals), (found.winner, found.goals)):
        for goal in goals:
            line = f"fresh windows, {name}: {GoalResult(**goal.model_dump())}"
            console.print(paragraph(line, width))
    for name, kept in found.kept.items():
        console.print(
            paragraph(f"fresh windows: {name} gets {printed(kept, '×')} of native", width)
        )
    console.print()
    console.print(paragraph(answer(found), width, style="bold"))


def seen(trial: TuneTrial) -> str:
    """Return what a trial's window showed."""
    if trial.score is None:
        return trial.reason
    if trial.score >= 0:
        return f"goals kept, and {100 * trial.score:.3g} % of native's throughput"
    return f"{math.exp(-trial.score):.3g} times beyond a bound"


def answer(found: TuneFile) -> str:
    """Return the answer in a sentence."""
    lead = "Simulated, not measured. " if found.simulated else ""
    if found.winner is None:
        return f"{lead}No trial came to figures: {found.reason}."
    if not found.complete:
        return f"INCOMPLETE: interrupted; {found.winner} led, and nothing was confirmed."
    if found.won:
        return f"{lead}Use {found.winner}: in fresh windows, {found.reason}."
    return f"{lead}Nothing won. {found.winner} led, but in fresh windows {found.reason}."
