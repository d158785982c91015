"""What a request waited for, step by step, and turns on a shared device.

The path is followed backwards from the request's end: its last kernel, what that kernel waited for,
and so on to the launch that began the chain. Whatever happened elsewhere meanwhile did not delay
the request.

While one process has the device in its turn, the others' kernels stand still, those that run as
well as those that are ready. So a kernel's own interval may hold turns of others, and kernels of
several processes overlap on paper only.

Under a busy neighbour every request waits for turns, for about as long in all. What they cost it is
another matter: a turn that passes while the host still launches costs nothing, since the kernels
that are ready by then catch up, and one at the end of a request costs all of itself. So a request
is run again on paper, its kernels launched when they were and of the same length, without others'
turns: what it would have ended earlier is what they cost, and the last of them are what cost it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import quantiles
from typing import NamedTuple

from pytest_hwqueue.data.metrics.attribution import (
    CAUSES,
    UNEXPLAINED,
    DeviceWork,
    Evidence,
    Request,
    TailAttribution,
    usual_lengths,
)
from pytest_hwqueue.data.metrics.numbers import grouped
from pytest_hwqueue.data.metrics.timeline import Span, intersection, last, length, union, within


class CriticalPaths(NamedTuple):
    """The critical paths of requests.

    ``waited_for`` is when they waited for each stream (None: the thread that launches and waits),
    as sorted, disjoint spans; ``kernels`` are those on the paths.
    """

    waited_for: dict[int | None, list[Span]]
    kernels: list[DeviceWork]


def critical_paths(requests: Iterable[Request], work: Iterable[DeviceWork]) -> CriticalPaths:
    """Find the critical paths of all requests.

    Args:
        requests: with distinct numbers.
        work: their kernels; kernels that belong to no request are ignored.

    """
    by_request = grouped((one.request, one) for one in work)
    spans: list[tuple[int | None, Span]] = []
    kernels: list[DeviceWork] = []
    for request in requests:
        _follow(request, by_request.get(request.number, ()), spans, kernels)
    waited_for = {stream: union(parts) for stream, parts in grouped(spans).items()}
    return CriticalPaths(waited_for, kernels)


def _follow(
    request: Request,
    work: Sequence[DeviceWork],
    spans: list[tuple[int | None, Span]],
    kernels: list[DeviceWork],
) -> None:
    if not work:
        spans.append((None, (request.started_ns, request.finished_ns)))
        return
    before = predecessors(work)
    at: DeviceWork | None = max(work, key=lambda one: one.end_ns)
    assert at is not None
    if at.end_ns < request.finished_ns:
        # The stream tells that it is done, and the host's thread wakes up.
        spans += [(who, (at.end_ns, request.finished_ns)) for who in (None, at.stream)]
    first_ns = at.ready_ns
    while at is not None:
        kernels.append(at)
        spans.append((at.stream, (at.ready_ns, at.end_ns)))
        first_ns = min(first_ns, at.ready_ns)
        at = before(at)
    if request.started_ns < first_ns:
        spans.append((None, (request.started_ns, first_ns)))


def predecessors(work: Sequence[DeviceWork]) -> Callable[[DeviceWork], DeviceWork | None]:
    """Return a function that finds the kernel another one waited for (None: its own launch)."""
    by_end = {one.end_ns: one for one in work}
    in_stream: dict[DeviceWork, DeviceWork] = {}
    last: dict[int, DeviceWork] = {}
    for one in sorted(work, key=lambda each: (each.start_ns, each.end_ns)):
        if one.stream in last:
            in_stream[one] = last[one.stream]
        last[one.stream] = one

    def before(one: DeviceWork) -> DeviceWork | None:
        # It was ready when the last thing that it waited for ended: the one that ended then. Some
        # devices let a kernel of a stream begin a little before the one in front has ended.
        found = by_end.get(one.ready_ns)
        if found is not None and found.ready_ns < one.ready_ns:
            return found
        found = in_stream.get(one)
        if found is not None and found.start_ns < one.start_ns and found.end_ns >= one.ready_ns:
            return found
        return None

    return before


# Of the shorter one's time. A stamp of another process is off by the clocks' uncertainty.
_MOST_OVERLAP = 0.02
# A kernel that takes little longer than the fastest tenth of its name has not stood still.
_UNHINDERED = 1.1


def time_slice_evidence(work: Sequence[DeviceWork], owner: str) -> list[Evidence]:
    """Return when a tenant's requests waited for their turn, where tenants take turns.

    A turn is seen as the time in which a kernel of a request was ready, from when another tenant
    had work running until the kernel started: the device's switch to it is part of the wait. It is
    also as much of the time by which a kernel ran longer than the median of its name as others'
    work ran meanwhile. Of these, what delayed the request's end is returned.
    """
    own = [one for one in work if one.owner == owner and one.request is not None]
    others = grouped((one.owner, (one.start_ns, one.end_ns)) for one in work if one.owner != owner)
    usual = usual_lengths(own)
    ran = {other: union(spans) for other, spans in others.items()}
    anybody = union(span for spans in others.values() for span in spans)
    found = []
    for kernels in grouped((one.request, one) for one in own).values():
        turns = {one: _turns(one, anybody, usual[one.name]) for one in kernels}
        waited = union(span for spans in turns.values() for span in spans)
        cost_ns = max(one.end_ns for one in kernels) - _end_without(kernels, turns)
        for start, end in last(waited, cost_ns):
            who = max(ran, key=lambda other: length(within(ran[other], start, end)))
            found.append(Evidence("time slice", start, end, f"{who} had the device"))
    return found


def _turns(kernel: DeviceWork, others: Sequence[Span], usual_ns: int) -> list[Span]:
    """Return when a kernel waited for its turn, before it started and while it stood still."""
    found = []
    before = within(others, kernel.ready_ns, kernel.start_ns)
    if before:
        found.append((before[0][0], kernel.start_ns))
    longer_ns = kernel.end_ns - kernel.start_ns - usual_ns
    if longer_ns > 0:
        still_ns = min(longer_ns, length(within(others, kernel.start_ns, kernel.end_ns)))
        found.append((kernel.end_ns - still_ns, kernel.end_ns))
    return found


def _end_without(kernels: Sequence[DeviceWork], turns: Mapping[DeviceWork, Sequence[Span]]) -> int:
    """Return when a request's last kernel would have ended without others' turns."""
    before = predecessors(kernels)
    ends: dict[DeviceWork, int] = {}
    in_stream: dict[int, int] = {}
    for one in sorted(kernels, key=lambda each: (each.start_ns, each.end_ns)):
        awaited = before(one)
        # Where nothing was waited for it was the launch that came last.
        enqueued_ns = one.ready_ns if one.enqueued_ns is None else one.enqueued_ns
        ready_ns = max(enqueued_ns, in_stream.get(one.stream, 0))
        if awaited is not None:
            ready_ns = max(ready_ns, ends.get(awaited, awaited.end_ns))
        took_ns = one.end_ns - one.ready_ns - sum(end - start for start, end in turns[one])
        ends[one] = in_stream[one.stream] = min(one.end_ns, ready_ns + took_ns)
    return max(ends.values())


def take_turns(work: Iterable[DeviceWork]) -> bool:
    """Whether no two tenants' kernels ran at once, going by those kernels that never stood still.

    False where fewer than two tenants ran any.
    """
    by_owner = grouped((one.owner, one) for one in work)
    running = [_unhindered(kernels) for kernels in by_owner.values()]
    for index, spans in enumerate(running):
        for others in running[:index]:
            shorter = min(length(spans), length(others))
            if length(intersection(spans, others)) > _MOST_OVERLAP * shorter:
                return False
    return len(running) > 1


def _unhindered(work: Sequence[DeviceWork]) -> list[Span]:
    """Return when kernels ran that took no longer than is usual where nothing holds them up."""
    lengths = grouped((one.name, one.end_ns - one.start_ns) for one in work)
    fastest = {
        name: quantiles(of, n=10)[0] if len(of) > 1 else of[0] for name, of in lengths.items()
    }
    return union(
        (one.start_ns, one.end_ns)
        for one in work
        if one.end_ns - one.start_ns <= _UNHINDERED * fastest[one.name]
    )


# Names of a vendor's kernels have over 100 characters; what tells them apart is at both ends.
_HEAD, _END = 32, 16
_LONG_WORD = re.compile(rf"\S{{{_HEAD + _END + 1},}}")


def in_words(tail: TailAttribution) -> str:
    """Return the shares in one line: largest first, unexplained last.

    Each cause names its most frequent culprit: "61 % queued behind low's conv2d on stream 7;
    4 % descheduled: gave way to stress-ng-cpu; 35 % unexplained (30 % on the host)".
    """
    explained = [cause for cause in CAUSES if cause in tail.shares and tail.shares[cause] > 0]
    explained.sort(key=lambda cause: -tail.shares[cause])
    parts = []
    for cause in explained:
        behind = " behind" if cause == "queued" else ":"
        named = _LONG_WORD.sub(_shortened, tail.whats[cause][0][0])
        parts.append(f"{tail.shares[cause] * 100:.0f} % {cause}{behind} {named}")
    places = [
        f"{share * 100:.0f} % on the {place}"
        for place, share in (tail.unexplained_in or {}).items()
        if share > 0
    ]
    where = f" ({', '.join(places)})" if places else ""
    parts.append(f"{tail.shares[UNEXPLAINED] * 100:.0f} % {UNEXPLAINED}{where}")
    return "; ".join(parts)


def _shortened(word: re.Match[str]) -> str:
    return f"{word[0][:_HEAD]}…{word[0][-_END:]}"
