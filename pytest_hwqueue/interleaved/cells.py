"""The cells of both sides: their runs, and which cells correspond."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_hwqueue.baselines.diff import Unmatched
from pytest_hwqueue.baselines.runs import CellBaseline, add_runs, cell_of_record
from pytest_hwqueue.errors import BaselineError
from pytest_hwqueue.records.cell import Cell, RunRecord

# The parts of a cell's id besides its name.
_PARTS = ("device", "streams", "scheduler", "dispatch", "sync_mode", "variant")


class SideRuns:
    """One side's measurements.

    Args:
        session: name of the session that both sides' runs are part of.

    Attributes:
        cells: every started cell, by id.
        runs: successful ones, in the order measured.
        nodes: the test that measures a cell.
        failures: the first reason why a cell's runs cannot be used.

    """

    def __init__(self, session: str) -> None:
        self._session = session
        self.cells: dict[str, Cell] = {}
        self.runs: dict[str, CellBaseline] = {}
        self.nodes: dict[str, str] = {}
        self.failures: dict[str, str] = {}

    def add(self, records: Sequence[RunRecord]) -> None:
        """Take the records of one process run."""
        times = Counter(record.cell_id for record in records)
        for record in records:
            cell_id = record.cell_id
            self.cells.setdefault(cell_id, record.cell)
            self.nodes.setdefault(cell_id, record.nodeid)
            if record.status != "ok":
                self._fails(cell_id, f"{record.status}: {record.reason}".removesuffix(": "))
            elif times[cell_id] > 1:
                self._fails(
                    cell_id,
                    f"it is measured {times[cell_id]} times in one run: give each a name of its "
                    "own (hwq.measure(..., name=...))",
                )
            else:
                self._add_run(cell_id, record)

    def _add_run(self, cell_id: str, record: RunRecord) -> None:
        try:
            new = cell_of_record(record, self._session)
            known = self.runs.get(cell_id)
            self.runs[cell_id] = new if known is None else add_runs(known, new)
        except BaselineError as error:
            self._fails(cell_id, str(error))

    def _fails(self, cell_id: str, reason: str) -> None:
        self.failures.setdefault(cell_id, reason)


@dataclass(frozen=True)
class Pair:
    """One cell on both sides; the ids differ where the user has the sides differ."""

    old: str
    new: str
    label: str


def match(
    old: Mapping[str, Cell], new: Mapping[str, Cell], varied: Collection[str]
) -> tuple[list[Pair], list[Unmatched]]:
    """Match the cells of two sides by identity, never by position.

    Cells with one id are one cell. Where the user varies a part of the identity, and no value of
    that part is on both sides of a workload or test, cells are matched by the other parts.

    Args:
        old: cells by id.
        new: the same of the other side.
        varied: parts that the user varies, such as ``cell.scheduler``.

    Returns:
        the pairs, and the cells without a counterpart, both by id.

    """
    pairs, left = [], []
    for name in sorted({cell.name for cell in (*old.values(), *new.values())}):
        ours = {key: cell for key, cell in old.items() if cell.name == name}
        theirs = {key: cell for key, cell in new.items() if cell.name == name}
        parts = [
            part
            for part in _PARTS
            if f"cell.{part}" not in varied or _values(ours, part) & _values(theirs, part)
        ]
        by_key = [_by_key(side, parts) for side in (ours, theirs)]
        for key in sorted({*by_key[0], *by_key[1]}, key=str):
            a, b = (side.get(key, []) for side in by_key)
            if len(a) == len(b) == 1:
                pairs.append(Pair(a[0], b[0], _label(ours[a[0]], theirs[b[0]])))
                continue
            reason = f"measured by {'A' if a else 'B'} only"
            if a and b:
                reason = f"{len(a)} cells of A and {len(b)} of B differ only in what is varied"
            left += [Unmatched(cell_id, reason) for cell_id in dict.fromkeys((*a, *b))]
    return pairs, left


def _values(cells: Mapping[str, Cell], part: str) -> set[object]:
    return {getattr(cell, part) for cell in cells.values()}


def _by_key(cells: Mapping[str, Cell], parts: Iterable[str]) -> dict[tuple[object, ...], list[str]]:
    found: dict[tuple[object, ...], list[str]] = {}
    names = tuple(parts)
    for cell_id, cell in cells.items():
        found.setdefault(tuple(getattr(cell, name) for name in names), []).append(cell_id)
    return found


def _label(old: Cell, new: Cell) -> str:
    """Return the id of both, with both values where they differ: ``[cuda-s8-native→mps-eager]``."""
    if old.id == new.id:
        return old.id
    both = {}
    for part in _PARTS:
        one, other = getattr(old, part), getattr(new, part)
        both[part] = one if one == other else f"{one or 'default'}→{other or 'default'}"
    return old.model_copy(update=both).id
