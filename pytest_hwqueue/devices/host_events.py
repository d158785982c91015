"""Events of the host device: timestamps taken by a stream's own thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from pytest_hwqueue.devices.protocol import Event


class Recording:
    """One recording of an event: a stream's thread stamps it once, and others wait for that."""

    __slots__ = ("_gate", "passed", "when_ns")

    def __init__(self) -> None:
        self.when_ns = 0
        self.passed = False
        # A bare lock, held until the stamp: much lighter than threading.Event.
        self._gate = threading.Lock()
        self._gate.acquire()

    def stamp(self, when_ns: int) -> None:
        """Mark the point as passed at ``when_ns``; called once, by the stream's thread."""
        self.when_ns = when_ns
        self.passed = True
        self._gate.release()

    def wait(self) -> None:
        """Block the calling thread until the point is passed."""
        if not self.passed:
            with self._gate:
                pass


class JoinedRecording:
    """Recordings on several streams as one: passed when all are, at the time of the last."""

    def __init__(self, recordings: Sequence[Recording]) -> None:
        self._recordings = recordings

    @property
    def when_ns(self) -> int:
        """When the last of them was passed."""
        return max(recording.when_ns for recording in self._recordings)

    @property
    def passed(self) -> bool:
        """Whether all of them are passed."""
        return all(recording.passed for recording in self._recordings)

    def wait(self) -> None:
        """Block the calling thread until all of them are passed."""
        for recording in self._recordings:
            recording.wait()


class HostEvent:
    """A timestamp taken by the stream's own thread.

    Recordings are separate, so that an earlier one does not release those waiting for a later one.
    """

    def __init__(self) -> None:
        self.recording: Recording | JoinedRecording | None = None

    @property
    def when_ns(self) -> int:
        """When the last recording was passed; 0 if there is none."""
        return self.recording.when_ns if self.recording is not None else 0

    def query(self) -> bool:
        """Whether the stream has passed the point; true if never recorded."""
        return self.recording is None or self.recording.passed

    def synchronize(self) -> None:
        """Block the calling thread until the stream has passed the point."""
        if self.recording is not None:
            self.recording.wait()

    def record(self) -> Recording:
        """Begin a new recording, for a stream to stamp."""
        self.recording = recording = Recording()
        return recording


def host_event(event: Event) -> HostEvent:
    """Return the host device's event; TypeError if it belongs to another device."""
    if not isinstance(event, HostEvent):
        raise TypeError(f"the host device got an event of another device: {event!r}")
    return event
