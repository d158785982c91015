"""What is enqueued on a simulated device: kernels, copies, graphs, events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_hwqueue.devices.protocol import Event
from pytest_hwqueue.errors import DeviceError

if TYPE_CHECKING:
    from pytest_hwqueue.devices.simulated.pool import SimulatedPool


@dataclass(frozen=True)
class KernelWork:
    """One kernel.

    Attributes:
        duration_ns: how long it runs with the whole device to itself.
        blocks: number of its blocks.
        slots_per_block: how many of a multiprocessor's slots one block occupies.
        waves_at_most: upper bound on the number of waves its blocks run in; a kernel whose blocks
            stay and fetch their work themselves (a persistent one) has 1.
        name: for timelines.
        within: whether a library launches it within the operation of the kernel before it, at no
            cost of its own to the host.
        memory_bound: whether the memory's bandwidth sets its duration, so that fewer
            multiprocessors run it as fast.

    """

    duration_ns: int
    blocks: int = 1
    slots_per_block: int = 1
    waves_at_most: int | None = None
    name: str = "kernel"
    within: bool = False
    # Follows from the others: no part of what tells kernels apart (`costs`).
    memory_bound: bool = field(default=False, repr=False)


@dataclass(frozen=True)
class CopyWork:
    """One copy by a copy engine, which serves one copy at a time."""

    size_bytes: int
    engine: int = 0
    name: str = "copy"


class Point:
    """One recording of an event: passed once, at a time; who waits for it is notified."""

    __slots__ = ("place", "waiters", "when_ns")

    def __init__(self) -> None:
        self.when_ns: int | None = None
        # Among the points of the iteration that made it (see `repeats`); -1 in no iteration.
        self.place = -1
        self.waiters: list[Callable[[], None]] = []

    def pass_at(self, when_ns: int) -> None:
        """Mark the point as passed and wake who waits."""
        self.when_ns = when_ns
        waiters, self.waiters = self.waiters, []
        for wake in waiters:
            wake()


@dataclass(frozen=True)
class GraphNode:
    """A node of a graph: a kernel, a copy, or None for an event's recording.

    Attributes:
        work: what it does.
        after: indices of the nodes that must have ended before it starts.

    """

    work: KernelWork | CopyWork | None
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class GraphWork:
    """Work captured once and launched as one command; nodes stand behind those they wait for."""

    nodes: tuple[GraphNode, ...]

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """For each node, the nodes that wait for it."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for index, node in enumerate(self.nodes):
            for before in node.after:
                found[before].append(index)
        return tuple(tuple(indices) for indices in found)


Work = KernelWork | CopyWork | GraphWork


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
