"""What ``hwq which`` prints in a terminal: progress, the decision, then what it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from pytest_hwqueue.metrics.numbers import REFUSED, PrintedFigure
from pytest_hwqueue.records.tenants import ColocationRecord
from pytest_hwqueue.reports.grid import Column, Grid, Row, fitted, flow, paragraph, print_below
from pytest_hwqueue.reports.notes import Notes
from pytest_hwqueue.reports.which.words import (
    LABELS,
    SIMULATED,
    STYLES,
    answers,
    effective,
    failed_lines,
    failure,
    figures,
    goal_counts,
    goal_line,
    goal_lines,
    goals_in_short,
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
from pytest_hwqueue.which.file import Trend, WhichCase, WhichFigure, WhichFile, WhichTenant, trends

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
    for line in failed_lines(found):
        console.print(Text(line, style="red"))
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


class WhichProgress:
    """A transient line on a terminal, and a permanent one for each finished run."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.completed:.0f}/{task.total:.0f} runs"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=1)
        self._done, self._all = 0, 1

    def __enter__(self) -> WhichProgress:
        """Show the line."""
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        """Remove the line."""
        self._bar.stop()

    def run_begins(self, done: int, planned: int) -> None:
        """Note how many runs of how many are done."""
        self._done, self._all = done, planned
        self._bar.update(self._task, completed=done, total=planned)

    def run_is_at(self, stage: str, done: int, planned: int) -> None:
        """Note the current run's progress."""
        within = f" {done}/{planned}" if planned else ""
        self._bar.update(self._task, description=f"{stage}{within}")

    def run_ended(self, record: ColocationRecord) -> None:
        """Report a finished run."""
        reason = f": {record.reason}" if record.reason else ""
        self._console.print(
            f"hwq which: {self._done + 1}/{self._all} {record.id} run {record.run} "
            f"{record.status} ({record.elapsed_s:.1f} s){reason}",
            markup=False,
        )
