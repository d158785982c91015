"""Timelines of kernels, and spans of time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_hwqueue.parts.devices.clocks import ClockPair


Span = tuple[int, int]
"""From (included) to (excluded), in ns of one clock."""


def union(spans: Iterable[Span]) -> list[Span]:
    """Return the union of spans, sorted and disjoint; empty spans are dropped."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def length(spans: Iterable[Span]) -> int:
    """Return the total length of disjoint spans, in ns."""
    return sum(end - start for start, end in spans)


def within(spans: Sequence[Span], start: int, end: int) -> list[Span]:
    """Return the part of sorted, disjoint spans that lies between two times."""
    first = bisect_right(spans, start, key=itemgetter(1))
    last = bisect_left(spans, end, key=itemgetter(0))
    return [(max(start, low), min(end, high)) for low, high in spans[first:last]]


def intersection(spans: Iterable[Span], others: Sequence[Span]) -> list[Span]:
    """Return the intersection of two sorted, disjoint sets of spans."""
    return [part for start, end in spans for part in within(others, start, end)]


def difference(spans: Iterable[Span], others: Sequence[Span]) -> list[Span]:
    """Return the first set of spans without the second; both sorted and disjoint."""
    left: list[Span] = []
    for start, end in spans:
        at = start
        for low, high in within(others, start, end):
            if at < low:
                left.append((at, low))
            at = high
        if at < end:
            left.append((at, end))
    return left


def last(spans: Sequence[Span], wanted_ns: int) -> list[Span]:
    """Return the last so many ns of sorted, disjoint spans."""
    taken: list[Span] = []
    for start, end in reversed(spans):
        if wanted_ns <= 0:
            break
        taken.append((max(start, end - wanted_ns), end))
        wanted_ns -= end - start
    return taken[::-1]


_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class KernelShape:
    """A kernel's launch shape: blocks in its grid, threads and shared memory per block."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class HostCall:
    """A host call that enqueued work, or prepared memory or code for it.

    Attributes:
        name: ``launch`` of a stream of ours, or what the device's runtime calls it.
        thread: the operating system's id of the thread; None in a model, whose host has none.
        begin_ns: when it began.
        end_ns: when it returned.
        launch: index of the launch in which it was made; None outside of one.

    """

    name: str
    thread: int | None
    begin_ns: int
    end_ns: int
    launch: int | None


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel that the device ran; all times are ns on one clock.

    Attributes:
        stream: index of its stream, from 0.
        launch: index of the launch that enqueued it, in the order of enqueueing; one launch may
            enqueue several kernels.
        name: the kernel's name, as the device's activity record gives it.
        tag: the tag of its launch, if it has one.
        enqueued_ns: when the host enqueued it.
        start_ns: when the device started it.
        end_ns: when the device ended it.
        waits_for: launches, mostly of other streams, whose last kernel must have ended before
            this one may start.
        call: index of the host's call that enqueued it, in the timeline's ``calls``.
        shape: None where the device does not report it.
    """

    stream: int
    launch: int
    name: str
    tag: str | None
    enqueued_ns: int
    start_ns: int
    end_ns: int
    waits_for: tuple[int, ...] = ()
    call: int | None = None
    shape: KernelShape | None = None


@dataclass(frozen=True)
class Timeline:
    """The kernels of one pass, in any order.

    Attributes:
        kernels: every kernel that ran.
        streams: number of requested streams, whether or not each got work.
        released_ns: when the gate that held back all work opened; None if there was no gate.
        elsewhere: kernels that ran on streams of a library's own, such as NCCL's; they count for
            the stream that launched them.
        calls: of the host, in any order; empty where they are not needed.
        clocks: how the device's timestamps were converted to the host's clock, `Device.clock_ns`;
            None if they are on that clock already, or on another one.

    Raises:
        ValueError: if a kernel ends before it starts, or its stream is not one of ``streams``.
    """

    kernels: tuple[Kernel, ...]
    streams: int
    released_ns: int | None
    elsewhere: int = 0
    calls: tuple[HostCall, ...] = ()
    clocks: ClockPair | None = None

    def __post_init__(self) -> None:
        """Refuse kernels that cannot have run as recorded."""
        for index, kernel in enumerate(self.kernels):
            if kernel.end_ns < kernel.start_ns:
                raise ValueError(f"kernel {index} ({kernel.name}) ends before it starts")
            if not 0 <= kernel.stream < self.streams:
                raise ValueError(
                    f"kernel {index} ({kernel.name}) is of stream {kernel.stream}, "
                    f"but there are {self.streams}"
                )


def split_tag(tag: str) -> tuple[str, str]:
    """Split a tag into its own name and its request within the iteration.

    ``embed#3`` is a launch tagged ``embed`` of request ``3``; either part may be empty.
    """
    name, _, request = tag.partition("#")
    return name, request


def tag_latencies(
    timeline: Timeline, request_name: str = "", launches_per_iteration: int = 0
) -> dict[str, list[int]]:
    """Return each tagged launch's latency from ready to done, in ns, by tag in launch order.

    A launch is ready when its first kernel is enqueued, the last kernel before it on its stream
    has ended, and so have the last kernels of the launches it waits for; it is done when its own
    last kernel has ended. Events around the launch measure the same, from within the streams.
    A request runs from its first launch's ready to its last launch's done.

    Args:
        timeline: of one or several iterations.
        request_name: under which the latencies of requests stand; empty to leave them out.
        launches_per_iteration: the same request number of another iteration is another request;
            0 if the timeline is of one iteration.
    """
    ends: dict[int, int] = {}
    for kernel in timeline.kernels:
        ends[kernel.launch] = max(kernel.end_ns, ends.get(kernel.launch, kernel.end_ns))
    ready: dict[int, int] = {}
    tags: dict[int, str | None] = {}
    stream_end: dict[int, int] = {}
    for kernel in sorted(timeline.kernels, key=lambda kernel: (kernel.launch, kernel.start_ns)):
        if kernel.launch not in ready:
            # A launch without kernels ends nothing, so it is waited for in vain.
            waited = (ends[launch] for launch in kernel.waits_for if launch in ends)
            before = [kernel.enqueued_ns, *waited]
            if kernel.stream in stream_end:
                before.append(stream_end[kernel.stream])
            # What has started was ready: also where a library's own streams, whose kernels count
            # for the launch that is waited for, went on behind the event.
            ready[kernel.launch] = min(max(before), kernel.start_ns)
            tags[kernel.launch] = kernel.tag
        stream_end[kernel.stream] = ends[kernel.launch]
    latencies: dict[str, list[int]] = {}
    requests: dict[tuple[int, str], tuple[int, int]] = {}
    for launch, tag in tags.items():
        if tag is None:
            continue
        name, request = split_tag(tag)
        if name:
            latencies.setdefault(name, []).append(ends[launch] - ready[launch])
        if request and request_name:
            key = (launch // launches_per_iteration if launches_per_iteration else 0, request)
            first, last = requests.get(key, (ready[launch], ends[launch]))
            requests[key] = min(first, ready[launch]), max(last, ends[launch])
    if requests:
        latencies[request_name] = [last - first for first, last in requests.values()]
    return latencies
