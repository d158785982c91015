"""The published schemas are those of the code, and all that they allow is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import VERSION

import pytest_hwqueue
from pytest_hwqueue.data.metrics.scaling import ScalingPoint, scaling
from pytest_hwqueue.data.records.cell import (
    RunRecord,
    SessionFile,
    SessionInfo,
    SweepScaling,
    now,
    session_text,
)
from pytest_hwqueue.data.records.stored import SessionFiles
from pytest_hwqueue.data.records.telemetry import Telemetry, TelemetrySample
from pytest_hwqueue.judge.baselines import cell_file
from pytest_hwqueue.judge.baselines.store import Store
from tests.conftest import make_record
from tests.judge.baselines.run_with import contention, with_samples

SCHEMAS = Path(pytest_hwqueue.__file__).parent / "schemas"
Json = dict[str, Any]
OF_THE_CODE: dict[str, Callable[[], Json]] = {
    "record": RunRecord.model_json_schema,
    "session": SessionFile.model_json_schema,
    "session_files": SessionFiles.model_json_schema,
    "baseline": cell_file.json_schema,
}

UPDATE = """\
{name} is not the schema of the code. Where the change is meant (and schema_version with it, if
older files can no longer be read), run in the root of the repository:
python -c 'import json; from pathlib import Path
from tests.data.records.test_schema import OF_THE_CODE, SCHEMAS
for name, schema in OF_THE_CODE.items():
    text = json.dumps(schema(), indent=2, ensure_ascii=False) + "\\n"
    (SCHEMAS / f"{{name}}.schema.json").write_text(text, encoding="utf-8")'
"""


@cache
def published(name: str) -> Json:
    schema: Json = json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    return schema


def valid(name: str, data: object) -> bool:
    return Draft202012Validator(published(name)).is_valid(data)


def as_json(record: RunRecord) -> Json:
    data: Json = json.loads(record.model_dump_json())
    return data


@pytest.mark.skipif(
    tuple(map(int, VERSION.split(".")[:2])) < (2, 14),
    reason="pydantic before 2.14 writes some fields of a schema another way",
)
@pytest.mark.parametrize("name", OF_THE_CODE)
def test_published_schema_is_that_of_the_code(name: str) -> None:
    if published(name) != OF_THE_CODE[name]():
        pytest.fail(UPDATE.format(name=f"{name}.schema.json"), pytrace=False)


@st.composite
def records(draw: st.DrawFn) -> Json:
    data: Json = drawn(draw, published("record"))
    return data


def drawn(draw: st.DrawFn, schema: Json | bool | None) -> Any:
    """Anything of the record's schema: of fields that may be absent, some are."""
    if not isinstance(schema, dict):
        return "anything"
    if "$ref" in schema:
        return drawn(draw, published("record")["$defs"][schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return drawn(draw, draw(st.sampled_from(schema["anyOf"])))
    if "const" in schema or "enum" in schema:
        return draw(st.sampled_from(schema.get("enum", [schema.get("const")])))
    if "prefixItems" in schema:
        return [drawn(draw, each) for each in schema["prefixItems"]]
    if schema.get("type") == "array":
        return [drawn(draw, schema["items"])] * draw(st.integers(0, 2))
    if schema.get("type") == "object":
        fields = schema.get("properties") or {"name": schema.get("additionalProperties")}
        needed = schema.get("required", [])
        chosen = [name for name in fields if name in needed or draw(st.booleans())]
        return {name: drawn(draw, fields[name]) for name in chosen}
    simple = {"string": "text", "integer": 1, "number": 1.5, "boolean": True, "null": None}
    return simple.get(schema.get("type", ""), "anything")


@settings(max_examples=50, suppress_health_check=[HealthCheck.large_base_example])
@given(records())
def test_what_the_schema_allows_is_read_and_written_as_the_schema_has_it(data: Json) -> None:
    record = RunRecord.model_validate_json(json.dumps(data))
    assert valid("record", as_json(record))
    assert RunRecord.model_validate_json(record.model_dump_json()) == record


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("status", "great"),
        ("schema_version", 4),
        ("cell.streams", "eight"),
        ("surprise", 1),
        ("samples.host_ns", ["a"]),
        ("metrics.latency.p99", "5 ms"),
        ("metrics.latency.p99.high", "5 ms"),
        ("metrics.surprise", 0),
        *((name, None) for name in ("cell", "cell_id", "nodeid", "status", "started", "seed")),
    ],
)
def test_what_is_no_record_is_not_valid(place: str, value: object) -> None:
    data = inner = as_json(make_record(n=1000))
    assert valid("record", data)
    *outer, last = place.split(".")
    for name in outer:
        inner = inner[name]
    inner.pop(last, None)
    if value is not None:
        inner[last] = value
    assert not valid("record", data)


def test_session_is_valid_and_anything_else_is_not() -> None:
    info = SessionInfo(id="s", started=now(), command="pytest", version="0", settings={"seed": 0})
    two = [make_record(), make_record("b", status="failed", reason="Boom")]
    points = [ScalingPoint(streams, 10.0 * streams, [1000] * 60) for streams in (1, 2)]
    scaled = SweepScaling(cells=["a", "b"], scaling=scaling(points, "kernels/s"))
    session: Json = json.loads(session_text(info, two, [scaled]))
    assert valid("session", session)
    wrong = ({**session, "schema": "pytest-hwqueue/session/3"}, {**session, "records": {}})
    assert not any(valid("session", other) for other in (*wrong, {}, as_json(two[0])))


def test_lines_of_a_baseline_are_valid_and_anything_else_is_not(tmp_path: Path) -> None:
    reading = TelemetrySample(
        0, sm_clock_mhz=1980, memory_clock_mhz=None, temperature_c=None, power_w=1
    )
    telemetry = Telemetry("NVML", (reading,), read_before=(0,))
    record = with_samples(
        make_record(failed_requests=1, telemetry=telemetry), contended=contention()
    )
    path = Store(tmp_path).add("main", record, "s")
    header, run, trailer = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    assert all(valid("baseline", line) for line in (header, run, trailer))
    assert all(value not in (None, [], {}) for name, value in run.items() if name != "soft")
    for other in (
        {**header, "schema": "pytest-hwqueue/baseline/2"},
        {**header, "schema": None},
        {key: header[key] for key in header if key != "schema"},
        {**run, "p99_ns": -1},
        {**run, "surprise": 0},
        {**trailer, "lines": "one"},
        as_json(record),
    ):
        assert not valid("baseline", other)
