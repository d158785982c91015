"""Arranges stored runs as series: one figure of one cell on one machine, session by session."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_hwqueue.baselines.diff import Source
from pytest_hwqueue.baselines.runs import (
    CellBaseline,
    CellHeader,
    Run,
    condition_differences,
    soft_fields,
)
from pytest_hwqueue.devices.fingerprint import Value
from pytest_hwqueue.devices.kinds import capabilities_of
from pytest_hwqueue.gate.quantity import Quantity
from pytest_hwqueue.verdicts.comparing import prepare

# Soft fields that tell one machine from another. Host names do not: a container has a new one each
# time.
_OF_THE_MACHINE = ("device_uuid", "driver_version")
_POOLED = frozenset({*_OF_THE_MACHINE, "driver_major"})
# Said in other ways, or different in each run.
_NOT_REPORTED = frozenset({"git_commit", "git_dirty", "noise_seed"})


@dataclass(frozen=True)
class Session:
    """One session of a series.

    Attributes:
        id: of the session.
        when: its first run was measured; UTC, ISO 8601.
        runs: how many are behind the value.
        commits: measured; with ``-dirty`` behind them where tracked files were changed.
        value: geometric mean of the figure over the session's runs, in the quantity's unit.
        soft: the other soft fields of its first run.

    """

    id: str
    when: str
    runs: int
    commits: tuple[str, ...]
    value: float
    soft: dict[str, Value]


@dataclass(frozen=True)
class Series:
    """One figure of one cell on one machine.

    Attributes:
        cell_id: of the cell.
        workload: or test, of which it is a cell.
        wanted: name of the requested figure.
        quantity: what the values are: a lower quantile where runs have few samples.
        machine: 1 for the cell's first machine in time, and so on.
        machine_fields: conditions in which the cell's machines differ, with this one's values.
        sessions: oldest first.
        refused: sessions without a figure above 0.
        simulated: whether a model's figures, and none measured.

    """

    cell_id: str
    workload: str
    wanted: str
    quantity: Quantity
    machine: int
    machine_fields: dict[str, Value]
    sessions: tuple[Session, ...]
    refused: int
    simulated: bool

    @property
    def values(self) -> list[float]:
        """The sessions' figures, oldest first."""
        return [session.value for session in self.sessions]


def arrange(
    sources: Sequence[Source], figures: Sequence[str], *, pool_machines: bool = False
) -> list[Series]:
    """Arrange the runs of several sources; a run that is in two of them counts once.

    Args:
        sources: baselines, anchors, sessions or folders of records.
        figures: names, see `verdicts.figures.figure`.
        pool_machines: take all machines of one model for one; conditions of what was measured, such
            as a workload's parameters, are told apart all the same.

    Returns:
        by cell, then in the order of ``figures``, then by machine.

    """
    by_cell: dict[str, list[CellBaseline]] = {}
    for source in sources:
        for cell_id, cell in source.cells.items():
            by_cell.setdefault(cell_id, []).append(cell)
    found = []
    for cell_id, cells in sorted(by_cell.items()):
        machines = _machines(cells, pool_machines)
        fields = _differing([runs[0] for runs in machines], pool_machines)
        for name in figures:
            for number, runs in enumerate(machines, start=1):
                series = _series(name, runs)
                if series is None:
                    continue
                header = runs[0].header
                kind = str(header.hard.get("device_kind", header.cell.device))
                found.append(
                    Series(
                        cell_id, header.cell.name, name, series[0], number, fields[number - 1],
                        series[1], series[2], capabilities_of(kind).simulated,
                    )
                )  # fmt: skip
    return found


def changed_fields(old: Session, new: Session) -> dict[str, tuple[Value, Value]]:
    """Return the soft fields in which two sessions differ, such as a new version of torch."""
    names = sorted({*old.soft, *new.soft} - _NOT_REPORTED)
    both = {name: (old.soft.get(name), new.soft.get(name)) for name in names}
    return {name: values for name, values in both.items() if values[0] != values[1]}


@dataclass(frozen=True)
class _Located:
    """A stored run, with the conditions that it was measured under."""

    header: CellHeader
    soft: dict[str, Value]
    run: Run


def _machines(cells: Sequence[CellBaseline], pooled: bool) -> list[list[_Located]]:
    """Group a cell's runs by machine; machines and runs are in order of time, each once."""
    runs: dict[tuple[str, str, str], _Located] = {}
    for cell in cells:
        for run in cell.runs:
            found = _Located(cell.header, soft_fields(cell.header, run), run)
            runs.setdefault((run.session, run.when, run.samples), found)
    groups: list[list[_Located]] = []
    # Thousands of runs have few kinds of conditions: each is compared with the groups once.
    known: dict[tuple[object, ...], list[_Located]] = {}
    for each in sorted(runs.values(), key=lambda located: located.run.when):
        key = (id(each.header), *(each.soft.get(name) for name in _OF_THE_MACHINE))
        if key not in known:
            same = (group for group in groups if not _apart(group[0], each, pooled))
            known[key] = next(same, [])
            if not known[key]:
                groups.append(known[key])
        known[key].append(each)
    return groups


def _apart(a: _Located, b: _Located, pooled: bool) -> dict[str, tuple[Value, Value]]:
    """Return the conditions that make two runs those of different machines, by name.

    Software, clocks and power limits are reported where they change, and tell no machines apart.
    """
    found = {
        each.field: (each.a[0], each.b[0])
        for each in condition_differences(a.header, b.header)
        if each.kind == "identity" or each.field == "driver_major"
    }
    values = {name: (a.soft.get(name), b.soft.get(name)) for name in _OF_THE_MACHINE}
    found |= {name: both for name, both in values.items() if both[0] != both[1]}
    if pooled:
        found = {name: both for name, both in found.items() if name not in _POOLED}
    return found


def _differing(machines: Sequence[_Located], pooled: bool) -> list[dict[str, Value]]:
    """Return each machine's values of the conditions in which any two differ."""
    found: list[dict[str, Value]] = [{} for _ in machines]
    for fields, one in zip(found, machines, strict=True):
        for other in machines:
            fields |= {name: both[0] for name, both in _apart(one, other, pooled).items()}
    return found


def _series(
    name: str, runs: Sequence[_Located]
) -> tuple[Quantity, tuple[Session, ...], int] | None:
    """Return a figure's quantity, its sessions, and how many have none; None without the figure."""
    prepared = prepare(name, (), [each.run for each in runs])
    if prepared is None:
        return None
    short = {each.number for each in prepared.short}
    kept = [each for number, each in enumerate(runs, start=1) if number not in short]
    by_session: dict[str, list[tuple[_Located, float]]] = {}
    for each, figure in zip(kept, prepared.new, strict=True):
        by_session.setdefault(each.run.session, []).append((each, figure.value))
    sessions, refused = [], len({each.run.session for each in runs} - by_session.keys())
    for session, measured in by_session.items():
        values = [value for _, value in measured]
        if not all(math.isfinite(value) and value > 0 for value in values):
            refused += 1
            continue
        commits = dict.fromkeys(filter(None, (_commit(each) for each, _ in measured)))
        first = measured[0][0]
        sessions.append(
            Session(
                id=session,
                when=first.run.when,
                runs=len(measured),
                commits=tuple(commits),
                value=math.exp(math.fsum(map(math.log, values)) / len(values)),
                soft=first.soft,
            )
        )
    return prepared.figure.quantity, tuple(sessions), refused


def _commit(located: _Located) -> str | None:
    commit = located.run.commit
    return f"{commit}-dirty" if commit and located.soft.get("git_dirty") else commit
