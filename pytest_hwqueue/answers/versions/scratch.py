"""A comparison's temporary folder: its worktrees, its virtual environments, and their end.

A comparison that is killed can remove nothing. The next one does: the kernel lets go of a dead
process's locks, so a folder whose lock is free belongs to nobody.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pytest_hwqueue.parts.processes.git import remove_worktree
from pytest_hwqueue.parts.processes.reaper import undisturbed

_PREFIX = "hwq-ab-"
_LOCK = "lock"


@contextmanager
def scratch_folder(say: Callable[[str], None]) -> Iterator[Path]:
    """Make a folder for the length of the ``with`` block; first remove what killed ones left.

    Args:
        say: receives a line for each folder that was left.

    """
    for left in _left_behind():
        say(f"removed {left}, which a killed comparison left")
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        held = os.open(folder / f"{_LOCK}-new", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            # Whoever finds the file finds it locked.
            os.rename(folder / f"{_LOCK}-new", folder / _LOCK)
            yield folder
        finally:
            os.close(held)
    finally:
        with undisturbed():
            shutil.rmtree(folder, ignore_errors=True)


def _left_behind() -> Iterator[Path]:
    """Remove and yield the folders of this user's comparisons that live no more."""
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*")):
        # Another one may remove it at the same time; one without a lock is just being made.
        with suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            held = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for link in folder.glob("*/.git"):
                    remove_worktree(link.parent)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(held)
            yield folder
