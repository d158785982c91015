"""Runs one cell from set-up to record, stage by stage; every outcome becomes a record."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import torch

from pytest_hwqueue.data.metrics.latency import CONFIDENCE, minimum_samples, percentile
from pytest_hwqueue.data.metrics.timeline import split_tag
from pytest_hwqueue.data.noise_names import seconds_of_a_cell
from pytest_hwqueue.data.records.cell import RunRecord
from pytest_hwqueue.data.records.declared import PACE, Primary
from pytest_hwqueue.data.records.definitions import definitions
from pytest_hwqueue.data.records.files import file_name
from pytest_hwqueue.data.records.fingerprint import Fingerprint
from pytest_hwqueue.data.records.noise import NoiseRound
from pytest_hwqueue.engine.cell.attempt import Failure, attempt
from pytest_hwqueue.engine.cell.cell import CellDraft, CellRequest, OpenCell, Progress
from pytest_hwqueue.engine.cell.closed_loop import Plan, warm_up
from pytest_hwqueue.engine.cell.contended_pass import (
    ContendedProgram,
    JudgedLaunches,
    contended_program,
)
from pytest_hwqueue.engine.cell.launching_pass import (
    LaunchingProgram,
    LaunchingTask,
    launching_program,
    modelled_latencies,
)
from pytest_hwqueue.engine.cell.limits_pass import take_limits
from pytest_hwqueue.engine.cell.measured_pass import CellPrograms, Reference, take_samples
from pytest_hwqueue.engine.cell.planted_fault import (
    CellFault,
    iterations_ns,
    launches_ns,
    weighed,
)
from pytest_hwqueue.engine.cell.program import (
    Enqueue,
    Place,
    Program,
    TagTiming,
    eager,
    graph,
    launch_times,
    percent,
    slowed_model,
    taped,
)
from pytest_hwqueue.engine.cell.sample_plan import FEW
from pytest_hwqueue.engine.cell.timeline_pass import (
    check_streams_alone,
    events_disturb,
    take_timeline,
)
from pytest_hwqueue.engine.noise.evidence import core_speed
from pytest_hwqueue.parts.devices.compute_units import open_pool
from pytest_hwqueue.parts.devices.conditions import NOT_WATCHED, thread_tracers, watched
from pytest_hwqueue.parts.devices.protocol import Device, Stream, StreamPool
from pytest_hwqueue.parts.schedulers.syntax import (
    MPS_CLIENT,
    Scheduler,
    cell_partitions,
    prove_cell,
)
from pytest_hwqueue.parts.workloads.numerics import restore_precision
from pytest_hwqueue.parts.workloads.workload import Workload

if TYPE_CHECKING:
    from pytest_hwqueue.parts.devices.cache import CachedDevice

# What is judged of launches with a tag, which events time.
_OF_TAGS = ("launch", "request")

LEAST_ITERATIONS = 50
"""Intervals are formed over iterations, and throughput needs as many for one."""


COLD = (
    "cold cache: emptied before each iteration, but not in traced passes (timeline, causes) and "
    "within an iteration"
)
"""Note of a cell that is measured with a cold cache."""

PROFILED = (
    "a profiler ran in this process before, and launching may take several times as long since"
)
"""Note of a cell whose launches are slower than in a process of its own."""


class CellRunner:
    """Measures cells on one device under one scheduler mode."""

    def __init__(
        self,
        device: Device,
        scheduler: Scheduler,
        progress: Progress,
        confirm_scheduler: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the means to measure cells.

        Args:
            device: to measure.
            scheduler: its mode is proven before measuring.
            progress: receives the cell's progress.
            confirm_scheduler: called after measuring; raises NotProven if the mode has ended.

        """
        self.device = device
        self.scheduler = scheduler
        self._progress = progress
        self._confirm_scheduler = confirm_scheduler

    def run(self, request: CellRequest) -> tuple[RunRecord, Failure | None]:
        """Measure a cell; return its record, and the failure if there was one.

        Only KeyboardInterrupt and SystemExit pass through.
        """
        origin, primary = request.origin, PACE
        if request.plan.sync_mode == "per_iteration":
            primary = Primary(request.workload.primary.name, request.workload.primary.per)
        draft = CellDraft("set-up", [*origin.notes], primary=primary)

        def run() -> None:
            try:
                with request.group(), ExitStack() as faults:
                    self._measure(request, draft, faults)
            finally:
                restore_precision()

        done = attempt(run)
        done.raise_interruption()
        if request.record_folder is not None:
            stem = file_name(request.cell.id).removesuffix(".json")
            draft.store(request.record_folder, stem)
        if draft.fingerprint is None:
            draft.fingerprint = self.device.fingerprint()
        record = RunRecord(
            **done.head(draft, origin.provenance),
            run=origin.run,
            duration_s=done.seconds,
            seed=request.seed,
            command=origin.command,
            faults=[*request.faults],
            cell=request.cell,
            cell_id=request.cell.id,
            nodeid=origin.nodeid,
            family=origin.family,
            mark=origin.mark,
            iterations=draft.iterations,
            stopped=draft.stopped,
            primary=draft.primary,
            definitions=definitions(primary.per, request.workload.version),
            launch_bound=draft.launch_bound,
            work_per_iteration=draft.work_per_iteration,
            warm_up=draft.warm_up,
            samples=draft.samples,
            metrics=draft.metrics,
            scheduler_proof=draft.scheduler_proof,
            telemetry=draft.telemetry,
            counters=draft.counters,
            causes=draft.causes,
            declared=draft.declared,
        )
        return record, done.failure

    def _measure(self, request: CellRequest, draft: CellDraft, faults: ExitStack) -> None:
        device, workload = self.device, request.workload
        if device.profiled:
            draft.notes.append(PROFILED)
        no_peak = device.reset_memory()
        if no_peak is not None:
            draft.notes.append(f"no memory peak: {no_peak}")
        priorities = self.scheduler.priorities(request.urgency)
        partitions = cell_partitions(self.scheduler, request.urgency)
        with open_pool(device, priorities, partitions, gradients=workload.gradients) as pool:
            cell = OpenCell(device, pool, request, draft, self._progress)
            cell.stage("set-up")
            torch.manual_seed(request.seed)
            cell.set_up(workload)
            draft.work_per_iteration = workload.work_per_iteration()
            if request.cell.cache == "cold":
                flush = cast("CachedDevice", device).cache_flush()
                request = replace(request, plan=replace(request.plan, flush=flush))
                cell = replace(cell, request=request, flush_bytes=flush.size_bytes)
                draft.notes.append(COLD)
            judged = _judged(cell, workload.iterate)
            asked = request.plan.samples
            if asked is not None and draft.primary == PACE:
                plan = request.plan.of(max(LEAST_ITERATIONS, asked.least))
                request = replace(request, plan=plan)
                cell = replace(cell, request=request)
            elif asked is not None:
                samples = asked.least
                others = {*workload.tags} - {workload.primary.name}
                if workload.primary.per == "call":
                    # Calls are timed in a pass of their own: iterations tell of one thread's pace.
                    iterations = LEAST_ITERATIONS
                elif judged is None:
                    iterations = planned_iterations(workload, pool.streams, samples)
                elif request.passes.lean or not others:
                    # Single launches are judged in a pass of their own: these tell of the pace.
                    iterations = LEAST_ITERATIONS
                else:
                    iterations = planned_iterations(workload, pool.streams, min(samples, FEW))
                traced = traced_iterations(workload, pool.streams, samples)
                plan = replace(request.plan.of(iterations), traced_iterations=traced)
                request = replace(request, plan=plan)
                cell = replace(cell, request=request)

            cell.stage("warm-up")
            planted = None
            if request.faults:
                cell, planted = _with_fault(cell, judged, faults)
            iteration = cell.iteration(workload)
            programs = _programs(cell, iteration, judged)
            program = programs.program
            draft.warm_up = warm_up(device, pool, program, request.plan)
            shortfall = time_shortfall(request.plan, draft.warm_up.iteration_ns)
            if shortfall:
                draft.notes.append(shortfall)
                self._progress(shortfall, 0, request.plan.iterations)
            # A scheduler may learn of a process only from its first work.
            replayed = request.cell.dispatch != "eager"
            draft.scheduler_proof = prove_cell(
                self.scheduler, pool, request.urgency, replayed=replayed
            )

            cell.stage("check")
            if device.capabilities.has_values:
                workload.check(lambda: _run_once(pool, program))
            else:
                _run_once(pool, program)
                draft.notes.append("simulated: no values exist, so results were not checked")
            if device.model is not None and (doubt := device.model.doubt(request.cell.name)):
                draft.notes.append(doubt)

            with cell.telemetry() as log, _background_noise(request) as rounds:
                take_samples(cell, programs, log, self._confirm_scheduler)
                if planted is not None:
                    draft.notes.append(planted.words(draft.metrics.judged))
                speed = None if request.noise is None else core_speed()
            # Now: what the workload has set in torch is set, and no profiler has run.
            draft.fingerprint = _fingerprint(device, pool)
            draft.notes += watched(draft.fingerprint.hard)
            if MPS_CLIENT in draft.scheduler_proof.evidence:
                draft.notes.append(MPS_CLIENT)
            for round_ in rounds:
                draft.noise = round_.model_copy(update={"core_speed_per_s": speed})
                if round_.status == "not applied":
                    draft.notes.append(f"noise {round_.noise} not applied: {round_.reason}")
            whole = not (request.passes.only_traced or request.passes.lean)
            kernels = None
            if whole:
                kernels = take_timeline(cell, program)
            elif request.passes.lean and request.origin.run == 1:
                check_streams_alone(cell, program)
            if request.passes.find_causes is not None:
                with _background_noise(request):
                    request.passes.find_causes(cell, program)
            if whole:
                take_limits(cell, kernels)


def _fingerprint(device: Device, pool: StreamPool) -> Fingerprint:
    """Return a device's fingerprint; on the CPU a stream's thread may be watched by itself."""
    found = device.fingerprint()
    if not device.capabilities.host:
        return found
    seen: list[str] = []
    for stream in pool.streams:
        stream.launch(lambda: seen.extend(thread_tracers()))
    pool.synchronize()
    of_process = str(found.hard.get("tracers", NOT_WATCHED))
    own = [each for each in dict.fromkeys(seen) if each not in of_process]
    if not own:
        return found
    known = [] if of_process == NOT_WATCHED else [of_process]
    return replace(found, hard={**found.hard, "tracers": ", ".join([*known, *own])})


def _with_fault(
    cell: OpenCell, judged: JudgedLaunches | None, faults: ExitStack
) -> tuple[OpenCell, CellFault | None]:
    """Return a cell with its planted fault, of a strength that has the effect asked for.

    On a simulated device kernels take longer until ``faults`` are closed; on a real one a spin
    follows each launch. On the CPU passes differ by more than the effect: there it is as strong as
    its name.
    """
    request, device, pool = cell.request, cell.device, cell.pool
    workload, asked = request.workload, percent(request.faults) / 100
    took_ns: dict[Place, int] = {}
    if device.model is None:
        took_ns = launch_times(device, workload.iterate, pool.streams)
        pool.synchronize()

    def slowed(strength: float) -> OpenCell:
        share = strength * asked
        spins = {place: share * ns for place, ns in took_ns.items()} if strength else {}
        return replace(cell, spins_ns=spins)

    if device.capabilities.host:
        return slowed(1.0), None

    # On a real device a longer kernel is not felt by the call that launches it.
    modelled = _launching(cell, workload.iterate) if device.model is not None else None
    if modelled is not None:
        _load(cell, workload.iterate)

    # Beyond the hardware connections tags are timed under a tracer, after which launching takes
    # longer: there whole iterations are weighed.
    disturbed = events_disturb(device, request.cell.streams)
    tagged = cell.draft.primary.per in _OF_TAGS and judged is None and disturbed is None

    def judged_with(strength: float) -> list[int]:
        iterate = slowed(strength).iteration(workload)
        with slowed_model(device, request.faults, strength):
            if modelled is not None:
                return modelled_latencies(device, pool, modelled())
            contended = _contended(cell, iterate, judged)
            if contended is not None:
                return launches_ns(device, pool, contended, request.plan)
            program = _program(cell, iterate, tagged)
            return iterations_ns(
                device, pool, program, request.plan, cell.draft.primary.name if tagged else None
            )

    def p99(latencies_ns: Sequence[int]) -> int:
        return request.plan.rank_sync.agreed(round(percentile(latencies_ns, 0.99)))

    plain_ns = judged_with(0.0)
    plain = p99(plain_ns)
    found = weighed(lambda strength: p99(judged_with(strength)) / plain - 1, asked)
    faults.enter_context(slowed_model(device, request.faults, found.strength))
    whole = judged is None and not tagged and cell.draft.primary.per != "iteration"
    whole = whole and modelled is None
    return slowed(found.strength), CellFault(asked, None if whole else plain_ns)


def _background_noise(request: CellRequest) -> AbstractContextManager[list[NoiseRound]]:
    if request.noise is None:
        return nullcontext([])
    return request.noise(seconds_of_a_cell(request.plan.stop.time_ns / 1e9))


def _judged(cell: OpenCell, enqueue: Enqueue) -> JudgedLaunches | None:
    """Return which launches are timed while all streams have work, or None.

    None where no single launch is judged, or streams wait for each other: then an iteration is
    contended in itself, and its launches are ready by events.
    """
    request, primary = cell.request, cell.request.workload.primary
    if primary.per != "launch" or primary.marks is None or request.passes.only_traced:
        return None
    if request.plan.sync_mode != "per_iteration":
        return None
    judged = JudgedLaunches(taped(cell.pool.streams, enqueue), primary)
    return None if judged.taped.crosses else judged


def _judged_reference(cell: OpenCell, enqueue: Enqueue) -> JudgedLaunches | None:
    """Return the launches that judged ones are held against: all tagged ones of a reference."""
    found = _judged(cell, enqueue)
    if found is None or not found.taped.tags:
        return None
    return replace(found, any_tag=True)


def _programs(cell: OpenCell, iteration: Enqueue, judged: JudgedLaunches | None) -> CellPrograms:
    """Capture what a cell measures."""
    request, workload = cell.request, cell.request.workload
    references = {}
    for name, enqueue in ({} if request.passes.lean else workload.references()).items():
        compared = judged is not None and any(
            ratio.reference == name and ratio.tag == workload.primary.name
            for ratio in workload.ratios
        )
        references[name] = Reference(
            _program(cell, enqueue, True, primary=False),
            _contended(cell, enqueue, _judged_reference(cell, enqueue)) if compared else None,
        )
    # Where only the judged launches matter, no other pass times any.
    tagged = bool(workload.tags) and not (judged and request.passes.lean)
    program = _program(cell, iteration, tagged)
    contended = _contended(cell, iteration, judged)
    return CellPrograms(iteration, program, contended, references, _launching(cell, iteration))


def _launching(cell: OpenCell, enqueue: Enqueue) -> Callable[[], LaunchingProgram] | None:
    """Return what makes the program of a launcher for each stream; None where no call is judged."""
    request = cell.request
    if request.workload.primary.per != "call" or request.passes.only_traced:
        return None
    if request.plan.sync_mode != "per_iteration":
        return None
    asked = request.cell
    replayed = asked.dispatch != "eager"

    def program() -> LaunchingProgram:
        threads = launching_program(cell.device, cell.pool, enqueue, replayed=replayed)
        if request.workload.launched_by == "threads":
            return threads
        task = LaunchingTask(
            asked.device, asked.name, asked.parameters, request.seed, asked.scheduler, replayed
        )
        return replace(threads, task=task)

    return program


def _contended(
    cell: OpenCell, enqueue: Enqueue, judged: JudgedLaunches | None
) -> ContendedProgram | None:
    if judged is None:
        return None
    replayed = cell.request.cell.dispatch != "eager"
    if replayed:
        _load(cell, enqueue)
    return contended_program(cell.device, cell.pool, enqueue, judged, replayed=replayed)


def _load(cell: OpenCell, enqueue: Enqueue) -> None:
    """Do what a capture cannot do for the first time: load libraries, make workspaces."""
    for _ in range(2):
        enqueue(cell.pool.streams)
        cell.pool.synchronize()


def _program(cell: OpenCell, enqueue: Enqueue, tagged: bool, *, primary: bool = True) -> Program:
    request, pool = cell.request, cell.pool
    what = request.workload.primary
    # Where nothing is waited for, a request that goes on on another stream has its backlog in it.
    waited_for = request.plan.sync_mode == "per_iteration"
    requests = what.name if primary and waited_for and what.per == "request" else ""
    disturbed = events_disturb(cell.device, request.cell.streams)
    if request.cell.dispatch == "eager":
        return eager(cell.device, enqueue, tagged and disturbed is None, disturbed, requests)
    _load(cell, enqueue)
    if tagged and not waited_for:
        captured = graph(cell.device, pool, enqueue, "apart", requests)
        return replace(
            captured, no_events="a graph's events keep only the times of its last replay"
        )
    timing: TagTiming = "events" if tagged else "apart"
    return graph(cell.device, pool, enqueue, timing, requests, disturbed)


def _run_once(pool: StreamPool, program: Program) -> None:
    pool.synchronize()
    pool.tags = program.tags
    if program.tags is not None:
        program.tags.rewind()
    program.enqueue(pool.streams)
    pool.synchronize()


def samples_per_iteration(workload: Workload, streams: Sequence[Stream]) -> int:
    """Return how many samples of its primary latency one iteration of a workload gives.

    Nothing runs: the launches are taped and counted.

    Raises:
        ValueError: if no launch of an iteration is such a sample.

    """
    primary = workload.primary
    if primary.per == "iteration":
        return 1
    if primary.per == "call":
        return len(taped(streams, workload.iterate).launches)
    tags = [split_tag(tag) for tag in taped(streams, workload.iterate).tags]
    if primary.per == "launch":
        count = sum(name == primary.name for name, _ in tags)
    else:
        count = len({request for _, request in tags if request})
    if not count:
        raise ValueError(
            f"{workload.name}: no launch of an iteration is a {primary.name}, its primary latency"
        )
    return count


def traced_iterations(workload: Workload, streams: Sequence[Stream], samples: int) -> int:
    """Return the number of iterations of a traced pass.

    If an iteration's samples are alike, all of them may say no more than one: then there are as
    many iterations as P99's interval needs samples, if that many are requested.
    """
    least = min(samples, minimum_samples(0.99, CONFIDENCE)) if workload.primary.alike else 1
    return max(least, math.ceil(samples / samples_per_iteration(workload, streams)))


def planned_iterations(workload: Workload, streams: Sequence[Stream], samples: int) -> int:
    """Return the iterations needed for ``samples`` of the primary latency, at least 50."""
    return max(LEAST_ITERATIONS, traced_iterations(workload, streams, samples))


def time_shortfall(plan: Plan, iteration_ns: int) -> str:
    """Return text saying that the planned iterations do not fit into the time, or nothing.

    Args:
        plan: of the cell.
        iteration_ns: duration of an iteration at the end of the warm-up.

    """
    expected_ns = plan.iterations * iteration_ns
    if expected_ns <= plan.stop.time_ns:
        return ""
    return (
        f"{plan.iterations} iterations would take {expected_ns / 1e9:.3g} s: about "
        f"{plan.stop.fitting(iteration_ns)} fit into {plan.stop.time_ns / 1e9:.3g} s "
        "(--hwq-max-time)"
    )
