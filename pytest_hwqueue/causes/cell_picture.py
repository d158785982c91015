"""A traced pass as files: a picture for Perfetto, and its events as CSV."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pytest_hwqueue.causes.seen import kernel_label, own_threads
from pytest_hwqueue.causes.traced_pass import Chunk, TracedPass, TracePlan
from pytest_hwqueue.devices.named_trace import trace_path
from pytest_hwqueue.devices.protocol import Device, StreamPool
from pytest_hwqueue.devices.telemetry import HostSample, TelemetrySample
from pytest_hwqueue.metrics.attribution import Attribution, RequestCause
from pytest_hwqueue.metrics.cpu_events import Interrupt, OffCpu
from pytest_hwqueue.metrics.intervals import Span, union, within
from pytest_hwqueue.metrics.timeline import Kernel
from pytest_hwqueue.records.names import file_name
from pytest_hwqueue.tracing.chrome_events import Picture
from pytest_hwqueue.tracing.csv_export import LaunchCall, SyncCall, write_csv

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
    """Write the files that a plan asks for, while the streams' threads still live.

    Returns:
        a note on each; none where none is asked for.

    Raises:
        OSError: if one cannot be written.

    """
    if plan.folder is None:
        return []
    plan.folder.mkdir(parents=True, exist_ok=True)
    path = trace_path(plan.folder, f"trace-{file_name(cell_id)}")
    _write_picture(path, cell_id, device, passed, attribution)
    if not plan.csv:
        return [f"trace: {path}"]
    events = path.with_suffix(".csv")
    _write_events(events, pool, passed)
    return [f"trace: {path}", f"events: {events}"]


def _write_picture(
    path: Path, cell_id: str, device: Device, passed: TracedPass, attribution: Attribution
) -> None:
    """Write a trace of all requests.

    Its clock is the host's, CLOCK_MONOTONIC; on a simulated device it is virtual.
    """
    picture = Picture()
    _add_requests(picture, passed, attribution)
    names = _thread_names(passed)
    for chunk in passed.chunks:
        _add_work(picture, chunk, passed, names)
    row = picture.track(_THREADS, names.get(passed.main, "host"))
    for number, (start_ns, end_ns) in enumerate(passed.waits):
        row.add("waits for the device", start_ns, end_ns, "wait", request=number)
    _add_cpu(picture, passed, names)
    for sample in passed.telemetry.samples:
        _add_sample(picture, sample)
    clock = "virtual" if device.capabilities.virtual_time else "CLOCK_MONOTONIC"
    picture.write(path, {"cell": cell_id, "clock": clock, "level": passed.tracing.level})


def _write_events(path: Path, pool: StreamPool, passed: TracedPass) -> None:
    """Write launches, waits, switches and interrupts as CSV."""
    launches, names = [], _thread_names(passed)
    for chunk in passed.chunks:
        kernels = _first_kernels(chunk)
        for index, call in enumerate(chunk.timeline.calls):
            kernel = kernels.get(index)
            if kernel is None:
                continue
            shape = kernel.shape
            launches.append(
                LaunchCall(
                    when_ns=call.begin_ns,
                    call=call.name,
                    tid=passed.main if call.thread is None else call.thread,
                    grid=None if shape is None else shape.grid,
                    block=None if shape is None else shape.block,
                    shared_memory_bytes=None if shape is None else shape.shared_memory_bytes,
                    stream=pool.streams[kernel.stream].handle,
                )
            )
    trace = passed.trace
    threads, spans = own_threads(passed), _traced_spans(passed)
    write_csv(
        path,
        os.getpid(),
        names,
        launches,
        [SyncCall(start_ns, end_ns, passed.main) for start_ns, end_ns in passed.waits],
        [] if trace is None else _suffered(trace.off_cpu, threads, spans),
        [] if trace is None else _suffered(trace.interrupts or (), threads, spans),
    )


def _thread_names(passed: TracedPass) -> dict[int, str]:
    """Return the names that the system has for the threads of a pass."""
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
        told: dict[str, object] = {"request": request.number}
        if request.number in causes:
            above, one = causes[request.number]
            where = f"on the {one.place}" if one.place is not None else ""
            told |= {
                "above": above, "cause": one.cause or "unexplained", "what": one.what or where,
                "longer_than_median_ms": one.excess_ns / _MS,
            }  # fmt: skip
        name = f"request {request.number}"
        row.add(name, request.arrival_ns, request.finished_ns, "request", **told)


def _add_work(picture: Picture, chunk: Chunk, passed: TracedPass, names: Mapping[int, str]) -> None:
    timeline = chunk.timeline
    calls = []
    for call in timeline.calls:
        thread = passed.main if call.thread is None else call.thread
        row = picture.track(_THREADS, names.get(thread, f"thread {thread}"))
        told = _of_request(chunk, call.launch)
        calls.append((row, row.add(call.name, call.begin_ns, call.end_ns, "call", **told)))
    for index in range(timeline.streams):
        picture.track(_STREAMS, f"stream {index}")
    for kernel in timeline.kernels:
        row = picture.track(_STREAMS, f"stream {kernel.stream}")
        more: dict[str, object] = {"function": kernel.name, "launch": kernel.launch}
        made = row.add(
            kernel_label(kernel), kernel.start_ns, kernel.end_ns, "kernel",
            **more, **_of_request(chunk, kernel.launch),
        )  # fmt: skip
        # A stamp of the device may be wrong by the clocks' uncertainty; such an arrow is not drawn.
        if kernel.call is not None and calls[kernel.call][1].start_ns <= kernel.start_ns:
            picture.flow(calls[kernel.call], (row, made))


def _of_request(chunk: Chunk, launch: int | None) -> dict[str, object]:
    number = None if launch is None else chunk.requests.get(launch)
    return {} if number is None else {"request": number}


def _add_cpu(picture: Picture, passed: TracedPass, names: Mapping[int, str]) -> None:
    trace = passed.trace
    if trace is None:
        return
    threads, spans = own_threads(passed), _traced_spans(passed)
    for one in _suffered(trace.off_cpu, threads, spans):
        row = picture.track(_CPU, f"off the CPU: {names[one.tid]} ({one.tid})")
        told: dict[str, object] = {"cpu": one.cpu, "back_on_cpu": one.end_cpu}
        if one.next_tid is not None:
            told |= {"then_ran": one.next_comm, "then_ran_tid": one.next_tid}
        row.add(one.reason or "off already", one.start_ns, one.end_ns, "switch", **told)
        if one.reason == "waited" and one.runnable_ns is not None:
            row.add("could run, had no CPU", one.runnable_ns, one.end_ns, "switch")
    for each in _suffered(trace.interrupts or (), threads, spans):
        row = picture.track(_CPU, f"interrupts of {names[each.tid]} ({each.tid})")
        name = f"{each.kind} {each.name}"
        row.add(name, each.start_ns, each.end_ns, "interrupt", cpu=each.cpu)


def _add_sample(picture: Picture, sample: TelemetrySample | HostSample) -> None:
    for field, (name, unit) in _COUNTERS.items():
        value = getattr(sample, field, None)
        if value is not None:
            picture.counter(name, unit, sample.when_ns, value)
    if isinstance(sample, TelemetrySample):
        for name, count in sample.violation_counters.items():
            picture.counter(name, "so far", sample.when_ns, count)


def _first_kernels(chunk: Chunk) -> dict[int, Kernel]:
    """Return for each call its first kernel: those of one replayed graph are many."""
    first: dict[int, Kernel] = {}
    for kernel in chunk.timeline.kernels:
        if kernel.call is not None:
            first.setdefault(kernel.call, kernel)
    return first


def _traced_spans(passed: TracedPass) -> list[Span]:
    return union((chunk.begin_ns, chunk.end_ns) for chunk in passed.chunks)


def _suffered(events: Iterable[Event], threads: set[int], spans: Sequence[Span]) -> list[Event]:
    """Keep what happened to threads, and at least in part within spans, sorted and disjoint."""
    return [one for one in events if one.tid in threads and within(spans, one.start_ns, one.end_ns)]
