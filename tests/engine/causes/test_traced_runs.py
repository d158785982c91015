"""What becomes of a run that is to explain a verdict, and the names that kernels get."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.data.metrics.timeline import Kernel, KernelShape, Timeline
from pytest_hwqueue.data.records.cell import RunRecord, Samples
from pytest_hwqueue.data.records.kinds import capabilities_of
from pytest_hwqueue.data.records.noise import Causes, causes_line
from pytest_hwqueue.data.records.tracing import Refusal
from pytest_hwqueue.engine.causes import traced_cell
from pytest_hwqueue.engine.causes.seen import kernel_label
from pytest_hwqueue.engine.causes.traced_pass import TracePlan, _enough
from pytest_hwqueue.engine.cell.cell import CellDraft, Passes
from pytest_hwqueue.options.options import Settings
from pytest_hwqueue.parts.devices.host import HostPool
from pytest_hwqueue.parts.devices.launches import PICTURES
from pytest_hwqueue.parts.workloads.own_function import FunctionWorkload, on_every_stream
from pytest_hwqueue.plugin.cells import trace_plan
from pytest_hwqueue.plugin.session import attach_records
from pytest_hwqueue.plugin.traced_runs import lines_of
from tests.conftest import MakeRecord
from tests.parts.devices.pooling import Pooling

from .traced import measured

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
    refused = dict.fromkeys(("p95", "p99"), "has 9 requests; 350 independent ones suffice")
    causes = Causes(
        level="perf", refused_levels=[Refusal("perf", 13, "no right")], requests=9, lost=0,
        clock_offset_ns=None, clock_uncertainty_ns=None, tails={}, refused=refused, limits=[],
        launch_pairs=None, interrupts=None,
    )  # fmt: skip
    record = make_record(causes=causes)
    # A test that fails after measuring is no loss.
    for one in (report(record=record), report("E  assert 2 < 1", record)):
        assert lines_of([record.cell_id], [one]) == {
            record.cell_id: f"{UNKNOWN}in a traced run of its own (9 requests, level perf), "
            "has 9 requests; 350 independent ones suffice"
        }
    assert causes_line(causes).startswith(UNKNOWN)


@pytest.mark.parametrize(("changed", "asked", "says"), [
    ({"status": "failed", "reason": "ran out of memory"}, None, "ran out of memory"),
    ({}, None, "the traced run failed: the last line"),
    ({}, "moe[cpu-s1-native-eager]", "the traced run measured another cell"),
])  # fmt: skip
def test_a_run_without_causes_says_why(
    make_record: MakeRecord, changed: dict[str, Any], asked: str | None, says: str
) -> None:
    record = make_record(**changed)
    cell_id = asked or record.cell_id
    reports = [report(None if asked else "first\nthe last line", record)]
    assert lines_of([cell_id], reports) == {cell_id: UNKNOWN + says}


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


def test_a_pass_that_cannot_be_traced_costs_only_itself() -> None:
    class Untraced(HostPool):
        def timeline(self, enqueue: Callable[[], None]) -> Timeline:
            raise DeviceError("no right to trace")

    device = Pooling(Untraced)
    workload = FunctionWorkload(on_every_stream(device.kernel_of(10_000)), {"iterations": 1.0}, ())
    find_causes = partial(traced_cell.find_causes, TracePlan(100, 5_000_000_000))
    record, failure = measured(device, workload, find_causes, iterations=3)
    assert (record.status, failure, record.iterations) == ("ok", None, 3)
    assert record.causes is None
    assert record.metrics.refused["causes"] == "no right to trace"
    found = lines_of([record.cell_id], [report(record=record)])
    assert found[record.cell_id] == UNKNOWN + "no right to trace"


@pytest.mark.parametrize(("measured_s", "at_first_s", "at_most_s"), [
    (0.1, 1.0, 1.0), (3.0, 3.0, 3.0), (12.0, 5.0, 12.0), (60.0, 5.0, 20.0),
])  # fmt: skip
def test_beside_a_measured_pass_the_traced_one_is_no_longer(
    measured_s: float, at_first_s: float, at_most_s: float
) -> None:
    measured = Samples(host_ns=[round(measured_s * 1e8)] * 10, device_ns=[], enqueue_ns=[],
                       pace_ns=[])  # fmt: skip
    request = SimpleNamespace(workload=SimpleNamespace(gradients=False), passes=Passes())
    cell: Any = SimpleNamespace(
        request=request, device=SimpleNamespace(capabilities=capabilities_of("cpu")),
        draft=CellDraft("causes", samples=measured),
    )  # fmt: skip
    beside = traced_cell.plan_for(cell, TracePlan(500, 5_000_000_000))
    request.passes = Passes(only_traced=True)
    alone = traced_cell.plan_for(cell, TracePlan(500, 5_000_000_000))
    assert alone == TracePlan(500, 5_000_000_000)
    at_first, at_most = round(at_first_s * 1e9), round(at_most_s * 1e9)
    # P99 needs 368: with more it ends at first, with one fewer where that one would be too late.
    for done, ends_ns in ((369, at_first), (367, max(at_first, -(-at_most * 367 // 368)))):
        assert [_enough(done, ends_ns + ns, beside) for ns in (-1, 0)] == [False, True]


@pytest.mark.parametrize(("causes", "iterations", "only", "pictures", "expected"), [
    ("failing", 1000, False, None, None),
    ("never", 1000, False, None, None),
    # Below four times 5 s of measuring a pass is no shorter.
    ("always", 100, False, None, TracePlan(368, 5_000_000_000)),
    ("always", 5000, False, None, TracePlan(1000, 5_000_000_000)),
    ("failing", 500, True, None, TracePlan(500, 5_000_000_000)),
    ("never", 20, False, "1", TracePlan(20, 30_000_000_000, folder=Path("pictures"))),
    ("never", 20, False, "csv", TracePlan(20, 30_000_000_000, folder=Path("pictures"), csv=True)),
])  # fmt: skip
def test_how_many_requests_are_traced_and_drawn(
    monkeypatch: pytest.MonkeyPatch, causes: str, iterations: int, only: bool,
    pictures: str | None, expected: TracePlan | None,
) -> None:  # fmt: skip
    monkeypatch.delenv(PICTURES, raising=False)
    settings = SimpleNamespace(
        causes=causes, iterations=iterations, max_time=120.0 if pictures else 1.0,
        profile_dir=Path("pictures"),
    )  # fmt: skip
    if pictures:
        monkeypatch.setenv(PICTURES, pictures)
    assert trace_plan(cast(Settings, settings), only) == expected
