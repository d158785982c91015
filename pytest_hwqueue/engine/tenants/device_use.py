"""How tenants used the device in a traced window: its busy time, switches between them, waits.

All of it follows from the intervals of their kernels, copies among them, on one clock. Where
tenants take turns in time slices it cannot be observed: the record of a kernel then spans the turns
of others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from pytest_hwqueue.data.errors import BadInput
from pytest_hwqueue.data.figures.served import served
from pytest_hwqueue.data.metrics.attribution import DeviceWork
from pytest_hwqueue.data.metrics.timeline import length, union, within
from pytest_hwqueue.data.records.kinds import capabilities_of
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.data.records.tenants import ColocationRecord, DeviceUse, TenantResult, TenantUse
from pytest_hwqueue.engine.causes.explain import Trace, in_turns, requests_of
from pytest_hwqueue.engine.tenants import DEVICE
from pytest_hwqueue.parts.schedulers.syntax import parse_scheduler

if TYPE_CHECKING:
    from pytest_hwqueue.data.figures.of_requests import ServedRequests, Session

# Enough to show how far blocks depend on each other: as many as a throughput has at most.
_BLOCKS = 100

TIME_SLICES = (
    "not observable where tenants take turns in time slices: the record of a kernel spans others' "
    "turns"
)


def in_time_slices(
    placement: TenantPlacement, scheduler: str, device: str, tenants: int
) -> bool | None:
    """Whether tenants take turns on the device, in time slices; None if the mode does not say.

    They do as processes: each has a context of its own, and one runs at a time, unless a mode such
    as MPS puts them into one.

    Args:
        placement: of the tenants.
        scheduler: the mode.
        device: its label.
        tenants: how many.

    """
    if tenants < 2 or placement == TenantPlacement.THREADS or capabilities_of(device).host:
        return False
    try:
        sharing = parse_scheduler(scheduler).simulated
    except BadInput:  # of a package that is not installed here
        return None
    return None if sharing is None else not sharing.together


def device_use(
    results: Sequence[TenantResult],
    traces: Mapping[str, Trace],
    begin_ns: int,
    window_ns: int,
    turns: bool | None,
) -> DeviceUse:
    """Return how tenants used the device in a traced window, or why that was not observed.

    Args:
        results: of all tenants that ran together.
        traces: of each of them, by name.
        begin_ns: of the window, on the traces' clock.
        window_ns: its length.
        turns: as `in_time_slices` returns it; where it is None the traces tell.

    """
    unseen = {name: trace.work_unseen for name, trace in traces.items() if trace.work_unseen}
    for name, why in unseen.items():
        return DeviceUse(reason=f"not observable: tenant {name}'s kernels were not seen: {why}")
    work = {name: trace.device_work() for name, trace in traces.items()}
    if in_turns(work, turns):
        return DeviceUse(reason=TIME_SLICES)
    edges = [begin_ns + window_ns * number // _BLOCKS for number in range(_BLOCKS + 1)]
    everything = sorted(
        (one for kernels in work.values() for one in kernels), key=lambda one: one.start_ns
    )
    switches = [0] * _BLOCKS
    for before, one in pairwise(everything):
        block = bisect_right(edges, one.start_ns) - 1
        if before.owner != one.owner and 0 <= block < _BLOCKS:
            switches[block] += 1
    return DeviceUse(
        busy_ns=_busy_ns(everything, edges),
        switches=switches,
        tenants={
            result.name: TenantUse(
                busy_ns=_busy_ns(work[result.name], edges),
                waits_ns=_waits_ns(result, work[result.name]),
            )
            for result in results
        },
    )


def _busy_ns(work: Sequence[DeviceWork], edges: Sequence[int]) -> list[int]:
    """Return for how long any of these ran between each two edges."""
    ran = union((one.start_ns, one.end_ns) for one in work)
    return [length(within(ran, start_ns, end_ns)) for start_ns, end_ns in pairwise(edges)]


def _waits_ns(result: TenantResult, work: Sequence[DeviceWork]) -> list[int]:
    """Return how long each completed request's first work waited to start, from its enqueueing."""
    enqueued_ns: dict[int, int] = {}
    started_ns: dict[int, int] = {}
    for one in work:
        if one.request is None:
            continue
        # Where nobody saw it enqueued, it was ready no earlier.
        at_ns = one.ready_ns if one.enqueued_ns is None else one.enqueued_ns
        enqueued_ns[one.request] = min(at_ns, enqueued_ns.get(one.request, at_ns))
        started_ns[one.request] = min(one.start_ns, started_ns.get(one.request, one.start_ns))
    numbers = (request.number for request in requests_of(result, 0))
    return [started_ns[each] - enqueued_ns[each] for each in numbers if each in started_ns]


def used(record: ColocationRecord, name: str, session: Session | None = None) -> ServedRequests:
    """Return what a traced window shows of a tenant, or of the `DEVICE`; its use was observed."""
    from dataclasses import replace

    from pytest_hwqueue.data.figures.of_requests import ONLY_SESSION, ServedRequests

    use = record.device_use
    assert use is not None
    assert not use.reason
    window_ns = round(record.duration_s * 1e9)
    if name == DEVICE:
        return ServedRequests(
            0, (), (), window_ns, session or ONLY_SESSION,
            busy_ns=use.busy_ns, switches=use.switches,
        )  # fmt: skip
    own = use.tenants[name]
    whole = served(record.tenant(name), window_ns, session)
    return replace(whole, wait_ns=own.waits_ns, busy_ns=own.busy_ns)
