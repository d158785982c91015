"""The runner, on the host device: every cell ends in a record, whatever happens in it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from pytest_hwqueue.data.errors import CheckFailed, DeviceError, NotProven, RefusedFigure
from pytest_hwqueue.data.metrics.timeline import Timeline
from pytest_hwqueue.data.records.cell import Cell, RunRecord
from pytest_hwqueue.data.records.declared import PACE
from pytest_hwqueue.data.records.proof import Proof
from pytest_hwqueue.data.records.provenance import Provenance
from pytest_hwqueue.engine.cell.attempt import Failure
from pytest_hwqueue.engine.cell.cell import CellOrigin, CellRequest, Passes
from pytest_hwqueue.engine.cell.closed_loop import Plan
from pytest_hwqueue.engine.cell.ranks import measure_alone
from pytest_hwqueue.engine.cell.runner import (
    COLD,
    PROFILED,
    CellRunner,
    planned_iterations,
    samples_per_iteration,
    time_shortfall,
    traced_iterations,
)
from pytest_hwqueue.engine.cell.stop_rule import StopRule
from pytest_hwqueue.judge.baselines.runs import cell_of_record, condition_differences
from pytest_hwqueue.parts.devices.cache import BufferFlush
from pytest_hwqueue.parts.devices.host import HostDevice, HostPool
from pytest_hwqueue.parts.devices.protocol import Stream
from pytest_hwqueue.parts.devices.telemetry import HostReader
from pytest_hwqueue.parts.schedulers.inside_evidence import InsideEvidence
from pytest_hwqueue.parts.schedulers.native import Native
from pytest_hwqueue.parts.schedulers.syntax import (
    Scheduler,
    SchedulerPaths,
    open_scheduler,
    parse_scheduler,
)
from pytest_hwqueue.parts.workloads.own_function import FunctionWorkload
from pytest_hwqueue.parts.workloads.registry import WORKLOADS, workload_class
from pytest_hwqueue.parts.workloads.workload import (
    Parameters,
    PrimaryLatency,
    Setup,
    StreamRange,
    Workload,
    parameters_for,
)
from tests.parts.devices.pooling import Pooling

ITERATIONS = 3


class Failing(Workload):
    """A workload that fails in the stage it is told to, on the host or on a stream."""

    name, family, mark, description = "failing", "none", "P0", "fails"
    stream_range = StreamRange(1, 2, 2)
    parameter_model = Parameters
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __init__(self, stage: str, on_stream: bool = False, error: BaseException | None = None):
        self._stage = stage
        self._on_stream = on_stream
        self._error = error or ValueError(f"fails in {stage}")
        self._now = "set-up"

    def _fail_in(self, stage: str) -> None:
        if stage == self._stage:
            raise self._error

    def setup(self, setup: Setup) -> None:
        self._fail_in("set-up")

    def work_per_iteration(self) -> dict[str, float]:
        self._now = "warm-up"
        return {"things": 2.0}

    def iterate(self, streams: Sequence[Stream]) -> None:
        if not self._on_stream:
            self._fail_in(self._now)
        for stream in streams:
            stream.launch(self._fail_in, self._now)

    def check(self, run_once: Callable[[], None]) -> None:
        self._now = "check"
        run_once()
        self._now = "measure"


@pytest.fixture(scope="module")
def device() -> HostDevice:
    return HostDevice()


def request_for(
    workload: Workload,
    streams: int = 2,
    sync_mode: str = "per_iteration",
    parameters: Mapping[str, Any] | None = None,
    make: Callable[[Mapping[str, Any]], Workload] | None = None,
) -> CellRequest:
    cell = Cell(
        name=workload.name, device="cpu", streams=streams, scheduler="native", dispatch="eager",
        sync_mode=sync_mode, size="tiny", parameters=dict(parameters or {}),
    )  # fmt: skip
    return CellRequest(
        cell=cell, workload=workload, make_workload=make, urgency=[0] * streams,
        plan=Plan(StopRule(ITERATIONS, 4_000_000_000), 1, sync_mode), seed=7,
        origin=CellOrigin(
            "file.py::test", workload.family, workload.mark, "pytest", Provenance(),
            notes=("from the request",),
        ),
    )  # fmt: skip


def registered(name: str, sync_mode: str = "per_iteration", **changed: Any) -> CellRequest:
    """A workload of the suite on as many streams as it needs, at least two."""
    found = workload_class(name)
    values = parameters_for(found, "tiny", changed)

    def make(changed: Mapping[str, Any]) -> Workload:
        return found(values.model_copy(update=dict(changed)))

    workload = make({})
    streams = max(2, workload.stream_range.least)
    return request_for(workload, streams, sync_mode, values.model_dump(), make)


def run(
    device: HostDevice, request: CellRequest, scheduler: Scheduler | None = None
) -> tuple[RunRecord, Failure | None]:
    """Measure; whatever happens, the record can be read back and nothing is left."""
    threads = torch.get_num_threads()
    runner = CellRunner(device, scheduler or open_scheduler("native"), lambda *progress: None)
    try:
        record, failure = measure_alone(runner, request)
    finally:
        assert not [t for t in threading.enumerate() if t.name.startswith("hwq-stream-")]
        assert torch.get_num_threads() == threads
    assert RunRecord.model_validate_json(record.model_dump_json()) == record
    assert (record.status == "ok") == (failure is None)
    assert record.fingerprint is not None
    return record, failure


# With ratios and without, requests, copies; tests/parts/workloads measures every one.
_ALWAYS = ("hetero_kernels", "tiny_kernel_stress", "continuous_batch", "moe", "zero_offload")


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=[] if each in _ALWAYS else pytest.mark.slow) for each in WORKLOADS],
)
def test_each_workload_gives_an_ok_record(device: HostDevice, name: str) -> None:
    request = registered(name)
    workload, streams = request.workload, request.cell.streams
    record, _ = run(device, request)
    assert (record.status, record.reason, record.stage) == ("ok", "", "")
    assert (record.cell, record.cell_id, record.seed) == (request.cell, request.cell.id, 7)
    assert (record.iterations, record.stopped) == (ITERATIONS, f"{ITERATIONS} iterations")
    assert record.notes[0] == "from the request"
    samples, metrics, primary = record.samples, record.metrics, workload.primary
    assert samples is not None
    assert len(samples.host_ns) == len(samples.device_ns) == len(samples.enqueue_ns) == ITERATIONS
    assert all(h >= e > 0 for h, e in zip(samples.host_ns, samples.enqueue_ns, strict=True))
    assert samples.pace_ns == []
    requests = {primary.name} if primary.per == "request" else set()
    assert samples.tags_ns.keys() == set(workload.tags) | requests
    assert metrics.tags.keys() == set(workload.tags) - {primary.name}
    alone = {**samples.references_ns, **samples.reference_iterations_ns}
    assert alone.keys() == workload.references().keys()
    # Half before, half after what is compared with them; what is held against launches that were
    # timed while all streams had work has as many windows.
    windowed = {ratio.reference for ratio in workload.ratios if ratio.tag == primary.name}
    assert all(len(values) == 2 for name, values in alone.items() if name not in windowed)
    assert (samples.contended is not None) == (primary.per == "launch" and bool(primary.marks))
    if samples.contended is not None:
        assert samples.contended.in_flight == pytest.approx(streams)
        assert not record.launch_bound
    assert metrics.ratios.keys() == {ratio.name for ratio in workload.ratios}
    for ratio in workload.ratios:
        result = metrics.ratios[ratio.name]
        assert result.n == len(samples.tags_ns[ratio.tag])
        assert result.reference_n == len(samples.references_ns[ratio.reference])
        # Three samples give no interval; a tag that is judged has those of several windows.
        assert (result.p50.value is None) == (result.n <= ITERATIONS * streams)
        assert result.p99.value is None
    units = [each.unit for each in metrics.throughput]
    assert units == [f"{unit}/s" for unit in record.work_per_iteration]
    assert metrics.latency is not None
    assert (record.primary.name, metrics.latency.n) == (primary.name, len(record.judged_ns()))
    assert metrics.iteration is not None
    assert metrics.iteration.n == ITERATIONS
    assert metrics.timeline is not None
    assert metrics.timeline.streams_used == streams
    assert None not in (metrics.queue_switch, metrics.ready_to_start, record.warm_up)
    assert record.scheduler_proof is not None
    assert record.scheduler_proof.device_priorities == (0,) * streams
    assert record.telemetry is not None
    windows = 0 if samples.contended is None else samples.contended.windows
    assert {0, ITERATIONS + windows} <= set(record.telemetry.read_before)
    # Counted over the measured iterations, and the three that lead in.
    assert record.counters is not None
    assert record.counters.iterations == ITERATIONS + 3


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_stream_that_does_nothing_is_caught(device: HostDevice, name: str) -> None:
    request = registered(name)
    iterate = request.workload.iterate

    class Idle:
        """Takes work and does none of it; its events are its stream's."""

        def __init__(self, stream: Stream) -> None:
            self._stream = stream

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

        def launch(self, *arguments: object, **options: object) -> None:
            return None

    def without_the_last(streams: Sequence[Stream]) -> None:
        iterate([*streams[:-1], Idle(streams[-1])])

    request.workload.iterate = without_the_last  # type: ignore[method-assign]
    record, _ = run(device, request)
    assert (record.status, record.stage) == ("failed", "check")
    assert record.reason.startswith("CheckFailed: ")


class CountedFlush(BufferFlush):
    """Writes a buffer in the host's memory."""

    calls = 0

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"), "cpu", 3_000_000)

    def __call__(self) -> None:
        self.calls += 1
        super().__call__()


class ColdHost(HostDevice):
    """The CPU as if its cache could be emptied."""

    capabilities = HostDevice.capabilities._replace(cold_cache=True)

    def __init__(self) -> None:
        super().__init__()
        self.flushes: list[CountedFlush] = []

    def cache_flush(self) -> BufferFlush:
        self.flushes.append(CountedFlush())
        return self.flushes[-1]


def cold(request: CellRequest) -> CellRequest:
    return replace(request, cell=request.cell.model_copy(update={"cache": "cold"}))


def test_a_cold_cell_has_its_cache_emptied_and_says_so() -> None:
    device, request = ColdHost(), registered("hetero_kernels")
    record, _ = run(device, cold(request))
    assert (record.status, record.cell.cache) == ("ok", "cold"), record.reason
    assert record.cell.id == request.cell.id.replace("-eager", "-eager-cold")
    assert COLD in record.notes
    (flush,) = device.flushes
    # Whole blocks of the allocator, at least twice the cache.
    assert flush.size_bytes == 3 * (2 << 20)
    assert record.warm_up is not None
    assert record.samples is not None
    references = sum(map(len, record.samples.references_ns.values()))
    assert references
    assert flush.calls >= ITERATIONS + record.warm_up.iterations + references
    warm, _ = run(device, request)
    assert device.flushes == [flush]
    assert (warm.cell.cache, COLD in warm.notes) == ("hot", False)
    one, other = (cell_of_record(each, "s").header for each in (record, warm))
    assert [(each.field, each.kind) for each in condition_differences(one, other)] == [
        ("cell.cache", "identity")
    ]


def test_the_flush_is_in_no_memory_figure() -> None:
    class Allocating(ColdHost):
        def memory_bytes(self) -> dict[str, int]:
            return {"allocated": 100 << 20}

    device, request = Allocating(), registered("hetero_kernels")
    sizes = [run(device, each)[0].metrics.memory_bytes["allocated"]
             for each in (cold(request), request)]  # fmt: skip
    assert sizes == [94 << 20, 100 << 20]


def test_a_cache_of_unknown_size_is_refused() -> None:
    with pytest.raises(DeviceError, match="does not tell how large"):
        BufferFlush(torch.device("cpu"), "cuda", 0)
    # On AMD another cache stands behind the L2.
    assert BufferFlush(torch.device("meta"), "hip", 4 << 20).size_bytes == 520 << 20


@pytest.mark.parametrize("sync_mode", ["end_only", "none"])
def test_record_of_a_cell_that_is_not_synchronised(device: HostDevice, sync_mode: str) -> None:
    record, _ = run(device, registered("hetero_kernels", sync_mode))
    samples, metrics = record.samples, record.metrics
    assert samples is not None
    assert samples.host_ns == []
    assert (len(samples.pace_ns), samples.device_ns) == (ITERATIONS, [])
    counts = {tag: len(values) for tag, values in samples.tags_ns.items()}
    assert counts == {"large": ITERATIONS, "small": ITERATIONS}
    assert (record.primary, record.judged_ns()) == (PACE, samples.pace_ns)
    assert metrics.pace is not None
    assert metrics.pace == metrics.judged
    assert (metrics.latency, metrics.iteration, metrics.device_time) == (None, None, None)
    assert any(f"{sync_mode} measures a pace, not a latency" in note for note in record.notes)
    with pytest.raises(RefusedFigure, match=r"no iteration is waited for .*=per_iteration"):
        record.assert_p50("9 s")
    assert (metrics.ratios, "ratios" in metrics.refused) == ({}, True)


def test_cell_says_that_a_profiler_has_made_launching_slower() -> None:
    device = HostDevice()
    record, _ = run(device, registered("hetero_kernels"))
    assert PROFILED not in record.notes
    device.profiled = True
    record, _ = run(device, registered("hetero_kernels"))
    assert PROFILED in record.notes


@pytest.mark.parametrize("elsewhere", [False, True])
def test_kernels_that_ran_on_other_streams_than_ours(elsewhere: bool) -> None:
    """As where a user's function launches on the default stream; the host device has none."""

    class Elsewhere(HostPool):
        def held_timeline(self, enqueue: Callable[[], None]) -> Timeline:
            found = super().held_timeline(enqueue)
            return replace(found, elsewhere=len(found.kernels) if elsewhere else 1)

    def enqueue(streams: Sequence[Stream]) -> None:
        for stream in streams:
            stream.launch(torch.ones, 4)

    workload = FunctionWorkload(enqueue, {"sums": 2}, ())
    record, _ = run(Pooling(Elsewhere), request_for(workload, 2))
    if elsewhere:
        assert record.status == "invalid"
        assert record.reason.startswith("all 40 kernels ran on streams that are not ours")
    else:
        assert any(note.startswith("1 of 40 kernels ran on streams") for note in record.notes)


@pytest.mark.parametrize("countable", [True, False])
def test_work_that_cannot_all_be_held_is_traced_with_less_and_counted_whole(
    countable: bool,
) -> None:
    class Unseen(HostPool):
        def timeline(self, enqueue: Callable[[], None]) -> Timeline:
            raise DeviceError("no kernels are seen here")

    device = HostDevice() if countable else Pooling(Unseen)
    record, _ = run(device, registered("tiny_kernel_stress", rounds=500))
    assert "timeline taken with rounds=100, so that all work could be held" in record.notes
    assert record.work_per_iteration == {"kernels": 4000.0}
    assert record.metrics.timeline is not None
    counters = record.counters
    assert counters is not None
    assert counters.launches == counters.iterations * record.cell.streams
    if countable:
        assert counters.kernels == counters.launches
    else:
        assert counters.kernels is None
        assert counters.missing["kernels"] == "no kernels are seen here"


@pytest.mark.parametrize("on_stream", [False, True], ids=["enqueueing", "launched"])
@pytest.mark.parametrize("stage", ["set-up", "warm-up", "check", "measure"])
def test_failure_is_a_record_with_its_stage_and_cause_and_the_next_is_measured(
    stage: str, on_stream: bool
) -> None:
    closed: list[HostReader] = []

    class Reader(HostReader):
        def close(self) -> None:
            super().close()
            closed.append(self)

    class Read(HostDevice):
        def open_telemetry(self) -> HostReader:
            return Reader()

    device = Read()
    record, failure = run(device, request_for(Failing(stage, on_stream)))
    assert failure == Failure(f"ValueError: fails in {stage}", retire_process=False)
    assert (record.status, record.stage, record.reason) == ("failed", stage, failure.reason)
    # What was known before is kept, and nothing is made up.
    assert record.work_per_iteration == ({} if stage == "set-up" else {"things": 2.0})
    proven = stage in ("check", "measure")
    assert (record.warm_up is not None) == (record.scheduler_proof is not None) == proven
    assert (record.samples, record.metrics.latency) == (None, None)
    assert (record.iterations, record.stopped) == (0, "")
    assert len(closed) == (stage == "measure")
    assert run(device, request_for(Failing("never")))[0].iterations == ITERATIONS


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), SystemExit(3)])
def test_interruption_is_not_a_record(device: HostDevice, interruption: BaseException) -> None:
    with pytest.raises(type(interruption)):
        run(device, request_for(Failing("measure", error=interruption)))


class WrongResult(Failing):
    """Runs well, and computes the wrong thing."""

    def check(self, run_once: Callable[[], None]) -> None:
        raise CheckFailed("chain 0: relative error 0.5 exceeds 1e-06")


class Unproven(Native):
    """A scheduler that cannot show that it is active."""

    def proof(self, pids: Mapping[str, int], inside: Mapping[str, InsideEvidence]) -> Proof:
        raise NotProven("native: streams should share one priority, but report [0, 1]")


def test_what_is_wrong_or_not_proven_is_never_measured(device: HostDevice) -> None:
    record, _ = run(device, request_for(WrongResult("never")))
    assert (record.status, record.stage, record.samples) == ("failed", "check", None)
    assert record.reason == "CheckFailed: chain 0: relative error 0.5 exceeds 1e-06"
    unproven = Unproven(parse_scheduler("native"), SchedulerPaths())
    record, _ = run(device, request_for(Failing("never")), unproven)
    assert (record.status, record.stage, record.samples) == ("failed", "warm-up", None)
    assert record.reason.startswith("NotProven: native: streams should share one priority")


def test_stages_are_reported_in_order(device: HostDevice) -> None:
    told: list[tuple[str, int, int]] = []
    runner = CellRunner(device, open_scheduler("native"), lambda *each: told.append(each))
    runner.run(request_for(Failing("never")))
    stages = ["set-up", "warm-up", "check", "measure", "timeline"]
    assert list(dict.fromkeys(stage for stage, _, _ in told)) == stages
    assert ("measure", 0, ITERATIONS) in told


def test_profile_is_a_trace_named_in_the_record(device: HostDevice, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "profiles"
    request = request_for(Failing("never"))
    record, _ = run(device, replace(request, passes=Passes(trace_folder=folder)))
    (written,) = folder.iterdir()
    assert f"trace: {written}" in record.notes
    assert json.loads(written.read_text(encoding="utf-8"))["traceEvents"]
    # A folder that is a file: what was measured is kept.
    record, _ = run(device, replace(request, passes=Passes(trace_folder=written)))
    assert (record.status, record.stage) == ("failed", "timeline")
    assert record.samples is not None


def test_iteration_without_kernels_costs_only_the_timeline(device: HostDevice) -> None:
    workload = FunctionWorkload(lambda streams: None, {"iterations": 1.0}, ())
    record, _ = run(device, request_for(workload, 1))
    assert record.status == "ok"
    assert "timeline" in record.metrics.refused


class Tagged(Failing):
    """Launches that fail if they run: counting must not run them."""

    def __init__(self, per: Any, tags: Sequence[str | None]) -> None:
        super().__init__("launch")
        self.primary = PrimaryLatency("token", per, "d")  # type: ignore[misc]
        self._tags = tags

    def iterate(self, streams: Sequence[Stream]) -> None:
        for index, tag in enumerate(self._tags):
            streams[index % len(streams)].launch(self._fail_in, "launch", tag=tag)


@pytest.mark.parametrize(
    ("per", "tags", "count"),
    [
        ("iteration", ["token", "token"], 1),
        ("launch", ["token", None, "other", "token#3"], 2),
        ("request", ["embed#1", "embed#2", "answer#1", "#2", "token", None], 2),
        ("launch", ["other", None], None),
        ("request", ["other", None], None),
    ],
)
def test_samples_of_an_iteration_are_counted_without_running_it(
    device: HostDevice, per: str, tags: Sequence[str | None], count: int | None
) -> None:
    with device.open_streams(2) as pool:
        if count is not None:
            assert samples_per_iteration(Tagged(per, tags), pool.streams) == count
            return
        with pytest.raises(ValueError, match="no launch of an iteration is a token"):
            samples_per_iteration(Tagged(per, tags), pool.streams)


@pytest.mark.parametrize(
    ("samples", "each", "traced", "planned"),
    [(1000, 4, 250, 250), (1000, 32, 32, 50), (1001, 4, 251, 251), (1, 1, 1, 50)],
)
def test_iterations_are_as_many_as_give_the_samples(
    device: HostDevice, samples: int, each: int, traced: int, planned: int
) -> None:
    workload = Tagged("launch", ["token"] * each)
    with device.open_streams(1) as pool:
        assert traced_iterations(workload, pool.streams, samples) == traced
        assert planned_iterations(workload, pool.streams, samples) == planned


def test_what_does_not_fit_into_the_time_is_said_before() -> None:
    plan = Plan(StopRule(100, 2_000_000_000), warmup=1, sync_mode="per_iteration")
    assert time_shortfall(plan, 20_000_000) == ""
    text = time_shortfall(plan, 50_000_000)
    assert "100 iterations would take 5 s: about 40 fit into 2 s" in text
