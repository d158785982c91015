"""Records: what is written is read again to the bit, and a damaged file never passes for one."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import types
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from pytest_hwqueue.data.errors import RecordError
from pytest_hwqueue.data.figures.of_cell import summarise
from pytest_hwqueue.data.metrics.latency import summarise_latency
from pytest_hwqueue.data.metrics.scaling import ScalingPoint, scaling
from pytest_hwqueue.data.records.cell import (
    Cell,
    RunRecord,
    Samples,
    SessionFile,
    SessionInfo,
    SweepScaling,
    now,
    read_record,
    session_text,
    write_record,
)
from pytest_hwqueue.data.records.declared import PACE
from pytest_hwqueue.data.records.files import file_name
from pytest_hwqueue.plugin.session import command_line

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | INTEGERS | NUMBERS | TEXT,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(TEXT, children, max_size=3),
    max_leaves=6,
)
PLAIN: dict[object, st.SearchStrategy[Any]] = {
    str: TEXT, int: INTEGERS, float: NUMBERS, bool: st.booleans(), type(None): st.none(),
    Any: JSON_VALUES,
}  # fmt: skip


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
    if origin in (list, dict, tuple):
        parts = [values_of(each) for each in arguments if each is not Ellipsis]
        if origin is dict:
            return st.dictionaries(*parts, max_size=3)
        several = origin is list or Ellipsis in arguments
        return st.lists(*parts, max_size=3).map(origin) if several else st.tuples(*parts)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        hints = {name: field.annotation for name, field in annotation.model_fields.items()}
    elif dataclasses.is_dataclass(annotation):
        of_types = get_type_hints(annotation)
        hints = {each.name: of_types[each.name] for each in dataclasses.fields(annotation)}
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
        name="hetero_kernels", device="cuda", streams=8, scheduler="native", dispatch="eager",
        sync_mode="per_iteration", size="full", parameters={"mm_dim": 4096},
    )  # fmt: skip
    plain: dict[str, Any] = {
        "cell": cell, "cell_id": cell.id, "nodeid": "file.py::test", "status": "ok",
        "started": "2026-01-01T00:00:00+00:00", "duration_s": 1.5, "seed": 0, "command": "pytest",
    }  # fmt: skip
    return RunRecord(**{**plain, **changed})


SESSION = SessionInfo(id="s", started=now(), command="pytest", version="0", settings={"seed": 0})


@settings(max_examples=15)
@given(RECORDS)
def test_record_survives_json_and_is_whole_in_a_session(record: RunRecord) -> None:
    assert RunRecord.model_validate_json(record.model_dump_json()) == record
    (data,) = json.loads(session_text(SESSION, [record], []))["records"]
    data["cell_id"], data["cell"] = data.pop("cell"), data.pop("setting")
    assert RunRecord.model_validate(data) == record


def test_a_path_that_is_no_text_stands_in_records_and_sessions_as_escapes(tmp_path: Path) -> None:
    folder = os.fsdecode(b"caf\xe9")
    record = example(reason=f"no such file: {folder}/a", status="failed", samples=None)
    cell = record.cell.model_copy(update={"parameters": {folder: [folder]}})
    read = read_record(write_record(tmp_path, record.model_copy(update={"cell": cell})))
    assert read.reason == r"no such file: caf\udce9/a"
    assert read.cell.parameters == {r"caf\udce9": [r"caf\udce9"]}
    info = SESSION.model_copy(update={"settings": {"dir": folder}})
    assert SessionFile.model_validate_json(session_text(info, [], [])).session.settings == {
        "dir": r"caf\udce9"
    }


def test_record_survives_its_file_and_the_same_cell_keeps_every_record(tmp_path: Path) -> None:
    invocation = SimpleNamespace(args=("pytest", os.fsdecode(b"caf\xe9.py")))
    session = SimpleNamespace(invocation_params=invocation, stash=pytest.Stash())
    command = command_line(cast(pytest.Config, session))
    assert "caf\\udce9.py" in command
    odd: dict[str, Any] = {"nodeid": "töst\u2028[\x01]", "notes": ["µs", "\n"], "command": command}
    records = [example(seed=seed, **odd) for seed in range(3)]
    folder = tmp_path / "new" / "folder"
    paths = [write_record(folder, record) for record in records]
    assert paths[0].name == file_name(records[0].cell_id)
    assert [read_record(path) for path in paths] == records
    assert sorted(folder.iterdir()) == sorted(paths)


@pytest.mark.parametrize(
    ("changed", "cell_id"),
    [
        ({"parameters": {"mm_dim": 1}}, "hetero_kernels[cuda-s8-native-eager]"),
        ({"dispatch": "graph"}, "hetero_kernels[cuda-s8-native-graph]"),
        ({"sync_mode": "end_only"}, "hetero_kernels[cuda-s8-native-eager-end_only]"),
        ({"cache": "cold", "variant": "x"}, "hetero_kernels[cuda-s8-native-eager-cold-x]"),
        ({"variant": "small-mm_dim=64"}, "hetero_kernels[cuda-s8-native-eager-small-mm_dim=64]"),
        ({"sync_mode": "none", "variant": "x", "device": "cuda:1", "streams": 64},
         "hetero_kernels[cuda:1-s64-native-eager-none-x]"),
        ({"name": "test_mine.py::test_it::warm", "device": "cpu", "size": None},
         "test_mine.py::test_it::warm[cpu-s8-native-eager]"),
        ({"scheduler": "stream-priority"}, "hetero_kernels[cuda-s8-stream-priority-eager]"),
    ],
)  # fmt: skip
def test_cell_ids_are_stable(changed: dict[str, Any], cell_id: str) -> None:
    assert example().cell.model_copy(update=changed).id == cell_id


def test_session_has_the_shape_that_others_read() -> None:
    latency = summarise_latency(range(1, 1001))
    failed = example(status="failed", reason="Boom", stage="measure")
    records = [example(metrics={"latency": latency}), failed]
    points = [ScalingPoint(streams, 10.0 * streams, [1000] * 60) for streams in (1, 2)]
    of_sweep = SweepScaling(cells=["a[s1]", "a[s2]"], scaling=scaling(points, "kernels/s"))
    session = json.loads(session_text(SESSION, records, [of_sweep]))
    assert list(session) == [
        "schema", "session", "records", "scaling", "colocations", "judgements",
    ]  # fmt: skip
    assert (session["schema"], session["session"]["id"]) == ("pytest-hwqueue/session/2", "s")
    first, second = session["records"]
    assert first["cell"] == second["cell"] == "hetero_kernels[cuda-s8-native-eager]"
    assert first["setting"]["streams"] == 8
    assert "cell_id" not in first
    told = first["metrics"]["latency"]
    values = (told["p50"]["value"], told["p99"]["value"], told["p50"]["unit"])
    assert values == (latency.p50.value, latency.p99.value, "ms")
    assert second["metrics"]["latency"] is None
    assert (second["status"], second["reason"], second["stage"]) == ("failed", "Boom", "measure")
    (swept,) = session["scaling"]
    assert [point["speedup"]["value"] for point in swept["scaling"]["points"]] == [1.0, 2.0]
    assert SweepScaling.model_validate(swept) == of_sweep
    assert datetime.fromisoformat(now()).utcoffset() == timedelta(0)


def with_field(name: str, value: object) -> bytes:
    return json.dumps({**example().model_dump(mode="json"), name: value}).encode()


def refuses(path: Path, content: bytes | None = None) -> str:
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RecordError) as refused:
        read_record(path)
    assert str(path) in str(refused.value)
    return str(refused.value)


WHOLE = example().model_dump_json().encode()


@pytest.mark.parametrize(
    "content",
    [
        *[WHOLE[: share * len(WHOLE) // 20] for share in range(20)],
        *[b"\xff\xfe\x00garbage", b"null", b"[]", b"{}", b'"text"', WHOLE * 2, b"[" * 100_000],
        b'{"machine_info": {}, "benchmarks": []}',  # pytest-benchmark's
        session_text(SESSION, [example()], []).encode(),
        *map(with_field, ("surprise", "duration_s", "cell", "status"), (1, "nan?", None, "great")),
    ],
    ids=lambda content: content[:24].decode("latin-1"),
)
def test_file_that_is_no_record_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    assert "is not a record" in refuses(tmp_path / "damaged.json", content)


def test_record_that_cannot_be_read_is_refused_with_the_systems_reason(tmp_path: Path) -> None:
    assert os.strerror(errno.ENOENT) in refuses(tmp_path / "missing.json")
    assert os.strerror(errno.EISDIR) in refuses(tmp_path)


@pytest.mark.parametrize("amount", [float("inf"), float("nan")])
def test_number_that_is_not_finite_is_refused(amount: float) -> None:
    with pytest.raises(ValueError, match="finite number"):
        example(work_per_iteration={"requests": amount})


def test_what_else_is_missing_stands_in_new_metrics_and_the_old_ones_stay() -> None:
    samples = Samples(host_ns=[], device_ns=[], enqueue_ns=[], pace_ns=[1000] * 20)
    plain = summarise(samples, {}, primary=PACE)
    given = summarise(samples, {}, primary=PACE, missing={"tags": "none was timed"})
    assert given.refused == {**plain.refused, "tags": "none was timed"}
    assert plain.without("tags", "none was timed") == given
    assert "latency" in plain.refused
    assert "tags" not in plain.refused
