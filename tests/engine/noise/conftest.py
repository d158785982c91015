"""Stand-ins on PATH, and a folder that lies on a disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_hwqueue.engine.noise import neighbours
from pytest_hwqueue.engine.noise.neighbours import NoisePlaces, open_noise

from .programs import write_stand_ins


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put stand-ins first on PATH; return their folder."""
    folder = tmp_path / "stand-ins"
    write_stand_ins(folder)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    neighbours._version.cache_clear()
    return folder


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NoisePlaces:
    """A folder for fio's files, which are small, on a disk."""
    monkeypatch.setattr(neighbours, "DISK_BYTES", 1 << 20)
    folder = tmp_path / "disk"
    folder.mkdir()
    given = NoisePlaces(folder, descriptions=(tmp_path / "described",))
    reason = open_noise("disk", given).unavailable()
    if reason is not None and "in memory" in reason:
        pytest.skip(reason)
    return given
