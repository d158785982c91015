"""The workload `relay`, once its package is installed: `pytest tests/test_relay.py`."""

from __future__ import annotations

import pytest

from pytest_hwqueue import Hwq


@pytest.mark.hwq_workload("relay")
def test_relay(hwq: Hwq, hwq_streams: int) -> None:
    """The result is checked, where there are values; a handover leads to each stream but one."""
    record = hwq.run()
    assert record.work_per_iteration == {"handovers": hwq_streams - 1}
    # Loose, so that every machine passes. Choose your own bound, or compare with a baseline.
    record.assert_p99("1 s")
