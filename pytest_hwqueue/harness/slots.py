"""Serving requests of one schedule from several threads, each of which serves one at a time."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_hwqueue.devices.protocol import Device

if TYPE_CHECKING:
    from pytest_hwqueue.harness.open_loop import Window

# A sleep ends late by the kernel's timer slack (50 µs) and the time to wake up: on an otherwise
# idle core by 130 µs at P99. So much of each wait is spent looking at the clock. Looking holds the
# interpreter lock, and so delays other threads by as much; giving it away with sleep(0) would take
# the timer slack again.
_SPIN_NS = 200_000
# A closed loop of requests that fail at once would fill the memory with their reasons.
MOST_FAILURES_IN_A_ROW = 10_000


class Arrivals:
    """Hands out requests in order of arrival to whoever is free."""

    def __init__(self, device: Device, schedule: list[int] | None, window: Window) -> None:
        self.schedule = schedule
        self.stopped = False
        self._device = device
        self._clock_ns = device.clock_ns
        self._window = window
        self._next = 0
        # Who holds it waits for the next request, and the others wait for it, without the clock.
        self._turn = threading.Lock()
        # A virtual clock stands still while one looks at it.
        self._spin_ns = 0 if device.capabilities.virtual_time else _SPIN_NS

    def take(self) -> int | None:
        """Wait until the next request is due; return its number, or None if there is no more."""
        with self._turn:
            if self.stopped or not self._is_due():
                return None
            self._next += 1
            return self._next - 1

    def _is_due(self) -> bool:
        window, schedule = self._window, self.schedule
        if schedule is None:
            self._wait_until(window.begin_ns)
            return self._clock_ns() < window.end_ns
        if self._next == len(schedule):
            return False
        self._wait_until(window.begin_ns + schedule[self._next])
        return self._clock_ns() < window.end_ns + window.grace_ns and not self.stopped

    def _wait_until(self, when_ns: int) -> None:
        clock_ns, sleep_until_ns = self._clock_ns, when_ns - self._spin_ns
        if clock_ns() < sleep_until_ns:
            self._device.sleep_until_ns(sleep_until_ns)
        while clock_ns() < when_ns:
            pass


class Slot:
    """Serves one request at a time and logs its times, in ns from the window's start.

    Attributes:
        numbers: of its requests, in order of arrival of all; times are by the same positions.
        failed: number and reason of those that raised.
        stopped: why it cannot continue, and the error; None if it can.

    """

    def __init__(
        self, device: Device, request: Callable[[], None], arrivals: Arrivals, window: Window
    ) -> None:
        self.numbers = array("q")
        self.started_ns = array("q")
        self.finished_ns = array("q")
        self.failed: list[tuple[int, str]] = []
        self.stopped: tuple[str, Exception] | None = None
        self._clock_ns = device.clock_ns
        self._request = request
        self._arrivals = arrivals
        self._begin_ns = window.begin_ns
        self._failures_in_a_row = 0

    def serve(self) -> None:
        """Serve until there is no more, or the process cannot continue."""
        while self.stopped is None and (number := self._arrivals.take()) is not None:
            self._serve(number)

    def _serve(self, number: int) -> None:
        clock_ns = self._clock_ns
        started_ns = clock_ns()
        try:
            self._request()
        except Exception as error:
            self._write(number, started_ns, clock_ns())
            self._failed(number, error)
        else:
            self._write(number, started_ns, clock_ns())
            self._failures_in_a_row = 0

    def _write(self, number: int, started_ns: int, finished_ns: int) -> None:
        self.numbers.append(number)
        self.started_ns.append(started_ns - self._begin_ns)
        self.finished_ns.append(finished_ns - self._begin_ns)

    def _failed(self, number: int, error: Exception) -> None:
        # Brings torch, which readers of what is measured here can do without.
        from pytest_hwqueue.harness.attempt import describe_failure

        failure = describe_failure(error)
        self.failed.append((number, failure.reason))
        self._failures_in_a_row += 1
        if failure.retire_process:
            self._stop(failure.reason, error)
        elif self._failures_in_a_row == MOST_FAILURES_IN_A_ROW:
            self._stop(
                f"{self._failures_in_a_row:,} requests failed in a row; the last: {failure.reason}",
                error,
            )

    def _stop(self, reason: str, error: Exception) -> None:
        self.stopped = reason, error
        self._arrivals.stopped = True
