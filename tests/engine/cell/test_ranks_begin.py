"""How ranks begin an iteration together: at a time of their common clock, or behind a barrier."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_hwqueue.engine.cell import ranks as cell
from pytest_hwqueue.engine.cell.ranks import RankGroup, clock_in_use
from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.processes.launched import LaunchedRank


@pytest.fixture
def group() -> RankGroup:
    """A rank of two that has not joined the other one: collectives are planted."""
    launched = LaunchedRank(0, 2, 0, 2, "localhost", 1, store_exists=True)
    found = RankGroup(launched, HostDevice(), "test", 0, 10.0)
    found._control = None
    return found


class Clock:
    """Each look takes a microsecond; a sleep takes what it is asked for and a little more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 0
        self.slept: list[float] = []
        monkeypatch.setattr(time, "sleep", self.sleep)

    def __call__(self) -> int:
        self.now_ns += 1_000
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_ns += round(seconds * 1e9) + 60_000


def exchanging(
    clock: Clock, takes_ns: Iterator[int], others_ns: Iterator[int]
) -> Callable[..., None]:
    """An all-reduce to the maximum with another rank; it takes its time on this one."""

    def all_reduce(shared: torch.Tensor, op: Any, group: object) -> None:
        assert op == dist.ReduceOp.MAX
        shared.fill_(max(int(shared), next(others_ns)))
        clock.now_ns += next(takes_ns)

    return all_reduce


def test_ranks_begin_at_the_latest_time_that_any_proposes(
    group: RankGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    group._one_clock = True
    # Left behind the other's proposal, before it, and as the only one.
    reduced = exchanging(clock, iter([300_000] * 3), iter([900_000, 2_000_000, 0]))
    monkeypatch.setattr(dist, "all_reduce", reduced)
    assert group.begin(clock) == 900_000
    assert 900_000 <= clock.now_ns <= 902_000
    assert group.begin(clock) == 2_000_000
    assert 2_000_000 <= clock.now_ns <= 2_002_000
    own = clock.now_ns + cell._LEAD_NS + 1_000
    assert group.begin(clock) == own
    assert own <= clock.now_ns <= own + 2_000
    # The core is given away only while there is time.
    assert all(seconds > 0 for seconds in clock.slept)
    assert group._lead_ns == cell._LEAD_NS


def test_a_rank_that_comes_too_late_asks_for_longer_and_no_longer_than_that(
    group: RankGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    group._one_clock = True
    reduced = exchanging(clock, iter([100_000_000] * 9), iter([0] * 9))
    monkeypatch.setattr(dist, "all_reduce", reduced)
    asked = []
    for _ in range(9):
        agreed_ns = group.begin(clock)
        assert agreed_ns is not None
        # It goes on at once, and how late it was can be told.
        assert clock.now_ns - agreed_ns > 0
        asked.append(group._lead_ns)
    assert asked[:4] == [1_000_000, 2_000_000, 4_000_000, 8_000_000]
    assert asked[-1] == cell._LONGEST_LEAD_NS
    assert clock.slept == []


def test_ranks_without_a_common_clock_begin_behind_a_barrier(
    group: RankGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = []

    def barrier(group: object) -> None:
        met.append(group)

    monkeypatch.setattr(dist, "barrier", barrier)
    assert group.begin(lambda: 0) is None
    assert met == [None]


def test_a_clock_is_common_within_one_boot_and_time_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot, clock = tmp_path / "boot_id", tmp_path / "time"
    boot.write_text("a1\n")
    clock.symlink_to("time:[1]")
    monkeypatch.setattr(cell, "_BOOT", boot)
    monkeypatch.setattr(cell, "_CLOCK", clock)
    first = clock_in_use(0)
    assert first == clock_in_use(1)
    clock.unlink()
    clock.symlink_to("time:[2]")
    assert clock_in_use(1) != first
    boot.unlink()
    assert clock_in_use(0) != clock_in_use(1)
