"""Files that nobody reads half of, and that no link leads elsewhere.

A folder may be shared: whoever can write to it can leave a link of a name that is known beforehand,
and what is written there would replace a file of the user's. So all that the package writes goes
through here; tests/data/test_safe_files.py has the exceptions, with reasons.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from pytest_hwqueue.data.errors import files, in_utf8

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_text(path: Path, text: str) -> None:
    """Write text in UTF-8 as `write_bytes` does; see `errors.in_utf8`."""
    write_bytes(path, in_utf8(text).encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically: a temporary file next to it, then a rename.

    Nobody can know the temporary file's name beforehand, and no link of that name is followed.

    Raises:
        RecordError: naming the file and the operating system's reason.

    """
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    with files("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(temporary, _NEW, 0o666)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except (KeyboardInterrupt, OSError):
            # What was there before still is, and nothing else. If this fails, the folder itself is
            # unusable; the first error says why.
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def open_output(path: Path) -> BinaryIO:
    """Open a new, empty file for a program's output, in place of what has its name.

    Raises:
        OSError: if that is not possible.

    """
    with suppress(FileNotFoundError):
        path.unlink()
    return os.fdopen(os.open(path, _NEW, 0o666), "wb")


def refuse_special(file: Path) -> None:
    """Raise ValueError for what is there and no regular file: a pipe would be waited for."""
    if file.exists() and not file.is_file():
        raise ValueError("it is no regular file")
