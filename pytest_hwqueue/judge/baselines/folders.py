"""Folders of baselines: their files, and the history of what was accepted."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, SoftFileLock, Timeout
from pydantic import ConfigDict, TypeAdapter

from pytest_hwqueue.data.errors import RecordError, files, translated
from pytest_hwqueue.data.records.cell import now
from pytest_hwqueue.data.records.files import is_cell_file_name
from pytest_hwqueue.data.shipped import PACKAGE, shipped
from pytest_hwqueue.judge.baselines.cell_file import (
    line_of,
    read_as,
    read_cell,
    read_lines,
    write_lines,
    write_whole,
)
from pytest_hwqueue.judge.baselines.runs import CellBaseline, condition_differences

HISTORY_FILE = "history.jsonl"
LONGEST_WAIT_S = 600.0

_GIT_IGNORE = ".gitignore"
_LOCK_FILE = ".lock"


def packaged_folder(package: Path = PACKAGE) -> Path | None:
    """Return the folder of the baselines shipped with the plugin, or None.

    Args:
        package: the folder of the package ``pytest_hwqueue``; baselines are inside an installed
            package, and next to it in a clone.

    """
    return shipped("stored_baselines", "baselines", package)


def read_folder(folder: Path) -> dict[str, CellBaseline]:
    """Read the cells of a baseline's folder, by id and in the order of the ids; {} if none.

    Raises:
        RecordError: naming the file that is damaged or not a cell's.

    """
    cells = [read_cell(path) for path in cell_files(folder)]
    return {cell.header.cell.id: cell for cell in sorted(cells, key=lambda c: c.header.cell.id)}


def cell_files(folder: Path) -> list[Path]:
    """Return the files of cells in a folder; none if it does not exist.

    Raises:
        RecordError: if a file there ends like a cell's and is none, or the folder is unreadable.

    """
    found = [name for name in entries(folder) if name.endswith(".jsonl") and name[0] != "."]
    for name in found:
        if name != HISTORY_FILE and not is_cell_file_name(name):
            raise RecordError(f"{folder / name} is not the file of a cell; move it elsewhere")
    return [folder / name for name in sorted(found) if name != HISTORY_FILE]


def folders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder; none if it does not exist."""
    return sorted(name for name in entries(folder) if (folder / name).is_dir())


def entries(folder: Path) -> list[str]:
    """Return what is in a folder; nothing if it does not exist.

    Raises:
        RecordError: if it cannot be read.

    """
    with files("read", folder), contextlib.suppress(FileNotFoundError):
        return os.listdir(folder)
    return []


def inside(folder: Path, root: Path) -> Path:
    """Return the folder if no link leads out of the root.

    Raises:
        RecordError: naming the link.

    """
    # RuntimeError: a circle of links, before 3.13.
    with translated(RecordError, f"cannot use {folder}", OSError, RuntimeError):
        if folder.resolve().is_relative_to(root.resolve()):
            return folder
    raise RecordError(
        f"{folder} is a link that leads out of {root}, where nothing is read or written: remove "
        "the link, or name the other folder as the root"
    )


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Lock a baseline's folder for writing; create it, and remove what killed writers left.

    On leaving the block, what was written is on disk.

    Raises:
        RecordError: if the folder cannot be made, locked or synchronised.

    """
    lock = _lock(folder)
    try:
        for stale in [*folder.glob(".*.tmp"), *folder.glob("*/.*.tmp")]:
            remove(stale)
        if not os.path.lexists(folder / _GIT_IGNORE):
            # Lock and temporary files are nothing to commit; the pattern covers this file too.
            write_whole(folder / _GIT_IGNORE, ".*\n")
        yield
        sync(folder)
    finally:
        lock.release()


def remove(path: Path) -> None:
    """Remove a file.

    Raises:
        RecordError: if that is not possible.

    """
    with files("remove", path):
        path.unlink()


def sync(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a replaced file stays replaced.

    Raises:
        RecordError: if that is not possible.

    """
    with files("synchronise", folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _lock(folder: Path) -> FileLock:
    path = folder / _LOCK_FILE
    with files("make", folder):
        folder.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        raise RecordError(f"{path} is a link; remove it: the lock of a baseline is a plain file")
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=LONGEST_WAIT_S)
    except Timeout as error:
        raise RecordError(
            f"another process has been writing to {folder} for {LONGEST_WAIT_S:g} s (it holds "
            f"{path}): wait for it to end, or stop it"
        ) from error
    except (OSError, NotImplementedError) as error:
        raise RecordError(f"cannot lock {path}: {error}; the folder must be writable") from error
    if isinstance(lock, SoftFileLock):
        # filelock falls back to a marker file there, which outlives a killed process.
        lock.release()
        raise RecordError(
            f"the file system of {folder} has no flock, so two writers could lose each other's "
            "runs; keep baselines on a local directory"
        )
    return lock


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
        RecordError: naming the file if it is damaged.

    """
    if not os.path.lexists(path):
        return []
    moves = []
    for number, line in enumerate(read_lines(path, HISTORY_SCHEMA)[1:], start=2):
        with read_as(path, f"line {number}"):
            moves.append(_MOVE.validate_json(line))
    return moves


def add_move(path: Path, move: Move) -> None:
    """Add a line to a history.

    Raises:
        RecordError: if it is damaged or cannot be written.

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
