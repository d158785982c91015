"""Folders of baselines: reading, exclusive writing, and no links that lead out of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, SoftFileLock, Timeout

from pytest_hwqueue.baselines.cell_file import read_cell, write_whole
from pytest_hwqueue.baselines.runs import CellBaseline
from pytest_hwqueue.errors import BaselineError
from pytest_hwqueue.records.names import is_cell_file_name

HISTORY_FILE = "history.jsonl"
LONGEST_WAIT_S = 600.0

_GIT_IGNORE = ".gitignore"
_LOCK_FILE = ".lock"


_PACKAGE = Path(__file__).resolve().parents[1]


def packaged_folder(package: Path = _PACKAGE) -> Path | None:
    """Return the folder of the baselines shipped with the plugin, or None.

    Args:
        package: the folder of the package ``pytest_hwqueue``; baselines are inside an installed
            package, and next to it in a clone.

    """
    installed, cloned = package / "stored_baselines", package.parent / "baselines"
    if installed.is_dir():
        return installed
    # Next to an installed package, a folder of that name would be some other project's.
    if cloned.is_dir() and (package.parent / "pyproject.toml").is_file():
        return cloned
    return None


def read_folder(folder: Path) -> dict[str, CellBaseline]:
    """Read the cells of a baseline's folder, by id and in the order of the ids; {} if none.

    Raises:
        BaselineError: naming the file that is damaged or not a cell's.

    """
    cells = [read_cell(path) for path in cell_files(folder)]
    return {cell.header.cell.id: cell for cell in sorted(cells, key=lambda c: c.header.cell.id)}


def cell_files(folder: Path) -> list[Path]:
    """Return the files of cells in a folder; none if it does not exist.

    Raises:
        BaselineError: if a file there ends like a cell's and is none, or the folder is unreadable.

    """
    found = [name for name in entries(folder) if name.endswith(".jsonl") and name[0] != "."]
    for name in found:
        if name != HISTORY_FILE and not is_cell_file_name(name):
            raise BaselineError(f"{folder / name} is not the file of a cell; move it elsewhere")
    return [folder / name for name in sorted(found) if name != HISTORY_FILE]


def folders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder; none if it does not exist."""
    return sorted(name for name in entries(folder) if (folder / name).is_dir())


def entries(folder: Path) -> list[str]:
    """Return what is in a folder; nothing if it does not exist.

    Raises:
        BaselineError: if it cannot be read.

    """
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BaselineError(f"cannot read {folder}: {error.strerror or error}") from error


def inside(folder: Path, root: Path) -> Path:
    """Return the folder if no link leads out of the root.

    Raises:
        BaselineError: naming the link.

    """
    try:
        if folder.resolve().is_relative_to(root.resolve()):
            return folder
    except (OSError, RuntimeError) as error:  # RuntimeError: a circle of links, before 3.13
        raise BaselineError(f"cannot use {folder}: {error}") from error
    raise BaselineError(
        f"{folder} is a link that leads out of {root}, where nothing is read or written: remove "
        "the link, or name the other folder as the root"
    )


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Lock a baseline's folder for writing; create it, and remove what killed writers left.

    On leaving the block, what was written is on disk.

    Raises:
        BaselineError: if the folder cannot be made, locked or synchronised.

    """
    lock = _lock(folder)
    try:
        for stale in [*folder.glob(".*.tmp"), *folder.glob("*/.*.tmp")]:
            remove(stale)
        if not (folder / _GIT_IGNORE).exists():
            # Lock and temporary files are nothing to commit; the pattern covers this file too.
            write_whole(folder / _GIT_IGNORE, ".*\n")
        yield
        sync(folder)
    finally:
        lock.release()


def remove(path: Path) -> None:
    """Remove a file.

    Raises:
        BaselineError: if that is not possible.

    """
    try:
        path.unlink()
    except OSError as error:
        raise BaselineError(f"cannot remove {path}: {error.strerror or error}") from error


def sync(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a replaced file stays replaced.

    Raises:
        BaselineError: if that is not possible.

    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise BaselineError(f"cannot synchronise {folder}: {error.strerror or error}") from error


def _lock(folder: Path) -> FileLock:
    path = folder / _LOCK_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BaselineError(f"cannot make {folder}: {error.strerror or error}") from error
    if path.is_symlink():
        raise BaselineError(f"{path} is a link; remove it: the lock of a baseline is a plain file")
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=LONGEST_WAIT_S)
    except Timeout as error:
        raise BaselineError(
            f"another process has been writing to {folder} for {LONGEST_WAIT_S:g} s (it holds "
            f"{path}): wait for it to end, or stop it"
        ) from error
    except (OSError, NotImplementedError) as error:
        raise BaselineError(f"cannot lock {path}: {error}; the folder must be writable") from error
    if isinstance(lock, SoftFileLock):
        # filelock falls back to a marker file there, which outlives a killed process.
        lock.release()
        raise BaselineError(
            f"the file system of {folder} has no flock, so two writers could lose each other's "
            "runs; keep baselines on a local directory"
        )
    return lock
