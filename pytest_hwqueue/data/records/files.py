"""Files of records: fields, names, and the folders of sessions, of which git knows nothing.

Options are checked with the names' rules, so nothing heavy is imported here.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pytest_hwqueue.data.errors import BadInput, RecordError
from pytest_hwqueue.data.records.kinds import capabilities_of
from pytest_hwqueue.data.safe_files import write_text

if TYPE_CHECKING:
    from pytest_hwqueue.data.records.fingerprint import Value


RECORDS_FOLDER = ".hwqueue"
"""Where sessions leave their records unless --hwq-dir names another folder."""
_IGNORED = "# Records of pytest-hwqueue. To keep some in git: git add --force\n*\n"


def session_name(started: str) -> str:
    """Return a new name for a session's folder, by its start (`records.cell.now`).

    Its end is random: containers that share a folder have equal process ids at equal times.
    """
    return f"{started[:19].replace(':', '').replace('-', '')}-{os.urandom(4).hex()}"


def make_session_folder(folder: Path) -> None:
    """Create a session's folder; the default folder around it ignores itself in git.

    Raises:
        OSError: if that is not possible.
        RecordError: if the file that git reads cannot be written.

    """
    folder.mkdir(parents=True, exist_ok=True)
    ignoring = folder.parent / ".gitignore"
    # A folder that somebody has named may hold what somebody wants to keep. Also a link that leads
    # nowhere is there: writing would follow it.
    if folder.parent.name == RECORDS_FOLDER and not os.path.lexists(ignoring):
        write_text(ignoring, _IGNORED)


LONGEST_NAME = 64

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9_-])?", re.ASCII)
_DEVICE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*", re.ASCII)
_CELL_FILE = re.compile(r"[A-Za-z0-9._-]*-[0-9a-f]{8}\.jsonl", re.ASCII)


def is_name(text: str) -> bool:
    """Whether a text is a valid baseline name."""
    return len(text) <= LONGEST_NAME and ".." not in text and _NAME.fullmatch(text) is not None


def check_name(name: str) -> None:
    """Refuse an invalid baseline name.

    Raises:
        BadInput: with the rule.

    """
    if not is_name(name):
        raise BadInput(
            f"{name!r} cannot name a baseline: take 1 to {LONGEST_NAME} of A-Z a-z 0-9 . _ - that "
            "begin with a letter or digit, do not end with a dot, and have no two dots in a row"
        )


def is_device(text: str) -> bool:
    """Whether a text is a valid device folder."""
    return len(text) <= LONGEST_NAME and _DEVICE.fullmatch(text) is not None


def check_device(device: str) -> None:
    """Refuse an invalid device folder; ``nvidia-h200`` is a valid one.

    Raises:
        BadInput: with the rule.

    """
    if not is_device(device):
        raise BadInput(
            f"{device!r} is not the folder of a device: those are lower-case words and numbers "
            "with dashes between them, such as nvidia-h200"
        )


def check_case(name: str, present: Iterable[str]) -> None:
    """Refuse a name that differs from an existing one only in case.

    Raises:
        RecordError: naming the other; on some file systems the two would be one folder.

    """
    for other in present:
        if other != name and other.casefold() == name.casefold():
            raise RecordError(
                f"{name!r} and {other!r}, which is there already, are the same name on file "
                f"systems that do not tell capital letters apart: write {other!r} or take another"
            )


def device_folder(hard: Mapping[str, Value]) -> str:
    """Return the folder of a device's model: ``nvidia-h200``, ``sim-h200``.

    Args:
        hard: the hard fields of the device's fingerprint.

    Raises:
        RecordError: if they do not name the model.

    """
    if capabilities_of(str(hard.get("device_kind"))).simulated:
        # sim:h200, or sim: and a profile's path, of which only the file's name says anything.
        label = str(hard.get("profile", "")).removeprefix("sim:")
        model = f"sim-{PurePosixPath(label).name.removesuffix('.yaml')}" if label else ""
    else:
        model = str(hard.get("device_name") or "")
    folder = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[:LONGEST_NAME].strip("-")
    if not folder:
        raise RecordError(
            "the record's fingerprint does not name the device's model, so there is no telling "
            "which baselines are its; `missing` in the record says why it could not be read"
        )
    return folder


def file_name(cell_id: str) -> str:
    """Return the file name of a cell's record: readable, safe on every file system, and unique."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "_", cell_id).strip("_.")[:120]
    return f"{readable}-{sha256(cell_id.encode()).hexdigest()[:8]}.json"


def record_path(folder: Path, record_id: str) -> Path:
    """Return a path that no record has yet: what is measured again in one session keeps both."""
    return unused(lambda number: folder / file_name(f"{record_id}{number}"), "#")


def unused(path_of: Callable[[str], Path], mark: str) -> Path:
    """Return the first path without a file: ``path_of("")``, ``path_of(f"{mark}2")`` and so on."""
    paths = (path_of(f"{mark}{number}" if number > 1 else "") for number in itertools.count(1))
    return next(path for path in paths if not path.exists())


def cell_file_name(cell_id: str) -> str:
    """Return the file name of a cell in a baseline."""
    return f"{file_name(cell_id).removesuffix('.json')}.jsonl"


def is_cell_file_name(name: str) -> bool:
    """Whether this is a valid file name of a cell."""
    return _CELL_FILE.fullmatch(name) is not None


TRACED = "traced"
"""The folder, below that of a session's records, of those of its traced windows."""
TRACED_AGAIN = "traced_again"
"""Likewise, of windows for causes alone where goals have judged others."""
