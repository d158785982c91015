"""Kernel intervals per stream from torch.profiler's activities (CUPTI, roctracer).

The trace is read in the Chrome trace format that Kineto writes: kernels carry the runtime's
stream number and a correlation with the call that launched them, and each launch of ours is
wrapped in a named range.
"""

from __future__ import annotations

import json
import os
import re
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch._C._profiler import RecordScope
from torch.autograd import profiler as torchs

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.data.metrics.timeline import HostCall, Kernel, KernelShape, Timeline
from pytest_hwqueue.data.safe_files import write_text
from pytest_hwqueue.parts.devices.clocks import ClockPair, measure_offset, own_threads
from pytest_hwqueue.parts.devices.launches import (
    LAUNCH,
    LaunchTrace,
    name_launches,
    name_processes,
    name_streams,
    no_garbage_collection,
    rank_of_process,
)
from pytest_hwqueue.parts.processes.scratch import scratch_folder

if TYPE_CHECKING:
    from pytest_hwqueue.parts.devices.accelerator import AcceleratorPool

_TEARDOWN = "TEARDOWN_CUPTI"
_LEAVING_S = 0.5
_GATE = "hwq.gate"
_MARKER = "hwq.marker "
_OURS = (LAUNCH, _GATE, _MARKER)
DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_RUNTIME_CALLS = ("cuda_runtime", "cuda_driver")
# Kineto takes its stamps of CLOCK_REALTIME and writes them as µs since this many ns.
_BASE = "baseTimeNanoseconds"
# Calls that ask the device or the system for memory, give it back, or load code.
_MEMORY_OR_CODE = re.compile(
    r"(cuda|cu|hip)(Malloc|Free|Mem(Create|Map|Unmap|Release|Alloc|Free|Address|HostAlloc)"
    r"|Host(Alloc|Malloc|Free|Register|Unregister)|Module(Load|Unload)|Library(Load|Unload)"
    r"|Link(Create|Complete))"
)


def launch_name(index: int) -> str:
    """Name of the range around launch ``index``."""
    return f"{LAUNCH}{index}"


def collect(pool: AcceleratorPool, enqueue: Callable[[], None], hold_ns: int | None) -> Timeline:
    """Trace one ``enqueue``, held behind a gate for about ``hold_ns`` unless None.

    Without a gate, times are on the host's clock; held ones are comparable only with each other.

    Raises:
        DeviceError: if the profiler saw no kernels (no permission, no CUPTI).

    """
    with scratch_folder() as folder:
        path = Path(folder) / "trace.json"
        before = measure_offset()
        launches = _run(pool, enqueue, hold_ns, str(path))
        clocks = None if hold_ns else ClockPair(before, measure_offset())
        # Looking at events while they are made would take as long as making them.
        with no_garbage_collection():
            trace = json.loads(path.read_text(encoding="utf-8"))
            return read(trace, launches, len(pool.streams), clocks, pool.in_green_contexts)


def export(pool: AcceleratorPool, enqueue: Callable[[], None], path: str) -> None:
    """Write the trace of one pass to ``path``, with names of our streams, tags and rank."""
    # The profiler follows a link of the file's name; in a folder of ours there is none.
    with scratch_folder() as folder:
        own = Path(folder) / "trace.json"
        launches = _run(pool, enqueue, None, str(own), operations=True)
        trace = json.loads(own.read_text(encoding="utf-8"))
    write_text(Path(path), json.dumps(with_names(trace, launches)))


def with_names(trace: dict[str, Any], launches: LaunchTrace) -> dict[str, Any]:
    """Return a trace with names of our streams, tags and rank."""
    events = trace["traceEvents"]
    seen = _Seen(events)
    name_streams(events, {number: index for (_, number), index in seen.stream_indices().items()})
    owners = {
        correlation: int(name.removeprefix(LAUNCH))
        for correlation, (name, _) in seen.owners.items()
        if name.startswith(LAUNCH)
    }
    tags = [launch.tag for launch in launches.launches]
    named = name_launches(events, owners, tags)
    name_processes(events, rank_of_process())
    return {**trace, "traceEvents": named}


def _run(
    pool: AcceleratorPool,
    enqueue: Callable[[], None],
    hold_ns: int | None,
    path: str,
    *,
    operations: bool = False,
) -> LaunchTrace:
    device = pool.device
    spin = device.kernel_of(hold_ns) if hold_ns else None
    gate = torch.cuda.Event()
    tags, pool.tags = pool.tags, None
    try:
        pool.synchronize()
        profiled, device.profiled = device.profiled, True
        before = threads()
        profiler = Profiler(operations=operations).start()
        try:
            mark_streams(pool)
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
        finally:
            profiler.stop()
        profiler.write(Path(path))
        device.profiled = profiled or not detached(threads() - before)
    finally:
        pool.trace = None
        pool.tags = tags
    return trace


def threads() -> set[int]:
    """Return the ids of this process's threads; none where the system does not list them."""
    return set(own_threads()) if Path("/proc/self/task").exists() else set()


def detached(started: set[int]) -> bool:
    """Return whether CUPTI leaves this process, of whose threads these began with a profiler.

    While it stays, replaying a small graph takes 30 µs of the host on an H200, not 4, and an eager
    launch 17, not 9. Kineto has it leave, if asked to, at a later call of the runtime's; a profiler
    that is started before loses its kernels (pytorch/kineto#1554). Its threads then end but for
    Kineto's own.
    """
    if not started or os.environ.get(_TEARDOWN) != "1":
        return False
    until = time.monotonic() + _LEAVING_S
    while len(started & threads()) > 1:
        if time.monotonic() > until:
            return False
        torch.cuda.synchronize()
        time.sleep(0.001)
    return True


class Profiler:
    """Torch's profiler of host and device, for one cycle.

    Not torch.profiler's, which wraps the same one: that asks for torch's compiler, and so imports
    it, for 3 to 6 s of each session. No Python object is made of an event: that would take longer
    than the rest of the trace.

    Args:
        operations: whether each operation of torch is an event, too, and not only named ranges and
            the runtime's calls; that makes launches, and reading the trace, slower.
        options: of the profiler.

    """

    def __init__(self, *, operations: bool = False, **options: Any) -> None:
        self._profile: Any = torchs.profile(use_device="cuda", use_kineto=True, **options)
        self._scopes = set() if operations else {RecordScope.USER_SCOPE}

    def start(self) -> Profiler:
        """Start; return itself."""
        # Before CUDA 12.6 a graph's replay may crash afterwards (pytorch/pytorch#146604).
        if tuple(map(int, (torch.version.cuda or "0.0").split(".")[:2])) >= (12, 6):
            os.environ.setdefault(_TEARDOWN, "1")
        profile, module = self._profile, cast(Any, torchs)
        profile._prepare_trace()
        # What its `_start_trace` does, with scopes.
        module._run_on_profiler_start()
        module._enable_profiler(profile.config(), profile.kineto_activities, self._scopes)
        return self

    def stop(self) -> None:
        """Wait for the device, and stop."""
        self._profile.__exit__(None, None, None)

    def write(self, path: Path) -> None:
        """Write the trace in Chrome's format, to a folder that is this process's own."""
        self._profile.export_chrome_trace(str(path))


def mark_streams(pool: AcceleratorPool) -> None:
    """Run a marker kernel on each stream, to identify the profiler's stream numbers."""
    marker = torch.zeros(1, device=pool.device.torch_device)
    pool.synchronize()
    for stream in pool.streams:
        with torch.profiler.record_function(f"{_MARKER}{stream.index}"):
            stream.launch(marker.add_, 0)
    pool.synchronize()


def read(
    trace: dict[str, Any],
    launches: LaunchTrace,
    streams: int,
    clocks: ClockPair | None = None,
    in_green_contexts: Container[int] = (),
) -> Timeline:
    """Turn a Chrome trace of a traced pass into the kernels of our launches, in ns.

    Args:
        trace: as Kineto writes it.
        launches: of the pass.
        streams: how many were requested.
        clocks: convert the timestamps to CLOCK_MONOTONIC; None keeps the trace's own.
        in_green_contexts: our streams that belong to a green context.

    Raises:
        DeviceError: if the trace holds no kernels of ours.

    """
    seen = _Seen(trace["traceEvents"])
    indices = seen.stream_indices()
    base_ns = int(trace.get(_BASE, 0))

    def when_ns(stamp_ns: int) -> int:
        return stamp_ns if clocks is None else clocks.to_monotonic(base_ns + stamp_ns)

    contexts = {index: context for (context, _), index in indices.items() if context is not None}
    calls, call_of = seen.calls(when_ns)
    kernels = []
    released_ns = None
    elsewhere = 0
    for event in seen.work:
        found = seen.owners.get(event["args"].get("correlation"))
        if found is None:
            continue
        name, enqueued_ns = found
        start_ns = when_ns(_ns(event["ts"]))
        end_ns = start_ns + _ns(event["dur"])
        if name == _GATE:
            released_ns = end_ns
        elif name.startswith(LAUNCH):
            index = int(name.removeprefix(LAUNCH))
            launch = launches.launches[index]
            stream = _stream_of(event, indices)
            call = call_of.get(event["args"].get("correlation"))
            # In a green context the driver replays a graph on streams of its own, which it creates
            # in that context: the kernels keep to the multiprocessors of the stream they belong to.
            if (
                stream is None
                and launch.stream in in_green_contexts
                and call is not None
                and "GraphLaunch" in calls[call].name
                and event["args"].get("context") == contexts.get(launch.stream)
            ):
                stream = launch.stream
            elsewhere += stream is None
            kernels.append(
                Kernel(
                    stream=launch.stream if stream is None else stream,
                    launch=index,
                    name=event["name"],
                    tag=launch.tag,
                    enqueued_ns=when_ns(enqueued_ns),
                    start_ns=start_ns,
                    end_ns=end_ns,
                    waits_for=launch.waits_for,
                    call=call,
                    shape=_shape(event["args"]),
                )
            )
    if not kernels:
        raise DeviceError(
            "torch.profiler saw no kernels: it lacks the right to trace this GPU, or its "
            "activity library (CUPTI, roctracer) is missing; `hwq doctor` checks this"
        )
    kernels.sort(key=lambda kernel: kernel.start_ns)
    return Timeline(tuple(kernels), streams, released_ns, elsewhere, calls, clocks)


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)


class _Seen:
    """A trace, looked through once.

    Attributes:
        work: the events of what the device did.
        owners: for each correlation number of a call in a range of ours, the range's name, and when
            the work was enqueued, in ns.

    """

    def __init__(self, events: Iterable[dict[str, Any]]) -> None:
        self.work: list[dict[str, Any]] = []
        self.owners: dict[int, tuple[str, int]] = {}
        runtime = []
        # As (start, end, name), in µs.
        ranges: list[tuple[float, float, str]] = []
        for event in events:
            if event.get("ph") != "X":
                continue
            category = event.get("cat")
            if category in DEVICE_WORK:
                self.work.append(event)
            elif category in _RUNTIME_CALLS:
                runtime.append(event)
            elif category == "user_annotation" and event.get("name", "").startswith(_OURS):
                ranges.append((event["ts"], event["ts"] + event["dur"], event["name"]))
        ranges.sort()
        starts = [start for start, _, _ in ranges]
        # Each call of the runtime, with its correlation number and the range that it lies in.
        self._calls: list[tuple[dict[str, Any], int | None, str]] = []
        for event in runtime:
            began = event["ts"]
            correlation = event.get("args", {}).get("correlation")
            position = bisect_right(starts, began) - 1
            within = ranges[position][2] if position >= 0 and began <= ranges[position][1] else ""
            self._calls.append((event, correlation, within))
            if within and correlation is not None:
                self.owners[correlation] = (within, _ns(began + event["dur"]))

    def calls(self, when_ns: Callable[[int], int]) -> tuple[tuple[HostCall, ...], dict[int, int]]:
        """Return the relevant calls of the runtime, and their indices by correlation number.

        Relevant calls enqueue work on the device, or are for memory or code.
        """
        work = {event["args"].get("correlation") for event in self.work}
        calls: list[HostCall] = []
        by_correlation: dict[int, int] = {}
        for event, correlation, within in self._calls:
            if correlation is not None and correlation in work:
                by_correlation[correlation] = len(calls)
            elif not _MEMORY_OR_CODE.match(event["name"]):
                continue
            launch = int(within.removeprefix(LAUNCH)) if within.startswith(LAUNCH) else None
            begin_ns = when_ns(_ns(event["ts"]))
            thread = event["tid"] if isinstance(event.get("tid"), int) else None
            end_ns = begin_ns + _ns(event["dur"])
            calls.append(HostCall(event["name"], thread, begin_ns, end_ns, launch))
        return tuple(calls), by_correlation

    def stream_indices(self) -> dict[tuple[int | None, int], int]:
        """Map the profiler's contexts and stream numbers to our indices by the marker kernels.

        Numbers are unique in their context only, and green contexts are several. Where one number
        is of one stream, no context is needed, and None stands for it.
        """
        indices: dict[tuple[int | None, int], int] = {}
        for event in self.work:
            name, _ = self.owners.get(event["args"].get("correlation"), ("", 0))
            if name.startswith(_MARKER):
                key = (event["args"].get("context"), event["args"]["stream"])
                indices[key] = int(name.removeprefix(_MARKER))
        often = Counter(number for _, number in indices)
        for (_, number), index in list(indices.items()):
            if often[number] == 1:
                indices[None, number] = index
        return indices


def _shape(arguments: Mapping[str, Any]) -> KernelShape | None:
    """Read a kernel's shape; copies have none."""
    try:
        (gx, gy, gz), (bx, by, bz) = arguments["grid"], arguments["block"]
    except (KeyError, TypeError, ValueError):
        return None
    return KernelShape((gx, gy, gz), (bx, by, bz), arguments.get("shared memory"))


def _stream_of(event: dict[str, Any], indices: Mapping[tuple[int | None, int], int]) -> int | None:
    arguments = event["args"]
    number = arguments.get("stream")
    return indices.get((arguments.get("context"), number), indices.get((None, number)))
