"""From a trace to the causes of slow requests, of a cell or of a tenant among others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_hwqueue.causes.trace_file import Trace
from pytest_hwqueue.metrics.attribution import Attribution, Request, attribute
from pytest_hwqueue.metrics.cpu_events import OffCpu
from pytest_hwqueue.metrics.critical_path import critical_paths
from pytest_hwqueue.metrics.delay_evidence import (
    Cause,
    DeviceWork,
    Evidence,
    device_evidence,
    interrupt_evidence,
    off_cpu_evidence,
    wait_evidence,
)
from pytest_hwqueue.metrics.interrupts import InterruptTime, interrupt_times
from pytest_hwqueue.metrics.intervals import Span, length, union, within
from pytest_hwqueue.metrics.time_slices import time_slice_evidence
from pytest_hwqueue.records.causes import Causes, TracedWith, describe_causes
from pytest_hwqueue.tracing.perf_events import OWN_THREAD

# The runtime's calls that load or link a kernel's code; torch.compile is called as it is.
_CODE = re.compile("torch.compile|Module|Library|Link")
_LIMITS = {
    "perf-self": "level perf-self sees when threads were preempted and when they waited, not late "
    "wake-ups, nor who ran instead",
    "rusage": "level rusage counts how long threads waited for a core in each request, not when, "
    "nor who ran instead, nor stops by a signal",
}


@dataclass(frozen=True)
class Others:
    """What is known of the other tenants.

    Attributes:
        work: kernels of theirs.
        threads: whose each thread is, by its id; the tenant's own too.
        limits: what could not be seen of any.
        turns: whether tenants take turns on the device: their processes have contexts of their own,
            and nothing lets these run at once.

    """

    work: Sequence[DeviceWork] = ()
    threads: Mapping[int, str] = field(default_factory=dict)
    limits: Sequence[str] = ()
    turns: bool = False


def explain(
    requests: Sequence[Request],
    trace: Trace,
    own: Sequence[DeviceWork],
    not_seen: Mapping[Cause, str],
    *,
    evidence: Iterable[Evidence] = (),
    others: Others | None = None,
) -> tuple[Causes, Attribution]:
    """Return why the slow ones of requests were slow: as a record keeps it, and one by one.

    Args:
        requests: of a cell or of a tenant.
        trace: of the process that served them.
        own: kernels of theirs.
        not_seen: causes that could not be seen, and why.
        evidence: what else there is.
        others: the other tenants; None for a cell, which has none.

    """
    known = Others() if others is None else others
    paths = critical_paths(requests, own)
    waited = paths.waited_for()
    taken = set(paths.kernels)
    # Off the path a kernel may wait or take its time: that delays nothing.
    on_path = [
        *paths.kernels,
        # In their order: of causes that explain as much, the first one is named.
        *(replace(one, request=None) for one in dict.fromkeys(own) if one not in taken),
    ]
    # A tenant's request whose first kernel is late has more of its work on its path, and no more
    # to do: all of its work is its own.
    asked_for = on_path if others is None else own
    found = [
        one
        for one in device_evidence([*on_path, *known.work], trace.owner, turns=known.turns)
        if one.cause == "queued"
    ]
    if known.turns:
        found += time_slice_evidence([*own, *known.work], trace.owner)
    found += [one for one in device_evidence(asked_for, trace.owner) if one.cause == "own work"]
    missed = _times_missed(trace, requests, waited)
    delaying = _times_delaying(trace, missed)
    for away in trace.off_cpu or ():
        named = off_cpu_evidence([_named(away, trace.owner, known.threads)])
        found += _cut(named, delaying.get(away.tid, ()))
    for interrupt in trace.interrupts or ():
        found += _cut(interrupt_evidence([interrupt]), missed(interrupt.tid))
    for wait in trace.waits or ():
        found += _cut(wait_evidence([wait]), missed(wait.tid))
    found += trace.delays or ()
    found += [
        Evidence(_cause_of_call(call.name), call.begin_ns, call.end_ns, call.name)
        for call in trace.calls
    ]
    # Nobody runs Python meanwhile, neither who launches nor streams that are threads.
    found += _cut(
        (
            Evidence("garbage collection", one.begin_ns, one.end_ns, one.name)
            for one in trace.collections
        ),
        union(span for spans in map(missed, trace.threads) for span in spans),
    )
    host = None if trace.work_unseen else waited.get(None, [])
    attribution = attribute(requests, [*found, *evidence], not_seen, host)
    causes = describe_causes(
        attribution,
        len(requests),
        TracedWith(trace.level, trace.refused, trace.lost, trace.clocks),
        limits=[*known.limits, *_own_limits(trace)],
        pairs=trace.launch_pairs,
        interrupts=_interrupts(trace, requests),
    )
    return causes, attribution


def _own_limits(trace: Trace) -> list[str]:
    """Return what could not be seen of the process itself."""
    found = []
    if trace.level in _LIMITS:
        found.append(_LIMITS[trace.level])
    if trace.waits_per_s is not None:
        found.append(
            f"what threads waited for was looked at {trace.waits_per_s:.0f} times a second: of "
            "shorter waits the name is that of one near them"
        )
    if trace.lost:
        found.append(f"{trace.lost} records of the CPU's trace did not fit: some are missing")
    return found


def _cause_of_call(name: str) -> Cause:
    """Tell what loads or makes code, as the first use of a kernel does, from calls for memory."""
    return "compilation" if _CODE.search(name) else "allocation"


def _times_missed(
    trace: Trace,
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


def _times_delaying(trace: Trace, missed: Callable[[int], Sequence[Span]]) -> dict[int, list[Span]]:
    """Return by thread when it delays a request that it has no CPU; sorted and disjoint.

    That is while it is missed, and while another one is missed that waits for a lock: this one may
    hold it, such as the interpreter's, and cannot give it back.
    """
    locked: dict[int, list[Span]] = {}
    for wait in trace.waits or ():
        if wait.kind == "lock":
            spans = within(missed(wait.tid), wait.start_ns, wait.end_ns)
            locked.setdefault(wait.tid, []).extend(spans)
    return {
        tid: union([
            *missed(tid),
            *(span for other, spans in locked.items() if other != tid for span in spans),
        ])
        for tid in trace.threads
    }  # fmt: skip


def _named(away: OffCpu, tenant: str, whose: Mapping[int, str]) -> OffCpu:
    """Call a thread that ran instead by its tenant's name."""

    def called(tid: int | None, comm: str | None) -> str | None:
        if tid is None or tid not in whose:
            return comm
        return OWN_THREAD if whose[tid] == tenant else f"tenant {whose[tid]}"

    return replace(
        away,
        next_comm=called(away.next_tid, away.next_comm),
        before_comm=called(away.before_tid, away.before_comm),
    )


def _cut(evidence: Iterable[Evidence], spans: Sequence[Span]) -> list[Evidence]:
    """Keep of evidence what lies within spans."""
    return [
        replace(one, start_ns=start, end_ns=end)
        for one in evidence
        for start, end in within(spans, one.start_ns, one.end_ns)
    ]


def _interrupts(trace: Trace, requests: Sequence[Request]) -> list[InterruptTime] | None:
    if trace.interrupts is None or not requests:
        return None
    spans = union((one.started_ns, one.finished_ns) for one in requests)
    inside = [one for one in trace.interrupts if within(spans, one.start_ns, one.end_ns)]
    return list(interrupt_times(inside, length(spans) * len(trace.threads)))
