"""A timeline as Chrome trace events, which Perfetto reads: a track per stream."""

from __future__ import annotations

import json
from typing import Any

from pytest_hwqueue.devices.named_trace import name_processes, rank_of_process
from pytest_hwqueue.metrics.timeline import Timeline


def write_trace(
    timeline: Timeline, path: str, *, process: str | None = None, label: str = ""
) -> None:
    """Write a timeline.

    Args:
        timeline: its kernels' times become microseconds of the trace.
        path: file to write.
        process: display name of the only process, after its rank if it has one; unnamed if None.
        label: follows each stream's name.

    """
    events: list[dict[str, Any]] = []
    rank = rank_of_process()
    if process is not None or rank is not None:
        events.append(
            {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": process or ""}}
        )
        name_processes(events, rank)
    events += [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": stream,
         "args": {"name": f"stream {stream} {label}".rstrip()}}
        for stream in range(timeline.streams)
    ]  # fmt: skip
    events += [
        {"ph": "X", "cat": "kernel", "name": kernel.tag or kernel.name, "pid": 1,
         "tid": kernel.stream, "ts": kernel.start_ns / 1000,
         "dur": (kernel.end_ns - kernel.start_ns) / 1000,
         "args": {"launch": kernel.launch, "enqueued_us": kernel.enqueued_ns / 1000}}
        for kernel in timeline.kernels
    ]  # fmt: skip
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"traceEvents": events}, file)
