"""The experiment with shared queues finds the model's: the ninth of eight waits, and for what."""

from __future__ import annotations

import pytest

from pytest_hwqueue.parts.devices.kinds import open_device
from tools.shared_queues import waits_us

BLOCKED = ("a kernel, and one behind it", "a kernel, and a timing event", "a kernel, and a graph")
LONG_US = 2000


def test_a_stream_waits_for_a_queue_whose_head_cannot_start() -> None:
    one, seven, eight, nine, fifteen, *more = range(8)
    found = waits_us(open_device("sim:h200"))

    assert max(found["a kernel"]) < LONG_US / 10
    for load in BLOCKED:
        row = found[load]
        assert max(row[one], row[seven]) < LONG_US / 10, load
        # One of its queue, then two, three and four, each with a kernel of 2 ms.
        for place in (eight, nine, fifteen):
            assert row[place] == pytest.approx(LONG_US, rel=0.15), load
        for waited_for, place in enumerate(more, 2):
            assert row[place] == pytest.approx(waited_for * LONG_US, rel=0.15), load
