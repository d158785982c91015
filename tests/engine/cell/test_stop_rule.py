"""When a loop ends: by its turns, the device's time, and, simulated, the wall's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.engine.cell.stop_rule import StopRule
from pytest_hwqueue.parts.devices.protocol import Device

WHOLE = st.integers(1, 10**15)


@given(WHOLE, WHOLE, st.integers(0, 10**12))
def test_what_fits_is_never_more_than_either_allows_and_one_at_least(
    turns: int, time_ns: int, turn_ns: int
) -> None:
    fitting = StopRule(turns, time_ns).fitting(turn_ns)
    assert 1 <= fitting <= turns
    assert fitting == 1 or fitting * turn_ns <= time_ns
    more = fitting + 1
    assert more > turns or more * max(1, turn_ns) > time_ns


@given(WHOLE, WHOLE, WHOLE)
def test_a_part_has_no_more_time_and_is_simulated_for_as_long(
    turns: int, time_ns: int, part_ns: int
) -> None:
    part = StopRule(turns, time_ns).within(part_ns)
    assert (part.turns, part.time_ns, part.wall_ns) == (turns, min(time_ns, part_ns), time_ns)


@pytest.mark.parametrize("virtual", [False, True])
def test_only_what_is_simulated_has_a_wall_to_reach(virtual: bool) -> None:
    capabilities = SimpleNamespace(virtual_time=virtual)
    device = cast(Device, SimpleNamespace(clock_ns=lambda: 1000, capabilities=capabilities))
    for wall_ns, late in ((0, virtual), (10**18, False)):
        rule = StopRule(5, 50, wall_ns)
        stopping = rule.begin(device)
        assert [stopping.time_is_up(at) for at in (1049, 1050)] == [False, True]
        assert stopping.simulated_too_long() == late
    rule = StopRule(5, 50, 70)
    assert rule.time_cap == "time cap of 5e-08 s"
    assert "wall-time cap of 7e-08 s, after 2 of 5 iterations" in rule.wall_cap(2, 5)
