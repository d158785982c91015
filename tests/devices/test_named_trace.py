"""Names of ranks, of streams' tracks and of launches with several kernels in exported traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_hwqueue.devices.launches import (
    Events,
    name_launches,
    name_streams,
    rank_of_process,
    trace_path,
    write_trace,
)
from pytest_hwqueue.metrics.timeline import Kernel, Timeline


def complete(name: str, category: str, track: int, ts: float, dur: float, **args: Any) -> Any:
    return {
        "ph": "X", "name": name, "cat": category, "pid": 0, "tid": track, "ts": ts, "dur": dur,
        "args": args,
    }  # fmt: skip


@pytest.mark.parametrize(("environment", "rank"), [
    ({}, None), ({"RANK": ""}, None), ({"RANK": "x"}, None), ({"RANK": "0"}, "0"),
    ({"RANK": "12"}, "12"),
])  # fmt: skip
def test_rank(environment: dict[str, str], rank: str | None) -> None:
    assert rank_of_process(environment) == rank


def test_each_rank_has_a_file_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert trace_path(Path("traces"), "moe-1234.json") == Path("traces/moe-1234.json")
    monkeypatch.setenv("RANK", "1")
    assert trace_path(Path("traces"), "moe-1234.json") == Path("traces/moe-1234-rank1.json")


def test_only_streams_tracks_are_named_and_ordered() -> None:
    def track(pid: int, tid: int, name: str) -> list[dict[str, Any]]:
        return [
            {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}},
            {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid,
             "args": {"sort_index": 99}},
        ]  # fmt: skip

    events: Events = [
        *track(0, 13, "stream 13 "), *track(0, 7, "stream 7 "), *track(5, 13, "thread 13 (python)"),
    ]  # fmt: skip

    name_streams(events, {13: 2})

    assert [list(event["args"].values()) for event in events] == [
        ["stream 2"], [2], ["stream 7 "], [99], ["thread 13 (python)"], [99],
    ]  # fmt: skip


def test_a_launch_of_several_kernels_is_one_range_on_each_track() -> None:
    events: Events = [
        complete("hwq.launch 0", "user_annotation", 1, 0.0, 5.0),
        complete("gemm", "kernel", 13, 10.0, 2.0, correlation=1),
        complete("copy", "gpu_memcpy", 13, 14.5, 1.25, correlation=2),
        complete("elsewhere", "kernel", 20, 11.0, 1.0, correlation=3),
        complete("untagged", "kernel", 13, 30.0, 1.0, correlation=4),
        complete("foreign", "kernel", 13, 40.0, 1.0, correlation=5),
    ]

    found = name_launches(events, {1: 0, 2: 0, 3: 0, 4: 1}, ["expert", None])

    ranges = [
        (event["name"], event["tid"], event["ts"], event["dur"])
        for event in found
        if event["cat"] == "gpu_user_annotation"
    ]
    assert ranges == [("expert", 13, 10.0, 5.75), ("expert", 20, 11.0, 1.0)]
    assert found[2:] == events
    assert events[0]["name"] == "expert"


def test_a_host_trace_says_its_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = Timeline((Kernel(0, 0, "run", "small", 0, 10, 20),), 1, None)
    path = tmp_path / "trace.json"

    def process_names(process: str | None) -> list[str]:
        write_trace(timeline, str(path), process=process)
        events = json.loads(path.read_text())["traceEvents"]
        return [event["args"]["name"] for event in events if event["name"] == "process_name"]

    monkeypatch.delenv("RANK", raising=False)
    assert process_names(None) == []
    monkeypatch.setenv("RANK", "2")
    assert process_names(None) == ["rank 2"]
    assert process_names("simulated NVIDIA H200") == ["rank 2: simulated NVIDIA H200"]
