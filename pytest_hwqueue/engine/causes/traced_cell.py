"""The traced pass of a cell, and the causes of its slow requests."""

from __future__ import annotations

from dataclasses import replace

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.data.metrics.attribution import Attribution, Cause, Evidence
from pytest_hwqueue.data.records.noise import Causes, causes_line
from pytest_hwqueue.data.records.telemetry import TelemetrySample
from pytest_hwqueue.data.records.timelines import TimelineData
from pytest_hwqueue.engine.causes.cell_picture import write_files
from pytest_hwqueue.engine.causes.explain import Trace, explain, unseen_on_host
from pytest_hwqueue.engine.causes.seen import trace_of
from pytest_hwqueue.engine.causes.traced_pass import TracedPass, TracePlan, traced_pass
from pytest_hwqueue.engine.cell.cell import OpenCell
from pytest_hwqueue.engine.cell.program import Program
from pytest_hwqueue.parts.devices.protocol import Device

_OWNER = "the cell"
# Beside a measured pass the traced one is no longer, unless that was shorter than this.
_LEAST_LIMIT_NS = 1_000_000_000


def find_causes(plan: TracePlan, cell: OpenCell, program: Program) -> None:
    """Trace iterations separately from the measured ones.

    What cannot be traced here is refused, without affecting the measurement.
    """
    request, draft = cell.request, cell.draft
    plan = plan_for(cell, plan)
    cell.stage("causes", 0, plan.requests)
    try:
        with cell.telemetry() as log:

            def pause(done: int) -> None:
                log.poll(done, force=True)
                cell.progress("causes", done, plan.requests)

            passed = traced_pass(
                cell.device, cell.pool, program, plan, pause, request.plan.rank_sync
            )
            passed.telemetry = log.finish()
        draft.causes, attribution = causes_of_pass(cell.device, passed, draft.kept)
        if request.plan.rank_sync.ranks.rank == 0:
            # The record of several ranks has rank 0's causes, and the notes of all.
            draft.notes.append(causes_line(draft.causes, "a traced pass of its own"))
        draft.notes += write_files(
            plan, request.cell.id, cell.device, cell.pool, passed, attribution
        )
    except (DeviceError, OSError) as error:
        draft.metrics = draft.metrics.without("causes", str(error))


def plan_for(cell: OpenCell, plan: TracePlan) -> TracePlan:
    """Return a plan as a cell allows it: beside a measured pass the traced one is no longer."""
    request, measured = cell.request, cell.draft.samples
    beside = not request.passes.only_traced and plan.folder is None
    if beside and not cell.device.capabilities.virtual_time:
        took_ns = sum(measured.host_ns or measured.pace_ns) if measured else 0
        plan = replace(plan, limit_ns=max(_LEAST_LIMIT_NS, took_ns))
    if request.workload.gradients and not cell.device.capabilities.host:
        plan = replace(plan, all_threads=True)
    return plan


def causes_of_pass(
    device: Device, passed: TracedPass, kept: TimelineData | None = None
) -> tuple[Causes, Attribution]:
    """Return why the slow requests of a pass were slow: as a record keeps it, and one by one.

    Args:
        device: that ran it.
        passed: the pass.
        kept: takes the kernels, for a report's picture; None keeps nothing.

    """
    # What the host waits for the device is no gap of its launching; nor is what lies between
    # chunks, when the pass itself was at work.
    pauses = [start_ns for start_ns, _ in passed.waits]
    trace, work = trace_of(passed, _OWNER, device.kind, pauses)
    not_seen = _not_seen(trace)
    evidence = _of_throttling(passed, not_seen)
    if kept is not None:
        kept.add_work("causes", work)
    return explain(passed.requests, trace, work, not_seen, evidence=evidence)


def _not_seen(trace: Trace) -> dict[Cause, str]:
    found: dict[Cause, str] = {
        "generator late": "in a closed loop nothing is due at a time",
        "time slice": "kernels of other processes are not seen",
    }
    if trace.work_unseen:
        found |= {"queued": trace.work_unseen, "own work": trace.work_unseen}
    return found | unseen_on_host(trace)


def _of_throttling(passed: TracedPass, not_seen: dict[Cause, str]) -> list[Evidence]:
    telemetry = passed.telemetry
    if not any(isinstance(sample, TelemetrySample) for sample in telemetry.samples):
        reasons = telemetry.missing.get("telemetry", "no reading of this device tells of it")
        not_seen["throttled"] = reasons
        return []
    missing = telemetry.missing.get("throttle_reasons")
    if missing is not None:
        not_seen["throttled"] = missing
        return []
    return [
        Evidence(
            "throttled",
            passed.requests[span.first_sample].started_ns,
            passed.requests[span.end_sample - 1].finished_ns,
            ", ".join(span.reasons),
        )
        for span in telemetry.throttled
    ]
