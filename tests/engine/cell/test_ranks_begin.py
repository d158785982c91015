"""How ranks begin an iteration together: at a time of their common clock, or behind a barrier."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path

from pytest_hwqueue.engine.cell.ranks import (
    LEAD_NS,
    LONGEST_LEAD_NS,
    AgreedBegin,
    RankGroup,
    clock_in_use,
)
from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.processes.launched import LaunchedRank


class Clock:
    """Each look takes a microsecond; a sleep takes what it is asked for and a little more."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.slept: list[float] = []

    def __call__(self) -> int:
        self.now_ns += 1_000
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_ns += round(seconds * 1e9) + 60_000


def exchanging(clock: Clock, takes_ns: int, others_ns: Iterator[int]) -> Callable[[int], int]:
    """An exchange with another rank; it takes its time on this one."""

    def latest(proposed_ns: int) -> int:
        clock.now_ns += takes_ns
        return max(proposed_ns, next(others_ns))

    return latest


def test_ranks_begin_at_the_latest_time_that_any_proposes() -> None:
    clock = Clock()
    # Left behind the other's proposal, before it, and as the only one.
    latest = exchanging(clock, 300_000, iter([900_000, 2_000_000, 0]))
    agreed = AgreedBegin(latest, clock.sleep)
    assert agreed.wait(clock) == 900_000
    assert 900_000 <= clock.now_ns <= 902_000
    assert agreed.wait(clock) == 2_000_000
    assert 2_000_000 <= clock.now_ns <= 2_002_000
    own = clock.now_ns + LEAD_NS + 1_000
    assert agreed.wait(clock) == own
    assert own <= clock.now_ns <= own + 2_000
    # The core is given away only while there is time.
    assert all(seconds > 0 for seconds in clock.slept)
    assert agreed.lead_ns == LEAD_NS


def test_a_rank_that_comes_too_late_asks_for_longer_and_no_longer_than_that() -> None:
    clock = Clock()
    agreed = AgreedBegin(exchanging(clock, 100_000_000, repeat(0)), clock.sleep)
    asked = []
    for _ in range(9):
        agreed_ns = agreed.wait(clock)
        # It goes on at once, and how late it was can be told.
        assert clock.now_ns - agreed_ns > 0
        asked.append(agreed.lead_ns)
    assert asked[:4] == [1_000_000, 2_000_000, 4_000_000, 8_000_000]
    assert asked[-1] == LONGEST_LEAD_NS
    assert clock.slept == []


def test_ranks_without_a_common_clock_begin_behind_a_barrier() -> None:
    met = []

    class Group(RankGroup):
        def barrier(self) -> None:
            met.append(self.ranks.rank)

    launched = LaunchedRank(0, 2, 0, 2, "localhost", 1, store_exists=True)
    assert Group(launched, HostDevice(), "test", 0, 10.0).begin(lambda: 0) is None
    assert met == [0]


def test_a_clock_is_common_within_one_boot_and_time_namespace(tmp_path: Path) -> None:
    boot, clock = tmp_path / "sys/kernel/random/boot_id", tmp_path / "self/ns/time"
    for file in (boot, clock):
        file.parent.mkdir(parents=True)
    boot.write_text("a1\n")
    clock.symlink_to("time:[1]")
    first = clock_in_use(0, tmp_path)
    assert first == clock_in_use(1, tmp_path)
    clock.unlink()
    clock.symlink_to("time:[2]")
    assert clock_in_use(1, tmp_path) != first
    boot.unlink()
    assert clock_in_use(0, tmp_path) != clock_in_use(1, tmp_path)
