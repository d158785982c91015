"""What a tenant does in the common window, and its report on it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pytest_hwqueue.devices.protocol import Device
from pytest_hwqueue.faults.specification import parse_fault
from pytest_hwqueue.harness.open_loop import (
    RequestLog,
    Window,
    invalid_reason,
    lateness,
    serve,
)
from pytest_hwqueue.tenancy.arrivals import parse_arrival, schedule
from pytest_hwqueue.tenancy.spec import Colocation, TenantSpec

_REQUESTS_AT_ONCE = 10_000


class WindowPlan:
    """A tenant's plan for the window: its arrivals and faults, prepared beforehand."""

    def __init__(self, plan: Colocation, spec: TenantSpec) -> None:
        arrival = parse_arrival(spec.arrival, Path(plan.folder))
        self.schedule = schedule(arrival, plan.tenant_seed(spec.name), plan.duration_ns)
        self._duration_ns = plan.duration_ns
        self.faults = [parse_fault(text) for text in spec.faults]
        self._planted = {fault.name: fault.values for fault in self.faults}

    @property
    def late_ms(self) -> float:
        """Planted fault: how much too late each scheduled request starts."""
        (late_ms,) = self._planted.get("late-generator", (0.0,))
        return late_ms

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
        (stall_s,) = self._planted.get("stalled-tenant", (0.0,))
        window = Window(begin_ns, end_ns)
        return serve(
            device, requests, self.due(window.duration_ns), window,
            late_ms=self.late_ms, stall_s=stall_s, begin_thread=begin_thread,
        )  # fmt: skip

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
