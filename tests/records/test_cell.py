"""Records: what is written is read again to the bit, and a damaged file never passes for one."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from pytest_hwqueue.errors import RecordError
from pytest_hwqueue.metrics.latency import summarise_latency
from pytest_hwqueue.metrics.scaling import ScalingPoint, scaling
from pytest_hwqueue.plugin.session import command_line
from pytest_hwqueue.records.cell import (
    Cell,
    RunRecord,
    SessionInfo,
    SweepScaling,
    now,
    read_record,
    session_text,
    write_record,
)
from pytest_hwqueue.records.files import file_name, write_text

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | INTEGERS | NUMBERS | TEXT,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(TEXT, children, max_size=3),
    max_leaves=6,
)
PLAIN: dict[object, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: INTEGERS,
    float: NUMBERS,
    bool: st.booleans(),
    type(None): st.none(),
    Any: JSON_VALUES,
}


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Any value of a field, so that a field added to a record is tested as soon as it exists."""
    if isinstance(annotation, str):
        # Python 3.10 leaves a name within dict[...] as it is written.
        annotation = eval(annotation)
    if annotation in PLAIN:
        return PLAIN[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, types.UnionType):
        return st.one_of(*map(values_of, arguments))
    if origin is list:
        return st.lists(values_of(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, arguments))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        hints = {name: field.annotation for name, field in annotation.model_fields.items()}
    elif dataclasses.is_dataclass(annotation):
        hints = get_type_hints(annotation)
    else:
        raise TypeError(f"no values of {annotation}")
    # Deferred, since hypothesis writes a strategy out in full, and that of a record is long.
    return st.deferred(
        lambda: st.builds(annotation, **{name: values_of(hint) for name, hint in hints.items()})
    )


RECORDS = values_of(RunRecord)


def example(**changed: Any) -> RunRecord:
    """A record as a cell leaves it."""
    cell = Cell(
        name="hetero_kernels",
        device="cuda",
        streams=8,
        scheduler="native",
        dispatch="eager",
        sync_mode="per_iteration",
        size="full",
        parameters={"mm_dim": 4096},
    )
    plain: dict[str, Any] = {
        "cell": cell,
        "cell_id": cell.id,
        "nodeid": "file.py::test",
        "status": "ok",
        "started": now(),
        "duration_s": 1.5,
        "seed": 0,
        "command": "pytest",
    }
    return RunRecord(**{**plain, **changed})


SESSION = SessionInfo(id="s", started=now(), command="pytest", version="0", settings={"seed": 0})


def as_session(records: list[RunRecord]) -> str:
    return session_text(SESSION, records, [])


@settings(deadline=None, max_examples=40)
@given(RECORDS)
def test_record_survives_json(record: RunRecord) -> None:
    assert RunRecord.model_validate_json(record.model_dump_json()) == record
    assert (
        RunRecord.model_validate(json.loads(json.dumps(record.model_dump(mode="json")))) == record
    )


def test_record_survives_its_file(tmp_path: Path) -> None:
    record = example(nodeid="töst\u2028[\x01]", notes=["µs", "\n"])
    path = write_record(tmp_path / "new" / "folder", record)
    assert path.name == file_name(record.cell_id)
    assert read_record(path) == record
    assert list(path.parent.iterdir()) == [path]


def test_same_cell_twice_keeps_both_records(tmp_path: Path) -> None:
    paths = [write_record(tmp_path, example(seed=seed)) for seed in range(3)]
    assert len(set(paths)) == 3
    assert [read_record(path).seed for path in paths] == [0, 1, 2]
    assert sorted(tmp_path.iterdir()) == sorted(paths)


@pytest.mark.parametrize(
    ("changed", "cell_id"),
    [
        ({}, "hetero_kernels[cuda-s8-native-eager]"),
        ({"dispatch": "graph"}, "hetero_kernels[cuda-s8-native-graph]"),
        ({"sync_mode": "end_only"}, "hetero_kernels[cuda-s8-native-eager-end_only]"),
        ({"variant": "small-mm_dim=64"}, "hetero_kernels[cuda-s8-native-eager-small-mm_dim=64]"),
        (
            {"sync_mode": "none", "variant": "x", "device": "cuda:1", "streams": 64},
            "hetero_kernels[cuda:1-s64-native-eager-none-x]",
        ),
        (
            {"name": "test_mine.py::test_it::warm", "device": "cpu", "size": None},
            "test_mine.py::test_it::warm[cpu-s8-native-eager]",
        ),
        ({"scheduler": "stream-priority"}, "hetero_kernels[cuda-s8-stream-priority-eager]"),
    ],
)
def test_cell_ids_are_stable(changed: dict[str, Any], cell_id: str) -> None:
    assert example().cell.model_copy(update=changed).id == cell_id


def test_cell_id_does_not_depend_on_what_the_variant_does_not_name() -> None:
    cell = example().cell
    assert cell.model_copy(update={"parameters": {"mm_dim": 1}}).id == cell.id


@settings(deadline=None)
@given(TEXT, TEXT)
def test_file_names_are_safe_and_distinct(one: str, other: str) -> None:
    name = file_name(one)
    assert re.fullmatch(r"[A-Za-z0-9._-]+\.json", name)
    assert not name.startswith((".", "_"))
    assert len(name) <= 143  # the shortest limit of a common file system (eCryptfs)
    assert file_name(one) == name
    assume(one != other)
    assert file_name(other).lower() != name.lower()


@pytest.mark.parametrize("cell_id", ["", "a" * 5000, "../../etc/passwd", "a/b", "é" * 300, "CON"])
def test_file_name_stays_in_its_folder(tmp_path: Path, cell_id: str) -> None:
    path = tmp_path / file_name(cell_id)
    assert path.resolve().parent == tmp_path.resolve()
    write_text(path, "{}")
    assert path.read_text(encoding="utf-8") == "{}"


def test_file_name_keeps_what_can_be_read() -> None:
    assert file_name("hetero_kernels[cuda:1-s8-native]").startswith(
        "hetero_kernels_cuda_1-s8-native-"
    )


def test_session_has_the_shape_that_others_read() -> None:
    latency = summarise_latency(range(1, 1001))
    records = [
        example(metrics={"latency": latency}),
        example(status="failed", reason="Boom", stage="measure"),
    ]
    session = json.loads(as_session(records))
    assert session.keys() == {
        "schema", "session", "records", "scaling", "colocations", "judgements",
    }  # fmt: skip
    assert session["schema"] == "pytest-hwqueue/session/1"
    assert session["session"]["id"] == "s"
    first, second = session["records"]
    assert first["cell"] == second["cell"] == "hetero_kernels[cuda-s8-native-eager]"
    assert first["setting"]["streams"] == 8
    assert "cell_id" not in first
    assert first["metrics"]["latency"]["p50"] == latency.p50
    assert first["metrics"]["latency"]["p99"] == latency.p99
    assert first["metrics"]["latency"]["unit"] == "ms"
    assert second["metrics"]["latency"] is None
    assert (second["status"], second["reason"], second["stage"]) == ("failed", "Boom", "measure")


@settings(deadline=None, max_examples=15)
@given(st.lists(RECORDS, max_size=2))
def test_records_of_a_session_are_whole(records: list[RunRecord]) -> None:
    for record, data in zip(records, json.loads(as_session(records))["records"], strict=True):
        data["cell_id"], data["cell"] = data.pop("cell"), data.pop("setting")
        assert RunRecord.model_validate(data) == record


def test_session_without_records_is_a_session() -> None:
    session = json.loads(as_session([]))
    assert (session["records"], session["scaling"]) == ([], [])


def test_scaling_names_the_cells_it_is_of() -> None:
    points = [ScalingPoint(streams, 10.0 * streams, [1000] * 60) for streams in (1, 2)]
    of_sweep = SweepScaling(cells=["a[s1]", "a[s2]"], scaling=scaling(points, "kernels/s"))
    (written,) = json.loads(session_text(SESSION, [], [of_sweep]))["scaling"]
    assert written["cells"] == ["a[s1]", "a[s2]"]
    assert [point["speedup"] for point in written["scaling"]["points"]] == [1.0, 2.0]
    assert SweepScaling.model_validate(written) == of_sweep


def damaged(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "damaged.json"
    path.write_bytes(content)
    return path


def refuses(path: Path) -> str:
    with pytest.raises(RecordError) as refused:
        read_record(path)
    assert str(path) in str(refused.value)
    return str(refused.value)


@settings(deadline=None, max_examples=30)
@given(st.floats(0, 1, exclude_max=True))
def test_truncated_record_is_refused(
    tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    whole = example().model_dump_json().encode()
    refuses(damaged(tmp_path_factory.mktemp("truncated"), whole[: int(share * len(whole))]))


def with_field(name: str, value: object) -> bytes:
    return json.dumps({**example().model_dump(mode="json"), name: value}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00garbage",
        b"null",
        b"[]",
        b"{}",
        b'"text"',
        b'{"machine_info": {}, "benchmarks": []}',  # pytest-benchmark's
        as_session([example()]).encode(),
        with_field("schema_version", 3),
        with_field("schema_version", "1"),
        with_field("status", "great"),
        with_field("surprise", 1),
        with_field("duration_s", "nan?"),
        with_field("cell", None),
        example().model_dump_json().encode() * 2,
        b"[" * 100_000,
    ],
    ids=lambda content: content[:24].decode("latin-1"),
)
def test_file_that_is_no_record_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    assert "is not a record" in refuses(damaged(tmp_path, content))


def test_record_that_cannot_be_read_is_refused_with_the_systems_reason(tmp_path: Path) -> None:
    assert os.strerror(errno.ENOENT) in refuses(tmp_path / "missing.json")
    assert os.strerror(errno.EISDIR) in refuses(tmp_path)


def fails_with(number: int) -> Callable[..., Any]:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_full_disk_leaves_the_older_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "session.json"
    write_text(path, "older")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails_with(errno.ENOSPC))
        with pytest.raises(RecordError) as refused:
            write_text(path, "newer")
    assert str(refused.value) == f"cannot write {path}: {os.strerror(errno.ENOSPC)}"
    assert path.read_text(encoding="utf-8") == "older"
    assert list(tmp_path.iterdir()) == [path]


def test_write_that_stops_half_way_leaves_the_older_file_and_nothing_else(
    tmp_path: Path, smaller_files: Callable[[int], AbstractContextManager[None]]
) -> None:
    path = tmp_path / "session.json"
    write_text(path, "older")
    with smaller_files(4096), pytest.raises(RecordError) as refused:
        write_text(path, "x" * 100_000)
    assert str(refused.value) == f"cannot write {path}: {os.strerror(errno.EFBIG)}"
    assert path.read_text(encoding="utf-8") == "older"
    assert list(tmp_path.iterdir()) == [path]


def test_folder_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(RecordError) as refused:
        write_record(tmp_path / "file", example())
    assert str(tmp_path / "file") in str(refused.value)
    assert os.strerror(errno.ENOTDIR) in str(refused.value) or os.strerror(errno.EEXIST) in str(
        refused.value
    )
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into every folder")
def test_folder_without_the_right_to_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(RecordError, match=re.escape(os.strerror(errno.EACCES))):
            write_text(tmp_path / "session.json", "text")
        assert list(tmp_path.iterdir()) == []
    finally:
        tmp_path.chmod(0o700)


def test_name_taken_by_a_folder_is_refused_and_the_folder_kept(tmp_path: Path) -> None:
    (tmp_path / "session.json").mkdir()
    with pytest.raises(RecordError):
        write_text(tmp_path / "session.json", "text")
    assert [each.name for each in tmp_path.iterdir()] == ["session.json"]


def test_text_replaces_the_whole_of_an_older_file(tmp_path: Path) -> None:
    path = tmp_path / "session.json"
    for text in ("a long text", "short", "µ\u2028"):
        write_text(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert list(tmp_path.iterdir()) == [path]


def test_command_line_that_is_no_utf8_is_kept(tmp_path: Path) -> None:
    invocation = SimpleNamespace(args=("pytest", os.fsdecode(b"caf\xe9.py")))
    command = command_line(cast(pytest.Config, SimpleNamespace(invocation_params=invocation)))
    assert "caf\\udce9.py" in command
    record = example(command=command)
    assert read_record(write_record(tmp_path, record)) == record


def test_text_that_cannot_be_encoded_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises((RecordError, UnicodeEncodeError)):
        write_text(tmp_path / "session.json", "\udce9")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("amount", [float("inf"), float("nan")])
def test_number_that_is_not_finite_is_refused(amount: float) -> None:
    with pytest.raises(ValueError, match="finite number"):
        example(work_per_iteration={"requests": amount})


def test_now_is_utc() -> None:
    moment = datetime.fromisoformat(now())
    assert moment.utcoffset() == timedelta(0)


def test_record_of_version_1_is_read_with_the_iteration_as_its_latency(tmp_path: Path) -> None:
    data = json.loads(example().model_dump_json())
    data["schema_version"] = 1
    for name in ("primary", "launch_bound"):
        del data[name]
    del data["metrics"]["iteration"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    record = read_record(path)
    assert (record.schema_version, record.primary.name) == (2, "iteration")
    assert record.metrics.iteration == record.metrics.latency
    assert record.latency_ns() == (record.samples.host_ns if record.samples else [])
