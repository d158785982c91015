"""Writes files atomically: whoever reads one finds all of it, or the one before.

Also creates the folders of sessions, of which git knows nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

from pytest_hwqueue.errors import RecordError

RECORDS_FOLDER = ".hwqueue"
"""Where sessions leave their records unless --hwq-dir names another folder."""
_IGNORED = "# Records of pytest-hwqueue. To keep some in git: git add --force\n*\n"


def make_session_folder(folder: Path) -> None:
    """Create a session's folder; the default folder around it ignores itself in git.

    Raises:
        OSError: if that is not possible.

    """
    folder.mkdir(parents=True, exist_ok=True)
    ignoring = folder.parent / ".gitignore"
    # A folder that somebody has named may hold what somebody wants to keep.
    if folder.parent.name == RECORDS_FOLDER and not ignoring.exists():
        ignoring.write_text(_IGNORED, encoding="utf-8")


def write_text(path: Path, text: str) -> None:
    """Write text as `write_bytes` does."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically: a temporary file next to it, then a rename.

    Raises:
        RecordError: naming the file and the operating system's reason.

    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except KeyboardInterrupt:
        # What was there before still is, and nothing else.
        temporary.unlink(missing_ok=True)
        raise
    except OSError as error:
        try:
            temporary.unlink(missing_ok=True)
        except OSError:
            # The folder itself is unusable; the first error says why.
            raise RecordError(f"cannot write {path}: {error.strerror or error}") from error
        raise RecordError(f"cannot write {path}: {error.strerror or error}") from error
