"""From a traced pass, of a cell or of a tenant, to its trace: what causes are found in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pytest_hwqueue.data.metrics.attribution import DeviceWork, Evidence, device_busy, device_work
from pytest_hwqueue.data.metrics.cpu_events import launch_pairs
from pytest_hwqueue.data.metrics.timeline import (
    HostCall,
    Kernel,
    Span,
    Timeline,
    difference,
    last,
    within,
)
from pytest_hwqueue.engine.causes.explain import HostWork, Trace
from pytest_hwqueue.engine.causes.traced_pass import Chunk, TracedPass

# What stands before and behind a function's own name in a demangled kernel's.
_ARGUMENTS = re.compile(r"[<(](?!anonymous).*")


def trace_of(
    passed: TracedPass, owner: str, kind: str, pauses: Sequence[int], unseen: str = ""
) -> tuple[Trace, list[DeviceWork]]:
    """Return what a pass saw, and the kernels that ran; none where they were not seen.

    Args:
        passed: the pass.
        owner: whose it is.
        kind: of the device.
        pauses: when the thread that launches began to wait: what lies there is no gap between
            launches.
        unseen: why kernels were not seen; empty if they were.

    """
    unseen = unseen or _misplaced_calls(passed) or ""
    work = [] if unseen else [one for chunk in passed.chunks for one in _work_of(chunk, owner)]
    threads, cpu = own_threads(passed), passed.trace
    calls = [("torch.compile", begin, end) for begin, end in passed.compilations]
    clocks = []
    for chunk in passed.chunks:
        if chunk.timeline.clocks is not None:
            clocks.append(chunk.timeline.clocks)
            calls += [(one.name, one.begin_ns, one.end_ns) for one in _other_calls(chunk.timeline)]
    interrupts = None if cpu is None else cpu.interrupts
    return Trace(
        owner=owner,
        device_kind=kind,
        threads=sorted(threads),
        stream_threads=dict(passed.streams),
        work_unseen=unseen,
        calls=[HostWork(name=name, begin_ns=begin, end_ns=end) for name, begin, end in calls],
        collections=list(passed.collections),
        clocks=clocks,
        level=passed.tracing.level,
        refused=list(passed.tracing.refused),
        off_cpu=None if cpu is None else [one for one in cpu.off_cpu if one.tid in threads],
        interrupts=interrupts and [one for one in interrupts if one.tid in threads],
        lost=None if cpu is None else cpu.lost,
        delays=_counted_delays(passed, device_busy(work, owner)) if passed.delays else None,
        launch_pairs=None
        if cpu is None
        else launch_pairs(_launch_times(passed), cpu.off_cpu, pauses),
    ), work


def _work_of(chunk: Chunk, owner: str) -> list[DeviceWork]:
    """Return the kernels of a chunk, named so that those of one name are alike."""
    timeline = chunk.timeline
    launched = {kernel.launch for kernel in timeline.kernels}
    kernels = tuple(
        replace(
            kernel,
            name=kernel_label(kernel),
            # A launch without kernels ends nothing, so it is waited for in vain.
            waits_for=tuple(launch for launch in kernel.waits_for if launch in launched),
        )
        for kernel in timeline.kernels
    )
    named = Timeline(kernels, timeline.streams, timeline.released_ns)
    return device_work(named, owner, chunk.requests)


def kernel_label(kernel: Kernel) -> str:
    """Return a name for people: the launch's tag, the kernel's function, and its grid."""
    function = _ARGUMENTS.sub("", kernel.name.removeprefix("void ")).strip()
    parts = [function.split("::")[-1] or kernel.name]
    if kernel.tag and kernel.tag != parts[0]:
        parts.insert(0, kernel.tag)
    if kernel.shape is not None:
        parts.append("x".join(map(str, kernel.shape.grid)))
    return " ".join(parts)


def own_threads(passed: TracedPass) -> set[int]:
    """Return the threads that serve requests: streams, and those that launch."""
    launching = {
        call.thread
        for chunk in passed.chunks
        for call in chunk.timeline.calls
        if call.thread is not None
    }
    return {passed.main, *passed.streams, *launching}


def _misplaced_calls(passed: TracedPass) -> str | None:
    """Return why the device's times do not belong to the requests'; None if they do.

    Every launch of a request was made between its start and its end: where the clocks were put
    right, its call lies there.
    """
    calls = outside = 0
    by_number = {request.number: request for request in passed.requests}
    for chunk in passed.chunks:
        clocks = chunk.timeline.clocks
        allowed = 0 if clocks is None else clocks.uncertainty_ns
        for call in chunk.timeline.calls:
            number = None if call.launch is None else chunk.requests.get(call.launch)
            if number is None:
                continue
            request = by_number[number]
            calls += 1
            early = call.begin_ns < request.started_ns - allowed
            outside += early or call.begin_ns > request.finished_ns + allowed
    if outside * 100 <= calls:
        return None
    return (
        f"{outside} of {calls} launches lie outside their requests: the device's stamps are not "
        "of the clock that they were taken for"
    )


def _launch_times(passed: TracedPass) -> dict[int, list[int]]:
    """Return by thread when it began each launch of a request, in order."""
    launches: dict[int, list[int]] = {}
    for chunk in passed.chunks:
        for call in chunk.timeline.calls:
            if call.thread is not None and call.launch in chunk.requests:
                launches.setdefault(call.thread, []).append(call.begin_ns)
    return {thread: sorted(times) for thread, times in launches.items()}


def _counted_delays(passed: TracedPass, busy: Sequence[Span]) -> list[Evidence]:
    """Place what threads waited within a request where it can have cost something.

    Only the sum is known. A stream's is placed at the request's end; a launching thread's in time
    in which the device had nothing to do, as much of it as there was.
    """
    found = []
    for request, waited in zip(passed.requests, passed.delayed, strict=True):
        begin, end = request.started_ns, request.finished_ns
        for tid, delay in waited.items():
            what = "waited for a core, behind whom is not visible at level rusage"
            if tid in passed.streams:
                spans = [(max(begin, end - delay), end)]
                what = f"stream {passed.streams[tid]} {what}"
            else:
                spans = last(difference([(begin, end)], within(busy, begin, end)), delay)
            found += [
                Evidence("descheduled", start, stop, what, request.number) for start, stop in spans
            ]
    return found


def _other_calls(timeline: Timeline) -> Iterable[HostCall]:
    """Return the calls for memory or code: those that enqueued nothing."""
    enqueued = {kernel.call for kernel in timeline.kernels}
    return [
        call
        for index, call in enumerate(timeline.calls)
        if index not in enqueued and "Launch" not in call.name
    ]
