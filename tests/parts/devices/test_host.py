"""The host device: order, concurrency, events, tags, errors and timelines of its threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch

from pytest_hwqueue.answers.doctor import checks
from pytest_hwqueue.answers.doctor.checks import describe_machine
from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.parts.devices.host import HostDevice, HostEvent, HostPool, host_event
from pytest_hwqueue.parts.devices.kinds import open_device
from pytest_hwqueue.parts.devices.launches import TagLog
from pytest_hwqueue.parts.devices.protocol import Event

from .marks import PATIENCE_S, within_patience


class Boom(RuntimeError):
    """What a launched function raises here."""


def fail() -> None:
    raise Boom("launched work failed")


def fail_not() -> None:
    """A kernel that does nothing."""


def wait_for(event: threading.Event) -> None:
    assert event.wait(PATIENCE_S)


@pytest.fixture
def device() -> HostDevice:
    return HostDevice()


@pytest.fixture
def pool(device: HostDevice) -> Iterator[HostPool]:
    with device.open_streams(3) as opened:
        yield opened


def stream_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("hwq-stream-")}


def test_streams_run_in_order_at_the_same_time_each_on_a_thread_of_its_own(pool: HostPool) -> None:
    together = threading.Barrier(3)
    met: list[int] = []
    ran: list[list[tuple[int, int]]] = [[] for _ in pool.streams]
    for stream in pool.streams:
        stream.launch(lambda: met.append(together.wait(PATIENCE_S)))
    for number in range(100):
        for stream in pool.streams:
            stream.launch(
                lambda index, n: ran[index].append((threading.get_ident(), n)), stream.index, number
            )
    pool.synchronize()
    assert sorted(met) == [0, 1, 2]
    assert ran == [[(each.handle, number) for number in range(100)] for each in pool.streams]
    assert len({each.handle for each in pool.streams} | {threading.get_ident()}) == 4
    assert (pool.launched, [stream.launched for stream in pool.streams]) == (303, [101] * 3)


def test_wait_is_for_the_last_recording_of_an_event(device: HostDevice, pool: HostPool) -> None:
    first, *others = pool.streams
    event = device.new_event()
    enqueued, stamped, ends, overtook = (threading.Event() for _ in range(4))
    first.launch(wait_for, enqueued)
    first.record(event)
    first.launch(stamped.set)
    first.launch(wait_for, ends)
    first.record(event)
    # One waits before the first recording is passed, the other after.
    for stream, begins in zip(others, (enqueued, stamped), strict=True):
        stream.launch(wait_for, begins)
        stream.wait(event)
        stream.launch(overtook.set)
    enqueued.set()
    assert not overtook.wait(0.2)
    ends.set()
    within_patience(pool.synchronize)
    assert overtook.is_set()


def test_event_of_all_streams_passes_with_the_last(device: HostDevice, pool: HostPool) -> None:
    gates = [threading.Event() for _ in pool.streams]
    last: list[Event] = []
    for stream, gate in zip(pool.streams, gates, strict=True):
        stream.launch(wait_for, gate)
        last.append(stream.record())
    event = device.new_event()
    pool.record_all(event)
    behind = threading.Event()
    for gate, own in zip(gates, last, strict=True):
        assert not event.query()
        gate.set()
        own.synchronize()
    pool.streams[0].wait(event)
    pool.streams[0].launch(behind.set)
    within_patience(event.synchronize)
    wait_for(behind)
    assert event.query()
    assert all(device.elapsed_ns(own, event) >= 0 for own in last)
    # Then only those that got work are asked; where all are idle it has passed at once.
    for _ in range(3):
        within_patience(pool.synchronize)
    assert pool.busy == set()
    pool.record_all(event)
    assert event.query()
    pool.streams[2].launch(fail_not)
    assert pool.busy == {2}


def times(tags: TagLog) -> list[tuple[int, int]]:
    """When each tagged launch was ready and done; 0 where an event was not passed."""
    found: list[tuple[int, int]] = []

    def note(start: Event, end: Event) -> int:
        found.append((host_event(start).when_ns, host_event(end).when_ns))
        return 0

    tags.collect(note, {})
    return found


def test_work_is_ready_when_what_is_before_it_ends(pool: HostPool) -> None:
    first, second, _ = pool.streams
    pool.tags = tags = TagLog(HostEvent)
    for _ in range(2):  # the events are used again
        tags.rewind()
        gate = threading.Event()
        first.launch(wait_for, gate, tag="first")
        first.launch(fail, tag="fails, and passes its events")
        event = first.record()
        second.wait(event)
        second.launch(fail_not, tag="held")
        assert times(tags) == [(0, 0)] * 3
        gate.set()
        with pytest.raises(Boom):
            within_patience(pool.synchronize)
        (first_ready, first_done), (ready, done), (held_ready, held_done) = times(tags)
        assert 0 < first_ready <= first_done == ready <= done <= held_ready <= held_done
        assert held_ready == host_event(event).when_ns


def test_an_error_is_raised_once_and_nobody_hangs(pool: HostPool) -> None:
    first, second, third = pool.streams
    ran: list[str] = []
    first.launch(fail)
    first.launch(ran.append, "behind the error")
    second.wait(first.record())
    second.launch(ran.append, "waits for the failed stream")
    third.launch(ran.append, "has nothing to do with it")
    third.synchronize()
    with pytest.raises(Boom, match="launched work failed"):
        within_patience(pool.synchronize)
    assert sorted(ran) == ["has nothing to do with it", "waits for the failed stream"]
    within_patience(pool.synchronize)
    first.launch(ran.append, "works again")
    first.launch(fail)
    with pytest.raises(Boom):
        within_patience(first.synchronize)
    first.synchronize()
    assert ran[-1] == "works again"


@pytest.mark.parametrize("trains", [False, True])
def test_closing_leaves_nothing_behind(device: HostDevice, trains: bool) -> None:
    before, others = torch.get_num_threads(), stream_threads()
    torch.set_num_threads(3)
    gate, weight = threading.Event(), torch.ones(2, requires_grad=True)
    inside: list[tuple[int, bool, bool]] = []

    def compute() -> None:
        product = (weight * 2).sum()
        modes = torch.is_inference_mode_enabled(), product.requires_grad
        inside.append((torch.get_num_threads(), *modes))

    try:
        # Gradients are recorded only where asked for; an error surfaces at the end, too.
        streams = device.open_streams(2, gradients=trains)
        with pytest.raises(Boom) if trains else nullcontext(), streams as pool:
            pool.streams[0].launch(wait_for, gate)
            pool.streams[0].launch(compute)
            pool.streams[1].launch(fail if trains else fail_not)
            assert len(stream_threads() - others) == 2
            gate.set()
        assert inside == [(1, not trains, trains)]
        assert (torch.get_num_threads(), stream_threads()) == (3, others)
        assert not torch.is_inference_mode_enabled()
    finally:
        torch.set_num_threads(before)


def test_held_timeline_holds_all_work_until_it_is_enqueued(pool: HostPool) -> None:
    complete = threading.Event()
    saw: list[bool] = []

    def kernel() -> None:
        saw.append(complete.is_set())

    def enqueue() -> None:
        for number in range(15):
            pool.streams[number % 3].launch(kernel, tag=f"t{number % 2}")
        time.sleep(0.02)  # in which streams that nothing holds would run
        complete.set()

    pool.tags = tags = TagLog(HostEvent)
    timeline = pool.held_timeline(enqueue)
    assert (pool.tags, times(tags)) == (tags, [])
    assert saw == [True] * 15
    assert {each.name for each in timeline.kernels} == {"kernel"}
    assert all(each.call == each.launch for each in timeline.kernels)
    # One that is not held runs while it is enqueued.
    ran = threading.Event()

    def wait_while_enqueueing() -> None:
        pool.streams[1].launch(ran.set)
        wait_for(ran)

    (alone,) = pool.timeline(wait_while_enqueueing).kernels
    assert (alone.stream, alone.launch, alone.tag) == (1, 0, None)


def test_streams_outlive_an_error_in_a_held_pass(device: HostDevice) -> None:
    """A thread that died of it would be pytest's warning, and so an error."""
    ran: list[int] = []

    def launch_a_failure() -> None:
        stream.launch(fail)

    def fail_behind_a_launch() -> None:
        stream.launch(time.sleep, 0.1)
        raise Boom

    def hold(enqueue: Callable[[], None]) -> None:
        with pytest.raises(Boom):
            pool.held_timeline(enqueue)
        assert pool.trace is None
        stream.launch(ran.append, 1)
        pool.synchronize()

    with device.open_streams(2) as pool:
        stream = pool.streams[1]
        for enqueue in (launch_a_failure, fail, fail_behind_a_launch):
            within_patience(partial(hold, enqueue))
    assert ran == [1, 1, 1]


def test_device_says_what_it_is_and_refuses_what_it_lacks(device: HostDevice) -> None:
    assert (device.kind, device.label, device.lease_key) == ("cpu", "cpu", "cpu")
    assert (device.connections, device.torch_device) == (None, torch.device("cpu"))
    assert device.name
    assert device.limits()["cores usable"] >= 1
    with device.open_streams(3, [0, 1, 2]) as pool:
        assert [stream.priority for stream in pool.streams] == [0, 1, 2]
        assert pool.device_priorities() == [0, 0, 0]
        with pytest.raises(DeviceError, match="no graphs"):
            pool.capture(0, fail_not)
        with pytest.raises(DeviceError, match="no graphs"):
            device.new_graph_event()
        kernel = device.kernel_of(1_000)  # a probe's, made once
        assert len(pool.held_timeline(lambda: pool.streams[0].launch(kernel)).kernels) == 1
    assert device.kernel_of(1_000) is kernel
    assert device.kernel_of(2_000) is not kernel
    with pytest.raises(DeviceError, match="one thread: it has no kernel that fills all"):
        device.kernel_of(1_000, waves=1)


def test_memory_peaks_count_from_a_reset(
    device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert device.memory_bytes().keys() == {"process_resident"}
    before = bytearray(300 << 20)
    del before
    assert device.reset_memory() is None
    memory = device.memory_bytes()
    assert memory["process_peak"] < memory["process_resident"] + (100 << 20)
    within = bytearray(300 << 20)
    del within
    assert device.memory_bytes()["process_peak"] > memory["process_peak"] + (200 << 20)

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refused)
    assert "cannot be reset: [Errno 13]" in (device.reset_memory() or "")
    assert device.memory_bytes().keys() == {"process_resident"}


def test_without_proc_the_cpu_says_to_mount_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def process() -> None:
        raise psutil.NoSuchProcess(1)

    monkeypatch.setattr(psutil, "Process", process)
    with pytest.raises(
        DeviceError, match=r"/proc does not show this process, .*: mount /proc here"
    ):
        HostDevice()
    # What `hwq doctor` says of the devices does not end with it; one that is open would be kept.
    monkeypatch.setattr(checks, "open_device", open_device.__wrapped__)
    assert "mount /proc here" in describe_machine()["Device cpu"]["cannot be opened"]
