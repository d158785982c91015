"""Folders of sessions: the default one is none of git's business."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pytest_hwqueue.records.files import RECORDS_FOLDER, make_session_folder, write_text
from pytest_hwqueue.settings.options import OPTIONS


def test_the_default_folder_is_the_options() -> None:
    (option,) = (option for option in OPTIONS if option.name == "dir")
    assert option.default == RECORDS_FOLDER


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.parametrize("name", [RECORDS_FOLDER, "kept"])
def test_only_the_default_folder_of_records_ignores_itself(tmp_path: Path, name: str) -> None:
    make_session_folder(tmp_path / name / "20260101T000000-1")
    write_text(tmp_path / name / "20260101T000000-1" / "session.json", "{}")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    status = subprocess.run(
        ["git", "status", "--porcelain", "--untracked-files=all"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (name in status.stdout) == (name != RECORDS_FOLDER)


def test_a_gitignore_that_is_there_stays(tmp_path: Path) -> None:
    folder = tmp_path / RECORDS_FOLDER
    write_text(folder / ".gitignore", "")
    make_session_folder(folder / "20260101T000000-1")
    assert (folder / ".gitignore").read_text() == ""


def test_a_gitignore_that_leads_nowhere_is_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / RECORDS_FOLDER
    folder.mkdir()
    (folder / ".gitignore").symlink_to(tmp_path / "elsewhere")
    make_session_folder(folder / "20260101T000000-1")
    assert not (tmp_path / "elsewhere").exists()
