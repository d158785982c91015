"""Programs: what a graph captures of an iteration, and that nothing of its order is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.devices.launches import TagLog
from pytest_hwqueue.devices.protocol import Device, Event, Stream, StreamPool
from pytest_hwqueue.errors import DeviceError
from pytest_hwqueue.harness.program import Program, eager, graph

Step = tuple[str, int, object]


class FakeEvent:
    """An event that stands where it was recorded."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None


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
        self.pool.log.append(("launch", self.index, (function, arguments, tag)))

    def record(self, event: Event | None = None) -> Event:
        recorded = FakeEvent() if event is None else event
        self.pool.log.append(("record", self.index, recorded))
        return recorded

    def wait(self, event: Event) -> None:
        self.pool.log.append(("wait", self.index, event))

    def synchronize(self) -> None:
        return None


@dataclass
class Capture:
    """What was enqueued between the beginning of a capture and its end."""

    index: int
    steps: list[Step]

    def __call__(self) -> None:
        """Replay it."""


@dataclass
class FakePool:
    """Streams that log, and captures that keep what they saw."""

    count: int
    tags: TagLog | None = None
    log: list[Step] = field(default_factory=list)
    captures: list[Capture] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.streams = [FakeStream(index, self) for index in range(self.count)]

    def synchronize(self) -> None:
        return None

    def capture(self, index: int, enqueue: Callable[[], None]) -> Callable[[], None]:
        before, self.log = self.log, []
        enqueue()
        capture = Capture(index, self.log)
        self.log = before
        self.captures.append(capture)
        return capture


class FakeDevice:
    """Makes events, also for graphs unless told otherwise."""

    def __init__(self, graph_events: bool = True) -> None:
        self._graph_events = graph_events

    def new_event(self) -> FakeEvent:
        return FakeEvent()

    def new_graph_event(self) -> FakeEvent:
        if not self._graph_events:
            raise DeviceError("no timing events inside graphs here")
        return FakeEvent()


def captured(
    pool: FakePool,
    enqueue: Callable[[Sequence[Stream]], None],
    tagged: bool = False,
    graph_events: bool = True,
) -> Program:
    device = cast(Device, FakeDevice(graph_events))
    return graph(device, cast(StreamPool, pool), enqueue, tagged)


def kernel(number: int) -> None:
    """Stands for work; its argument tells which."""


def numbers(steps: Sequence[Step], index: int | None = None) -> list[Any]:
    return [
        cast(tuple[Any, tuple[Any, ...], Any], detail)[1][0]
        for what, stream, detail in steps
        if what == "launch" and index in (None, stream)
    ]


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), max_size=20))
def test_independent_streams_are_captured_one_by_one(launched_on: list[int]) -> None:
    def enqueue(streams: Sequence[Stream]) -> None:
        for number, index in enumerate(launched_on):
            streams[index].launch(kernel, number)

    pool = FakePool(5)
    captured(pool, enqueue)
    assert sorted(capture.index for capture in pool.captures) == sorted(set(launched_on))
    for capture in pool.captures:
        assert {(what, stream) for what, stream, _ in capture.steps} == {("launch", capture.index)}
        assert numbers(capture.steps) == [
            number for number, index in enumerate(launched_on) if index == capture.index
        ]


def test_waiting_for_its_own_event_does_not_join_a_stream_to_others() -> None:
    def enqueue(streams: Sequence[Stream]) -> None:
        for stream in streams:
            stream.launch(kernel, stream.index)
            stream.wait(stream.record())
            stream.launch(kernel, 10 + stream.index)

    pool = FakePool(2)
    captured(pool, enqueue)
    assert [numbers(capture.steps) for capture in pool.captures] == [[0, 10], [1, 11]]


def implied_order(steps: Sequence[Step], count: int) -> dict[object, set[object]]:
    """For each launch, by its number, the launches that must have ended before it."""
    on_stream: list[set[object]] = [set() for _ in range(count)]
    behind: dict[int, set[object]] = {}
    before: dict[object, set[object]] = {}
    for what, stream, detail in steps:
        if what == "launch":
            number = cast(tuple[Any, tuple[Any, ...], Any], detail)[1][0]
            before[number] = set(on_stream[stream])
            on_stream[stream].add(number)
        elif what == "record":
            behind[id(detail)] = set(on_stream[stream])
        else:
            on_stream[stream] |= behind[id(detail)]
    return before


PROGRAMS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["launch", "record", "wait"]), st.integers(0, 3)),
    max_size=30,
)


def enqueue_program(program: list[tuple[int, str, int]], streams: Sequence[Stream]) -> bool:
    """Enqueue a program; tell whether one of its streams waited for another."""
    events: list[tuple[int, Event]] = []
    crossed = False
    for number, (index, what, back) in enumerate(program):
        if what == "launch":
            streams[index].launch(kernel, number)
        elif what == "wait" and events:
            recorded_on, event = events[-1 - back % len(events)]
            crossed |= recorded_on != index
            streams[index].wait(event)
        else:
            events.append((index, streams[index].record()))
    return crossed


@settings(deadline=None)
@given(PROGRAMS)
def test_capturing_keeps_the_order_of_any_program(program: list[tuple[int, str, int]]) -> None:
    wanted = FakePool(4)
    crossed = enqueue_program(program, cast(Sequence[Stream], wanted.streams))
    pool = FakePool(4)

    def enqueue(streams: Sequence[Stream]) -> None:
        enqueue_program(program, streams)

    captured(pool, enqueue)
    true_order = implied_order(wanted.log, 4)
    if crossed:
        (capture,) = pool.captures
        assert implied_order(capture.steps, 4) == true_order
    else:
        # Independent streams: what a graph has launches in its order is all the order there is.
        orders = [implied_order(capture.steps, 4) for capture in pool.captures]
        assert {
            number: before for order in orders for number, before in order.items()
        } == true_order


@settings(deadline=None)
@given(PROGRAMS)
def test_crossing_streams_are_forked_from_the_first_and_joined_to_it(
    program: list[tuple[int, str, int]],
) -> None:
    pool = FakePool(4)
    crossings: list[bool] = []
    captured(pool, lambda streams: crossings.append(enqueue_program(program, streams)))
    if not crossings[0]:
        return
    (capture,) = pool.captures
    assert capture.index == 0
    used = {stream for _, stream, _ in capture.steps}
    # In place of each stream's first step it has waited for an event of stream 0, and stream 0
    # has waited for an event that each stream recorded behind all its steps.
    what, stream, fork = capture.steps[0]
    assert (what, stream) == ("record", 0)
    for index in used - {0}:
        own = [step for step in capture.steps if step[1] == index]
        assert own[0] == ("wait", index, fork)
        assert own[-1][0] == "record"
        assert ("wait", 0, own[-1][2]) in capture.steps[capture.steps.index(own[-1]) :]


def test_event_recorded_again_on_the_waiting_stream_still_crosses() -> None:
    def enqueue(streams: Sequence[Stream]) -> None:
        streams[0].launch(kernel, 0)
        event = streams[0].record()
        streams[1].wait(event)
        streams[1].launch(kernel, 1)
        streams[1].record(event)

    pool = FakePool(2)
    captured(pool, enqueue)
    before = [implied_order(capture.steps, 2) for capture in pool.captures]
    assert {k: v for each in before for k, v in each.items()} == {0: set(), 1: {0}}


def test_event_may_be_recorded_again_on_its_own_stream() -> None:
    def enqueue(streams: Sequence[Stream]) -> None:
        streams[0].launch(kernel, 0)
        event = streams[0].record()
        streams[1].wait(event)
        streams[1].launch(kernel, 1)
        streams[0].launch(kernel, 2)
        streams[0].record(event)
        streams[2].wait(event)
        streams[2].launch(kernel, 3)

    pool = FakePool(3)
    captured(pool, enqueue)
    (capture,) = pool.captures
    assert implied_order(capture.steps, 3) == {0: set(), 1: {0}, 2: {0}, 3: {0, 2}}


@pytest.mark.parametrize(
    ("waits", "says"),
    [
        (lambda streams: streams[0].synchronize(), "must not wait on the host"),
        (lambda streams: streams[0].record().synchronize(), "must not wait on the host"),
        (lambda streams: streams[0].record().query(), "must not query events"),
        (lambda streams: streams[0].wait(FakeEvent()), "only for its own events"),
    ],
)
def test_iteration_that_does_more_than_enqueue_is_refused(
    waits: Callable[[Sequence[Stream]], None], says: str
) -> None:
    pool = FakePool(1)
    with pytest.raises(DeviceError, match=says):
        captured(pool, waits)
    assert pool.captures == []


def test_taped_streams_are_those_of_the_pool() -> None:
    seen: list[tuple[int, int, int]] = []

    def enqueue(streams: Sequence[Stream]) -> None:
        seen.extend((stream.index, stream.priority, stream.handle) for stream in streams)

    pool = FakePool(2)
    pool.streams[1].priority, pool.streams[1].handle = 1, 77
    captured(pool, enqueue)
    assert seen == [(0, 0, 0), (1, 1, 77)]


def test_replaying_launches_each_graph_once_on_its_own_stream() -> None:
    def enqueue(streams: Sequence[Stream]) -> None:
        for index in (2, 0, 2):
            streams[index].launch(kernel, index)

    pool = FakePool(3)
    program = captured(pool, enqueue)
    assert pool.log == []
    program.enqueue(cast(Sequence[Stream], pool.streams))
    launched = [(stream, cast(Any, detail)[0]) for _, stream, detail in pool.log]
    assert launched == [(capture.index, capture) for capture in pool.captures]


def tagged_iteration(streams: Sequence[Stream]) -> None:
    streams[0].launch(kernel, 0, tag="a")
    streams[1].launch(kernel, 1, tag="b")
    streams[0].launch(kernel, 2, tag="a")


def collected(program: Program) -> dict[str, int]:
    assert program.tags is not None
    found: dict[str, list[int]] = {}
    program.tags.collect(lambda ready, done: 1, found)
    return {tag: len(values) for tag, values in found.items()}


def test_tags_of_a_graph_stay_those_captured() -> None:
    pool = FakePool(2)
    program = captured(pool, tagged_iteration, tagged=True)
    assert program.tags is not None
    assert pool.tags is None, "launches of the replay itself must not be logged"
    for _ in range(3):
        program.tags.rewind()
        program.enqueue(cast(Sequence[Stream], pool.streams))
        assert collected(program) == {"a": 2, "b": 1}
    tags = [cast(Any, detail)[2] for capture in pool.captures for _, _, detail in capture.steps]
    assert tags == ["a", "a", "b"]


def test_tags_are_refused_where_a_graph_has_no_timing_events() -> None:
    program = captured(FakePool(2), tagged_iteration, tagged=True, graph_events=False)
    assert program.tags is None
    assert program.no_events == "no timing events inside graphs here"


def test_graph_without_tags_logs_none() -> None:
    program = captured(FakePool(2), tagged_iteration)
    assert (program.tags, program.no_events) == (None, None)


def replayed_tags(pool: FakePool, program: Program) -> list[tuple[int, str | None]]:
    pool.log.clear()
    program.enqueue(cast(Sequence[Stream], pool.streams))
    return [(stream, cast(Any, detail)[2]) for _, stream, detail in pool.log]


def test_graph_of_one_launch_stands_for_it_where_it_holds_no_events() -> None:
    pool = FakePool(2)
    program = captured(pool, tagged_iteration, tagged=True, graph_events=False)
    # Stream 0 has two tagged launches: each is a graph, so that its kernels can be told.
    assert replayed_tags(pool, program) == [(0, "a"), (1, "b"), (0, "a")]
    assert replayed_tags(pool, captured(pool, tagged_iteration)) == [(0, "a"), (1, "b"), (0, "a")]
    timed = captured(pool, tagged_iteration, tagged=True)
    assert replayed_tags(pool, timed) == [(0, None), (1, None)], "the graph records the events"


def test_program_says_whether_all_streams_are_in_one_graph() -> None:
    def crossing(streams: Sequence[Stream]) -> None:
        streams[0].launch(kernel, 0)
        streams[1].wait(streams[0].record())
        streams[1].launch(kernel, 1)

    assert captured(FakePool(2), crossing).whole
    assert not captured(FakePool(2), tagged_iteration).whole


def test_eager_program_is_the_iteration_itself() -> None:
    device = cast(Device, FakeDevice())
    assert eager(device, tagged_iteration, tagged=False) == Program(tagged_iteration, None)
    assert eager(device, tagged_iteration, False, "disturbing").no_events == "disturbing"
    tagged = eager(device, tagged_iteration, tagged=True)
    assert tagged.enqueue is tagged_iteration
    assert tagged.tags is not None
    tagged.tags.next("a", 0)
    tagged.tags.rewind()
    assert collected(tagged) == {}
