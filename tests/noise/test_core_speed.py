"""The fixed loop that shows how much a core does: rounds per second of CPU time."""

from __future__ import annotations

import itertools
import time

import pytest

from pytest_hwqueue.noise.core_speed import core_speed


@pytest.mark.parametrize(
    ("look_ns", "rounds", "spent_ns"),
    [(7_000_000, 14_000, 105_000_000), (50_000, 1_999_000, 100_000_000)],
)
def test_rounds_are_held_against_cpu_time(
    monkeypatch: pytest.MonkeyPatch, look_ns: int, rounds: int, spent_ns: int
) -> None:
    """A thousand rounds between two looks at the clock, until 0.1 s is over."""
    clock = itertools.count(123, look_ns)
    monkeypatch.setattr(time, "thread_time_ns", lambda: next(clock))
    assert core_speed() == pytest.approx(rounds * 1e9 / spent_ns)


def test_a_thread_that_sleeps_is_no_slower_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time without a core is no CPU time: whoever is switched out has the same speed."""
    took_ns: list[int] = []
    read = time.thread_time_ns

    def reading() -> int:
        time.sleep(0.001)
        took_ns.append(read())
        return took_ns[-1]

    monkeypatch.setattr(time, "thread_time_ns", reading)
    begin = time.monotonic_ns()
    core_speed()
    assert took_ns[-1] - took_ns[0] < (time.monotonic_ns() - begin) / 2
