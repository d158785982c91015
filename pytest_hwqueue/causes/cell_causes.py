"""From what a traced pass saw to the causes of its slow requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from pytest_hwqueue.causes.traced_pass import Chunk, TracedPass
from pytest_hwqueue.devices.protocol import Device
from pytest_hwqueue.devices.telemetry import TelemetrySample
from pytest_hwqueue.metrics.attribution import Attribution, attribute
from pytest_hwqueue.metrics.cpu_events import Interrupt, OffCpu
from pytest_hwqueue.metrics.critical_path import critical_paths
from pytest_hwqueue.metrics.delay_evidence import (
    Cause,
    DeviceWork,
    Evidence,
    device_busy,
    device_evidence,
    device_work,
    interrupt_evidence,
    off_cpu_evidence,
)
from pytest_hwqueue.metrics.interrupts import InterruptTime, interrupt_times
from pytest_hwqueue.metrics.intervals import Span, difference, length, union, within
from pytest_hwqueue.metrics.launch_pairs import LaunchPairs, launch_pairs
from pytest_hwqueue.metrics.timeline import HostCall, Kernel, Timeline
from pytest_hwqueue.records.causes import Causes, TracedWith, describe_causes

Event = TypeVar("Event", OffCpu, Interrupt)

OWNER = "the cell"
_ALLOCATION: Cause = "compilation or allocation"
_NO_GENERATOR = "in a closed loop nothing is due at a time"
LIMITS = {
    "perf-self": "level perf-self sees when threads were preempted, not stops by a signal, late "
    "wake-ups, nor who ran instead",
    "rusage": "level rusage counts how long threads waited for a core in each request, not when, "
    "nor who ran instead, nor stops by a signal",
}
# What stands before and behind a function's own name in a demangled kernel's.
_ARGUMENTS = re.compile(r"[<(](?!anonymous).*")


def causes_of_pass(device: Device, passed: TracedPass) -> tuple[Causes, Attribution]:
    """Return why the slow requests of a pass were slow: as a record keeps it, and one by one."""
    not_seen: dict[Cause, str] = {"generator late": _NO_GENERATOR}
    limits: list[str] = []
    evidence: list[Evidence] = []
    work = [one for chunk in passed.chunks for one in device_work_of(chunk)]
    misplaced = misplaced_calls(passed)
    paths = critical_paths(passed.requests, work)
    if misplaced is None:
        # Off the path a kernel may wait or take its time: that delays nothing.
        others = set(work) - set(paths.kernels)
        evidence += device_evidence(
            [*paths.kernels, *(replace(one, request=None) for one in others)], OWNER
        )
    else:
        not_seen |= {"queued": misplaced, "own work": misplaced}
    waited = paths.waited_for()
    evidence += _of_the_cpu(passed, work, waited, not_seen, limits)
    evidence += _of_memory_and_code(device, passed, not_seen, limits)
    evidence += _of_throttling(passed, not_seen)
    host = None if misplaced is not None else waited.get(None, [])
    attribution = attribute(passed.requests, evidence, not_seen, host)
    trace = passed.trace
    traced = TracedWith(
        level=passed.tracing.level,
        refused=passed.tracing.refused,
        lost=None if trace is None else trace.lost,
        clocks=[one.timeline.clocks for one in passed.chunks if one.timeline.clocks is not None],
    )
    causes = describe_causes(
        attribution,
        len(passed.requests),
        traced,
        limits=limits,
        pairs=None if trace is None else _pairs(passed, trace.off_cpu),
        interrupts=None if trace is None else _interrupts(passed, trace.interrupts),
    )
    return causes, attribution


def device_work_of(chunk: Chunk, owner: str = OWNER) -> list[DeviceWork]:
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


def suffered(events: Iterable[Event], threads: set[int], spans: Sequence[Span]) -> list[Event]:
    """Keep what happened to threads, and at least in part within spans, sorted and disjoint."""
    return [one for one in events if one.tid in threads and within(spans, one.start_ns, one.end_ns)]


def _of_the_cpu(
    passed: TracedPass,
    work: Sequence[DeviceWork],
    waited: Mapping[int | None, Sequence[Span]],
    not_seen: dict[Cause, str],
    limits: list[str],
) -> list[Evidence]:
    level, trace = passed.tracing.level, passed.trace
    if level in LIMITS:
        limits.append(LIMITS[level])
    if trace is None:
        if level == "rusage":
            not_seen["interrupted"] = f"level {level} sees no interrupts"
        if passed.counted:
            return counted_delays(passed, device_busy(work, OWNER))
        not_seen["descheduled"] = _why_not(passed)
        not_seen.setdefault("interrupted", _why_not(passed))
        return []
    if trace.lost:
        limits.append(f"{trace.lost} records of the CPU's trace did not fit: some are missing")
    # A thread's absence delays a request while that waits for this very thread; those that are no
    # streams launch.
    found = []
    for tid in own_threads(passed):
        away = [one for one in trace.off_cpu if one.tid == tid]
        missed = waited.get(passed.streams.get(tid), [])
        found += cut(off_cpu_evidence(away), missed)
        interrupts = [one for one in trace.interrupts or () if one.tid == tid]
        found += cut(interrupt_evidence(interrupts), missed)
    if trace.interrupts is None:
        not_seen["interrupted"] = f"level {level} sees no interrupts"
    return found


def cut(evidence: Iterable[Evidence], spans: Sequence[Span]) -> list[Evidence]:
    """Keep of evidence what lies within spans."""
    return [
        replace(one, start_ns=start, end_ns=end)
        for one in evidence
        for start, end in within(spans, one.start_ns, one.end_ns)
    ]


def _why_not(passed: TracedPass) -> str:
    refused = passed.tracing.refused
    if passed.tracing.level == "rusage":
        return "the kernel keeps no times on the run queue (/proc/self/task/*/schedstat)"
    return refused[-1].reason if refused else "nothing of the CPU can be traced here"


def counted_delays(passed: TracedPass, busy: Sequence[Span]) -> list[Evidence]:
    """Place what threads waited within a request where it can have cost something.

    Only the sum is known. A stream's is placed at the request's end; a launching thread's in time
    in which the device had nothing to do, as much of it as there was.
    """
    found = []
    for request, waited in zip(passed.requests, passed.delayed, strict=True):
        begin, end = request.started_ns, request.finished_ns
        for tid, delay in waited.items():
            what = "waited for a core"
            if tid in passed.streams:
                spans = [(max(begin, end - delay), end)]
                what = f"stream {passed.streams[tid]} {what}"
            else:
                spans = _last(difference([(begin, end)], within(busy, begin, end)), delay)
            found += [
                Evidence("descheduled", start, stop, what, request.number) for start, stop in spans
            ]
    return found


def _last(spans: Sequence[Span], wanted_ns: int) -> list[Span]:
    """Return the last so many ns of spans."""
    taken = []
    for start, end in reversed(spans):
        if wanted_ns <= 0:
            break
        taken.append((max(start, end - wanted_ns), end))
        wanted_ns -= end - start
    return taken[::-1]


def _of_memory_and_code(
    device: Device, passed: TracedPass, not_seen: dict[Cause, str], limits: list[str]
) -> list[Evidence]:
    if not device.capabilities.runs_kernels:
        not_seen[_ALLOCATION] = "a simulated device models neither"
        return []
    if device.capabilities.host:
        limits.append("allocations of the CPU's memory cannot be seen, compilations can")
    found = [
        Evidence(_ALLOCATION, start, end, "torch.compile") for start, end in passed.compilations
    ]
    for chunk in passed.chunks:
        found += [
            Evidence(_ALLOCATION, call.begin_ns, call.end_ns, call.name)
            for call in other_calls(chunk.timeline)
        ]
    return found


def other_calls(timeline: Timeline) -> Iterable[HostCall]:
    """Return the calls for memory or code: those that enqueued nothing."""
    if timeline.clocks is None:
        return []
    enqueued = {kernel.call for kernel in timeline.kernels}
    return [
        call
        for index, call in enumerate(timeline.calls)
        if index not in enqueued and "Launch" not in call.name
    ]


def _of_throttling(passed: TracedPass, not_seen: dict[Cause, str]) -> list[Evidence]:
    telemetry = passed.telemetry
    if not any(isinstance(sample, TelemetrySample) for sample in telemetry.samples):
        reasons = telemetry.missing.get("telemetry", "no reading of this device tells of it")
        not_seen["throttled"] = reasons
        return []
    missing = telemetry.missing.get("throttle_reasons")
    if missing is not None:
        not_seen["throttled"] = missing
        return []
    return [
        Evidence(
            "throttled",
            passed.requests[span.first_sample].started_ns,
            passed.requests[span.end_sample - 1].finished_ns,
            ", ".join(span.reasons),
        )
        for span in telemetry.throttled
    ]


def misplaced_calls(passed: TracedPass) -> str | None:
    """Say why the device's times do not belong to the requests'; None if they do.

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


def launch_times(passed: TracedPass) -> dict[int, list[int]]:
    """Return by thread when it began each launch of a request, in order."""
    launches: dict[int, list[int]] = {}
    for chunk in passed.chunks:
        for call in chunk.timeline.calls:
            if call.thread is not None and call.launch in chunk.requests:
                launches.setdefault(call.thread, []).append(call.begin_ns)
    return {thread: sorted(times) for thread, times in launches.items()}


def _pairs(passed: TracedPass, off_cpu: Iterable[OffCpu]) -> LaunchPairs:
    # What the host waits for the device is no gap of its launching; nor is what lies between
    # chunks, when the pass itself was at work.
    pauses = [start_ns for start_ns, _ in passed.waits]
    return launch_pairs(launch_times(passed), off_cpu, pauses)


def _interrupts(
    passed: TracedPass, interrupts: Sequence[Interrupt] | None
) -> list[InterruptTime] | None:
    if interrupts is None:
        return None
    threads = own_threads(passed)
    spans = union((one.started_ns, one.finished_ns) for one in passed.requests)
    found = suffered(interrupts, threads, spans)
    return list(interrupt_times(found, length(spans) * len(threads)))
