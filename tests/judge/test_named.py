"""Names of baselines by device, and what is said where nothing can be judged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_hwqueue.data.errors import RecordError
from pytest_hwqueue.data.records.cell import Cell, RunRecord
from pytest_hwqueue.judge.baselines.runs import cell_of_record
from pytest_hwqueue.judge.baselines.sources import Source, load_source
from pytest_hwqueue.judge.baselines.store import Store
from pytest_hwqueue.judge.stored import (
    load_named,
    may_be,
    nothing_in_common,
    why_unjudged,
)

MakeRecord = Callable[..., RunRecord]


@pytest.fixture(name="store")
def _store(tmp_path: Path, make_record: MakeRecord) -> Store:
    """The baseline main of two devices, and other of one."""
    store = Store(tmp_path / "baselines")
    store.add("main", make_record(), "s")
    store.add("main", make_record(hard={"device_name": "AMD Instinct MI300X"}), "s")
    store.add("other", make_record(hard={"device_name": "AMD Instinct MI300X"}), "s")
    return store


def test_a_name_is_looked_up_in_the_measured_devices_folder(store: Store) -> None:
    named = load_named("main", store)
    source = named.of("nvidia-h200")
    assert source is not None
    assert source.label == "nvidia-h200/main"
    other = load_named("other", store)
    assert other.of("nvidia-h200") is None
    assert "only amd-instinct-mi300x/other" in other.missing_for(["nvidia-h200"])
    assert load_named("amd-instinct-mi300x/other", store).of("nvidia-h200") is not None
    with pytest.raises(RecordError, match="neither a baseline nor a file"):
        load_named("nothing", store)


def test_two_sources_are_of_one_device(store: Store, make_record: MakeRecord) -> None:
    cell = cell_of_record(make_record(), "s")
    new = Source("new.json", "session", {cell.header.cell.id: cell})
    assert load_source("main", store, of=new).label == "nvidia-h200/main"
    with pytest.raises(RecordError, match="no baseline 'other' of nvidia-h200, on which new"):
        load_source("other", store, of=new)
    with pytest.raises(RecordError, match="of several devices"):
        load_source("main", store)


def cell(**parts: object) -> Cell:
    given: dict[str, object] = {
        "name": "a", "device": "cuda", "streams": 8, "scheduler": "native", "dispatch": "eager",
        "sync_mode": "per_iteration", "size": "full",
    }  # fmt: skip
    return Cell.model_validate({**given, **parts})


def test_what_differs_is_named() -> None:
    text = nothing_in_common(
        "h200/main", [cell(), cell(streams=32)], [cell(streams=4, dispatch="graph")]
    )
    assert "h200/main holds 2 cells: a[cuda-s8-native-eager], a[cuda-s32-native-eager]" in text
    assert "measured: 1 cell: a[cuda-s4-native-graph]" in text
    assert text.endswith(
        "what differs: streams is 8 or 32 in the baseline and 4 here; dispatch is eager in the "
        "baseline and graph here"
    )
    crossed = nothing_in_common("b", [cell(), cell(name="b", streams=1)], [cell(streams=1)])
    assert crossed.endswith("no cell has the same combination of them")


def test_what_is_planned_is_matched_by_what_is_known() -> None:
    assert may_be({"name": "a", "device": "cuda", "streams": 8, "scheduler": "native"}, cell())
    assert may_be({"device": "cuda"}, cell())
    assert not may_be({"name": "a", "device": "cuda", "streams": 4}, cell())
    assert not may_be({"name": "b", "device": "cuda"}, cell())
    text = nothing_in_common("h200/main", [cell()], [{"device": "cpu", "dispatch": "eager"}])
    assert text.startswith("h200/main holds 1 cell: a[cuda-s8-native-eager]\nwhat differs: ")
    assert text.endswith("what differs: device is cuda in the baseline and cpu here")


def test_why_nothing_was_judged(store: Store) -> None:
    named = load_named("main", store)
    assert why_unjudged(named, (), [], []) == ("no test has measured anything that can be compared")
    other = cell(name="hetero_kernels", streams=2)
    for device, said in (
        ("nvidia-h200", "streams is 8 in the baseline and 2 here"),
        ("nvidia-b200", "there is no baseline 'main' of nvidia-b200"),
    ):
        assert said in why_unjudged(named, (), [device], [other])
    assert why_unjudged("main", (), [], [other]) == "there is no baseline 'main' yet"
