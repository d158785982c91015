"""Lines of JSON between pytest and a worker process, over two pipes. Nothing is ever unpickled.

A worker runs users' code, which may write to, or close, descriptors that it has not opened. So the
channel has descriptors far above those a program gets, and each of its lines begins with a key; a
line without it is damage, and costs the process, not the session.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import threading
import time
from typing import Any

from pytest_hwqueue.processes.descriptors import moved_up

Message = dict[str, Any]

_KEY_BYTES = 16


class ChannelClosed(EOFError):
    """The other process has gone."""


class ChannelDamaged(RuntimeError):
    """What arrived is no message: something else writes to the channel's descriptor."""


class Channel:
    """Sends and receives messages; each is one JSON object with a ``kind``."""

    def __init__(self, read_descriptor: int, write_descriptor: int, key: bytes = b"") -> None:
        """Take over two descriptors.

        Args:
            read_descriptor: of a pipe or socket.
            write_descriptor: likewise.
            key: begins each line, in both directions.

        """
        self._read = read_descriptor
        self._write = write_descriptor
        self._key = key
        # Grows in place: a message of many megabytes is not copied with each of its parts.
        self._buffer = bytearray()
        self._sending = threading.Lock()

    @classmethod
    def to_process(cls, read_descriptor: int, write_descriptor: int) -> Channel:
        """Open a process's channel; the process joins with `from_process`."""
        key = secrets.token_hex(8).encode()
        os.write(write_descriptor, key)
        return cls(read_descriptor, write_descriptor, key)

    @classmethod
    def from_process(cls, read_descriptor: int, write_descriptor: int) -> Channel:
        """Join the channel that `to_process` opened, out of the reach of users' code.

        Raises:
            ChannelClosed: if the other process has gone.

        """
        key = b""
        while len(key) < _KEY_BYTES:
            data = os.read(read_descriptor, _KEY_BYTES - len(key))
            if not data:
                raise ChannelClosed
            key += data
        return cls(moved_up(read_descriptor), moved_up(write_descriptor), key)

    def send(self, kind: str, **content: object) -> None:
        """Send a message; ChannelClosed if the other process has gone."""
        message = {"kind": kind, **content}
        text = json.dumps(_with_text_keys(message), default=str).encode()
        line = self._key + text + b"\n"
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
            ChannelDamaged: if something else has written to it.

        """
        # Unlike epoll, poll needs no descriptor of its own.
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        looked_at = 0
        while (end := self._buffer.find(b"\n", looked_at)) < 0:
            looked_at = len(self._buffer)
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not poll.poll(None if left_s is None else left_s * 1000):
                return None
            data = os.read(self._read, 1 << 20)
            if not data:
                raise ChannelClosed
            self._buffer += data
            begin = bytes(self._buffer[: len(self._key)])
            if not self._key.startswith(begin):
                raise self._damaged(begin)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        if not line.startswith(self._key):
            raise self._damaged(line)
        try:
            message: Message = json.loads(line[len(self._key) :])
        except ValueError:
            raise self._damaged(line[len(self._key) :]) from None
        return message

    def _damaged(self, found: bytes) -> ChannelDamaged:
        return ChannelDamaged(
            f"something in it writes to descriptors that it has not opened: {found[:40]!r} arrived "
            "in place of a message"
        )

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
