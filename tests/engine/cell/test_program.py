"""Programs: what a graph captures of an iteration, no order of it lost; and slower launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.engine.cell.program import (
    Enqueue,
    Program,
    SlowedLaunches,
    eager,
    graph,
    launch_times,
    slowed_request,
)
from pytest_hwqueue.parts.devices.kinds import open_device
from pytest_hwqueue.parts.devices.launches import TagLog
from pytest_hwqueue.parts.devices.protocol import Device, Stream, StreamPool

# What was enqueued, on which stream, and the event or the launch's number.
Step = tuple[str, int, Any]


@dataclass
class FakeStream:
    """Logs what is enqueued on it into the log of its pool."""

    index: int
    pool: FakePool
    priority: int = 0
    handle: int = 0

    def launch(
        self, function: Callable[..., object], *arguments: object, tag: str | None = None
    ) -> None:
        if tag is not None and self.pool.tags is not None:
            self.pool.tags.next(tag, self.index)
        what = function.index if isinstance(function, Capture) else arguments[0]
        self.pool.log.append(("launch", self.index, (what, tag)))

    def record(self, event: object = None) -> object:
        recorded = object() if event is None else event
        self.pool.log.append(("record", self.index, recorded))
        return recorded

    def wait(self, event: object) -> None:
        self.pool.log.append(("wait", self.index, event))


@dataclass
class Capture:
    """What was enqueued between the beginning of a capture and its end."""

    index: int
    steps: list[Step]

    def __call__(self) -> None:
        """Replay it."""


@dataclass
class FakePool:
    """Streams that log, captures that keep what they saw, and a device that makes events."""

    count: int
    graph_events: bool = True
    tags: TagLog | None = None
    log: list[Step] = field(default_factory=list)
    captures: list[Capture] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.streams = [FakeStream(index, self, index, 7 * index) for index in range(self.count)]

    def synchronize(self) -> None:
        return None

    def new_graph_event(self) -> object:
        if not self.graph_events:
            raise DeviceError("no timing events inside graphs here")
        return object()

    def capture(self, index: int, enqueue: Callable[[], None], marks: object = None) -> Capture:
        before, self.log = self.log, []
        enqueue()
        self.captures.append(Capture(index, self.log))
        self.log = before
        return self.captures[-1]

    def program(self, enqueue: Enqueue, tagged: bool = False) -> Program:
        return graph(
            cast(Device, self), cast(StreamPool, self), enqueue, "events" if tagged else "apart"
        )


def kernel(number: int) -> None:
    """Stands for work; its argument tells which."""


def implied_order(steps: Sequence[Step]) -> tuple[dict[int, set[int]], set[int]]:
    """For each launch those that must have ended before it; and before the end of stream 0."""
    on_stream: list[set[int]] = [set() for _ in range(4)]
    behind: dict[int, set[int]] = {}
    before: dict[int, set[int]] = {}
    for what, stream, detail in steps:
        if what == "launch":
            before[detail[0]] = set(on_stream[stream])
            on_stream[stream].add(detail[0])
        elif what == "record":
            behind[id(detail)] = set(on_stream[stream])
        else:
            on_stream[stream] |= behind[id(detail)]
    return before, on_stream[0]


Steps = list[tuple[int, str, int]]


def enqueue_steps(steps: Steps, streams: Sequence[Stream]) -> bool:
    """Enqueue launches, events and waits; tell whether a stream waited for another."""
    events: list[tuple[int, Any]] = []
    crossed = False
    for number, (index, what, back) in enumerate(steps):
        if what == "launch":
            streams[index].launch(kernel, number)
        elif what in ("wait", "again") and events:
            at = -1 - back % len(events)
            recorded_on, event = events[at]
            if what == "again":
                events[at] = (index, streams[index].record(event))
                continue
            crossed |= recorded_on != index
            streams[index].wait(event)
        else:
            events.append((index, streams[index].record()))
    return crossed


KINDS = st.sampled_from(["launch", "record", "wait", "again"])


@given(st.lists(st.tuples(st.integers(0, 3), KINDS, st.integers(0, 3)), max_size=30))
# An event is recorded again: on the stream that waited for it, or on its own.
@example([(0, "launch", 0), (0, "record", 0), (1, "wait", 0), (1, "launch", 0), (1, "again", 0)])
@example([(0, "record", 0), (1, "wait", 0), (0, "launch", 0), (0, "again", 0), (2, "wait", 0),
          (2, "launch", 0)])  # fmt: skip
# A stream that waits for its own event is joined to no other.
@example([(1, "launch", 0), (1, "record", 0), (1, "wait", 0), (1, "launch", 0), (0, "launch", 0)])
def test_capturing_keeps_the_order_of_any_iteration(steps: Steps) -> None:
    wanted, pool = FakePool(4), FakePool(4)
    crossed = enqueue_steps(steps, cast(Sequence[Stream], wanted.streams))
    program = pool.program(lambda streams: cast(None, enqueue_steps(steps, streams)))
    true_order, _ = implied_order(wanted.log)
    orders = [implied_order(capture.steps) for capture in pool.captures]
    assert {launch: each for order, _ in orders for launch, each in order.items()} == true_order
    assert program.whole == crossed
    used = {stream for what, stream, _ in wanted.log if crossed or what == "launch"}
    if crossed:
        # One graph: forked from the first stream, and joined to it.
        ((capture,), ((_, joined),)) = pool.captures, orders
        assert joined == set(true_order)
        what, stream, fork = capture.steps[0]
        assert (what, stream, capture.index) == ("record", 0, 0)
        for index in used - {0}:
            assert ("wait", index, fork) == next(s for s in capture.steps if s[1] == index)
    else:
        # One for each stream that has work, of nothing else.
        assert {capture.index for capture in pool.captures} == used
        assert len(pool.captures) == len(used)
        for capture in pool.captures:
            assert {(s[0], s[1]) for s in capture.steps} == {("launch", capture.index)}
    # A replay launches each graph once, on its own stream; capturing launched nothing.
    assert pool.log == []
    program.enqueue(cast(Sequence[Stream], pool.streams))
    replayed = [("launch", capture.index, (capture.index, None)) for capture in pool.captures]
    assert pool.log == replayed


@pytest.mark.parametrize(
    ("waits", "says"),
    [
        (lambda streams: streams[0].synchronize(), "must not wait on the host"),
        (lambda streams: streams[0].record().synchronize(), "must not wait on the host"),
        (lambda streams: streams[0].record().query(), "must not query events"),
        (lambda streams: streams[0].wait(object()), "only for its own events"),
    ],
)
def test_iteration_that_does_more_than_enqueue_is_refused(waits: Enqueue, says: str) -> None:
    pool = FakePool(1)
    with pytest.raises(DeviceError, match=says):
        pool.program(waits)
    assert pool.captures == []


def tagged_iteration(streams: Sequence[Stream]) -> None:
    assert [(each.index, each.priority, each.handle) for each in streams] == [(0, 0, 0), (1, 1, 7)]
    streams[0].launch(kernel, 0, tag="a")
    streams[1].launch(kernel, 1, tag="b")
    streams[0].launch(kernel, 2, tag="a")


def replayed_tags(pool: FakePool, program: Program) -> list[tuple[int, str | None]]:
    pool.log.clear()
    program.enqueue(cast(Sequence[Stream], pool.streams))
    return [(stream, detail[1]) for _, stream, detail in pool.log]


def test_tags_of_a_graph_stay_those_captured() -> None:
    pool = FakePool(2)
    program = pool.program(tagged_iteration, tagged=True)
    assert (program.tags is not None, program.no_events) == (True, None)
    assert program.tags is not None
    for _ in range(3):
        program.tags.rewind()
        assert replayed_tags(pool, program) == [(0, None), (1, None)], "the graph has the events"
        found: dict[str, list[int]] = {}
        program.tags.collect(lambda ready, done: 1, found)
        assert found == {"a": [1, 1], "b": [1]}


@pytest.mark.parametrize("tagged", [True, False])
def test_graphs_of_one_launch_stand_for_it_where_they_hold_no_events(tagged: bool) -> None:
    pool = FakePool(2, graph_events=False)
    program = pool.program(tagged_iteration, tagged)
    assert program.tags is None
    assert program.no_events == ("no timing events inside graphs here" if tagged else None)
    # Stream 0 has two tagged launches: each is a graph, so that its kernels can be told.
    assert replayed_tags(pool, program) == [(0, "a"), (1, "b"), (0, "a")]


def test_eager_program_is_the_iteration_itself() -> None:
    device = open_device("sim:h200")
    plain = eager(device, tagged_iteration, False, "disturbing")
    assert plain == Program(tagged_iteration, None, "disturbing")
    assert eager(device, tagged_iteration, True).tags is not None


@pytest.mark.parametrize("percent", [10, 99_900])
def test_each_launch_takes_so_much_longer(percent: float) -> None:
    device = open_device("sim:h200")
    kernels = device.kernel_of(2_000_000), device.kernel_of(30_000_000)
    spans = []

    def enqueue(streams: Sequence[Stream]) -> None:
        for stream, each in zip(streams, kernels, strict=True):
            begin, end = device.new_event(), device.new_event()
            stream.record(begin)
            stream.launch(each)
            stream.record(end)
            spans.append((begin, end))

    def took_ns(iteration: Enqueue) -> list[int]:
        spans.clear()
        iteration(pool.streams)
        pool.synchronize()
        return [device.elapsed_ns(*span) for span in spans]

    with device.open_streams(2, None) as pool:
        plain = took_ns(enqueue)
        timed = launch_times(device, enqueue, pool.streams)
        assert list(timed.values()) == pytest.approx(plain, rel=0.01)
        spins = {place: ns * percent / 100 for place, ns in timed.items()}
        slowed = SlowedLaunches(device, enqueue, spins)
        for _ in range(2):
            for before, after in zip(plain, took_ns(slowed), strict=True):
                assert after / before - 1 == pytest.approx(percent / 100, rel=0.1)


def test_a_request_takes_so_much_longer_as_a_whole() -> None:
    device, request_ns = open_device("sim:h200"), 10_000_000
    kernel = device.kernel_of(request_ns)

    def enqueue(streams: Sequence[Stream]) -> None:
        for stream in streams:
            stream.launch(kernel)

    slower = slowed_request(device, enqueue, ["slower:50", "slower:25"], request_ns)
    took_ns = []
    with device.open_streams(2, None) as pool:
        for each in (enqueue, slower):
            began_ns = device.clock_ns()
            each(pool.streams)
            pool.synchronize()
            took_ns.append(device.clock_ns() - began_ns)
    assert took_ns[1] - took_ns[0] == pytest.approx(0.75 * request_ns, rel=0.05)
