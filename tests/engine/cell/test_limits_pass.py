"""The limits pass: a cell that is bounded by a limit of its device says by which, and how near."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.records.cell import Metrics
from pytest_hwqueue.parts.devices.kinds import open_device
from pytest_hwqueue.parts.workloads.registry import workload_class
from tests.parts.workloads.cells import measured


def metrics_of(name: str, streams: int, **given: Any) -> Metrics:
    """Return the figures of a workload in graphs on a simulated H200."""
    device = open_device("sim:h200")
    record = measured(workload_class(name), streams, device, given, dispatch="graph")
    assert (record.status, record.reason) == ("ok", "")
    return record.metrics


def test_products_that_fill_a_device_are_at_the_limit_of_its_matrix_units() -> None:
    metrics = metrics_of("large_gemm_only", 1, mm_dim=8192)
    nearest = metrics.nearest_limit
    assert nearest is not None
    assert nearest.limit == "matrix fp32"
    assert 0.97 < nearest.share <= 1
    assert {each.limit for each in metrics.limits} == {"front end", "matrix fp32"}


def test_kernels_are_counted_against_the_front_end() -> None:
    metrics = metrics_of("tiny_kernel_stress", 4)
    (found,) = metrics.limits
    (kernels_per_s,) = metrics.throughput
    assert found.limit == "front end"
    # The model starts a graph's kernel every 180 ns, and the workload says how many it launches.
    assert float(found.share) == pytest.approx(float(kernels_per_s) * 180e-9)
    assert found.share < 0.5


def test_the_cpu_has_no_limits_of_its_own() -> None:
    assert measured(workload_class("tiny_kernel_stress"), 2).metrics.limits == []


def test_a_limit_that_cannot_be_measured_costs_the_cell_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(device: object, name: str) -> Estimate:
        raise RuntimeError("why")

    monkeypatch.setattr("pytest_hwqueue.engine.cell.limits_pass.device_limit", fail)
    metrics = metrics_of("tiny_kernel_stress", 1)
    assert metrics.limits == []
    assert metrics.refused["share of front end"] == "RuntimeError: why"
