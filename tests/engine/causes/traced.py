"""A traced pass of a function, with delays planted into chosen requests; and a cell measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from pytest_hwqueue.data.metrics.attribution import Attribution, RequestCause
from pytest_hwqueue.data.records.cell import Cell, RunRecord
from pytest_hwqueue.data.records.noise import Causes
from pytest_hwqueue.data.records.provenance import Provenance
from pytest_hwqueue.engine.causes import traced_pass as traced_pass_module
from pytest_hwqueue.engine.causes.perf_events import Tracing
from pytest_hwqueue.engine.causes.traced_cell import causes_of_pass
from pytest_hwqueue.engine.causes.traced_pass import TracedPass, TracePlan, traced_pass
from pytest_hwqueue.engine.cell.attempt import Failure
from pytest_hwqueue.engine.cell.cell import CellOrigin, CellRequest, Passes
from pytest_hwqueue.engine.cell.closed_loop import Plan
from pytest_hwqueue.engine.cell.program import eager
from pytest_hwqueue.engine.cell.runner import CellRunner
from pytest_hwqueue.engine.cell.stop_rule import StopRule
from pytest_hwqueue.parts.devices.protocol import Device, Stream
from pytest_hwqueue.parts.devices.telemetry import TelemetryLog, Unavailable
from pytest_hwqueue.parts.schedulers.syntax import open_scheduler


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

    def found(self) -> dict[int, RequestCause]:
        """Causes of the requests above P95, by number."""
        return {one.request: one for one in self.attribution.tails["p95"].requests}


@contextmanager
def tracing_by(opened: Callable[..., Tracing]) -> Iterator[None]:
    """Have passes trace the CPU by what this opens, as on a machine with other rights."""
    with patch.object(traced_pass_module, "open_tracing", opened):
        yield


def trace(
    device: Device,
    streams: int,
    usual: Callable[[Sequence[Stream]], None],
    planted: Callable[[Sequence[Stream]], None] | None = None,
    requests: int = 500,
) -> Traced:
    """Trace requests of ``usual``, each 25th followed by ``planted``."""
    times: list[int] = []
    count = 0

    def enqueue(given: Sequence[Stream]) -> None:
        nonlocal count
        count += 1
        usual(given)
        if planted is not None and count % 25 == 0:
            times.append(device.clock_ns())
            planted(given)

    log = TelemetryLog(Unavailable("not asked for"), clock_ns=device.clock_ns)
    plan = TracePlan(requests, 5_000_000_000)
    with device.open_streams(streams) as pool:
        for each in (usual, planted or usual):
            each(pool.streams)
            pool.synchronize()
        program = eager(device, enqueue, False)
        passed = traced_pass(device, pool, program, plan, lambda done: None)
        passed.telemetry = log.finish()
        causes, attribution = causes_of_pass(device, passed)
    return Traced(passed, causes, attribution, times)


def measured(
    device: Device, workload: Any, find_causes: Any, *, streams: int = 1, dispatch: str = "eager",
    iterations: int = 1, only_traced: bool = False,
) -> tuple[RunRecord, Failure | None]:  # fmt: skip
    """Measure a cell as `hwq trace` and a session do; return also what made it fail."""
    cell = Cell(
        name=workload.name, device=device.label, streams=streams, scheduler="native",
        dispatch=dispatch, sync_mode="per_iteration", size=None, parameters={},
    )  # fmt: skip
    request = CellRequest(
        cell=cell, workload=workload, make_workload=None, urgency=[0] * streams,
        plan=Plan(StopRule(iterations, 2_000_000_000), 1, "per_iteration"), seed=0,
        origin=CellOrigin("file.py::test", None, None, "hwq", Provenance()),
        passes=Passes(find_causes=find_causes, only_traced=only_traced),
    )  # fmt: skip
    return CellRunner(device, open_scheduler("native"), lambda *_: None).run(request)
