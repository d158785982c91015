"""What is known of single launches: events of tagged ones, and who waited for whom."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.devices.launches import LaunchTrace, TagLog
from pytest_hwqueue.devices.protocol import Event


class Numbered:
    """An event that knows only which one it is."""

    made = 0

    def __init__(self) -> None:
        self.number = Numbered.made
        Numbered.made += 1

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None


def distance(start: Event, end: Event) -> int:
    assert isinstance(start, Numbered)
    assert isinstance(end, Numbered)
    return end.number - start.number


ITERATIONS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2)), max_size=6)


def test_requests_run_from_their_first_launch_to_their_last_end() -> None:
    log = TagLog(Numbered, "query")
    first, second, third = log.next("embed#1", 0), log.next("embed#2", 0), log.next("answer#1", 1)
    found: dict[str, list[int]] = {}
    log.collect(distance, found)
    assert found["embed"] == [distance(e.ready, e.done) for e in (first, second)]
    assert found["answer"] == [distance(third.ready, third.done)]
    assert found["query"] == [
        distance(first.ready, third.done),
        distance(second.ready, second.done),
    ]


def test_with_a_start_launches_are_dated_by_the_ends_before_them() -> None:
    start = Numbered()
    log = TagLog(Numbered, start=start)
    first, other, second = log.next("a", 0), log.next("a", 1), log.next("a", 0)
    found: dict[str, list[int]] = {}
    log.collect(distance, found)
    assert found == {
        "a": [
            distance(start, first.done),
            distance(start, other.done),
            distance(first.done, second.done),
        ]
    }


def test_of_repeated_iterations_the_same_request_is_another_one() -> None:
    log = TagLog(Numbered, "query")
    log.next("#7", 0)
    log.repeat(3)
    for _ in range(3):
        log.next("#7", 0)
    found: dict[str, list[int]] = {}
    log.collect(distance, found)
    assert list(found) == ["query"]
    assert len(found["query"]) == 3


@settings(deadline=None)
@given(ITERATIONS, st.integers(1, 4))
def test_like_iterations_use_the_same_events(iteration: list[tuple[str, int]], times: int) -> None:
    log = TagLog(Numbered)
    first = [log.next(tag, stream) for tag, stream in iteration]
    for _ in range(times):
        log.rewind()
        assert [log.next(tag, stream) for tag, stream in iteration] == first
    collected: dict[str, list[int]] = {}
    log.collect(distance, collected)
    assert collected == {
        tag: [1] * sum(of == tag for of, _ in iteration) for tag in {of for of, _ in iteration}
    }


@settings(deadline=None)
@given(st.lists(ITERATIONS, min_size=1, max_size=4))
def test_only_the_last_iteration_is_collected_whatever_came_before(
    iterations: list[list[tuple[str, int]]],
) -> None:
    log = TagLog(Numbered)
    for iteration in iterations:
        log.rewind()
        given_out = [log.next(tag, stream) for tag, stream in iteration]
        assert [(each.tag, each.stream) for each in given_out] == iteration
        events = {id(event) for each in given_out for event in (each.ready, each.done)}
        assert len(events) == 2 * len(iteration), "two launches share an event"
    collected: dict[str, list[int]] = {}
    log.collect(distance, collected)
    assert {tag: len(values) for tag, values in collected.items()} == {
        tag: sum(of == tag for of, _ in iterations[-1]) for tag in {of for of, _ in iterations[-1]}
    }


@settings(deadline=None)
@given(ITERATIONS, st.integers(1, 5))
def test_repeat_makes_all_events_beforehand(iteration: list[tuple[str, int]], times: int) -> None:
    log = TagLog(Numbered)
    for tag, stream in iteration:
        log.next(tag, stream)
    log.repeat(times)
    made = Numbered.made
    given_out = [log.next(tag, stream) for _ in range(times) for tag, stream in iteration]
    assert Numbered.made == made
    assert len({id(each.ready) for each in given_out}) == times * len(iteration)
    collected: dict[str, list[int]] = {}
    log.collect(distance, collected)
    assert sum(len(values) for values in collected.values()) == times * len(iteration)


def test_fixed_log_does_not_rewind() -> None:
    log = TagLog(Numbered)
    log.next("a", 0)
    log.fix()
    for expected in ([1], [1, 1], [1, 1, 1]):
        log.rewind()
        collected = {"a": [1] * (len(expected) - 1)} if len(expected) > 1 else {}
        log.collect(distance, collected)
        assert collected == {"a": expected}


def test_nothing_logged_collects_nothing() -> None:
    collected: dict[str, list[int]] = {}
    TagLog(Numbered).collect(distance, collected)
    assert collected == {}


def test_wait_is_for_the_launch_before_the_event() -> None:
    trace, event = LaunchTrace(), Numbered()
    trace.launched(0, None)
    trace.launched(0, "a")
    trace.recorded(0, event)
    trace.launched(0, None)
    trace.waited(1, event)
    trace.launched(1, "b")
    trace.launched(1, None)
    assert [(each.stream, each.tag, each.waits_for) for each in trace.launches] == [
        (0, None, ()),
        (0, "a", ()),
        (0, None, ()),
        (1, "b", (1,)),
        (1, None, ()),
    ]


def test_launch_may_wait_for_several() -> None:
    trace = LaunchTrace()
    events = [Numbered(), Numbered()]
    for stream, event in enumerate(events):
        trace.launched(stream, None)
        trace.recorded(stream, event)
    for event in events:
        trace.waited(2, event)
    trace.launched(2, None)
    assert trace.launches[2].waits_for == (0, 1)


def test_event_recorded_again_stands_for_the_later_launch() -> None:
    trace, event = LaunchTrace(), Numbered()
    for _ in range(2):
        trace.launched(0, None)
        trace.recorded(0, event)
    trace.waited(1, event)
    trace.launched(1, None)
    assert trace.launches[2].waits_for == (1,)


def test_event_of_no_launch_is_no_wait() -> None:
    trace, event = LaunchTrace(), Numbered()
    trace.recorded(0, event)
    trace.waited(1, event)
    trace.waited(1, Numbered())
    trace.launched(1, None)
    assert trace.launches[0].waits_for == ()


Program = list[tuple[int, str, int]]
# (stream, what, back): a wait is for the event `back` before the last.
PROGRAMS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["launch", "record", "wait"]), st.integers(0, 3)),
    max_size=24,
)


@settings(deadline=None)
@given(PROGRAMS)
def test_traced_order_is_the_programs(program: Program) -> None:
    trace = LaunchTrace()
    true: list[set[int]] = []  # by launch, the launches that must have ended before it
    on_stream: list[set[int]] = [set() for _ in range(3)]
    events: list[tuple[Numbered, set[int]]] = []

    for stream, what, back in program:
        if what == "launch":
            index = trace.launched(stream, None)
            true.append(set(on_stream[stream]))
            on_stream[stream].add(index)
        elif what == "record":
            event = Numbered()
            trace.recorded(stream, event)
            events.append((event, set(on_stream[stream])))
        elif events:
            event, known = events[-1 - back % len(events)]
            trace.waited(stream, event)
            on_stream[stream] |= known
    implied: list[set[int]] = []
    last: dict[int, int] = {}
    for index, each in enumerate(trace.launches):
        direct = {*each.waits_for, *([last[each.stream]] if each.stream in last else [])}
        implied.append(direct.union(*(implied[other] for other in direct)))
        last[each.stream] = index
    assert implied == true


@pytest.mark.parametrize("launches_before", [0, 1])
def test_wait_is_passed_on_by_a_stream_without_a_launch(launches_before: int) -> None:
    trace = LaunchTrace()
    first, second = Numbered(), Numbered()
    for _ in range(launches_before):
        trace.launched(1, None)
    awaited = trace.launched(0, None)
    trace.recorded(0, first)
    trace.waited(1, first)
    trace.recorded(1, second)
    trace.waited(2, second)
    behind = trace.launched(2, None)
    assert awaited in trace.launches[behind].waits_for


def test_event_recorded_again_before_any_launch_stands_for_none() -> None:
    trace, event = LaunchTrace(), Numbered()
    trace.launched(0, None)
    trace.recorded(0, event)
    trace.recorded(1, event)
    trace.waited(2, event)
    assert trace.launches[trace.launched(2, None)].waits_for == ()


def test_launches_are_numbered_in_order() -> None:
    trace = LaunchTrace()
    indices = [trace.launched(stream, None) for stream in (2, 0, 1, 2)]
    assert all(after == before + 1 for before, after in pairwise(indices))
    assert [each.stream for each in trace.launches] == [2, 0, 1, 2]
