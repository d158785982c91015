"""Events that stand for points, programs that record and await them, and events of Kineto's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from pytest_hwqueue.parts.devices.protocol import Event

# Only how long a broken device may hold a test up; what holds never waits as long.
PATIENCE_S = 30.0


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


class Numbered:
    """An event that is passed as soon as it is made, and numbered."""

    made = 0

    def __init__(self) -> None:
        self.number = Numbered.made
        Numbered.made += 1

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None


def distance(start: Event, end: Event) -> int:
    """How many events later the second one was made."""
    assert isinstance(start, Numbered)
    assert isinstance(end, Numbered)
    return end.number - start.number


def complete(
    category: str, name: str, start_ns: int, ns: int, tid: int = 0, pid: int = 0, **arguments: Any
) -> dict[str, Any]:
    """What Kineto writes of a call, a range or a kernel."""
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start_ns / 1000,
        "dur": ns / 1000, "args": arguments,
    }  # fmt: skip


# (stream, what, back): the event `back` before the last is waited for, or recorded again.
Program = list[tuple[int, str, int]]
PROGRAMS: st.SearchStrategy[Program] = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["launch", "record", "again", "wait"]),
        st.integers(0, 4),
    ),
    max_size=40,
)


def play(
    program: Program,
    launch: Callable[[int], object],
    record: Callable[[int, Event | None], Event],
    wait: Callable[[int, Event], object],
) -> list[set[int]]:
    """Run a program; return for each launch the launches that must have ended before it."""
    before: list[set[int]] = []
    seen: list[set[int]] = [set() for _ in range(3)]  # by stream, what has run when it goes on
    events: list[tuple[Event, set[int]]] = []
    for stream, what, back in program:
        place = -1 - back % max(1, len(events))
        if what == "launch":
            launch(stream)
            before.append(set(seen[stream]))
            seen[stream].add(len(before) - 1)
        elif what == "record":
            events.append((record(stream, None), set(seen[stream])))
        elif events and what == "again":
            events[place] = record(stream, events[place][0]), set(seen[stream])
        elif events:
            event, known = events[place]
            wait(stream, event)
            seen[stream] |= known
    return before
