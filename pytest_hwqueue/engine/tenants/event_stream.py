"""Server-sent events from the bytes of an answer as they come.

The format is that of the HTML standard (WHATWG, section 9.2.6), in any chunking: lines end with LF,
CR or CRLF, comments and unknown fields are passed over, several `data:` lines are one event. Three
things differ, for what is measured: an event has the time of its last `data:` line and not of the
empty line behind it, one that the answer's end cuts off is given all the same, and so is a line
that is no field but a body or a sentence. Why no package reads them: docs/decisions.md.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MOST_BYTES = 16 * 2**20
"""Of one event; one of a completion has some hundred bytes."""

STRAY = ""
"""Type of what is no event: an error written into the stream, or an answer that is no stream."""

_LINE_END = re.compile(rb"\r\n|\n|\r")
_MARK = b"\xef\xbb\xbf"
# JSON and HTML; names with a space in them are sentences. Other lines that are no field of the
# standard's are passed over.
_BODIES = (b"{", b"[", b"<")


class ServerSentEvent(NamedTuple):
    """One event.

    Attributes:
        type: what the server calls it; ``message`` if it does not; `STRAY` of a line that is none.
        data: its `data:` lines, joined by LF.
        at_ns: when the last of these was there.

    """

    type: str
    data: bytes
    at_ns: int


class EventTooLong(Exception):
    """An event is longer than is read."""


class EventStream:
    """Cuts bytes into events."""

    def __init__(self) -> None:
        """Begin with the first byte."""
        # Of a line whose end has not come, and of an event.
        self._begun: list[bytes] = []
        self._data: list[bytes] = []
        self._held_bytes = 0
        self._type = ""
        self._at_ns = 0
        self._first = True
        self._after_cr = False

    def feed(self, chunk: bytes, now_ns: int) -> list[ServerSentEvent]:
        """Return the events that end in a chunk.

        Args:
            chunk: follows the one before.
            now_ns: when it came.

        Raises:
            EventTooLong: if an event has more bytes than are read.

        """
        if self._after_cr and chunk:
            # LF right behind CR ends no line of its own, in whichever chunk it is.
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        self._hold(chunk)
        if b"\n" not in chunk and b"\r" not in chunk:
            self._begun.append(chunk)
            return []
        self._after_cr = chunk.endswith(b"\r")
        lines = _LINE_END.split(b"".join([*self._begun, chunk]))
        self._begun = [lines.pop()]
        return [event for line in lines if (event := self._event_at(line, now_ns)) is not None]

    def end(self, now_ns: int) -> list[ServerSentEvent]:
        """Return the event that the end of the answer cut off, if there is one."""
        rest, self._begun = b"".join(self._begun), []
        lines = [rest, b""] if rest else [b""]
        return [event for line in lines if (event := self._event_at(line, now_ns)) is not None]

    def _hold(self, chunk: bytes) -> None:
        self._held_bytes += len(chunk)
        if self._held_bytes > MOST_BYTES:
            raise EventTooLong(f"an event has more than {MOST_BYTES:,} bytes")

    def _event_at(self, line: bytes, now_ns: int) -> ServerSentEvent | None:
        """Take a line; return the event that it ends, or is."""
        if self._first:
            self._first, line = False, line.removeprefix(_MARK)
        if not line:
            event = ServerSentEvent(self._type or "message", b"\n".join(self._data), self._at_ns)
            held, self._data, self._type, self._held_bytes = self._data, [], "", 0
            return event if held else None
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._at_ns = now_ns
        elif name == b"event":
            self._type = value.decode(errors="replace")
        elif line.lstrip().startswith(_BODIES) or b" " in name.strip():
            return ServerSentEvent(STRAY, line, now_ns)
        elif name == b"error" and value.startswith(b"{"):
            # llama.cpp's, which calls a field so and no event.
            return ServerSentEvent(STRAY, value, now_ns)
        return None
