"""Lines of JSON between pytest and a worker process, over two pipes. Nothing is ever unpickled."""

from __future__ import annotations

import json
import os
import selectors
import threading
import time
from typing import Any

Message = dict[str, Any]


class ChannelClosed(EOFError):
    """The other process has gone."""


class Channel:
    """Sends and receives messages; each is one JSON object with a ``kind``."""

    def __init__(self, read_descriptor: int, write_descriptor: int) -> None:
        self._read = read_descriptor
        self._write = write_descriptor
        self._buffer = b""
        self._sending = threading.Lock()

    def send(self, kind: str, **content: object) -> None:
        """Send a message; ChannelClosed if the other process has gone."""
        message = {"kind": kind, **content}
        line = json.dumps(_with_text_keys(message), default=str).encode() + b"\n"
        with self._sending:
            view = memoryview(line)
            try:
                while view:
                    view = view[os.write(self._write, view) :]
            except BrokenPipeError as error:
                raise ChannelClosed from error

    def receive(self, deadline: float | None = None) -> Message | None:
        """Wait for the next message until ``deadline`` (time.monotonic()); None when it passes.

        Raises:
            ChannelClosed: if the other process has closed its end.

        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._read, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not selector.select(left):
                    return None
                data = os.read(self._read, 1 << 16)
                if not data:
                    raise ChannelClosed
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: Message = json.loads(line)
        return message

    def close(self) -> None:
        """Close both ends."""
        os.close(self._read)
        os.close(self._write)


def _with_text_keys(value: object) -> object:
    """Convert keys to text: reports may hold other types, and ``default`` sees only values."""
    if isinstance(value, dict):
        return {str(key): _with_text_keys(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_text_keys(each) for each in value]
    return value
