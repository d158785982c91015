"""Temporary folders are removed by what ends their process, or there is a reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest_hwqueue

_PACKAGE = Path(pytest_hwqueue.__file__).parent
_OF_COMMANDS = "of a command, which nothing stands above"
_REASONS = {
    "parts/processes/scratch.py": "makes those of measuring processes",
    "answers/fleet/cluster.py": _OF_COMMANDS,
    "answers/versions/scratch.py": "locked: the next comparison removes those of dead ones",
    "answers/versions/session.py": "in the session's own folder",
    "answers/versions/sides.py": "in the session's own folder",
    "plugin/worker/test_run.py": "in the session's own folder, where it stays",
}


def test_no_temporary_folder_is_left_by_who_may_be_killed() -> None:
    made = re.compile(r"\b(TemporaryDirectory|mkdtemp)\(")
    found = {
        str(path.relative_to(_PACKAGE))
        for path in _PACKAGE.rglob("*.py")
        if made.search(path.read_text(encoding="utf-8"))
    }
    assert found == _REASONS.keys(), "use scratch_folder or Order.folder, or give a reason here"
