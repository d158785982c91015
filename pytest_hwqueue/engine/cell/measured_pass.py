"""The measured pass of a cell, its references before and after it, and the pass with full queues.

That last one tells what a device carries, and not what a host gets that waits. A measured iteration
is waited for, as its latency asks, and meanwhile the device is idle: on an H200, 8 streams of tiny
kernels carry 5.2 million a second if iterations follow each other at once, and 3.4 million if each
is waited for. Eager launches are bounded by Python either way, so that pass is for graphs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from pytest_hwqueue.data.errors import InvalidMeasurement
from pytest_hwqueue.data.figures.of_cell import bound_by_launching, summarise
from pytest_hwqueue.data.metrics.latency import LEAST_ITERATIONS
from pytest_hwqueue.data.records.cell import LAUNCH_BOUND, BackToBack, Samples
from pytest_hwqueue.data.records.declared import DeclaredFigures
from pytest_hwqueue.engine.cell.cell import OpenCell
from pytest_hwqueue.engine.cell.closed_loop import (
    ONE_RANK,
    LoopResult,
    Plan,
    RankSynchronisation,
    garbage_collection_held,
    measure,
)
from pytest_hwqueue.engine.cell.contended_pass import (
    ContendedPlan,
    ContendedProgram,
    ContendedResult,
    contended_pass,
)
from pytest_hwqueue.engine.cell.launching_pass import (
    Launchers,
    LaunchingOfThreads,
    LaunchingProgram,
    LaunchingResult,
    launching_pass,
    launching_plan,
)
from pytest_hwqueue.engine.cell.launching_processes import LaunchingProcesses
from pytest_hwqueue.engine.cell.program import Enqueue, Program, graph
from pytest_hwqueue.engine.cell.sample_plan import SamplePlan
from pytest_hwqueue.engine.cell.timeline_pass import (
    events_disturb,
    reference_pass,
    traced_latencies,
)
from pytest_hwqueue.parts.devices.cpu_counters import CpuCounting
from pytest_hwqueue.parts.devices.protocol import Device, StreamPool
from pytest_hwqueue.parts.devices.telemetry import TelemetryLog

# Of a cell's measuring time, what a reference takes at most, before and after.
_SHARE_OF_REFERENCE = 20
_WARM_TAGS = "tags are timed in a traced pass here, which does not empty the cache"
_NOT_NEEDED = "a comparison, or --hwq-lean, measures only what verdicts need"
# What each reference's launches and iterations took, before and after.
_Passes = dict[str, tuple[list[int], list[int]]]


@dataclass(frozen=True)
class Reference:
    """A reference of a workload.

    Attributes:
        program: one iteration of it.
        contended: the same for the pass of the judged launches, if a ratio to these is formed.

    """

    program: Program
    contended: ContendedProgram | None


@dataclass(frozen=True)
class CellPrograms:
    """What a cell measures.

    Attributes:
        iteration: what ``program``, if it is a graph, was captured from.
        program: one iteration.
        contended: the same for the pass of the judged launches; None if none are.
        references: the workload's, by name.
        launching: makes what a launcher for each stream launches, once the cell is checked; None
            if no call is judged.

    """

    iteration: Enqueue
    program: Program
    contended: ContendedProgram | None
    references: Mapping[str, Reference]
    launching: Callable[[], LaunchingProgram] | None = None


def take_samples(
    cell: OpenCell,
    programs: CellPrograms,
    log: TelemetryLog,
    confirm_scheduler: Callable[[], None],
) -> None:
    """Measure a cell that is warm and checked.

    Args:
        cell: receives the results.
        programs: what it measures.
        log: of telemetry.
        confirm_scheduler: called after measuring; raises NotProven if the mode has ended.

    """
    request, draft, program = cell.request, cell.draft, programs.program
    workload = request.workload
    # Half of the references before, half after: a drift falls on both sides of a ratio. What is
    # traced comes last: once a profiler has run, launching takes longer.
    traced = bool(program.no_events)
    passes: _Passes = {}
    if not traced:
        _measure_references(cell, programs, passes)
    result, plan, contended, launching = _measure(cell, programs, log, confirm_scheduler)
    memory_bytes = {
        kind: size - cell.flush_bytes for kind, size in cell.device.memory_bytes().items()
    }
    refused: dict[str, str] = {}
    blocks, planned = None, planned_of(cell)
    if planned and request.passes.throughput:
        blocks = measure_blocks(cell, program, programs.iteration, planned)
    elif planned:
        refused["throughput"] = _NOT_NEEDED
    if traced:
        _measure_references(cell, programs, passes)
    others = {tag for tag in workload.tags if contended is None or tag != draft.primary.name}
    timed = traced and bool(others) and not (contended and request.passes.lean)
    if timed and request.plan.flush is not None:
        if draft.primary.per != "iteration" and contended is None:
            raise InvalidMeasurement(
                f"{_WARM_TAGS}: measure with --hwq-cache=hot, or fewer streams"
            )
        refused["tags"] = _WARM_TAGS
    elif timed:
        cell.stage("tags")
        cell.pool.tags = None
        if programs.contended is not None:
            enough = programs.contended.judged.iterations(others)
            plan = plan.of(min(plan.iterations, enough))
        result.tags_ns, result.tag_iterations = traced_latencies(
            cell.pool, program, plan, primary=draft.primary.per != "iteration" and not contended
        )
        draft.notes.append(f"tags timed in a traced pass: {program.no_events}")
        if not result.tags_ns:
            refused["tags"] = f"{program.no_events}, and a graph's kernels have no tags"
    _measure_references(cell, programs, passes)
    if request.passes.lean and workload.ratios:
        refused["ratios"] = _NOT_NEEDED
    elif programs.references and not passes and workload.ratios:
        refused["ratios"] = "references need synchronised iterations"
    draft.samples = _samples(result, program, passes, workload.overlap or (), blocks)
    if contended is not None:
        tags_ns = {**draft.samples.tags_ns, draft.primary.name: contended.latencies_ns}
        draft.samples = draft.samples.model_copy(
            update={"tags_ns": tags_ns, "contended": contended.contention}
        )
        _note_windows(cell, contended.contention.windows, contended.needed_windows)
    if launching is not None:
        draft.samples = draft.samples.model_copy(
            update={
                "tags_ns": {**draft.samples.tags_ns, **launching.tags_ns(draft.primary.name)},
                "launching": launching.contention,
            }
        )
        refused |= launching.refused
        _note_windows(cell, launching.contention.windows, launching.needed_windows)
    draft.declared = DeclaredFigures(
        ratios=[*workload.ratios], overlap=workload.overlap, traffic=workload.traffic()
    )
    metrics = summarise(
        draft.samples, draft.work_per_iteration, draft.declared, draft.primary, refused
    )
    draft.metrics = metrics.model_copy(
        update={"memory_bytes": memory_bytes, "apart": workload.measured_apart()}
    )
    _note(cell)


def _note_windows(cell: OpenCell, taken: int, needed: int) -> None:
    """Note if time has left fewer windows than were needed."""
    if taken < needed:
        fitting = f"fit into {cell.request.plan.stop.time_ns / 1e9:.3g} s (--hwq-max-time)"
        cell.draft.notes.append(f"{taken} of {needed} windows {fitting}")


def _measure(
    cell: OpenCell,
    programs: CellPrograms,
    log: TelemetryLog,
    confirm_scheduler: Callable[[], None],
) -> tuple[LoopResult, Plan, ContendedResult | None, LaunchingResult | None]:
    request, draft = cell.request, cell.draft
    assert draft.warm_up is not None
    plan = replace(request.plan, iteration_ns=draft.warm_up.iteration_ns)
    if plan.samples is not None and programs.contended is None and programs.launching is None:
        iterations = plan.samples.iterations(
            plan.iterations, plan.iteration_ns, modelled=cell.device.capabilities.virtual_time
        )
        plan = plan.of(iterations)
    cell.stage("measure", 0, plan.iterations)
    log.poll(0, force=True)

    def pause(done: int) -> None:
        log.poll(done)
        cell.progress("measure", done, plan.iterations)

    # Where time is virtual, what this machine's threads do is nothing measured.
    virtual = cell.device.capabilities.virtual_time
    counting = None if virtual else CpuCounting(lambda: cell.pool.launched)
    result = measure(cell.device, cell.pool, programs.program, plan, pause, counting)
    if counting is not None:
        draft.counters = counting.counters(result.lead_in + result.iterations)
    contended, taken = None, 0
    if programs.contended is not None:
        cell.stage("contention", 0, plan.iterations)
        cell.pool.tags = None
        # Where so many iterations were asked for, no more.
        launches = plan.iterations * programs.contended.judged.by_stream().total()
        samples = plan.samples or SamplePlan(launches, exact=True)
        contended = contended_pass(
            cell.device,
            cell.pool,
            programs.contended,
            _contended_plan(plan, samples),
            lambda windows: log.poll(result.iterations + windows),
        )
        taken = contended.contention.windows
    launching = None
    if programs.launching is not None:
        launching = _launch(cell, programs.launching(), plan, log)
        taken += launching.contention.windows
    confirm_scheduler()
    # What was counted on the device is read when all its work has ended.
    draft.work_per_iteration = request.workload.work_per_iteration()
    log.poll(result.iterations + taken, force=True)
    draft.telemetry = log.finish()
    draft.iterations = result.iterations
    draft.stopped = result.stopped
    return result, plan, contended, launching


def _launch(
    cell: OpenCell, program: LaunchingProgram, plan: Plan, log: TelemetryLog
) -> LaunchingResult:
    """Time launching calls; where so many iterations were asked for, no more."""
    cell.stage("launching", 0, plan.iterations)
    cell.pool.tags = None
    samples = plan.samples or SamplePlan(plan.iterations * len(program.calls), exact=True)
    launching, device = launching_plan(samples, plan.stop), cell.device

    def launched(launchers: Launchers) -> LaunchingResult:
        return launching_pass(
            device, launchers, program, launching,
            lambda windows: log.poll(plan.iterations + windows),
        )  # fmt: skip

    if program.task is None:
        return launched(LaunchingOfThreads(device, cell.pool, program.calls))
    with LaunchingProcesses(program.task, len(program.calls)) as processes:
        return launched(processes)


def _contended_plan(plan: Plan, samples: SamplePlan) -> ContendedPlan:
    """Return the plan of a pass that takes as many windows as samples need, and as fit."""
    stop = replace(plan.stop, turns=sys.maxsize)
    return ContendedPlan(samples, stop, plan.rank_sync, plan.flush)


def _measure_references(cell: OpenCell, programs: CellPrograms, passes: _Passes) -> None:
    plan = cell.request.plan
    if plan.sync_mode != "per_iteration":
        return
    half = (plan.samples or SamplePlan(plan.iterations, exact=True)).half
    stop = plan.stop.within(plan.stop.time_ns // _SHARE_OF_REFERENCE)
    short = Plan(
        replace(stop, turns=half.least),
        warmup=min(plan.warmup, 5),
        sync_mode=plan.sync_mode,
        rank_sync=plan.rank_sync,
        flush=plan.flush,
    )
    for name, reference in programs.references.items():
        cell.progress(f"reference {name}", 0, short.iterations)
        known = passes.setdefault(name, ([], []))
        if reference.contended is not None:
            # By the same instrument as what the ratio is formed with.
            timed = _contended_plan(short, half)
            alone = contended_pass(cell.device, cell.pool, reference.contended, timed)
            known[0].extend(alone.latencies_ns)
            continue
        traced = bool(programs.program.no_events)
        passed = reference_pass(cell.device, cell.pool, reference.program, short, traced=traced)
        for known_ns, times_ns in zip(known, passed, strict=True):
            known_ns.extend(times_ns)


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
        begun_ns=result.begun_ns,
        pace_ns=result.pace_ns,
        back_to_back=blocks,
        tags_ns=result.tags_ns,
        tags_timed_by="activity" if program.no_events else "events",
        tag_iterations=result.tag_iterations or None,
        references_ns={name: ns for name, (ns, _) in references.items() if name not in whole},
        reference_iterations_ns={name: references[name][1] for name in whole if name in references},
    )


def _note(cell: OpenCell) -> None:
    """Note what readers of the figures must know."""
    request, draft = cell.request, cell.draft
    assert draft.telemetry is not None
    assert draft.samples is not None
    contended = draft.samples.contended
    if request.workload.decisions_drawn:
        drawn = ", ".join(request.workload.decisions_drawn)
        draft.notes.append(f"drawn from the seed instead of computed: {drawn}")
    if draft.telemetry.throttled:
        tagged = draft.telemetry.throttled_samples
        windows = 0 if contended is None else contended.windows
        of = f"{draft.iterations + windows} {'iterations and windows' if windows else 'samples'}"
        draft.notes.append(f"{tagged} of {of} taken while throttled")
    if errors := draft.telemetry.xid_errors:
        draft.notes.append(f"the driver reported Xid {', '.join(map(str, errors))} meanwhile")
    sync_mode = request.plan.sync_mode
    if sync_mode != "per_iteration":
        draft.notes.append(
            f"sync mode {sync_mode} measures a pace, not a latency: P50 and P99 are of the time "
            "from one iteration's end to the next's"
        )
        disturbed = events_disturb(cell.device, request.cell.streams)
        if disturbed:
            draft.notes.append(f"sync mode {sync_mode} times by events: {disturbed}")
    if contended is not None and not contended.enough:
        draft.launch_bound = True
        draft.notes.append(
            f"{LAUNCH_BOUND}: {contended} while launches were timed, since this device's launch "
            "queues do not take the work of all; it is no latency of contention, and not judged as "
            "one; graph dispatch measures the hardware's queues"
            if not contended.held
            else f"{contended} while launches were timed: some got no work"
        )
    elif draft.samples.launching is not None:
        # Launching is what is measured: that an iteration is bound by it says nothing more.
        return
    elif request.cell.dispatch == "eager" and not cell.device.capabilities.host:
        bound = bound_by_launching(draft.samples)
        if bound and contended is not None:
            draft.notes.append(f"iterations are {bound}; single launches are timed behind a gate")
        elif bound:
            draft.launch_bound = True
            draft.notes.append(bound)


_BLOCKS = LEAST_ITERATIONS
_PLANNED_NS = 400_000_000
# Beyond this share of the measuring time an iteration is so long that waiting costs it nothing.
_SHARE_OF_TIME = 10
# Events on all of 64 streams would take the host 5 % of a block.
_MOST_MARKED = 8


def block_iterations(iteration_ns: int, max_time_ns: int) -> int:
    """Return of how many iterations a block is; 0 if they are too long for this pass.

    Args:
        iteration_ns: duration of an iteration that is waited for.
        max_time_ns: measuring time of the cell.

    """
    most_ns = max_time_ns // _SHARE_OF_TIME
    if _BLOCKS * iteration_ns > most_ns:
        return 0
    return max(1, min(_PLANNED_NS, most_ns) // (_BLOCKS * max(1, iteration_ns)))


def back_to_back(
    device: Device,
    pool: StreamPool,
    program: Program,
    iterations: int,
    rank_sync: RankSynchronisation = ONE_RANK,
) -> BackToBack:
    """Enqueue 50 blocks of iterations without waiting; return each one's device time.

    A block ends with its last iteration on up to 8 streams spread over the pool, and the last block
    with all streams: together they are the time of all work.

    Args:
        device: whose events time the blocks.
        pool: the streams; no tags are timed.
        program: one iteration, without events.
        iterations: of a block.
        rank_sync: of the processes that do the same.

    """
    streams = pool.streams
    marked = streams[:: -(-len(streams) // _MOST_MARKED)]
    ends = [[device.new_event() for _ in marked] for _ in range(_BLOCKS)]
    last = device.new_event()
    launching_ns: list[int] = []
    pool.tags = None
    with garbage_collection_held():
        pool.synchronize()
        rank_sync.barrier()
        # One block more, whose end is the first one's begin: it fills the queues.
        for _ in range(iterations):
            began_ns = device.clock_ns()
            program.enqueue(streams)
            launching_ns.append(device.clock_ns() - began_ns)
        for events in ends:
            for stream, event in zip(marked, events, strict=True):
                stream.record(event)
            for _ in range(iterations):
                program.enqueue(streams)
        pool.record_all(last)
        pool.synchronize()
    origin = ends[0][0]
    ended_ns = [max(device.elapsed_ns(origin, event) for event in events) for events in ends]
    ended_ns.append(device.elapsed_ns(origin, last))
    return BackToBack(
        blocks_ns=[end - begin for begin, end in pairwise(ended_ns)],
        iterations=iterations,
        launching_ns=round(median(launching_ns)),
    )


def planned_of(cell: OpenCell) -> int:
    """Return of how many iterations a cell's blocks are; 0 if its throughput comes from elsewhere.

    Simulating without idle moments would take long: there it stays that of iterations waited for,
    as it does under noise, which is felt by a host that waits, and with a cold cache.
    """
    request, warm_up = cell.request, cell.draft.warm_up
    assert warm_up is not None
    replayed = request.cell.dispatch == "graph" and request.plan.sync_mode == "per_iteration"
    if request.workload.primary.per == "call":
        # Its throughput is that of threads which launch at once.
        return 0
    if not replayed or cell.device.capabilities.virtual_time:
        return 0
    if request.passes.only_traced or request.noise is not None or request.plan.flush is not None:
        return 0
    return block_iterations(warm_up.iteration_ns, request.plan.stop.time_ns)


def measure_blocks(
    cell: OpenCell, program: Program, iteration: Enqueue, iterations: int
) -> BackToBack:
    """Measure a cell's graph back to back.

    Args:
        cell: measured, and not yet traced: launching takes longer after a profiler has run.
        program: its iteration.
        iteration: what the program's graph was captured from.
        iterations: of a block.

    """
    cell.stage("throughput", 0, _BLOCKS * iterations)
    if cell.request.workload.tags:
        # Events of tags take the place of kernels: on an H200 they cost 32 streams a quarter.
        program = graph(cell.device, cell.pool, iteration, "with others")
    rank_sync = cell.request.plan.rank_sync
    return back_to_back(cell.device, cell.pool, program, iterations, rank_sync)
