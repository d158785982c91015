"""Threads that launch at once: who calls what, where, how often, and what becomes of an error."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from types import FrameType

import pytest

from pytest_hwqueue.parts.devices import launching as launching_module
from pytest_hwqueue.parts.devices.launching import (
    BusyCall,
    LaunchingThreads,
    ThreadsStream,
    clock_reading_ns,
)
from pytest_hwqueue.parts.devices.protocol import Call

THREADS = 3
IDLE = ThreadsStream(nullcontext, lambda: None)


@contextmanager
def launching(streams: Sequence[ThreadsStream]) -> Iterator[LaunchingThreads]:
    threads = LaunchingThreads(streams)
    try:
        yield threads
    finally:
        threads.close()


def test_each_thread_makes_its_own_call_until_all_together_made_so_many() -> None:
    made: list[tuple[int, int]] = []
    calls: list[Call] = [
        partial(lambda index: made.append((index, threading.get_ident())), index)
        for index in range(THREADS)
    ]
    with launching([IDLE] * THREADS) as threads:
        window = threads.window(calls, 200, 1000)
        assert (len(made), window.calls) == (200, 200)
        by_thread = Counter(index for index, _ in made)
        assert [len(each) for each in window.begun_ns] == [by_thread[i] for i in range(THREADS)]
        owners = dict(made)
        assert len(set(owners.values())) == len(owners), "a call is of one thread alone"
        assert threading.get_ident() not in owners.values()
        for begun, returned in zip(window.begun_ns, window.returned_ns, strict=True):
            times = [time for call in zip(begun, returned, strict=True) for time in call]
            assert times == sorted(times), "calls of one thread follow each other"
        # The same threads again, and fewer of them.
        made.clear()
        assert threads.window(calls[:1], 7, 1000).calls == len(made) == 7
        assert {index for index, _ in made} == {0}


def test_a_thread_waits_for_its_stream_after_so_many_of_its_calls() -> None:
    """The calls in flight are never more than those of all threads between two waits."""
    order: list[str] = []
    stream = ThreadsStream(nullcontext, lambda: order.append("wait"))
    with launching([stream]) as threads:
        threads.window([lambda: order.append("call")], 7, 3)
    assert order == ["call"] * 3 + ["wait"] + ["call"] * 3 + ["wait"] + ["call"]


def test_a_threads_stream_is_current_in_it_for_as_long_as_it_lives() -> None:
    current = threading.local()
    seen: list[int] = []
    left: list[int] = []

    @contextmanager
    def entered(index: int) -> Iterator[None]:
        current.stream = index
        yield
        left.append(index)

    streams = [ThreadsStream(partial(entered, index), lambda: None) for index in range(THREADS)]
    with launching(streams) as threads:
        for _ in range(2):
            threads.window([lambda: seen.append(current.stream)] * THREADS, 30, 100)
        assert set(seen) <= set(range(THREADS))
        assert not left
    assert sorted(left) == list(range(THREADS))


def test_what_a_call_or_a_context_raises_reaches_the_caller_and_no_thread_is_lost() -> None:
    def broken() -> None:
        raise RuntimeError("no such kernel")

    with launching([IDLE] * THREADS) as threads:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no such kernel"):
                threads.window([broken] * THREADS, 50, 100)
        assert threads.window([lambda: None] * THREADS, 50, 100).calls == 50

    @contextmanager
    def refusing() -> Iterator[None]:
        raise RuntimeError("no such stream")
        yield

    @contextmanager
    def failing_at_last() -> Iterator[None]:
        yield
        raise RuntimeError("it is over")

    with launching([ThreadsStream(failing_at_last, lambda: None)]) as threads:
        assert threads.window([lambda: None], 5, 100).calls == 5

    with launching([IDLE, ThreadsStream(refusing, lambda: None)]) as threads:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no such stream"):
                threads.window([lambda: None] * 2, 50, 100)


@pytest.mark.parametrize(
    ("function", "number"),
    # Between two threads' starts; while the first window is waited for; as threads are made.
    [("start", 2), ("start", THREADS), ("finish", 1), ("finish", 2), ("begin", 2)],
)
def test_an_interrupt_at_any_moment_leaves_no_thread_behind(function: str, number: int) -> None:
    called: list[FrameType] = []

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        """Raise as Ctrl-C does: wherever the host's thread is."""
        of_launching = frame.f_code.co_filename == launching_module.__file__
        if event == "call" and of_launching and frame.f_code.co_name == function:
            called.append(frame)
            if len(called) == number:
                raise KeyboardInterrupt

    before = {*threading.enumerate()}
    tracer = sys.gettrace()
    sys.settrace(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), launching([IDLE] * THREADS) as threads:
            threads.window([lambda: None] * THREADS, 50, 100)
    finally:
        sys.settrace(tracer)
    assert len(called) >= number
    assert {*threading.enumerate()} <= before


def test_a_busy_call_lasts_the_longer_the_longer_was_asked_for() -> None:
    """By its length: how long it takes depends on who else has the core."""
    short, long = (BusyCall.lasting(duration).characters for duration in (1, 50_000_000))
    assert 1 <= short < long
    BusyCall(short)()


def test_reading_the_clock_takes_no_negative_time() -> None:
    assert clock_reading_ns() >= 0
