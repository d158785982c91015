"""Server-sent events, cut anywhere."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.engine.tenants.event_stream import (
    MOST_BYTES,
    STRAY,
    EventStream,
    EventTooLong,
    ServerSentEvent,
)

TEXTS = st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=20)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])
NOISE = st.lists(
    st.one_of(
        TEXTS.map(lambda text: f": {text}"), st.just(":"), st.just("retry: 10"), st.just("id: 7"),
        st.just("id"), st.just("unknown: field"),
    ),
    max_size=2,
)  # fmt: skip


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[tuple[str, str]]]:
    """Return a stream, and the type and data of its events."""
    wanted, written = [], [draw(st.sampled_from(["", "\ufeff"]))]
    for _ in range(draw(st.integers(0, 4))):
        lines = draw(st.lists(TEXTS, max_size=3))
        name = draw(st.sampled_from(["", "ping", "error"]))
        parts = [*draw(NOISE), *([f"event: {name}"] if name else [])]
        for line in lines:
            # One space behind the colon is not part of it.
            parts += [f"data:{' ' if line[:1] == ' ' or draw(st.booleans()) else ''}"
                      f"{line}", *draw(NOISE)]  # fmt: skip
        for part in [*parts, ""]:
            # LF right behind CR would end no line.
            ends = ENDS if part or not written[-1].endswith("\r") else st.just("\r")
            written.append(f"{part}{draw(ends)}")
        if lines:
            wanted.append((name or "message", "\n".join(lines)))
    return "".join(written).encode(), wanted


@given(streams(), st.data())
def test_every_split_of_bytes_gives_the_same_events(
    stream: tuple[bytes, list[tuple[str, str]]], data: st.DataObject
) -> None:
    whole, wanted = stream
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    if data.draw(st.booleans()):
        cuts = list(range(len(whole)))
    reader, found = EventStream(), list[ServerSentEvent]()
    for start, end in pairwise([0, *cuts, len(whole)]):
        found += reader.feed(whole[start:end], end)
    found += reader.end(len(whole))
    assert [(each.type, each.data.decode()) for each in found] == wanted
    assert [each.at_ns for each in found] == sorted(each.at_ns for each in found)


def test_an_event_has_the_time_of_its_last_data_line() -> None:
    reader = EventStream()
    assert reader.feed(b"data: a\ndata: b", 10) == []
    assert reader.feed(b"\n", 20) == []
    assert reader.feed(b": the empty line comes later\n", 30) == []
    assert reader.feed(b"\ndata: c\n", 40) == [ServerSentEvent("message", b"a\nb", 20)]
    # What the end cuts off is given, at its own time.
    assert reader.end(50) == [ServerSentEvent("message", b"c", 40)]
    assert reader.end(60) == []


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (b": {\n\n", []), (b"hm\nfoo: bar\nerror: soon\n\n", []),
        (b'{"error": 1}\n', [b'{"error": 1}']), (b'{"error": 1}', [b'{"error": 1}']),
        (b'error: {"code": 500}\n\n', [b'{"code": 500}']),
        (b"upstream connect error: reset\n", [b"upstream connect error: reset"]),
        (b"data: a\n\n<html>\ndata: b\n\n{\n", [b"a", b"<html>", b"b", b"{"]),
    ],
)  # fmt: skip
def test_a_body_or_a_sentence_among_the_events_is_given_in_its_place(
    text: bytes, wanted: list[bytes]
) -> None:
    reader = EventStream()
    found = [*reader.feed(text, 0), *reader.end(0)]
    assert [each.data for each in found] == wanted
    of_stray = [each.data for each in found if each.type == STRAY]
    assert of_stray == [each for each in wanted if len(each) > 1 or each == b"{"]


def test_what_is_held_of_one_event_has_a_limit_and_of_many_none() -> None:
    reader, part = EventStream(), MOST_BYTES // 2
    for _ in range(3):
        assert len(reader.feed(b"data: " + b"x" * part + b"\n\n", 0)) == 1
    for _ in range(2):
        reader.feed(b"x" * part, 0)
    with pytest.raises(EventTooLong, match="more than 16,777,216 bytes"):
        reader.feed(b"x", 0)
    many = EventStream()
    for _ in range(7):
        many.feed(b"data: " + b"x" * (MOST_BYTES // 8) + b"\n", 0)
    with pytest.raises(EventTooLong):
        many.feed(b"data: " + b"x" * (MOST_BYTES // 8) + b"\n", 0)


def test_one_chunk_may_have_many_events() -> None:
    events = [json.dumps({"n": number}) for number in range(5000)]
    chunk = "".join(f"data: {event}\n\n" for event in events).encode()
    assert [each.data.decode() for each in EventStream().feed(chunk, 0)] == events
