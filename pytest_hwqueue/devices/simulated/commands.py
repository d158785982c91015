"""Commands in hardware queues, and queues that are alone on the device.

A kernel that nothing else can affect needs no calendar: its start and its end follow from its
launch. The times are those that the calendar would give, at a fraction of the cost, and such
kernels are most of what a suite launches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from pytest_hwqueue.devices.simulated.multiprocessors import FrontEnd, Multiprocessors
from pytest_hwqueue.devices.simulated.work import GraphWork, KernelWork, Point, Work


class QueuedStream:
    """An in-order stream, its hardware queue, and where its kernels run."""

    __slots__ = (
        "busy", "context", "index", "multiprocessors", "outstanding", "priority", "process",
        "queue",
    )  # fmt: skip

    def __init__(
        self,
        index: int,
        priority: int,
        process: int,
        queue: HardwareQueue,
        context: int,
        multiprocessors: Multiprocessors,
    ) -> None:
        self.index = index
        self.priority = priority
        self.process = process
        self.queue = queue
        self.context = context
        self.multiprocessors = multiprocessors
        self.busy = False
        self.outstanding = 0


class HardwareQueue:
    """Commands of the streams mapped onto it, issued in order."""

    __slots__ = ("commands", "index", "wake_ns")

    def __init__(self, index: int) -> None:
        self.index = index
        self.commands: deque[Command | EventCommand] = deque()
        self.wake_ns = -1

    def second_overtakes(self, end_ns: int) -> bool:
        """Whether the second command may be issued while the first runs, until ``end_ns``."""
        if len(self.commands) < 2:
            return False
        first, second = self.commands[0], self.commands[1]
        if second.at_ns > end_ns:
            return False
        waits = isinstance(second, EventCommand) and second.waits
        return waits or second.stream is not first.stream


class Command:
    """Work submitted to a stream; ``points`` are the events that a graph's replay records."""

    __slots__ = ("at_ns", "done", "label", "points", "stream", "work")

    def __init__(
        self,
        stream: QueuedStream,
        at_ns: int,
        work: Work,
        done: Callable[[int], None] | None,
        label: Any,
        points: Mapping[int, Point],
    ) -> None:
        self.stream = stream
        self.at_ns = at_ns
        self.work = work
        self.done = done
        self.label = label
        self.points = points


class EventCommand:
    """An event to record, or one to wait for (``waits``)."""

    __slots__ = ("at_ns", "point", "stream", "waits")

    def __init__(self, stream: QueuedStream, at_ns: int, point: Point, *, waits: bool) -> None:
        self.stream = stream
        self.at_ns = at_ns
        self.point = point
        self.waits = waits


class GraphReplay:
    """One replay, with the number of nodes that each node still waits for."""

    __slots__ = ("command", "left", "remaining", "work")

    def __init__(self, command: Command, work: GraphWork) -> None:
        self.command = command
        self.work = work
        self.left = [len(node.after) for node in work.nodes]
        self.remaining = len(work.nodes)


class KernelLaunch:
    """A kernel on its way: of a command, or of a node of a replayed graph."""

    __slots__ = ("command", "graph", "node", "work")

    def __init__(
        self, command: Command, work: KernelWork, graph: GraphReplay | None = None, node: int = -1
    ) -> None:
        self.command = command
        self.work = work
        self.graph = graph
        self.node = node


# Command, name, start and end of a kernel.
Observe = Callable[[Command, str, int, int], None]


def run_alone(
    now_ns: int, before_ns: int, queue: HardwareQueue, front_end: FrontEnd, observe: Observe
) -> int:
    """Run the kernels at a queue's head one by one, as long as they end early enough.

    Args:
        now_ns: the time; nothing is on the device or on its way to it.
        before_ns: time until which nothing else happens.
        queue: the hardware queue.
        front_end: starts kernels of streams.
        observe: receives each kernel.

    Returns:
        The end of the last kernel that was run; ``now_ns`` if none was.

    """
    commands = queue.commands
    while commands:
        command = commands[0]
        if not isinstance(command, Command) or command.done is not None:
            break
        work, stream = command.work, command.stream
        if not isinstance(work, KernelWork) or stream.busy:
            break
        ready_ns = max(now_ns, command.at_ns)
        if front_end.free_ns > ready_ns or not stream.multiprocessors.hold(work):
            break
        start_ns = front_end.start_ns(ready_ns, queue.index)
        end_ns = start_ns + max(1, work.duration_ns)
        if end_ns >= before_ns or queue.second_overtakes(end_ns):
            break
        front_end.served(ready_ns, queue.index)
        commands.popleft()
        stream.outstanding -= 1
        observe(command, work.name, start_ns, end_ns)
        now_ns = end_ns
    return now_ns
