"""Finds the records that a report shows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from pytest_hwqueue.errors import RecordError
from pytest_hwqueue.records.cell import RunRecord, read_model, read_record
from pytest_hwqueue.records.tenants import ColocationRecord, read_colocation
from pytest_hwqueue.which.file import SCHEMA, WhichFile

Record = TypeVar("Record", RunRecord, ColocationRecord, WhichFile)

_SESSION = "session.json"
# Folders within a session's: each rank's part of a cell, and cells run again to find causes.
_RANKS, _CAUSES = "ranks", "causes"


@dataclass(frozen=True)
class Stored(Generic[Record]):
    """A record, and the file it was read from; its timelines and traces lie next to it."""

    path: Path
    record: Record


@dataclass
class Found:
    """What there is to show, by the file's name within each folder.

    Attributes:
        cells: records of cells.
        traced: of cells that were run again to find causes; they have no figures of their own.
        colocations: records of tenants; traced ones explain the others, and have no figures.
        tables: of ``hwq which``.
        damaged: files that could not be read, and why.

    """

    cells: list[Stored[RunRecord]] = field(default_factory=list)
    traced: list[Stored[RunRecord]] = field(default_factory=list)
    colocations: list[Stored[ColocationRecord]] = field(default_factory=list)
    tables: list[Stored[WhichFile]] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    @property
    def nothing(self) -> bool:
        """Whether no record was found."""
        return not (self.cells or self.colocations or self.tables)


def find_records(paths: Sequence[Path]) -> Found:
    """Read the records in files and folders.

    Args:
        paths: of records, and of folders with records in them or further down.

    Raises:
        RecordError: if a path is no record, or a folder holds none.

    """
    found = Found()
    for given in paths:
        before = found.nothing
        for path in _files(given):
            _read(path, found, named=path == given)
        if given.is_dir() and before and found.nothing and not found.damaged:
            raise RecordError(f"{given} holds no records{_stored_instead(given)}")
    return found


def _files(path: Path) -> Iterable[Path]:
    if not path.is_dir():
        return [path]
    return sorted(each for each in path.rglob("*.json") if not _within(each, _RANKS))


def _within(path: Path, name: str) -> bool:
    """Whether a file is further down in this folder of a session."""
    folders = (folder for folder in path.parents if folder.name == name)
    return any((folder.parent / _SESSION).exists() for folder in folders)


def _stored_instead(folder: Path) -> str:
    if next(folder.rglob("*.jsonl"), None) is None:
        return ""
    return (
        ", but a stored baseline, of which only samples are kept: name the folder of a session, "
        "and compare with --baseline"
    )


def _read(path: Path, found: Found, *, named: bool) -> None:
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        if named:
            raise RecordError(f"{path} is damaged: {error}") from error
        found.damaged.append(f"{path} is damaged: {error}")
        return
    parts = data.keys() if isinstance(data, dict) else set()
    try:
        if "schema_version" in parts and "plan" in parts:
            found.colocations.append(Stored(path, read_colocation(path)))
        elif "schema_version" in parts and "cell_id" in parts:
            cells = found.traced if _within(path, _CAUSES) else found.cells
            cells.append(Stored(path, read_record(path)))
        elif "schema" in parts and data["schema"] == SCHEMA:
            table = read_model(path, WhichFile, "a table of `hwq which`")
            found.tables.append(Stored(path, table))
        elif named:
            raise RecordError(
                f"{path} is neither a record nor a table of `hwq which`; of a session name its "
                "folder"
            )
    except RecordError as error:
        if named:
            raise
        found.damaged.append(str(error))
