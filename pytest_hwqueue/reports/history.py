"""Reports a history: a line per series, its change points with the commits between, and notes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from pytest_hwqueue.gate.verdict import Quantity, percent
from pytest_hwqueue.history.analysis import LEAST_SESSIONS
from pytest_hwqueue.history.series import FoundChange, HistoryFile, SeriesHistory
from pytest_hwqueue.metrics.numbers import counted
from pytest_hwqueue.reports.doctor import make_console
from pytest_hwqueue.reports.markdown import code
from pytest_hwqueue.reports.verdict_words import figure_value
from pytest_hwqueue.workloads.registry import WORKLOADS

OF_THE_MACHINE = (
    "a change of machine is not a change of code: each machine's sessions are analysed alone"
)
_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH = 16
_DIGITS = 9
_MOST_COMMITS = 5
_HEADINGS = ("Cell", "Figure", "Sessions", "Over time", "Last", "Total", "Changes")


def print_history(found: HistoryFile, console: Console | None = None) -> None:
    """Print a history, cell by cell; those that changed or have notes come first."""
    by_cell: dict[str, list[SeriesHistory]] = {}
    for series in found.series:
        by_cell.setdefault(series.cell, []).append(series)
    quiet = [cell for cell, those in by_cell.items() if not any(map(_speaks, those))]
    parts: list[RenderableType] = [Text(_title(found), style="bold")]
    for cell in sorted(by_cell, key=lambda cell: cell in quiet):
        parts.append(Text(f"\n{cell}", style="bold"))
        for series in by_cell[cell]:
            _, name, count, line, last, total, changes = _row(series)
            parts.append(
                Text(f"  {name:<21} {count:>4} {line:<{_WIDTH}} {last:>9} {total:>8}  {changes}")
            )
            for each in _lines(series):
                indent = 4 + len(each) - len(each.lstrip())
                parts.append(Padding(Text(each.lstrip()), (0, 0, 0, indent)))
    parts += [Text(f"\n{line}") for line in (*_machine_lines(found.series), legend(found))]
    (console or make_console()).print(Group(*parts))


def render_markdown(found: HistoryFile) -> str:
    """Return the same as GitHub-flavoured Markdown, with a newline at the end."""
    rows = [_HEADINGS, ("---",) * len(_HEADINGS)]
    for series in found.series:
        cells = _row(series)
        rows.append((code(cells[0]), *(cell.replace("|", "\\|") for cell in cells[1:])))
    blocks = [f"## {_title(found)}", "\n".join(f"| {' | '.join(row)} |" for row in rows)]
    for series in found.series:
        if _speaks(series):
            # A commit's line is part of its change's.
            lines = [line if line.startswith(" ") else f"- {line}" for line in _lines(series)]
            blocks.append("\n".join([f"{code(series.cell)}, {_label(series)}:", "", *lines]))
    blocks += [*_machine_lines(found.series), legend(found)]
    return "\n\n".join(blocks) + "\n"


def legend(found: HistoryFile) -> str:
    """Return how to read the table."""
    expected = found.rate * len(found.series)
    few = sum(len(series.sessions) < LEAST_SESSIONS for series in found.series)
    short = (
        f" {few} of {len(found.series)} series have fewer than {LEAST_SESSIONS} sessions, in which "
        "no change can be found."
        if few
        else ""
    )
    return (
        f"Each session counts once: the geometric mean of its runs. Change points: apache-otava "
        "(E-divisive), each confirmed by a permutation test; "
        f"{100 * found.rate:.3g} % of flat series have one, here {expected:.2g} of "
        f"{len(found.series)}. The columns: sessions, values over time, the last one, last level "
        f"over first, change points.{short}"
    )


def sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """Return values as blocks, oldest first; more than ``width`` are averaged in groups."""
    if not values:
        return ""
    groups = min(width, len(values))
    ends = [len(values) * number // groups for number in range(groups + 1)]
    means = [math.fsum(values[start:end]) / (end - start) for start, end in pairwise(ends)]
    low, high = min(means), max(means)
    if high == low:
        return _BLOCKS[0] * groups
    scale = (len(_BLOCKS) - 1) / (high - low)
    return "".join(_BLOCKS[round((mean - low) * scale)] for mean in means)


def _title(found: HistoryFile) -> str:
    simulated = any(series.simulated for series in found.series)
    return (
        f"History of {' and '.join(found.sources)}: {counted(found.sessions, 'session')}"
        f"{' (simulated: a model, not measured)' if simulated else ''}"
    )


def _row(series: SeriesHistory) -> tuple[str, ...]:
    values = [session.value for session in series.sessions]
    last = ""
    if values:
        quantity = Quantity(series.quantity, series.label, None, unit=series.unit)
        last = str(figure_value(quantity, values[-1], values[-1]))
    total = "" if series.total_ratio is None else percent(series.total_ratio - 1)
    notes = [name for name in ("bimodal", "drifting") if _is(series, name)]
    changes = ", ".join([str(len(series.changes) or "none"), *notes])
    return (
        series.cell, _label(series), str(len(values)), sparkline(values), last,
        total if series.changes or series.drift else "", changes,
    )  # fmt: skip


def _is(series: SeriesHistory, what: str) -> bool:
    return (series.modes if what == "bimodal" else series.drift) is not None


def _label(series: SeriesHistory) -> str:
    return series.label + (f" #{series.machine}" if series.machine_fields else "")


def _speaks(series: SeriesHistory) -> bool:
    return bool(series.changes or series.notes)


def _lines(series: SeriesHistory) -> list[str]:
    lines = []
    for change in series.changes:
        lines += [_change(change), *(f"  {line}" for line in _commits(series, change))]
    return lines + series.notes


def _change(change: FoundChange) -> str:
    low, high = (f"{100 * (end - 1):+.1f}" for end in change.interval)
    gate = "; less than the gate detects" if change.below_gate else ""
    return (
        f"{'worse' if change.worse else 'better'}: {percent(change.ratio - 1)} [{low}, {high}] "
        f"from {change.when[:16].replace('T', ' ')} (session {change.session}), confidence "
        f"{100 * change.confidence:.4g} %{gate}"
    )


def _commits(series: SeriesHistory, change: FoundChange) -> list[str]:
    fields = [f"{name} {old} → {new}" for name, (old, new) in change.also_changed.items()]
    lines = [f"also changed there: {', '.join(fields)}"] if fields else []
    if change.old_commit is None or change.new_commit is None:
        return ["its commits were not recorded", *lines]
    old, new = (commit[:_DIGITS] for commit in (change.old_commit, change.new_commit))
    if change.commits is None:
        return [f"between {old} and {new}, which the repository here does not know", *lines]
    if not change.commits:
        return [f"no commit between: both sessions measured {new}, the code did not change", *lines]
    shown = [f"{each.commit[:_DIGITS]} {each.subject}" for each in change.commits[:_MOST_COMMITS]]
    more = len(change.commits) - len(shown)
    if more:
        shown.append(f"and {more} more: git log {old}..{new}")
    if change.worse and len(change.commits) > 1:
        name = series.workload if series.workload in WORKLOADS else "TEST"
        lines = [f"which one: hwq bisect {name} {old} {new}", *lines]
    head = f"{counted(len(change.commits), 'commit')} between {old} and {new}:"
    return [head, *(f"  {line}" for line in shown), *lines]


def _machine_lines(series: Sequence[SeriesHistory]) -> list[str]:
    """Return what tells the machines of a cell apart, once for all cells of which it is true."""
    cells: dict[tuple[str, ...], dict[str, None]] = {}
    by_cell: dict[str, dict[int, str]] = {}
    for each in series:
        if each.machine_fields:
            fields = ", ".join(
                f"{name} = {'not known' if value is None else value}"
                for name, value in each.machine_fields.items()
            )
            first = each.sessions[0].when[:10] if each.sessions else "no session left"
            by_cell.setdefault(each.cell, {})[each.machine] = (
                f"#{each.machine} (from {first}): {fields}"
            )
    for cell, machines in by_cell.items():
        cells.setdefault(tuple(machines.values()), {})[cell] = None
    return [
        f"{counted(len(those), 'cell')} on several machines: {'; '.join(machines)}. "
        f"{OF_THE_MACHINE[0].upper()}{OF_THE_MACHINE[1:]}."
        for machines, those in cells.items()
    ]
