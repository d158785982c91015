"""Time slices: processes whose contexts take turns on a device, and what a turn of another costs.

While one has the device the others' kernels stand still, those that run as well as those that are
ready. So a kernel's own interval may hold turns of others, and kernels of several processes overlap
on paper only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median_low, quantiles

from pytest_hwqueue.metrics.delay_evidence import DeviceWork, Evidence
from pytest_hwqueue.metrics.intervals import Span, intersection, length, union, within

# Of the shorter one's time. A stamp of another process is off by the clocks' uncertainty.
_MOST_OVERLAP = 0.02
# A kernel that takes little longer than the fastest tenth of its name has not stood still.
_UNHINDERED = 1.1


def time_slice_evidence(work: Sequence[DeviceWork], owner: str) -> list[Evidence]:
    """Return when a tenant's requests waited for their turn, where tenants take turns.

    Those are the times in which a kernel of a request was ready, from when another tenant had work
    running until the kernel started: the device's switch to it is part of the wait. Further, as
    much of the time by which a kernel ran longer than the median of its name as others' work ran
    meanwhile.
    """
    own = [one for one in work if one.owner == owner and one.request is not None]
    usual = {name: median_low(of) for name, of in _lengths(own).items()}
    others: dict[str, list[Span]] = {}
    for one in work:
        if one.owner != owner:
            others.setdefault(one.owner, []).append((one.start_ns, one.end_ns))
    found = []
    for other, spans in others.items():
        ran, what = union(spans), f"{other} had the device"
        for one in own:
            before = within(ran, one.ready_ns, one.start_ns)
            if before:
                found.append(Evidence("time slice", before[0][0], one.start_ns, what, one.request))
            longer_ns = one.end_ns - one.start_ns - usual[one.name]
            if longer_ns > 0:
                still_ns = min(longer_ns, length(within(ran, one.start_ns, one.end_ns)))
                from_ns = one.end_ns - still_ns
                found.append(Evidence("time slice", from_ns, one.end_ns, what, one.request))
    return found


def take_turns(work: Iterable[DeviceWork]) -> bool:
    """Whether no two tenants' kernels ran at once, going by those kernels that never stood still.

    False where fewer than two tenants ran any.
    """
    by_owner: dict[str, list[DeviceWork]] = {}
    for one in work:
        by_owner.setdefault(one.owner, []).append(one)
    running = [_unhindered(kernels) for kernels in by_owner.values()]
    for index, spans in enumerate(running):
        for others in running[:index]:
            shorter = min(length(spans), length(others))
            if length(intersection(spans, others)) > _MOST_OVERLAP * shorter:
                return False
    return len(running) > 1


def _unhindered(work: Sequence[DeviceWork]) -> list[Span]:
    """Return when kernels ran that took no longer than is usual where nothing holds them up."""
    fastest = {
        name: quantiles(of, n=10)[0] if len(of) > 1 else of[0]
        for name, of in _lengths(work).items()
    }
    return union(
        (one.start_ns, one.end_ns)
        for one in work
        if one.end_ns - one.start_ns <= _UNHINDERED * fastest[one.name]
    )


def _lengths(work: Iterable[DeviceWork]) -> dict[str, list[int]]:
    lengths: dict[str, list[int]] = {}
    for one in work:
        lengths.setdefault(one.name, []).append(one.end_ns - one.start_ns)
    return lengths
