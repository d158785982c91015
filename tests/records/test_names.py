"""Names: nothing that leaves its folder, and no two that a file system takes for one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.devices.fingerprint import Value
from pytest_hwqueue.errors import BaselineError
from pytest_hwqueue.records.files import (
    cell_file_name,
    check_case,
    check_device,
    check_name,
    device_folder,
    is_cell_file_name,
    is_device,
    is_name,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=70)


@pytest.mark.parametrize("name", ["main", "v1.2", "Before_fix-2", "a", "7", "a" * 64])
def test_names(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a..b", "../x", "a/b", "a\\b", "/etc", ".hidden", "-x", "a.", "a b", "a\n", "é",
     "a" * 65, "a\0", "C:", "~", "*"],
)  # fmt: skip
def test_what_cannot_be_a_name(name: str) -> None:
    with pytest.raises(BaselineError, match="cannot name a baseline: take"):
        check_name(name)


@given(TEXT)
def test_every_name_stays_in_its_folder(name: str) -> None:
    if is_name(name):
        assert (Path("/root") / name).resolve().parent == Path("/root")
        assert name.isascii()
    if is_device(name):
        assert is_name(name)
        assert name == name.lower()


@pytest.mark.parametrize("device", ["nvidia-h200", "sim-h200", "x"])
def test_devices(device: str) -> None:
    check_device(device)


@pytest.mark.parametrize("device", ["", "NVIDIA", "a--b", "a/b", "..", "a.b", "-a", "a-", "a" * 65])
def test_what_cannot_be_a_device(device: str) -> None:
    with pytest.raises(BaselineError, match="is not the folder of a device"):
        check_device(device)


@pytest.mark.parametrize(
    ("hard", "folder"),
    [
        ({"device_kind": "cuda", "device_name": "NVIDIA H200"}, "nvidia-h200"),
        ({"device_kind": "cuda", "device_name": "NVIDIA H200 MIG 1g.18gb"},
         "nvidia-h200-mig-1g-18gb"),
        ({"device_kind": "hip", "device_name": "AMD Instinct MI300X"}, "amd-instinct-mi300x"),
        ({"device_kind": "cpu", "device_name": "Intel(R) Xeon(R) @ 2.10GHz"},
         "intel-r-xeon-r-2-10ghz"),
        ({"device_kind": "sim", "device_name": "simulated NVIDIA H200", "profile": "sim:h200"},
         "sim-h200"),
        ({"device_kind": "sim", "device_name": "simulated X", "profile": "sim:/a/b/mine.yaml"},
         "sim-mine"),
    ],
)  # fmt: skip
def test_folder_of_a_device(hard: dict[str, Value], folder: str) -> None:
    assert device_folder(hard) == folder


@pytest.mark.parametrize(
    "hard",
    [
        {},
        {"device_kind": "cuda"},
        {"device_kind": "sim"},
        {"device_kind": "cpu", "device_name": "中"},
    ],
)
def test_device_without_a_model_is_refused(hard: dict[str, Value]) -> None:
    with pytest.raises(BaselineError, match="does not name the device's model"):
        device_folder(hard)


@given(TEXT)
def test_every_model_gives_a_folder_or_is_refused(model: str) -> None:
    try:
        folder = device_folder({"device_kind": "cuda", "device_name": model})
    except BaselineError:
        assert not re.search("[a-z0-9]", model.lower())
        return
    check_device(folder)


def test_capital_letters_tell_no_names_apart() -> None:
    check_case("main", ["main", "other"])
    with pytest.raises(BaselineError, match="'Main' and 'main', which is there already"):
        check_case("Main", ["other", "main"])


@given(TEXT, TEXT)
def test_files_of_cells_are_safe_and_distinct(one: str, other: str) -> None:
    name = cell_file_name(one)
    assert is_cell_file_name(name)
    assert not name.startswith(".")
    if one != other:
        assert cell_file_name(other).lower() != name.lower()


def test_file_of_a_cell_can_be_read_by_people() -> None:
    name = cell_file_name("hetero_kernels[cuda-s8-native-eager]")
    assert name.startswith("hetero_kernels_cuda-s8-native-eager-")
    assert name.endswith(".jsonl")


@pytest.mark.parametrize(
    "name", ["history.jsonl", "a.jsonl", "a-12345678.json", "é-12345678.jsonl"]
)
def test_other_files_are_no_cells(name: str) -> None:
    assert not is_cell_file_name(name)
