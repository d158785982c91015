"""The pass that gives timelines, and latencies of tagged launches from it.

Streams beyond the device's hardware connections share queues, and an event holds up every stream
that shares its queue until it has passed. Events around tagged launches would then make streams
wait for each other, and date a launch's readiness too late: measured on an H200 with 32 streams on
8 connections, 0.03 ms where the launch really took 41 ms. There the times come from a separate
traced pass, from the kernels' activity records.

In the timeline pass one gate holds all work until it is enqueued, so that the pass sees the
hardware's dispatch and not Python's. The same kernels run once on all streams and once on one
stream, in the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pytest_hwqueue.data.errors import DeviceError, InvalidMeasurement, translated
from pytest_hwqueue.data.metrics.overlap import TimelineSummary, summarise_timeline
from pytest_hwqueue.data.metrics.switching import (
    THREADS,
    QueueSwitch,
    queue_switch,
    without_difference,
    without_switch,
)
from pytest_hwqueue.data.metrics.timeline import Timeline, tag_latencies
from pytest_hwqueue.data.records.files import file_name
from pytest_hwqueue.engine.cell.cell import OpenCell
from pytest_hwqueue.engine.cell.closed_loop import (
    ONE_RANK,
    Plan,
    RankSynchronisation,
    measure,
    warm_up,
)
from pytest_hwqueue.engine.cell.program import Enqueue, Program, eager
from pytest_hwqueue.engine.cell.stop_rule import StopRule
from pytest_hwqueue.parts.devices.launches import trace_path
from pytest_hwqueue.parts.devices.protocol import Device, StreamPool

# Enough for P99 of a tag with few launches an iteration; more would cost seconds to read.
_MOST_KERNELS = 60_000
_SHARE_OF_TIME = 4
# Where the latency that is judged comes from that pass, it has to have the samples planned.
_MOST_KERNELS_OF_PRIMARY = 150_000


def events_disturb(device: Device, streams: int) -> str | None:
    """Why events must not stand between launches on so many streams, or None."""
    if device.connections is None or streams <= device.connections:
        return None
    return (
        f"{streams} streams share {device.connections} hardware connections, so that events would "
        "make streams wait for each other"
    )


def traced_latencies(
    pool: StreamPool, program: Program, plan: Plan, *, primary: bool = False
) -> tuple[dict[str, list[int]], int]:
    """Latency of each tagged launch and request, in ns, from the kernels' activity records.

    Args:
        pool: the streams.
        program: one iteration.
        plan: at most so many iterations; at most a quarter of its time; synchronised as it says.
        primary: the primary latency is among them: at most the plan's whole time.

    Returns:
        the latencies by tag, and the number of iterations that they are of.

    Raises:
        DeviceError: if this machine cannot see kernel times.

    """

    def once() -> None:
        program.enqueue(pool.streams)
        if plan.sync_mode == "per_iteration":
            pool.synchronize()

    launched = pool.launched
    kernels = max(1, len(pool.timeline(once).kernels))
    launches = pool.launched - launched
    most = _MOST_KERNELS_OF_PRIMARY if primary else _MOST_KERNELS
    planned = plan.traced_iterations if primary and plan.traced_iterations else plan.iterations
    time_ns = plan.stop.time_ns if primary else plan.stop.time_ns // _SHARE_OF_TIME
    stop = StopRule(min(planned, most // kernels), time_ns)
    iterations = plan.rank_sync.agreed(stop.fitting(plan.iteration_ns))
    timeline = pool.timeline(_repeat(once, iterations))
    return tag_latencies(timeline, program.request_name, launches), iterations


def reference_pass(
    device: Device, pool: StreamPool, program: Program, plan: Plan, *, traced: bool
) -> tuple[list[int], list[int]]:
    """Measure a reference, and its launches in the same way as the cell's own.

    Returns:
        what its tagged launches took, and its iterations on the device, in ns.

    """
    warmed = warm_up(device, pool, program, plan)
    # It is short: nothing is read between its iterations.
    measured = measure(device, pool, program, plan, lambda done: None)
    found = measured.tags_ns
    if traced:
        pool.tags = None
        timed = replace(plan, iteration_ns=warmed.iteration_ns)
        found, _ = traced_latencies(pool, program, timed)
    return [ns for values in found.values() for ns in values], measured.device_ns


# An accelerator's launch queues take about a thousand launches (facts: trouble from 960 on).
_HELD_LAUNCHES = 850
_MOST_REPEATS = 20
_MOST_SPAN_NS = 500_000_000

# The probe's kernels: long against a launch, of one block each, so that they fill no device.
PROBE_KERNEL_NS = 50_000
_PROBE_KERNELS_PER_STREAM = 20
_STREAMS_PER_PROBE_KERNEL = 32


@dataclass(frozen=True)
class HeldPass:
    """Kernels that ran once on all streams and once on one, with the switch of queues they show."""

    queue_switch: QueueSwitch
    many: Timeline
    one: Timeline


@dataclass(frozen=True)
class TimelinePass(HeldPass):
    """A cell's timeline pass."""

    summary: TimelineSummary
    kernels_per_iteration: int


def timeline_pass(
    pool: StreamPool, enqueue: Enqueue, rank_sync: RankSynchronisation = ONE_RANK
) -> TimelinePass:
    """Trace iterations of ``enqueue`` on all streams, then the same kernels on the first.

    Raises:
        DeviceError: if this machine cannot see kernel times.

    """
    streams = pool.streams
    once = pool.held_timeline(lambda: enqueue(streams))
    repeats = rank_sync.agreed(_repeats(once))
    collapsed = [streams[0]] * len(streams)
    many = pool.held_timeline(_repeat(lambda: enqueue(streams), repeats))
    one = pool.held_timeline(_repeat(lambda: enqueue(collapsed), repeats))
    with translated(DeviceError, "the timeline cannot be read", ValueError):
        summary, switch = summarise_timeline(many), queue_switch(many, one)
        return TimelinePass(switch, many, one, summary, len(once.kernels))


def probe_queue_switch(device: Device, pool: StreamPool) -> HeldPass:
    """Measure queue-switch overhead with kernels of one block, round-robin.

    They last 50 µs, or longer beyond 32 streams, whose first kernels start one after the other.
    """
    streams = pool.streams
    kernel = device.kernel_of(PROBE_KERNEL_NS * -(-len(streams) // _STREAMS_PER_PROBE_KERNEL))
    rounds = max(2, min(_PROBE_KERNELS_PER_STREAM, _HELD_LAUNCHES // len(streams)))

    def spread() -> None:
        for _ in range(rounds):
            for stream in streams:
                stream.launch(kernel)

    def collapsed() -> None:
        for _ in range(rounds * len(streams)):
            streams[0].launch(kernel)

    many, one = pool.held_timeline(spread), pool.held_timeline(collapsed)
    return HeldPass(probed_switch(many, one, host=device.capabilities.host), many, one)


def refused_on_host(found: QueueSwitch, *, host: bool) -> QueueSwitch:
    """Return delays without their differences where streams are threads of the host."""
    return without_switch(found, THREADS) if host else found


def probed_switch(many: Timeline, one: Timeline, *, host: bool) -> QueueSwitch:
    """Return the queue switch of a probe.

    On an accelerator that does not run one kernel of every stream at once (few multiprocessors or
    queues, slow starts), kernels wait for each other, which is not a switch: the figure is refused.
    So are the CPU's differences: its streams are threads, between which nothing switches.
    """
    found = refused_on_host(queue_switch(many, one), host=host)
    at_once = summarise_timeline(many).in_flight_max
    if host or found.overhead.difference.value is None or at_once >= many.streams:
        return found
    reason = (
        f"at most {at_once} of {many.streams} streams' kernels ran at once: they waited for each "
        "other, not for a switch of queues"
    )
    return found.model_copy(update={"overhead": without_difference(found.overhead, reason)})


def _repeats(once: Timeline) -> int:
    """Return how many iterations can be held back together and still run in half a second."""
    if not once.kernels:
        raise DeviceError("an iteration launched no kernels, so there is no timeline")
    launches = len(once.kernels)
    span_ns = max(kernel.end_ns for kernel in once.kernels) - min(
        kernel.start_ns for kernel in once.kernels
    )
    by_time = _MOST_SPAN_NS // max(1, span_ns)
    return max(1, min(_MOST_REPEATS, _HELD_LAUNCHES // launches, by_time))


def _repeat(function: Callable[[], None], times: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(times):
            function()

    return run


def take_timeline(cell: OpenCell, program: Program) -> int | None:
    """Take the timeline and the queue-switch probe, and write a trace if requested.

    Returns:
        the kernels of an iteration; None if they were not counted.

    Raises:
        InvalidMeasurement: if kernels did not run on the requested streams.

    """
    cell.stage("timeline")
    request, draft, pool = cell.request, cell.draft, cell.pool
    pool.tags = None
    traced = _timeline_program(cell, program)
    kernels = None
    try:
        passed = timeline_pass(pool, traced.enqueue, request.plan.rank_sync)
        if traced is program:
            kernels = passed.kernels_per_iteration
        _count_kernels(cell, program, kernels)
        _check_streams(cell, passed.summary)
        host = cell.device.capabilities.host
        ready_to_start = refused_on_host(passed.queue_switch, host=host)
        probe = probe_queue_switch(cell.device, pool)
        draft.metrics = draft.metrics.model_copy(
            update={
                "timeline": passed.summary,
                "ready_to_start": ready_to_start,
                "queue_switch": probe.queue_switch,
            }
        )
        for what, held in (("work", passed), ("probe", probe)):
            draft.kept.add(f"{what} on all streams", held.many)
            draft.kept.add(f"{what} on one", held.one)
    except DeviceError as error:
        draft.metrics = draft.metrics.without("timeline", str(error))
    if request.passes.trace_folder is not None:
        request.passes.trace_folder.mkdir(parents=True, exist_ok=True)
        path = trace_path(request.passes.trace_folder, file_name(request.cell.id))
        pool.export_trace(lambda: program.enqueue(pool.streams), str(path))
        draft.notes.append(f"trace: {path}")
    return kernels


def check_streams_alone(cell: OpenCell, program: Program) -> None:
    """Trace one iteration to see that its kernels run on the requested streams.

    For cells without a timeline.

    Raises:
        InvalidMeasurement: if kernels did not run there.

    """
    cell.stage("streams")
    request, pool = cell.request, cell.pool
    pool.tags = None
    enqueue = cell.iteration(request.workload) if program.whole else program.enqueue
    try:
        timeline = pool.timeline(lambda: enqueue(pool.streams))
        with translated(DeviceError, "the timeline cannot be read", ValueError):
            summary = summarise_timeline(timeline)
    except DeviceError as error:
        cell.draft.notes.append(f"not checked on which streams kernels ran: {error}")
        return
    _check_streams(cell, summary)


def _check_streams(cell: OpenCell, summary: TimelineSummary) -> None:
    """Refuse figures of a workload whose kernels did not run on all requested streams."""
    if summary.elsewhere == summary.kernels:
        raise InvalidMeasurement(
            f"all {summary.kernels} kernels ran on streams that are not ours, such as the default "
            "stream: no priority and no scheduler of streams had anything to do with them; launch "
            "the work on the current stream"
        )
    if summary.elsewhere:
        cell.draft.notes.append(
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
    cell.draft.notes.append(text)


def _count_kernels(cell: OpenCell, program: Program, of_an_iteration: int | None) -> None:
    """Give the counters the number of measured kernels; trace an iteration if it is unknown."""
    draft, pool = cell.draft, cell.pool
    if draft.counters is None:
        return
    if of_an_iteration is None:
        pool.synchronize()
        try:
            of_an_iteration = len(pool.timeline(lambda: program.enqueue(pool.streams)).kernels)
        except DeviceError as error:
            draft.counters = draft.counters.without_kernels(str(error))
            return
    draft.counters = draft.counters.with_kernels(of_an_iteration)


def _timeline_program(cell: OpenCell, program: Program) -> Program:
    """Return an iteration whose work can be held back as a whole, and runs on its streams."""
    request, notes = cell.request, cell.draft.notes
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
