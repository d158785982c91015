"""Stand-ins on PATH, and a folder that lies on a disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_hwqueue.noise import programs as noise_programs
from pytest_hwqueue.noise.disk import LEAST_SIZE_BYTES, Disk
from pytest_hwqueue.noise.opening import NoisePlaces

from .programs import write_stand_ins


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put stand-ins first on PATH; return their folder."""
    folder = tmp_path / "stand-ins"
    write_stand_ins(folder)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    noise_programs.version.cache_clear()
    return folder


@pytest.fixture
def places(tmp_path: Path) -> NoisePlaces:
    """A folder for fio's files, on a disk."""
    folder = tmp_path / "disk"
    folder.mkdir()
    reason = Disk(folder, LEAST_SIZE_BYTES).unavailable()
    if reason is not None and "in memory" in reason:
        pytest.skip(reason)
    return NoisePlaces(folder, LEAST_SIZE_BYTES, descriptions=(tmp_path / "described",))
