"""A traced pass of a function, with delays planted into chosen requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pytest_hwqueue.causes.traced_cell import causes_of_pass
from pytest_hwqueue.causes.traced_pass import TracedPass, TracePlan, traced_pass
from pytest_hwqueue.devices.protocol import Device, Stream
from pytest_hwqueue.devices.telemetry import TelemetryLog, Unavailable
from pytest_hwqueue.harness.program import eager
from pytest_hwqueue.metrics.attribution import Attribution, RequestCause
from pytest_hwqueue.records.noise import Causes


@dataclass
class Traced:
    """A pass, and when something was planted in it, in ns of the device's clock."""

    passed: TracedPass
    causes: Causes
    attribution: Attribution
    planted_ns: list[int] = field(default_factory=list)

    def planted_requests(self) -> list[int]:
        """Numbers of the requests into which something was planted."""
        return [
            request.number
            for request in self.passed.requests
            if any(request.started_ns <= at < request.finished_ns for at in self.planted_ns)
        ]

    def found(self, percentile: str = "p95") -> dict[int, RequestCause]:
        """Causes of the requests above a percentile, by number."""
        return {one.request: one for one in self.attribution.tails[percentile].requests}


def trace(
    device: Device,
    streams: int,
    usual: Callable[[Sequence[Stream]], None],
    planted: Callable[[Sequence[Stream]], None] | None = None,
    *,
    every: int = 25,
    requests: int = 500,
) -> Traced:
    """Trace requests of ``usual``, each ``every``-th followed by ``planted``."""
    times: list[int] = []
    count = 0

    def enqueue(given: Sequence[Stream]) -> None:
        nonlocal count
        count += 1
        usual(given)
        if planted is not None and count % every == 0:
            times.append(device.clock_ns())
            planted(given)

    log = TelemetryLog(Unavailable("not asked for"), clock_ns=device.clock_ns)
    with device.open_streams(streams) as pool:
        for each in (usual, planted or usual):
            each(pool.streams)
            pool.synchronize()
        passed = traced_pass(
            device,
            pool,
            eager(device, enqueue, False),
            TracePlan(requests, 5_000_000_000),
            log,
            _tell_nobody,
        )
        causes, attribution = causes_of_pass(device, passed)
    return Traced(passed, causes, attribution, times)


def _tell_nobody(done: int) -> None:
    """Tests show no progress."""
