"""What becomes of a run that is to explain a verdict, and the names that kernels get."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_hwqueue.causes import traced_cell
from pytest_hwqueue.causes.seen import kernel_label
from pytest_hwqueue.causes.traced_pass import TracePlan
from pytest_hwqueue.devices.launches import PICTURES
from pytest_hwqueue.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.errors import DeviceError
from pytest_hwqueue.harness.cell import CellRequest
from pytest_hwqueue.harness.closed_loop import LoopPlan
from pytest_hwqueue.harness.runner import CellRunner
from pytest_hwqueue.metrics.attribution import Attribution
from pytest_hwqueue.metrics.timeline import Kernel, KernelShape
from pytest_hwqueue.plugin.cells import trace_plan
from pytest_hwqueue.plugin.session import attach_records
from pytest_hwqueue.plugin.session_reports import lines_of
from pytest_hwqueue.records.cell import Cell, RunRecord
from pytest_hwqueue.records.noise import Provenance, TracedWith, causes_line, describe_causes
from pytest_hwqueue.schedulers.syntax import open_scheduler
from pytest_hwqueue.settings.options import Settings
from pytest_hwqueue.tracing.perf_events import Refusal
from pytest_hwqueue.workloads.own_function import FunctionWorkload, on_every_stream

from ..conftest import MakeRecord

UNKNOWN = "causes of the slowest requests are not known: "


def report(longrepr: str | None = None, record: RunRecord | None = None) -> pytest.TestReport:
    """A report of the call, as a worker gives it."""
    made = pytest.TestReport(
        nodeid="file.py::test", location=("file.py", 1, "test"), keywords={},
        outcome="failed" if longrepr else "passed", longrepr=longrepr, when="call",
    )  # fmt: skip
    attach_records(made, [] if record is None else [{"record": record.model_dump(mode="json")}])
    return made


def test_a_run_says_the_causes_that_it_has_found(make_record: MakeRecord) -> None:
    refused = dict.fromkeys(("p95", "p99"), "needs at least 72 requests, has 9 (63 missing)")
    traced = TracedWith("perf", (Refusal("perf", 13, "no right"),), 0)
    causes = describe_causes(Attribution({}, refused), 9, traced)
    record = make_record(causes=causes)
    assert lines_of([record.cell_id], [report(record=record)]) == {
        record.cell_id: f"{UNKNOWN}in a traced run of its own (9 requests, level perf), "
        "needs at least 72 requests, has 9 (63 missing)"
    }
    assert causes_line(causes).startswith(UNKNOWN)


def test_a_test_that_fails_after_measuring_is_no_loss(make_record: MakeRecord) -> None:
    traced = TracedWith("none", (), None)
    record = make_record(causes=describe_causes(Attribution({}, {}), 1, traced))
    found = lines_of([record.cell_id], [report("E  assert 2 < 1", record)])
    assert "1 requests, level none" in found[record.cell_id]


@pytest.mark.parametrize(("changed", "says"), [
    ({"status": "failed", "reason": "ran out of memory"}, "ran out of memory"),
    ({}, "the traced run failed: the last line"),
])  # fmt: skip
def test_a_run_without_causes_says_why(
    make_record: MakeRecord, changed: dict[str, Any], says: str
) -> None:
    record = make_record(**changed)
    reports = [report("first\nthe last line", record)]
    assert lines_of([record.cell_id], reports) == {record.cell_id: UNKNOWN + says}


def test_a_run_of_another_cell_says_so(make_record: MakeRecord) -> None:
    found = lines_of(["moe[cpu-s1-native-eager]"], [report(record=make_record())])
    assert found["moe[cpu-s1-native-eager]"] == UNKNOWN + "the traced run measured another cell"


@pytest.mark.parametrize(("name", "tag", "shape", "label"), [
    ("void at::native::vectorized_elementwise_kernel<4, F<float> >(int, F<float>)", None, None,
     "vectorized_elementwise_kernel"),
    ("at::cuda::(anonymous namespace)::spin_kernel(long)", None,
     KernelShape((2, 3, 1), (32, 1, 1)), "spin_kernel 2x3x1"),
    ("Memcpy HtoD (Pinned -> Device)", "copy", None, "copy Memcpy HtoD"),
    ("sm90_xmma_gemm_f32", "large", KernelShape((132, 1, 1), (256, 1, 1)),
     "large sm90_xmma_gemm_f32 132x1x1"),
    ("small", "small", None, "small"),
])  # fmt: skip
def test_kernels_are_called_by_tag_function_and_grid(
    name: str, tag: str | None, shape: KernelShape | None, label: str
) -> None:
    assert kernel_label(Kernel(0, 0, name, tag, 0, 1, 2, shape=shape)) == label


def test_a_pass_that_cannot_be_traced_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise DeviceError("no right to trace")

    monkeypatch.setattr(traced_cell, "traced_pass", refuse)
    cell = Cell(
        name="function", device="sim:h200", streams=1, scheduler="native", dispatch="eager",
        sync_mode="per_iteration", size=None,
    )  # fmt: skip
    device = SimulatedDevice("h200")
    workload = FunctionWorkload(on_every_stream(device.kernel_of(10_000)), {"iterations": 1.0}, ())
    request = CellRequest(
        cell=cell, workload=workload, make_workload=None, urgency=[0], nodeid="file.py::test",
        family=None, mark=None, plan=LoopPlan(3, 1, 1_000_000_000, "per_iteration"), seed=0,
        command="pytest", provenance=Provenance(), trace_folder=None,
        find_causes=partial(traced_cell.find_causes, TracePlan(100, 5_000_000_000)),
    )  # fmt: skip
    record, failure = CellRunner(device, open_scheduler("native"), lambda *_: None).run(request)
    assert (record.status, failure, record.iterations) == ("ok", None, 3)
    assert record.causes is None
    assert record.metrics.refused["causes"] == "no right to trace"
    found = lines_of([record.cell_id], [report(record=record)])
    assert found[record.cell_id] == UNKNOWN + "no right to trace"


@pytest.mark.parametrize(("causes", "iterations", "only", "requests"), [
    ("failing", 1000, False, None),
    ("never", 1000, False, None),
    ("always", 100, False, 368),
    ("always", 5000, False, 1000),
    ("failing", 500, True, 500),
])  # fmt: skip
def test_how_many_requests_are_traced(
    monkeypatch: pytest.MonkeyPatch, causes: str, iterations: int, only: bool, requests: int | None
) -> None:
    monkeypatch.delenv(PICTURES, raising=False)
    settings = cast(Settings, SimpleNamespace(causes=causes, iterations=iterations, max_time=1.0))
    plan = trace_plan(settings, only)
    assert (None if plan is None else plan.requests) == requests
    # Below four times 5 s of measuring a pass is no shorter.
    assert plan is None or plan.max_time_ns == 5_000_000_000


def test_a_picture_has_as_many_as_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SimpleNamespace(
        causes="never", iterations=20, max_time=120.0, profile_dir=Path("pictures")
    )
    for value, csv in (("1", False), ("csv", True)):
        monkeypatch.setenv(PICTURES, value)
        plan = trace_plan(cast(Settings, settings), False)
        assert plan == TracePlan(20, 30_000_000_000, folder=Path("pictures"), csv=csv)
