"""Front ends, which start kernels: one for stream launches, one for the nodes of graphs."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from pytest_hwqueue.devices.simulated.multiprocessors import Schedule


class FrontEnd:
    """Serves ready work one by one, the most urgent first; ties go to the earlier one.

    Args:
        service_ns: time between two starts.
        start_ns: from being served to running.
        switch_ns: added if the last served work came from another queue.
        schedule: puts a call into the engine's calendar.
        started: receives each item when it may run.

    """

    def __init__(
        self,
        service_ns: int,
        start_ns: int,
        switch_ns: int,
        schedule: Schedule,
        started: Callable[[int, Any], None],
    ) -> None:
        self.waiting: list[tuple[tuple[int, int], int, Any]] = []
        self._service_ns = service_ns
        self._start_ns = start_ns
        self._switch_ns = switch_ns
        self._schedule = schedule
        self._started = started
        self.free_ns = 0
        self._wake_ns = -1
        self._last_queue = -1

    def offer(self, rank: tuple[int, int], queue: int, item: object) -> None:
        """Queue an item of a hardware queue for `serve`."""
        heappush(self.waiting, (rank, queue, item))

    def serve(self, now_ns: int, room: int) -> int:
        """Serve what can be served now, at most ``room`` items; return how many were served."""
        served = 0
        while self.waiting and served < room:
            if self.free_ns > now_ns:
                if self._wake_ns != self.free_ns:
                    self._wake_ns = self.free_ns
                    self._schedule(self.free_ns, _wake, None)
                break
            _, queue, item = heappop(self.waiting)
            served += 1
            self._schedule(self.start_ns(now_ns, queue), self._started, item)
            self.served(now_ns, queue)
        return served

    def start_ns(self, now_ns: int, queue: int) -> int:
        """Return when an item of a queue runs if served now."""
        if queue == self._last_queue or self._last_queue < 0:
            return now_ns + self._start_ns
        return now_ns + self._start_ns + self._switch_ns

    def rest(self, now_ns: int) -> tuple[int, int]:
        """Return what decides the next start if nothing waits: time until free, and queue."""
        return max(0, self.free_ns - now_ns), self._last_queue

    def resume(self, rest: tuple[int, int], now_ns: int) -> None:
        """Restore a state that `rest` has returned, at another time."""
        self.free_ns, self._last_queue = now_ns + rest[0], rest[1]
        self._wake_ns = -1

    def served(self, now_ns: int, queue: int) -> None:
        """Note that an item of a queue has been served."""
        self.free_ns = now_ns + self._service_ns
        self._last_queue = queue


def _wake(now_ns: int, argument: None) -> None:
    """Schedule an instant, at which the engine serves the front ends anyway."""
