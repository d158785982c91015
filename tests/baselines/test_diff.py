"""Sources of runs, and every difference between two of them named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_hwqueue.baselines.runs import (
    CellBaseline,
    FieldDifference,
    add_runs,
    cell_of_record,
    condition_differences,
    soft_differences,
)
from pytest_hwqueue.baselines.sources import LeftOut, Source, load_source
from pytest_hwqueue.baselines.store import Store
from pytest_hwqueue.errors import BaselineError
from pytest_hwqueue.records.cell import (
    RunRecord,
    SessionInfo,
    now,
    session_text,
    write_record,
)
from pytest_hwqueue.records.files import file_name

MakeRecord = Callable[..., RunRecord]
H200 = "nvidia-h200"
INFO = SessionInfo(id="the-session", started=now(), command="pytest", version="0", settings={})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "baselines")


def source(label: str, *records: RunRecord) -> Source:
    cells: dict[str, CellBaseline] = {}
    for record in records:
        new = cell_of_record(record, label)
        cell_id = record.cell.id
        cells[cell_id] = add_runs(cells[cell_id], new) if cell_id in cells else new
    return Source(label, "records", cells)


def differences(a: Source, b: Source) -> tuple[FieldDifference, ...]:
    """How the only cell of two sources differs."""
    ((one,), (other,)) = (list(each.cells.values()) for each in (a, b))
    return condition_differences(one.header, other.header) + soft_differences(one, other)


def names(found: tuple[FieldDifference, ...]) -> list[tuple[str, str]]:
    return [(each.kind, each.field) for each in found]


@pytest.mark.parametrize(
    ("changed", "kind", "field", "a", "b"),
    [
        ({"hard": {"device_name": "NVIDIA H100"}}, "identity", "device_name", "NVIDIA H200",
         "NVIDIA H100"),
        ({"hard": {"mig_slice": "1g"}}, "identity", "mig_slice", "none", "1g"),
        ({"hard": {"environment.CUDA_DEVICE_MAX_CONNECTIONS": "32"}}, "identity",
         "environment.CUDA_DEVICE_MAX_CONNECTIONS", "default", "32"),
        ({"hard": {"a_later_field": True}}, "identity", "a_later_field", None, True),
        ({"parts": {"parameters": {"mm_dim": 4096}}}, "identity", "parameter.shape", [1, 2], None),
        ({"parts": {"parameters": {"mm_dim": 4096.0, "shape": [1, 2]}}}, "identity",
         "parameter.mm_dim", 4096, 4096.0),
        ({"parts": {"size": None}}, "identity", "cell.size", "full", None),
        ({"hard": {"driver_major": 570}}, "environment", "driver_major", 580, 570),
        ({"soft": {"torch_version": "2.14"}}, "environment", "torch_version", "2.13.0", "2.14"),
        ({"soft": {"cuda_runtime_version": "13.0"}}, "environment", "cuda_runtime_version", None,
         "13.0"),
        ({"soft": {"application_clock_sm_mhz": 1500}}, "environment", "application_clock_sm_mhz",
         None, 1500),
        ({"soft": {"power_limit_w": 500.0}}, "environment", "power_limit_w", 700.0, 500.0),
        ({"soft": {"driver_version": "580.2"}}, "soft", "driver_version", "580.1", "580.2"),
        ({"soft": {"host_name": "second"}}, "soft", "host_name", "first", "second"),
        ({"soft": {"kernel_release": "6"}}, "soft", "kernel_release", None, "6"),
    ],
)  # fmt: skip
def test_difference_is_named_by_its_kind(
    make_record: MakeRecord, changed: dict[str, Any], kind: str, field: str, a: object, b: object
) -> None:
    one, other = source("a", make_record()), source("b", make_record(seed=1, **changed))
    (difference,) = differences(one, other)
    assert (difference.kind, difference.field) == (kind, field)
    assert (difference.a, difference.b) == ((a,), (b,))


def test_samples_of_another_kind_do_not_compare(make_record: MakeRecord) -> None:
    record = make_record()
    assert record.samples is not None
    for update, field in (
        ({"host_ns": []}, "sample.latency"),
        ({"tags_timed_by": "activity"}, "sample.tags"),
    ):
        samples = record.samples.model_copy(update=update)
        other = source("b", record.model_copy(update={"samples": samples}))
        assert names(differences(source("a", record), other)) == [("identity", field)]


def test_simulated_never_compares_with_measured(make_record: MakeRecord) -> None:
    simulated = make_record(hard={"device_kind": "sim", "profile": "sim:h200"})
    for a, b in ((make_record(), simulated), (simulated, make_record())):
        assert names(differences(source("a", a), source("b", b))) == [
            ("identity", "device_kind"),
            ("identity", "profile"),
        ]


def test_soft_values_of_all_runs_are_compared_as_sets(make_record: MakeRecord) -> None:
    def runs(label: str, *hosts: str) -> Source:
        return source(
            label,
            *(make_record(seed=n, soft={"host_name": host}) for n, host in enumerate(hosts)),
        )

    assert differences(runs("a", "x", "y", "x"), runs("b", "y", "x")) == ()
    other = differences(runs("a", "x", "y", "x"), runs("b", "z"))
    assert [(each.a, each.b) for each in other] == [(("x", "y"), ("z",))]


def test_difference_reads_as_a_sentence(make_record: MakeRecord) -> None:
    found = differences(
        source("a", make_record()), source("b", make_record(hard={"new": 1, "mig_slice": "1g"}))
    )
    assert [str(each) for each in found] == [
        "mig_slice is none in one and 1g in the other",
        "new is not known in one and 1 in the other",
    ]


# Sources


def write_session(path: Path, *records: RunRecord) -> None:
    path.write_text(session_text(INFO, list(records), []), encoding="utf-8")


def test_session_file_is_a_source(store: Store, tmp_path: Path, make_record: MakeRecord) -> None:
    path = tmp_path / "out.json"
    failed = make_record("broken", status="failed", reason="out of memory")
    skipped = make_record("two", status="skipped")
    write_session(
        path, make_record("two"), make_record("one"), make_record("one", 1), failed, skipped
    )
    loaded = load_source(str(path), store)
    assert (loaded.label, loaded.kind) == (str(path), "session")
    assert [cell.split("[")[0] for cell in loaded.cells] == ["one", "two"]
    one, two = loaded.cells.values()
    assert [run.session for run in one.runs] == ["the-session"] * 2
    assert (len(one.runs), len(two.runs)) == (2, 1)
    assert loaded.left_out == (
        LeftOut("broken[cuda-s8-native-eager]", "failed", "out of memory"),
        LeftOut("two[cuda-s8-native-eager]", "skipped", ""),
    )


def test_session_and_its_stored_baseline_are_the_same(
    store: Store, tmp_path: Path, make_record: MakeRecord
) -> None:
    records = [make_record("one"), make_record("two", 1), make_record("one", 2)]
    store.add_many("main", records, "the-session")
    path = tmp_path / "out.json"
    write_session(path, *records)
    for name in ("main", f"{H200}/main", str(store.root / H200 / "main")):
        stored = load_source(name, store)
        assert stored.kind == "baseline"
        assert stored.cells == load_source(str(path), store).cells
    assert load_source("main", store).label == f"{H200}/main"


def test_folder_of_records_is_a_source(
    store: Store, tmp_path: Path, make_record: MakeRecord
) -> None:
    folder = tmp_path / "20260101T000000-7"
    records = [make_record("one", 2), make_record("one", 1), make_record("two", 0)]
    for record in records:
        write_record(folder, record)
    (folder / "worker-1.log").write_text("noise", encoding="utf-8")
    loaded = load_source(str(folder), store)
    one, two = loaded.cells.values()
    assert loaded.kind == "records"
    assert [run.when for run in one.runs] == [records[1].started, records[0].started]
    assert two.runs[0].session == "20260101T000000-7"
    write_session(folder / "session.json", *records)
    loaded = load_source(str(folder), store)
    assert next(iter(loaded.cells.values())).runs[0].session == "the-session"


def test_record_with_faults_is_compared_and_says_so(
    store: Store, tmp_path: Path, make_record: MakeRecord
) -> None:
    path = tmp_path / "out.json"
    write_session(path, make_record(faults=["slow:1.2"]))
    (cell,) = load_source(str(path), store).cells.values()
    assert cell.faults == ("slow:1.2",)


def test_name_of_several_devices_must_tell_which(store: Store, make_record: MakeRecord) -> None:
    store.add("main", make_record(), "s")
    store.add("main", make_record(hard={"device_kind": "sim", "profile": "sim:h200"}), "s")
    with pytest.raises(BaselineError, match="write nvidia-h200/main or sim-h200/main"):
        load_source("main", store)
    assert load_source("sim-h200/main", store).label == "sim-h200/main"


def test_baseline_goes_before_a_path_of_its_name(
    store: Store, tmp_path: Path, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_session(tmp_path / "main", make_record("from_file"))
    assert load_source("main", store).kind == "session"
    store.add("main", make_record(), "s")
    assert load_source("main", store).kind == "baseline"
    assert load_source("./main", store).kind == "session"


def test_what_is_nowhere_is_refused_with_what_there_is(
    store: Store, make_record: MakeRecord
) -> None:
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
    store: Store, tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "out.json"
    path.write_bytes(content)
    with pytest.raises(BaselineError, match=said) as refused:
        load_source(str(path), store)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("seed", "x", r"records\[1\] is not a record: seed"),
        ("setting", None, r"records\[1\] is not a record: cell"),
        ("surprise", 1, r"records\[1\] is not a record: surprise"),
    ],
)
def test_damaged_record_of_a_session_is_named(
    store: Store, tmp_path: Path, make_record: MakeRecord, field: str, value: object, said: str
) -> None:
    path = tmp_path / "out.json"
    session = json.loads(session_text(INFO, [make_record("a"), make_record("b")], []))
    session["records"][1][field] = value
    path.write_text(json.dumps(session), encoding="utf-8")
    with pytest.raises(BaselineError, match=said):
        load_source(str(path), store)
    del session["records"][1]["setting"]
    path.write_text(json.dumps(session), encoding="utf-8")
    with pytest.raises(BaselineError, match=r"records\[1\] is not a record: 'setting' missing"):
        load_source(str(path), store)


def test_runs_of_one_cell_under_two_conditions_are_refused(
    store: Store, tmp_path: Path, make_record: MakeRecord
) -> None:
    path = tmp_path / "out.json"
    write_session(path, make_record(), make_record(seed=1, hard={"driver_major": 570}))
    with pytest.raises(BaselineError, match="driver_major is 580 in one and 570") as refused:
        load_source(str(path), store)
    assert str(path) in str(refused.value)


def test_damaged_folders_are_refused(store: Store, tmp_path: Path, make_record: MakeRecord) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    with pytest.raises(BaselineError, match="has neither records"):
        load_source(str(folder), store)
    path = write_record(folder, make_record())
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(BaselineError, match=file_name(make_record().cell.id)):
        load_source(str(folder), store)
    stored = store.add("main", make_record(), "s")
    copy = tmp_path / "copied"
    shutil.copytree(stored.parent, copy)
    assert load_source(str(copy), store).kind == "baseline"
    (copy / stored.name).write_bytes(stored.read_bytes()[:-1])
    with pytest.raises(BaselineError, match="damaged"):
        load_source(str(copy), store)
