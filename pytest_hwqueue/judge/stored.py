"""Stored runs for the gate, its calibration from them, and comparisons with what a user names."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev

from pytest_hwqueue.data.errors import BadInput, RecordError, within
from pytest_hwqueue.data.metrics.numbers import counted
from pytest_hwqueue.data.records.cell import Cell
from pytest_hwqueue.judge.baselines.runs import CellBaseline, add_runs
from pytest_hwqueue.judge.baselines.sources import Source, load_source
from pytest_hwqueue.judge.baselines.store import Store
from pytest_hwqueue.judge.calibrate import (
    LEAST_SESSIONS,
    Calibration,
    calibrate,
    can_convict,
    detectable_effect,
    drift_alarm,
)
from pytest_hwqueue.judge.cell_gate import can_be_convicted
from pytest_hwqueue.judge.effects import cell_settings, limit_of
from pytest_hwqueue.judge.figures import figure
from pytest_hwqueue.judge.judging import Judgement
from pytest_hwqueue.judge.runs import ProcessRun
from pytest_hwqueue.judge.statistics import session_share
from pytest_hwqueue.judge.verdict import GateSettings, Quantity

HOW_TO_RECORD = (
    f"Record unchanged code in {LEAST_SESSIONS} sessions, best on several days: "
    "hwq run P0 --runs 3 --save aa"
)


def calibrate_sources(
    sources: Sequence[Source], figures: Sequence[str], settings: GateSettings
) -> tuple[Calibration, list[str]]:
    """Estimate the noise of runs and sessions from all runs of all sources.

    Args:
        sources: of unchanged code; a run that appears in several counts once.
        figures: names of the figures to calibrate for; see `figures.figure`. With several, each
            figure of a cell is a cell.
        settings: of the gate that will use these baselines.

    Returns:
        The estimates by cell id (with several figures, ``CELL FIGURE``), and a sentence for each
        cell that has none.

    Raises:
        RecordError: if runs of one cell differ in their conditions, or have planted faults.
        BadInput: if no cell has a figure of a name, or no cell is left.

    """
    gated: dict[str, list[ProcessRun]] = {}
    left_out = []
    for name in figures:
        known = False
        for cell_id, cell in _joined(sources).items():
            chosen = figure(name, cell.runs, (), pace=cell.header.has_pace)
            if chosen is None:
                continue
            known = True
            key = cell_id if len(figures) == 1 else f"{cell_id} {name}"
            runs = [chosen.run(run) for run in cell.runs]
            reason = _unusable(runs, chosen.quantity.label)
            if reason:
                left_out.append(f"{key}: {reason}")
            else:
                gated[key] = runs
        if not known:
            raise BadInput(f"no cell has a figure {name!r}")
    if not gated:
        raise BadInput(f"no cell can be calibrated: {left_out[0]}. {HOW_TO_RECORD}")
    return calibrate(gated, settings), left_out


def _joined(sources: Sequence[Source]) -> dict[str, CellBaseline]:
    cells: dict[str, CellBaseline] = {}
    for source in sources:
        for cell_id, cell in source.cells.items():
            if cell.faults:
                raise RecordError(
                    f"{source.label}: {cell_id} was measured with planted faults "
                    f"({', '.join(cell.faults)}), which say nothing of the machine's noise"
                )
            with within(source.label):
                cells[cell_id] = add_runs(cells[cell_id], cell) if cell_id in cells else cell
    return dict(sorted(cells.items()))


def _unusable(runs: Sequence[ProcessRun], label: str) -> str:
    if not all(math.isfinite(run.value) and run.value > 0 for run in runs):
        return f"a run has no {label} above 0"
    if max(Counter(run.session for run in runs).values()) < 2:
        return "no session has two runs of it, so runs and sessions cannot be told apart"
    return ""


@dataclass(frozen=True)
class StoredFigure:
    """One figure of one stored cell.

    Attributes:
        cell_id: of the cell.
        quantity: that is gated, which may be a lower quantile than requested.
        runs: K of them.
        sd: standard deviation of the figure's logarithm between runs; None with one run.
        sd_is_floor: whether ``sd`` is the settings' ``floor``, the runs' own being below it.
        detectable: least true worsening that is found, as a fraction; None if the runs are too few.
        limit: what keeps it from finding 2 %, if each cell has its own least effect.
        warning: why the runs may not be independent; empty if nothing speaks against them.

    """

    cell_id: str
    quantity: Quantity
    runs: Sequence[ProcessRun]
    sd: float | None
    sd_is_floor: bool
    detectable: float | None
    limit: str
    warning: str


def describe_stored(
    cells: Mapping[str, CellBaseline], figures: Sequence[str], settings: GateSettings
) -> list[StoredFigure]:
    """Describe each figure of each cell; those that can fail share the error rate."""
    found, quantities, cell_ids = {}, {}, {}
    for cell_id, cell in sorted(cells.items()):
        for name in figures:
            gated = figure(name, cell.runs, (), pace=cell.header.has_pace)
            key = f"{cell_id}\n{name}"
            if gated is not None:
                found[key] = [gated.run(run) for run in cell.runs]
                quantities[key], cell_ids[key] = gated.quantity, cell_id
    compared = max(1, sum(can_be_convicted(runs, quantities[key]) for key, runs in found.items()))
    described = []
    sessionless = {key for key, cell_id in cell_ids.items() if cells[cell_id].sessionless}
    allowing = cell_settings(found, quantities, settings, compared, sessionless)
    for key, runs in found.items():
        logs = [math.log(run.value) for run in runs if run.value > 0]
        sound = len(logs) == len(runs)
        seen = stdev(logs) if sound and len(logs) > 1 else None
        sd = None if seen is None else max(seen, settings.floor)
        detectable = None
        if sd is not None and can_convict(len(runs), settings.last_look, settings, compared):
            # New runs are all of one session.
            share = 1 + session_share([run.session for run in runs])
            detectable = detectable_effect(
                sd, len(runs), allowing[key].main, compared, session_share=share
            )
        limit = ""
        if sd is not None:
            limit = limit_of(detectable, sd, runs, quantities[key], allowing[key].main, compared)
        warning = "" if sound else "a run's figure is not above 0"
        if sound and key not in sessionless:
            warning = drift_alarm(runs)
        described.append(
            StoredFigure(
                cell_ids[key], quantities[key], runs, sd, seen != sd, detectable, limit, warning
            )
        )
    return described


_PARTS = (
    "name", "device", "streams", "scheduler", "dispatch", "sync_mode", "cache", "size", "variant",
)  # fmt: skip
_MOST_LISTED = 6


Parts = Mapping[str, object]
"""What is known about a cell, by the names of its fields; before it is measured, not all is."""


def may_be(known: Parts, cell: Cell) -> bool:
    """Whether what is known in part may turn out to be a given cell."""
    return all(getattr(cell, name) == part for name, part in known.items())


def nothing_in_common(
    label: str, baseline: Sequence[Cell], measured: Sequence[Cell | Parts]
) -> str:
    """Return text on what a baseline holds, and the parts in which no cell of it is as others.

    Args:
        label: of the baseline, for people.
        baseline: its cells.
        measured: the others, none of them one of the baseline's: cells, which the text names, or
            what is known about them before they are measured.

    """
    found = []
    cells = [each.id for each in measured if isinstance(each, Cell)]
    theirs = [vars(each) if isinstance(each, Cell) else each for each in measured]
    for part in _PARTS:
        one = {getattr(cell, part) for cell in baseline}
        other = {each[part] for each in theirs if part in each}
        if one and other and one.isdisjoint(other):
            found.append(f"{part} is {_values(one)} in the baseline and {_values(other)} here")
    differs = "; ".join(found) or (
        "each part by itself is there, and no cell has the same combination of them"
    )
    what = f"measured: {_listed(cells)}\n" if len(cells) == len(measured) else ""
    return f"{label} holds {_listed([c.id for c in baseline])}\n{what}what differs: {differs}"


def _values(values: Iterable[object]) -> str:
    texts = sorted((str(value) if value not in ("", None) else "none" for value in values),
                   key=lambda text: (len(text), text))  # fmt: skip
    more = [f"{len(texts) - _MOST_LISTED} others"] * (len(texts) > _MOST_LISTED)
    return " or ".join([*texts[:_MOST_LISTED], *more])


def _listed(names: Iterable[str]) -> str:
    each = list(dict.fromkeys(names))
    if not each:
        return "no cell"
    more = f", and {len(each) - _MOST_LISTED} more" if len(each) > _MOST_LISTED else ""
    return f"{counted(len(each), 'cell')}: {', '.join(each[:_MOST_LISTED])}{more}"


@dataclass(frozen=True)
class NamedSources:
    """The sources of runs that a name refers to.

    Attributes:
        text: as the user wrote it.
        by_device: baselines of that name, by the folder of the device's model.
        explicit: what a DEVICE/NAME or a path names; it is compared with whatever is measured.

    """

    text: str
    by_device: dict[str, Source]
    explicit: Source | None

    def of(self, device: str) -> Source | None:
        """Return what a device's runs are compared with, or None if it has nothing of this name.

        A name alone is looked up in the folder of the device measured, and nowhere else.

        Args:
            device: folder of its model, such as ``nvidia-h200``.

        """
        return self.explicit if self.explicit is not None else self.by_device.get(device)

    @property
    def sources(self) -> list[Source]:
        """All sources that may be compared with."""
        return [self.explicit] if self.explicit is not None else list(self.by_device.values())

    @property
    def label(self) -> str:
        """All of it, for people."""
        return " and ".join(source.label for source in self.sources) or self.text

    @property
    def cells(self) -> list[Cell]:
        """The cells of all sources."""
        return [cell.header.cell for source in self.sources for cell in source.cells.values()]

    def missing_for(self, devices: Sequence[str]) -> str:
        """Return text saying that devices lack a baseline of this name, and which have one.

        Args:
            devices: folders of the models measured.

        """
        text = f"there is no baseline {self.text!r} of {' or '.join(devices)}"
        others = [source.label for source in self.by_device.values()]
        if others:
            text += (
                f", only {', '.join(others)}, which is compared with another device where it is "
                "named in full"
            )
        return f"{text}; --hwq-save={self.text} stores one"


def load_named(text: str, store: Store) -> NamedSources:
    """Load what a user names; see `sources.load_source`.

    Raises:
        RecordError: if there is no such thing, or it cannot be read.

    """
    devices = store.devices_with(text)
    if devices:
        return NamedSources(
            text, {each: load_source(f"{each}/{text}", store) for each in devices}, None
        )
    return NamedSources(text, {}, load_source(text, store))


def why_unjudged(
    named: NamedSources | str,
    judgements: Sequence[Judgement],
    devices: Sequence[str],
    measured: Sequence[Cell],
) -> str:
    """Return why a comparison judged nothing.

    Args:
        named: what was to be compared with, or its name if there is nothing yet.
        judgements: the outcomes.
        devices: folders of the models measured.
        measured: the cells measured.

    """
    if not measured:
        return "no test has measured anything that can be compared"
    judged = [each for judgement in judgements for each in judgement.verdicts]
    known = [each for each in judged if each.verdict.state != "no-baseline"]
    if known:
        return "\n".join(f"{each.cell_id}: {each.verdict.sentence}" for each in known)
    if isinstance(named, str):
        return f"there is no baseline {named!r} yet"
    sources = [source for device in devices if (source := named.of(device)) is not None]
    if not sources:
        return named.missing_for(devices)
    cells = [cell.header.cell for source in sources for cell in source.cells.values()]
    return nothing_in_common(" and ".join(source.label for source in sources), cells, measured)
