"""What is known of single launches: events of tagged ones, and who waited for whom."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.parts.devices.launches import LaunchTrace, TagLog

from .marks import Numbered, distance

Iteration = list[tuple[str, int]]
ITERATIONS: st.SearchStrategy[Iteration] = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 2)), max_size=6
)


def collected(log: TagLog) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    log.collect(distance, found)
    return found


def test_requests_run_from_their_first_launch_to_their_last_end() -> None:
    log = TagLog(Numbered, "query")
    first, second, third = log.next("embed#1", 0), log.next("embed#2", 0), log.next("answer#1", 1)
    assert collected(log) == {
        "embed": [distance(e.ready, e.done) for e in (first, second)],
        "answer": [distance(third.ready, third.done)],
        "query": [distance(first.ready, third.done), distance(second.ready, second.done)],
    }


def test_with_a_start_launches_are_dated_by_the_ends_before_them() -> None:
    start = Numbered()
    log = TagLog(Numbered, start=start)
    first, other, second = log.next("a", 0), log.next("a", 1), log.next("a#1", 0)
    ends = [(start, first.done), (start, other.done), (first.done, second.done)]
    assert collected(log) == {"a": [distance(*each) for each in ends]}
    # Requests alone are timed where there are any.
    log = TagLog(Numbered, "query", start)
    one, two = log.next("a", 0), log.next("a#1", 0)
    assert collected(log) == {"query": [distance(one.done, two.done)]}


def test_of_repeated_iterations_the_same_request_is_another_one() -> None:
    log = TagLog(Numbered, "query")
    log.next("#7", 0)
    log.repeat(3)
    for _ in range(3):
        log.next("#7", 0)
    assert collected(log) == {"query": [1] * 3}


@settings(deadline=None)
@given(st.lists(ITERATIONS, min_size=1, max_size=4), st.integers(1, 4))
def test_like_iterations_use_the_same_events(iterations: list[Iteration], times: int) -> None:
    log = TagLog(Numbered)
    for iteration in iterations:
        log.rewind()
        last = [log.next(tag, stream) for tag, stream in iteration]
        assert [(each.tag, each.stream) for each in last] == iteration
        events = {id(event) for each in last for event in (each.ready, each.done)}
        assert len(events) == 2 * len(iteration), "two launches share an event"
    counts = Counter(tag for tag, _ in iterations[-1])
    assert collected(log) == {tag: [1] * count for tag, count in counts.items()}
    for _ in range(times):
        log.rewind()
        assert [log.next(tag, stream) for tag, stream in iterations[-1]] == last
    log.repeat(times)
    made = Numbered.made
    repeated = [log.next(tag, stream) for _ in range(times) for tag, stream in iterations[-1]]
    assert Numbered.made == made, "events were made while measuring"
    assert len({id(each.ready) for each in repeated}) == times * len(iterations[-1])
    assert collected(log) == {tag: [1] * (times * count) for tag, count in counts.items()}


def test_fixed_log_does_not_rewind() -> None:
    log = TagLog(Numbered)
    log.next("a", 0)
    log.fix()
    found: dict[str, list[int]] = {}
    for times in (1, 2, 3):
        log.rewind()
        log.collect(distance, found)
        assert found == {"a": [1] * times}


def test_a_launch_waits_for_the_last_ones_before_the_events_it_waits_for() -> None:
    trace, first, second = LaunchTrace(), Numbered(), Numbered()
    trace.waited(1, second)  # never recorded
    trace.launched(0, None)
    trace.recorded(0, first)
    trace.launched(0, "a")
    trace.recorded(0, first)
    trace.launched(0, None)
    trace.waited(1, first)
    trace.launched(1, "b")
    trace.recorded(1, second)
    for event in (first, second):
        trace.waited(2, event)
    trace.launched(2, None)
    trace.launched(1, None)
    assert [(each.stream, each.tag, each.waits_for) for each in trace.launches] == [
        (0, None, ()), (0, "a", ()), (0, None, ()), (1, "b", (1,)), (2, None, (1, 3)),
        (1, None, ()),
    ]  # fmt: skip
