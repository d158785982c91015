"""Why each tenant's slow requests were slow: the traces of all tenants, held against each other's.

A tenant's kernels are evidence for the others' requests too. How late the load generator was, and
how long a request waited for its tenant's earlier ones, is known from the requests themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_hwqueue.causes.cell_causes import LIMITS, cut
from pytest_hwqueue.causes.trace_file import TenantTrace, read_trace, trace_path
from pytest_hwqueue.devices.kinds import capabilities_of
from pytest_hwqueue.metrics.attribution import Request, attribute
from pytest_hwqueue.metrics.cpu_events import OffCpu
from pytest_hwqueue.metrics.critical_path import CriticalPaths, critical_paths
from pytest_hwqueue.metrics.delay_evidence import (
    Cause,
    DeviceWork,
    Evidence,
    device_evidence,
    interrupt_evidence,
    off_cpu_evidence,
)
from pytest_hwqueue.metrics.interrupts import InterruptTime, interrupt_times
from pytest_hwqueue.metrics.intervals import Span, length, union, within
from pytest_hwqueue.records.causes import Causes, TracedWith, describe_causes
from pytest_hwqueue.records.tenants import TenantResult
from pytest_hwqueue.tracing.perf_events import OWN_THREAD

_NO_CLOCKS = "the device's clocks are not read while tenants are traced"


def requests_of(result: TenantResult, begin_ns: int) -> list[Request]:
    """Return a tenant's completed requests, numbered as they were served, from 0.

    Args:
        result: what it got.
        begin_ns: of the window, on the clock of the traces.

    """
    times = result.requests
    if times is None:
        return []
    failed = {failure.index for failure in result.failures}
    found, free_ns = [], 0
    each = zip(times.scheduled_ns, times.started_ns, times.finished_ns, strict=True)
    for number, (due_ns, started_ns, finished_ns) in enumerate(each):
        ready_ns = min(max(due_ns, free_ns), started_ns)
        free_ns = finished_ns
        if number not in failed:
            at = (begin_ns + ns for ns in (due_ns, ready_ns, started_ns, finished_ns))
            found.append(Request(number, *at))
    return found


def causes_of(
    results: Sequence[TenantResult],
    traces: Mapping[str, TenantTrace],
    begin_ns: int,
    notes: Sequence[str] = (),
) -> dict[str, Causes]:
    """Return the causes of each tenant's slow requests; a tail of too few is refused there.

    Args:
        results: of all tenants that ran together.
        traces: of each of them, by name.
        begin_ns: of the window, on the traces' clock.
        notes: what else a reader of any of them should know.

    """
    work = [one for trace in traces.values() for one in trace.device_work()]
    whose = {
        thread: name
        for name, trace in traces.items()
        if trace.named_as_by_others
        for thread in trace.threads
    }
    limits = [*notes, *_limits(traces)]
    full_ns = [trace.full_ns for trace in traces.values() if trace.full_ns is not None]
    until_ns = min(full_ns, default=None)
    if until_ns is not None:
        limits.append(
            f"requests after {(until_ns - begin_ns) / 1e9:.3g} s were left out: no more of the CPU "
            "was kept"
        )
    found = {}
    for result in results:
        trace = traces[result.name]
        requests = requests_of(result, begin_ns)
        if until_ns is not None:
            requests = [one for one in requests if one.finished_ns <= until_ns]
        own = [one for one in work if one.owner == trace.tenant]
        paths = critical_paths(requests, own)
        waited = paths.waited_for()
        evidence = _evidence(trace, requests, work, paths, waited, whose)
        host = None if trace.work is None else waited.get(None, [])
        attribution = attribute(requests, evidence, _not_seen(trace), host)
        traced = TracedWith(
            trace.level, trace.refused, trace.lost, () if trace.clocks is None else (trace.clocks,)
        )
        found[result.name] = describe_causes(
            attribution, len(requests), traced, limits=[*limits, *_own_limits(trace)],
            pairs=trace.launch_pairs, interrupts=_interrupts(trace, requests),
        )  # fmt: skip
    return found


def take_traces(folder: Path, tenants: Sequence[str]) -> dict[str, TenantTrace]:
    """Read the traces that tenants left in a folder, and remove their files.

    Raises:
        RecordError: naming a file that is missing or damaged.

    """
    traces = {}
    for name in tenants:
        traces[name] = read_trace(folder, name)
        trace_path(folder, name).unlink()
    return traces


def _evidence(
    trace: TenantTrace,
    requests: Sequence[Request],
    work: Sequence[DeviceWork],
    paths: CriticalPaths,
    waited: Mapping[int | None, Sequence[Span]],
    whose: Mapping[int, str],
) -> list[Evidence]:
    own = [one for one in work if one.owner == trace.tenant]
    # Off the path a kernel may wait: that delays nothing. But all of a request's work is its own: a
    # request whose first kernel is late has more of it on its path, and no more to do.
    off = set(own) - set(paths.kernels)
    others = [one for one in work if one.owner != trace.tenant]
    aside = [replace(one, request=None) for one in off]
    found = [
        one
        for one in device_evidence([*paths.kernels, *aside, *others], trace.tenant)
        if one.cause == "queued"
    ]
    found += [one for one in device_evidence(own, trace.tenant) if one.cause == "own work"]
    missed = _times_missed(trace, requests, waited)
    for away in trace.off_cpu or ():
        named = off_cpu_evidence([_named(away, trace.tenant, whose)])
        found += cut(named, missed(away.tid))
    for interrupt in trace.interrupts or ():
        found += cut(interrupt_evidence([interrupt]), missed(interrupt.tid))
    found += trace.delays or ()
    found += [
        Evidence("compilation or allocation", call.begin_ns, call.end_ns, call.name)
        for call in trace.calls
    ]
    return found


def _times_missed(
    trace: TenantTrace,
    requests: Sequence[Request],
    waited: Mapping[int | None, Sequence[Span]],
) -> Callable[[int], Sequence[Span]]:
    """Return what tells, for a thread, when its absence delayed a request; sorted and disjoint.

    That is while a request waited for this very thread. Who serves, and launches, is waited for by
    every request that could be started, too.
    """
    starting = [(one.ready_ns, one.started_ns) for one in requests]
    serving = union([*waited.get(None, ()), *starting])
    by_stream = {**waited, None: serving}
    return lambda tid: by_stream.get(trace.stream_threads.get(tid), [])


def _named(away: OffCpu, tenant: str, whose: Mapping[int, str]) -> OffCpu:
    """Call a thread that ran instead by its tenant's name."""
    if away.next_tid is None or away.next_tid not in whose:
        return away
    other = whose[away.next_tid]
    called = OWN_THREAD if other == tenant else f"tenant {other}"
    return replace(away, next_comm=called)


def _not_seen(trace: TenantTrace) -> dict[Cause, str]:
    reason = "; ".join(dict.fromkeys(each.reason for each in trace.refused))
    found: dict[Cause, str] = {"throttled": _NO_CLOCKS}
    if trace.off_cpu is None and trace.delays is None:
        found["descheduled"] = f"level {trace.level} sees no switches: {reason}"
    if trace.interrupts is None:
        found["interrupted"] = f"level {trace.level} sees no interrupts: {reason}"
    if trace.work is None:
        found["own work"] = trace.work_unseen
    device = capabilities_of(trace.device_kind)
    if not device.runs_kernels:
        found["compilation or allocation"] = "a simulated device models neither"
        found["throttled"] = "a simulated device is never throttled"
    elif not device.host and trace.work is None:
        found["compilation or allocation"] = trace.work_unseen
    return found


def _limits(traces: Mapping[str, TenantTrace]) -> list[str]:
    """Say what could not be seen of anybody."""
    return [
        f"tenant {name}'s kernels were not seen: {trace.work_unseen}"
        for name, trace in traces.items()
        if trace.work is None
    ]


def _own_limits(trace: TenantTrace) -> list[str]:
    """Say what could not be seen of one tenant."""
    found = []
    if trace.level in LIMITS:
        found.append(LIMITS[trace.level])
    if trace.lost:
        found.append(f"{trace.lost} records of the CPU's trace did not fit: some are missing")
    if capabilities_of(trace.device_kind).host:
        found.append("allocations of the CPU's memory cannot be seen, compilations can")
    return found


def _interrupts(trace: TenantTrace, requests: Sequence[Request]) -> list[InterruptTime] | None:
    if trace.interrupts is None or not requests:
        return None
    spans = union((one.started_ns, one.finished_ns) for one in requests)
    inside = [one for one in trace.interrupts if within(spans, one.start_ns, one.end_ns)]
    return list(interrupt_times(inside, length(spans) * len(trace.threads)))
