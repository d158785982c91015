"""Files are written whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_hwqueue.records.files import write_text


def test_ctrl_c_leaves_what_was_there_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "record.json"
    write_text(file, "before")

    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_text(file, "after")
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]
