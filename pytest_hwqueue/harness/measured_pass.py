"""The measured pass of a cell, its references before and after it, and their figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from pytest_hwqueue.devices.telemetry import TelemetryLog
from pytest_hwqueue.harness.cell import OpenCell
from pytest_hwqueue.harness.closed_loop import LoopPlan, LoopResult, measure
from pytest_hwqueue.harness.program import Enqueue, Program
from pytest_hwqueue.harness.summary import bound_by_launching, summarise
from pytest_hwqueue.harness.throughput_pass import measure_blocks, planned_of
from pytest_hwqueue.harness.timeline_pass import (
    ReferencePass,
    events_disturb,
    reference_pass,
    traced_latencies,
)
from pytest_hwqueue.records.cell import BackToBack, Declared, Samples
from pytest_hwqueue.tracing.cpu_counters import CpuCounting

_NOT_NEEDED = "a comparison, or --hwq-lean, measures only what verdicts need"
# Of each reference, before and after.
_Passes = dict[str, list[ReferencePass]]


def take_samples(
    cell: OpenCell,
    program: Program,
    iteration: Enqueue,
    references: Mapping[str, Program],
    log: TelemetryLog,
    confirm_scheduler: Callable[[], None],
) -> None:
    """Measure a cell that is warm and checked.

    Args:
        cell: receives the results.
        program: its iteration.
        iteration: what a program that is a graph was captured from.
        references: the workload's, by name.
        log: of telemetry.
        confirm_scheduler: called after measuring; raises NotProven if the mode has ended.

    """
    request, found = cell.request, cell.found
    workload = request.workload
    # Half of the references before, half after: a drift falls on both sides of a ratio. What is
    # traced comes last: once a profiler has run, launching takes longer.
    traced = bool(program.no_events)
    passes: _Passes = {}
    if not traced:
        _measure_references(cell, program, references, passes)
    result, plan = _measure(cell, program, log, confirm_scheduler)
    memory_bytes = cell.device.memory_bytes()
    refused: dict[str, str] = {}
    blocks, planned = None, planned_of(cell)
    if planned and request.throughput_pass:
        blocks = measure_blocks(cell, program, iteration, planned)
    elif planned:
        refused["throughput"] = _NOT_NEEDED
    if traced:
        _measure_references(cell, program, references, passes)
    if traced and workload.tags:
        cell.stage("tags")
        cell.pool.tags = None
        result.tags_ns, result.tag_iterations = traced_latencies(
            cell.pool, program, plan, primary=workload.primary.per != "iteration"
        )
        found.notes.append(f"tags timed in a traced pass: {program.no_events}")
        if not result.tags_ns:
            refused["tags"] = f"{program.no_events}, and a graph's kernels have no tags"
    _measure_references(cell, program, references, passes)
    if request.lean and workload.ratios:
        refused["ratios"] = _NOT_NEEDED
    elif references and not passes and workload.ratios:
        refused["ratios"] = "references need synchronised iterations"
    found.samples = _samples(result, program, passes, workload.overlap or (), blocks)
    found.declared = Declared.model_validate(
        {"ratios": workload.ratios, "overlap": workload.overlap, "traffic": workload.traffic()},
        from_attributes=True,
    )
    work = {} if "throughput" in refused else found.work_per_iteration
    found.metrics = summarise(found.samples, work, found.declared, found.primary)
    found.metrics.refused.update(refused)
    found.metrics.memory_bytes.update(memory_bytes)
    found.metrics.apart.update(workload.measured_apart())
    _note(cell)


def _measure(
    cell: OpenCell, program: Program, log: TelemetryLog, confirm_scheduler: Callable[[], None]
) -> tuple[LoopResult, LoopPlan]:
    request, found = cell.request, cell.found
    assert found.warm_up is not None
    plan = replace(request.plan, iteration_ns=found.warm_up.iteration_ns)
    cell.stage("measure", 0, plan.iterations)
    log.poll(0, force=True)

    def pause(done: int) -> None:
        log.poll(done)
        cell.progress("measure", done, plan.iterations)

    # Where time is virtual, what this machine's threads do is nothing measured.
    virtual = cell.device.capabilities.virtual_time
    counting = None if virtual else CpuCounting(lambda: cell.pool.launched)
    result = measure(cell.device, cell.pool, program, plan, pause, counting)
    if counting is not None:
        found.counters = counting.counters(result.lead_in + result.iterations)
    confirm_scheduler()
    # What was counted on the device is read when all its work has ended.
    found.work_per_iteration = request.workload.work_per_iteration()
    log.poll(result.iterations, force=True)
    found.telemetry = log.finish()
    found.iterations = result.iterations
    found.stopped = result.stopped
    return result, plan


def _measure_references(
    cell: OpenCell, program: Program, references: Mapping[str, Program], passes: _Passes
) -> None:
    plan = cell.request.plan
    if plan.sync_mode != "per_iteration":
        return
    short = LoopPlan(
        # As many launches, before and after, as the latency has samples that ratios are formed of.
        iterations=max(1, (cell.request.samples or plan.iterations) // 2),
        warmup=min(plan.warmup, 5),
        max_time_ns=max(1, plan.max_time_ns // 10),
        sync_mode=plan.sync_mode,
        wall_ns=plan.max_time_ns,
        rank_sync=plan.rank_sync,
    )
    for name, reference in references.items():
        cell.progress(f"reference {name}", 0, short.iterations)
        traced = bool(program.no_events)
        passed = reference_pass(cell.device, cell.pool, reference, short, traced=traced)
        passes.setdefault(name, []).append(passed)


def _samples(
    result: LoopResult,
    program: Program,
    references: _Passes,
    whole: tuple[str, ...],
    blocks: BackToBack | None,
) -> Samples:
    """Return the samples to store: iterations of ``whole`` references, launches of the others."""
    return Samples(
        host_ns=result.host_ns,
        device_ns=result.device_ns,
        enqueue_ns=result.enqueue_ns,
        pace_ns=result.pace_ns,
        back_to_back=blocks,
        tags_ns=result.tags_ns,
        tags_timed_by="activity" if program.no_events else "events",
        tag_iterations=result.tag_iterations or None,
        references_ns={
            name: [ns for one in passes for ns in one.launches_ns]
            for name, passes in references.items()
            if name not in whole
        },
        reference_iterations_ns={
            name: [ns for one in references[name] for ns in one.iterations_ns]
            for name in whole
            if name in references
        },
    )


def _note(cell: OpenCell) -> None:
    """Note what readers of the figures must know."""
    request, found = cell.request, cell.found
    assert found.telemetry is not None
    assert found.samples is not None
    if request.workload.decisions_drawn:
        drawn = ", ".join(request.workload.decisions_drawn)
        found.notes.append(f"drawn from the seed instead of computed: {drawn}")
    if found.telemetry.throttled:
        tagged = found.telemetry.throttled_samples
        found.notes.append(f"{tagged} of {found.iterations} samples taken while throttled")
    if errors := found.telemetry.xid_errors:
        found.notes.append(f"the driver reported Xid {', '.join(map(str, errors))} meanwhile")
    sync_mode = request.plan.sync_mode
    if sync_mode != "per_iteration":
        found.notes.append(f"sync mode {sync_mode}: latency is device time from events")
        disturbed = events_disturb(cell.device, request.cell.streams)
        if disturbed:
            found.notes.append(f"sync mode {sync_mode} times by events: {disturbed}")
    if request.cell.dispatch == "eager" and not cell.device.capabilities.host:
        bound = bound_by_launching(found.samples)
        if bound:
            found.launch_bound = True
            found.notes.append(bound)
