"""The channel: every message arrives whole and in order, or its end is known."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.processes.channel import Channel, ChannelClosed, ChannelDamaged

PAST = 0.0  # a deadline on a monotonic clock that has passed
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda children: (
        st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4)
    ),
    max_leaves=12,
)
CONTENT = st.dictionaries(st.text().filter(lambda name: name not in ("kind", "self")), JSON_VALUES)


class Ends:
    """Two channels that talk to each other, and the raw descriptors of one side."""

    def __init__(self) -> None:
        self.read, there = os.pipe()
        here, self.write = os.pipe()
        self.near = Channel(here, there)
        self.far = Channel(self.read, self.write)

    def close(self) -> None:
        for channel in (self.near, self.far):
            try:
                channel.close()
            except OSError:
                continue  # the test has closed it


@pytest.fixture
def ends() -> Iterator[Ends]:
    both = Ends()
    yield both
    both.close()


def soon() -> float:
    """A deadline that only a broken channel reaches."""
    return time.monotonic() + 30


@settings(deadline=None)
@given(st.lists(st.tuples(st.text(), CONTENT), max_size=5))
def test_messages_arrive_as_they_were_sent(messages: list[tuple[str, dict[str, Any]]]) -> None:
    ends = Ends()
    try:
        for kind, content in messages:
            ends.near.send(kind, **content)
            assert ends.far.receive(soon()) == {"kind": kind, **content}
        assert ends.far.receive(PAST) is None
    finally:
        ends.close()


def test_several_messages_in_one_reading_come_one_by_one(ends: Ends) -> None:
    for number in range(5):
        ends.near.send("n", number=number)
    received = [ends.far.receive(soon()) for _ in range(5)]
    assert received == [{"kind": "n", "number": number} for number in range(5)]


def test_message_larger_than_the_pipe_arrives_whole(ends: Ends) -> None:
    text = "x" * 3_000_000
    sender = threading.Thread(target=lambda: ends.near.send("large", text=text))
    sender.start()
    assert ends.far.receive(soon()) == {"kind": "large", "text": text}
    sender.join()


def test_partial_line_waits_for_its_rest(ends: Ends) -> None:
    line = json.dumps({"kind": "é", "value": "\u2028 line\nbreak"}, ensure_ascii=False).encode()
    for position in range(len(line)):
        os.write(ends.write, line[position : position + 1])
        assert ends.near.receive(PAST) is None
    os.write(ends.write, b'\n{"kind": "half')
    assert ends.near.receive(soon()) == {"kind": "é", "value": "\u2028 line\nbreak"}
    assert ends.near.receive(PAST) is None
    os.write(ends.write, b'"}\n')
    assert ends.near.receive(soon()) == {"kind": "half"}


def test_message_already_there_beats_a_deadline_that_has_passed(ends: Ends) -> None:
    ends.near.send("early")
    assert ends.far.receive(PAST) == {"kind": "early"}


def test_deadline_passes_without_a_message(ends: Ends) -> None:
    deadline = time.monotonic() + 0.05
    assert ends.far.receive(deadline) is None
    assert time.monotonic() >= deadline


def test_closed_peer_ends_receiving_behind_its_last_message(ends: Ends) -> None:
    ends.near.send("last")
    os.write(ends.write, b'{"kind": "never finished"')
    ends.near.close()
    assert ends.far.receive(soon()) == {"kind": "last"}
    with pytest.raises(ChannelClosed):
        ends.far.receive()


def test_sending_to_a_closed_peer_says_so(ends: Ends) -> None:
    ends.far.close()
    with pytest.raises(ChannelClosed):
        ends.near.send("anybody there")


def test_senders_of_several_threads_do_not_mix_their_lines(ends: Ends) -> None:
    together = threading.Barrier(4)

    def send(sender: int) -> None:
        together.wait(30)
        for number in range(50):
            ends.near.send("n", sender=sender, number=number, padding="x" * 5000)

    threads = [threading.Thread(target=send, args=(sender,)) for sender in range(4)]
    for thread in threads:
        thread.start()
    received: dict[int, list[int]] = {sender: [] for sender in range(4)}
    for _ in range(200):
        message = ends.far.receive(soon())
        assert message is not None
        received[message["sender"]].append(message["number"])
    for thread in threads:
        thread.join()
    assert received == {sender: list(range(50)) for sender in range(4)}


def test_value_that_is_no_json_arrives_as_its_text(ends: Ends) -> None:
    ends.near.send("report", path=Path("/a/b"), odd={1})
    assert ends.far.receive(soon()) == {"kind": "report", "path": "/a/b", "odd": "{1}"}


def test_key_that_is_no_json_arrives_as_its_text(ends: Ends) -> None:
    ends.near.send("report", properties={(1, 2): "three"})
    assert ends.far.receive(soon()) == {"kind": "report", "properties": {"(1, 2)": "three"}}


@pytest.fixture
def process_ends() -> Iterator[tuple[Channel, Channel, int]]:
    """A session's end, its process's end, and the descriptor to which the process writes."""
    read_here, write_there = os.pipe()
    read_there, write_here = os.pipe()
    wild = os.dup(write_there)
    near = Channel.to_process(read_here, write_here)
    far = Channel.from_process(read_there, write_there)
    yield near, far, wild
    near.close()
    far.close()
    os.close(wild)


@pytest.mark.parametrize("text", [b"hello\n", b"h", b'{"kind": "finished"}\n', b"\n"])
def test_what_others_write_is_no_message(
    process_ends: tuple[Channel, Channel, int], text: bytes
) -> None:
    near, far, wild = process_ends
    far.send("before")
    assert near.receive(soon()) == {"kind": "before"}
    os.write(wild, text)
    with pytest.raises(ChannelDamaged, match="descriptors that it has not opened"):
        near.receive(soon())


def test_text_inside_a_message_is_damage(process_ends: tuple[Channel, Channel, int]) -> None:
    near, far, wild = process_ends
    far.send("begun")
    begun = near.receive(soon())
    assert begun is not None
    os.write(wild, far._key + b'{"kind": "rep' + b"hello\n")
    with pytest.raises(ChannelDamaged):
        near.receive(soon())


def test_users_code_does_not_come_upon_the_channel(
    process_ends: tuple[Channel, Channel, int],
) -> None:
    near, far, _ = process_ends
    fresh = os.open(os.devnull, os.O_RDONLY)
    os.close(fresh)
    assert min(far._read, far._write) > fresh + 100
    assert not os.get_inheritable(far._read)
    near.send("run", item="x")
    assert far.receive(soon()) == {"kind": "run", "item": "x"}


def test_a_forked_child_cannot_send_as_its_parent(
    process_ends: tuple[Channel, Channel, int],
) -> None:
    near, far, _ = process_ends
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
