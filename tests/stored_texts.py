"""Texts compared whole with files in ``snapshots/`` beside their tests.

Where a change is meant, ``UPDATE_SNAPSHOTS=1 pytest tests/answers tests/judge`` writes them
anew; ``git diff`` shows what readers will see.
"""

from __future__ import annotations

import os
from pathlib import Path


def assert_as_stored(test_file: str, name: str, text: str) -> None:
    """Compare a text with its file; blanks at the ends of lines do not count."""
    path = Path(test_file).parent / "snapshots" / name
    text = "\n".join(line.rstrip() for line in text.rstrip().split("\n")) + "\n"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
