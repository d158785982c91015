"""Temporary folders that go even if the process that uses them is killed.

A process that is killed removes nothing. So what ends it makes one folder for it before it starts,
and removes that once all that it has started has ended, too: a guardian (`Order.folder`), or the
fork server. The process finds the folder's name in a variable.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

SCRATCH = "PYTEST_HWQUEUE_SCRATCH"
"""Variable with the folder that goes with a measuring process."""


def new_scratch() -> Path:
    """Return the name of a folder that is still to be made, by whoever will remove it.

    Nobody can know it beforehand; it is short, since a unix socket in it has 107 bytes in all.
    """
    return Path(tempfile.gettempdir()) / f"hwq-{os.urandom(8).hex()}"


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """Make a folder that goes with its ``with`` block, or with the end of a measuring process."""
    return tempfile.TemporaryDirectory(prefix="hwq-", dir=os.environ.get(SCRATCH))
