"""The runner, on the host device: every cell ends in a record, whatever happens in it."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from pytest_hwqueue.devices.host import HostDevice, HostPool
from pytest_hwqueue.devices.protocol import Stream
from pytest_hwqueue.devices.telemetry import HostSample
from pytest_hwqueue.errors import CheckFailed, DeviceError, NotProven
from pytest_hwqueue.harness import cell as cell_timeline
from pytest_hwqueue.harness.attempt import Failure
from pytest_hwqueue.harness.cell import CellRequest
from pytest_hwqueue.harness.closed_loop import LoopPlan
from pytest_hwqueue.harness.runner import CellRunner
from pytest_hwqueue.harness.timeline_pass import TimelinePass, timeline_pass
from pytest_hwqueue.metrics.timeline import Timeline
from pytest_hwqueue.ranks.cell import measure_alone
from pytest_hwqueue.records.cell import Cell, RunRecord
from pytest_hwqueue.records.noise import Provenance
from pytest_hwqueue.schedulers.inside_evidence import InsideEvidence
from pytest_hwqueue.schedulers.native import Native
from pytest_hwqueue.schedulers.syntax import Proof, SchedulerPaths, open_scheduler, parse_scheduler
from pytest_hwqueue.workloads.own_function import FunctionWorkload
from pytest_hwqueue.workloads.registry import WORKLOADS, workload_class
from pytest_hwqueue.workloads.workload import (
    Parameters,
    Setup,
    StreamRange,
    Workload,
    parameters_for,
)

ITERATIONS = 3
STAGES = ("set-up", "warm-up", "check", "measure", "timeline")


class Boom(RuntimeError):
    """What a workload raises here."""


class Failing(Workload):
    """A workload that fails in the stage it is told to, on the host or on a stream."""

    name = "failing"
    family = "none"
    mark = "P0"
    description = "fails"
    stream_range = StreamRange(1, 2, 2)
    parameter_model = Parameters
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __init__(self, stage: str, on_stream: bool = False, error: BaseException | None = None):
        self._stage = stage
        self._on_stream = on_stream
        self._error = error or Boom(f"fails in {stage}")
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
    *,
    sync_mode: str = "per_iteration",
    parameters: Mapping[str, Any] | None = None,
    make: Callable[[Mapping[str, Any]], Workload] | None = None,
    trace_folder: Path | None = None,
) -> CellRequest:
    cell = Cell(
        name=workload.name,
        device="cpu",
        streams=streams,
        scheduler="native",
        dispatch="eager",
        sync_mode=sync_mode,
        size="tiny",
        parameters=dict(parameters or {}),
    )
    return CellRequest(
        cell=cell,
        workload=workload,
        make_workload=make,
        urgency=[0] * streams,
        nodeid="file.py::test",
        family=workload.family,
        mark=workload.mark,
        plan=LoopPlan(ITERATIONS, 1, 4_000_000_000, sync_mode),
        seed=7,
        command="pytest",
        provenance=Provenance(),
        trace_folder=trace_folder,
        notes=("from the request",),
    )


def run(device: HostDevice, request: CellRequest) -> tuple[RunRecord, Failure | None]:
    runner = CellRunner(device, open_scheduler("native"), lambda stage, done, planned: None)
    return measure_alone(runner, request)


def registered(name: str) -> tuple[Workload, Mapping[str, Any], Callable[..., Workload]]:
    found = workload_class(name)
    values = parameters_for(found, "tiny", {})

    def make(changed: Mapping[str, Any]) -> Workload:
        return found(values.model_copy(update=dict(changed)))  # type: ignore[call-arg]

    return make({}), values.model_dump(), make


@pytest.mark.parametrize("name", WORKLOADS)
def test_each_workload_gives_an_ok_record(device: HostDevice, name: str) -> None:
    workload, parameters, make = registered(name)
    streams = max(2, workload.stream_range.least)
    request = request_for(workload, streams, parameters=parameters, make=make)
    record, failure = run(device, request)
    assert failure is None
    assert (record.status, record.reason, record.stage) == ("ok", "", "")
    assert (record.cell, record.cell_id, record.seed) == (request.cell, request.cell.id, 7)
    assert record.iterations == ITERATIONS
    assert record.stopped == f"{ITERATIONS} iterations"
    assert record.warm_up is not None
    samples = record.samples
    assert samples is not None
    assert len(samples.host_ns) == len(samples.device_ns) == len(samples.enqueue_ns) == ITERATIONS
    assert all(h >= e > 0 for h, e in zip(samples.host_ns, samples.enqueue_ns, strict=True))
    assert samples.pace_ns == []
    requests = {workload.primary.name} if workload.primary.per == "request" else set()
    assert samples.tags_ns.keys() == set(workload.tags) | requests
    assert record.metrics.tags.keys() == set(workload.tags) - {workload.primary.name}
    assert record.primary.name == workload.primary.name
    alone = {**samples.references_ns, **samples.reference_iterations_ns}
    assert alone.keys() == workload.references().keys()
    assert all(len(values) == 2 for values in alone.values())
    assert record.metrics.ratios.keys() == {ratio.name for ratio in workload.ratios}
    assert list(record.work_per_iteration) == list(workload.work_per_iteration())
    units = [each.unit for each in record.metrics.throughput]
    assert units == [f"{unit}/s" for unit in workload.work_per_iteration()]
    assert record.metrics.latency is not None
    assert record.metrics.latency.n == len(record.latency_ns())
    assert record.metrics.iteration is not None
    assert record.metrics.iteration.n == ITERATIONS
    assert record.metrics.timeline is not None
    assert record.metrics.timeline.streams_used == streams
    assert record.metrics.queue_switch is not None
    assert record.metrics.ready_to_start is not None
    assert record.scheduler_proof is not None
    assert record.scheduler_proof.device_priorities == [0] * streams
    assert record.telemetry is not None
    assert record.telemetry.read_before[0] == 0
    assert record.telemetry.read_before[-1] == ITERATIONS
    assert record.fingerprint is not None
    assert record.fingerprint.hard["device_kind"] == "cpu"
    assert record.notes[0] == "from the request"
    assert RunRecord.model_validate_json(record.model_dump_json()) == record


@pytest.mark.parametrize("sync_mode", ["end_only", "none"])
def test_record_of_a_cell_that_is_not_synchronised(device: HostDevice, sync_mode: str) -> None:
    workload, parameters, make = registered("hetero_kernels")
    request = request_for(workload, 2, parameters=parameters, make=make, sync_mode=sync_mode)
    record, failure = run(device, request)
    assert failure is None
    samples = record.samples
    assert samples is not None
    assert samples.host_ns == []
    assert len(samples.pace_ns) == len(samples.device_ns) == ITERATIONS
    assert {tag: len(values) for tag, values in samples.tags_ns.items()} == {
        "large": ITERATIONS,
        "small": ITERATIONS,
    }
    assert record.metrics.iteration == record.metrics.device_time
    assert any("device time from events" in note for note in record.notes)
    assert record.metrics.ratios == {}
    assert "ratios" in record.metrics.refused


@pytest.mark.parametrize("elsewhere", [1, 4])
def test_kernels_that_ran_on_other_streams_than_ours(
    device: HostDevice, monkeypatch: pytest.MonkeyPatch, elsewhere: int
) -> None:
    """As where a user's function launches on the default stream; the host device has none."""
    real = timeline_pass

    def passed(*arguments: Any) -> TimelinePass:
        found = real(*arguments)
        assert found.summary.kernels == 4
        return replace(found, summary=replace(found.summary, elsewhere=elsewhere))

    monkeypatch.setattr(cell_timeline, "timeline_pass", passed)
    monkeypatch.setattr("pytest_hwqueue.harness.timeline_pass._MOST_REPEATS", 2)

    def enqueue(streams: Sequence[Stream]) -> None:
        for stream in streams:
            stream.launch(torch.ones, 4)

    record, failure = run(device, request_for(FunctionWorkload(enqueue, {"sums": 2}, ()), 2))
    if elsewhere == 4:
        assert failure is not None
        assert record.reason.startswith("all 4 kernels ran on streams that are not ours")
    else:
        assert failure is None
        assert any(note.startswith("1 of 4 kernels ran on streams") for note in record.notes)


def of_many_kernels() -> CellRequest:
    """A cell whose work cannot all be held, so that its timeline is of less."""
    found = workload_class("tiny_kernel_stress")
    values = parameters_for(found, "tiny", {"rounds": 500})

    def make(changed: Mapping[str, Any]) -> Workload:
        return found(values.model_copy(update=dict(changed)))  # type: ignore[call-arg]

    return request_for(make({}), 2, parameters=values.model_dump(), make=make)


def test_timeline_is_taken_with_what_can_be_held(device: HostDevice) -> None:
    record, failure = run(device, of_many_kernels())
    assert failure is None
    assert "timeline taken with rounds=100, so that all work could be held" in record.notes
    assert record.work_per_iteration == {"kernels": 4000.0}
    # Those of the measured iteration are counted all the same.
    assert record.counters is not None
    assert record.counters.kernels == record.counters.launches > 0


def test_kernels_that_cannot_be_counted_cost_no_timeline(
    device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pool: HostPool, enqueue: Callable[[], None]) -> Timeline:
        raise DeviceError("no kernels are seen here")

    monkeypatch.setattr(HostPool, "timeline", refuse)
    record, failure = run(device, of_many_kernels())
    assert failure is None
    assert record.metrics.timeline is not None
    assert record.counters is not None
    assert record.counters.kernels is None
    assert record.counters.missing["kernels"] == "no kernels are seen here"


def stream_threads() -> set[str]:
    return {each.name for each in threading.enumerate() if each.name.startswith("hwq-stream-")}


@pytest.mark.parametrize("on_stream", [False, True], ids=["enqueueing", "launched"])
@pytest.mark.parametrize("stage", ["set-up", "warm-up", "check", "measure"])
def test_failure_is_a_record_with_its_stage_and_cause(
    device: HostDevice, stage: str, on_stream: bool
) -> None:
    threads = torch.get_num_threads()
    record, failure = run(device, request_for(Failing(stage, on_stream)))
    assert failure == Failure(f"Boom: fails in {stage}", retire_process=False)
    assert (record.status, record.stage) == ("failed", stage)
    assert record.reason == f"Boom: fails in {stage}"
    # What was known before is kept, and nothing is made up.
    assert record.work_per_iteration == ({} if stage == "set-up" else {"things": 2.0})
    proven = stage in ("check", "measure")
    assert (record.warm_up is not None) == (record.scheduler_proof is not None) == proven
    assert record.samples is None
    assert (record.iterations, record.stopped) == (0, "")
    assert record.metrics.latency is None
    assert record.fingerprint is not None
    assert RunRecord.model_validate_json(record.model_dump_json()) == record
    assert stream_threads() == set()
    assert torch.get_num_threads() == threads


def test_runner_measures_again_after_a_failure(device: HostDevice) -> None:
    assert run(device, request_for(Failing("measure", on_stream=True)))[0].status == "failed"
    record, failure = run(device, request_for(Failing("never")))
    assert (record.status, failure) == ("ok", None)
    assert record.iterations == ITERATIONS


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), SystemExit(3)])
def test_interruption_is_not_a_record(device: HostDevice, interruption: BaseException) -> None:
    with pytest.raises(type(interruption)):
        run(device, request_for(Failing("measure", error=interruption)))
    assert stream_threads() == set()


class WrongResult(Failing):
    """Runs well, and computes the wrong thing."""

    def check(self, run_once: Callable[[], None]) -> None:
        super().check(run_once)
        raise CheckFailed("chain 0: relative error 0.5 exceeds 1e-06")


def test_wrong_result_fails_the_cell(device: HostDevice) -> None:
    record, failure = run(device, request_for(WrongResult("never")))
    assert failure is not None
    assert (record.status, record.stage) == ("failed", "check")
    assert record.reason == "CheckFailed: chain 0: relative error 0.5 exceeds 1e-06"
    assert record.samples is None


@pytest.mark.parametrize("name", WORKLOADS)
def test_registered_workload_whose_stream_does_nothing_is_caught(
    device: HostDevice, name: str
) -> None:
    workload, parameters, make = registered(name)
    iterate = workload.iterate

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

    workload.iterate = without_the_last  # type: ignore[method-assign]
    streams = max(2, workload.stream_range.least)
    record, _ = run(device, request_for(workload, streams, parameters=parameters, make=make))
    assert (record.status, record.stage) == ("failed", "check")
    assert record.reason.startswith("CheckFailed: ")


class Unproven(Native):
    """A scheduler that cannot show that it is active."""

    def proof(self, pids: Mapping[str, int], inside: Mapping[str, InsideEvidence]) -> Proof:
        raise NotProven("native: streams should share one priority, but report [0, 1]")


def test_mode_without_proof_is_an_error_and_never_measured(device: HostDevice) -> None:
    request = request_for(Failing("never"))
    record, failure = CellRunner(
        device, Unproven(parse_scheduler("native"), SchedulerPaths()), lambda *progress: None
    ).run(request)
    assert failure is not None
    assert (record.status, record.stage) == ("failed", "warm-up")
    assert record.reason.startswith("NotProven: native: streams should share one priority")
    assert record.scheduler_proof is None
    assert record.samples is None


def test_launches_of_the_measured_pass_are_counted(device: HostDevice) -> None:
    record, _ = run(device, request_for(Failing("never")))
    counters = record.counters
    assert counters is not None
    # Three iterations lead in; each launches once on each stream.
    assert counters.iterations == ITERATIONS + 3
    assert counters.launches == counters.iterations * record.cell.streams
    assert counters.kernels == counters.launches
    assert counters.per_1000_kernels == counters.per_1000_launches


def test_slow_garbage_collection_before_the_measured_window_is_not_counted(
    device: HostDevice,
) -> None:
    slow_s, collected = 0.5, []

    def slow(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            collected.append(info)
            began = time.thread_time()
            while time.thread_time() - began < slow_s:
                pass

    gc.callbacks.append(slow)
    try:
        record, _ = run(device, request_for(Failing("never")))
    finally:
        gc.callbacks.remove(slow)
    counters = record.counters
    assert collected
    assert counters is not None
    own = next(each for each in counters.threads if each.name == "enqueuing")
    if own.on_cpu_s is None:
        pytest.skip(counters.missing["on_cpu_s"])
    # CPU time of this thread alone: no load of the machine makes it longer.
    assert own.on_cpu_s < slow_s


def test_stages_are_reported_in_order(device: HostDevice) -> None:
    stages: list[str] = []
    counts: list[tuple[int, int]] = []

    def progress(stage: str, done: int, planned: int) -> None:
        stages.append(stage)
        counts.append((done, planned))

    CellRunner(device, open_scheduler("native"), progress).run(request_for(Failing("never")))
    assert list(dict.fromkeys(stages)) == list(STAGES)
    assert counts[stages.index("measure")] == (0, ITERATIONS)


def test_profile_is_a_trace_named_in_the_record(device: HostDevice, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "profiles"
    record, failure = run(device, request_for(Failing("never"), trace_folder=folder))
    assert failure is None
    (written,) = folder.iterdir()
    assert f"trace: {written}" in record.notes
    assert json.loads(written.read_text(encoding="utf-8"))["traceEvents"]


def test_profile_that_cannot_be_written_says_where_it_failed(
    device: HostDevice, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    record, failure = run(device, request_for(Failing("never"), trace_folder=tmp_path / "file"))
    assert failure is not None
    assert (record.status, record.stage) == ("failed", "timeline")
    assert record.samples is not None, "what was measured is kept"


class CountingReader:
    """A reader of telemetry that says whether it was closed."""

    missing: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        self.closed = 0

    def read(self) -> HostSample:
        return HostSample(0, None, None, None)

    def describe(self) -> str:
        return "counting"

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("stage", ["never", "measure"])
def test_reader_of_telemetry_is_closed(
    device: HostDevice, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    reader = CountingReader()
    monkeypatch.setattr(device, "open_telemetry", lambda: reader)
    run(device, request_for(Failing(stage)))
    assert reader.closed == 1


def test_iteration_without_kernels_costs_only_the_timeline(device: HostDevice) -> None:
    workload = FunctionWorkload(lambda streams: None, {"iterations": 1.0}, ())
    record, _ = run(device, request_for(workload, 1))
    assert record.status == "ok"
    assert "timeline" in record.metrics.refused


def test_reference_ratios_come_from_the_same_run(device: HostDevice) -> None:
    workload, parameters, make = registered("hetero_kernels")
    record, _ = run(device, request_for(workload, 2, parameters=parameters, make=make))
    assert record.samples is not None
    for ratio in workload.ratios:
        result = record.metrics.ratios[ratio.name]
        assert result.n == len(record.samples.tags_ns[ratio.tag])
        assert result.reference_n == len(record.samples.references_ns[ratio.reference])
        assert result.refused.keys() == {"p50", "p99"}, "three samples give no interval"
