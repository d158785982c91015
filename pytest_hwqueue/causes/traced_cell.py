"""The traced pass of a cell, and the causes of its slow requests."""

from __future__ import annotations

from dataclasses import replace

from pytest_hwqueue.causes.cell_causes import causes_of_pass
from pytest_hwqueue.causes.cell_picture import write_files
from pytest_hwqueue.causes.traced_pass import TracePlan, traced_pass
from pytest_hwqueue.errors import DeviceError
from pytest_hwqueue.harness.cell import OpenCell
from pytest_hwqueue.harness.program import Program
from pytest_hwqueue.records.causes import causes_line


def find_causes(plan: TracePlan, cell: OpenCell, program: Program) -> None:
    """Trace iterations separately from the measured ones, with the same faults planted.

    What cannot be traced here is refused, without affecting the measurement.
    """
    cell.stage("causes", 0, plan.requests)
    request, found = cell.request, cell.found
    assert found.warm_up is not None
    loop = replace(
        request.plan,
        iterations=plan.requests,
        max_time_ns=plan.max_time_ns,
        iteration_ns=found.warm_up.iteration_ns,
    )
    planted = request.faults.measured(cell.device, program, loop)
    try:
        with cell.telemetry() as log:
            passed = traced_pass(
                cell.device,
                cell.pool,
                planted,
                plan,
                log,
                lambda done: cell.progress("causes", done, plan.requests),
                all_threads=request.workload.gradients and not cell.device.capabilities.host,
                rank_sync=request.rank_sync,
            )
        found.causes, attribution = causes_of_pass(cell.device, passed)
        if request.rank_sync.ranks.rank == 0:
            # The record of several ranks has rank 0's causes, and the notes of all.
            found.notes.append(causes_line(found.causes, "a traced pass of its own"))
        found.notes += write_files(
            plan, request.cell.id, cell.device, cell.pool, passed, attribution
        )
    except (DeviceError, OSError) as error:
        found.metrics.refused["causes"] = str(error)
