"""What a trace saw, the file that hands it over, and the causes of slow requests found in it.

The same for a cell and for a tenant among others. No torch.

A tenant's kernels are evidence for the others' requests too. How late the load generator was, and
how long a request waited for its tenant's earlier ones, is known from the requests themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import Field

from pytest_hwqueue.data.metrics.attribution import (
    Attribution,
    Cause,
    DeviceWork,
    Evidence,
    Request,
    attribute,
    interrupt_evidence,
    off_cpu_evidence,
    own_work_evidence,
    queued_evidence,
)
from pytest_hwqueue.data.metrics.cpu_events import (
    Interrupt,
    InterruptTime,
    LaunchPairs,
    OffCpu,
    interrupt_times,
)
from pytest_hwqueue.data.metrics.critical_path import (
    critical_paths,
    take_turns,
    time_slice_evidence,
)
from pytest_hwqueue.data.metrics.estimate import PlainData
from pytest_hwqueue.data.metrics.timeline import Span, length, union, within
from pytest_hwqueue.data.records.kinds import capabilities_of
from pytest_hwqueue.data.records.noise import Causes, tail_causes
from pytest_hwqueue.data.records.sealed import read_model
from pytest_hwqueue.data.records.tenants import TenantResult
from pytest_hwqueue.data.records.timelines import TimelineData
from pytest_hwqueue.data.records.tracing import Level, Refusal
from pytest_hwqueue.data.safe_files import write_text
from pytest_hwqueue.engine.causes.perf_events import OWN_THREAD
from pytest_hwqueue.parts.devices.clocks import ClockPair

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


def with_causes(
    results: Sequence[TenantResult],
    traces: Mapping[str, Trace],
    begin_ns: int,
    notes: Sequence[str] = (),
    turns: bool | None = False,
) -> list[TenantResult]:
    """Return results with the causes of slow requests; a tail of too few is refused there.

    Args:
        results: of all tenants that ran together.
        traces: of each of them, by name.
        begin_ns: of the window, on the traces' clock.
        notes: what else a reader of any of them should know.
        turns: whether tenants take turns on the device, in time slices; None if the traces are to
            tell.

    """
    work = {name: trace.device_work() for name, trace in traces.items()}
    turns = in_turns(work, turns)
    whose = {
        thread: name
        for name, trace in traces.items()
        if trace.named_as_by_others
        for thread in trace.threads
    }
    unseen = {name: trace.work_unseen for name, trace in traces.items() if trace.work_unseen}
    limits = [
        *notes,
        *(f"tenant {name}'s kernels were not seen: {why}" for name, why in unseen.items()),
    ]
    full_ns = [trace.full_ns for trace in traces.values() if trace.full_ns is not None]
    until_ns = min(full_ns, default=None)
    if until_ns is not None:
        limits.append(
            f"requests after {(until_ns - begin_ns) / 1e9:.3g} s were left out: no more of the CPU "
            "was kept"
        )
    found = []
    for result in results:
        trace = traces[result.name]
        requests = requests_of(result, begin_ns)
        if until_ns is not None:
            requests = [one for one in requests if one.finished_ns <= until_ns]
        theirs = [one for name, kernels in work.items() if name != result.name for one in kernels]
        causes, _ = explain(
            requests, trace, work[result.name], _not_seen(trace, turns),
            others=Others(theirs, whose, limits, turns),
        )  # fmt: skip
        found.append(result.model_copy(update={"causes": causes}))
    return found


def in_turns(work: Mapping[str, Sequence[DeviceWork]], turns: bool | None) -> bool:
    """Whether tenants take turns on the device, in time slices.

    Args:
        work: of each tenant, by name.
        turns: whether they do by their mode; None if their work is to tell.

    """
    if len(work) < 2:
        return False
    if turns is None:
        return take_turns(one for kernels in work.values() for one in kernels)
    return turns


def take_traces(folder: Path, tenants: Sequence[str]) -> dict[str, Trace]:
    """Read the traces that tenants left in a folder, and remove their files.

    Raises:
        RecordError: naming a file that is missing or damaged.

    """
    found = {}
    for name in tenants:
        path = _trace_path(folder, name)
        found[name] = read_model(path, Trace, "a tenant's trace")
        path.unlink()
    return found


def _not_seen(trace: Trace, turns: bool) -> dict[Cause, str]:
    found: dict[Cause, str] = {"throttled": _NO_CLOCKS}
    if trace.work_unseen:
        found["own work"] = trace.work_unseen
    device = capabilities_of(trace.device_kind)
    if not device.runs_kernels:
        found["throttled"] = "a simulated device is never throttled"
    elif not device.host and trace.work_unseen:
        found |= dict.fromkeys(("compilation", "allocation"), trace.work_unseen)
    if not turns:
        found["time slice"] = "the device is not shared in turns here"
    return found | unseen_on_host(trace)


# The runtime's calls that load or link a kernel's code; torch.compile is called as it is.
_CODE = re.compile("torch.compile|Module|Library|Link")
_SWITCHES_ALONE = (
    "without tracepoints perf sees when threads were preempted and when they waited, late wake-ups "
    "and stops by a signal as part of that, not who ran instead: "
)
_SUMS_ALONE = (
    "level rusage counts how long threads waited for a core in each request, not when, nor who ran "
    "instead, nor stops by a signal"
)
_WAITED = "waited"
_NOT_MODELLED = "a simulated device does not model it"


# A kernel or copy, all of `DeviceWork` but the owner.
Row = tuple[int, str, int, int, int, int | None, int | None]


class HostWork(PlainData):
    """What the host did instead of launching.

    That is a call of the device's runtime for memory or code, or a collection of garbage.
    """

    name: str
    begin_ns: int
    end_ns: int


class Trace(PlainData):
    """What was seen of a cell or of one tenant; all times are ns of the clock of its requests.

    Attributes:
        owner: the tenant's name.
        device_kind: of the device that it ran on.
        threads: the operating system's ids of its threads.
        stream_threads: of those that are streams, the stream's index.
        named_as_by_others: whether other tenants' traces name its threads by these ids.
        work: what ran, where it is handed over.
        work_unseen: why what ran could not be seen; empty if it could.
        calls: for memory or code.
        collections: of garbage.
        clocks: of the device against the host, in order; empty where they are one clock.
        level: how much of the CPU could be seen.
        refused: what would have seen more.
        off_cpu: times at which its threads were off the CPU; None where that was not seen.
        interrupts: in its threads' time, likewise.
        lost: records of either that did not fit; None where neither was seen.
        delays: where threads waited for a core in a request, as far as only the sum is known; None
            where times are known, or nothing.
        full_ns: from when on nothing more of the CPU was kept; None if all was.
        launch_pairs: gaps between launches; None where switches were not seen.

    """

    owner: str
    device_kind: str
    threads: list[int]
    stream_threads: dict[int, int]
    named_as_by_others: bool = False
    work: list[Row] = Field(default_factory=list)
    work_unseen: str = ""
    calls: list[HostWork]
    collections: list[HostWork] = Field(default_factory=list)
    clocks: list[ClockPair] = Field(default_factory=list)
    level: Level
    refused: list[Refusal]
    off_cpu: list[OffCpu] | None = None
    interrupts: list[Interrupt] | None = None
    lost: int | None = None
    delays: list[Evidence] | None = None
    full_ns: int | None = None
    launch_pairs: LaunchPairs | None = None

    def device_work(self) -> list[DeviceWork]:
        """Return the kernels and copies, as the owner's; none where they were not seen."""
        return [DeviceWork(self.owner, *row) for row in self.work]


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
    waited = paths.waited_for
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
    found = queued_evidence([*on_path, *known.work], trace.owner, turns=known.turns)
    if known.turns:
        found += time_slice_evidence([*own, *known.work], trace.owner)
    found += own_work_evidence(asked_for, trace.owner)
    missed = _times_missed(trace, requests, waited)
    delaying = _times_delaying(trace, missed)
    for away in trace.off_cpu or ():
        named = off_cpu_evidence([_named(away, trace.owner, known.threads)])
        found += _cut(named, delaying.get(away.tid, ()))
    for interrupt in trace.interrupts or ():
        found += _cut(interrupt_evidence([interrupt]), missed(interrupt.tid))
    for tid, span in _waits(trace):
        found += _cut([Evidence("blocked", *span, _WAITED)], missed(tid))
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
    clocks = trace.clocks
    causes = Causes(
        level=trace.level,
        refused_levels=trace.refused,
        requests=len(requests),
        lost=trace.lost,
        clock_offset_ns=clocks[0].before.offset_ns if clocks else None,
        clock_uncertainty_ns=max((one.uncertainty_ns for one in clocks), default=None),
        tails={name: tail_causes(tail) for name, tail in attribution.tails.items()},
        refused=dict(attribution.refused),
        limits=[*known.limits, *_own_limits(trace)],
        launch_pairs=trace.launch_pairs,
        interrupts=_interrupts(trace, requests),
    )
    return causes, attribution


def _own_limits(trace: Trace) -> list[str]:
    """Return what could not be seen of the process itself."""
    found = []
    if trace.level == "rusage":
        found.append(_SUMS_ALONE)
    if trace.off_cpu is not None and trace.interrupts is None:
        found.append(_SWITCHES_ALONE + _why_not(trace))
    if trace.lost:
        found.append(f"{trace.lost} records of the CPU's trace did not fit: some are missing")
    return found


def unseen_on_host(trace: Trace) -> dict[Cause, str]:
    """Return what could not be seen of threads and of the host's own work, and why."""
    found: dict[Cause, str] = {}
    why = f"level {trace.level} does not show it: {_why_not(trace)}"
    if trace.interrupts is None:
        found["interrupted"] = why
    if trace.off_cpu is None:
        found["blocked"] = why
        if trace.delays is None:
            found["descheduled"] = why
    device = capabilities_of(trace.device_kind)
    if not device.runs_kernels:
        found |= dict.fromkeys(("garbage collection", "compilation", "allocation"), _NOT_MODELLED)
    elif device.host:
        found["allocation"] = "allocations of the CPU's memory cannot be seen"
    return found


def _why_not(trace: Trace) -> str:
    reasons = [each.reason for each in trace.refused]
    if trace.level == "rusage" and trace.delays is None:
        reasons.append("no times on the run queue are counted (/proc/self/task/*/schedstat)")
    return "; ".join(dict.fromkeys(reasons))


def _waits(trace: Trace) -> list[tuple[int, Span]]:
    """Return which thread was off the CPU of its own accord, and when, as the switches show."""
    return [
        (one.tid, (one.start_ns, one.runnable_ns or one.end_ns))
        for one in trace.off_cpu or ()
        if one.reason not in ("preempted", "stopped")
    ]


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

    That is while it is missed, and while another one is missed that waits: this one may hold the
    lock, such as the interpreter's, that it waits for, and cannot give it back.
    """
    locked: dict[int, list[Span]] = {}
    for tid, (start_ns, end_ns) in _waits(trace):
        locked.setdefault(tid, []).extend(within(missed(tid), start_ns, end_ns))
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


def rows_of(work: Iterable[DeviceWork]) -> list[Row]:
    """Return a tenant's work without its name, in its order."""
    return [
        (one.stream, one.name, one.ready_ns, one.start_ns, one.end_ns, one.request, one.enqueued_ns)
        for one in work
    ]


def write_trace(folder: Path, trace: Trace) -> None:
    """Write a tenant's trace; RecordError if it cannot be written."""
    write_text(_trace_path(folder, trace.owner), trace.model_dump_json())


def _trace_path(folder: Path, tenant: str) -> Path:
    return folder / f"trace-{tenant}.json"


def kept_causes(
    kept: TimelineData,
    results: Sequence[TenantResult],
    traces: Mapping[str, Trace],
    **arguments: Any,
) -> list[TenantResult]:
    """Return what `with_causes` does, and keep what the causes are found in.

    Args:
        kept: takes it.
        results: of all tenants that ran together.
        traces: of each of them, by name.
        arguments: the other ones of `with_causes`, as JSON can hold them.

    """
    kept.about["causes of tenants"] = {
        "arguments": arguments,
        "traces": {
            name: trace.model_dump(mode="json", exclude={"work"}) for name, trace in traces.items()
        },
    }
    for name, trace in traces.items():
        kept.add_work(f"tenant {name}", trace.device_work())
    return with_causes(results, traces, **arguments)
