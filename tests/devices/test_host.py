"""The host device: order, concurrency, events, tags, errors and timelines of its threads."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.devices.host import HostDevice, HostEvent, HostPool, HostStream, Recording
from pytest_hwqueue.devices.launches import TagLog
from pytest_hwqueue.devices.protocol import Event
from pytest_hwqueue.errors import DeviceError

# Only how long a broken device may hold a test up; what holds never waits as long.
PATIENCE_S = 30.0


class Boom(RuntimeError):
    """What a launched function raises here."""


def fail() -> None:
    raise Boom("launched work failed")


def wait_for(event: threading.Event) -> None:
    assert event.wait(PATIENCE_S)


def within_patience(function: Callable[[], object]) -> None:
    """Call ``function`` in a thread of its own; fail if it does not return."""
    raised: list[BaseException] = []

    def call() -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it hangs"
    if raised:
        raise raised[0]


@pytest.fixture
def device() -> HostDevice:
    return HostDevice()


@pytest.fixture
def pool(device: HostDevice) -> Iterator[HostPool]:
    with device.open_streams(3) as opened:
        yield opened


def stream_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("hwq-stream-")}


def test_each_stream_runs_in_order_on_a_thread_of_its_own(pool: HostPool) -> None:
    ran: list[list[tuple[int, int]]] = [[] for _ in pool.streams]
    for number in range(100):
        for stream in pool.streams:
            stream.launch(
                lambda index, n: ran[index].append((threading.get_ident(), n)), stream.index, number
            )
    pool.synchronize()
    for stream in pool.streams:
        assert ran[stream.index] == [(stream.handle, number) for number in range(100)]
    assert len({stream.handle for stream in pool.streams} | {threading.get_ident()}) == 4


def test_streams_run_at_the_same_time(pool: HostPool) -> None:
    together = threading.Barrier(3)
    met: list[int] = []
    for stream in pool.streams:
        stream.launch(lambda: met.append(together.wait(PATIENCE_S)))
    pool.synchronize()
    assert sorted(met) == [0, 1, 2]


def test_launching_does_not_wait_for_the_work(pool: HostPool) -> None:
    gate = threading.Event()
    pool.streams[0].launch(wait_for, gate)
    event = pool.streams[0].record()
    assert not event.query()
    gate.set()
    event.synchronize()
    assert event.query()
    pool.synchronize()


def test_wait_holds_only_the_work_behind_it(pool: HostPool) -> None:
    first, second, _ = pool.streams
    gate, before = threading.Event(), threading.Event()
    log: list[str] = []
    first.launch(wait_for, gate)
    first.launch(log.append, "first")
    event = first.record()
    second.launch(before.set)
    second.wait(event)
    second.launch(log.append, "second")
    wait_for(before)  # the work in front of the wait runs while the first stream is blocked
    assert log == []
    gate.set()
    pool.synchronize()
    assert log == ["first", "second"]


def test_event_that_was_never_recorded_holds_nothing(device: HostDevice, pool: HostPool) -> None:
    event = device.new_event()
    assert event.query()
    event.synchronize()
    pool.streams[0].wait(event)
    within_patience(pool.synchronize)


# (stream, what, back): a wait is for the event `back` before the last; without one, a record.
PROGRAMS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["launch", "record", "wait"]), st.integers(0, 4)),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(PROGRAMS)
def test_any_program_runs_in_an_order_its_events_allow(
    program: list[tuple[int, str, int]],
) -> None:
    log: list[int] = []
    before: dict[int, set[int]] = {}  # launch -> the launches that must have run
    seen: list[set[int]] = [set() for _ in range(3)]  # by stream, what has run when it goes on
    events: list[tuple[Event, set[int]]] = []
    with HostDevice().open_streams(3) as pool:
        for number, (index, kind, back) in enumerate(program):
            stream = pool.streams[index]
            if kind == "launch":
                before[number] = set(seen[index])
                seen[index].add(number)
                stream.launch(log.append, number)
            elif kind == "wait" and events:
                event, known = events[-1 - back % len(events)]
                seen[index] |= known
                stream.wait(event)
            else:
                events.append((stream.record(), set(seen[index])))
        within_patience(pool.synchronize)
    assert sorted(log) == sorted(before)
    position = {number: place for place, number in enumerate(log)}
    for number, earlier in before.items():
        assert all(position[other] < position[number] for other in earlier)


def test_wait_is_for_the_last_recording_of_an_event(device: HostDevice, pool: HostPool) -> None:
    first, second, third = pool.streams
    event = device.new_event()
    overtook = threading.Event()
    stamped, enqueued = threading.Event(), threading.Event()
    seen: list[bool] = []
    first.launch(wait_for, enqueued)
    first.record(event)
    first.launch(stamped.set)
    # Where the second recording counts, nothing sets `overtook` before this returns.
    first.launch(lambda: seen.append(overtook.wait(1.0)))
    first.record(event)
    third.launch(wait_for, stamped)
    third_ready = third.record()
    second.wait(third_ready)
    second.wait(event)
    second.launch(overtook.set)
    enqueued.set()
    within_patience(pool.synchronize)
    assert seen == [False]


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


def test_event_of_all_streams_asks_only_those_that_got_work(
    pool: HostPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    stamp = HostStream.stamp

    def noted(stream: HostStream, recording: Recording) -> None:
        asked.append(stream.index)
        stamp(stream, recording)

    monkeypatch.setattr(HostStream, "stamp", noted)
    for working in (0, len(pool.streams) - 1):
        asked.clear()
        gate = threading.Event()
        pool.streams[working].launch(wait_for, gate)
        pool.record_all(HostEvent())
        assert sorted(asked) == sorted({0, working})
        gate.set()
        within_patience(pool.synchronize)
        within_patience(pool.synchronize)
        asked.clear()
        pool.record_all(HostEvent())
        assert asked == [0]


def test_event_of_all_idle_streams_has_passed(device: HostDevice, pool: HostPool) -> None:
    pool.synchronize()
    event = device.new_event()
    pool.record_all(event)
    within_patience(event.synchronize)
    assert event.query()


def test_events_have_the_times_of_their_streams(device: HostDevice, pool: HostPool) -> None:
    stream = pool.streams[0]
    start, end = device.new_event(), device.new_event()
    assert stream.record(start) is start
    stream.launch(lambda: None)
    stream.record(end)
    pool.synchronize()
    assert device.elapsed_ns(start, end) == -device.elapsed_ns(end, start)
    assert device.elapsed_ns(start, end) >= 0


def test_event_of_another_device_is_refused(device: HostDevice, pool: HostPool) -> None:
    class Foreign:
        def query(self) -> bool:
            return True

        def synchronize(self) -> None:
            return None

    with pytest.raises(TypeError, match="event of another device"):
        pool.streams[0].wait(Foreign())
    with pytest.raises(TypeError, match="event of another device"):
        pool.streams[0].record(Foreign())
    with pytest.raises(TypeError, match="event of another device"):
        device.elapsed_ns(Foreign(), device.new_event())


class CountingEvents:
    """Makes events, and counts them."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> HostEvent:
        self.made += 1
        return HostEvent()


def tagged_iteration(pool: HostPool) -> None:
    first, second, _ = pool.streams
    first.launch(lambda: None, tag="a")
    second.launch(lambda: None, tag="b")
    first.launch(lambda: None)
    first.launch(lambda: None, tag="a")


def test_tags_are_counted_per_iteration_and_their_events_reused(
    device: HostDevice, pool: HostPool
) -> None:
    new_event = CountingEvents()
    pool.tags = tags = TagLog(new_event)
    latencies: dict[str, list[int]] = {}
    for iteration in range(1, 6):
        tags.rewind()
        tagged_iteration(pool)
        pool.synchronize()
        tags.collect(device.elapsed_ns, latencies)
        assert {tag: len(values) for tag, values in latencies.items()} == {
            "a": 2 * iteration,
            "b": iteration,
        }
        assert new_event.made == 6
    assert all(value >= 0 for values in latencies.values() for value in values)


def test_tags_of_repeated_iterations_need_no_synchronising(
    device: HostDevice, pool: HostPool
) -> None:
    new_event = CountingEvents()
    pool.tags = tags = TagLog(new_event)
    tagged_iteration(pool)
    pool.synchronize()
    tags.repeat(4)
    made = new_event.made
    for _ in range(4):
        tagged_iteration(pool)
    pool.synchronize()
    assert new_event.made == made, "events were made while measuring"
    latencies: dict[str, list[int]] = {}
    tags.collect(device.elapsed_ns, latencies)
    assert {tag: len(values) for tag, values in latencies.items()} == {"a": 8, "b": 4}
    assert all(value >= 0 for values in latencies.values() for value in values)


def test_work_behind_a_wait_is_ready_when_the_event_passes(pool: HostPool) -> None:
    first, second, _ = pool.streams
    gate = threading.Event()
    pool.tags = tags = TagLog(HostEvent)
    first.launch(wait_for, gate)
    event = first.record()
    second.wait(event)
    second.launch(lambda: None, tag="held")
    gate.set()
    pool.synchronize()
    ready: list[int] = []

    def note_ready(start: Event, end: Event) -> int:
        assert isinstance(start, HostEvent)
        assert isinstance(end, HostEvent)
        assert start.when_ns <= end.when_ns
        ready.append(start.when_ns)
        return 0

    tags.collect(note_ready, {})
    assert isinstance(event, HostEvent)
    assert ready == [event.when_ns]


def test_work_behind_work_is_ready_when_that_ends(pool: HostPool) -> None:
    gate = threading.Event()
    pool.tags = tags = TagLog(HostEvent)
    pool.streams[0].launch(wait_for, gate, tag="first")
    pool.streams[0].launch(lambda: None, tag="second")
    gate.set()
    pool.synchronize()
    times: list[tuple[int, int]] = []

    def note_times(start: Event, end: Event) -> int:
        assert isinstance(start, HostEvent)
        assert isinstance(end, HostEvent)
        times.append((start.when_ns, end.when_ns))
        return 0

    tags.collect(note_times, {})
    (first_ready, first_done), (second_ready, second_done) = times
    assert first_ready <= first_done == second_ready <= second_done


def test_error_surfaces_once_and_nobody_hangs(pool: HostPool) -> None:
    first, second, third = pool.streams
    ran: list[str] = []
    first.launch(fail)
    first.launch(ran.append, "behind the error")
    event = first.record()
    second.wait(event)
    second.launch(ran.append, "waits for the failed stream")
    third.launch(ran.append, "has nothing to do with it")
    with pytest.raises(Boom, match="launched work failed"):
        within_patience(pool.synchronize)
    assert sorted(ran) == ["has nothing to do with it", "waits for the failed stream"]
    within_patience(pool.synchronize)
    first.launch(ran.append, "works again")
    first.synchronize()
    assert ran[-1] == "works again"


def test_synchronising_one_stream_raises_what_its_work_raised(pool: HostPool) -> None:
    pool.streams[1].launch(fail)
    with pytest.raises(Boom):
        pool.streams[1].synchronize()


def test_tagged_work_that_fails_still_passes_its_events(pool: HostPool) -> None:
    pool.tags = tags = TagLog(HostEvent)
    pool.streams[0].launch(fail, tag="a")
    pool.streams[0].launch(lambda: None, tag="a")
    with pytest.raises(Boom):
        within_patience(pool.synchronize)
    passed: list[bool] = []

    def note_passed(start: Event, end: Event) -> int:
        passed.append(start.query() and end.query())
        return 0

    tags.collect(note_passed, {})
    assert passed == [True, True]


@pytest.mark.parametrize("gradients", [False, True])
def test_gradients_are_recorded_only_where_asked_for(device: HostDevice, gradients: bool) -> None:
    seen: list[tuple[bool, bool]] = []
    weight = torch.ones(2, requires_grad=True)

    def compute() -> None:
        product = (weight * 2).sum()
        seen.append((torch.is_inference_mode_enabled(), product.requires_grad))

    with device.open_streams(2, gradients=gradients) as pool:
        for stream in pool.streams:
            stream.launch(compute)
        pool.synchronize()
        assert not torch.is_inference_mode_enabled()
    assert seen == [(not gradients, gradients)] * 2


@pytest.mark.parametrize("fails", [False, True])
def test_pool_puts_back_torchs_threads_and_ends_its_own(device: HostDevice, fails: bool) -> None:
    before, others = torch.get_num_threads(), stream_threads()
    torch.set_num_threads(3)
    inside: list[int] = []

    def use_a_pool() -> None:
        with device.open_streams(2) as pool:
            pool.streams[0].launch(lambda: inside.append(torch.get_num_threads()))
            pool.synchronize()
            assert len(stream_threads() - others) == 2
            if fails:
                pool.streams[1].launch(fail)
                pool.synchronize()

    try:
        if fails:
            with pytest.raises(Boom):
                use_a_pool()
        else:
            use_a_pool()
        assert inside == [1]
        assert torch.get_num_threads() == 3
        assert stream_threads() == others
    finally:
        torch.set_num_threads(before)


def test_closing_waits_for_the_work_enqueued(device: HostDevice) -> None:
    gate = threading.Event()
    ran: list[int] = []
    with device.open_streams(1) as pool:
        pool.streams[0].launch(wait_for, gate)
        pool.streams[0].launch(ran.append, 1)
        gate.set()
    assert ran == [1]


def test_held_timeline_holds_all_work_until_it_is_enqueued(pool: HostPool) -> None:
    complete = threading.Event()
    saw: list[bool] = []

    def kernel() -> None:
        saw.append(complete.is_set())

    def enqueue() -> None:
        for _ in range(5):
            for stream in pool.streams:
                stream.launch(kernel)
        complete.set()

    timeline = pool.held_timeline(enqueue)
    assert saw == [True] * 15
    assert (len(timeline.kernels), timeline.streams) == (15, 3)
    released_ns = timeline.released_ns
    assert released_ns is not None
    for kernel_run in timeline.kernels:
        assert kernel_run.enqueued_ns <= released_ns <= kernel_run.start_ns <= kernel_run.end_ns
        assert (kernel_run.name, kernel_run.tag, kernel_run.waits_for) == ("kernel", None, ())
    assert [k.start_ns for k in timeline.kernels] == sorted(k.start_ns for k in timeline.kernels)
    for index in range(3):
        of_stream = [k for k in timeline.kernels if k.stream == index]
        assert [k.launch for k in of_stream] == list(range(index, 15, 3))
        for one, next_one in pairwise(of_stream):
            assert one.end_ns <= next_one.start_ns


def test_timeline_that_is_not_held_runs_while_it_is_enqueued(pool: HostPool) -> None:
    ran = threading.Event()

    def enqueue() -> None:
        pool.streams[0].launch(ran.set, tag="first")
        wait_for(ran)
        pool.synchronize()
        pool.streams[1].launch(lambda: None)

    timeline = pool.timeline(enqueue)
    assert timeline.released_ns is None
    first, second = timeline.kernels
    assert [(k.stream, k.launch, k.tag) for k in (first, second)] == [(0, 0, "first"), (1, 1, None)]
    assert first.enqueued_ns <= first.start_ns <= first.end_ns <= second.enqueued_ns


def test_held_timeline_knows_who_waited_for_whom(pool: HostPool) -> None:
    first, second, _ = pool.streams

    def enqueue() -> None:
        first.launch(lambda: None, tag="a")
        first.launch(lambda: None, tag="b")
        event = first.record()
        second.wait(event)
        second.launch(lambda: None)
        second.launch(lambda: None)

    timeline = pool.held_timeline(enqueue)
    by_launch = {kernel.launch: kernel for kernel in timeline.kernels}
    assert {i: (k.stream, k.tag, k.waits_for) for i, k in by_launch.items()} == {
        0: (0, "a", ()),
        1: (0, "b", ()),
        2: (1, None, (1,)),
        3: (1, None, ()),
    }
    assert by_launch[1].end_ns <= by_launch[2].start_ns


def test_held_timeline_leaves_the_tags_alone(device: HostDevice, pool: HostPool) -> None:
    pool.tags = tags = TagLog(device.new_event)
    for _ in range(2):
        timeline = pool.held_timeline(lambda: tagged_iteration(pool))
        assert len(timeline.kernels) == 4
        assert pool.tags is tags
        assert pool.trace is None
    latencies: dict[str, list[int]] = {}
    tags.collect(device.elapsed_ns, latencies)
    assert latencies == {}


def test_error_in_a_held_pass_surfaces_and_the_pool_goes_on(pool: HostPool) -> None:
    with pytest.raises(Boom):
        within_patience(lambda: pool.held_timeline(lambda: pool.streams[1].launch(fail)))
    assert pool.trace is None
    ran: list[int] = []
    pool.streams[1].launch(ran.append, 1)
    pool.synchronize()
    assert ran == [1]


def test_error_while_enqueueing_a_held_pass_opens_the_gate(device: HostDevice) -> None:
    passed = threading.Event()

    def enqueue() -> None:
        raise Boom

    def hold_and_close() -> None:
        with device.open_streams(1) as pool:
            with pytest.raises(Boom):
                pool.held_timeline(enqueue)
            pool.streams[0].launch(passed.set)
            pool.synchronize()

    within_patience(hold_and_close)
    assert passed.is_set()


def test_launches_before_an_error_in_a_held_pass_do_not_end_their_stream(
    device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    died: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda arguments: died.append(arguments.exc_type))
    left, ran = threading.Event(), threading.Event()

    with device.open_streams(1) as opened:

        def enqueue() -> None:
            opened.streams[0].launch(left.wait, 0.5)
            raise Boom

        with pytest.raises(Boom):
            opened.held_timeline(enqueue)
        left.set()
        opened.streams[0].launch(ran.set)
    assert died == []
    assert ran.is_set()


def test_export_writes_a_chrome_trace_with_a_track_per_stream(
    pool: HostPool, tmp_path: Path
) -> None:
    def enqueue() -> None:
        for number in range(6):
            pool.streams[number % 2].launch(fail_not, tag="tagged" if number == 0 else None)

    path = tmp_path / "trace.json"
    pool.export_trace(enqueue, str(path))
    trace = json.loads(path.read_text(encoding="utf-8"))
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in trace["traceEvents"]
        if event["ph"] == "M" and event["name"] == "thread_name"
    }
    runs: list[dict[str, Any]] = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert sorted(names.values()) == ["stream 0", "stream 1", "stream 2"]
    tracks = [names[run["pid"], run["tid"]] for run in runs]
    assert sorted(tracks) == ["stream 0"] * 3 + ["stream 1"] * 3
    assert sorted(run["args"]["launch"] for run in runs) == list(range(6))
    assert [run["name"] for run in runs if run["args"]["launch"] == 0] == ["tagged"]
    assert {run["name"] for run in runs if run["args"]["launch"] != 0} == {"fail_not"}
    for run in runs:
        assert run["dur"] >= 0
        assert run["args"]["enqueued_us"] <= run["ts"]
    assert len(names) + len(runs) == len(trace["traceEvents"])


def fail_not() -> None:
    """A kernel that does nothing."""


def test_there_are_no_graphs_here(device: HostDevice, pool: HostPool) -> None:
    with pytest.raises(DeviceError, match="no graphs"):
        pool.capture(0, fail_not)
    with pytest.raises(DeviceError, match="no graphs"):
        device.new_graph_event()


def test_priorities_are_kept_but_the_threads_have_none(device: HostDevice) -> None:
    asked: Sequence[int] = [0, 1, 2]
    with device.open_streams(3, asked) as pool:
        assert [stream.priority for stream in pool.streams] == asked
        assert pool.device_priorities() == [0, 0, 0]


def test_probe_kernel_runs_anywhere_and_is_made_once(device: HostDevice, pool: HostPool) -> None:
    kernel = device.kernel_of(1_000)
    assert device.kernel_of(1_000) is kernel
    assert device.kernel_of(2_000) is not kernel
    timeline = pool.held_timeline(lambda: pool.streams[0].launch(kernel))
    assert len(timeline.kernels) == 1


def test_device_says_what_it_is(device: HostDevice) -> None:
    assert (device.kind, device.label, device.lease_key) == ("cpu", "cpu", "cpu")
    assert device.connections is None
    assert device.name
    assert device.torch_device == torch.device("cpu")
    assert device.limits()["cores usable"] >= 1


def test_the_peak_of_memory_is_that_since_its_reset(
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


def test_an_error_is_raised_to_those_who_wait_for_its_stream() -> None:
    """Threads that serve requests on streams of one pool get each their own errors."""

    def breaks() -> None:
        raise ValueError("planted")

    with HostDevice().open_streams(2) as pool:
        broken, sound = pool.streams
        broken.launch(breaks)
        sound.launch(int)
        sound.synchronize()
        with pytest.raises(ValueError, match="planted"):
            broken.synchronize()
        broken.synchronize()
        assert [stream.launched for stream in pool.streams] == [1, 1]
        assert pool.launched == 2
