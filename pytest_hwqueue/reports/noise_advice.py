"""Derives from records what pinning, priority and schedulers won back under noise.

Every statement rests on one session's records, by rounds; anything they do not show is listed with
the command that would measure it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_hwqueue.noise.advice import Bought, bought
from pytest_hwqueue.noise.names import NONE, noise_id
from pytest_hwqueue.records.cell import Cell, RunRecord
from pytest_hwqueue.reports.noise_losses import by_run, quiet_cell, tail_figure, throughput
from pytest_hwqueue.tenancy import TENANTS

_NATIVE = "native"
# The noise that the others are, without their remedies.
_LOAD, _PINNED, _ISOLATED = "cpu", "optimised", "isolated"
_RUNS = 6
# Kinds of remedies; behind the last stands which.
_PINNING, _ISOLATION, _SCHEDULER = "pinning", "isolation", "scheduler"
_REMEDIES = {_PINNED: _PINNING, _ISOLATED: _ISOLATION}

# How a cell ran: its scheduler mode, and the noise.
_Under = tuple[str, str]


@dataclass(frozen=True)
class RemedyFigure:
    """What a remedy won back of one figure.

    Attributes:
        name: such as ``tokens/s`` or ``P99``.
        higher_is_worse: True for latencies.
        bought: as shares of the quiet figure.

    """

    name: str
    higher_is_worse: bool
    bought: Bought


@dataclass(frozen=True)
class RemedyComparison:
    """A remedy under a noise, compared with the same session without it.

    Attributes:
        session: where both were measured.
        cell: without noise and remedy.
        noise: on both sides; ``none`` for schedulers in the quiet.
        remedy: what was done, as text.
        figures: throughput and the slowest requests.
        again: the command that measures it with more runs.

    """

    session: str
    cell: str
    noise: str
    remedy: str
    figures: tuple[RemedyFigure, ...]
    again: str


@dataclass(frozen=True)
class MissingMeasurement:
    """Something that no session has measured.

    Attributes:
        cell: its cell; empty if there is none.
        what: as text.
        command: that measures it.

    """

    cell: str
    what: str
    command: str


@dataclass(frozen=True)
class Advice:
    """Advice from measured sessions.

    Attributes:
        comparisons: by cell; the last session's where several made the same one.
        not_measured: what they do not show.

    """

    comparisons: tuple[RemedyComparison, ...]
    not_measured: tuple[MissingMeasurement, ...]


@dataclass(frozen=True)
class _CellGroup:
    """One session's measurements of one cell, by the conditions of the run."""

    session: str
    cell: Cell
    records: Mapping[_Under, Sequence[RunRecord]]

    def has(self, scheduler: str, *noises: str) -> bool:
        return all((scheduler, noise) in self.records for noise in noises)


def advise(sessions: Iterable[tuple[str, Sequence[RunRecord]]]) -> Advice:
    """Make every comparison that the records allow.

    Args:
        sessions: oldest first, with their records; only records of real devices count, measured
            under a noise or as its quiet turn, without planted faults.

    """
    comparisons: dict[tuple[str, str, str], RemedyComparison] = {}
    lacking: dict[tuple[str, str], MissingMeasurement] = {}
    for name, records in sessions:
        for group in _groups(name, records):
            for kind, comparison in _comparisons(group):
                comparisons[comparison.cell, comparison.noise, kind] = comparison
                lacking.pop((comparison.cell, _what(kind)), None)
            shown = {(cell, _what(kind)) for cell, _, kind in comparisons}
            for kind, missing in _lacking(group):
                if (missing.cell, kind) not in shown:
                    lacking[missing.cell, kind] = missing
    if not comparisons and not lacking:
        command = f"hwq run llm_decode --noise {_LOAD},{_PINNED} --runs {_RUNS}"
        lacking["", ""] = MissingMeasurement("", "no cell was measured under noise", command)
    ordered = sorted(comparisons.items(), key=lambda item: item[0])
    return Advice(tuple(each for _, each in ordered), tuple(lacking.values()))


def _what(kind: str) -> str:
    return kind.partition(":")[0]


def _groups(session: str, records: Sequence[RunRecord]) -> list[_CellGroup]:
    found: dict[str, tuple[Cell, dict[_Under, list[RunRecord]]]] = {}
    for record in records:
        if record.noise is None or record.faults or record.simulated:
            continue
        noise = record.noise.noise
        # Schedulers are distinguished below: the cell is the same work under each.
        cell = quiet_cell(record.cell, noise).model_copy(update={"scheduler": _NATIVE})
        under = (record.cell.scheduler, noise)
        found.setdefault(cell.id, (cell, {}))[1].setdefault(under, []).append(record)
    return [_CellGroup(session, cell, measured) for cell, measured in found.values()]


def _comparisons(group: _CellGroup) -> Iterable[tuple[str, RemedyComparison]]:
    for scheduler in dict.fromkeys(scheduler for scheduler, _ in group.records):
        for noise, kind in _REMEDIES.items():
            if group.has(scheduler, NONE, _LOAD, noise):
                remedy = _pinning(group.records[scheduler, noise])
                sides = ((scheduler, NONE), (scheduler, _LOAD), (scheduler, noise))
                yield kind, _comparison(group, scheduler, _LOAD, remedy, sides)
        if scheduler == _NATIVE or not group.has(_NATIVE, NONE):
            continue
        for noise in (noise for mode, noise in group.records if mode == scheduler):
            if group.has(_NATIVE, noise):
                sides = ((_NATIVE, NONE), (_NATIVE, noise), (scheduler, noise))
                remedy = f"{scheduler} in place of native"
                yield f"{_SCHEDULER}:{scheduler}", _comparison(group, _NATIVE, noise, remedy, sides)


def _comparison(
    group: _CellGroup, scheduler: str, noise: str, remedy: str, sides: tuple[_Under, _Under, _Under]
) -> RemedyComparison:
    records = {side: group.records[side] for side in sides}
    unit = next(
        (r.metrics.throughput[0].unit for each in records.values() for r in each
         if r.metrics.throughput),
        "throughput",
    )  # fmt: skip
    tail_name, tail = tail_figure(records)
    figures = []
    for name, of, worse in ((unit, throughput, False), (tail_name, tail, True)):
        values = by_run(records, of)
        quiet, without, with_remedy = (values[side] for side in sides)
        shares = bought(quiet, without, with_remedy, higher_is_worse=worse)
        figures.append(RemedyFigure(name, worse, shares))
    cell = group.cell.model_copy(update={"scheduler": scheduler})
    noises = ",".join(dict.fromkeys((noise, sides[2][1])))
    modes = ",".join(dict.fromkeys((sides[1][0], sides[2][0])))
    again = _command(group, noises, modes)
    return RemedyComparison(group.session, cell.id, noise, remedy, tuple(figures), again)


def _pinning(records: Sequence[RunRecord]) -> str:
    """Return what was done, as read back from the kernel."""
    done = [r.noise.remedy for r in records if r.noise is not None and r.noise.remedy is not None]
    if not done:
        return "pinning and priority"
    pinning = f"pinning to {_cores(done[-1].cores)} and nice {done[-1].nice}"
    if not done[-1].kept_free:
        return pinning
    return f"{pinning} with neighbours kept off {_cores(done[-1].kept_free)}"


def _cores(cores: Sequence[int]) -> str:
    return f"core{'s' if len(cores) > 1 else ''} {','.join(map(str, cores))}"


def _lacking(group: _CellGroup) -> Iterable[tuple[str, MissingMeasurement]]:
    schedulers = list(dict.fromkeys(scheduler for scheduler, _ in group.records))
    for scheduler in schedulers:
        cell = group.cell.model_copy(update={"scheduler": scheduler}).id
        if not group.has(scheduler, NONE, _LOAD, _PINNED):
            command = _command(group, f"{_LOAD},{_PINNED}", scheduler)
            yield _PINNING, MissingMeasurement(cell, "what pinning and priority buy", command)
        elif not group.has(scheduler, _ISOLATED):
            command = _command(group, f"{_LOAD},{_ISOLATED}", scheduler)
            what = "what pinning with neighbours kept off those cores and their hyperthreads buys"
            yield _ISOLATION, MissingMeasurement(cell, what, command)
    accelerated = group.cell.device.partition(":")[0] != "cpu"
    if schedulers == [_NATIVE] and accelerated:
        noises = [noise for _, noise in group.records if noise not in (NONE, *_REMEDIES)]
        command = _command(group, ",".join(noises) or _LOAD, f"{_NATIVE},stream-priority")
        what = "what priority on the device, or isolation by another scheduler, buys"
        yield _SCHEDULER, MissingMeasurement(group.cell.id, what, command)


def _by_option(record: RunRecord) -> bool:
    """Whether a test was measured under a noise of ``--hwq-noise``, which its id then names."""
    assert record.noise is not None
    parameters = record.nodeid.partition("[")[2]
    return noise_id(record.noise.noise) in parameters


def _command(group: _CellGroup, noises: str, schedulers: str) -> str:
    """Return the command that measures a cell under noises and schedulers."""
    record = next(iter(group.records.values()))[0]
    cell = group.cell
    if record.family == TENANTS:
        file = record.nodeid.partition("::")[0] or f"{cell.name.partition('.')[0]}.hwq.yaml"
        return (
            f"pytest {shlex.quote(file)} --hwq-runs={_RUNS}  # with noise: [{noises}] and "
            f"schedulers: [{schedulers}] in it"
        )
    parts = {
        "device": cell.device, "streams": str(cell.streams), "scheduler": schedulers,
        "dispatch": cell.dispatch, "noise": noises, "runs": str(_RUNS),
    }  # fmt: skip
    # What is the default needs not be said.
    for name, default in (("scheduler", _NATIVE), ("dispatch", "eager")):
        if parts[name] == default:
            del parts[name]
    if cell.size is None and not _by_option(record):
        # The test itself says what runs next to it (fixture hwq_noise): the option is not for it.
        del parts["noise"]
        given = " ".join(f"--hwq-{name}={shlex.quote(value)}" for name, value in parts.items())
        blocks = " and ".join(f'hwq_noise("{noise}")' for noise in noises.split(","))
        return (
            f"pytest {shlex.quote(record.nodeid.partition('[')[0])} {given}  # with {blocks} "
            "around what it measures, and the same without"
        )
    if cell.size is None:
        given = " ".join(f"--hwq-{name}={shlex.quote(value)}" for name, value in parts.items())
        return f"pytest {shlex.quote(record.nodeid.partition('[')[0])} {given}"
    parameters = [
        f"--param {shlex.quote(f'{name}={value}')}"
        for name, value in cell.parameters.items()
        if f"{name}=" in cell.variant
    ]
    given = " ".join(f"--{name} {shlex.quote(value)}" for name, value in parts.items())
    return " ".join([f"hwq run {cell.name} --size {cell.size} {given}", *parameters])
