"""Names of baselines, devices' folders and cells' files: readable, and safe on any file system.

Options are checked with these, so nothing heavy is imported here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from pytest_hwqueue.devices.kinds import capabilities_of
from pytest_hwqueue.errors import BaselineError

if TYPE_CHECKING:
    from pytest_hwqueue.devices.fingerprint import Value

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
        BaselineError: with the rule.

    """
    if not is_name(name):
        raise BaselineError(
            f"{name!r} cannot name a baseline: take 1 to {LONGEST_NAME} of A-Z a-z 0-9 . _ - that "
            "begin with a letter or digit, do not end with a dot, and have no two dots in a row"
        )


def is_device(text: str) -> bool:
    """Whether a text is a valid device folder."""
    return len(text) <= LONGEST_NAME and _DEVICE.fullmatch(text) is not None


def check_device(device: str) -> None:
    """Refuse an invalid device folder; ``nvidia-h200`` is a valid one.

    Raises:
        BaselineError: with the rule.

    """
    if not is_device(device):
        raise BaselineError(
            f"{device!r} is not the folder of a device: those are lower-case words and numbers "
            "with dashes between them, such as nvidia-h200"
        )


def check_case(name: str, present: Iterable[str]) -> None:
    """Refuse a name that differs from an existing one only in case.

    Raises:
        BaselineError: naming the other; on some file systems the two would be one folder.

    """
    for other in present:
        if other != name and other.casefold() == name.casefold():
            raise BaselineError(
                f"{name!r} and {other!r}, which is there already, are the same name on file "
                f"systems that do not tell capital letters apart: write {other!r} or take another"
            )


def device_folder(hard: Mapping[str, Value]) -> str:
    """Return the folder of a device's model: ``nvidia-h200``, ``sim-h200``.

    Args:
        hard: the hard fields of the device's fingerprint.

    Raises:
        BaselineError: if they do not name the model.

    """
    if capabilities_of(str(hard.get("device_kind"))).simulated:
        # sim:h200, or sim: and a profile's path, of which only the file's name says anything.
        label = str(hard.get("profile", "")).removeprefix("sim:")
        model = f"sim-{PurePosixPath(label).name.removesuffix('.yaml')}" if label else ""
    else:
        model = str(hard.get("device_name") or "")
    folder = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[:LONGEST_NAME].strip("-")
    if not folder:
        raise BaselineError(
            "the record's fingerprint does not name the device's model, so there is no telling "
            "which baselines are its; `missing` in the record says why it could not be read"
        )
    return folder


def file_name(cell_id: str) -> str:
    """Return the file name of a cell's record: readable, safe on every file system, and unique."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "_", cell_id).strip("_.")[:120]
    return f"{readable}-{sha256(cell_id.encode()).hexdigest()[:8]}.json"


def cell_file_name(cell_id: str) -> str:
    """Return the file name of a cell in a baseline."""
    return f"{file_name(cell_id).removesuffix('.json')}.jsonl"


def is_cell_file_name(name: str) -> bool:
    """Whether this is a valid file name of a cell."""
    return _CELL_FILE.fullmatch(name) is not None
