"""Sources of runs, and every difference between two of them named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pytest_hwqueue.data.errors import RecordError
from pytest_hwqueue.data.records.cell import RunRecord, SessionInfo, now, session_text, write_record
from pytest_hwqueue.data.records.conditions import PRECISION, SETTING_FIELDS, VERSION_FIELDS
from pytest_hwqueue.data.records.declared import PACE
from pytest_hwqueue.data.records.fingerprint import Value
from pytest_hwqueue.data.records.stored import SessionFiles
from pytest_hwqueue.judge.baselines.runs import (
    CellBaseline,
    FieldDifference,
    condition_differences,
    soft_differences,
)
from pytest_hwqueue.judge.baselines.sources import Source, UnmatchedCell, load_source, source_of
from pytest_hwqueue.judge.baselines.store import Store
from tests.conftest import make_record
from tests.judge.baselines.run_with import contention, with_samples

H200 = "nvidia-h200"
INFO = SessionInfo(id="the-session", started=now(), command="pytest", version="0", settings={})
SIMULATED: dict[str, Value] = {"device_kind": "sim", "profile": "sim:h200"}


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
        ("soft", "cuda_runtime_version", "soft", None, "13.0"),
        ("soft", "hip_runtime_version", "soft", None, "7"),
        ("soft", "application_clock_sm_mhz", "soft", None, 1500),
        ("soft", "cudnn_version", "soft", None, 91002),
        ("soft", "application_clock_memory_mhz", "soft", None, 1500),
        ("soft", "performance_level", "soft", None, "high"),
        ("soft", "power_limit_w", "environment", 700.0, 500.0),
        ("soft", "driver_version", "soft", "580.1", "580.2"),
        ("soft", "host_name", "soft", "first", "second"),
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


def test_of_a_table_only_fields_that_differ_are_named() -> None:
    def served(**changed: object) -> CellBaseline:
        server = {"url": "http://a/", "timeout_s": 10.0, "client": {"lead_s": 1}, **changed}
        return cell_of(
            make_record(parts={"parameters": {"chat.server": server, "low.server": None}})
        )

    plain = served()
    other = served(url="http://b/", timeout_s=10, client={"lead_s": 2, "format": "aiperf"})
    assert differences(plain, served()) == ()
    assert [(each.field, each.a, each.b) for each in differences(plain, other)] == [
        ("parameter.chat.server.client.format", (None,), ("aiperf",)),
        ("parameter.chat.server.client.lead_s", (1,), (2,)),
        ("parameter.chat.server.timeout_s", (10.0,), (10,)),
        ("parameter.chat.server.url", ("http://a/",), ("http://b/",)),
    ]
    # A table in place of none is one difference, and so is none in place of one.
    (found,) = differences(plain, served(client=None))
    assert (found.field, found.b) == ("parameter.chat.server.client", (None,))


def test_what_one_side_did_not_record_is_reported_as_no_difference() -> None:
    old, new = cell_of(make_record()), cell_of(make_record(soft={"a_later_field": 1}))
    assert differences(old, new) == differences(new, old) == ()


def paced(record: RunRecord) -> RunRecord:
    assert record.samples is not None
    changed = with_samples(record, host_ns=[], pace_ns=record.samples.host_ns)
    return changed.model_copy(update={"primary": PACE})


@pytest.mark.parametrize("name", ["cpu_governor", "nccl_version"])
def test_a_run_that_lacks_a_field_differs_in_it_from_no_other(name: str) -> None:
    def runs(*values: str | None) -> CellBaseline:
        fields = [{} if value is None else {name: value} for value in values]
        return cell_of(*(make_record(seed=n, soft={**each}) for n, each in enumerate(fields)))

    assert differences(runs("x", None), runs("x")) == differences(runs("x"), runs("x", None)) == ()


@pytest.mark.parametrize(
    "name",
    [
        *PRECISION, "default_dtype", "reduced_precision", "preload", "tracers", "mps_client",
        "module_loading",
    ],
)  # fmt: skip
def test_what_a_process_computes_in_and_has_loaded_is_identity(name: str) -> None:
    one, other = (cell_of(make_record(hard={name: value})) for value in ("x", "y"))
    (found,) = differences(one, other)
    assert (found.field, found.kind) == (name, "identity")
    (found,) = differences(one, cell_of(make_record()))
    assert (found.field, found.kind) == (name, "identity")


@pytest.mark.parametrize("name", [*SETTING_FIELDS, *VERSION_FIELDS, "compute_mode", "ecc_mode"])
def test_settings_and_versions_are_the_environment(name: str) -> None:
    one, other = (cell_of(make_record(soft={name: value})) for value in ("x", "y"))
    (found,) = differences(one, other)
    assert (found.field, found.kind) == (name, "environment")


def test_samples_of_another_kind_and_simulated_ones_do_not_compare() -> None:
    record = make_record()
    for other, fields in (
        (paced(record), ["sample.latency", "sample.primary"]),
        (with_samples(record, tags_timed_by="activity"), ["sample.tags"]),
        (with_samples(record, contended=contention()), ["sample.contended"]),
        (make_record(hard=SIMULATED), ["device_kind", "profile"]),
    ):
        for pair in ((record, other), (other, record)):
            found = differences(*map(cell_of, pair))
            assert [each.field for each in found if each.kind == "identity"] == fields


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


class Sources:
    """A store and a session's file, of which runs are loaded."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder, self.path = tmp_path, tmp_path / "out.json"
        self.store = Store(tmp_path / "baselines")

    def write(self, *records: RunRecord) -> None:
        self.path.write_text(session_text(INFO, list(records), []), encoding="utf-8")

    def load(self, source: object = None, of: Source | None = None) -> Source:
        return load_source(str(self.path if source is None else source), self.store, of)

    def refuses(self, said: str, source: object = None, of: Source | None = None) -> None:
        with pytest.raises(RecordError, match=said):
            self.load(source, of)


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    return Sources(tmp_path)


def sessions(source: Source) -> list[list[str]]:
    return [[run.session for run in cell.runs] for cell in source.cells.values()]


def test_session_file_is_a_source_and_the_same_as_its_stored_baseline(sources: Sources) -> None:
    records = [make_record("two"), make_record("one"), make_record("one", 1)]
    failed = make_record("broken", status="failed", reason="out of memory")
    sources.write(*records, failed, make_record("two", status="skipped"))
    loaded = sources.load()
    assert (loaded.label, loaded.kind) == (str(sources.path), "session")
    assert [cell.split("[")[0] for cell in loaded.cells] == ["one", "two"]
    assert sessions(loaded) == [["the-session"] * 2, ["the-session"]]
    assert loaded.left_out == (
        UnmatchedCell("broken[cuda-s8-native-eager]", "failed: out of memory"),
        UnmatchedCell("two[cuda-s8-native-eager]", "skipped: "),
    )
    stored = sources.store.add_many("main", records, "the-session")[0]
    copy = sources.folder / "copied"
    shutil.copytree(stored.parent, copy)
    for name in ("main", f"{H200}/main", stored.parent, copy):
        baseline = sources.load(name)
        assert (baseline.kind, baseline.cells) == ("baseline", loaded.cells)
    assert sources.load("main").label == f"{H200}/main"
    (copy / stored.name).write_bytes(stored.read_bytes()[:-1])
    sources.refuses("damaged", copy)


def test_folder_of_records_is_a_source(sources: Sources) -> None:
    folder = sources.folder / "20260101T000000-7"
    folder.mkdir()
    sources.refuses("has neither records", folder)
    records = [make_record("one", 2), make_record("one", 1), make_record("two", 0)]
    paths = [write_record(folder, record) for record in records]
    (folder / "worker-1.log").write_text("noise", encoding="utf-8")
    loaded = sources.load(folder)
    assert loaded.kind == "records"
    when = [[run.when for run in cell.runs] for cell in loaded.cells.values()]
    assert when == [[records[each].started for each in cell] for cell in ((1, 0), (2,))]
    assert sessions(loaded) == [[folder.name] * 2, [folder.name]]
    whole = session_text(INFO, records, [])
    names = SessionFiles(session=INFO, files=[path.name for path in paths])
    for text in (whole, names.model_dump_json(by_alias=True)):
        (folder / "session.json").write_text(text, encoding="utf-8")
        for found in (sources.load(folder), sources.load(folder / "session.json")):
            assert sessions(found) == [["the-session"] * 2, ["the-session"]]
    paths[-1].write_bytes(paths[-1].read_bytes()[:100])
    sources.refuses(paths[-1].name, folder)


def test_name_of_several_devices_must_tell_which_unless_the_other_side_does(
    sources: Sources,
) -> None:
    records = [make_record(), make_record(hard=SIMULATED)]
    sources.store.add_many("main", records, "s")
    sources.store.add("mine", records[0], "s")
    sources.refuses("write nvidia-h200/main or sim-h200/main", "main")
    sources.write(records[1])
    simulated = sources.load()
    for found in (sources.load("sim-h200/main"), sources.load("main", simulated)):
        assert found.label == "sim-h200/main"
    sources.refuses(r"no baseline 'mine' of sim-h200.*out\.json", "mine", simulated)
    assert sources.load("nvidia-h200/mine", simulated).label == "nvidia-h200/mine"


def test_what_is_nowhere_is_refused_and_a_baseline_goes_before_a_path_of_its_name(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources.refuses(r"'mian' is neither .*; there are none in .*; files of sessions", "mian")
    monkeypatch.chdir(sources.folder)
    sources.write(make_record("from_file"))
    sources.path.rename("main")
    assert sources.load("main").kind == "session"
    sources.store.add("main", make_record(), "s")
    assert sources.load("main").kind == "baseline"
    assert sources.load("./main").kind == "session"
    for text in ("mian", "sim-h200/main", "no/such/path.json", ""):
        sources.refuses(rf"is neither .*there are {H200}/main in .*; files of", text)


def test_file_that_is_no_session_is_refused_by_place_and_field(sources: Sources) -> None:
    for content in (b"", b"\xff\x00", b'{"machine_info": {}, "benchmarks": []}'):
        sources.path.write_bytes(content)
        sources.refuses(r"out\.json.* is not a session file")
    sources.write()
    sources.refuses(r"out\.json holds no record")
    sources.write(make_record(), make_record(seed=1, hard={"driver_major": 570}))
    sources.refuses(r"out\.json: .*driver_major is 580 in one and 570")
    sources.write(make_record("a"), make_record("b", faults=["slow:1.2"]))
    assert [cell.faults for cell in sources.load().cells.values()] == [(), ("slow:1.2",)]
    session = json.loads(sources.path.read_text(encoding="utf-8"))
    record = session["records"][1]
    without = {name: value for name, value in record.items() if name != "setting"}
    for changed, said in (
        ({**record, "seed": "x"}, "seed"),
        ({**record, "setting": None}, "cell"),
        ({**record, "surprise": 1}, "surprise"),
        (without, "'setting' missing"),
    ):
        session["records"][1] = changed
        sources.path.write_text(json.dumps(session), encoding="utf-8")
        sources.refuses(rf"records\[1\] is not a record: {said}")
