"""Baselines that come with the plugin: found behind the project's own, and never written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_hwqueue.baselines.folders import packaged_folder
from pytest_hwqueue.baselines.store import Store
from pytest_hwqueue.errors import BaselineError, NoBaseline
from pytest_hwqueue.records.cell import RunRecord

MakeRecord = Callable[..., RunRecord]
H200 = "nvidia-h200"


@pytest.fixture
def packaged(tmp_path: Path, make_record: MakeRecord) -> Path:
    folder = tmp_path / "packaged"
    Store(folder).add("reference", make_record("a"), "shipped")
    return folder


def test_a_packaged_baseline_is_found_behind_the_projects_own(
    tmp_path: Path, packaged: Path, make_record: MakeRecord
) -> None:
    store = Store(tmp_path / "own", packaged)
    assert store.devices() == [H200]
    assert store.names(H200) == ["reference"]
    (cell,) = store.read("reference", H200).cells.values()
    assert cell.runs[0].session == "shipped"
    assert store.anchor("reference", H200).cells == store.read("reference", H200).cells
    assert store.history("reference", H200) == []

    store.add("reference", make_record("b"), "mine")
    (cell,) = store.read("reference", H200).cells.values()
    assert cell.runs[0].session == "mine"
    # What came with the plugin is as it was.
    (cell,) = Store(packaged).read("reference", H200).cells.values()
    assert cell.runs[0].session == "shipped"


def test_a_packaged_baseline_is_not_changed(tmp_path: Path, packaged: Path) -> None:
    store = Store(tmp_path / "own", packaged)
    with pytest.raises(BaselineError, match="comes with the plugin and is only read"):
        store.prune("reference", H200, 1)


def test_a_store_without_a_packaged_folder_has_only_its_own(tmp_path: Path, packaged: Path) -> None:
    with pytest.raises(NoBaseline):
        Store(tmp_path / "own").read("reference", H200)


def test_packaged_baselines_lie_in_the_installation_or_beside_the_clone(tmp_path: Path) -> None:
    package = tmp_path / "pytest_hwqueue"
    package.mkdir()
    assert packaged_folder(package) is None
    beside = tmp_path / "baselines"
    beside.mkdir()
    # Some other project's, beside an installed package.
    assert packaged_folder(package) is None
    (tmp_path / "pyproject.toml").touch()
    assert packaged_folder(package) == beside
    inside = package / "stored_baselines"
    inside.mkdir()
    assert packaged_folder(package) == inside
