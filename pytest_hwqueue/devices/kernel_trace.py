"""Kernel intervals per stream from torch.profiler's activities (CUPTI, roctracer).

The trace is read in the Chrome trace format that Kineto writes: kernels carry the runtime's
stream number and a correlation with the call that launched them, and each launch of ours is
wrapped in a named range.
"""

from __future__ import annotations

import json
import tempfile
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pytest_hwqueue.devices.launches import LaunchTrace
from pytest_hwqueue.devices.named_trace import (
    LAUNCH,
    name_launches,
    name_processes,
    name_streams,
    rank_of_process,
)
from pytest_hwqueue.devices.protocol import DeviceError
from pytest_hwqueue.metrics.timeline import Kernel, Timeline

if TYPE_CHECKING:
    from pytest_hwqueue.devices.accelerator import AcceleratorPool

_GATE = "hwq.gate"
_MARKER = "hwq.marker "
_DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_RUNTIME_CALLS = ("cuda_runtime", "cuda_driver")


def launch_name(index: int) -> str:
    """Name of the range around launch ``index``."""
    return f"{LAUNCH}{index}"


def collect(pool: AcceleratorPool, enqueue: Callable[[], None], hold_ns: int | None) -> Timeline:
    """Trace one ``enqueue``, held behind a gate for about ``hold_ns`` unless None.

    Raises:
        DeviceError: if the profiler saw no kernels (no rights, no CUPTI).

    """
    with tempfile.TemporaryDirectory(prefix="hwq-") as folder:
        path = Path(folder) / "trace.json"
        trace = _run(pool, enqueue, hold_ns, str(path))
        return read(json.loads(path.read_text(encoding="utf-8")), trace, len(pool.streams))


def export(pool: AcceleratorPool, enqueue: Callable[[], None], path: str) -> None:
    """Write the trace of one pass to ``path``, with names of our streams, tags and rank."""
    launches = _run(pool, enqueue, None, path)
    trace = json.loads(Path(path).read_text(encoding="utf-8"))
    events = trace["traceEvents"]
    ranges = _ranges(events)
    name_streams(events, _stream_indices(events, ranges))
    owners = {
        correlation: int(name.removeprefix(LAUNCH))
        for correlation, (name, _) in _owners(_complete(events), ranges).items()
        if name.startswith(LAUNCH)
    }
    tags = [launch.tag for launch in launches.launches]
    trace["traceEvents"] = name_launches(events, owners, tags)
    name_processes(events, rank_of_process())
    Path(path).write_text(json.dumps(trace), encoding="utf-8")


def _run(
    pool: AcceleratorPool,
    enqueue: Callable[[], None],
    hold_ns: int | None,
    path: str,
) -> LaunchTrace:
    device = pool.device
    spin = device.kernel_of(hold_ns) if hold_ns else None
    marker = torch.zeros(1, device=device.torch_device)
    gate = torch.cuda.Event()
    tags, pool.tags = pool.tags, None
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    try:
        pool.synchronize()
        with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
            # One kernel per stream tells which of the profiler's stream numbers is which stream.
            for stream in pool.streams:
                with torch.profiler.record_function(f"{_MARKER}{stream.index}"):
                    stream.launch(marker.add_, 0)
            pool.synchronize()
            pool.trace = trace = LaunchTrace()
            if spin is not None:
                default = torch.cuda.default_stream(device.torch_device)
                with torch.profiler.record_function(_GATE), torch.cuda.stream(default):
                    spin()
                    gate.record(default)
                for stream in pool.streams:
                    stream.stream.wait_event(gate)
            enqueue()
            pool.synchronize()
        profiler.export_chrome_trace(path)
    finally:
        pool.trace = None
        pool.tags = tags
    return trace


def read(trace: dict[str, Any], launches: LaunchTrace, streams: int) -> Timeline:
    """Turn a Chrome trace of a traced pass into the kernels of our launches, in ns.

    Raises:
        DeviceError: if the trace holds no kernels of ours.

    """
    events = _complete(trace["traceEvents"])
    ranges = _ranges(events)
    owner = _owners(events, ranges)
    indices = _stream_indices(events, ranges)
    kernels = []
    released_ns = None
    elsewhere = 0
    for event in events:
        if event.get("cat") not in _DEVICE_WORK:
            continue
        found = owner.get(event["args"].get("correlation"))
        if found is None:
            continue
        name, enqueued_ns = found
        start_ns = _ns(event["ts"])
        end_ns = start_ns + _ns(event["dur"])
        if name == _GATE:
            released_ns = end_ns
        elif name.startswith(LAUNCH):
            index = int(name.removeprefix(LAUNCH))
            launch = launches.launches[index]
            number = event["args"].get("stream")
            elsewhere += number not in indices
            kernels.append(
                Kernel(
                    stream=indices.get(number, launch.stream),
                    launch=index,
                    name=event["name"],
                    tag=launch.tag,
                    enqueued_ns=enqueued_ns,
                    start_ns=start_ns,
                    end_ns=end_ns,
                    waits_for=launch.waits_for,
                )
            )
    if not kernels:
        raise DeviceError(
            "torch.profiler saw no kernels: it lacks the right to trace this GPU, or its "
            "activity library (CUPTI, roctracer) is missing; `hwq doctor` checks this"
        )
    kernels.sort(key=lambda kernel: kernel.start_ns)
    return Timeline(tuple(kernels), streams, released_ns, elsewhere)


def _complete(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out what has no duration."""
    return [event for event in events if event.get("ph") == "X"]


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def _ranges(events: list[dict[str, Any]]) -> list[tuple[float, float, str]]:
    """Return our named ranges on the host as (start, end, name) in µs, by start."""
    ours = (LAUNCH, _GATE, _MARKER)
    found = [
        (event["ts"], event["ts"] + event["dur"], event["name"])
        for event in events
        if event.get("cat") == "user_annotation" and event.get("name", "").startswith(ours)
    ]
    return sorted(found)


def _owners(
    events: list[dict[str, Any]], ranges: list[tuple[float, float, str]]
) -> dict[int, tuple[str, int]]:
    """Map a correlation number to the name of our range it lies in and its enqueue time in ns."""
    starts = [start for start, _, _ in ranges]
    owners: dict[int, tuple[str, int]] = {}
    for event in events:
        if event.get("cat") not in _RUNTIME_CALLS:
            continue
        correlation = event.get("args", {}).get("correlation")
        position = bisect_right(starts, event["ts"]) - 1
        if correlation is None or position < 0:
            continue
        _, end, name = ranges[position]
        if event["ts"] <= end:
            owners[correlation] = (name, _ns(event["ts"] + event["dur"]))
    return owners


def _stream_indices(
    events: list[dict[str, Any]], ranges: list[tuple[float, float, str]]
) -> dict[int, int]:
    """Map the profiler's stream numbers to our indices by the marker kernels."""
    owners = _owners(_complete(events), ranges)
    indices = {}
    for event in events:
        if event.get("cat") not in _DEVICE_WORK:
            continue
        name, _ = owners.get(event["args"].get("correlation"), ("", 0))
        if name.startswith(_MARKER):
            indices[event["args"]["stream"]] = int(name.removeprefix(_MARKER))
    return indices
