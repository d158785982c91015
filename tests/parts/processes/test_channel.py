"""The channel: every message arrives whole and in order, or its end is known."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.data.errors import HwqError
from pytest_hwqueue.parts.processes.channel import Channel, ProcessEnded
from pytest_hwqueue.parts.processes.reaper import innermost_frames

PAST = 0.0  # a deadline on a monotonic clock that has passed
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False)
    | st.text(),
    lambda children: (
        st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4)
    ),
    max_leaves=12,
)  # fmt: skip
CONTENT = st.dictionaries(st.text().filter(lambda name: name not in ("kind", "self")), JSON_VALUES)


class Ends(NamedTuple):
    """A session's end, its process's end, and the descriptor to which the process writes."""

    near: Channel
    far: Channel
    wild: int


@contextmanager
def connected() -> Iterator[Ends]:
    (read_here, write_there), (read_there, write_here) = os.pipe(), os.pipe()
    wild = os.dup(write_there)
    near = Channel.to_process(read_here, write_here)
    far = Channel.from_process(read_there, write_there)
    yield Ends(near, far, wild)
    for close in (near.close, far.close, lambda: os.close(wild)):
        with suppress(OSError):  # the test has closed it
            close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    with connected() as both:
        yield both


def soon() -> float:
    """A deadline that only a broken channel reaches."""
    return time.monotonic() + 30


@settings(max_examples=40)
@given(st.lists(st.tuples(st.text(), CONTENT), max_size=3))
def test_messages_arrive_as_they_were_sent_one_by_one(
    messages: list[tuple[str, dict[str, Any]]],
) -> None:
    with connected() as (near, far, _):
        for kind, content in messages:
            near.send(kind, **content)
        # One that is there beats a deadline that has passed.
        received = [far.receive(PAST) for _ in messages]
        assert received == [{"kind": kind, **content} for kind, content in messages]
        assert far.receive(PAST) is None


def test_values_that_are_no_json_arrive_as_their_text(ends: Ends) -> None:
    ends.near.send("report", path=Path("/a/b"), odd={1})
    assert ends.far.receive(soon()) == {"kind": "report", "path": "/a/b", "odd": "{1}"}


def test_messages_larger_than_the_pipe_of_several_threads_do_not_mix(ends: Ends) -> None:
    sent = [[(sender, number, "x" * 300_000) for number in range(5)] for sender in range(4)]

    def send(messages: list[tuple[int, int, str]]) -> None:
        for content in messages:
            ends.near.send("n", content=content)

    for messages in sent:
        threading.Thread(target=send, args=(messages,), daemon=True).start()
    received = [(ends.far.receive(soon()) or {})["content"] for _ in range(20)]
    assert sorted(received, key=lambda content: content[0]) == [
        list(each) for messages in sent for each in messages
    ]


def test_a_partial_line_waits_for_its_rest_until_its_sender_is_gone() -> None:
    (here, write), (read, there) = os.pipe(), os.pipe()
    with closing(Channel(here, there)) as channel:
        line = json.dumps({"kind": "é", "value": "\u2028 line\nbreak"}, ensure_ascii=False).encode()
        for position in range(len(line)):
            os.write(write, line[position : position + 1])
            assert channel.receive(PAST) is None
        os.write(write, b'\n{"kind": "half')
        assert channel.receive(soon()) == {"kind": "é", "value": "\u2028 line\nbreak"}
        deadline = time.monotonic() + 0.05
        assert channel.receive(deadline) is None
        assert time.monotonic() >= deadline
        os.write(write, b'"}\n{"kind": "never finished"')
        os.close(write)
        assert channel.receive(soon()) == {"kind": "half"}
        with pytest.raises(ProcessEnded):
            channel.receive()
        os.close(read)
        with pytest.raises(ProcessEnded):
            channel.send("anybody there")


@pytest.mark.parametrize("text", [b"h", b'{"kind": "finished"}\n', b"\n", b'KEY{"kind": "re" hi\n'])
def test_what_others_write_is_no_message(ends: Ends, text: bytes) -> None:
    ends.far.send("before")
    assert ends.near.receive(soon()) == {"kind": "before"}
    os.write(ends.wild, text.replace(b"KEY", ends.far._key))
    with pytest.raises(HwqError, match="descriptors that it has not opened"):
        ends.near.receive(soon())


def test_users_code_does_not_come_upon_the_channel_nor_do_its_forks(ends: Ends) -> None:
    near, far, _ = ends
    fresh = os.open(os.devnull, os.O_RDONLY)
    os.close(fresh)
    assert min(far._read, far._write) > fresh + 100
    assert not os.get_inheritable(far._read)
    child = os.fork()
    if child == 0:
        try:
            far.send("finished")
        except RuntimeError:
            os._exit(7)
        os._exit(0)
    _, how = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(how) == 7
    far.send("mine")
    assert near.receive(soon()) == {"kind": "mine"}


@given(st.lists(st.integers(0, 20), min_size=1, max_size=5))
def test_each_stack_is_shortened_by_itself(depths: list[int]) -> None:
    dump, expected = [], []
    for thread, depth in enumerate(depths):
        heading = f"Thread 0x{thread:x} (most recent call first):"
        frames = [f'  File "f.py", line {n} in f{thread}_{n}' for n in range(depth)]
        dump += [heading, *frames]
        expected += [heading, *frames[:6], *(["  …"] if depth > 6 else [])]
    assert innermost_frames("\n".join(dump)).splitlines() == expected
