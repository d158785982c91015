"""Intervals in which something could delay a request, from CPU and device events.

All times are ns on one clock. The intervals of one list concern one tenant, which serves one
request at a time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median_low
from typing import Literal, get_args

from pytest_hwqueue.metrics.cpu_events import Interrupt, OffCpu, Wait
from pytest_hwqueue.metrics.switching import ready_delays
from pytest_hwqueue.metrics.timeline import Span, Timeline, union

Cause = Literal[
    "descheduled",
    "interrupted",
    "garbage collection",
    "compilation",
    "allocation",
    "blocked",
    "queued",
    "time slice",
    "generator late",
    "own work",
    "throttled",
]
"""What may explain a slow request; the order is that in which moments are charged."""

CAUSES: tuple[Cause, ...] = get_args(Cause)


@dataclass(frozen=True, slots=True)
class Evidence:
    """One interval of activity that can explain a delay.

    Attributes:
        cause: what kind of explanation it is.
        start_ns: when it began.
        end_ns: when it ended.
        what: who or what caused it, as text: "tenant low's conv2d on stream 7".
        request: number of the only request that it concerns; None if it concerns every request it
            overlaps.

    """

    cause: Cause
    start_ns: int
    end_ns: int
    what: str
    request: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """A kernel of any tenant on the device.

    Attributes:
        owner: the tenant.
        stream: index of the stream, from 0.
        name: of the kernel with its size (its grid), if known: a tenant's kernels of one name are
            assumed to be alike.
        ready_ns: when it could have started: enqueued, with all its dependencies done.
        start_ns: when it started.
        end_ns: when it ended.
        request: number of the owner's request that it belongs to; None outside requests.
        enqueued_ns: when it was enqueued; None if that is not known.

    """

    owner: str
    stream: int
    name: str
    ready_ns: int
    start_ns: int
    end_ns: int
    request: int | None = None
    enqueued_ns: int | None = None


_UNNAMED = "another thread, whose name is not visible at this level"


def off_cpu_evidence(off_cpu: Iterable[OffCpu]) -> list[Evidence]:
    """Return the times when the tenant's threads wanted the CPU and did not have it.

    Args:
        off_cpu: of the threads that serve the tenant's requests.

    """
    found = []
    for one in off_cpu:
        if one.withheld is None:
            continue
        begin_ns, end_ns = one.withheld
        if one.reason == "stopped":
            # From the signal that lets it go on, it only lacks a CPU.
            goes_on_ns = end_ns if one.runnable_ns is None else one.runnable_ns
            found.append(Evidence("descheduled", begin_ns, goes_on_ns, "stopped by a signal"))
            begin_ns = goes_on_ns
        if begin_ns < end_ns:
            found.append(Evidence("descheduled", begin_ns, end_ns, _who_had_the_cpu(one)))
    return found


def _who_had_the_cpu(one: OffCpu) -> str:
    if one.reason == "preempted":
        what = f"gave way to {one.next_comm or _UNNAMED}"
        # Who made room for it again may be who had most of the time: others in between are unseen.
        back = one.before_comm if one.end_cpu == one.cpu and one.before_tid != 0 else None
        return f"{what}, then {back}" if one.next_comm and back and back != one.next_comm else what
    what = "had no CPU when it was woken"
    if one.before_tid == 0:
        return f"{what}, though its core was idle"
    return f"{what}: {one.before_comm} ran on it" if one.before_comm else what


def wait_evidence(waits: Iterable[Wait]) -> list[Evidence]:
    """Return the times when the tenant's threads waited for something else than a CPU."""
    return [Evidence("blocked", one.start_ns, one.end_ns, one.what) for one in waits]


def interrupt_evidence(interrupts: Iterable[Interrupt]) -> list[Evidence]:
    """Return the interrupts that ran in the tenant's threads' time.

    Args:
        interrupts: of the threads that serve the tenant's requests.

    """
    return [
        Evidence("interrupted", one.start_ns, one.end_ns, f"{one.kind} {one.name}")
        for one in interrupts
    ]


def device_work(timeline: Timeline, owner: str, requests: Mapping[int, int]) -> list[DeviceWork]:
    """Return the kernels of a tenant's traced pass, ordered by start.

    Args:
        timeline: of a pass that was not held behind a gate.
        owner: the tenant.
        requests: by the index of a launch, the number of the request that it belongs to.

    Raises:
        ValueError: if a kernel waits for a launch that has no kernel.

    """
    work = []
    for delay in ready_delays(timeline):
        one = timeline.kernels[delay.kernel]
        ready_ns = min(one.start_ns, one.start_ns - delay.delay_ns)
        request = requests.get(one.launch)
        work.append(
            DeviceWork(
                owner, one.stream, one.name, ready_ns, one.start_ns, one.end_ns, request,
                min(one.enqueued_ns, ready_ns),
            )
        )  # fmt: skip
    return work


def device_busy(work: Iterable[DeviceWork], owner: str) -> list[Span]:
    """Return when the device had a tenant's work, waiting or running; sorted and disjoint."""
    return union((one.ready_ns, one.end_ns) for one in work if one.owner == owner)


def device_evidence(
    work: Sequence[DeviceWork], owner: str, *, turns: bool = False
) -> list[Evidence]:
    """Return whose kernels a tenant's requests queued behind, and the requests' own work.

    Queued is the time in which a request's kernel was ready but had not started, while kernels
    of other tenants, or of the tenant's other streams, ran. It is also the time by which a kernel
    ran longer than the median of its name while another tenant's kernels ran: they share the
    device. Own work is a kernel's run time up to the median of its name: what the request asked
    for, without what else may have slowed it. Where tenants take turns on the device, what others
    ran is left out: see `critical_path`.
    """
    own = [one for one in work if one.owner == owner and one.request is not None]
    durations: dict[str, list[int]] = {}
    for one in own:
        durations.setdefault(one.name, []).append(one.end_ns - one.start_ns)
    usual = {name: median_low(values) for name, values in durations.items()}
    streams: dict[tuple[str, int], list[DeviceWork]] = {}
    for one in work:
        streams.setdefault((one.owner, one.stream), []).append(one)
    queues = {key: _StreamQueue(kernels) for key, kernels in streams.items()}

    found: list[Evidence] = []
    for one in own:
        usual_end = min(one.end_ns, one.start_ns + usual[one.name])
        found.append(Evidence("own work", one.start_ns, usual_end, one.name, one.request))
        for (other, stream), queue in queues.items():
            if (other == owner and stream == one.stream) or (turns and other != owner):
                continue
            whose = "its own" if other == owner else f"{other}'s"
            held_up = list(queue.ran_between(one.ready_ns, one.start_ns))
            if other != owner:
                held_up += queue.ran_between(usual_end, one.end_ns)
            found += [
                Evidence("queued", start, end, f"{whose} {name} on stream {stream}")
                for name, start, end in held_up
            ]
    return found


class _StreamQueue:
    """The kernels of one stream, searchable by time."""

    def __init__(self, kernels: Iterable[DeviceWork]) -> None:
        self._kernels = sorted(kernels, key=lambda one: one.start_ns)
        self._starts = [one.start_ns for one in self._kernels]
        # The latest end so far: kernels of one stream may overlap a little.
        self._ends = list(accumulate((one.end_ns for one in self._kernels), max))

    def ran_between(self, begin: int, end: int) -> Iterator[tuple[str, int, int]]:
        """Yield name, start and end of what ran between two times, clipped to them."""
        for one in self._kernels[bisect_right(self._ends, begin) : bisect_left(self._starts, end)]:
            if begin < min(one.end_ns, end):
                yield one.name, max(begin, one.start_ns), min(end, one.end_ns)
