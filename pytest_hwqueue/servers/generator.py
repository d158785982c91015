"""Generates load: requests by a schedule or in a closed loop, several at once, from one event loop.

The schedule is made before the window, and latency counts from the scheduled time. A request that
is due while all connections are busy waits for one, and its wait counts: no coordinated omission
(Tene, "How NOT to Measure Latency", 2013).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from pytest_hwqueue.harness.open_loop import (
    FailedRequest,
    RequestLog,
    StoppedServing,
    Window,
    require_early,
)
from pytest_hwqueue.harness.slots import MOST_FAILURES_IN_A_ROW
from pytest_hwqueue.servers.client import Reply, RequestFailed

# epoll counts in whole milliseconds. The rest of each wait is spent looking at the clock, with
# answers taken in meanwhile; it costs a core, and sleeping lets others have that core for longer.
_SPIN_NS = 1_500_000

Request = Callable[[], Awaitable[Reply | None]]


@dataclass(frozen=True)
class Load:
    """What came of a window's requests.

    Attributes:
        log: as of any tenant.
        replies: of each request in the log; None for one that failed, or has no tokens.
        most_at_once: the most requests in flight.

    """

    log: RequestLog
    replies: Sequence[Reply | None]
    most_at_once: int


async def generate(
    request: Request,
    schedule: Sequence[int] | None,
    window: Window,
    concurrency: int,
    late_ms: float = 0.0,
) -> Load:
    """Send the requests of a window; return once each has its answer, or has failed.

    Args:
        request: sends one and waits for its answer; raises RequestFailed.
        schedule: due times in ns from the window's start, ascending; None for a closed loop, which
            keeps ``concurrency`` requests in flight until the window ends.
        window: when to measure, on the clock of `time.monotonic_ns`.
        concurrency: the greatest number in flight at once.
        late_ms: planted fault: how much too late each scheduled request is sent.

    Raises:
        InvalidMeasurement: if the window began before everything was ready.
        StoppedServing: if 10,000 requests failed in a row.

    """
    require_early(time.monotonic_ns(), window)
    run = _Run(request, window, concurrency, closed=schedule is None)
    if schedule is None:
        await asyncio.gather(*(run.keep_sending() for _ in range(concurrency)))
    else:
        await run.send_all(schedule, round(late_ms * 1e6))
    return run.load(schedule)


class _Run:
    """Sends the requests and logs their times, in ns from the window's start."""

    def __init__(self, request: Request, window: Window, concurrency: int, *, closed: bool) -> None:
        self._request = request
        self._window = window
        self._free = asyncio.Semaphore(concurrency)
        self._log = RequestLog(closed=closed, concurrency=concurrency)
        self._replies: list[Reply | None] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight = self._most_at_once = self._failures_in_a_row = 0

    async def keep_sending(self) -> None:
        await _until(self._window.begin_ns)
        while time.monotonic_ns() < self._window.end_ns:
            await self._send(None)
            self._refuse_hopeless()

    async def send_all(self, schedule: Sequence[int], late_ns: int) -> None:
        window = self._window
        last_start_ns = window.end_ns + window.grace_ns
        for scheduled_ns in schedule:
            await _until(window.begin_ns + scheduled_ns)
            if late_ns:
                await _until(time.monotonic_ns() + late_ns)
            if not await self._connection_before(last_start_ns):
                break
            self._refuse_hopeless()
            task = asyncio.create_task(self._send_and_free(scheduled_ns))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        # Each has a time-out of its own.
        await asyncio.gather(*self._tasks)

    def load(self, schedule: Sequence[int] | None) -> Load:
        begun = len(self._log.started_ns)
        unserved = 0 if schedule is None else len(schedule) - begun
        return Load(replace(self._log, unserved=unserved), self._replies, self._most_at_once)

    async def _connection_before(self, last_ns: int) -> bool:
        """Wait for a free connection; return whether there was one in time."""
        left_s = (last_ns - time.monotonic_ns()) / 1e9
        if left_s <= 0:
            return False
        if not self._free.locked():
            await self._free.acquire()
            return True
        try:
            await asyncio.wait_for(self._free.acquire(), left_s)
        except asyncio.TimeoutError:
            return False
        return True

    async def _send_and_free(self, scheduled_ns: int) -> None:
        try:
            await self._send(scheduled_ns)
        finally:
            self._free.release()

    async def _send(self, scheduled_ns: int | None) -> None:
        log, begin_ns = self._log, self._window.begin_ns
        started_ns = time.monotonic_ns() - begin_ns
        index = len(log.started_ns)
        log.scheduled_ns.append(started_ns if scheduled_ns is None else scheduled_ns)
        log.started_ns.append(started_ns)
        log.finished_ns.append(started_ns)
        self._replies.append(None)
        self._in_flight += 1
        self._most_at_once = max(self._most_at_once, self._in_flight)
        try:
            self._replies[index] = await self._request()
            self._failures_in_a_row = 0
        except RequestFailed as failed:
            log.failed.append(FailedRequest(index, str(failed)))
            self._failures_in_a_row += 1
        finally:
            log.finished_ns[index] = time.monotonic_ns() - begin_ns
            self._in_flight -= 1

    def _refuse_hopeless(self) -> None:
        if self._failures_in_a_row >= MOST_FAILURES_IN_A_ROW:
            raise StoppedServing(
                f"{self._failures_in_a_row:,} requests failed in a row; the last: "
                f"{self._log.failed[-1].reason}",
                self.load(None).log,
            )


async def _until(when_ns: int) -> None:
    while (left_ns := when_ns - time.monotonic_ns()) > 0:
        await asyncio.sleep((left_ns - _SPIN_NS) / 1e9 if left_ns > _SPIN_NS else 0)
