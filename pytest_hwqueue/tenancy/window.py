"""What a tenant does in its warm-up and in the common window, and its report on it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pytest_hwqueue.devices.protocol import Device
from pytest_hwqueue.errors import InvalidMeasurement
from pytest_hwqueue.harness.open_loop import (
    RequestLog,
    Window,
    invalid_reason,
    lateness,
    serve,
)
from pytest_hwqueue.tenancy.arrivals import parse_arrival, schedule
from pytest_hwqueue.tenancy.spec import Colocation, TenantSpec

# Fewer say nothing about how long a request takes.
_LEAST_REQUESTS = 3


def warm_up(
    plan: Colocation,
    device: Device,
    requests: Sequence[Callable[[], None]],
    begin_thread: Callable[[], object],
) -> list[int]:
    """Serve requests in a closed loop, as many at once as in the window; return their times in ns.

    Args:
        plan: says for how long.
        device: whose clock is used.
        requests: as `open_loop.serve` takes them.
        begin_thread: likewise.

    Raises:
        InvalidMeasurement: if a request outlasts the window and its grace.

    """
    began_ns = device.clock_ns()

    def loop(request: Callable[[], None]) -> list[int]:
        times_ns: list[int] = []
        while device.clock_ns() - began_ns < plan.warmup_s * 1e9 or len(times_ns) < _LEAST_REQUESTS:
            before_ns = device.clock_ns()
            request()
            times_ns.append(device.clock_ns() - before_ns)
            refuse_endless(plan, times_ns)
        return times_ns

    if len(requests) == 1:
        return loop(requests[0])
    with ThreadPoolExecutor(len(requests), "hwq-warm-up", begin_thread) as threads:
        return [each for times_ns in threads.map(loop, requests) for each in times_ns]


def refuse_endless(plan: Colocation, times_ns: list[int]) -> None:
    """Raise if requests outlast the window and its grace, before a long, useless warm-up.

    The first request does not count: it may compile and allocate.
    """
    window = Window(0, plan.duration_ns)
    if len(times_ns) > 1 and times_ns[-1] > window.duration_ns + window.grace_ns:
        raise InvalidMeasurement(
            f"a request took {times_ns[-1] / 1e9:.3g} s in warm-up, and the window is "
            f"{window.duration_ns / 1e9:.3g} s long: give a longer duration, or a smaller size"
        )


_REQUESTS_AT_ONCE = 10_000


class WindowPlan:
    """A tenant's plan for the window: its arrivals, prepared beforehand."""

    def __init__(self, plan: Colocation, spec: TenantSpec) -> None:
        arrival = parse_arrival(spec.arrival, Path(plan.folder))
        self.schedule = schedule(arrival, plan.tenant_seed(spec.name), plan.duration_ns)
        self._duration_ns = plan.duration_ns

    def due(self, duration_ns: int) -> list[int] | None:
        """Return what is due within a window that may be shorter than planned."""
        if self.schedule is None:
            return None
        return self.schedule[: bisect_left(self.schedule, duration_ns)]

    def serve(
        self,
        device: Device,
        requests: Sequence[Callable[[], None]],
        begin_ns: int,
        end_ns: int,
        begin_thread: Callable[[], object],
    ) -> RequestLog:
        """Serve the window's requests, as `open_loop.serve`; it may be shorter than planned."""
        window = Window(begin_ns, end_ns)
        due = self.due(window.duration_ns)
        return serve(device, requests, due, window, begin_thread=begin_thread)

    def longest_ns(self, requests: int, least_ns: int) -> int:
        """Return the longest time to serve without exceeding a number of requests.

        Args:
            requests: the greatest number, at least 1.
            least_ns: the shortest time that a request takes.

        """
        if self.schedule is None:
            return min(self._duration_ns, requests * least_ns)
        if len(self.schedule) <= requests:
            return self._duration_ns
        return max(1, self.schedule[requests])


def times_in_parts(log: RequestLog) -> Iterator[dict[str, list[int]]]:
    """Return a log's times as plain data, in parts small enough for a pipe."""
    for first in range(0, len(log.started_ns), _REQUESTS_AT_ONCE):
        part = slice(first, first + _REQUESTS_AT_ONCE)
        yield {
            "scheduled_ns": log.scheduled_ns[part].tolist(),
            "started_ns": log.started_ns[part].tolist(),
            "finished_ns": log.finished_ns[part].tolist(),
        }


def without_times(log: RequestLog) -> dict[str, Any]:
    """Return the rest of a log as plain data."""
    late = lateness(log)
    return {
        "failures": [asdict(failed) for failed in log.failed],
        "unserved": log.unserved,
        "lateness": None if late is None else asdict(late),
        "invalid": invalid_reason(log),
    }
