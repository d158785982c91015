"""Finds the records on disk, and computes the figures of each again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_hwqueue.errors import RecordError
from pytest_hwqueue.recompute.cells import recompute_cell
from pytest_hwqueue.recompute.colocations import recompute_colocation
from pytest_hwqueue.recompute.comparison import Recomputed
from pytest_hwqueue.records.cell import RunRecord, read_record
from pytest_hwqueue.records.tenants import ColocationRecord, read_colocation
from pytest_hwqueue.records.timelines import Kept, TimelineFile, read_kept


@dataclass
class Outcome:
    """All records, computed again; ``damaged`` are the files that could not be read, and why."""

    records: list[Recomputed] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    @property
    def figures(self) -> int:
        """Numbers and texts that were compared."""
        return sum(record.figures for record in self.records)

    @property
    def agrees(self) -> bool:
        """Whether all that was compared agrees, and nothing is damaged."""
        return not self.damaged and not any(record.differences for record in self.records)


def recompute(paths: Sequence[Path]) -> Outcome:
    """Compute the figures of records again.

    Args:
        paths: of records, and of folders with records in them or further down.

    """
    outcome = Outcome()
    for path in dict.fromkeys(each for given in paths for each in _files(given)):
        try:
            found = _recomputed(path, named=path in paths)
        except (RecordError, ValueError) as error:
            text = str(error)
            outcome.damaged.append(text if str(path.parent) in text else f"{path}: {text}")
            continue
        if found is not None:
            outcome.records.append(found)
    return outcome


def _files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.json")) if path.is_dir() else [path]


def _recomputed(path: Path, *, named: bool) -> Recomputed | None:
    """Return a record computed again; None if the file is none and was not named."""
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise RecordError(f"{path} is damaged: {error}") from error
    parts = data.keys() if isinstance(data, dict) else set()
    if "schema_version" in parts and "plan" in parts:
        colocation = read_colocation(path)
        found = _of(path, colocation.id, colocation)
        recompute_colocation(colocation, _kept(path, colocation.timelines), found)
        return found
    if "schema_version" in parts and "cell_id" in parts:
        record = read_record(path)
        found = _of(path, record.cell_id, record)
        recompute_cell(record, _kept(path, record.timelines), found)
        return found
    if named:
        raise RecordError(f"{path} is no record of a cell or of a co-location")
    # Session files, which have the records once more, and tables.
    return None


def _of(path: Path, record_id: str, record: RunRecord | ColocationRecord) -> Recomputed:
    return Recomputed(path, record_id, record.version, record.git_commit)


def _kept(path: Path, timelines: TimelineFile | None) -> Kept | None:
    return None if timelines is None else read_kept(path.parent, timelines)
