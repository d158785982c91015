"""The virtual host clock, and events on the simulated device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_hwqueue.devices.protocol import Event
from pytest_hwqueue.devices.simulated.work import Point
from pytest_hwqueue.errors import DeviceError

if TYPE_CHECKING:
    from pytest_hwqueue.devices.simulated.pool import SimulatedPool


class HostClock:
    """Virtual time of the one host thread, in ns since the device was opened."""

    def __init__(self) -> None:
        self.now_ns = 0

    def advance(self, duration_ns: int) -> None:
        """Have the host work for a time."""
        self.now_ns += duration_ns

    def reach(self, when_ns: int) -> None:
        """Have the host wait until a time, unless it has passed."""
        self.now_ns = max(self.now_ns, when_ns)


class SimulatedEvent:
    """An event in the device's virtual time; it may follow several streams."""

    def __init__(self, *, in_graphs: bool = False) -> None:
        self.in_graphs = in_graphs
        self._points: Sequence[Point] = ()
        self._pool: SimulatedPool | None = None

    @property
    def points(self) -> Sequence[Point]:
        """The points of the last recording."""
        return self._points

    @property
    def when_ns(self) -> int:
        """When the last recording was passed.

        Raises:
            DeviceError: if there is none, or it has not been passed.

        """
        times = [point.when_ns for point in self._points]
        if self._pool is None or not times:
            raise DeviceError("a time was asked of an event that was never recorded")
        if None in times:
            # The model may be behind the host: it tells what has happened by now.
            self._pool.repeats.leave()
            times = [point.when_ns for point in self._points]
        if None in times:
            raise DeviceError("a time was asked of an event that the device has not passed")
        return max(time for time in times if time is not None)

    def begin(self, pool: SimulatedPool, count: int = 1) -> Sequence[Point]:
        """Start a new recording of ``count`` points and return them."""
        self._pool = pool
        self._points = [Point() for _ in range(count)]
        return self._points

    def query(self) -> bool:
        """Whether the streams have passed the point; true if never recorded.

        A poll that finds it not passed advances the host's clock to the next event on the device:
        until then further polls would find the same.
        """
        if self._pool is None:
            return True
        return self._pool.poll(self._points)

    def synchronize(self) -> None:
        """Have the host wait until the streams have passed the point."""
        if self._pool is not None:
            self._pool.wait_for(self._points)


def simulated_event(event: Event) -> SimulatedEvent:
    """Return the event as this device's.

    Raises:
        TypeError: if it belongs to another device.

    """
    if not isinstance(event, SimulatedEvent):
        raise TypeError(f"the simulated device got an event of another device: {event!r}")
    return event
