"""A traced pass as files: a picture for Perfetto, and its events as CSV."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pytest_hwqueue.data.metrics.attribution import Attribution, RequestCause
from pytest_hwqueue.data.metrics.cpu_events import Interrupt, OffCpu
from pytest_hwqueue.data.metrics.numbers import grouped
from pytest_hwqueue.data.metrics.timeline import Kernel, Span, Timeline, union, within
from pytest_hwqueue.data.records.files import file_name
from pytest_hwqueue.data.records.telemetry import HostSample, TelemetrySample
from pytest_hwqueue.engine.causes.pictures import Picture, write_csv
from pytest_hwqueue.engine.causes.seen import kernel_label, own_threads
from pytest_hwqueue.engine.causes.traced_pass import Chunk, TracedPass, TracePlan
from pytest_hwqueue.parts.devices.launches import trace_path
from pytest_hwqueue.parts.devices.protocol import Device, StreamPool

_REQUESTS, _THREADS, _STREAMS, _CPU = "requests", "launching threads", "streams", "CPU"
_COUNTERS = {
    "sm_clock_mhz": ("SM clock", "MHz"),
    "memory_clock_mhz": ("memory clock", "MHz"),
    "temperature_c": ("temperature", "°C"),
    "power_w": ("power", "W"),
    "cpu_clock_mhz": ("CPU clock", "MHz"),
    "load_average_1m": ("load of 1 min", "processes"),
    "steal_s": ("stolen by the hypervisor", "s"),
}
_LEAD_IN = "warms the caches again before traced requests; it is none, and has no cause"
_MS = 1e6

Event = TypeVar("Event", OffCpu, Interrupt)


def write_files(
    plan: TracePlan,
    cell_id: str,
    device: Device,
    pool: StreamPool,
    passed: TracedPass,
    attribution: Attribution,
) -> list[str]:
    """Write the files that a plan requests, while the streams' threads are still alive.

    Returns:
        a note on each; none if no file is requested.

    Raises:
        OSError: if one cannot be written.

    """
    if plan.folder is None:
        return []
    plan.folder.mkdir(parents=True, exist_ok=True)
    path = trace_path(plan.folder, f"trace-{file_name(cell_id)}")
    names = _thread_names(passed)
    picture = _picture(device, pool, passed, attribution, names)
    picture.write(path, {"cell": cell_id, "level": passed.tracing.level})
    if not plan.csv:
        return [f"trace: {path}"]
    events = path.with_suffix(".csv")
    write_csv(events, os.getpid(), names, picture)
    return [f"trace: {path}", f"events: {events}"]


def _picture(
    device: Device,
    pool: StreamPool,
    passed: TracedPass,
    attribution: Attribution,
    names: Mapping[int, str],
) -> Picture:
    """Return all that a pass saw, on the host's clock, which is virtual on a simulated device."""
    picture = Picture("virtual" if device.capabilities.virtual_time else "CLOCK_MONOTONIC")
    _add_requests(picture, passed, attribution)
    handles = [stream.handle for stream in pool.streams]
    launches = calls = 0
    for chunk in passed.chunks:
        _add_work(picture, chunk, passed, names, handles, (launches, calls))
        launches += _launches(chunk.timeline)
        calls += len(chunk.timeline.calls)
    row = picture.track(_THREADS, names.get(passed.main, "host"))
    for number, (start_ns, end_ns) in enumerate(passed.waits):
        row.add("waits for the device", start_ns, end_ns, "wait", request=number, tid=passed.main)
    _add_cpu(picture, passed, names)
    for sample in passed.telemetry.samples:
        _add_sample(picture, sample)
    return picture


def _thread_names(passed: TracedPass) -> dict[int, str]:
    """Return the system's names of a pass's threads."""
    names = {}
    for tid in own_threads(passed):
        try:
            names[tid] = Path(f"/proc/self/task/{tid}/comm").read_text(encoding="utf-8").strip()
        except OSError:
            # It has ended meanwhile, or the system has no such file.
            names[tid] = f"thread {tid}"
    return names


def _add_requests(picture: Picture, passed: TracedPass, attribution: Attribution) -> None:
    causes: dict[int, tuple[str, RequestCause]] = {}
    for name, tail in sorted(attribution.tails.items()):
        causes |= {one.request: (name, one) for one in tail.requests}
    row = picture.track(_REQUESTS, "requests")
    for request in passed.requests:
        details: dict[str, object] = {"request": request.number}
        if request.number in causes:
            above, one = causes[request.number]
            where = f"on the {one.place}" if one.place is not None else ""
            details |= {
                "above": above, "cause": one.cause or "unexplained", "what": one.what or where,
                "longer_than_median_ms": one.excess_ns / _MS,
            }  # fmt: skip
        name = f"request {request.number}"
        row.add(name, request.arrival_ns, request.finished_ns, "request", **details)
    for chunk in passed.chunks:
        for start_ns, end_ns in chunk.lead_in:
            row.add("lead-in", start_ns, end_ns, "lead-in", why=_LEAD_IN)


def _add_work(
    picture: Picture,
    chunk: Chunk,
    passed: TracedPass,
    names: Mapping[int, str],
    handles: Sequence[int],
    before: tuple[int, int],
) -> None:
    """Add a chunk's calls and kernels; ``before`` are the launches and calls of earlier ones.

    Launches and calls are numbered throughout the file, so that a kernel names those that made it.
    """
    timeline = chunk.timeline
    launches_before, calls_before = before
    made_by = grouped((kernel.call, kernel) for kernel in timeline.kernels)
    calls = []
    for index, call in enumerate(timeline.calls):
        thread = passed.main if call.thread is None else call.thread
        row = picture.track(_THREADS, names.get(thread, f"thread {thread}"))
        made = made_by.get(index, [])
        details: dict[str, object] = {"tid": thread, "call": calls_before + index}
        details |= _owner(chunk, call.launch, launches_before) | {"kernels": len(made)}
        if made:
            details |= _where(made[0], handles)
        calls.append((row, row.add(call.name, call.begin_ns, call.end_ns, "call", **details)))
    for index in range(timeline.streams):
        picture.track(_STREAMS, f"stream {index}")
    so_far: dict[int, int] = {}
    for kernel in timeline.kernels:
        row = picture.track(_STREAMS, f"stream {kernel.stream}")
        details = {"function": kernel.name, **_owner(chunk, kernel.launch, launches_before)}
        details |= _where(kernel, handles)
        if kernel.call is not None:
            details["call"] = calls_before + kernel.call
            if len(made_by[kernel.call]) > 1:
                # One call, mostly a graph's replay, started them all.
                number = so_far[kernel.call] = so_far.get(kernel.call, 0) + 1
                called = timeline.calls[kernel.call].name
                details["started_by"] = f"{number} of {len(made_by[kernel.call])} of one {called}"
        drawn = row.add(kernel_label(kernel), kernel.start_ns, kernel.end_ns, "kernel", **details)
        # A stamp of the device may be wrong by the clocks' uncertainty; such an arrow is not drawn.
        if kernel.call is not None and calls[kernel.call][1].start_ns <= kernel.start_ns:
            picture.flow(calls[kernel.call], (row, drawn))


def _owner(chunk: Chunk, launch: int | None, before: int) -> dict[str, object]:
    """Return a launch's number in the file, and its request or that it is part of a lead-in."""
    if launch is None:
        return {}
    number = chunk.requests.get(launch)
    owner: dict[str, object] = {"lead_in": True} if number is None else {"request": number}
    return {"launch": before + launch, **owner}


def _where(kernel: Kernel, handles: Sequence[int]) -> dict[str, object]:
    """Return a kernel's stream, as the runtime numbers it, and its shape if known."""
    details: dict[str, object] = {"stream": f"{handles[kernel.stream]:#x}"}
    if kernel.shape is not None:
        details |= {"grid": kernel.shape.grid, "block": kernel.shape.block}
        if kernel.shape.shared_memory_bytes is not None:
            details["shared_mem"] = kernel.shape.shared_memory_bytes
    return details


def _launches(timeline: Timeline) -> int:
    """Return the number of launches that a timeline knows about."""
    known = {kernel.launch for kernel in timeline.kernels}
    known |= {call.launch for call in timeline.calls if call.launch is not None}
    return 1 + max(known, default=-1)


def _add_cpu(picture: Picture, passed: TracedPass, names: Mapping[int, str]) -> None:
    trace = passed.trace
    if trace is None:
        return
    threads, spans = own_threads(passed), _traced_spans(passed)
    for one in _suffered(trace.off_cpu, threads, spans):
        row = picture.track(_CPU, f"off the CPU: {names[one.tid]} ({one.tid})")
        details: dict[str, object] = {"tid": one.tid, "cpu": one.cpu, "back_on_cpu": one.end_cpu}
        if one.next_tid is not None:
            details |= {"then_ran": one.next_comm, "then_ran_tid": one.next_tid}
        row.add(one.reason or "off already", one.start_ns, one.end_ns, "switch", **details)
        if one.reason == "waited" and one.runnable_ns is not None:
            row.add("could run, had no CPU", one.runnable_ns, one.end_ns, "runnable", tid=one.tid)
    for each in _suffered(trace.interrupts or (), threads, spans):
        row = picture.track(_CPU, f"interrupts of {names[each.tid]} ({each.tid})")
        name = f"{each.kind} {each.name}"
        row.add(
            name, each.start_ns, each.end_ns, "interrupt",
            tid=each.tid, cpu=each.cpu, kind=each.kind, number=each.number, interrupt=each.name,
            **({"raised_by": each.raised_by} if each.raised_by else {}),
        )  # fmt: skip


def _add_sample(picture: Picture, sample: TelemetrySample | HostSample) -> None:
    for field, (name, unit) in _COUNTERS.items():
        value = getattr(sample, field, None)
        if value is not None:
            picture.counter(name, unit, sample.when_ns, value)
    if isinstance(sample, TelemetrySample):
        for name, count in sample.violation_counters.items():
            picture.counter(name, "so far", sample.when_ns, count)


def _traced_spans(passed: TracedPass) -> list[Span]:
    return union((chunk.begin_ns, chunk.end_ns) for chunk in passed.chunks)


def _suffered(events: Iterable[Event], threads: set[int], spans: Sequence[Span]) -> list[Event]:
    """Keep events of threads that lie at least partly within sorted, disjoint spans."""
    return [one for one in events if one.tid in threads and within(spans, one.start_ns, one.end_ns)]
