"""Why each tenant's slow requests were slow: the traces of all tenants, held against each other's.

A tenant's kernels are evidence for the others' requests too. How late the load generator was, and
how long a request waited for its tenant's earlier ones, is known from the requests themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_hwqueue.causes.explain import Others, Trace, explain, take_trace, unseen_on_host
from pytest_hwqueue.devices.kinds import capabilities_of
from pytest_hwqueue.metrics.attribution import Request
from pytest_hwqueue.metrics.critical_path import take_turns
from pytest_hwqueue.metrics.delay_evidence import Cause
from pytest_hwqueue.records.tenants import TenantResult

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
    if len(results) < 2:
        turns = False
    elif turns is None:
        turns = take_turns(one for kernels in work.values() for one in kernels)
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


def take_traces(folder: Path, tenants: Sequence[str]) -> dict[str, Trace]:
    """Read the traces that tenants left in a folder, and remove their files.

    Raises:
        RecordError: naming a file that is missing or damaged.

    """
    return {name: take_trace(folder, name) for name in tenants}


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


def _limits(traces: Mapping[str, Trace]) -> list[str]:
    """Return what could not be seen of anybody."""
    return [
        f"tenant {name}'s kernels were not seen: {trace.work_unseen}"
        for name, trace in traces.items()
        if trace.work_unseen
    ]
