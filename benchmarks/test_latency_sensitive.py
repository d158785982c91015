"""The hardware queues themselves. What each workload does stands in its own module."""

from __future__ import annotations

import pytest

from pytest_hwqueue import Hwq

pytestmark = pytest.mark.latency_sensitive


@pytest.mark.P0
@pytest.mark.hwq_workload("hetero_kernels")
def test_hetero_kernels(hwq: Hwq) -> None:
    """Small kernels that arrive while large matrix products run: the convoy."""
    hwq.run()


@pytest.mark.P0
@pytest.mark.hwq_workload("tiny_kernel_stress")
def test_tiny_kernel_stress(hwq: Hwq) -> None:
    """As many tiny kernels as the launch path takes."""
    hwq.run()


@pytest.mark.P1
@pytest.mark.hwq_workload("launch_contention")
def test_launch_contention(hwq: Hwq) -> None:
    """Launching calls from a thread for each stream at once."""
    hwq.run()


@pytest.mark.P0
@pytest.mark.hwq_workload("large_gemm_only")
def test_large_gemm_only(hwq: Hwq) -> None:
    """One large matrix product per stream."""
    hwq.run()


@pytest.mark.P2
@pytest.mark.hwq_workload("graph_subgraphs")
def test_graph_subgraphs(hwq: Hwq) -> None:
    """Independent networks on streams of their own, joined at the end."""
    hwq.run()


@pytest.mark.P2
@pytest.mark.hwq_workload("occupy")
def test_occupy(hwq: Hwq) -> None:
    """Kernels of a given length, blocks and number on each stream."""
    hwq.run()


@pytest.mark.P2
@pytest.mark.hwq_workload("stress")
def test_stress(hwq: Hwq) -> None:
    """One resource of the device at its limit."""
    hwq.run()
