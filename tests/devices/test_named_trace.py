"""Names of ranks, of streams' tracks and of launches with several kernels in exported traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_hwqueue.devices.trace_files import (
    Events,
    name_launches,
    name_streams,
    rank_of_process,
    trace_path,
    write_trace,
)
from pytest_hwqueue.metrics.timeline import Kernel, Timeline

from .marks import complete


def test_each_rank_has_a_file_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for told, rank in ((None, None), ("", None), ("x", None), ("0", "0"), ("12", "12")):
        assert rank_of_process({} if told is None else {"RANK": told}) == rank
        with monkeypatch.context() as patched:
            patched.delenv("RANK", raising=False)
            if told is not None:
                patched.setenv("RANK", told)
            name = "moe-1234.json" if rank is None else f"moe-1234-rank{rank}.json"
            assert trace_path(Path("traces"), "moe-1234.json") == Path("traces") / name


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
        complete("user_annotation", "hwq.launch 0", 0, 5000, 1),
        complete("kernel", "gemm", 10_000, 2000, 13, correlation=1),
        complete("gpu_memcpy", "copy", 14_500, 1250, 13, correlation=2),
        complete("kernel", "elsewhere", 11_000, 1000, 20, correlation=3),
        complete("kernel", "untagged", 30_000, 1000, 13, correlation=4),
        complete("kernel", "foreign", 40_000, 1000, 13, correlation=5),
    ]
    found = name_launches(events, {1: 0, 2: 0, 3: 0, 4: 1}, ["expert", None])

    assert [(event["name"], event["tid"], event["ts"], event["dur"]) for event in found[:2]] == [
        ("expert", 13, 10.0, 5.75), ("expert", 20, 11.0, 1.0),
    ]  # fmt: skip
    assert {event["cat"] for event in found[:2]} == {"gpu_user_annotation"}
    assert found[2:] == events
    assert events[0]["name"] == "expert"


def test_a_host_trace_has_its_tracks_and_kernels_and_says_its_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = Kernel(0, 1, "run", "small", 500, 1000, 3500), Kernel(1, 0, "run", None, 5, 10, 20)
    expected = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 0, "args": {"name": "stream 0 of A"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "stream 1 of A"}},
        {"ph": "X", "cat": "kernel", "name": "small", "pid": 1, "tid": 0, "ts": 1.0, "dur": 2.5,
         "args": {"launch": 1, "enqueued_us": 0.5}},
        {"ph": "X", "cat": "kernel", "name": "run", "pid": 1, "tid": 1, "ts": 0.01, "dur": 0.01,
         "args": {"launch": 0, "enqueued_us": 0.005}},
    ]  # fmt: skip
    path = tmp_path / "trace.json"
    for rank, process, names in [
        ("", None, []),
        ("2", None, ["rank 2"]),
        ("2", "simulated NVIDIA H200", ["rank 2: simulated NVIDIA H200"]),
    ]:
        monkeypatch.setenv("RANK", rank)
        write_trace(Timeline(kernels, 2, None), str(path), process=process, label="of A")
        named = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": n}} for n in names]
        assert json.loads(path.read_text()) == {"traceEvents": named + expected}
