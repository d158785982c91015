"""Launch pairs: planted switches are found in their gaps, and too few give no penalty."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.metrics.cpu_events import LEAST_PAIRS, LaunchPairs, OffCpu, launch_pairs

US = 1_000
GAP_US, PENALTY_US = 4, 400


def planted(launches: int, switched: set[int], seed: int = 0) -> LaunchPairs:
    """Gaps of about 4 µs, and of 400 µs more after the launches in ``switched``."""
    generator = np.random.default_rng(seed)
    gaps = [round(gap) for gap in generator.normal(GAP_US * US, 100, launches - 1)]
    gaps = [gap + PENALTY_US * US * (index in switched) for index, gap in enumerate(gaps)]
    at = list(accumulate(gaps, initial=10**15))
    off_cpu = [
        OffCpu(1, 0, 0, at[index] + US, at[index] + PENALTY_US * US, "preempted")
        for index in switched
    ]
    return launch_pairs({1: at}, off_cpu)


@given(st.sets(st.integers(0, 998), min_size=LEAST_PAIRS, max_size=40), st.integers(0, 99))
def test_planted_penalty(switched: set[int], seed: int) -> None:
    pairs = planted(1000, switched, seed)
    assert (pairs.with_switch, pairs.without_switch) == (len(switched), 999 - len(switched))
    assert pairs.refused == {}
    assert pairs.penalty.difference == pytest.approx(PENALTY_US, abs=1)
    assert pairs.penalty.difference is not None
    assert pairs.penalty.interval is not None
    low, high = pairs.penalty.interval
    assert low <= pairs.penalty.difference <= high
    lost_us = len(switched) * PENALTY_US
    assert pairs.lost_share == pytest.approx(lost_us / (lost_us + 999 * GAP_US), rel=0.02)
    # All gaps above P99, and most of those above P95, are planted.
    assert pairs.tails["p99"].share == 1.0
    assert pairs.tails["p95"].number == min(len(switched), pairs.tails["p95"].n)
    assert pairs.tails["p95"].interval[0] < pairs.tails["p95"].share


def test_too_few_pairs_give_no_penalty() -> None:
    pairs = planted(1000, set(range(LEAST_PAIRS - 1)))
    assert pairs.penalty.difference is None
    assert pairs.penalty.interval is None
    assert pairs.refused == {"penalty": "needs at least 20 pairs with a switch, has 19 (1 missing)"}
    assert pairs.penalty.refused["difference"] == pairs.refused["penalty"]
    assert pairs.lost_share is not None


def test_a_switch_counts_for_its_own_thread_and_between_its_own_launches() -> None:
    off_cpu = [
        OffCpu(1, 0, 0, 15, 18, "waited"),
        OffCpu(2, 0, 0, 25, 28, "preempted"),
        # Before the first and after the last launch.
        OffCpu(1, 0, 0, 5, 6, "preempted"),
        OffCpu(1, 0, 0, 40, 41, "preempted"),
    ]
    pairs = launch_pairs({1: [10, 20, 30, 40], 2: [10, 20]}, off_cpu)
    assert (pairs.with_switch, pairs.without_switch) == (1, 3)


def test_two_switches_in_a_gap_are_one_pair() -> None:
    off_cpu = [OffCpu(1, 0, 0, at, at + 1, "preempted") for at in (12, 14, 20)]
    pairs = launch_pairs({1: [10, 20, 30]}, off_cpu)
    assert (pairs.with_switch, pairs.without_switch) == (2, 0)
    assert pairs.lost_share is None
    assert "pairs without a switch" in pairs.refused["lost_share"]


def test_nothing_launched() -> None:
    pairs = launch_pairs({}, [])
    assert (pairs.with_switch, pairs.without_switch, pairs.tails) == (0, 0, {})
    assert set(pairs.refused) == {"penalty", "lost_share", "p95", "p99"}


def test_launches_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="thread 5 do not ascend"):
        launch_pairs({5: [2, 1]}, [])


def test_launches_around_a_pause_are_no_pair() -> None:
    launches = {1: [0, 10, 100, 110], 2: [5, 105]}
    # Of both threads there is a launch on either side of it; one before all of them parts none.
    switches = [OffCpu(1, 0, 0, at, at + 1, "preempted") for at in (50, 105)]
    pairs = launch_pairs(launches, switches, [50, -5])
    assert (pairs.with_switch, pairs.without_switch) == (1, 1)
