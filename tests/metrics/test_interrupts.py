"""Interrupt time by type: nested interrupts count once."""

from __future__ import annotations

import pytest

from pytest_hwqueue.metrics.cpu_events import Interrupt, InterruptKind, interrupt_times


def interrupt(kind: InterruptKind, name: str, start: int, end: int, cpu: int = 0) -> Interrupt:
    return Interrupt(7, cpu, start, end, kind, 1, name)


def test_the_costliest_type_comes_first_with_its_share() -> None:
    times = interrupt_times(
        [
            interrupt("vector", "local_timer", 0, 3),
            interrupt("softirq", "RCU", 3, 10),
            interrupt("vector", "local_timer", 100, 102),
        ],
        run_ns=1000,
    )
    assert [(one.kind, one.name, one.number, one.time_ns) for one in times] == [
        ("softirq", "RCU", 1, 7),
        ("vector", "local_timer", 2, 5),
    ]
    assert times[0].share_of_run == 0.007


def test_what_interrupts_an_interrupt_is_taken_off_it() -> None:
    times = interrupt_times(
        [
            interrupt("softirq", "NET_RX", 0, 100),
            interrupt("hardirq", "disk", 10, 30),
            interrupt("vector", "local_timer", 40, 50),
            interrupt("softirq", "NET_RX", 20, 90, cpu=1),
        ],
        run_ns=200,
    )
    assert {one.name: one.time_ns for one in times} == {
        "NET_RX": 100 - 20 - 10 + 70,
        "disk": 20,
        "local_timer": 10,
    }
    # CPU 0's 100 ns and CPU 1's 70 ns, no moment counted twice.
    assert sum(one.time_ns for one in times) == 170


def test_nothing_interrupted() -> None:
    assert interrupt_times([], 10) == ()
    with pytest.raises(ValueError, match="longer than 0 ns"):
        interrupt_times([], 0)
