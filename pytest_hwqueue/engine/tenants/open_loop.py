"""The open loop: requests start when they are due, or when an earlier one is done.

A tenant serves up to N requests at once in order of arrival: a queue with N servers, mostly one.
All times are known beforehand, so no thread generates them: whoever is free waits for the next one.
Latency counts from the scheduled time, so a request that waits behind a slow one is as slow as its
user sees. The delay that the loop itself adds, its lateness, is kept separately; too much makes the
run invalid.
"""

from __future__ import annotations

import gc
import heapq
import threading
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from threading import Event
from typing import NamedTuple

from pytest_hwqueue.data.errors import HwqError
from pytest_hwqueue.data.records.tenants import (
    GeneratorLateness,
    RequestFailure,
    RequestLog,
    TokensCounted,
)
from pytest_hwqueue.engine.cell.closed_loop import garbage_collection_held
from pytest_hwqueue.parts.devices.protocol import Device

# A sleep ends late by the kernel's timer slack (50 µs) and the time to wake up: on an otherwise
# idle core by 130 µs at P99. So much of each wait is spent looking at the clock. Looking holds the
# interpreter lock, and so delays other threads by as much; giving it away with sleep(0) would take
# the timer slack again.
_SPIN_NS = 200_000
# A closed loop of requests that fail at once would fill the memory with their reasons.
MOST_FAILURES_IN_A_ROW = 10_000


@dataclass(frozen=True)
class Demand:
    """When the requests of a window are asked for: as scheduled, or each after the one before.

    Attributes:
        schedule: due times in ns from the window's start, ascending, within it; None for closed
            loops, which the rest is about.
        first_ns: when the first ones start, in ns from the window's start.
        delay_ns: from a request's end until whoever served it starts the next.
        most: requests; None for as many as the window has time for.

    """

    schedule: Sequence[int] | None = None
    first_ns: int = 0
    delay_ns: int = 0
    most: int | None = None

    def within(self, window_ns: int) -> Demand:
        """Return what is asked for in a window that may be shorter than planned."""
        if self.schedule is None:
            return self
        return replace(self, schedule=self.schedule[: bisect_left(self.schedule, window_ns)])

    def longest_ns(self, window_ns: int, requests: int, least_ns: int) -> int:
        """Return the longest time to serve without exceeding a number of requests.

        Args:
            window_ns: the planned length.
            requests: the greatest number, at least 1.
            least_ns: the shortest time that a request takes.

        """
        if self.schedule is None:
            return min(window_ns, self.first_ns + requests * least_ns)
        if len(self.schedule) <= requests:
            return window_ns
        return max(1, self.schedule[requests])


GREEDY = Demand()
"""Each request starts when the one before is done, until the window ends."""


class Arrivals:
    """Hands out requests in order of arrival to whoever is free."""

    def __init__(
        self,
        device: Device,
        demand: Demand,
        window: Window,
        ended: Event,
    ) -> None:
        self.schedule = demand.schedule
        self.ended = ended
        self._device = device
        self._clock_ns = device.clock_ns
        self._window = window
        self._demand = demand
        self._next = 0
        # Who holds it waits for the next request, and the others wait for it, without the clock.
        self._turn = threading.Lock()
        # A virtual clock stands still while one looks at it.
        self._spin_ns = 0 if device.capabilities.virtual_time else _SPIN_NS

    def take(self, free_ns: int) -> int | None:
        """Wait until the next request is due; return its number, or None if there is no more.

        Args:
            free_ns: when whoever asks had served the one before; 0 for none.

        """
        if self._demand.delay_ns and free_ns:
            # Each for itself: others may be free before. None starts when the window is over.
            self._wait_until(min(free_ns + self._demand.delay_ns, self._window.end_ns))
        with self._turn:
            if self.ended.is_set() or not self._is_due():
                return None
            self._next += 1
            return self._next - 1

    def _is_due(self) -> bool:
        window, schedule = self._window, self.schedule
        if schedule is None:
            if self._next == self._demand.most:
                return False
            self._wait_until(window.begin_ns + self._demand.first_ns)
            return self._clock_ns() < window.end_ns
        if self._next == len(schedule):
            return False
        self._wait_until(window.begin_ns + schedule[self._next])
        return self._clock_ns() < window.over_ns and not self.ended.is_set()

    def _wait_until(self, when_ns: int) -> None:
        clock_ns, sleep_until_ns = self._clock_ns, when_ns - self._spin_ns
        if clock_ns() < sleep_until_ns:
            self._device.sleep_until_ns(sleep_until_ns)
        while clock_ns() < when_ns:
            pass


# Receives when a request was due, started and finished, and whether it failed.
Show = Callable[[int, int, int, bool], None]


class Onlooker(NamedTuple):
    """Who looks at a window while it is served.

    Attributes:
        ended: set to end the window early, from any thread: then no further request is taken.
        shown: the times of requests, one for each that is served at once; empty to see none.

    """

    ended: Event
    shown: Sequence[Show] = ()


class Slot:
    """Serves one request at a time and logs its times, in ns from the window's start.

    Attributes:
        numbers: of its requests, in order of arrival of all; times are by the same positions.
        failed: number and reason of those that raised.
        stopped: why it cannot continue, and the error; None if it can.

    """

    def __init__(
        self,
        device: Device,
        request: Callable[[], None],
        arrivals: Arrivals,
        window: Window,
        shown: Show | None = None,
    ) -> None:
        self._shown = shown
        self.numbers = array("q")
        self.started_ns = array("q")
        self.finished_ns = array("q")
        self.failed: list[tuple[int, str]] = []
        self.stopped: tuple[str, Exception] | None = None
        self._clock_ns = device.clock_ns
        self._request = request
        self._arrivals = arrivals
        self._begin_ns = window.begin_ns
        self._free_ns = 0
        self._failures_in_a_row = 0

    def serve(self) -> None:
        """Serve until there is no more, or the process cannot continue."""
        while self.stopped is None and (number := self._arrivals.take(self._free_ns)) is not None:
            self._serve(number)

    def _serve(self, number: int) -> None:
        clock_ns = self._clock_ns
        started_ns = clock_ns()
        try:
            self._request()
        except Exception as error:
            self._write(number, started_ns, clock_ns(), failed=True)
            self._failed(number, error)
        else:
            self._write(number, started_ns, clock_ns())
            self._failures_in_a_row = 0

    def _write(
        self, number: int, started_ns: int, finished_ns: int, *, failed: bool = False
    ) -> None:
        self._free_ns = finished_ns
        started_ns -= self._begin_ns
        finished_ns -= self._begin_ns
        self.numbers.append(number)
        self.started_ns.append(started_ns)
        self.finished_ns.append(finished_ns)
        if self._shown is not None:
            schedule = self._arrivals.schedule
            due_ns = started_ns if schedule is None else schedule[number]
            self._shown(due_ns, started_ns, finished_ns, failed)

    def _failed(self, number: int, error: Exception) -> None:
        # Brings torch, which readers of what is measured here can do without.
        from pytest_hwqueue.engine.cell.attempt import describe_failure

        failure = describe_failure(error)
        self.failed.append((number, failure.reason))
        self._failures_in_a_row += 1
        reason = failure.reason
        if not failure.retire_process:
            if self._failures_in_a_row < MOST_FAILURES_IN_A_ROW:
                return
            reason = f"{self._failures_in_a_row:,} requests failed in a row; the last: {reason}"
        self.stopped = reason, error
        self._arrivals.ended.set()


LATENESS_SHARE = 0.2
"""Up to this share of what is asked of a tenant, the P99 of its generator's lateness is valid.

A worsening of 20 % is what the gate has to see (``--hwq-detect``): that much must not be the
generator's own.
"""

_LEAST_GRACE_NS = 1_000_000_000


@dataclass(frozen=True)
class Window:
    """The measured time, the same for all tenants, on the device's host clock."""

    begin_ns: int
    end_ns: int

    def __post_init__(self) -> None:
        if self.end_ns <= self.begin_ns:
            raise ValueError(f"a window from {self.begin_ns} to {self.end_ns} ns has no length")

    @property
    def duration_ns(self) -> int:
        """Its length."""
        return self.end_ns - self.begin_ns

    @property
    def grace_ns(self) -> int:
        """How long after the window's end requests scheduled within it may still start."""
        return max(_LEAST_GRACE_NS, self.duration_ns // 10)

    @property
    def over_ns(self) -> int:
        """From when on no request may start any more."""
        return self.end_ns + self.grace_ns


MOST_TOKENS = 10**9
"""No answer has more; a count beyond it would be a throughput beyond all others."""


class Reply(NamedTuple):
    """When a completed request's tokens came, in ns on the clock of `time.monotonic_ns`.

    Attributes:
        first_ns: the first token, whatever it is of.
        answer_ns: the first one that is of the answer and no reasoning; None if all is reasoning.
        last_ns: the last one.
        tokens: how many were streamed.
        counted: whose number that is: the server's (``usage``), of events with a token, or that of
            a client of another project.
        done_ns: when the end was announced, or else the last event came.

    """

    first_ns: int
    answer_ns: int | None
    last_ns: int
    tokens: int
    counted: TokensCounted
    done_ns: int


@dataclass(frozen=True)
class Load(RequestLog):
    """What came of the requests of a window, in order of arrival.

    Attributes:
        closed: whether there was no schedule, so that each request is scheduled when it starts.
        failed: requests that raised, by index.
        unserved: later requests that were due but not started by the end of the grace.
        concurrency: how many were served at once.
        replies: a server's, to each request; None for one that failed, or has no tokens.
        most_at_once: the most requests that were in flight to a server.
        freed_ns: when whoever served a request could take another one; empty: as each finished.
        worked: share of the window in which the generator worked; None where nobody measured it.
        busy: likewise, or waited for a core.

    """

    closed: bool = False
    failed: Sequence[RequestFailure] = ()
    unserved: int = 0
    concurrency: int = 1
    replies: Sequence[Reply | None] = ()
    most_at_once: int = 0
    freed_ns: Sequence[int] = ()
    worked: float | None = None
    busy: float | None = None

    @property
    def issued(self) -> int:
        """Requests that were due: completed, failed and unserved."""
        return len(self.scheduled_ns) + self.unserved

    @property
    def completed(self) -> int:
        """Requests that returned."""
        return len(self.scheduled_ns) - len(self.failed)

    def until(self, window_ns: int, demand: Demand) -> Load:
        """Return what would have come of a shorter window, of whose grace all is here.

        Args:
            window_ns: its length.
            demand: of the window as planned.

        """
        due = demand.within(window_ns).schedule
        ends_ns = window_ns if due is None else Window(0, window_ns).over_ns
        late = (n for n, started_ns in enumerate(self.started_ns) if started_ns >= ends_ns)
        n = next(late, len(self.started_ns))
        n = n if due is None else min(n, len(due))
        return replace(
            self,
            scheduled_ns=self.scheduled_ns[:n],
            started_ns=self.started_ns[:n],
            finished_ns=self.finished_ns[:n],
            failed=[each for each in self.failed if each.index < n],
            unserved=0 if due is None else len(due) - n,
        )


class StoppedServing(HwqError):
    """The tenant cannot continue; the cause is the request's error, ``load`` has earlier ones."""

    def __init__(self, reason: str, load: Load) -> None:
        super().__init__(reason)
        self.load = load


def serve(
    device: Device,
    requests: Sequence[Callable[[], None]],
    demand: Demand,
    window: Window,
    *,
    begin_thread: Callable[[], object] = lambda: None,
    onlooker: Onlooker | None = None,
) -> Load:
    """Serve the requests of a window in order, as many at once as there are ``requests``.

    Every scheduled request is served, even after the window's end, until its grace is over; a
    request that raises is logged as failed. Garbage collection is disabled; a caller that has done
    so already (threads that serve together must) saves the time to collect first, some 100 ms.

    Args:
        device: whose clock and sleep are used; on a simulated one they are virtual.
        requests: each enqueues one request and waits for its completion. A single one is called in
            this thread, several each in a thread of their own.
        demand: when requests are asked for.
        window: when to measure.
        begin_thread: called first in each thread that is started.
        onlooker: who looks at the window meanwhile, if anybody does.

    Raises:
        ValueError: if the schedule does not ascend or leaves the window.
        InvalidMeasurement: if the window began before everything was ready.
        StoppedServing: if the device or the process is no longer usable, or 10,000 requests failed
            in a row.

    """
    schedule = demand.schedule
    if schedule:
        if any(later < earlier for earlier, later in pairwise(schedule)):
            raise ValueError("a schedule must ascend")
        if schedule[0] < 0 or schedule[-1] >= window.duration_ns:
            raise ValueError(f"a schedule must be within its window of {window.duration_ns} ns")
    onlooker = onlooker or Onlooker(Event())
    arrivals = Arrivals(device, demand, window, onlooker.ended)
    slots = [
        Slot(device, request, arrivals, window, show)
        for request, show in zip_longest(requests, onlooker.shown)
    ]
    with garbage_collection_held() if gc.isenabled() else nullcontext():
        require_early(device.clock_ns(), window)
        if len(slots) == 1:
            slots[0].serve()
        else:
            with ThreadPoolExecutor(len(slots), "hwq-slot", begin_thread) as threads:
                for served in [threads.submit(slot.serve) for slot in slots]:
                    served.result()
    load = _joined(slots, schedule)
    for slot in slots:
        if slot.stopped is not None:
            reason, error = slot.stopped
            raise StoppedServing(reason, load) from error
    return load


def lateness(load: Load) -> GeneratorLateness | None:
    """Summarise the generator's own lateness: from when a request could start until it did.

    It could start once it was due and fewer than ``concurrency`` before it still had whoever served
    them.
    None for a closed loop, which has no generator, or if nothing was served.
    """
    if load.closed or not load.started_ns:
        return None
    ordered = sorted(
        started - max(scheduled, free)
        for scheduled, started, free in zip(
            load.scheduled_ns,
            load.started_ns,
            _free_ns(load.freed_ns or load.finished_ns, load.concurrency),
            strict=True,
        )
    )
    n = len(ordered)
    return GeneratorLateness(
        p50_us=ordered[-(-50 * n // 100) - 1] / 1e3,
        p99_us=ordered[-(-99 * n // 100) - 1] / 1e3,
        max_us=ordered[-1] / 1e3,
        n=n,
    )


def invalid_reason(
    late: GeneratorLateness | None, p99_ms: float, asked_ms: float | None = None
) -> str | None:
    """Return why a late generator makes a run invalid, and what to change; or None.

    Args:
        late: of the tenant's requests; None where nothing generated them.
        p99_ms: of the tenant's latency, lateness included.
        asked_ms: the latency that its goals or its deadline ask for, if any.

    """
    if late is None or late.p99_us / 1e3 <= LATENESS_SHARE * max(p99_ms, asked_ms or 0.0):
        return None
    what = f"the tenant's own P99 of {p99_ms:.3g} ms"
    if asked_ms is not None and asked_ms > p99_ms:
        what = f"the {asked_ms:.3g} ms asked of the tenant"
    return (
        f"the generator was late: P99 of {late.n} requests started {late.p99_us / 1e3:.3g} ms "
        f"after they were due and could be served (at most {late.max_us / 1e3:.3g} ms), more than "
        f"{LATENESS_SHARE:.0%} of {what}; give each tenant a core that nothing else uses (fewer "
        "tenants, fewer other processes, or taskset)"
    )


MOST_BUSY = 0.8
"""Up to this share of a window a generator may be busy.

Beyond it a request waits for the generator more than four times as long as it takes it, by the
queue M/M/1 (Kleinrock, Queueing Systems I, 1975, section 3.2).
"""


def overloaded_reason(busy: float | None) -> str | None:
    """Return why a generator that was busy makes a run invalid, and what to change; or None.

    Args:
        busy: share of the window in which it worked or waited for a core; None if nobody knows.

    """
    if busy is None or busy <= MOST_BUSY:
        return None
    return (
        f"the load generator was busy for {busy:.0%} of the window, more than {MOST_BUSY:.0%}: "
        "requests waited for it and not for the server; ask for less (a lower rate, a lower "
        "concurrency in a closed loop), or give it a core that nothing else uses"
    )


def lateness_note(late: GeneratorLateness | None, p99_ms: float) -> str | None:
    """Return a note on lateness that a tenant's goals allow, and its P99 suffers from; or None."""
    if late is None or late.p99_us / 1e3 <= LATENESS_SHARE * p99_ms:
        return None
    return (
        f"of its P99 of {p99_ms:.3g} ms up to {late.p99_us / 1e3:.3g} ms is its generator's "
        "lateness, which is little of what is asked of it"
    )


def _free_ns(freed_ns: Iterable[int], concurrency: int) -> Iterator[int]:
    """Yield for each request when a slot was free for it: at the N-th largest end before it."""
    latest = [0] * concurrency
    for end_ns in freed_ns:
        yield latest[0]
        heapq.heappushpop(latest, end_ns)


def _joined(slots: Sequence[Slot], schedule: Sequence[int] | None) -> Load:
    """Join what slots served, in order of arrival: the numbers run from 0 without a gap."""
    n = sum(len(slot.numbers) for slot in slots)
    started_ns, finished_ns = [0] * n, [0] * n
    for slot in slots:
        for number, started, finished in zip(
            slot.numbers, slot.started_ns, slot.finished_ns, strict=True
        ):
            started_ns[number], finished_ns[number] = started, finished
    failed = dict(each for slot in slots for each in slot.failed)
    if schedule is None and len(slots) > 1:
        # Two slots may take their numbers in one order and start in the other.
        order = sorted(range(n), key=started_ns.__getitem__)
        started_ns, finished_ns = (
            [*map(times.__getitem__, order)] for times in (started_ns, finished_ns)
        )
        failed = {at: failed[number] for at, number in enumerate(order) if number in failed}
    return Load(
        closed=schedule is None,
        scheduled_ns=started_ns if schedule is None else [*schedule[:n]],
        started_ns=started_ns,
        finished_ns=finished_ns,
        failed=[
            RequestFailure(index=number, reason=reason) for number, reason in sorted(failed.items())
        ],
        unserved=0 if schedule is None else len(schedule) - n,
        concurrency=len(slots),
    )


def require_early(now_ns: int, window: Window) -> None:
    """Raise if requests at the window's start would be late, too few of them to show in the P99."""
    if now_ns > window.begin_ns:
        from pytest_hwqueue.data.errors import InvalidMeasurement

        raise InvalidMeasurement(
            f"the tenant was ready {(now_ns - window.begin_ns) / 1e6:.3g} ms after the window had "
            "begun; run fewer other processes, or tenants, on this machine's cores"
        )
