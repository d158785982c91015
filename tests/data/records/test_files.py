"""Names and folders of files: nothing leaves its folder, and no two names are one."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_hwqueue.data.errors import BadInput, RecordError
from pytest_hwqueue.data.records.files import (
    RECORDS_FOLDER,
    cell_file_name,
    check_case,
    check_device,
    check_name,
    device_folder,
    file_name,
    is_cell_file_name,
    is_device,
    is_name,
    make_session_folder,
    session_name,
)
from pytest_hwqueue.data.safe_files import write_text

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=70)
BAD_NAMES = ["", ".", "..", "a..b", "../x", "a/b", "a\\b", "/etc", ".hidden", "-x", "a.", "a b",
             "a\n", "é", "a" * 65, "a\0", "C:", "~", "*"]  # fmt: skip
BAD_DEVICES = ["", "NVIDIA", "a--b", "a/b", "..", "a.b", "-a", "a-", "a" * 65]


def test_names() -> None:
    for name in ("main", "v1.2", "Before_fix-2", "a", "7", "a" * 64):
        check_name(name)
    for device in ("nvidia-h200", "sim-h200", "x"):
        check_device(device)
    for name in BAD_NAMES:
        with pytest.raises(BadInput, match="cannot name a baseline: take"):
            check_name(name)
    for device in BAD_DEVICES:
        with pytest.raises(BadInput, match="is not the folder of a device"):
            check_device(device)
    # Capital letters tell no names apart.
    check_case("main", ["main", "other"])
    with pytest.raises(RecordError, match="'Main' and 'main', which is there already"):
        check_case("Main", ["other", "main"])


@given(TEXT)
def test_every_name_stays_in_its_folder(name: str) -> None:
    if is_name(name):
        assert (Path("/root") / name).resolve().parent == Path("/root")
        assert name.isascii()
    if is_device(name):
        assert is_name(name)
        assert name == name.lower()


FOLDERS = {
    ("device_name", "cuda", "NVIDIA H200"): "nvidia-h200",
    ("device_name", "cuda", "NVIDIA H200 MIG 1g.18gb"): "nvidia-h200-mig-1g-18gb",
    ("device_name", "cpu", "Intel(R) Xeon(R) @ 2.10GHz"): "intel-r-xeon-r-2-10ghz",
    ("device_name", "hip", "x" * 70): "x" * 64,
    ("profile", "sim", "sim:h200"): "sim-h200",
    ("profile", "sim", "sim:/a/b/mine.yaml"): "sim-mine",
}


def test_folder_of_a_device() -> None:
    for (field, kind, model), folder in FOLDERS.items():
        assert device_folder({"device_kind": kind, field: model}) == folder
    for kind, model in (("cuda", ""), ("sim", "simulated X"), ("cpu", "中")):
        with pytest.raises(RecordError, match="does not name the device's model"):
            device_folder({"device_kind": kind, "device_name": model})
    with pytest.raises(RecordError, match="does not name the device's model"):
        device_folder({})


@given(TEXT)
def test_every_model_gives_a_folder_or_is_refused(model: str) -> None:
    try:
        folder = device_folder({"device_kind": "cuda", "device_name": model})
    except RecordError:
        assert not re.search("[a-z0-9]", model.lower())
        return
    check_device(folder)


@given(TEXT | st.sampled_from(["", "a" * 5000, "../../etc/passwd", "é" * 300, "CON"]), TEXT)
def test_files_of_cells_are_safe_and_distinct(one: str, other: str) -> None:
    name = file_name(one)
    assert re.fullmatch(r"[A-Za-z0-9._-]+\.json", name)
    assert not name.startswith((".", "_"))
    assert len(name) <= 143  # the shortest limit of a common file system (eCryptfs)
    assert cell_file_name(one) == f"{name}l"
    assert is_cell_file_name(f"{name}l")
    assert file_name(one) == name
    assume(one != other)
    assert file_name(other).lower() != name.lower()


def test_files_of_cells_can_be_read_by_people() -> None:
    assert file_name("hetero_kernels[cuda:1-s8]").startswith("hetero_kernels_cuda_1-s8-")
    for other in ("history.jsonl", "a.jsonl", "a-12345678.json", "é-12345678.jsonl"):
        assert not is_cell_file_name(other)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.parametrize("name", [RECORDS_FOLDER, "kept"])
def test_only_the_default_folder_of_records_ignores_itself(tmp_path: Path, name: str) -> None:
    make_session_folder(tmp_path / name / "20260101T000000-1")
    write_text(tmp_path / name / "20260101T000000-1" / "session.json", "{}")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    command = ["git", "status", "--porcelain", "--untracked-files=all"]
    status = subprocess.check_output(command, cwd=tmp_path, text=True)
    assert (name in status) == (name != RECORDS_FOLDER)


@pytest.mark.parametrize("leads_nowhere", [False, True])
def test_a_gitignore_that_is_there_stays(tmp_path: Path, leads_nowhere: bool) -> None:
    ignoring = tmp_path / RECORDS_FOLDER / ".gitignore"
    write_text(ignoring, "")
    if leads_nowhere:
        ignoring.unlink()
        ignoring.symlink_to(tmp_path / "elsewhere")
    make_session_folder(ignoring.parent / "20260101T000000-1")
    assert not (tmp_path / "elsewhere").exists()
    assert leads_nowhere or ignoring.read_text() == ""


def test_sessions_of_one_second_have_folders_of_their_own() -> None:
    names = {session_name("2026-01-02T03:04:05.678+00:00") for _ in range(20)}
    assert len(names) == 20
    assert {name.rpartition("-")[0] for name in names} == {"20260102T030405"}
