"""Finds why each slow request was slow: one cause per request, from evidence within its interval.

The rule: a request's interval runs from its arrival to its end, and its *excess* is its length
beyond the median request's. Every moment of the interval is charged to at most one cause, the first
of `CAUSES` with evidence there; the order puts what takes the CPU away before what
only takes longer because of it, so that a preempted host thread's kernel, or a preempted generator,
reads "descheduled", and no moment counts twice. A cause *explains* the time charged to it beyond
the median of its charges in usual requests, those no slower than the median request; and nothing
unless the charge is higher than in 95 % of them. Something else always runs, some tick always
interrupts: what fast requests bear too explains no tail. A request gets the cause that explains
most, if that is at least half of its excess; otherwise it is unexplained. Half, because everything
else together then contributed no more; an event that happens to fall into a slow request but is far
shorter than its delay explains nothing. Ties are decided by the order.

Before a request can start, its tenant's earlier ones must be done. Whatever delayed those while
this one waited is evidence on its interval like any other; the rest of the wait is charged as
``queued`` behind the tenant's earlier requests.

Throttling is not an interval of delay but a state in which everything is slower, and a request that
is slow for another reason overlaps more of it. So it is charged its cost to the typical request:
the median of the requests wholly inside throttled spans less the median of those wholly outside,
or, below 6 of the former, all the overlap. Below 6 of the latter its cost is unknown, and nothing
is charged.

Even for an unexplained request it may be known where it lost its time: on the host, while it waited
for the launching thread although no evidence shows that thread held up, or on the device. Again, at
least half of the excess decides.

All times are ns on one clock. The intervals of one list concern one tenant, which serves one
request at a time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, compress
from statistics import median, median_low
from typing import Literal, get_args

from pytest_hwqueue.data.metrics.cpu_events import Interrupt, OffCpu
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.latency import above_percentiles, minimum_samples, share_of
from pytest_hwqueue.data.metrics.numbers import grouped
from pytest_hwqueue.data.metrics.switching import ready_delays
from pytest_hwqueue.data.metrics.timeline import (
    Span,
    Timeline,
    difference,
    intersection,
    length,
    union,
    within,
)

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


def interrupt_evidence(interrupts: Iterable[Interrupt]) -> list[Evidence]:
    """Return the interrupts that ran in the tenant's threads' time.

    Args:
        interrupts: of the threads that serve the tenant's requests.

    """
    return [
        Evidence(
            "interrupted", one.start_ns, one.end_ns,
            f"{one.kind} {one.name}" + (f" raised by {one.raised_by}" if one.raised_by else ""),
        )
        for one in interrupts
    ]  # fmt: skip


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


def queued_evidence(
    work: Sequence[DeviceWork], owner: str, *, turns: bool = False
) -> list[Evidence]:
    """Return whose kernels a tenant's requests queued behind.

    Queued is the time in which a request's kernel was ready but had not started, while kernels
    of other tenants, or of the tenant's other streams, ran. It is also the time by which a kernel
    ran longer than the median of its name while another tenant's kernels ran: they share the
    device. Where tenants take turns on the device, what others ran is left out: see
    `critical_path`.
    """
    own = _of_requests(work, owner)
    usual = usual_lengths(own)
    streams = grouped(((one.owner, one.stream), one) for one in work)
    queues = {key: _StreamQueue(kernels) for key, kernels in streams.items()}

    found: list[Evidence] = []
    for one in own:
        for (other, stream), queue in queues.items():
            if (other == owner and stream == one.stream) or (turns and other != owner):
                continue
            whose = "its own" if other == owner else f"{other}'s"
            held_up = list(queue.ran_between(one.ready_ns, one.start_ns))
            if other != owner:
                held_up += queue.ran_between(_usual_end_ns(one, usual), one.end_ns)
            found += [
                Evidence("queued", start, end, f"{whose} {name} on stream {stream}")
                for name, start, end in held_up
            ]
    return found


def own_work_evidence(work: Sequence[DeviceWork], owner: str) -> list[Evidence]:
    """Return the own work of a tenant's requests.

    It is a kernel's run time up to the median of its name: what the request asked for, without
    what else may have slowed it.
    """
    own = _of_requests(work, owner)
    usual = usual_lengths(own)
    return [
        Evidence("own work", one.start_ns, _usual_end_ns(one, usual), one.name, one.request)
        for one in own
    ]


def _of_requests(work: Iterable[DeviceWork], owner: str) -> list[DeviceWork]:
    return [one for one in work if one.owner == owner and one.request is not None]


def _usual_end_ns(kernel: DeviceWork, usual: Mapping[str, int]) -> int:
    """Return when a kernel would have ended that takes no longer than the median of its name."""
    return min(kernel.end_ns, kernel.start_ns + usual[kernel.name])


def usual_lengths(work: Iterable[DeviceWork]) -> dict[str, int]:
    """Return the median length of the kernels of each name, in ns."""
    lengths = grouped((one.name, one.end_ns - one.start_ns) for one in work)
    return {name: median_low(values) for name, values in lengths.items()}


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


LossPlace = Literal["host", "device"]
"""Where an unexplained request lost its time."""

UNEXPLAINED = "unexplained"
EARLIER_REQUESTS = "its tenant's earlier requests"

# What keeps a thread from launching.
_OF_THE_HOST: tuple[Cause, ...] = (
    "descheduled", "interrupted", "garbage collection", "compilation", "allocation", "blocked",
)  # fmt: skip
_LEAST_EXPLAINED = 0.5
_USUAL_AT_MOST = 0.95
# Enough for a median; charging is what costs time.
_MOST_USUAL = 1000
_LEAST_FOR_MEDIAN = minimum_samples(0.5)


@dataclass(frozen=True, slots=True)
class Request:
    """One request; all times are ns on one clock.

    Attributes:
        number: evidence may refer to it.
        arrival_ns: when it was due; in a closed loop, when it was started.
        ready_ns: when it could have started: it was due, and the tenant's previous one was done.
        started_ns: when it started.
        finished_ns: when it finished.

    """

    number: int
    arrival_ns: int
    ready_ns: int
    started_ns: int
    finished_ns: int

    def __post_init__(self) -> None:
        if not self.arrival_ns <= self.ready_ns <= self.started_ns <= self.finished_ns:
            raise ValueError(
                f"request {self.number}: arrival, ready, started and finished must follow each "
                f"other, are {self.arrival_ns}, {self.ready_ns}, {self.started_ns} and "
                f"{self.finished_ns} ns"
            )


@dataclass(frozen=True, slots=True)
class RequestCause:
    """Why one request was slow.

    Attributes:
        request: its number.
        excess_ns: how much longer it took than the median request.
        cause: None if unexplained.
        what: the cause's evidence that overlapped most; None if unexplained.
        explained_ns: time explained by each cause, where above 0.
        place: where an unexplained request lost its time; None if neither place shows it, or a
            cause explains it.

    """

    request: int
    excess_ns: int
    cause: Cause | None
    what: str | None
    explained_ns: Mapping[Cause, int]
    place: LossPlace | None = None


@dataclass(frozen=True)
class TailAttribution:
    """The causes of the requests above a percentile.

    Attributes:
        threshold_ns: requests longer than this are the tail.
        median_ns: of all requests.
        requests: of the tail, the slowest first.
        shares: of the tail by cause, always including `UNEXPLAINED`; a cause that could not be seen
            has none.
        whats: by cause, how many requests name each culprit, the most frequent first.
        not_seen: causes that could not be seen, and why.
        unexplained_in: unexplained shares of the tail by the place where time was lost; None if it
            could not be seen.

    """

    threshold_ns: int
    median_ns: int
    requests: tuple[RequestCause, ...]
    shares: dict[str, Estimate]
    whats: Mapping[Cause, tuple[tuple[str, int], ...]]
    not_seen: Mapping[Cause, str]
    unexplained_in: dict[str, Estimate] | None


@dataclass(frozen=True)
class Attribution:
    """Tails by percentile; ``refused`` holds the reason for each that is missing."""

    tails: Mapping[str, TailAttribution]
    refused: Mapping[str, str]


def attribute(
    requests: Sequence[Request],
    evidence: Iterable[Evidence],
    not_seen: Mapping[Cause, str],
    host: Sequence[Span] | None = None,
) -> Attribution:
    """Assign a cause to every request above P95 and P99, or leave it unexplained.

    Lateness of the generator and waiting for the tenant's earlier requests are taken from the
    requests themselves.

    Args:
        requests: of one tenant, in any order, with distinct numbers.
        evidence: that concerns this tenant, in any order.
        not_seen: causes for which no evidence could be gathered, and why.
        host: sorted, disjoint spans in which requests waited for the launching thread, not for the
            device; None if that could not be seen.

    Raises:
        ValueError: if two requests have one number.

    """
    import numpy as np

    if len({request.number for request in requests}) != len(requests):
        raise ValueError("two requests have the same number")
    tails: dict[str, TailAttribution] = {}
    refused: dict[str, str] = {}
    charges = _Charges(requests, evidence, host)
    lengths = np.array([_length(request) for request in requests], dtype=np.float64)
    equal = "all slowest requests took the same time, so no cause can be ranked"
    cause_of = cache(charges.cause_of)
    for name, (threshold, above) in above_percentiles(lengths, "requests", equal, refused).items():
        tail = map(cause_of, compress(requests, above))
        found = sorted(tail, key=lambda one: -one.excess_ns)
        tails[name] = TailAttribution(
            threshold_ns=int(threshold),
            median_ns=charges.median_ns,
            requests=tuple(found),
            shares=_shares(found, not_seen),
            whats=_whats(found),
            not_seen=dict(not_seen),
            unexplained_in=None if host is None else _places(found),
        )
    return Attribution(tails, refused)


class _Charges:
    """Charges each moment of a request to a cause, relative to the usual charges."""

    def __init__(
        self,
        requests: Sequence[Request],
        evidence: Iterable[Evidence],
        host: Sequence[Span] | None,
    ) -> None:
        import numpy as np

        self._host = host
        # By the only request that it concerns, or None, and by cause; then by what it was.
        self._seen: dict[tuple[int | None, Cause], dict[str, list[Span]]] = {}
        whose = grouped(((one.request, one.cause), one) for one in evidence)
        for key, those in whose.items():
            spans = grouped((one.what, (one.start_ns, one.end_ns)) for one in those)
            self._seen[key] = {what: union(of) for what, of in spans.items()}
        self._all = {
            cause: union(span for spans in whats.values() for span in spans)
            for (request, cause), whats in self._seen.items()
            if request is None
        }
        self.median_ns = int(median(map(_length, requests))) if requests else 0
        self._throttling_ns = self._cost_of_throttling(requests)
        usual = [one for one in requests if _length(one) <= self.median_ns]
        usual = usual[:: -(-len(usual) // _MOST_USUAL) or 1]
        charged = [self._charge(one) for one in usual]
        self._usual_ns: dict[Cause, tuple[float, float]] = {}
        for cause in CAUSES:
            values = [charge[cause] for charge in charged] or [0]
            self._usual_ns[cause] = (median(values), float(np.quantile(values, _USUAL_AT_MOST)))
        places = [self._in_places(one, host) for one in usual] if host is not None else []
        self._usual_in: dict[LossPlace, float] = {
            place: median(one[place] for one in places) for place in (places[0] if places else ())
        }

    def cause_of(self, request: Request) -> RequestCause:
        """Apply the rule to one slow request."""
        excess = _length(request) - self.median_ns
        explained: dict[Cause, int] = {}
        for cause, charged in self._charge(request).items():
            usual, at_most = self._usual_ns[cause]
            if charged > at_most:
                explained[cause] = int(charged - usual)
        most = max(explained, key=lambda one: (explained[one], -CAUSES.index(one)), default=None)
        if most is None or explained[most] < _LEAST_EXPLAINED * excess:
            place = self._place(request, excess)
            return RequestCause(request.number, excess, None, None, explained, place)
        what = self._most_overlapping(request, most)
        return RequestCause(request.number, excess, most, what, explained)

    def _place(self, request: Request, excess: int) -> LossPlace | None:
        """Return where a request lost at least half of its excess, or None if unknown."""
        if self._host is None:
            return None
        spent = self._in_places(request, self._host)
        beyond = {place: ns - self._usual_in[place] for place, ns in spent.items()}
        most = max(beyond, key=lambda place: beyond[place])
        return most if beyond[most] >= _LEAST_EXPLAINED * excess else None

    def _in_places(self, request: Request, host: Sequence[Span]) -> dict[LossPlace, int]:
        """Return how long a request waited for the unhindered host, and for the device."""
        begin, end = request.started_ns, request.finished_ns
        launching = within(host, begin, end)
        device_ns = end - begin - length(launching)
        for cause in _OF_THE_HOST:
            launching = difference(launching, self._spans(request, cause))
        return {"host": length(launching), "device": device_ns}

    def _charge(self, request: Request) -> dict[Cause, int]:
        """Return the ns of a request charged to each cause; each moment is charged at most once."""
        left: list[Span] = [(request.arrival_ns, request.finished_ns)]
        charged: dict[Cause, int] = {}
        for cause in CAUSES:
            spans = self._spans(request, cause)
            if cause == "throttled":
                charged[cause] = length(spans)
                if self._throttling_ns is not None:
                    charged[cause] = min(charged[cause], self._throttling_ns)
                continue
            charged[cause] = length(intersection(left, spans))
            left = difference(left, spans)
        # Nothing else delayed the earlier requests meanwhile: they were work of this tenant's own.
        charged["queued"] += length(within(left, request.arrival_ns, request.ready_ns))
        return charged

    def _spans(self, request: Request, cause: Cause) -> list[Span]:
        begin, end = request.arrival_ns, request.finished_ns
        spans = within(self._all.get(cause, ()), begin, end)
        for own in self._seen.get((request.number, cause), {}).values():
            spans += within(own, begin, end)
        if cause == "generator late":
            spans.append((request.ready_ns, request.started_ns))
        return union(spans)

    def _most_overlapping(self, request: Request, cause: Cause) -> str:
        """Return the evidence of a cause that covers most of a request."""
        begin, end = request.arrival_ns, request.finished_ns
        overlaps: Counter[str] = Counter()
        for whose in (request.number, None):
            for what, spans in self._seen.get((whose, cause), {}).items():
                overlaps[what] += length(within(spans, begin, end))
        if cause == "generator late":
            overlaps["the load generator"] = request.started_ns - request.ready_ns
        if cause == "queued":
            overlaps[EARLIER_REQUESTS] = self._behind_earlier(request)
        return max(overlaps, key=lambda what: overlaps[what])

    def _behind_earlier(self, request: Request) -> int:
        left: list[Span] = [(request.arrival_ns, request.ready_ns)]
        for cause in CAUSES:
            if cause != "throttled":
                left = difference(left, self._spans(request, cause))
        return length(left)

    def _cost_of_throttling(self, requests: Sequence[Request]) -> int | None:
        """Return throttling's cost to a typical request in ns; None if too few were throttled."""
        inside, outside = [], []
        spans = self._all.get("throttled", [])
        for request in requests:
            overlap = length(within(spans, request.arrival_ns, request.finished_ns))
            if overlap == 0:
                outside.append(_length(request))
            elif overlap == _length(request):
                inside.append(_length(request))
        if len(outside) < _LEAST_FOR_MEDIAN:
            return 0
        if len(inside) < _LEAST_FOR_MEDIAN:
            return None
        return max(0, int(median(inside) - median(outside)))


def _length(request: Request) -> int:
    return request.finished_ns - request.arrival_ns


def _shares(found: Sequence[RequestCause], not_seen: Mapping[Cause, str]) -> dict[str, Estimate]:
    seen: dict[str, Cause | None] = {one: one for one in CAUSES if one not in not_seen}
    seen[UNEXPLAINED] = None
    return {
        name: share_of(sum(one.cause == cause for one in found), len(found))
        for name, cause in seen.items()
    }


def _places(found: Sequence[RequestCause]) -> dict[str, Estimate]:
    return {
        place: share_of(sum(one.place == place for one in found), len(found))
        for place in get_args(LossPlace)
    }


def _whats(found: Sequence[RequestCause]) -> dict[Cause, tuple[tuple[str, int], ...]]:
    named = grouped((one.cause, one.what) for one in found if one.cause and one.what is not None)
    return {
        cause: tuple(sorted(Counter(whats).items(), key=lambda item: (-item[1], item[0])))
        for cause, whats in named.items()
    }
