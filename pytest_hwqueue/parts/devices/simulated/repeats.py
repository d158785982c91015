"""Simulated iterations that repeat: captured graphs, and times that are known.

Between two idle moments, everything follows from the device's idle state and from what the host
does and when, relative to that moment. Both are compared step by step while an iteration is
enqueued: as long as it repeats a known one from the same state, the host's clock takes the known
steps and the model does not run. At the end the events get the known times. If an iteration departs
from all known ones, its steps so far are simulated, and it continues in the model. Nothing is
assumed about workloads, and nothing is approximate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.parts.devices.launches import LaunchTrace
from pytest_hwqueue.parts.devices.simulated.costs import (
    CopyWork,
    GraphNode,
    GraphWork,
    HostClock,
    KernelWork,
    Point,
    SimulatedEvent,
    Work,
)
from pytest_hwqueue.parts.devices.simulated.engine import Engine, Observer, Rest

# What is done to which stream, with what, and the clock's advance since the step before.
Key: TypeAlias = "tuple[object, ...]"
# Stream, label less the first of the iteration, name; submission, start and end since the rest.
_Observation: TypeAlias = "tuple[int, int, str, int, int, int]"

# Of one pool: some 50 MB. Iterations that never repeat are simulated, and no longer kept.
_MOST_STEPS = 200_000


class _Step:
    """A step of known iterations, with the steps that followed; times are since idle."""

    __slots__ = ("end", "held", "next", "until_ns")

    def __init__(self, until_ns: int, held: object) -> None:
        self.until_ns = until_ns
        # Keeps alive what the key names by its id.
        self.held = held
        self.next: dict[Key, _Step] = {}
        self.end: _End | None = None


class _End(NamedTuple):
    """The outcome of an iteration: when its points were passed, and the state it left."""

    passed_ns: tuple[int, ...]
    observed: tuple[_Observation, ...]
    rest: Rest


class Repeats:
    """Follows one pool's iterations. All access to the pool's engine goes through it.

    Args:
        engine: the pool's.
        clock: the host's.

    Attributes:
        simulated: iterations that the model ran.
        replayed: iterations that repeated a known one.

    """

    def __init__(self, engine: Engine, clock: HostClock) -> None:
        self.simulated = 0
        self.replayed = 0
        self._engine = engine
        self._clock = clock
        self._observer: Observer | None = None
        self._observed: list[_Observation] = []
        self._known: dict[tuple[Rest, bool], _Step] = {}
        self._steps = 0
        # Where the iteration is among the known ones; None where it is only simulated.
        self._at: _Step | None = None
        # Whether it is only followed: the model has not seen its steps.
        self._following = False
        # Whether the engine rests in an earlier state than the one that the iteration began in.
        self._stale = False
        self._rest: Rest | None = None
        self._rest_ns = 0
        self._last_ns = 0
        self._label = -1
        # Steps followed: what they do to the model, and when.
        self._done: list[tuple[Callable[..., None], tuple[Any, ...], int]] = []
        self._points: list[Point] = []
        self._begin(engine.rest(clock.now_ns))

    def do(
        self,
        key: Key,
        action: Callable[..., None],
        arguments: tuple[Any, ...],
        points: Iterable[Point] = (),
        held: object = None,
        label: int | None = None,
    ) -> None:
        """Take a step of an iteration: follow it if it is known, else run it in the model.

        Args:
            key: distinguishes the step from others of the same stream and kind.
            action: what the step does to the engine and the clock.
            arguments: of the action.
            points: those that it creates, in an order determined by the key.
            held: kept alive as long as the key.
            label: of the launch; labels of an iteration count up.

        """
        at, clock = self._at, self._clock
        if at is None:
            action(*arguments)
            return
        key = (*key, clock.now_ns - self._last_ns)
        if label is not None and self._label < 0:
            self._label = label
        for point in points:
            point.place = len(self._points)
            self._points.append(point)
        if self._following:
            step = at.next.get(key)
            if step is not None:
                self._done.append((action, arguments, clock.now_ns))
                self._last_ns = clock.now_ns = self._rest_ns + step.until_ns
                self._at = step
                return
            self._catch_up()
            if self._steps >= _MOST_STEPS:
                self._at = None
        action(*arguments)
        if self._at is not None:
            self._last_ns = clock.now_ns
            self._at = at.next[key] = _Step(clock.now_ns - self._rest_ns, held)
            self._steps += 1

    def places(self, points: Sequence[Point]) -> tuple[int, ...] | None:
        """Name points for a key; None for those neither passed nor created since the idle state."""
        for point in points:
            if point.place < 0 and point.when_ns is None:
                return None
        return tuple(point.place for point in points)

    def finish(self, wait_for_all: Callable[[], None]) -> None:
        """End an iteration; with ``wait_for_all``, the host waits until all streams are idle."""
        at, clock = self._at, self._clock
        if self._following and at is not None:
            step = at.next.get(("end", clock.now_ns - self._last_ns))
            if step is not None and step.end is not None:
                self._replay(step, step.end)
                return
            self._catch_up()
            at = self._at
        key = ("end", clock.now_ns - self._last_ns)
        self._at = None
        wait_for_all()
        self.simulated += 1
        # What is left before the host goes on happens whatever the host does next.
        self._engine.run(clock.now_ns - 1)
        rest = self._engine.rest(clock.now_ns)
        if at is not None and rest is not None and self._steps < _MOST_STEPS:
            step = _Step(clock.now_ns - self._rest_ns, None)
            passed = tuple(
                point.when_ns - self._rest_ns for point in self._points if point.when_ns is not None
            )
            if len(passed) == len(self._points):
                step.end = _End(passed, tuple(self._observed), rest)
                at.next[key] = step
                self._steps += 1
        self._begin(rest)

    def leave(self) -> None:
        """Switch to the model until the next `finish`, for a question only it can answer."""
        if self._following:
            self._catch_up()
        self._at = None

    def observe(self, observer: Observer | None) -> None:
        """Report all kernels to an observer from now on; call it when all streams are idle."""
        self._observer = observer
        self._engine.observer = None if observer is None else self._note
        if self._following and self._rest is not None:
            self._at = self._root(self._rest)

    def _note(
        self, stream: int, label: Any, name: str, submitted_ns: int, start_ns: int, end_ns: int
    ) -> None:
        """Pass an observation on, and keep it for repeats of this iteration."""
        assert self._observer is not None
        self._observer(stream, label, name, submitted_ns, start_ns, end_ns)
        rest_ns, of_label = self._rest_ns, label - self._label
        times = (submitted_ns - rest_ns, start_ns - rest_ns, end_ns - rest_ns)
        self._observed.append((stream, of_label, name, *times))

    def _replay(self, step: _Step, end: _End) -> None:
        rest_ns = self._rest_ns
        for point, passed_ns in zip(self._points, end.passed_ns, strict=True):
            point.when_ns = rest_ns + passed_ns
        if self._observer is not None:
            for stream, of_label, name, submitted_ns, start_ns, end_ns in end.observed:
                self._observer(
                    stream, self._label + of_label, name,
                    rest_ns + submitted_ns, rest_ns + start_ns, rest_ns + end_ns,
                )  # fmt: skip
        self._clock.now_ns = rest_ns + step.until_ns
        self.replayed += 1
        self._stale = True
        self._begin(end.rest)

    def _begin(self, rest: Rest | None) -> None:
        """Begin an iteration in an idle state; return None if the device is not idle."""
        for point in self._points:
            point.place = -1
        self._points.clear()
        self._done.clear()
        self._observed.clear()
        self._label = -1
        self._rest = rest
        self._rest_ns = self._last_ns = self._clock.now_ns
        self._following = rest is not None
        self._at = None if rest is None else self._root(rest)

    def _root(self, rest: Rest) -> _Step:
        return self._known.setdefault((rest, self._observer is not None), _Step(0, None))

    def _catch_up(self) -> None:
        """Run in the model the steps that were only followed."""
        self._following = False
        clock, now_ns = self._clock, self._clock.now_ns
        assert self._rest is not None
        if self._stale:
            self._engine.resume(self._rest, self._rest_ns)
            self._stale = False
        clock.now_ns = self._rest_ns
        done, self._done = self._done, []
        for action, arguments, at_ns in done:
            clock.now_ns = at_ns
            action(*arguments)
        clock.now_ns = now_ns


class Capture:
    """The graph being captured: streams order nodes, events order them across streams."""

    def __init__(self) -> None:
        self.events: dict[int, SimulatedEvent] = {}
        self._nodes: list[GraphNode] = []
        self._order = LaunchTrace()

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
            self._add(stream, work)

    def recorded(self, stream: int, event: SimulatedEvent) -> None:
        """Note an event; one created for graphs is recorded on each replay."""
        if event.in_graphs:
            self.events[len(self._nodes)] = event
            self._add(stream, None)
        self._order.recorded(stream, event)

    def waited(self, stream: int, event: SimulatedEvent) -> None:
        """Make a stream's later launches wait for an event of this capture.

        Raises:
            DeviceError: if the event was not recorded while capturing.

        """
        if not self._order.has_seen(event):
            raise DeviceError("a stream being captured may wait only for events of the capture")
        self._order.waited(stream, event)

    def _add(self, stream: int, work: KernelWork | CopyWork | None) -> None:
        last = self._order.last_on(stream)
        node = self._order.launches[self._order.launched(stream, None)]
        self._nodes.append(GraphNode(work, tuple(sorted({*node.waits_for, *last}))))
