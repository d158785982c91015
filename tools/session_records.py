"""The records of cells in the folders of sessions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from pytest_hwqueue.records.cell import RunRecord, read_record

_OTHER_FILES = ("session.json", "which.json")
# Cells that were run once more for their causes, and scenarios.
_OTHER_FOLDERS = {"causes", "scenarios"}


def session_records(folders: Iterable[Path]) -> Iterator[RunRecord]:
    """Read the records below folders as `.hwqueue` has them, folder by folder.

    Raises:
        RecordError: naming a file that is damaged or no record.

    """
    for folder in folders:
        for path in sorted(folder.rglob("*.json")):
            apart = _OTHER_FOLDERS & set(path.relative_to(folder).parts[:-1])
            if path.name not in _OTHER_FILES and not apart:
                yield read_record(path)
