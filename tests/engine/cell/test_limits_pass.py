"""The limits pass: a cell that is bounded by a limit of its device says by which, and how near."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.records.cell import Cell, RunRecord
from pytest_hwqueue.data.records.provenance import Provenance
from pytest_hwqueue.engine.cell.cell import CellOrigin, CellRequest
from pytest_hwqueue.engine.cell.closed_loop import Plan
from pytest_hwqueue.engine.cell.ranks import measure_alone
from pytest_hwqueue.engine.cell.runner import CellRunner
from pytest_hwqueue.engine.cell.stop_rule import StopRule
from pytest_hwqueue.parts.devices.kinds import open_device
from pytest_hwqueue.parts.schedulers.syntax import open_scheduler
from pytest_hwqueue.parts.workloads.registry import workload_class
from pytest_hwqueue.parts.workloads.workload import parameters_for

SIMULATED = "sim:h200"


def measured(name: str, streams: int, device: str = SIMULATED, **changed: Any) -> RunRecord:
    """Return the record of a workload, in graphs where the device has them."""
    found = workload_class(name)
    values = parameters_for(found, "full" if device == SIMULATED else "tiny", changed)
    cell = Cell(
        name=name, device=device, streams=streams, scheduler="native", sync_mode="per_iteration",
        dispatch="graph" if device == SIMULATED else "eager", size="full",
        parameters=values.model_dump(),
    )  # fmt: skip
    request = CellRequest(
        cell=cell, workload=found(values), make_workload=None, urgency=[0] * streams,
        plan=Plan(StopRule(60, 10_000_000_000), 3, "per_iteration"), seed=0,
        origin=CellOrigin("file.py::test", found.family, found.mark, "pytest", Provenance()),
    )  # fmt: skip
    runner = CellRunner(open_device(device), open_scheduler("native"), lambda *progress: None)
    record, _ = measure_alone(runner, request)
    assert (record.status, record.reason) == ("ok", "")
    return record


def test_products_that_fill_a_device_are_at_the_limit_of_its_matrix_units() -> None:
    metrics = measured("large_gemm_only", 1, mm_dim=8192).metrics
    nearest = metrics.nearest_limit
    assert nearest is not None
    assert nearest.limit == "matrix fp32"
    assert 0.97 < nearest.share <= 1
    assert {each.limit for each in metrics.limits} == {"front end", "matrix fp32"}


def test_kernels_are_counted_against_the_front_end() -> None:
    metrics = measured("tiny_kernel_stress", 4).metrics
    (found,) = metrics.limits
    (kernels_per_s,) = metrics.throughput
    assert found.limit == "front end"
    # The model starts a graph's kernel every 180 ns, and the workload says how many it launches.
    assert float(found.share) == pytest.approx(float(kernels_per_s) * 180e-9)
    assert found.share < 0.5


def test_the_cpu_has_no_limits_of_its_own() -> None:
    assert measured("tiny_kernel_stress", 2, "cpu").metrics.limits == []


def test_a_limit_that_cannot_be_measured_costs_the_cell_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(device: object, name: str) -> Estimate:
        raise RuntimeError("why")

    monkeypatch.setattr("pytest_hwqueue.engine.cell.limits_pass.device_limit", fail)
    metrics = measured("tiny_kernel_stress", 1).metrics
    assert metrics.limits == []
    assert metrics.refused["share of front end"] == "RuntimeError: why"
