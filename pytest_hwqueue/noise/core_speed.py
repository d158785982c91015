"""Measures how much work a core does per second of a thread's CPU time.

A thread that is switched out or waits for a core gets less CPU time. A core that shares its
hardware (hyperthreads, caches, clocks, a hypervisor's other guests) does less in the same CPU time,
which no kernel counter shows. So a fixed loop is timed against CPU time.
"""

from __future__ import annotations

import time

_ROUNDS = 1000
_CPU_TIME_NS = 100_000_000
_NS_PER_S = 1e9


def core_speed() -> float:
    """Return rounds of a fixed loop per second of this thread's CPU time.

    The loop runs in the interpreter, as launching from Python does, and takes 0.1 s of CPU time.
    """
    begin_ns = time.thread_time_ns()
    rounds = 0
    while (spent_ns := time.thread_time_ns() - begin_ns) < _CPU_TIME_NS:
        value = 1
        for _ in range(_ROUNDS):
            value = value * 5 & 0xFFFF
        rounds += _ROUNDS
    return rounds * _NS_PER_S / spent_ns
