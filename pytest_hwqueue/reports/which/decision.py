"""The table that decides: each mode's urgent P99, what it costs the others, and its goals."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from pytest_hwqueue.metrics.numbers import REFUSED, PrintedFigure
from pytest_hwqueue.reports.grid import Column, Row, fitted, paragraph, print_below
from pytest_hwqueue.reports.notes import Notes
from pytest_hwqueue.reports.which.words import (
    LABELS,
    STYLES,
    failure,
    goals_in_short,
    last_outputs,
    printed,
)
from pytest_hwqueue.which.file import WhichCase, WhichFigure, WhichFile, WhichTenant


def draw_decision(found: WhichFile, console: Console) -> None:
    """Print a row for each mode, and one for each urgent tenant alone."""
    measured = [case for case in found.cases if case.role != "solo" and case.status == "ok"]
    urgent = {tenant.name for case in measured for tenant in _split(case)[0]}
    notes = Notes()
    rows = [
        _row(case, notes)
        for case in found.cases
        if case.status != "ok" or case.role != "solo" or case.tenants[0].name in urgent
    ]
    columns = _columns(measured[0]) if measured else [Column("case", "scheduler")]
    grid = fitted(columns, rows, console.width)
    width = console.width
    if grid is not None:
        width = grid.draw(console)
    else:
        for row in rows:
            console.print(Text(row.texts["case"], style=row.style or "bold"))
            parts = [f"{key} {shown[0]}" for key, shown in row.figures.items()]
            parts += [f"{key} {row.texts[key]}" for key in ("p99", "goals") if row.texts.get(key)]
            print_below(console, [parts], width)
    for line in notes.lines(len(rows)):
        console.print(paragraph(line, width))
    for case in found.cases:
        if case.status != "ok":
            text = f"{case.id} {failure(case)}"
            console.print(paragraph(text, width, STYLES.get(case.status, "red")))
            for output in last_outputs(case):
                console.print(Text(output, style="dim"))


def _columns(case: WhichCase) -> list[Column]:
    urgent, others = _split(case)
    return [
        Column("case", "scheduler"),
        Column("p99", *_heading("P99", urgent)),
        Column("loss", *_heading("loss", others)),
        *[Column("capacity", LABELS["capacity"])] * any(each.capacity_per_s for each in urgent),
        Column("goals", "goals", "met"),
    ]


def _heading(figure: str, tenants: Sequence[WhichTenant]) -> tuple[str, str]:
    """Return both lines of a heading; of several tenants the worst figure is shown."""
    names = ", ".join(tenant.name for tenant in tenants)
    return (f"{figure} of {names}", "") if len(tenants) == 1 else (f"worst {figure}", f"of {names}")


def _row(case: WhichCase, notes: Notes) -> Row:
    if case.status != "ok":
        style = STYLES.get(case.status, "red")
        return Row(texts={"case": case.id, "p99": case.status.upper()}, style=style, opens=True)
    urgent, others = _split(case)
    row = Row(texts={"case": case.id, "goals": goals_in_short(case)}, opens=True)
    p99 = [(tenant.name, tenant.p99_ms) for tenant in urgent]
    row.figures["p99"] = [_worst("P99", p99, "ms", case, notes)]
    if case.goals:
        missed = any(goal.verdict == "missed" for goal in case.goals)
        row.style = "green" if case.met_all else "red" if missed else ""
    losses = [(tenant.name, loss) for tenant in others if (loss := tenant.throughput_loss)]
    if losses:
        row.figures["loss"] = [_worst(LABELS["loss"], losses, "%", case, notes)]
    capacities = [(tenant.name, found) for tenant in urgent if (found := tenant.capacity_per_s)]
    if capacities:
        row.figures["capacity"] = [_worst(LABELS["capacity"], capacities, "/s", case, notes)]
    return row


def _worst(
    what: str, given: Sequence[tuple[str, WhichFigure]], unit: str, case: WhichCase, notes: Notes
) -> PrintedFigure:
    """Return the greatest figure; refused if one is, since that might be the greatest."""
    refused = [(tenant, figure) for tenant, figure in given if figure.value is None]
    for tenant, figure in refused:
        notes.refuse(what, figure.reason, case.id, tenant)
    if refused:
        return REFUSED
    return printed(max((figure for _, figure in given), key=lambda each: each.value or 0.0), unit)


def _split(case: WhichCase) -> tuple[list[WhichTenant], list[WhichTenant]]:
    """Return a case's tenants of the highest priority, and the others."""
    most = max(tenant.priority for tenant in case.tenants)
    urgent = [tenant for tenant in case.tenants if tenant.priority == most]
    return urgent, [tenant for tenant in case.tenants if tenant.priority < most]
