"""What others wrote, damaged at random: read, or refused by an error that names the file.

Each case begins with something valid and changes one place of it, so that it comes far into the
reader. Texts of scenarios, arrivals and options are damaged in their own rooms' tests.
`--hypothesis-profile=search` draws 1,000 new cases of each.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.errors import BadInput, BadScenario, HwqError, RecordError
from pytest_hwqueue.data.records.cell import read_record
from pytest_hwqueue.engine.scenarios.file import read_scenario
from pytest_hwqueue.engine.tenants.arrivals import parse_arrival
from pytest_hwqueue.judge.baselines.cell_file import write_lines
from pytest_hwqueue.judge.baselines.store import Store
from pytest_hwqueue.parts.schedulers.syntax import SchedulerPaths, open_scheduler
from tests.conftest import make_record

SCALARS = (
    st.none() | st.booleans() | st.floats() | st.text(max_size=8)
    | st.sampled_from([0, -1, 1, 2**31, 2**63, -(2**63), 10**30, 1e308, "", "\x00", "a" * 300])
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)


@st.composite
def damaged(draw: st.DrawFn, whole: Any) -> Any:
    """A copy of a value from JSON or YAML with one place replaced, removed or added."""
    copy: Any = json.loads(json.dumps(whole))
    place = copy
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = draw(st.sampled_from(keys))
        inside = place[key]
        if isinstance(inside, (dict, list)) and inside and draw(st.integers(0, 3)):
            place = inside
            continue
        change = draw(st.sampled_from(["replace", "remove", "add"]))
        if change == "remove":
            del place[key]
        elif change == "replace" or isinstance(place, list):
            place[key] = draw(VALUES)
        else:
            place[draw(st.text(max_size=8))] = draw(VALUES)
        return copy


@cache
def folder() -> Path:
    """A folder for all cases: each writes its own file there again."""
    return Path(tempfile.mkdtemp(prefix="fuzz-"))


def refused_by_name(read: Callable[[], object], file: Path, *own: type[Exception]) -> None:
    """Whatever a reader makes of a file, only its own errors come out, and they name the file."""
    refused = ""
    try:
        read()
    except own as error:
        refused = str(error)
    assert not refused or file.name in refused
    assert len(refused) < 4000


RECORD = make_record(n=12)


@given(damaged(RECORD.model_dump(mode="json")))
def test_records(data: Any) -> None:
    file = folder() / "record.json"
    file.write_text(json.dumps(data, default=str), encoding="utf-8")
    refused_by_name(lambda: read_record(file), file, RecordError)


@given(st.integers(0, len(RECORD.model_dump_json())), st.binary(max_size=6))
def test_records_with_other_bytes(place: int, inserted: bytes) -> None:
    file = folder() / "bytes.json"
    whole = RECORD.model_dump_json().encode()
    file.write_bytes(whole[:place] + inserted + whole[place + len(inserted) :])
    refused_by_name(lambda: read_record(file), file, RecordError)


@cache
def stored() -> tuple[Path, list[Any]]:
    """A baseline's file and its lines without the seal."""
    file = Store(folder() / "baselines").add("main", make_record(n=12), "s")
    return file, [json.loads(line) for line in file.read_text("utf-8").splitlines()[:-1]]


@given(st.data())
def test_baselines_sealed_again(data: st.DataObject) -> None:
    file, lines = stored()
    changed = data.draw(damaged(lines))
    write_lines(file, [json.dumps(line) for line in changed])

    def read() -> None:
        for cell in Store(folder() / "baselines").read("main", "nvidia-h200").values():
            for run in cell.runs:
                run.samples_ns()

    refused_by_name(read, file, RecordError)


SCENARIO = yaml.safe_load(
    """
    name: two
    duration: 3s
    ci_duration: 1s
    schedulers: {processes: [native], threads: [native, stream-priority]}
    tenants:
      - {name: high, model: resnet18, batch: 1, arrival: "poisson: 20/s", priority: 1}
      - {name: low, model: resnet50, batch: 4, arrival: closed}
    goals: [high.latency_p99_ms < 10, low.throughput >= 80% of native]
    variants: {short: {duration: 2s}}
    """
)


@given(damaged(SCENARIO))
def test_scenarios(data: Any) -> None:
    file = folder() / "two.hwq.yaml"
    file.write_text(yaml.safe_dump(data), encoding="utf-8")
    refused_by_name(lambda: read_scenario(file), file, BadScenario)


LIBRARY = {
    "description": "a library", "libraries": ["libtiny.so"],
    "environment": {"TINY": "{priority}"}, "services": [{"command": ["true"], "ready": "begins"}],
}  # fmt: skip


@given(damaged(LIBRARY))
def test_preload_descriptions(data: Any) -> None:
    file = folder() / "tiny.yaml"
    file.write_text(yaml.safe_dump(data), encoding="utf-8")
    paths = SchedulerPaths(preloads=(folder(),))
    refused_by_name(lambda: open_scheduler("preload:tiny", paths), file, BadInput, BadInput)


@given(
    st.lists(st.floats() | st.integers() | st.text(max_size=6), max_size=5), st.binary(max_size=9)
)
def test_arrival_traces(offsets: list[object], more: bytes) -> None:
    file = folder() / "trace.txt"
    file.write_bytes("\n".join(map(str, offsets)).encode("utf-8", "surrogatepass") + more)
    refused_by_name(lambda: parse_arrival("trace: trace.txt", folder()), file, BadInput)


EVENT = {
    "choices": [{"index": 0, "delta": {"content": "word"}, "text": "word"}],
    "usage": {"completion_tokens": 3},
    "error": None,
}


@given(damaged(EVENT), st.sampled_from([b"\n\n", b"\r\n", b""]), st.binary(max_size=20))
def test_answers_of_servers(event: Any, end: bytes, more: bytes) -> None:
    pytest.importorskip("aiohttp")
    from tests.engine.tenants.test_client import _OPENAI, ask, saying

    events = b"data: " + json.dumps(event, default=str).encode() + end + more + b"\n\n"
    body = events + b"data: [DONE]\n\n"
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    refused = ""
    reply = None
    try:
        reply = ask(_OPENAI, saying(head + body))
    except HwqError as error:
        refused = str(error)
    assert len(refused) < 1000
    assert bool(refused) == (reply is None)
    if reply is not None:
        assert isinstance(reply.tokens, int)
        assert reply.tokens > 0


@pytest.mark.parametrize(
    "data",
    [b"[" * 100_000, b"x" * 1_000_000, b"9" * 10_000],
    ids=["nested", "a line of a megabyte", "a number of 10,000 digits"],
)
def test_answers_of_great_size(data: bytes) -> None:
    pytest.importorskip("aiohttp")
    from tests.engine.tenants.test_client import _OPENAI, ask, saying

    body = b"data: " + data + b"\n\ndata: [DONE]\n\n"
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with pytest.raises(HwqError) as refused:
        ask(_OPENAI, saying(head + body))
    assert len(str(refused.value)) < 1000
