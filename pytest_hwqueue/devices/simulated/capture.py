"""Captures launches into a graph, and replays it."""

from __future__ import annotations

from pytest_hwqueue.devices.simulated.costs import Costs
from pytest_hwqueue.devices.simulated.events import SimulatedEvent
from pytest_hwqueue.devices.simulated.work import GraphNode, GraphWork, Work
from pytest_hwqueue.errors import DeviceError


class Replay:
    """A captured graph; launching it replays all of it."""

    def __init__(self, costs: Costs, graph: GraphWork, events: dict[int, SimulatedEvent]) -> None:
        self.graph = graph
        self.events = events
        self._costs = costs

    def __call__(self) -> None:
        """Enqueue the graph, when launched."""
        self._costs.add(self.graph)


class Capture:
    """The graph being captured: streams order nodes, events order them across streams."""

    def __init__(self) -> None:
        self.events: dict[int, SimulatedEvent] = {}
        self._nodes: list[GraphNode] = []
        self._last: dict[int, int] = {}
        self._waits: dict[int, list[int]] = {}
        self._behind: dict[int, tuple[int, ...]] = {}
        # Holding the events keeps their ids unique for as long as the capture lasts.
        self._held: list[SimulatedEvent] = []

    @property
    def graph(self) -> GraphWork:
        """The graph captured so far."""
        return GraphWork(tuple(self._nodes))

    def launched(self, stream: int, works: tuple[Work, ...]) -> None:
        """Add a stream's work.

        Raises:
            DeviceError: if it is itself a graph.

        """
        for work in works:
            if isinstance(work, GraphWork):
                raise DeviceError("a graph cannot be replayed while another is captured")
            self._add(stream, GraphNode(work, self._before(stream)))

    def recorded(self, stream: int, event: SimulatedEvent) -> None:
        """Note an event; one created for graphs is recorded on each replay."""
        if event.in_graphs:
            self.events[len(self._nodes)] = event
            self._add(stream, GraphNode(None, self._before(stream)))
        last = (self._last[stream],) if stream in self._last else ()
        self._behind[id(event)] = (*last, *self._waits.get(stream, ()))
        self._held.append(event)

    def waited(self, stream: int, event: SimulatedEvent) -> None:
        """Make a stream's later launches wait for an event of this capture.

        Raises:
            DeviceError: if the event was not recorded while capturing.

        """
        if id(event) not in self._behind:
            raise DeviceError("a stream being captured may wait only for events of the capture")
        self._waits.setdefault(stream, []).extend(self._behind[id(event)])

    def _before(self, stream: int) -> tuple[int, ...]:
        before = set(self._waits.pop(stream, ()))
        if stream in self._last:
            before.add(self._last[stream])
        return tuple(sorted(before))

    def _add(self, stream: int, node: GraphNode) -> None:
        self._last[stream] = len(self._nodes)
        self._nodes.append(node)
