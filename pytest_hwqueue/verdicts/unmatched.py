"""Explains why no cell of a baseline was measured: which part of their identity differs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from pytest_hwqueue.records.cell import Cell

_PARTS = ("name", "device", "streams", "scheduler", "dispatch", "sync_mode", "size", "variant")
_MOST_LISTED = 6


@dataclass(frozen=True)
class PlannedCell:
    """What is known about a cell before it is measured; None is not known yet.

    Attributes:
        name: the workload's name; empty: not known yet.
        device: label, such as ``cuda``.
        streams: number of them.
        scheduler: mode.
        dispatch: mode.
        sync_mode: when the host waits.

    """

    name: str = ""
    device: str | None = None
    streams: int | None = None
    scheduler: str | None = None
    dispatch: str | None = None
    sync_mode: str | None = None

    def may_be(self, cell: Cell) -> bool:
        """Whether this may turn out to be a given cell."""
        return all(
            getattr(self, part.name) in (None, "", getattr(cell, part.name))
            for part in fields(self)
        )


def nothing_in_common(label: str, baseline: Sequence[Cell], measured: Sequence[Cell]) -> str:
    """Return text on what a baseline holds, what was measured, and where the two differ.

    Args:
        label: of the baseline, for people.
        baseline: its cells.
        measured: the cells measured, none of them one of the baseline's.

    """
    ours = [_values_of(cell) for cell in baseline]
    theirs = [_values_of(cell) for cell in measured]
    return "\n".join(
        [
            f"{label} holds {_listed([cell.id for cell in baseline])}",
            f"measured: {_listed([cell.id for cell in measured])}",
            f"what differs: {differing_parts(ours, theirs)}",
        ]
    )


def nothing_planned(label: str, baseline: Sequence[Cell], planned: Sequence[PlannedCell]) -> str:
    """Return the same before anything is measured.

    Args:
        label: of the baseline, for people.
        baseline: its cells.
        planned: cells to be measured, none of which can be one of the baseline's.

    """
    ours = [_values_of(cell) for cell in baseline]
    theirs = [
        {name: value for name in _PARTS if (value := getattr(cell, name, None)) not in (None, "")}
        for cell in planned
    ]
    return "\n".join(
        [
            f"{label} holds {_listed([cell.id for cell in baseline])}",
            f"what differs: {differing_parts(ours, theirs)}",
        ]
    )


def differing_parts(
    ours: Sequence[Mapping[str, object]], theirs: Sequence[Mapping[str, object]]
) -> str:
    """Return the parts in which two sets of cells share no value, with the values.

    Args:
        ours: parts by name of each cell of the baseline.
        theirs: the same of the others; a part that is not known is not there.

    """
    found = []
    for part in _PARTS:
        one = {each[part] for each in ours}
        other = {each[part] for each in theirs if part in each}
        if one and other and one.isdisjoint(other):
            found.append(f"{part} is {_values(one)} in the baseline and {_values(other)} here")
    return "; ".join(found) or (
        "each part by itself is there, and no cell has the same combination of them"
    )


def _values_of(cell: Cell) -> dict[str, object]:
    return {part: getattr(cell, part) for part in _PARTS}


def _values(values: Iterable[object]) -> str:
    texts = sorted((str(value) if value not in ("", None) else "none" for value in values),
                   key=lambda text: (len(text), text))  # fmt: skip
    more = [f"{len(texts) - _MOST_LISTED} others"] * (len(texts) > _MOST_LISTED)
    return " or ".join([*texts[:_MOST_LISTED], *more])


def _listed(names: Iterable[str]) -> str:
    each = list(dict.fromkeys(names))
    cells = f"{len(each)} cell{'s' * (len(each) != 1)}"
    if not each:
        return "no cell"
    more = f", and {len(each) - _MOST_LISTED} more" if len(each) > _MOST_LISTED else ""
    return f"{cells}: {', '.join(each[:_MOST_LISTED])}{more}"
