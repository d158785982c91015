"""A sealed file is as it was written or refused, and what has no seal is read by its content."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.data.errors import RecordError
from pytest_hwqueue.data.records.cell import (
    RunRecord,
    SessionInfo,
    read_record,
    session_text,
    write_record,
)
from pytest_hwqueue.data.records.plan import Colocation, Tenant
from pytest_hwqueue.data.records.sealed import sealed
from pytest_hwqueue.data.records.tenants import (
    ColocationRecord,
    RequestFailure,
    ServerLoad,
    TenantResult,
    TokenTimes,
    read_colocation,
    write_colocation,
)
from pytest_hwqueue.engine.tenants.open_loop import Load, lateness
from pytest_hwqueue.engine.tenants.tenant_cells import delivered
from pytest_hwqueue.judge.baselines.sources import read_session_file
from tests.conftest import make_record

RECORD = make_record(n=400)
SESSION = SessionInfo(id="s", started=RECORD.started, command="pytest", version="0", settings={})

# Three requests of 1, 2 and 3 ms, of which the second raised; the last was begun too late, and one
# more never.
LOAD = Load(
    [0, 10_000_000, 20_000_000], [0, 10_000_000, 20_500_000], [1_000_000, 12_000_000, 23_500_000],
    failed=[RequestFailure(index=1, reason="no")], unserved=1,
)  # fmt: skip
TOKENS = TokenTimes(
    ttft_ns=[500_000, 900_000], answer_ns=[None, 950_000], last_ns=[1_000_000, 3_500_000],
    tokens=[3, 4], counted="usage",
)  # fmt: skip
FRONT = Tenant("front", "resnet18")
COLOCATION = ColocationRecord(
    id="two", plan=Colocation("two", (FRONT, Tenant("died", "resnet18"))),
    status="ok", device="cuda", scheduler="native", seed=0,
    placement="processes", duration_s=1.5, elapsed_s=2.0, started=RECORD.started,
    command="hwq which", simulated=False,
    tenants=[
        delivered(FRONT, LOAD, 1_500_000_000, lateness=lateness(LOAD), server=ServerLoad(
            url="http://127.0.0.1:1", connections=1, connected=1, most_at_once=1, tokens=TOKENS,
        )),
        TenantResult(name="died"),
    ],
)  # fmt: skip


def written(folder: Path, kind: str) -> tuple[Path, Callable[[Path], Any]]:
    path = folder / f"{kind}.json"
    if kind == "record":
        return write_record(folder, RECORD), read_record
    if kind == "session":
        path.write_text(sealed(session_text(SESSION, [RECORD], [])), encoding="utf-8")
        return path, read_session_file
    write_colocation(path, COLOCATION)
    return path, read_colocation


@pytest.mark.parametrize("kind", ["record", "session", "colocation"])
def test_every_changed_bit_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    path, read = written(tmp_path, kind)
    data = path.read_bytes()
    whole = read(path)

    # The end, which is the seal, is tried as often as all before it.
    @settings(max_examples=400, deadline=None)
    @given(
        st.one_of(
            st.integers(0, 8 * len(data) - 1), st.integers(8 * (len(data) - 90), 8 * len(data) - 1)
        )
    )
    def flipped(bit: int) -> None:
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        with pytest.raises(RecordError, match=re.escape(path.name)):
            read(path)

    flipped()
    path.write_bytes(data)
    assert read(path) == whole


def test_the_last_field_is_the_hash_of_the_bytes_before_it(tmp_path: Path) -> None:
    path = write_record(tmp_path, RECORD)
    data = json.loads(path.read_text(encoding="utf-8"))
    assert list(data)[-1] == "sha256"
    assert RunRecord.model_validate(data) == read_record(path) == RECORD
    # Of what other tools write again only the content counts.
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    assert read_record(path) == RECORD


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        ("latency n", 399, "latency.n is 399, and there are 400 samples"),
        ("latency p99 value", 1.0, "latency.p99 is 1.0 ms, and its"),
        ("iteration mean", 1.0, "iteration.mean is 1.0 ms, and its own samples have"),
        ("iteration max", 9e9, "iteration.max is"),
        ("latency p50 low", 1e9, "latency.p50 is .* and its interval is 1000000000.0 to"),
    ],
)
def test_figures_that_contradict_their_samples_are_refused(
    tmp_path: Path, place: str, value: float, says: str
) -> None:
    data = RECORD.model_dump(mode="json")
    *above, last = place.split()
    reduce(operator.getitem, above, data["metrics"])[last] = value
    path = tmp_path / "record.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(RecordError, match=f"{path}: its figures are not its samples': {says}"):
        read_record(path)
    session = json.loads(session_text(SESSION, [RECORD], []))
    session["records"][0]["metrics"] = data["metrics"]
    path.write_text(json.dumps(session), encoding="utf-8")
    with pytest.raises(RecordError, match=f"{path}: its figures are not its samples': {says}"):
        read_session_file(path)


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        ("issued", 3, "issued is 3, and its requests give 4"),
        ("completed", 3, "completed is 3, and its requests give 2"),
        ("failed", 0, "failed is 0, and its requests give 1"),
        ("unserved", 5, "issued is 4, and its requests give 8"),
        ("latency_ns 1", 3_000_000, "latency_ns is not the time from each completed request's"),
        ("requests finished_ns 0", 900_000, "latency_ns is not the time from"),
        ("requests started_ns", [0, 1], "3 were scheduled, 2 started and 3 finished"),
        ("failures 0 index", 3, "failures name a request twice, or one that is none of the 3"),
        ("throughput requests_per_s", 2.0, "requests_per_s is 2.0, and its requests give 1.33"),
        ("throughput items_per_s", 2.0, "items_per_s is 2.0, and its requests give 1.33"),
        ("lateness max_us", 9e3, "lateness is 9000.0 µs at most, and no .* later than 500.0"),
        ("lateness n", 2, "lateness is"),
        ("server tokens tokens", [3], "tokens has 1 of 2 requests"),
    ],
)
def test_figures_that_contradict_their_requests_are_refused(
    tmp_path: Path, place: str, value: Any, says: str
) -> None:
    data = COLOCATION.model_dump(mode="json")
    path = tmp_path / "two.json"
    # Of what other tools write again only the content counts.
    path.write_text(json.dumps(data, indent=1), encoding="utf-8")
    assert read_colocation(path) == COLOCATION
    *above, last = (int(part) if part.isdigit() else part for part in place.split())
    reduce(operator.getitem, above, data["tenants"][0])[last] = value
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(
        RecordError,
        match=f"{path}: tenant front: its figures are not its requests': {says}.*; measure again",
    ):
        read_colocation(path)


def test_a_record_of_the_other_kind_is_called_so(tmp_path: Path) -> None:
    cell, together = tmp_path / "cell.json", tmp_path / "two.json"
    cell.write_text(RECORD.model_dump_json())
    together.write_text(COLOCATION.model_dump_json())
    with pytest.raises(RecordError, match="is not a co-location's record: it is a cell's record"):
        read_colocation(cell)
    with pytest.raises(RecordError, match="is not a record: it is a co-location's record, which"):
        read_record(together)


@pytest.mark.parametrize("version", [1, 4])
@pytest.mark.parametrize(
    ("kind", "field", "what"),
    [
        ("record", "schema_version", "a record"),
        ("colocation", "schema_version", "a co-location's record"),
        (
            "session",
            "schema",
            "a session file (written by `hwq run --json FILE` or `pytest --hwq-json=FILE`)",
        ),
    ],
)
def test_another_version_is_refused_by_its_number(
    tmp_path: Path, kind: str, field: str, what: str, version: int
) -> None:
    path, read = written(tmp_path, kind)
    data = json.loads(path.read_text(encoding="utf-8"))
    ours = data[field]
    data[field] = version if isinstance(ours, int) else f"pytest-hwqueue/session/{version}"
    # As a version that is not known may have it.
    data["surprise"] = 1
    path.write_text(json.dumps(data), encoding="utf-8")
    said = (
        f"{path} is {what}, but of version {version}, and this version of pytest-hwqueue reads "
        f"version {str(ours)[-1]} alone; measure again"
    )
    with pytest.raises(RecordError, match=f"^{re.escape(said)}$"):
        read(path)


def test_a_record_of_another_kind_is_of_no_version(tmp_path: Path) -> None:
    path, _ = written(tmp_path, "colocation")
    with pytest.raises(RecordError, match="is not a record: "):
        read_record(path)
