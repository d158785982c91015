"""Reports a history: a line per series, its change points with the commits between, and notes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from pytest_hwqueue.answers.history.analysis import LEAST_SESSIONS
from pytest_hwqueue.answers.history.series import FoundChange, HistoryFile, SeriesHistory
from pytest_hwqueue.data.document.document import (
    Column,
    Document,
    Heading,
    Line,
    Paragraph,
    Row,
    Table,
)
from pytest_hwqueue.data.metrics.numbers import counted, grouped
from pytest_hwqueue.judge.verdict import Quantity, percent
from pytest_hwqueue.judge.words import figure_value
from pytest_hwqueue.parts.workloads.registry import WORKLOADS

OF_THE_MACHINE = (
    "a change of machine is not a change of code: each machine's sessions are analysed alone"
)
_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH = 16
_DIGITS = 9
_MOST_COMMITS = 5
_COLUMNS = (
    Column("cell", "cell"),
    Column("figure", "figure"),
    Column("sessions", "sessions", right=True, rank=2),
    Column("time", "over time", rank=1),
    Column("last", "last", unit_in_header=False),
    Column("total", "last level", "over first", right=True),
    Column("changes", "changes"),
)


def history_document(found: HistoryFile) -> Document:
    """Return a line per series, those of cells that changed or have notes first."""
    by_cell = grouped((series.cell, series) for series in found.series)
    loud = {series.cell for series in found.series if series.changes or series.notes}
    ordered = sorted(by_cell, key=lambda cell: cell not in loud)
    rows = [
        _row(series, opens=number == 0)
        for cell in ordered
        for number, series in enumerate(by_cell[cell])
    ]
    expected = found.rate * len(found.series)
    legend = (
        "Each session counts once: the geometric mean of its runs. Changes: apache-otava "
        "(E-divisive), each confirmed by a permutation test; "
        f"{100 * found.rate:.3g} % of flat series have one, here {expected:.2g} of "
        f"{len(found.series)}."
    )
    lines = (*_machine_lines(found.series), legend)
    answer = Paragraph(_answer(found), "bold")
    table = Table(_COLUMNS, rows)
    return Document([Heading(_title(found), 1), answer, table, *map(Paragraph, lines)])


def _answer(found: HistoryFile) -> str:
    """Return in a sentence how many series changed, and the one that got worse most."""
    whole = f"{len(found.series)} series"
    each_worse = [
        (abs(math.log(change.ratio)), change.ratio, series)
        for series in found.series for change in series.changes if change.worse
    ]  # fmt: skip
    worse = {id(series) for _, _, series in each_worse}
    better = sum(bool(series.changes) and id(series) not in worse for series in found.series)
    sentence = f"No change was found in {whole}"
    if worse:
        sentence = f"{len(worse)} of {whole} got worse" + f", {better} better" * bool(better)
        _, ratio, most = max(each_worse, key=lambda each: each[0])
        sentence += f"; most, {_label(most)} of {most.cell}: {percent(ratio - 1)}"
    elif better:
        sentence = f"{better} of {whole} got better"
    few = sum(len(series.sessions) < LEAST_SESSIONS for series in found.series)
    if few:
        sentence += (
            f"; {few} of them have fewer than {LEAST_SESSIONS} sessions, too few to find one"
        )
    return f"{sentence}."


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


def _row(series: SeriesHistory, opens: bool) -> Row:
    values = [session.value for session in series.sessions]
    notes = ["bimodal"] * (series.modes is not None) + ["drifting"] * (series.drift is not None)
    row = Row({
        "cell": series.cell, "figure": _label(series), "sessions": str(len(values)),
        "time": sparkline(values),
        "changes": ", ".join([str(len(series.changes) or "none"), *notes]),
    }, opens=opens, below=_lines(series))  # fmt: skip
    if values:
        quantity = Quantity(series.quantity, series.label, None, unit=series.unit)
        row.figures["last"] = [figure_value(quantity, values[-1], values[-1])]
    if series.total_ratio is not None and (series.changes or series.drift):
        row.texts["total"] = percent(series.total_ratio - 1)
    return row


def _label(series: SeriesHistory) -> str:
    return series.label + (f" #{series.machine}" if series.machine_fields else "")


def _lines(series: SeriesHistory) -> list[Line]:
    lines: list[Line] = []
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
    cells = grouped((tuple(machines.values()), cell) for cell, machines in by_cell.items())
    return [
        f"{counted(len(those), 'cell')} on several machines: {'; '.join(machines)}. "
        f"{OF_THE_MACHINE[0].upper()}{OF_THE_MACHINE[1:]}."
        for machines, those in cells.items()
    ]
