"""A method on a thread of its own, met by a thread that only calls a C function of one pointer."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from types import MethodType

import pytest

from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.parts.workloads.pipeline.stages import HostTask, Meeting

LONG_S = 60


class Work:
    def __init__(self) -> None:
        self.done = 0
        self.threads: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None

    def do(self) -> None:
        assert self.gate.wait(LONG_S)
        self.threads.add(threading.get_ident())
        if self.error is not None:
            raise self.error
        self.done += 1


def meeting_of(work: Work) -> Meeting:
    method = work.do
    assert isinstance(method, MethodType)
    return Meeting(method)


def twice(meeting: Meeting) -> None:
    """Call the function as a runtime's thread does, before the work and behind it."""
    address = meeting.function.value
    assert address is not None
    for _ in range(2):
        ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(address)(meeting.argument)


def own_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "hwq-host-task"}


def test_method_is_done_once_between_two_calls_on_a_thread_of_its_own() -> None:
    before, work = own_threads(), Work()
    meeting = meeting_of(work)
    for count in range(1, 50):
        twice(meeting)
        assert work.done == count
    assert work.threads.isdisjoint({threading.get_ident()})
    assert len(work.threads) == 1
    # Neither the thread nor the object outlives its use.
    (thread,) = own_threads() - before
    gone = weakref.ref(work)
    del work
    gc.collect()
    assert gone() is None
    twice(meeting)
    del meeting
    gc.collect()
    thread.join(LONG_S)
    assert not thread.is_alive()


def test_second_call_returns_only_when_the_method_has_ended() -> None:
    work = Work()
    work.gate.clear()
    meeting = meeting_of(work)
    thread = threading.Thread(target=twice, args=(meeting,))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    assert work.done == 0
    work.gate.set()
    thread.join(LONG_S)
    assert not thread.is_alive()
    assert work.done == 1


def test_error_lets_the_other_thread_pass_and_is_raised_once() -> None:
    work = Work()
    work.error = KeyError("why")
    meeting = meeting_of(work)
    for _ in range(3):
        twice(meeting)
    assert work.done == 0
    with pytest.raises(KeyError, match="why"):
        meeting.raise_error()
    meeting.raise_error()
    work.error = None
    twice(meeting)
    assert work.done == 1


def test_host_device_does_the_work_on_the_stream() -> None:
    device, work = HostDevice(), Work()
    with device.open_streams(2) as pool:
        task = HostTask(device, work.do, 10)
        pool.streams[1].launch(task.run)
        pool.synchronize()
        assert work.threads == {pool.streams[1].handle}
    task.raise_error()


def test_simulated_device_takes_the_time_assumed_and_does_nothing() -> None:
    device, work = SimulatedDevice("h200"), Work()
    with device.open_streams(1) as pool:
        task = HostTask(device, work.do, 1_234_567)
        timeline = pool.timeline(lambda: pool.streams[0].launch(task.run))
    (kernel,) = timeline.kernels
    assert kernel.end_ns - kernel.start_ns == 1_234_567
    assert work.done == 0
