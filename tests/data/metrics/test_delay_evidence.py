"""Evidence from events of the CPU and the device; interrupts by type, and pairs of launches."""

from __future__ import annotations

import math
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.metrics import attribution, cpu_events
from pytest_hwqueue.data.metrics.attribution import DeviceWork, Evidence
from pytest_hwqueue.data.metrics.cpu_events import LEAST_PAIRS, Interrupt, InterruptKind, OffCpu
from pytest_hwqueue.data.metrics.timeline import Kernel, Timeline

US = 1_000
STOPPED, WOKEN = "stopped by a signal", "had no CPU when it was woken"
BURN, IDLE = (99, "stress-ng-cpu"), (0, "swapper/0")


@pytest.mark.parametrize(
    ("off_cpu", "found"),
    [
        (OffCpu(1, 0, 0, 10, 30, "preempted", 10, *BURN), [(10, 30, "gave way to stress-ng-cpu")]),
        (OffCpu(1, 0, 0, 10, 30, "preempted", 10), [(10, 30, "gave way to another thread, whose "
                                                     "name is not visible at this level")]),
        (OffCpu(1, 0, 0, 10, 30, "preempted", 10, *BURN, 98, "fio"),
         [(10, 30, "gave way to stress-ng-cpu, then fio")]),
        (OffCpu(1, 0, 1, 10, 30, "preempted", 10, *BURN, 98, "fio"),
         [(10, 30, "gave way to stress-ng-cpu")]),
        (OffCpu(1, 0, 0, 10, 30, "stopped", None, *IDLE), [(10, 30, STOPPED)]),
        # It may go on, and lacks a CPU.
        (OffCpu(1, 0, 0, 10, 30, "stopped", 25, *IDLE, *BURN),
         [(10, 25, STOPPED), (25, 30, f"{WOKEN}: stress-ng-cpu ran on it")]),
        (OffCpu(1, 0, 0, 10, 30, "waited", 25), [(25, 30, WOKEN)]),
        (OffCpu(1, 0, 0, 10, 30, "waited", 25, *BURN, *IDLE),
         [(25, 30, f"{WOKEN}, though its core was idle")]),
        (OffCpu(1, 0, 0, 50, 60, "waited", None), []),
    ],
)  # fmt: skip
def test_a_thread_that_wants_the_cpu_is_without_it(
    off_cpu: OffCpu, found: list[tuple[int, int, str]]
) -> None:
    assert attribution.off_cpu_evidence([off_cpu]) == [
        Evidence("descheduled", *each) for each in found
    ]


def test_kernels_of_a_timeline_are_ready_when_nothing_of_their_own_holds_them_up() -> None:
    kernels = (
        Kernel(0, 0, "gemm", None, 5, 10, 30),
        Kernel(0, 1, "gemm", None, 8, 40, 50),
        Kernel(1, 2, "copy", None, 9, 60, 70, waits_for=(1,)),
    )
    assert attribution.device_work(Timeline(kernels, 2, None), "low", {0: 7, 1: 7}) == [
        DeviceWork("low", 0, "gemm", 5, 10, 30, 7, 5),
        DeviceWork("low", 0, "gemm", 30, 40, 50, 7, 8),
        DeviceWork("low", 1, "copy", 50, 60, 70, None, 9),
    ]


def test_a_kernel_is_queued_behind_those_that_ran_while_it_was_ready() -> None:
    work = [
        DeviceWork("high", 0, "gemm", 100, 150, 160, 1),
        DeviceWork("low", 7, "conv2d", 0, 50, 140, None),
        DeviceWork("high", 3, "copy", 0, 130, 145, None),
        # Its own stream's kernel, and one that ran before it was ready, do not hold it up.
        DeviceWork("high", 0, "gemm", 80, 80, 90, 0),
        DeviceWork("low", 7, "conv2d", 0, 10, 40, None),
    ]
    own = Evidence("queued", 130, 145, "its own copy on stream 3")
    behind = Evidence("queued", 100, 140, "low's conv2d on stream 7")
    for turns, queued in ((False, {behind, own}), (True, {own})):
        assert set(attribution.queued_evidence(work, "high", turns=turns)) == queued
    assert attribution.device_busy(work, "low") == [(0, 140)]


@pytest.mark.parametrize("other", ["best", "low"])
def test_a_kernel_slowed_by_another_tenant_owns_its_usual_time_only(other: str) -> None:
    work = [DeviceWork("high", 0, "gemm", at, at, at + 10, at) for at in (0, 100, 200, 300)]
    work.append(DeviceWork("high", 0, "gemm", 400, 400, 450, 400))
    work.append(DeviceWork(other, 7, "conv2d", 0, 405, 460, None))
    # A larger kernel of another name is own work.
    work.append(DeviceWork("high", 0, "big", 500, 500, 550, 500))
    assert attribution.queued_evidence(work, "high") == [
        Evidence("queued", 410, 450, f"{other}'s conv2d on stream 7")
    ]
    assert attribution.own_work_evidence(work, "high")[4:] == [
        Evidence("own work", 400, 410, "gemm", 400),
        Evidence("own work", 500, 550, "big", 500),
    ]


# Interrupts


def interrupt(kind: InterruptKind, name: str, start: int, end: int, cpu: int = 0) -> Interrupt:
    return Interrupt(7, cpu, start, end, kind, 1, name)


def test_interrupts_are_named_and_the_costliest_type_comes_first_with_its_share() -> None:
    interrupts = [
        interrupt("vector", "local_timer", 0, 3),
        interrupt("softirq", "RCU", 3, 10),
        interrupt("vector", "local_timer", 100, 102),
    ]
    times = cpu_events.interrupt_times(interrupts, run_ns=1000)
    assert times == (
        cpu_events.InterruptTime("softirq", "RCU", 1, 7, 0.007, max_ns=7, raised_by={}),
        cpu_events.InterruptTime("vector", "local_timer", 2, 5, 0.005, max_ns=3, raised_by={}),
    )
    assert [one.mean_ns for one in times] == [7, 2.5]
    named = Evidence("interrupted", 3, 10, "softirq RCU")
    assert attribution.interrupt_evidence(interrupts[1:2]) == [named]
    assert cpu_events.interrupt_times([], 10) == ()
    with pytest.raises(ValueError, match="longer than 0 ns"):
        cpu_events.interrupt_times([], 0)


def test_what_raised_soft_interrupts_is_counted_and_named() -> None:
    by = "hardirq eth0", "hardirq eth0", "a call of the thread", None
    interrupts = [
        Interrupt(7, 0, 10 * at, 10 * at + 5, "softirq", 3, "NET_RX", who)
        for at, who in enumerate(by)
    ]
    (found,) = cpu_events.interrupt_times(interrupts, run_ns=1000)
    assert found.number == 4
    assert found.raised_by == {"hardirq eth0": 2, "a call of the thread": 1}
    named = [one.what for one in attribution.interrupt_evidence(interrupts)]
    assert named[0] == "softirq NET_RX raised by hardirq eth0"
    assert named[3] == "softirq NET_RX"


def test_what_interrupts_an_interrupt_is_taken_off_it() -> None:
    interrupts = [
        interrupt("softirq", "NET_RX", 0, 100),
        interrupt("hardirq", "disk", 10, 30),
        interrupt("vector", "local_timer", 40, 50),
        interrupt("softirq", "NET_RX", 20, 90, cpu=1),
    ]
    # CPU 0's 100 ns and CPU 1's 70 ns, no moment counted twice.
    found = cpu_events.interrupt_times(interrupts, run_ns=200)
    assert {one.name: (one.time_ns, one.max_ns) for one in found} == {
        "NET_RX": (100 - 20 - 10 + 70, 70), "disk": (20, 20), "local_timer": (10, 10)
    }  # fmt: skip


# Pairs of launches

GAP_US, PENALTY_US = 4, 400


def planted(switched: set[int], seed: int = 0) -> cpu_events.LaunchPairs:
    """1000 launches with gaps of about 4 µs, and of 400 µs more after those in ``switched``."""
    drawn = np.random.default_rng(seed).normal(GAP_US * US, 100, 999)
    gaps = [round(gap) + PENALTY_US * US * (at in switched) for at, gap in enumerate(drawn)]
    at = list(accumulate(gaps, initial=10**15))
    return cpu_events.launch_pairs({1: at}, [
        OffCpu(1, 0, 0, at[each] + US, at[each] + PENALTY_US * US, "preempted") for each in switched
    ])  # fmt: skip


@given(st.sets(st.integers(0, 998), min_size=LEAST_PAIRS, max_size=40), st.integers(0, 99))
def test_planted_penalty(switched: set[int], seed: int) -> None:
    pairs = planted(switched, seed)
    assert (pairs.with_switch, pairs.without_switch) == (len(switched), 999 - len(switched))
    assert pairs.refused == {}
    penalty = pairs.penalty.difference
    assert penalty.value == pytest.approx(PENALTY_US, abs=1)
    assert -math.inf < penalty.low <= penalty <= penalty.high < math.inf
    lost_us = len(switched) * PENALTY_US
    assert pairs.lost_share == pytest.approx(lost_us / (lost_us + 999 * GAP_US), rel=0.02)
    # All gaps above P99, and most of those above P95, are planted.
    assert pairs.tails["p99"].value == 1.0
    share = pairs.tails["p95"]
    assert share * share.n == pytest.approx(min(len(switched), share.n))
    assert share.low < share


def test_either_side_has_the_percentiles_that_were_planted() -> None:
    # Gaps of 1, 2, … us in a random order, those up to 2000 with a switch, on two threads.
    gaps = np.random.default_rng(1).permutation(np.arange(1, 6001))
    launches = {}
    off_cpu = []
    for tid, own in ((1, gaps[:3000]), (2, gaps[3000:])):
        at = launches[tid] = list(accumulate((int(gap) * US for gap in own), initial=0))
        off_cpu += [
            OffCpu(tid, 0, 0, begin, begin + 1, "preempted")
            for begin, gap in zip(at, own, strict=False)
            if gap <= 2000
        ]
    pairs = cpu_events.launch_pairs(launches, off_cpu)
    sides = (pairs.gaps_with_switch, range(1, 2001)), (pairs.gaps_without_switch, range(2001, 6001))
    for side, planted_us in sides:
        assert [*side] == ["p90", "p99"]
        for name, quantile in (("p90", 0.9), ("p99", 0.99)):
            assert side[name].value == pytest.approx(np.quantile([*planted_us], quantile))
            assert side[name].unit == "us"
            assert side[name].low < side[name] < side[name].high
    few = planted(set(range(LEAST_PAIRS)))
    assert few.gaps_with_switch["p99"].refused == "has 20 pairs; 1000 independent ones suffice"
    assert few.gaps_without_switch["p90"] < 2 * GAP_US


def test_too_few_pairs_give_no_penalty() -> None:
    pairs = planted(set(range(LEAST_PAIRS - 1)))
    penalty = pairs.penalty.difference
    few = "needs at least 20 pairs with a switch, has 19 (1 missing)"
    assert (penalty.value, penalty.interval, penalty.refused) == (None, None, few)
    assert pairs.refused == {"penalty": few}
    assert pairs.lost_share is not None
    nothing = cpu_events.launch_pairs({}, [])
    assert (nothing.with_switch, nothing.without_switch, nothing.tails) == (0, 0, {})
    assert set(nothing.refused) == {"penalty", "lost_share", "p95", "p99"}
    with pytest.raises(ValueError, match="thread 5 do not ascend"):
        cpu_events.launch_pairs({5: [2, 1]}, [])


@pytest.mark.parametrize(
    ("launches", "switches", "pauses", "found"),
    [
        # For its own thread, and not before its first or after its last launch.
        ({1: [10, 20, 30, 40], 2: [10, 20]}, [(1, 15), (2, 25), (1, 5), (1, 40)], [], (1, 3)),
        # Two in a gap are one pair.
        ({1: [10, 20, 30]}, [(1, 12), (1, 14), (1, 20)], [], (2, 0)),
        # A pause parts launches of all threads, but one before all of them none.
        ({1: [0, 10, 100, 110], 2: [5, 105]}, [(1, 50), (1, 105)], [50, -5], (1, 1)),
    ],
)
def test_a_switch_counts_between_launches_that_are_a_pair(
    launches: dict[int, list[int]],
    switches: list[tuple[int, int]],
    pauses: list[int],
    found: tuple[int, int],
) -> None:
    off_cpu = [OffCpu(thread, 0, 0, at, at + 1, "preempted") for thread, at in switches]
    pairs = cpu_events.launch_pairs(launches, off_cpu, pauses)
    assert (pairs.with_switch, pairs.without_switch) == found
    if not pairs.without_switch:
        assert pairs.lost_share is None
        assert "pairs without a switch" in pairs.refused["lost_share"]
