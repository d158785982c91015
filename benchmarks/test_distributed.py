"""Training, on one rank or several."""

from __future__ import annotations

import pytest

from pytest_hwqueue import Hwq

pytestmark = pytest.mark.distributed


@pytest.mark.P1
@pytest.mark.hwq_workload("comms_compute_overlap")
def test_comms_compute_overlap(hwq: Hwq) -> None:
    """Collectives alongside matrix products, each alone, and how much was hidden."""
    hwq.run()


@pytest.mark.P2
@pytest.mark.hwq_workload("activation_ckpt")
def test_activation_ckpt(hwq: Hwq) -> None:
    """Recomputation alongside the next segment's backward."""
    hwq.run()


@pytest.mark.P2
@pytest.mark.hwq_workload("grad_accum")
def test_grad_accum(hwq: Hwq) -> None:
    """Gradients of microbatches reduced in buckets while later microbatches run."""
    hwq.run()


@pytest.mark.P1
@pytest.mark.hwq_workload("moe")
def test_moe(hwq: Hwq) -> None:
    """Tokens that a gate sends to experts on streams of their own."""
    hwq.run()


@pytest.mark.P1
@pytest.mark.hwq_workload("fsdp_tp")
def test_fsdp_tp(hwq: Hwq) -> None:
    """Training steps whose blocks are gathered and reduced alongside the computation."""
    hwq.run()
