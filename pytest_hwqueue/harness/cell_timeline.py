"""A cell's timeline, separate from its measured pass, and what it shows about the streams."""

from __future__ import annotations

from pytest_hwqueue.devices.named_trace import trace_path
from pytest_hwqueue.errors import DeviceError, InvalidMeasurement
from pytest_hwqueue.harness.cell import OpenCell
from pytest_hwqueue.harness.program import Program, eager
from pytest_hwqueue.harness.timeline_pass import probe_queue_switch, timeline_pass
from pytest_hwqueue.metrics.switching import THREADS, without_switch
from pytest_hwqueue.metrics.timeline import TimelineSummary
from pytest_hwqueue.records.names import file_name


def take_timeline(cell: OpenCell, program: Program) -> None:
    """Take the timeline and the queue-switch probe, and write a trace if requested.

    Raises:
        InvalidMeasurement: if kernels did not run on the requested streams.

    """
    cell.stage("timeline")
    request, found, pool = cell.request, cell.found, cell.pool
    pool.tags = None
    traced = _timeline_program(cell, program)
    try:
        passed = timeline_pass(pool, traced.enqueue, request.rank_sync)
        _count_kernels(cell, program, passed.kernels_per_iteration if traced is program else None)
        _check_streams(cell, passed.summary)
        ready_to_start = passed.ready_to_start
        if cell.device.capabilities.host:
            ready_to_start = without_switch(ready_to_start, THREADS)
        probe = probe_queue_switch(cell.device, pool)
        found.metrics = found.metrics.model_copy(
            update={
                "timeline": passed.summary,
                "ready_to_start": ready_to_start,
                "queue_switch": probe,
            }
        )
    except DeviceError as error:
        found.metrics.refused["timeline"] = str(error)
    if request.trace_folder is not None:
        request.trace_folder.mkdir(parents=True, exist_ok=True)
        path = trace_path(request.trace_folder, file_name(request.cell.id))
        pool.export_trace(lambda: program.enqueue(pool.streams), str(path))
        found.notes.append(f"trace: {path}")


def _check_streams(cell: OpenCell, summary: TimelineSummary) -> None:
    """Refuse figures of a workload whose kernels did not run on all requested streams."""
    if summary.elsewhere == summary.kernels:
        raise InvalidMeasurement(
            f"all {summary.kernels} kernels ran on streams that are not ours, such as the default "
            "stream: no priority and no scheduler of streams had anything to do with them; launch "
            "the work on the current stream"
        )
    if summary.elsewhere:
        cell.found.notes.append(
            f"{summary.elsewhere} of {summary.kernels} kernels ran on streams that are not ours, "
            "such as NCCL's own or the default stream: they count for the stream that launched "
            "them, and have neither its queue nor its priority"
        )
    asked, used = cell.request.cell.streams, summary.streams_used
    if used == asked:
        return
    text = f"{asked} streams were requested, but kernels ran on {used}"
    if cell.request.make_workload is not None:
        raise InvalidMeasurement(f"{text}: the figures are not those of {asked} streams")
    cell.found.notes.append(text)


def _count_kernels(cell: OpenCell, program: Program, of_an_iteration: int | None) -> None:
    """Give the counters the number of measured kernels; trace an iteration if it is unknown."""
    found, pool = cell.found, cell.pool
    if found.counters is None:
        return
    if of_an_iteration is None:
        pool.synchronize()
        try:
            of_an_iteration = len(pool.timeline(lambda: program.enqueue(pool.streams)).kernels)
        except DeviceError as error:
            found.counters = found.counters.without_kernels(str(error))
            return
    found.counters = found.counters.with_kernels(of_an_iteration)


def _timeline_program(cell: OpenCell, program: Program) -> Program:
    """Return an iteration whose work can be held back as a whole, and runs on its streams."""
    request, notes = cell.request, cell.found.notes
    if program.whole:
        notes.append(
            "timeline taken in eager dispatch: one graph for all streams does not run on them"
        )
    elif request.cell.dispatch == "graph":
        return program
    changed = request.workload.timeline_parameters(request.cell.streams)
    changed = {k: v for k, v in changed.items() if request.cell.parameters.get(k) != v}
    if not changed or request.make_workload is None:
        whole = program.whole
        return eager(cell.device, cell.iteration(request.workload), False) if whole else program
    workload = request.make_workload(changed)
    cell.set_up(workload)
    described = ", ".join(f"{name}={value}" for name, value in changed.items())
    notes.append(f"timeline taken with {described}, so that all work could be held")
    return Program(cell.iteration(workload), None)
