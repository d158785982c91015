"""The history of a baseline: one line for each deliberate move, and how far it went."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError

from pytest_hwqueue.baselines.cell_file import (
    damaged,
    first_error,
    line_of,
    read_lines,
    write_lines,
)
from pytest_hwqueue.baselines.runs import CellBaseline, condition_differences
from pytest_hwqueue.records.cell import now

HISTORY_SCHEMA = "pytest-hwqueue/baseline-history/1"


@dataclass(frozen=True)
class MovedCell:
    """New P99 divided by the old and by the anchor's: ratios of geometric means over runs.

    None where there was no old one, or a P99 is 0.
    """

    p99_ratio: float | None
    p99_ratio_to_anchor: float | None

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True)
class Move:
    """One deliberate move of a baseline.

    Attributes:
        when: UTC, ISO 8601.
        commit: of the code that is the norm from then on, if known.
        reason: in the words of whoever moved it.
        median_p99_ratio: new over old, median over the cells; None if no cell has a ratio.
        median_p99_ratio_to_anchor: new over the first accepted runs. Steps that are each too
            small to detect add up, and the sum shows here.
        changed: names of the conditions (driver, framework, clock policy) that are not the old
            ones in at least one cell.
        cells: by id.

    """

    when: str
    commit: str | None
    reason: str
    median_p99_ratio: float | None
    median_p99_ratio_to_anchor: float | None
    changed: list[str]
    cells: dict[str, MovedCell]

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)


_MOVE = TypeAdapter(Move)


def describe_move(
    old: Mapping[str, CellBaseline],
    anchors: Mapping[str, CellBaseline],
    new: Mapping[str, CellBaseline],
    reason: str,
    commit: str | None,
) -> Move:
    """Compare the cells that a baseline moves to with those stored before, by cell id."""
    cells = {}
    changed = set()
    for cell_id, cell in sorted(new.items()):
        before = old.get(cell_id)
        if before is not None:
            differ = condition_differences(before.header, cell.header)
            changed |= {difference.field for difference in differ}
        cells[cell_id] = MovedCell(_p99_ratio(cell, before), _p99_ratio(cell, anchors.get(cell_id)))
    return Move(
        when=now(),
        commit=commit,
        reason=reason,
        median_p99_ratio=_median([cell.p99_ratio for cell in cells.values()]),
        median_p99_ratio_to_anchor=_median([cell.p99_ratio_to_anchor for cell in cells.values()]),
        changed=sorted(changed),
        cells=cells,
    )


def read_history(path: Path) -> list[Move]:
    """Read a history, oldest first; a missing file is an empty history.

    Raises:
        BaselineError: naming the file if it is damaged.

    """
    if not os.path.lexists(path):
        return []
    moves = []
    for number, line in enumerate(read_lines(path, HISTORY_SCHEMA)[1:], start=2):
        try:
            moves.append(_MOVE.validate_json(line))
        except ValidationError as error:
            raise damaged(path, f"line {number} is not a move: {first_error(error)}") from error
    return moves


def add_move(path: Path, move: Move) -> None:
    """Add a line to a history.

    Raises:
        BaselineError: if it is damaged or cannot be written.

    """
    moves = [*read_history(path), move]
    write_lines(
        path, [line_of({"schema": HISTORY_SCHEMA}), *(line_of(asdict(each)) for each in moves)]
    )


def _p99_ratio(new: CellBaseline, old: CellBaseline | None) -> float | None:
    if old is None:
        return None
    p99_ns = [[run.p99_ns for run in cell.runs] for cell in (new, old)]
    if not all(value > 0 for values in p99_ns for value in values):
        return None
    ours, theirs = (statistics.fmean(map(math.log, values)) for values in p99_ns)
    return math.exp(ours - theirs)


def _median(ratios: list[float | None]) -> float | None:
    known = [ratio for ratio in ratios if ratio is not None]
    return statistics.median(known) if known else None
