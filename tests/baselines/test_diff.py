"""Sources of runs, and every difference between two of them named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pytest_hwqueue.baselines.runs import (
    CellBaseline,
    FieldDifference,
    condition_differences,
    soft_differences,
)
from pytest_hwqueue.baselines.sources import LeftOut, load_source, source_of
from pytest_hwqueue.baselines.store import Store
from pytest_hwqueue.devices.fingerprint import Value
from pytest_hwqueue.errors import BaselineError
from pytest_hwqueue.records.cell import RunRecord, SessionInfo, now, session_text, write_record
from pytest_hwqueue.records.files import file_name
from tests.baselines.run_with import with_samples
from tests.conftest import make_record

H200 = "nvidia-h200"
INFO = SessionInfo(id="the-session", started=now(), command="pytest", version="0", settings={})
SIMULATED: dict[str, Value] = {"device_kind": "sim", "profile": "sim:h200"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "baselines")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a session's file is written."""
    return tmp_path / "out.json"


def cell_of(*records: RunRecord) -> CellBaseline:
    (cell,) = source_of("a", "records", [("s", record) for record in records]).cells.values()
    return cell


def differences(a: CellBaseline, b: CellBaseline) -> tuple[FieldDifference, ...]:
    return condition_differences(a.header, b.header) + soft_differences(a, b)


@pytest.mark.parametrize(
    ("part", "name", "kind", "a", "b"),
    [
        ("hard", "device_name", "identity", "NVIDIA H200", "NVIDIA H100"),
        ("hard", "mig_slice", "identity", "none", "1g"),
        ("hard", "environment.CUDA_DEVICE_MAX_CONNECTIONS", "identity", "default", "32"),
        ("hard", "a_later_field", "identity", None, True),
        ("parameter", "later", "identity", None, [1, 2]),
        ("parameter", "mm_dim", "identity", 4096, 4096.0),
        ("cell", "size", "identity", "full", None),
        ("hard", "driver_major", "environment", 580, 570),
        ("soft", "torch_version", "environment", "2.13.0", "2.14"),
        ("soft", "cuda_runtime_version", "environment", None, "13.0"),
        ("soft", "hip_runtime_version", "environment", None, "7"),
        ("soft", "application_clock_sm_mhz", "environment", None, 1500),
        ("soft", "application_clock_memory_mhz", "environment", None, 1500),
        ("soft", "performance_level", "environment", None, "high"),
        ("soft", "power_limit_w", "environment", 700.0, 500.0),
        ("soft", "driver_version", "soft", "580.1", "580.2"),
        ("soft", "host_name", "soft", "first", "second"),
        ("soft", "kernel_release", "soft", None, "6"),
    ],
)
def test_difference_is_named_by_its_kind(
    part: str, name: str, kind: str, a: object, b: object
) -> None:
    changed: dict[str, Any] = {part: {name: b}}
    if part in ("cell", "parameter"):
        parameters = {"parameters": {"mm_dim": 4096, "shape": [1, 2], name: b}}
        changed = {"parts": {name: b} if part == "cell" else parameters}
    one, other = cell_of(make_record()), cell_of(make_record(seed=1, **changed))
    for first, second, values in ((one, other, (a, b)), (other, one, (b, a))):
        (found,) = differences(first, second)
        assert (found.kind, found.field) == (kind, name if part in changed else f"{part}.{name}")
        assert (*found.a, *found.b) == values


def test_samples_of_another_kind_and_simulated_ones_do_not_compare() -> None:
    record = make_record()
    for other, fields in (
        (with_samples(record, host_ns=[]), ["sample.latency"]),
        (with_samples(record, tags_timed_by="activity"), ["sample.tags"]),
        (make_record(hard=SIMULATED), ["device_kind", "profile"]),
    ):
        for pair in ((record, other), (other, record)):
            found = differences(*map(cell_of, pair))
            assert [(each.kind, each.field) for each in found] == [
                ("identity", field) for field in fields
            ]


def test_soft_values_of_all_runs_are_compared_as_sets() -> None:
    def runs(*hosts: str) -> CellBaseline:
        return cell_of(
            *(make_record(seed=n, soft={"host_name": each}) for n, each in enumerate(hosts))
        )

    assert differences(runs("x", "y", "x"), runs("y", "x")) == ()
    (other,) = differences(runs("x", "y", "x"), runs("z"))
    assert (other.a, other.b) == (("x", "y"), ("z",))
    assert str(other) == "host_name is x or y in one and z in the other"


# Sources


def write_session(path: Path, *records: RunRecord) -> None:
    path.write_text(session_text(INFO, list(records), []), encoding="utf-8")


def test_session_file_is_a_source_and_the_same_as_its_stored_baseline(
    store: Store, path: Path
) -> None:
    records = [make_record("two"), make_record("one"), make_record("one", 1)]
    failed = make_record("broken", status="failed", reason="out of memory")
    write_session(path, *records, failed, make_record("two", status="skipped"))
    loaded = load_source(str(path), store)
    assert (loaded.label, loaded.kind) == (str(path), "session")
    assert [cell.split("[")[0] for cell in loaded.cells] == ["one", "two"]
    runs = [[run.session for run in cell.runs] for cell in loaded.cells.values()]
    assert runs == [["the-session"] * 2, ["the-session"]]
    assert loaded.left_out == (
        LeftOut("broken[cuda-s8-native-eager]", "failed", "out of memory"),
        LeftOut("two[cuda-s8-native-eager]", "skipped", ""),
    )
    store.add_many("main", records, "the-session")
    for name in ("main", f"{H200}/main", str(store.root / H200 / "main")):
        stored = load_source(name, store)
        assert (stored.kind, stored.cells) == ("baseline", loaded.cells)
    assert load_source("main", store).label == f"{H200}/main"


def test_folder_of_records_is_a_source(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "20260101T000000-7"
    folder.mkdir()
    with pytest.raises(BaselineError, match="has neither records"):
        load_source(str(folder), store)
    records = [make_record("one", 2), make_record("one", 1), make_record("two", 0)]
    paths = [write_record(folder, record) for record in records]
    (folder / "worker-1.log").write_text("noise", encoding="utf-8")
    loaded = load_source(str(folder), store)
    one, two = loaded.cells.values()
    assert loaded.kind == "records"
    assert [run.when for run in one.runs] == [records[1].started, records[0].started]
    assert two.runs[0].session == folder.name
    write_session(folder / "session.json", *records)
    loaded = load_source(str(folder), store)
    assert next(iter(loaded.cells.values())).runs[0].session == "the-session"
    paths[-1].write_bytes(paths[-1].read_bytes()[:100])
    with pytest.raises(BaselineError, match=file_name(records[-1].cell.id)):
        load_source(str(folder), store)


def test_copied_folder_of_a_baseline_is_a_source_unless_damaged(
    store: Store, tmp_path: Path
) -> None:
    stored = store.add("main", make_record(), "s")
    copy = tmp_path / "copied"
    shutil.copytree(stored.parent, copy)
    assert load_source(str(copy), store).kind == "baseline"
    (copy / stored.name).write_bytes(stored.read_bytes()[:-1])
    with pytest.raises(BaselineError, match="damaged"):
        load_source(str(copy), store)


def test_name_of_several_devices_must_tell_which_unless_the_other_side_does(
    store: Store, path: Path
) -> None:
    records = [make_record(), make_record(hard=SIMULATED)]
    store.add_many("main", records, "s")
    store.add("mine", records[0], "s")
    with pytest.raises(BaselineError, match="write nvidia-h200/main or sim-h200/main"):
        load_source("main", store)
    write_session(path, records[1])
    simulated = load_source(str(path), store)
    for found in (load_source("sim-h200/main", store), load_source("main", store, simulated)):
        assert found.label == "sim-h200/main"
    with pytest.raises(BaselineError, match=r"no baseline 'mine' of sim-h200.*out\.json"):
        load_source("mine", store, simulated)
    assert load_source("nvidia-h200/mine", store, simulated).label == "nvidia-h200/mine"


def test_baseline_goes_before_a_path_of_its_name(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_session(tmp_path / "main", make_record("from_file"))
    assert load_source("main", store).kind == "session"
    store.add("main", make_record(), "s")
    assert load_source("main", store).kind == "baseline"
    assert load_source("./main", store).kind == "session"


def test_what_is_nowhere_is_refused_with_what_there_is(store: Store) -> None:
    with pytest.raises(BaselineError, match=r"'mian' is neither .*: none; files of sessions"):
        load_source("mian", store)
    store.add("main", make_record(), "s")
    for text in ("mian", "sim-h200/main", "no/such/path.json", ""):
        with pytest.raises(BaselineError, match=rf"is neither .*: {H200}/main; files of"):
            load_source(text, store)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not a session file"),
        (b"\xff\x00", "is not a session file"),
        (b'{"machine_info": {}, "benchmarks": []}', "is not a session file"),
        (session_text(INFO, [], []).encode(), "holds no record"),
    ],
    ids=["empty", "not text", "not ours", "no record"],
)
def test_file_that_is_no_session_is_refused(
    store: Store, path: Path, content: bytes, said: str
) -> None:
    path.write_bytes(content)
    with pytest.raises(BaselineError, match=rf"out\.json.* {said}"):
        load_source(str(path), store)


def test_records_of_a_session_are_refused_by_place_and_field(store: Store, path: Path) -> None:
    write_session(path, make_record(faults=["slow:1.2"]))
    (cell,) = load_source(str(path), store).cells.values()
    assert cell.faults == ("slow:1.2",)
    write_session(path, make_record(), make_record(seed=1, hard={"driver_major": 570}))
    with pytest.raises(BaselineError, match=r"out\.json: .*driver_major is 580 in one and 570"):
        load_source(str(path), store)
    session = json.loads(session_text(INFO, [make_record("a"), make_record("b")], []))
    record = session["records"][1]
    without = {name: value for name, value in record.items() if name != "setting"}
    for changed, said in (
        ({**record, "seed": "x"}, "seed"),
        ({**record, "setting": None}, "cell"),
        ({**record, "surprise": 1}, "surprise"),
        (without, "'setting' missing"),
    ):
        session["records"][1] = changed
        path.write_text(json.dumps(session), encoding="utf-8")
        with pytest.raises(BaselineError, match=rf"records\[1\] is not a record: {said}"):
            load_source(str(path), store)
