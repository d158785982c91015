"""A cell while it is measured: what was asked for, what is found, and its open streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_hwqueue.data.records.cell import Cell, Metrics, Samples, WarmUp
from pytest_hwqueue.data.records.counters import CpuCounters
from pytest_hwqueue.data.records.declared import ITERATION, DeclaredFigures, Primary
from pytest_hwqueue.data.records.noise import Causes, NoiseRound
from pytest_hwqueue.data.records.proof import Proof
from pytest_hwqueue.data.records.provenance import Provenance
from pytest_hwqueue.data.records.telemetry import Telemetry
from pytest_hwqueue.engine.cell.attempt import RunDraft
from pytest_hwqueue.engine.cell.closed_loop import Plan
from pytest_hwqueue.engine.cell.program import Enqueue, Place, Program, SlowedLaunches
from pytest_hwqueue.parts.devices.protocol import Device, StreamPool
from pytest_hwqueue.parts.devices.telemetry import TelemetryLog, Unavailable
from pytest_hwqueue.parts.workloads.workload import Setup, Workload

# stage, iterations done, iterations planned
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class CellOrigin:
    """Where a cell comes from, as its record states it.

    Attributes:
        nodeid: of the test that measures it.
        family: of its workload; None of the user's own code.
        mark: priority of its workload; None of the user's own code.
        command: that began the session.
        provenance: of the code.
        run: its number among the runs of the cell in this session, from 1.
        notes: what is known before it is measured.

    """

    nodeid: str
    family: str | None
    mark: str | None
    command: str
    provenance: Provenance
    run: int = 1
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Passes:
    """Which passes over a cell there are, beside the measured one.

    Attributes:
        lean: only what a verdict needs is measured: no references, no timeline.
        throughput: it is taken from iterations that follow each other at once, where a graph is
            replayed.
        find_causes: finds the causes of slow iterations in a pass of its own; None does not.
        only_traced: nothing but that pass is wanted: the measured one is cut short, and the
            timeline left out.
        trace_folder: for a trace that other tools read; None writes none.

    """

    lean: bool = False
    throughput: bool = True
    find_causes: Callable[[OpenCell, Program], None] | None = None
    only_traced: bool = False
    trace_folder: Path | None = None


@dataclass(frozen=True)
class CellRequest:
    """What to measure.

    Attributes:
        cell: names it.
        workload: what runs.
        urgency: of each stream.
        plan: how much is measured.
        seed: of random choices and input data.
        origin: where it comes from.
        passes: which there are.
        make_workload: makes the workload with other parameters; None for the user's own code.
        faults: to plant, by their names.
        record_folder: the record's, for the timelines that its figures are computed from; None
            keeps none.
        noise: runs background noise, for so many seconds at most; None where noise is no question.
        group: opens torch.distributed's group, of this process or of several ranks.

    """

    cell: Cell
    workload: Workload
    urgency: Sequence[int]
    plan: Plan
    seed: int
    origin: CellOrigin
    passes: Passes = Passes()
    make_workload: Callable[[Mapping[str, Any]], Workload] | None = None
    faults: tuple[str, ...] = ()
    record_folder: Path | None = None
    noise: Callable[[int], AbstractContextManager[list[NoiseRound]]] | None = None
    group: Callable[[], AbstractContextManager[object]] = nullcontext


@dataclass
class CellDraft(RunDraft):
    """What is known about the cell so far."""

    iterations: int = 0
    stopped: str = ""
    work_per_iteration: dict[str, float] = field(default_factory=dict)
    warm_up: WarmUp | None = None
    samples: Samples | None = None
    metrics: Metrics = field(default_factory=Metrics)
    scheduler_proof: Proof | None = None
    telemetry: Telemetry | None = None
    counters: CpuCounters | None = None
    causes: Causes | None = None
    primary: Primary = ITERATION
    declared: DeclaredFigures | None = None
    launch_bound: bool = False


@dataclass(frozen=True)
class OpenCell:
    """A cell whose streams are open.

    Attributes:
        device: the measured device.
        pool: the cell's streams.
        request: what to measure.
        draft: receives what becomes known.
        progress: receives the cell's progress.
        spins_ns: of a planted fault, behind each launch of an iteration; none without one.
        flush_bytes: of the device's memory that the harness itself holds, to empty the cache.

    """

    device: Device
    pool: StreamPool
    request: CellRequest
    draft: CellDraft
    progress: Progress
    spins_ns: Mapping[Place, float] = field(default_factory=dict)
    flush_bytes: int = 0

    def stage(self, stage: str, done: int = 0, planned: int = 0) -> None:
        """Begin a stage, which a failure will name."""
        self.draft.stage = stage
        self.progress(stage, done, planned)

    def set_up(self, workload: Workload) -> None:
        """Set up a workload on the cell's streams."""
        request = self.request
        streams, ranks = request.cell.streams, request.plan.rank_sync.ranks
        workload.setup(Setup(self.device, streams, request.seed, ranks))
        self.pool.synchronize()

    def iteration(self, workload: Workload) -> Enqueue:
        """Return what enqueues an iteration, slower on a real device if that was asked for."""
        if not self.spins_ns:
            return workload.iterate
        # Behind launches that fill the device a small kernel would run beside other streams' work,
        # and be felt once it outlasts all of that.
        filling = workload.primary.marks == "events" and not self.device.capabilities.host
        return SlowedLaunches(self.device, workload.iterate, self.spins_ns, waves=int(filling))

    @contextmanager
    def telemetry(self) -> Iterator[TelemetryLog]:
        """Open a log of the device's clocks and temperatures, on the device's host clock."""
        reader = self.device.open_telemetry()
        try:
            yield TelemetryLog(reader, clock_ns=self.device.clock_ns)
        finally:
            if not isinstance(reader, Unavailable):
                reader.close()
