"""A cell's record, and its timeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_hwqueue.devices.launches import trace_path
from pytest_hwqueue.devices.protocol import Device, StreamPool
from pytest_hwqueue.devices.telemetry import Telemetry, TelemetryLog, Unavailable
from pytest_hwqueue.errors import DeviceError, InvalidMeasurement
from pytest_hwqueue.harness.attempt import Found
from pytest_hwqueue.harness.closed_loop import LoopPlan
from pytest_hwqueue.harness.program import Enqueue, Program, eager, slowed_launches
from pytest_hwqueue.harness.timeline_pass import probe_queue_switch, refused_on_host, timeline_pass
from pytest_hwqueue.metrics.overlap import TimelineSummary
from pytest_hwqueue.records.cell import (
    ITERATION,
    Cell,
    Declared,
    Metrics,
    Primary,
    Samples,
    SchedulerProof,
    WarmUp,
)
from pytest_hwqueue.records.files import file_name
from pytest_hwqueue.records.noise import Causes, NoiseRound, Provenance
from pytest_hwqueue.tracing.cpu_counters import CpuCounters
from pytest_hwqueue.workloads.workload import Setup, Workload

# stage, iterations done, iterations planned
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class CellRequest:
    """What to measure, and the origin that the record states."""

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
    provenance: Provenance
    trace_folder: Path | None
    # The record's, for the timelines that its figures are computed from; None keeps none.
    record_folder: Path | None = None
    # Samples of the primary latency to measure; None where the plan's iterations were asked for.
    samples: int | None = None
    run: int = 1
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    # Runs background noise, for so many seconds at most; None where noise is no question.
    noise: Callable[[int], AbstractContextManager[list[NoiseRound]]] | None = None
    # Finds the causes of slow iterations in a pass of its own; None does not.
    find_causes: Callable[[OpenCell, Program], None] | None = None
    # Nothing but that pass is wanted: the measured one is cut short, and the timeline left out.
    only_traced: bool = False
    # Only what a verdict needs is measured: no references, no timeline.
    lean: bool = False
    # Throughput is taken from iterations that follow each other at once, where a graph is replayed.
    throughput_pass: bool = True
    # Opens torch.distributed's group, of this process or of several ranks.
    group: Callable[[], AbstractContextManager[object]] = nullcontext


@dataclass
class FoundOfCell(Found):
    """What is known about the cell so far."""

    iterations: int = 0
    stopped: str = ""
    work_per_iteration: dict[str, float] = field(default_factory=dict)
    warm_up: WarmUp | None = None
    samples: Samples | None = None
    metrics: Metrics = field(default_factory=Metrics)
    scheduler_proof: SchedulerProof | None = None
    telemetry: Telemetry | None = None
    counters: CpuCounters | None = None
    causes: Causes | None = None
    primary: Primary = ITERATION
    declared: Declared | None = None
    launch_bound: bool = False


@dataclass(frozen=True)
class OpenCell:
    """A cell whose streams are open.

    Attributes:
        device: the measured device.
        pool: the cell's streams.
        request: what to measure.
        found: receives what becomes known.
        progress: receives the cell's progress.

    """

    device: Device
    pool: StreamPool
    request: CellRequest
    found: FoundOfCell
    progress: Progress

    def stage(self, stage: str, done: int = 0, planned: int = 0) -> None:
        """Begin a stage, which a failure will name."""
        self.found.stage = stage
        self.progress(stage, done, planned)

    def set_up(self, workload: Workload) -> None:
        """Set up a workload on the cell's streams."""
        request = self.request
        streams, ranks = request.cell.streams, request.plan.rank_sync.ranks
        workload.setup(Setup(self.device, streams, request.seed, ranks))
        self.pool.synchronize()

    def iteration(self, workload: Workload) -> Enqueue:
        """Return the function that enqueues an iteration, slower if that was asked for."""
        return slowed_launches(self.device, workload.iterate, self.request.faults)

    @contextmanager
    def telemetry(self) -> Iterator[TelemetryLog]:
        """Open a log of the device's clocks and temperatures, on the device's host clock."""
        reader = self.device.open_telemetry()
        try:
            yield TelemetryLog(reader, clock_ns=self.device.clock_ns)
        finally:
            if not isinstance(reader, Unavailable):
                reader.close()


KEPT_TIMELINES = ("work on all streams", "work on one", "probe on all streams", "probe on one")
"""Names of the timelines that are kept with a record: of its own kernels, then of the probe's."""


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
        passed = timeline_pass(pool, traced.enqueue, request.plan.rank_sync)
        _count_kernels(cell, program, passed.kernels_per_iteration if traced is program else None)
        _check_streams(cell, passed.summary)
        host = cell.device.capabilities.host
        ready_to_start = refused_on_host(passed.ready_to_start, host=host)
        probe = probe_queue_switch(cell.device, pool)
        found.metrics = found.metrics.model_copy(
            update={
                "timeline": passed.summary,
                "ready_to_start": ready_to_start,
                "queue_switch": probe.queue_switch,
            }
        )
        timelines = (passed.many, passed.one, probe.many, probe.one)
        for name, timeline in zip(KEPT_TIMELINES, timelines, strict=True):
            found.kept.add(name, timeline)
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
