"""Trace files: written in Chrome's format, with named processes and ranges."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_hwqueue.metrics.timeline import Timeline

Events = list[dict[str, Any]]

LAUNCH = "hwq.launch "
"""Starts the name of the range around a launch; its index follows."""
NAMED_RANGES = "HWQ_NAMED_RANGES"
"""The environment variable that makes tagged launches ranges for a vendor's profiler."""
PICTURES = "HWQ_PICTURES"
"""The environment variable by which `hwq trace` asks for a file of each cell's traced pass."""
WITH_CSV = "csv"
"""Its value that asks for the events as CSV too."""
_DEVICE_RANGE = "gpu_user_annotation"


def rank_of_process(environment: Mapping[str, str] | None = None) -> str | None:
    """Return the rank that a launcher such as torchrun gave this process, or None."""
    rank = (os.environ if environment is None else environment).get("RANK", "")
    return rank if rank.isdecimal() else None


def trace_path(folder: Path, file_name: str) -> Path:
    """Return the path of a cell's trace; each rank has its own file.

    Args:
        folder: of the traces.
        file_name: of the cell, ending in ``.json``.

    """
    rank = rank_of_process()
    stem = file_name.removesuffix(".json")
    return folder / (file_name if rank is None else f"{stem}-rank{rank}.json")


def name_streams(events: Events, indices: Mapping[int, int]) -> None:
    """Name and order the tracks of streams by our indices.

    Args:
        events: changed in place.
        indices: of our streams, by the runtime's stream numbers (the tracks' ``tid``).

    """
    # Host threads may have the same numbers: a stream's track says in its name that it is one.
    tracks = {
        (event["pid"], event["tid"]): indices[event["tid"]]
        for event in events
        if event.get("name") == "thread_name"
        and event.get("tid") in indices
        and "stream" in event["args"].get("name", "")
    }
    for event in events:
        index = tracks.get((event.get("pid"), event.get("tid")))
        if index is None:
            continue
        if event.get("name") == "thread_name":
            event["args"]["name"] = f"stream {index}"
        elif event.get("name") == "thread_sort_index":
            event["args"]["sort_index"] = index


def name_launches(events: Events, owners: Mapping[int, int], tags: Sequence[str | None]) -> Events:
    """Return the events with each tagged launch as a range of that name, on host and stream.

    Args:
        events: of kernels, copies and our ranges; host ranges are changed in place.
        owners: index of the launch by the correlation number of its calls and kernels.
        tags: of the launches, by index.

    """
    kept = []
    spans: dict[tuple[int, int, int], tuple[float, float]] = {}
    for event in events:
        name, category = event.get("name", ""), event.get("cat")
        if name.startswith(LAUNCH) and name.removeprefix(LAUNCH).isdecimal():
            index = int(name.removeprefix(LAUNCH))
            tag = tags[index]
            if tag is not None:
                if category == _DEVICE_RANGE:
                    # CUDA's profiler repeats host ranges on streams, ROCm's does not: see below.
                    continue
                event["name"] = tag
                event["args"] = {**event.get("args", {}), "launch": index}
        elif category in ("kernel", "gpu_memcpy", "gpu_memset"):
            owner = owners.get(event["args"].get("correlation"))
            if owner is not None and tags[owner] is not None:
                key = (owner, event["pid"], event["tid"])
                end = event["ts"] + event["dur"]
                first, last = spans.get(key, (event["ts"], end))
                spans[key] = (min(first, event["ts"]), max(last, end))
        kept.append(event)
    ranges = [
        {"ph": "X", "cat": _DEVICE_RANGE, "name": tags[index], "pid": process, "tid": track,
         "ts": start, "dur": round(end - start, 3), "args": {"launch": index}}
        for (index, process, track), (start, end) in spans.items()
    ]  # fmt: skip
    # In front: of two events that start together, the first one encloses the second.
    return [*ranges, *kept]


def name_processes(events: Events, rank: str | None) -> None:
    """Prefix every process's name with the rank, if there is one."""
    if rank is None:
        return
    for event in events:
        if event.get("ph") == "M" and event.get("name") == "process_name":
            event["args"]["name"] = f"rank {rank}: {event['args'].get('name', '')}".rstrip(": ")


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
