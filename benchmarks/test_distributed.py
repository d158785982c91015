"""Training."""

from __future__ import annotations

import pytest

from pytest_hwqueue.measurement import Hwq

pytestmark = pytest.mark.distributed


@pytest.mark.P2
@pytest.mark.hwq_workload("activation_ckpt")
def test_activation_ckpt(hwq: Hwq) -> None:
    """Recomputation beside the backward of the segment before."""
    hwq.run()
