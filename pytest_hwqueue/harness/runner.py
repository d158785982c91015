"""Runs one cell from set-up to record, stage by stage; whatever happens there is a record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from pytest_hwqueue.baselines.names import file_name
from pytest_hwqueue.baselines.record import (
    Cell,
    Metrics,
    RunRecord,
    Samples,
    SchedulerProof,
    WarmUp,
    now,
)
from pytest_hwqueue.devices.named_trace import trace_path
from pytest_hwqueue.devices.protocol import Device, DeviceError, StreamPool
from pytest_hwqueue.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.devices.simulated.telemetry import SimulatedReader
from pytest_hwqueue.devices.telemetry import (
    Telemetry,
    TelemetryLog,
    TelemetryReader,
    Unavailable,
    open_reader,
)
from pytest_hwqueue.faults.planting import PlantedFaults
from pytest_hwqueue.harness.cell_causes import causes_of_pass
from pytest_hwqueue.harness.cell_picture import write_files
from pytest_hwqueue.harness.closed_loop import LoopPlan, measure, warm_up
from pytest_hwqueue.harness.failures import Failure, InvalidMeasurement, describe_failure
from pytest_hwqueue.harness.in_step import ALONE, InStep
from pytest_hwqueue.harness.program import Enqueue, Program, eager, graph
from pytest_hwqueue.harness.summary import bound_by_launching, summarise
from pytest_hwqueue.harness.tag_latency import (
    ReferencePass,
    events_disturb,
    reference_pass,
    traced_latencies,
)
from pytest_hwqueue.harness.timeline import probe_queue_switch, timeline_pass
from pytest_hwqueue.harness.traced_pass import TracePlan, traced_pass
from pytest_hwqueue.metrics.timeline import TimelineSummary
from pytest_hwqueue.noise.record import NoiseRound
from pytest_hwqueue.noise.specification import seconds_of_a_cell
from pytest_hwqueue.ranks.group import group_of_one
from pytest_hwqueue.schedulers.protocol import Scheduler
from pytest_hwqueue.tracing.causes import Causes, causes_line
from pytest_hwqueue.tracing.cpu_counters import CpuCounters, CpuCounting
from pytest_hwqueue.workloads.protocol import Setup, Workload

# stage, iterations done, iterations planned
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class CellRequest:
    """What to measure, and what the record says about where it came from."""

    cell: Cell
    workload: Workload
    make_workload: Callable[[Mapping[str, Any]], Workload] | None
    urgency: Sequence[int]
    nodeid: str
    family: str | None
    mark: str | None
    plan: LoopPlan
    seed: int
    command: str
    git_commit: str | None
    trace_folder: Path | None
    run: int = 1
    faults: PlantedFaults = field(default_factory=PlantedFaults)
    notes: tuple[str, ...] = ()
    in_step: InStep = ALONE
    # Lets the cell's noise run, for so many seconds at most; None where noise is no question.
    beside: Callable[[int], AbstractContextManager[list[NoiseRound]]] | None = None
    # A pass that finds the causes of slow iterations; None has none.
    traced: TracePlan | None = None
    # Nothing but that pass is wanted: the measured one is cut short, and the timeline left out.
    only_traced: bool = False
    # Opens torch.distributed's group of the ranks; without it one process is a group.
    group: Callable[[], AbstractContextManager[object]] | None = None


@dataclass
class _Found:
    """What is known of the cell so far; a failure keeps it."""

    stage: str = "set-up"
    iterations: int = 0
    stopped: str = ""
    work: dict[str, float] = field(default_factory=dict)
    warm_up: WarmUp | None = None
    samples: Samples | None = None
    metrics: Metrics = field(default_factory=Metrics)
    proof: SchedulerProof | None = None
    telemetry: Telemetry | None = None
    noise: NoiseRound | None = None
    counters: CpuCounters | None = None
    causes: Causes | None = None
    notes: list[str] = field(default_factory=list)


class CellRunner:
    """Measures cells on one device under one scheduler mode."""

    def __init__(
        self,
        device: Device,
        scheduler: Scheduler,
        progress: Progress,
        confirm_scheduler: Callable[[], None] = lambda: None,
    ) -> None:
        """Take what cells are measured with.

        Args:
            device: to measure.
            scheduler: whose mode is proven before measuring.
            progress: told how far the cell has come.
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
        started, begin = now(), time.perf_counter()
        found = _Found()
        failure = None
        try:
            with request.faults.device(self.device), self._group(request):
                self._measure(request, found)
        except Exception as error:  # every cause becomes a record
            failure = describe_failure(error)
        record = RunRecord(
            cell=request.cell,
            cell_id=request.cell.id,
            nodeid=request.nodeid,
            family=request.family,
            mark=request.mark,
            run=request.run,
            status=failure.status if failure else "ok",
            reason=failure.reason if failure else "",
            stage=found.stage if failure else "",
            started=started,
            duration_s=round(time.perf_counter() - begin, 3),
            iterations=found.iterations,
            stopped=found.stopped,
            work_per_iteration=found.work,
            warm_up=found.warm_up,
            samples=found.samples,
            metrics=found.metrics,
            scheduler_proof=found.proof,
            telemetry=found.telemetry,
            noise=found.noise,
            counters=found.counters,
            causes=found.causes,
            fingerprint=self.device.fingerprint(),
            notes=[*request.notes, *found.notes],
            seed=request.seed,
            command=request.command,
            git_commit=request.git_commit,
            faults=[str(fault) for fault in request.faults.faults],
        )
        return record, failure

    def _measure(self, request: CellRequest, found: _Found) -> None:
        device, workload, streams = self.device, request.workload, request.cell.streams
        device.reset_memory()
        priorities = request.faults.priorities(self.scheduler.priorities(request.urgency))
        with device.open_streams(streams, priorities, gradients=workload.gradients) as pool:
            self._stage(found, "set-up", 0, 0)
            torch.manual_seed(request.seed)
            workload.setup(Setup(device, streams, request.seed, request.in_step.ranks))
            pool.synchronize()
            found.work = workload.work_per_iteration()

            self._stage(found, "warm-up", 0, 0)
            program = self._program(pool, request, self._iterate(request), bool(workload.tags))
            references = {
                name: self._program(pool, request, enqueue, True)
                for name, enqueue in workload.references().items()
            }
            found.warm_up = warm_up(device, pool, program, request.plan, request.in_step)
            # A scheduler may learn of a process only from its first work.
            proof = self.scheduler.proof(pool, request.urgency)
            found.proof = SchedulerProof(
                mode=proof.mode,
                evidence=proof.evidence,
                device_priorities=list(proof.device_priorities),
            )

            self._stage(found, "check", 0, 0)
            if device.has_values:
                workload.check(lambda: _run_once(pool, program))
            else:
                _run_once(pool, program)
                found.notes.append("simulated: no values exist, so results were not checked")

            reader = _open_telemetry(device)
            try:
                log = TelemetryLog(reader, clock_ns=device.clock_ns)
                with self._beside(request) as rounds:
                    self._measure_samples(pool, request, program, references, log, found)
            finally:
                if not isinstance(reader, Unavailable):
                    reader.close()
            for round_ in rounds:
                found.noise = round_
                if round_.status == "not applied":
                    found.notes.append(f"noise {round_.noise} not applied: {round_.reason}")
            found.metrics.memory_bytes.update(device.memory_bytes())
            if not request.only_traced:
                self._trace(pool, request, program, found)
            if request.traced is not None:
                with self._beside(request):
                    self._find_causes(pool, request, program, request.traced, found)

    def _beside(self, request: CellRequest) -> AbstractContextManager[list[NoiseRound]]:
        if request.beside is None:
            return nullcontext([])
        return request.beside(seconds_of_a_cell(request.plan.max_time_ns / 1e9))

    def _group(self, request: CellRequest) -> AbstractContextManager[object]:
        if request.group is not None:
            return request.group()
        return group_of_one(self.device) if request.workload.collective else nullcontext()

    def _iterate(self, request: CellRequest) -> Enqueue:
        return request.faults.work(request.workload.iterate, request.urgency)

    def _program(
        self, pool: StreamPool, request: CellRequest, enqueue: Enqueue, tagged: bool
    ) -> Program:
        disturbed = events_disturb(self.device, request.cell.streams)
        by_events = tagged and disturbed is None
        if request.cell.dispatch == "eager":
            return eager(self.device, enqueue, by_events, disturbed)
        # What a capture cannot do for the first time (load libraries, make workspaces) is done now.
        for _ in range(2):
            enqueue(pool.streams)
            pool.synchronize()
        if tagged and request.plan.sync_mode != "per_iteration":
            by_events, disturbed = False, "a graph's events keep only the times of its last replay"
        captured = graph(self.device, pool, enqueue, by_events)
        return captured if by_events else replace(captured, no_events=disturbed)

    def _measure_samples(
        self,
        pool: StreamPool,
        request: CellRequest,
        program: Program,
        references: dict[str, Program],
        log: TelemetryLog,
        found: _Found,
    ) -> None:
        plan = request.plan
        refused: dict[str, str] = {}
        before = self._reference_pass(pool, request, program, references)
        self._stage(found, "measure", 0, plan.iterations)
        log.poll(0, force=True)

        def pause(done: int) -> None:
            log.poll(done)
            self._progress("measure", done, plan.iterations)

        assert found.warm_up is not None
        plan = replace(plan, iteration_ns=found.warm_up.iteration_ns)
        planted = request.faults.measured(self.device, program, plan)
        # On a simulated device time is virtual, and what its host's threads do is nothing measured.
        simulated = isinstance(self.device, SimulatedDevice)
        counting = None if simulated else CpuCounting(lambda: pool.launched)
        result = measure(self.device, pool, planted, plan, pause, request.in_step)
        if counting is not None:
            found.counters = counting.finish(result.lead_in + result.iterations)
        self._confirm_scheduler()
        # What was counted on the device is read when all its work has ended.
        found.work = request.workload.work_per_iteration()
        log.poll(result.iterations, force=True)
        found.telemetry = log.finish()
        # Half before, half after: a drift of the machine falls on both sides of a ratio.
        after = self._reference_pass(pool, request, program, references)
        both = {name: (passed, after[name]) for name, passed in before.items()}
        # Of these whole iterations are compared, and of the others launches.
        alone = request.workload.overlap or ()
        if references and not both and request.workload.ratios:
            refused["ratios"] = "references need synchronised iterations"
        if program.no_events and request.workload.tags:
            self._stage(found, "tags", 0, 0)
            pool.tags = None
            result.tags_ns = traced_latencies(pool, program, plan, request.in_step)
            found.notes.append(f"tags timed in a traced pass: {program.no_events}")
            if not result.tags_ns:
                refused["tags"] = f"{program.no_events}, and a graph's kernels have no tags"
        found.iterations = result.iterations
        found.stopped = result.stopped
        found.samples = Samples(
            host_ns=result.host_ns,
            device_ns=result.device_ns,
            enqueue_ns=result.enqueue_ns,
            pace_ns=result.pace_ns,
            tags_ns=result.tags_ns,
            tags_timed_by="activity" if program.no_events else "events",
            references_ns={
                name: [ns for one in passes for ns in one.launches_ns]
                for name, passes in both.items()
                if name not in alone
            },
            reference_iterations_ns={
                name: [ns for one in both[name] for ns in one.iterations_ns]
                for name in alone
                if name in both
            },
        )
        found.metrics = summarise(
            found.samples,
            found.work,
            request.workload.ratios,
            request.workload.overlap,
            request.workload.traffic(),
        )
        found.metrics.refused.update(refused)
        found.metrics.apart.update(request.workload.measured_apart())
        if request.workload.decisions_drawn:
            drawn = ", ".join(request.workload.decisions_drawn)
            found.notes.append(f"drawn from the seed instead of computed: {drawn}")
        if found.telemetry.throttled:
            tagged = sum(s.end_sample - s.first_sample for s in found.telemetry.throttled)
            found.notes.append(f"{tagged} of {result.iterations} samples taken while throttled")
        if plan.sync_mode != "per_iteration":
            found.notes.append(f"sync mode {plan.sync_mode}: latency is device time from events")
            disturbed = events_disturb(self.device, request.cell.streams)
            if disturbed:
                found.notes.append(f"sync mode {plan.sync_mode} times by events: {disturbed}")
        if request.cell.dispatch == "eager" and self.device.kind != "cpu":
            bound = bound_by_launching(found.samples)
            if bound:
                found.notes.append(bound)

    def _reference_pass(
        self,
        pool: StreamPool,
        request: CellRequest,
        program: Program,
        references: dict[str, Program],
    ) -> dict[str, ReferencePass]:
        plan = request.plan
        if plan.sync_mode != "per_iteration":
            return {}
        short = LoopPlan(
            iterations=max(1, plan.iterations // 2),
            warmup=min(plan.warmup, 5),
            max_time_ns=max(1, plan.max_time_ns // 10),
            sync_mode=plan.sync_mode,
        )
        passes = {}
        for name, reference in references.items():
            self._progress(f"reference {name}", 0, short.iterations)
            passes[name] = reference_pass(
                self.device,
                pool,
                reference,
                short,
                traced=bool(program.no_events),
                in_step=request.in_step,
            )
        return passes

    def _trace(
        self, pool: StreamPool, request: CellRequest, program: Program, found: _Found
    ) -> None:
        self._stage(found, "timeline", 0, 0)
        pool.tags = None
        traced = self._timeline_program(pool, request, program, found)
        try:
            passed = timeline_pass(pool, traced.enqueue, request.in_step)
            self._count_kernels(program, traced, passed.kernels_per_iteration, found)
            self._check_streams(request, passed.summary, found)
            probe = probe_queue_switch(self.device, pool)
            found.metrics = found.metrics.model_copy(
                update={
                    "timeline": passed.summary,
                    "ready_to_start": passed.ready_to_start,
                    "queue_switch": probe,
                }
            )
        except DeviceError as error:
            # A pass that cannot be traced does not cost the measurement.
            found.metrics.refused["timeline"] = str(error)
        if request.trace_folder is not None:
            request.trace_folder.mkdir(parents=True, exist_ok=True)
            path = trace_path(request.trace_folder, file_name(request.cell.id))
            pool.export_trace(lambda: program.enqueue(pool.streams), str(path))
            found.notes.append(f"trace: {path}")

    def _find_causes(
        self,
        pool: StreamPool,
        request: CellRequest,
        program: Program,
        plan: TracePlan,
        found: _Found,
    ) -> None:
        """Trace iterations apart from the measured ones, with the same faults planted."""
        self._stage(found, "causes", 0, plan.requests)
        assert found.warm_up is not None
        loop = replace(
            request.plan,
            iterations=plan.requests,
            max_time_ns=plan.max_time_ns,
            iteration_ns=found.warm_up.iteration_ns,
        )
        planted = request.faults.measured(self.device, program, loop)
        reader = _open_telemetry(self.device)
        try:
            passed = traced_pass(
                self.device,
                pool,
                planted,
                plan,
                TelemetryLog(reader, clock_ns=self.device.clock_ns),
                lambda done: self._progress("causes", done, plan.requests),
                all_threads=request.workload.gradients and self.device.kind != "cpu",
                in_step=request.in_step,
            )
            found.causes, attribution = causes_of_pass(self.device, passed)
            if request.in_step.ranks.rank == 0:
                # The record of several ranks has rank 0's causes, and the notes of all.
                found.notes.append(causes_line(found.causes, "a traced pass of its own"))
            found.notes += write_files(
                plan, request.cell.id, self.device, pool, passed, attribution
            )
        except (DeviceError, OSError) as error:
            # As with the timeline: what cannot be traced does not cost the measurement.
            found.metrics.refused["causes"] = str(error)
        finally:
            if not isinstance(reader, Unavailable):
                reader.close()

    def _count_kernels(
        self, program: Program, traced: Program, of_an_iteration: int, found: _Found
    ) -> None:
        if found.counters is not None and traced is program:
            found.counters = found.counters.with_kernels(of_an_iteration)

    def _check_streams(self, request: CellRequest, summary: TimelineSummary, found: _Found) -> None:
        """Refuse figures of a workload whose kernels did not run on all the streams asked for."""
        if summary.elsewhere == summary.kernels:
            raise InvalidMeasurement(
                f"all {summary.kernels} kernels ran on streams that are not ours, such as the "
                "default stream: no priority and no scheduler of streams had anything to do with "
                "them; launch the work on the current stream"
            )
        if summary.elsewhere:
            found.notes.append(
                f"{summary.elsewhere} of {summary.kernels} kernels ran on streams that are not "
                "ours, such as NCCL's own or the default stream: they count for the stream that "
                "launched them, and have neither its queue nor its priority"
            )
        asked, used = request.cell.streams, summary.streams_used
        if used == asked:
            return
        text = f"{asked} streams were asked for, and kernels ran on {used}"
        if request.make_workload is not None:
            raise InvalidMeasurement(f"{text}: the figures are not those of {asked} streams")
        found.notes.append(text)

    def _timeline_program(
        self, pool: StreamPool, request: CellRequest, program: Program, found: _Found
    ) -> Program:
        if program.whole:
            found.notes.append(
                "timeline taken in eager dispatch: one graph for all streams does not run on them"
            )
            return eager(self.device, self._iterate(request), False)
        changed = request.workload.timeline_parameters(request.cell.streams)
        changed = {k: v for k, v in changed.items() if request.cell.parameters.get(k) != v}
        if not changed or request.make_workload is None or request.cell.dispatch == "graph":
            return program
        workload = request.make_workload(changed)
        workload.setup(
            Setup(self.device, request.cell.streams, request.seed, request.in_step.ranks)
        )
        pool.synchronize()
        described = ", ".join(f"{name}={value}" for name, value in changed.items())
        found.notes.append(f"timeline taken with {described}, so that all work could be held")
        return Program(request.faults.work(workload.iterate, request.urgency), None)

    def _stage(self, found: _Found, stage: str, done: int, planned: int) -> None:
        found.stage = stage
        self._progress(stage, done, planned)


def _open_telemetry(device: Device) -> TelemetryReader | Unavailable:
    if isinstance(device, SimulatedDevice):
        return SimulatedReader(device)
    return open_reader(device.kind, device.lease_key)


def _run_once(pool: StreamPool, program: Program) -> None:
    pool.synchronize()
    pool.tags = program.tags
    if program.tags is not None:
        program.tags.rewind()
    program.enqueue(pool.streams)
    pool.synchronize()
