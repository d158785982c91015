"""The open loop: requests start when they are due, or when the previous one is done.

A tenant serves one request at a time in order of arrival: a queue with one server. All times are
known beforehand, so no thread generates them: the loop waits for the next one. Latency counts from
the scheduled time, so a request that waits behind a slow one is as slow as its user sees. The delay
that the loop itself adds, its lateness, is kept separately; too much makes the run invalid.
"""

from __future__ import annotations

import gc
import heapq
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import pairwise

from pytest_hwqueue.devices.protocol import Device
from pytest_hwqueue.harness.closed_loop import garbage_collection_held

LATENESS_LIMIT_MS = 1.0
"""The P99 of lateness up to which a run is valid, unless a caller allows another."""

# A sleep ends late by the kernel's timer slack (50 µs) and the time to wake up: on an otherwise
# idle core by 130 µs at P99. So much of each wait is spent looking at the clock. Looking holds the
# interpreter lock, and so delays other threads by as much; giving it away with sleep(0) would take
# the timer slack again.
_SPIN_NS = 200_000
_LEAST_GRACE_NS = 1_000_000_000
# A closed loop of requests that fail at once would fill the memory with their reasons.
MOST_FAILURES_IN_A_ROW = 10_000


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


@dataclass(frozen=True)
class FailedRequest:
    """A request that raised; ``index`` is its place in the log."""

    index: int
    reason: str


@dataclass(frozen=True)
class RequestLog:
    """Requests in order of arrival; times in ns from the window's start.

    Attributes:
        closed: whether there was no schedule, so that each request is scheduled when it starts.
        scheduled_ns: when each started request was due, shape (n,).
        started_ns: when it started, shape (n,).
        finished_ns: when it completed or failed, shape (n,).
        failed: requests that raised, by index.
        unserved: later requests that were due but not started by the end of the grace.
        concurrency: how many were served at once.

    """

    closed: bool
    scheduled_ns: array[int] = field(default_factory=lambda: array("q"))
    started_ns: array[int] = field(default_factory=lambda: array("q"))
    finished_ns: array[int] = field(default_factory=lambda: array("q"))
    failed: list[FailedRequest] = field(default_factory=list)
    unserved: int = 0
    concurrency: int = 1

    @property
    def issued(self) -> int:
        """Requests that were due: completed, failed and unserved."""
        return len(self.scheduled_ns) + self.unserved

    @property
    def completed(self) -> int:
        """Requests that returned."""
        return len(self.scheduled_ns) - len(self.failed)

    def latencies_ns(self) -> list[int]:
        """Latency of each completed request, from its scheduled time, in order of arrival."""
        failed = {request.index for request in self.failed}
        times = zip(self.scheduled_ns, self.finished_ns, strict=True)
        return [
            finished - scheduled
            for index, (scheduled, finished) in enumerate(times)
            if index not in failed
        ]


class StoppedServing(RuntimeError):
    """The tenant cannot continue; the cause is the request's error, ``log`` has earlier ones."""

    def __init__(self, reason: str, log: RequestLog) -> None:
        super().__init__(reason)
        self.log = log


@dataclass(frozen=True)
class Lateness:
    """How late the loop started ``n`` requests that were due and did not have to wait.

    Percentiles are sample values, by nearest rank: P99 of fewer than 100 requests is the largest.
    """

    p50_us: float
    p99_us: float
    max_us: float
    n: int


def serve(
    device: Device,
    request: Callable[[], None],
    schedule: list[int] | None,
    window: Window,
    *,
    late_ms: float = 0.0,
    stall_s: float = 0.0,
) -> RequestLog:
    """Serve the requests of a window, one at a time, in order.

    Every scheduled request is served, even after the window's end, until its grace is over; a
    request that raises is logged as failed. Garbage collection is disabled; a caller that has done
    so already (threads that serve together must) saves the time to collect first, some 100 ms.

    Args:
        device: whose clock and sleep are used; on a simulated one they are virtual.
        request: enqueues one request and waits for its completion.
        schedule: due times in ns from the window's start, ascending, within it; None for a closed
            loop, which starts the next request when the previous one is done, until the window
            ends.
        window: when to measure.
        late_ms: planted fault: how much too late the generator starts each scheduled request.
        stall_s: planted fault: how long the first request in the window's second half hangs.

    Raises:
        ValueError: if the schedule does not ascend or leaves the window.
        InvalidMeasurement: if the window began before everything was ready.
        StoppedServing: if the device or the process is no longer usable, or 10,000 requests failed
            in a row.

    """
    if schedule:
        if any(later < earlier for earlier, later in pairwise(schedule)):
            raise ValueError("a schedule must ascend")
        if schedule[0] < 0 or schedule[-1] >= window.duration_ns:
            raise ValueError(f"a schedule must be within its window of {window.duration_ns} ns")
    if stall_s:
        request = _stalling(device, request, window, round(stall_s * 1e9))
    server = _Server(device, request, schedule, window)
    with garbage_collection_held() if gc.isenabled() else nullcontext():
        require_early(device.clock_ns(), window)
        if schedule is None:
            server.serve_closed()
        else:
            server.serve_scheduled(schedule, round(late_ms * 1e6))
    return server.log()


def lateness(log: RequestLog) -> Lateness | None:
    """Summarise the generator's own lateness: from when a request could start until it did.

    It could start once it was due and fewer than ``concurrency`` before it were still being served.
    None for a closed loop, which has no generator, or if nothing was served.
    """
    if log.closed or not log.started_ns:
        return None
    ordered = sorted(
        started - max(scheduled, free)
        for scheduled, started, free in zip(
            log.scheduled_ns,
            log.started_ns,
            _free_ns(log.finished_ns, log.concurrency),
            strict=True,
        )
    )
    n = len(ordered)
    return Lateness(
        p50_us=ordered[-(-50 * n // 100) - 1] / 1e3,
        p99_us=ordered[-(-99 * n // 100) - 1] / 1e3,
        max_us=ordered[-1] / 1e3,
        n=n,
    )


def invalid_reason(log: RequestLog, limit_ms: float = LATENESS_LIMIT_MS) -> str | None:
    """Return why a late generator makes a run invalid, and what to change; or None."""
    late = lateness(log)
    if late is None or late.p99_us <= limit_ms * 1e3:
        return None
    p99_ms, max_ms = late.p99_us / 1e3, late.max_us / 1e3
    return (
        f"the generator was late: P99 of {late.n} requests started {p99_ms:.3g} ms after they were "
        f"due and could be served (at most {max_ms:.3g} ms), and the limit is "
        f"{limit_ms:g} ms; give each tenant a core that nothing else uses (fewer tenants, fewer "
        "other processes, or taskset)"
    )


def _free_ns(finished_ns: Iterable[int], concurrency: int) -> Iterator[int]:
    """Yield for each request when a slot was free for it: at the N-th largest end before it."""
    latest = [0] * concurrency
    for end_ns in finished_ns:
        yield latest[0]
        heapq.heappushpop(latest, end_ns)


class _Server:
    """Runs requests and logs their times, in ns from the window's start."""

    def __init__(
        self,
        device: Device,
        request: Callable[[], None],
        schedule: list[int] | None,
        window: Window,
    ) -> None:
        self._device = device
        self._clock_ns = device.clock_ns
        self._request = request
        self._schedule = schedule
        self._window = window
        self._log = RequestLog(closed=schedule is None)
        self._failures_in_a_row = 0
        # A virtual clock stands still while one looks at it.
        self._spin_ns = 0 if device.capabilities.virtual_time else _SPIN_NS

    def serve_closed(self) -> None:
        self._wait_until(self._window.begin_ns)
        while self._clock_ns() < self._window.end_ns:
            self._serve(None)

    def serve_scheduled(self, schedule: list[int], late_ns: int) -> None:
        begin_ns = self._window.begin_ns
        last_start_ns = self._window.end_ns + self._window.grace_ns
        for scheduled_ns in schedule:
            self._wait_until(begin_ns + scheduled_ns)
            if late_ns:
                self._wait_until(self._clock_ns() + late_ns)
            if self._clock_ns() >= last_start_ns:
                return
            self._serve(scheduled_ns)

    def log(self) -> RequestLog:
        if self._schedule is None:
            return self._log
        return replace(self._log, unserved=len(self._schedule) - len(self._log.started_ns))

    def _serve(self, scheduled_ns: int | None) -> None:
        clock_ns = self._clock_ns
        started_ns = clock_ns()
        try:
            self._request()
        except Exception as error:
            self._write(scheduled_ns, started_ns, clock_ns())
            self._failed(error)
        else:
            self._write(scheduled_ns, started_ns, clock_ns())
            self._failures_in_a_row = 0

    def _write(self, scheduled_ns: int | None, started_ns: int, finished_ns: int) -> None:
        log, begin_ns = self._log, self._window.begin_ns
        started_ns -= begin_ns
        log.scheduled_ns.append(started_ns if scheduled_ns is None else scheduled_ns)
        log.started_ns.append(started_ns)
        log.finished_ns.append(finished_ns - begin_ns)

    def _failed(self, error: Exception) -> None:
        # Brings torch, which readers of what is measured here can do without.
        from pytest_hwqueue.harness.failures import describe_failure

        failure = describe_failure(error)
        self._log.failed.append(FailedRequest(len(self._log.started_ns) - 1, failure.reason))
        self._failures_in_a_row += 1
        if failure.retire_process:
            raise StoppedServing(failure.reason, self.log()) from error
        if self._failures_in_a_row == MOST_FAILURES_IN_A_ROW:
            raise StoppedServing(
                f"{self._failures_in_a_row:,} requests failed in a row; the last: {failure.reason}",
                self.log(),
            ) from error

    def _wait_until(self, when_ns: int) -> None:
        clock_ns, sleep_until_ns = self._clock_ns, when_ns - self._spin_ns
        if clock_ns() < sleep_until_ns:
            self._device.sleep_until_ns(sleep_until_ns)
        while clock_ns() < when_ns:
            pass


def require_early(now_ns: int, window: Window) -> None:
    """Raise if requests at the window's start would be late, too few of them to show in the P99."""
    if now_ns > window.begin_ns:
        from pytest_hwqueue.errors import InvalidMeasurement

        raise InvalidMeasurement(
            f"the tenant was ready {(now_ns - window.begin_ns) / 1e6:.3g} ms after the window had "
            "begun; run fewer other processes, or tenants, on this machine's cores"
        )


def _stalling(
    device: Device, request: Callable[[], None], window: Window, stall_ns: int
) -> Callable[[], None]:
    stalled = False

    def stalling() -> None:
        nonlocal stalled
        now_ns = device.clock_ns()
        if not stalled and now_ns - window.begin_ns >= window.duration_ns // 2:
            stalled = True
            device.sleep_until_ns(now_ns + stall_ns)
        request()

    return stalling
