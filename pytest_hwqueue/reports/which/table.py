"""What ``hwq which`` prints in a terminal: the decision first, then what it rests on."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from pytest_hwqueue.metrics.numbers import PrintedFigure
from pytest_hwqueue.reports.grid import Column, Grid, Row, fitted, flow, paragraph, print_below
from pytest_hwqueue.reports.notes import Notes
from pytest_hwqueue.reports.which.decision import draw_decision
from pytest_hwqueue.reports.which.words import (
    LABELS,
    SIMULATED,
    STYLES,
    answers,
    effective,
    failure,
    figures,
    goal_counts,
    goal_line,
    goal_lines,
    incomplete,
    last_outputs,
    printed,
    proof_line,
    session_title,
    settings,
    several_sessions,
    tenant_lines,
    title,
    trend_title,
)
from pytest_hwqueue.which.file import WhichCase, WhichFile
from pytest_hwqueue.which.trend import Trend, trends

_NAMES = ("case", "tenant")
_SESSIONS = "sessions"
_LATENCY = ("n", "p50", "p95", "p99", "max", "attained")
_REST = ("throughput", "loss", "p50_solo", "p99_solo", "capacity", "goals", "proof")
# From the most columns to the fewest.
_TENANT_LAYOUTS = (
    ("n", "p50", "p95", "p99", "attained", "throughput", "p99_solo"),
    ("n", "p50", "p99", "throughput", "p99_solo"),
    ("n", "p50", "p99", "throughput"),
    ("p50", "p99", "throughput"),
    ("p50", "p99"),
    ("p99",),
)
_COLUMNS = (
    Column("case", "scheduler"),
    Column("tenant", "tenant"),
    Column(_SESSIONS, "sessions", right=True),
    Column("n", "n", right=True),
    *(Column(key, LABELS[key]) for key in ("p50", "p95", "p99", "max", "attained")),
    Column("throughput", LABELS["throughput"], unit_in_header=False),
    Column("loss", "loss", "to native"),
    Column("p50_solo", "P50", "to solo"),
    Column("p99_solo", "P99", "to solo"),
    Column("capacity", LABELS["capacity"], unit_in_header=False),
    Column("goals", "goals"),
    Column("proof", "proof"),
)


def draw_which(found: WhichFile, console: Console, *, verbose: bool = False) -> None:
    """Print the decision table and the answer, then what they rest on.

    Args:
        found: every figure.
        console: where to; no line is longer than its width.
        verbose: whether to print every figure, goal and proof, and each session by itself.

    """
    width = console.width
    console.print(Text(title(found), style="bold"))
    if found.simulated:
        console.print(Text(SIMULATED, style="bold yellow"))
    described = [found.description, " · ".join(settings(found)), *tenant_lines(found)]
    for line in filter(None, described + [several_sessions(found)] * verbose):
        console.print(paragraph(line, width))
    draw_decision(found, console)
    for line in filter(None, (incomplete(found), *answers(found))):
        console.print()
        console.print(paragraph(line, width, style="bold"))
    console.print()
    if verbose:
        # Why a case has no figures follows the decision.
        _draw_cases(found, [case for case in found.cases if case.status == "ok"], console)
    else:
        _draw_tenants(found, console)
    for trend in trends(found):
        _draw_trend(trend, console)
    if not verbose:
        _draw_in_short(found, console)
        return
    for session in found.sessions:
        if session.cases:
            console.print()
            console.print(Text(session_title(found, session), style="bold"))
            _draw_cases(found, session.cases, console)
    _draw_details(found, console)


def _draw_cases(found: WhichFile, cases: Sequence[WhichCase], console: Console) -> None:
    width = console.width
    notes = Notes()
    rows = [row for case in cases for row in _rows(found, case, notes)]
    measured = [row for row in rows if row.figures]
    whole = [_grid(_LATENCY + _REST, rows)]
    # Why a case has no figures is said once, in the second.
    halves = [_grid(_LATENCY, measured), _grid(_REST, rows)]
    for grids in (whole, halves):
        if all(grid.width <= width for grid in grids):
            for number, grid in enumerate(grids):
                if number:
                    console.print()
                grid.draw(console)
            break
    else:
        _draw_list(rows, console)
    for line in notes.lines(sum(case.status == "ok" for case in cases)):
        console.print(paragraph(line, width))


def _rows(found: WhichFile, case: WhichCase, notes: Notes) -> list[Row]:
    if case.status != "ok":
        style = STYLES.get(case.status, "red")
        below: list[Text | list[str]] = [Text(failure(case), style=style)]
        below += [Text(text, style="dim") for text in last_outputs(case)]
        return [Row(texts={"case": case.id}, style=style, opens=True, below=below)]
    rows = []
    for index, tenant in enumerate(case.tenants):
        texts = {"case": case.id, "tenant": tenant.name, "n": str(tenant.issued)}
        if index == 0:
            texts |= {"goals": goal_counts(case), "proof": effective(found, case)}
            if len(found.sessions) > 1:
                texts[_SESSIONS] = str(case.sessions)
        shown = {key: [value] for key, value in figures(case, tenant, notes).items()}
        rows.append(Row(texts=texts, figures=shown, opens=index == 0))
    return rows


def _grid(keys: Sequence[str], rows: Sequence[Row]) -> Grid:
    names = _NAMES + (_SESSIONS,) * any(_SESSIONS in row.texts for row in rows)
    return Grid([column for column in _COLUMNS if column.key in (*names, *keys)], rows)


def _draw_list(rows: Sequence[Row], console: Console) -> None:
    """Print rows one below the other, for terminals too narrow for a table."""
    for row in rows:
        names = [row.texts[key] for key in _NAMES if row.texts.get(key)]
        console.print(Text(" ".join(names), style=row.style or "bold"))
        parts = [f"{key} {row.texts[key]}" for key in (_SESSIONS, "n") if key in row.texts]
        parts += [f"{LABELS[key]} {shown[0]}" for key, shown in row.figures.items()]
        print_below(console, ([parts] if parts else []) + row.below, console.width)


def _draw_tenants(found: WhichFile, console: Console) -> None:
    """Print a line for each tenant of each case with figures, in as many columns as fit."""
    measured = [case for case in found.cases if case.status == "ok"]
    notes = Notes()
    rows = [row for case in measured for row in _rows(found, case, notes)]
    if not rows:
        return
    for row in rows:
        row.opens = True
        for key, shown in row.figures.items():
            if key != "p99":
                row.figures[key] = [PrintedFigure(each.number, each.unit) for each in shown]
    for keys in _TENANT_LAYOUTS:
        columns = [column for column in _COLUMNS if column.key in (*_NAMES, *keys)]
        grid = Grid(columns, rows)
        if grid.width <= console.width:
            break
    folded = fitted(columns, rows, console.width)
    if folded is None:
        _draw_list(rows, console)
    else:
        folded.draw(console)
    for line in notes.lines(len(measured)):
        console.print(paragraph(line, console.width))


def _draw_in_short(found: WhichFile, console: Console) -> None:
    """Print the goals not met, and the modes by what their proof shows."""
    asked = [case for case in found.cases if case.role != "solo" and case.status == "ok"]
    lines = [
        f"{case.id}: {goal_line(goal)}"
        for case in asked
        for goal in case.goals
        if goal.verdict != "met"
    ]
    shown: dict[str, list[str]] = {}
    for case in asked:
        if effective(found, case):
            shown.setdefault(effective(found, case), []).append(case.id)
    lines += [f"{', '.join(names)}: {what}" for what, names in shown.items()]
    lines.append("-v prints every figure, goal and proof")
    for line in lines:
        console.print(paragraph(line, console.width))


def _draw_trend(trend: Trend, console: Console) -> None:
    rows = []
    for name, row in trend.rows.items():
        for index, (variant, p99) in enumerate(row.items()):
            texts = {"case": name if index == 0 else "", "variant": variant}
            shown = {"p99": [printed(p99, "ms")]}
            rows.append(Row(texts=texts, figures=shown, opens=index == 0))
    console.print()
    console.print(Text(trend_title(trend), style="bold"))
    columns = (Column("case", "scheduler"), Column("variant", "variant"), Column("p99", "P99"))
    Grid(columns, rows).draw(console)


def _draw_details(found: WhichFile, console: Console) -> None:
    for heading, by_case in (
        ("Goals", {case.id: goal_lines(case) for case in found.cases}),
        ("Proof", {case.id: [proof_line(found, case)] for case in found.cases if case.proof}),
    ):
        if any(by_case.values()):
            console.print(Text(heading, style="bold"))
        for name, lines in by_case.items():
            if lines:
                console.print(flow([f"  {name}"], console.width))
                below: list[Text | list[str]] = [Text(f"  {line}") for line in lines]
                print_below(console, below, console.width)
