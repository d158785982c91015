"""Series of figures over sessions, and their file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from pytest_hwqueue.data.metrics.estimate import PlainData
from pytest_hwqueue.data.metrics.numbers import grouped
from pytest_hwqueue.data.records.fingerprint import Value
from pytest_hwqueue.data.records.kinds import capabilities_of
from pytest_hwqueue.judge.baselines.runs import (
    CellBaseline,
    CellHeader,
    StoredRun,
    condition_differences,
    soft_fields,
)
from pytest_hwqueue.judge.baselines.sources import Source
from pytest_hwqueue.judge.figures import prepare
from pytest_hwqueue.parts.processes.git import CommitLine

# Soft fields that tell one machine from another. Host names do not: a container has a new one each
# time.
_OF_THE_MACHINE = ("device_uuid", "driver_version")
_POOLED = frozenset({*_OF_THE_MACHINE, "driver_major"})
# Said in other ways, or different in each run.
_NOT_REPORTED = frozenset({"git_commit", "git_dirty", "noise_seed"})


SCHEMA: Final = "pytest-hwqueue/history/1"


class SessionFigure(PlainData):
    """One session of a series."""

    session: str
    when: str = Field(description="its first run; UTC, ISO 8601")
    runs: int = Field(description="behind the value")
    commits: list[str] = Field(description="measured; -dirty: tracked files were changed")
    value: float = Field(description="geometric mean over its runs, in the quantity's unit")
    # The soft fields of its first run.
    soft: SkipJsonSchema[dict[str, Value]] = Field(default_factory=dict, exclude=True)


class FoundChange(PlainData):
    """A place where a series changed."""

    index: int = Field(description="among the sessions, of the first one after the change; from 0")
    session: str
    when: str
    ratio: float = Field(
        description="mean level after over that before, each up to the next change; above 1 is "
        "slower, or more throughput"
    )
    interval: tuple[float, float] = Field(
        description="95 %, of the ratio; it holds although the place was picked"
    )
    confidence: float = Field(
        description="1 - p of a permutation test that picks its place too, among sessions that "
        "resemble their predecessors as much as these may"
    )
    worse: bool
    below_gate: bool | None = Field(
        description="whether it is less than gate_detects; null: not worse, or not known"
    )
    old_commit: str | None
    new_commit: str | None
    commits: list[CommitLine] | None = Field(
        description="between them, oldest first; null: the repository here does not know both"
    )
    also_changed: dict[str, tuple[Value, Value]] = Field(
        description="other soft fields of the fingerprint that changed there, old and new"
    )


class ModesFigure(PlainData):
    """Two groups of sessions within a level."""

    ratio: float = Field(description="slower group over faster group")
    slower_share: float


class DriftFigure(PlainData):
    """A trend that a straight line explains better than steps do."""

    per_session: float = Field(description="change, as a fraction")
    whole: float = Field(description="over the whole series, as a fraction")
    p: float


class Series(PlainData):
    """One figure of one cell on one machine."""

    cell: str = Field(description="the cell's id")
    workload: str = Field(description="or test")
    figure: str = Field(description="the requested figure")
    quantity: str = Field(description="the one that is shown: a lower quantile where n is small")
    label: str = Field(description="of the quantity, for people")
    unit: str
    higher_is_worse: bool
    simulated: bool = Field(description="whether a model's figures, and none measured")
    machine: int = Field(description="of the cell, in order of time, from 1")
    machine_fields: dict[str, Value] = Field(description="in which the cell's machines differ")
    sessions: list[SessionFigure]
    refused: int = Field(description="sessions left out: too short, or without a figure above 0")

    @property
    def values(self) -> list[float]:
        """The sessions' figures, oldest first."""
        return [session.value for session in self.sessions]


class SeriesHistory(Series):
    """One figure of one cell on one machine."""

    sd: float | None = Field(
        description="between sessions of one level, of the logarithm; null: too few sessions"
    )
    gate_detects: float | None = Field(
        description="least worsening that the gate finds with 10 runs of 10 such sessions, as a "
        "fraction; null: too few sessions to tell"
    )
    total_ratio: float | None = Field(description="last level over first; null without sessions")
    changes: list[FoundChange] = Field(description="empty where a drift explains the series")
    accumulated: bool = Field(
        description="whether steps, or a drift, that the gate would rather miss add up to one that "
        "it would find"
    )
    modes: ModesFigure | None = Field(description="null: not bimodal")
    drift: DriftFigure | None = Field(description="null: no drift, or steps explain it")
    resemblance: float | None = Field(
        description="lag-1 correlation of sessions, where steps have to stand out further for it"
    )
    notes: list[str]


class HistoryFile(PlainData):
    """The history of one or more sources of runs."""

    schema_: Literal["pytest-hwqueue/history/1"] = Field(SCHEMA, alias="schema")
    sources: list[str]
    rate: float = Field(description="share of flat series that may have a change point")
    pool_machines: bool
    sessions: int
    series: list[SeriesHistory]


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
    by_cell = grouped(each for source in sources for each in source.cells.items())
    found = []
    for _, cells in sorted(by_cell.items()):
        machines = _machines(cells, pool_machines)
        fields = _differing([runs[0] for runs in machines], pool_machines)
        for name in figures:
            for number, runs in enumerate(machines, start=1):
                series = _series(name, runs, number, fields[number - 1])
                if series is not None:
                    found.append(series)
    return found


def changed_fields(old: SessionFigure, new: SessionFigure) -> dict[str, tuple[Value, Value]]:
    """Return the soft fields in which two sessions differ, such as a new version of torch."""
    names = sorted({*old.soft, *new.soft} - _NOT_REPORTED)
    both = {name: (old.soft.get(name), new.soft.get(name)) for name in names}
    return {name: values for name, values in both.items() if values[0] != values[1]}


@dataclass(frozen=True)
class _Located:
    """A stored run, with the conditions that it was measured under."""

    header: CellHeader
    soft: dict[str, Value]
    run: StoredRun


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
    name: str, runs: Sequence[_Located], machine: int, fields: dict[str, Value]
) -> Series | None:
    """Return a figure of a machine's runs, by session; None without the figure."""
    prepared = prepare(name, (), [each.run for each in runs], pace=runs[0].header.has_pace)
    if prepared is None:
        return None
    short = {each.number for each in prepared.short}
    kept = [each for number, each in enumerate(runs, start=1) if number not in short]
    by_session = grouped(
        (each.run.session, (each, figure.value))
        for each, figure in zip(kept, prepared.new, strict=True)
    )
    sessions, refused = [], len({each.run.session for each in runs} - by_session.keys())
    for session, measured in by_session.items():
        values = [value for _, value in measured]
        if not all(math.isfinite(value) and value > 0 for value in values):
            refused += 1
            continue
        commits = dict.fromkeys(filter(None, (_commit(each) for each, _ in measured)))
        first = measured[0][0]
        sessions.append(
            SessionFigure(
                session=session,
                when=first.run.when,
                runs=len(measured),
                commits=list(commits),
                value=math.exp(math.fsum(map(math.log, values)) / len(values)),
                soft=first.soft,
            )
        )
    header, quantity = runs[0].header, prepared.figure.quantity
    kind = str(header.hard.get("device_kind", header.cell.device))
    return Series(
        cell=header.cell.id, workload=header.cell.name, figure=name, quantity=quantity.name,
        label=quantity.label, unit=quantity.unit, higher_is_worse=quantity.higher_is_worse,
        simulated=capabilities_of(kind).simulated, machine=machine, machine_fields=fields,
        sessions=sessions, refused=refused,
    )  # fmt: skip


def _commit(located: _Located) -> str | None:
    commit = located.run.commit
    return f"{commit}-dirty" if commit and located.soft.get("git_dirty") else commit
