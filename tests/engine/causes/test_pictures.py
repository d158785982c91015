"""A picture as its two files, and slices that nest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.engine.causes.pictures import Picture, Slice, write_csv
from tests.stored_texts import assert_as_stored

T0 = 10**15


def test_both_files_have_all_that_is_known_on_the_clock_that_they_name(tmp_path: Path) -> None:
    drawn = Picture("CLOCK_MONOTONIC")
    threads, streams = drawn.track("process", "row"), drawn.track("streams", "stream 0")
    launch = threads.add(
        "cudaLaunchKernel", T0 + 50, T0 + 55, "call", tid=8, call=3, launch=2, kernels=1,
        grid=(1, 2, 3), block=(32, 1, 1), shared_mem=0, stream="0x7f",
    )  # fmt: skip
    threads.add("hipLaunchKernel", T0, T0, "call", tid=9)
    threads.add("waits", T0 + 60, T0 + 95, "wait", tid=8, request=1)
    threads.add("waited", T0 + 70, T0 + 90, "switch", tid=8, cpu=0, back_on_cpu=1)
    threads.add("off already", T0 - 5, T0 + 10, "switch", tid=9, cpu=None, back_on_cpu=0)
    threads.add("could run", T0 + 80, T0 + 90, "runnable", tid=8)
    for start, end, kind, number, name in (
        (20, 45, "softirq", 3, "NET_RX"), (30, 33, "vector", 236, "local_timer"),
    ):  # fmt: skip
        details = {"kind": kind, "number": number, "interrupt": name, "tid": 8, "cpu": 1}
        threads.add(name, T0 + start, T0 + end, "interrupt", **details)
    kernel = streams.add(
        "gemm", T0 + 62, T0 + 92, "kernel", launch=2, call=3, request=1, stream="0x7f"
    )
    # It only overlaps the other, and so is drawn below.
    streams.add("late", T0 + 80, T0 + 99, "kernel", started_by="2 of 2 of one graph launch")
    streams.add("request 1", T0 + 40, T0 + 99, "request", request=1)
    drawn.flow((threads, launch), (streams, kernel))
    drawn.counter("temperature", "°C", T0 + 100, 71)
    assert write_csv(tmp_path / "events.csv", 7, {8: "python"}, drawn) == 16
    assert_as_stored(__file__, "events.csv.txt", (tmp_path / "events.csv").read_text("utf-8"))
    drawn.write(tmp_path / "trace.json", {"cell": "c", "level": "perf"})
    read = json.loads((tmp_path / "trace.json").read_text("utf-8"))
    lines = ["\n".join(map(json.dumps, read.pop("traceEvents"))), json.dumps(read)]
    assert_as_stored(__file__, "trace.txt", "\n".join(lines))


def test_nothing_to_write_is_a_header_and_no_slice_ends_before_it_starts(tmp_path: Path) -> None:
    assert write_csv(tmp_path / "empty.csv", 1, {}, Picture("virtual")) == 0
    assert (tmp_path / "empty.csv").read_text().startswith("timestamp_ns,event_type,pid,tid,comm,")
    with pytest.raises(ValueError, match="before it starts"):
        Picture("virtual").track("process", "row").add("slice", 2, 1, "any")


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=30))
def test_slices_that_only_overlap_go_to_tracks_below(times: list[tuple[int, int]]) -> None:
    track = Picture("virtual").track("process", "row")
    for start, length in times:
        track.add("slice", start, start + length, "any")
    lanes: dict[int, list[Slice]] = {}
    number = track.lay_out()
    for one in track.slices:
        others = lanes.setdefault(one.lane, [])
        for other in others:
            first, last = sorted((one, other), key=lambda each: (each.start_ns, -each.end_ns))
            assert first.end_ns <= last.start_ns or last.end_ns <= first.end_ns
        others.append(one)
    assert sorted(lanes) == list(range(number))
