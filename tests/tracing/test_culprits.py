"""Who had the CPU meanwhile: put together from the switches of all of a process's threads."""

from __future__ import annotations

from pytest_hwqueue.metrics.cpu_events import OffCpu
from pytest_hwqueue.tracing.culprits import with_culprits

_STREAM, _MAIN, _HOG, _IDLE = 11, 10, 99, 0


def preempted(start: int, end: int, next_tid: int, next_comm: str) -> OffCpu:
    return OffCpu(_STREAM, 0, 0, start, end, "preempted", start, next_tid, next_comm)


def test_behind_ones_own_thread_is_who_took_over_from_it() -> None:
    stream = preempted(1000, 5000, _MAIN, "python")
    main = OffCpu(_MAIN, 0, 0, 1050, 6000, "waited", 5900, _HOG, "stress-ng")
    found = with_culprits([stream, main])
    assert (found[0].next_tid, found[0].next_comm) == (_HOG, "stress-ng")
    # It wanted the CPU from 5900 on, when the stream had it again.
    assert found[1].before_tid == _STREAM


def test_an_own_thread_that_ran_on_is_the_culprit_itself() -> None:
    stream = preempted(1000, 5000, _MAIN, "python")
    main = OffCpu(_MAIN, 0, 0, 4900, 6000, "waited", 5900, _HOG, "stress-ng")
    assert with_culprits([stream, main])[0].next_tid == _MAIN


def test_whoever_made_room_is_named_where_no_own_thread_ran() -> None:
    late = OffCpu(
        _STREAM, 0, 1, 1000, 5000, "waited", 3000, _IDLE, "swapper/0", _HOG, "fio"
    )  # fmt: skip
    other = OffCpu(_MAIN, 1, 1, 1000, 9000, "waited", 8000, _IDLE, "swapper/1")
    found = with_culprits([late, other])
    assert (found[0].before_tid, found[0].before_comm) == (_HOG, "fio")


def test_without_names_nothing_is_made_up() -> None:
    away = OffCpu(_STREAM, 0, 0, 1000, 5000, "preempted", 1000)
    assert with_culprits([away]) == [away]
    stopped = OffCpu(_STREAM, 0, 0, 1000, 5000, "stopped", None, _HOG, "fio")
    assert with_culprits([stopped]) == [stopped]
