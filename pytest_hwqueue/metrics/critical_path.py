"""Finds what a request waited for at each moment: the launching thread, or one of its streams.

It works backwards from the request's end: its last kernel, what that kernel waited for, and so on
to the launch that began the chain. Whatever happened elsewhere meanwhile did not delay the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pytest_hwqueue.metrics.attribution import Request
from pytest_hwqueue.metrics.delay_evidence import DeviceWork
from pytest_hwqueue.metrics.intervals import Span, union


@dataclass(frozen=True, slots=True)
class PathSegment:
    """One segment of a request's path.

    Attributes:
        stream: the stream with work to do; None for the thread that launches and waits.
        start_ns: when that part began.
        end_ns: when it ended.

    """

    stream: int | None
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class CriticalPaths:
    """The critical paths of requests: their segments, and the kernels on them."""

    segments: tuple[PathSegment, ...]
    kernels: tuple[DeviceWork, ...]

    def waited_for(self) -> dict[int | None, list[Span]]:
        """Return when requests waited for each stream (None: the launching thread); disjoint."""
        spans: dict[int | None, list[Span]] = {}
        for one in self.segments:
            spans.setdefault(one.stream, []).append((one.start_ns, one.end_ns))
        return {stream: union(parts) for stream, parts in spans.items()}


def critical_paths(requests: Iterable[Request], work: Iterable[DeviceWork]) -> CriticalPaths:
    """Find the critical paths of all requests.

    Args:
        requests: with distinct numbers.
        work: their kernels; kernels that belong to no request are ignored.

    """
    by_request: dict[int, list[DeviceWork]] = {}
    for one in work:
        if one.request is not None:
            by_request.setdefault(one.request, []).append(one)
    segments: list[PathSegment] = []
    kernels: list[DeviceWork] = []
    for request in requests:
        _follow(request, by_request.get(request.number, ()), segments, kernels)
    return CriticalPaths(tuple(segments), tuple(kernels))


def _follow(
    request: Request,
    work: Sequence[DeviceWork],
    segments: list[PathSegment],
    kernels: list[DeviceWork],
) -> None:
    if not work:
        segments.append(PathSegment(None, request.started_ns, request.finished_ns))
        return
    before = _predecessors(work)
    at: DeviceWork | None = max(work, key=lambda one: one.end_ns)
    assert at is not None
    if at.end_ns < request.finished_ns:
        # The stream tells that it is done, and the host's thread wakes up.
        segments += [PathSegment(who, at.end_ns, request.finished_ns) for who in (None, at.stream)]
    first_ns = at.ready_ns
    while at is not None:
        kernels.append(at)
        segments.append(PathSegment(at.stream, at.ready_ns, at.end_ns))
        first_ns = min(first_ns, at.ready_ns)
        at = before(at)
    if request.started_ns < first_ns:
        segments.append(PathSegment(None, request.started_ns, first_ns))


def _predecessors(work: Sequence[DeviceWork]) -> Callable[[DeviceWork], DeviceWork | None]:
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
