"""What stands in hardware queues and what is on its way from there to the multiprocessors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from pytest_hwqueue.devices.simulated.work import GraphWork, KernelWork, Point, Work


class QueuedStream:
    """An in-order stream and the hardware queue it is mapped onto."""

    __slots__ = ("busy", "index", "outstanding", "priority", "process", "queue")

    def __init__(self, index: int, priority: int, process: int, queue: HardwareQueue) -> None:
        self.index = index
        self.priority = priority
        self.process = process
        self.queue = queue
        self.busy = False
        self.outstanding = 0


class HardwareQueue:
    """Commands of the streams mapped onto it, issued in order."""

    __slots__ = ("commands", "index", "wake_ns")

    def __init__(self, index: int) -> None:
        self.index = index
        self.commands: deque[Command] = deque()
        self.wake_ns = -1


class Command:
    """Work, an event to record (``point``), or one to wait for (``waits``)."""

    __slots__ = ("at_ns", "done", "label", "point", "stream", "waits", "work")

    def __init__(self, stream: QueuedStream, at_ns: int) -> None:
        self.stream = stream
        self.at_ns = at_ns
        self.work: Work | None = None
        self.point: Point | None = None
        self.waits = False
        self.done: Callable[[int], None] | None = None
        self.label: Any = None


class GraphReplay:
    """One replay: how many nodes each node still waits for."""

    __slots__ = ("command", "left", "points", "remaining", "work")

    def __init__(self, command: Command, work: GraphWork, points: dict[int, Point]) -> None:
        self.command = command
        self.work = work
        self.points = points
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
