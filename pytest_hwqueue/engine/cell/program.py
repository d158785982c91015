"""How an iteration reaches the queues, and what ``--hwq-fault=slower:PERCENT`` adds to it.

A simulated device makes its kernels longer; on a real one each launch is followed by a spin for a
share of its time, and a tenant's request, which is judged as a whole, is as a whole.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from pytest_hwqueue.data.errors import DeviceError, InvalidMeasurement
from pytest_hwqueue.parts.devices.launches import TagLog
from pytest_hwqueue.parts.devices.protocol import Call, Device, Event, Marks, Stream, StreamPool

Enqueue = Callable[[Sequence[Stream]], None]


@dataclass(frozen=True)
class Program:
    """One iteration, ready to be enqueued, and the log of its tagged launches."""

    enqueue: Enqueue
    tags: TagLog | None
    # Why tagged launches cannot be timed by events in the streams; None if they can.
    no_events: str | None = None
    # All streams' work in one graph, which runs on queues of the runtime's choice, not on ours.
    whole: bool = False
    # Under which the latencies of requests stand; empty if launches belong to none.
    request_name: str = ""


class _Launch(NamedTuple):
    stream: int
    function: Callable[..., object]
    arguments: tuple[object, ...]
    tag: str | None


class _Record(NamedTuple):
    stream: int
    event: TapeEvent


class _Wait(NamedTuple):
    stream: int
    event: TapeEvent
    recorded_on: int  # at the time of the wait: the event may be recorded again elsewhere


_Tape = list[_Launch | _Record | _Wait]
# Stream, replay of its graph, and the tag of the launch that the graph consists of.
_Replay = tuple[int, Callable[[], None], str | None]


class TapeEvent:
    """An event of a taped iteration; capturing the tape replaces it by a real one."""

    def __init__(self) -> None:
        self.stream = -1

    def query(self) -> bool:
        """Refuse: an iteration only enqueues."""
        raise DeviceError("an iteration must not query events: it only enqueues")

    def synchronize(self) -> None:
        """Refuse: an iteration only enqueues."""
        raise DeviceError("an iteration must not wait on the host: it only enqueues")


class TapeStream:
    """Records what is enqueued instead of doing it."""

    def __init__(self, stream: Stream, tape: _Tape) -> None:
        self.index = stream.index
        self.priority = stream.priority
        self.handle = stream.handle
        self._tape = tape

    def launch(
        self, function: Callable[..., object], *arguments: object, tag: str | None = None
    ) -> None:
        """Tape a launch."""
        self._tape.append(_Launch(self.index, function, arguments, tag))

    def record(self, event: Event | None = None) -> Event:
        """Tape an event."""
        taped = event if isinstance(event, TapeEvent) else TapeEvent()
        taped.stream = self.index
        self._tape.append(_Record(self.index, taped))
        return taped

    def wait(self, event: Event) -> None:
        """Tape a wait."""
        if not isinstance(event, TapeEvent):
            raise DeviceError("an iteration in a graph may wait only for its own events")
        self._tape.append(_Wait(self.index, event, event.stream))

    def synchronize(self) -> None:
        """Refuse: an iteration only enqueues."""
        raise DeviceError("an iteration must not wait on the host: it only enqueues")


def eager(
    device: Device,
    enqueue: Enqueue,
    tagged: bool,
    no_events: str | None = None,
    request_name: str = "",
) -> Program:
    """Every kernel launched from Python, each time."""
    tags = TagLog(device.new_event, request_name) if tagged else None
    return Program(enqueue, tags, no_events, request_name=request_name)


@dataclass(frozen=True)
class TapedIteration:
    """What one iteration enqueues.

    Attributes:
        launches: stream and tag of each launch, in the order of enqueueing.
        crosses: whether a stream waits for another.

    """

    launches: tuple[tuple[int, str | None], ...]
    crosses: bool

    @property
    def tags(self) -> list[str]:
        """The tags of its tagged launches."""
        return [tag for _, tag in self.launches if tag is not None]


def taped(streams: Sequence[Stream], enqueue: Enqueue) -> TapedIteration:
    """Return what one iteration would enqueue; nothing runs."""
    tape = _tape_of(streams, enqueue)
    launches = tuple((step.stream, step.tag) for step in tape if isinstance(step, _Launch))
    return TapedIteration(launches, _crosses(tape))


def _tape_of(streams: Sequence[Stream], enqueue: Enqueue) -> _Tape:
    tape: _Tape = []
    enqueue([TapeStream(stream, tape) for stream in streams])
    return tape


def _crosses(tape: _Tape) -> bool:
    return any(isinstance(step, _Wait) and step.recorded_on != step.stream for step in tape)


# What a tagged launch gets: events that time it; a graph of its own, by which a traced pass tells
# it, and which it gets, too, where there can be no events; or nothing.
TagTiming = Literal["events", "apart", "with others"]


def graph(
    device: Device,
    pool: StreamPool,
    enqueue: Enqueue,
    tagged: TagTiming = "apart",
    request_name: str = "",
    disturbed: str | None = None,
) -> Program:
    """Capture an iteration: a graph per stream if no stream waits for another, else one for all.

    ``enqueue`` must have run before, so that libraries are loaded and workspaces exist.

    Args:
        device: captures the graphs.
        pool: the streams.
        enqueue: one iteration.
        tagged: what becomes of tagged launches.
        request_name: as in `Program`.
        disturbed: why events must not be in the streams' queues, or None. In one graph for all
            streams, launches are then dated by their ends alone.

    Raises:
        DeviceError: if the iteration cannot be captured.

    """
    tape = _tape_of(pool.streams, enqueue)
    crosses = _crosses(tape)
    # A traced pass tells a stream's only tagged launch by its graph. Of several the times between
    # their ends are known, in one graph whose streams all begin with it.
    whole = crosses or (disturbed is not None and _most_tagged_on_a_stream(tape) > 1)
    tags, no_events = None, None if whole else disturbed
    if tagged == "events" and no_events is None:
        try:
            # Also in a graph of all streams an event waits for its turn in a shared queue.
            start = device.new_graph_event() if disturbed else None
            device.new_graph_event()
            tags = TagLog(device.new_graph_event, request_name, start)
        except DeviceError as error:
            no_events = str(error)
    pool.synchronize()
    pool.tags = tags
    if whole:
        start = None if tags is None else tags.start
        replays: list[_Replay] = [(0, _capture_whole(pool, tape, start), None)]
    else:
        replays = _capture_streams(pool, tape, apart=tagged != "with others" and tags is None)
    pool.tags = None
    if tags is not None:
        tags.fix()

    replay = _replaying(replays, tags=tags is None)
    return Program(replay, tags, no_events, whole=whole, request_name=request_name)


def marked_graphs(pool: StreamPool, enqueue: Enqueue, marks: Marks) -> Program:
    """Capture an iteration whose launches are marked: a graph for each tagged one, with its stamps.

    ``enqueue`` must have run before, and no stream may wait for another in it.
    """
    tape = _tape_of(pool.streams, enqueue)
    pool.synchronize()
    pool.tags = None
    replays = _capture_streams(pool, tape, apart=True, marks=marks)
    return Program(_replaying(replays, tags=True), None)


def calls_by_stream(pool: StreamPool, enqueue: Enqueue, *, replayed: bool) -> list[Call]:
    """Return for each stream a call that launches its part of an iteration, with it current.

    Args:
        pool: the streams.
        enqueue: one iteration, which has run before if it is to be captured, and in which no stream
            waits for another.
        replayed: whether the parts are captured, a graph for each stream.

    Raises:
        InvalidMeasurement: if a stream has no part.

    """
    tape = _tape_of(pool.streams, enqueue)
    calls: dict[int, Call]
    if replayed:
        pool.synchronize()
        pool.tags = None
        calls = {index: run for index, run, _ in _capture_streams(pool, tape, apart=False)}
    else:
        parts: dict[int, list[Call]] = {}
        for step in tape:
            if isinstance(step, _Launch):
                call = partial(step.function, *step.arguments)
                parts.setdefault(step.stream, []).append(call)
        calls = {index: _in_turn(part) for index, part in parts.items()}
    if idle := [stream.index for stream in pool.streams if stream.index not in calls]:
        raise InvalidMeasurement(f"nothing is launched on stream {idle[0]} in an iteration")
    return [calls[stream.index] for stream in pool.streams]


def _in_turn(calls: Sequence[Call]) -> Call:
    if len(calls) == 1:
        return calls[0]

    def call() -> None:
        for each in calls:
            each()

    return call


def _replaying(replays: Sequence[_Replay], *, tags: bool) -> Enqueue:
    def replay(streams: Sequence[Stream]) -> None:
        for index, run, tag in replays:
            streams[index].launch(run, tag=tag if tags else None)

    return replay


def _most_tagged_on_a_stream(tape: _Tape) -> int:
    tagged = Counter(step.stream for step in tape if isinstance(step, _Launch) and step.tag)
    return max(tagged.values(), default=0)


def _capture_streams(
    pool: StreamPool, tape: _Tape, apart: bool, marks: Marks | None = None
) -> list[_Replay]:
    """Capture a graph for each stream; with ``apart`` one for each of its tagged launches.

    A graph of one launch identifies it if kernels are timed from outside; in a graph of several
    launches, kernels have no tags.
    """
    launches: dict[int, list[list[_Launch]]] = {}
    for step in tape:
        if not isinstance(step, _Launch):
            # Within one stream events and waits order nothing that it does not order already.
            continue
        graphs = launches.setdefault(step.stream, [])
        alone = apart and (step.tag is not None or bool(graphs and graphs[-1][0].tag is not None))
        if not graphs or alone:
            graphs.append([])
        graphs[-1].append(step)
    # Of all streams the first graph, then the second: as far as it goes the order of the tape.
    turns = max(map(len, launches.values()), default=0)
    marked = {} if marks is None else {"marks": marks}
    return [
        (
            index,
            pool.capture(index, _play(pool.streams[index], graphs[turn]), **marked),
            graphs[turn][0].tag if len(graphs[turn]) == 1 else None,
        )
        for turn in range(turns)
        for index, graphs in launches.items()
        if turn < len(graphs)
    ]


def _play(stream: Stream, steps: Sequence[_Launch]) -> Callable[[], None]:
    def enqueue() -> None:
        for step in steps:
            stream.launch(step.function, *step.arguments, tag=step.tag)

    return enqueue


def _capture_whole(pool: StreamPool, tape: _Tape, start: Event | None) -> Callable[[], None]:
    streams = pool.streams
    used = {step.stream for step in tape} - {0}

    def enqueue() -> None:
        if start is not None:
            streams[0].record(start)
        # Fork from the capturing stream and join it again, so that all of them are captured.
        fork = streams[0].record()
        for index in used:
            streams[index].wait(fork)
        events: dict[int, Event] = {}
        for step in tape:
            if isinstance(step, _Launch):
                streams[step.stream].launch(step.function, *step.arguments, tag=step.tag)
            elif isinstance(step, _Record):
                events[id(step.event)] = streams[step.stream].record()
            else:
                streams[step.stream].wait(events[id(step.event)])
        for index in used:
            streams[0].wait(streams[index].record())

    return pool.capture(0, enqueue)


# Spins are rounded to steps of 5 %, so that launches of about one length share one kernel.
_STEP = math.log(1.05)


def percent(faults: Sequence[str]) -> float:
    """Return by how many percent faults such as ``slower:10`` slow down."""
    return sum(float(fault.removeprefix("slower:")) for fault in faults)


def slowed_model(
    device: Device, faults: Sequence[str], strength: float
) -> AbstractContextManager[None]:
    """Slow down a simulated device's kernels in a block."""
    if device.model is None:
        return nullcontext()
    return device.model.slowed(1 + strength * percent(faults) / 100)


def slowed_request(
    device: Device, enqueue: Enqueue, faults: Sequence[str], request_ns: int
) -> Enqueue:
    """Return a tenant's request with a kernel that starts once all its work has ended."""
    if not faults:
        return enqueue
    kernel = device.kernel_of(max(1, round(request_ns * percent(faults) / 100)))

    def slower(streams: Sequence[Stream]) -> None:
        enqueue(streams)
        for stream in streams[1:]:
            streams[0].wait(stream.record())
        streams[0].launch(kernel)

    return slower


# A launch of an iteration: its stream, and its number on it.
Place = tuple[int, int]


def launch_times(device: Device, enqueue: Enqueue, streams: Sequence[Stream]) -> dict[Place, int]:
    """Return how long each launch of an iteration takes on its stream among the others, in ns.

    It runs twice: the first time loads libraries.
    """
    enqueue(streams)
    timing = _TimedLaunches(device)
    launches: Counter[int] = Counter()
    enqueue([_WrappedStream(stream, timing, launches) for stream in streams])
    return timing.read()


class _TimedLaunches:
    """Puts events around the launches of one iteration."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._events: dict[Place, tuple[Event, Event]] = {}

    def launch(
        self,
        stream: Stream,
        number: int,
        function: Callable[..., object],
        arguments: tuple[object, ...],
        tag: str | None,
    ) -> None:
        """Launch the ``number``-th function of an iteration on a stream, between events."""
        began, ended = self._device.new_event(), self._device.new_event()
        stream.record(began)
        stream.launch(function, *arguments, tag=tag)
        stream.record(ended)
        self._events[stream.index, number] = (began, ended)

    def read(self) -> dict[Place, int]:
        """Return the times, once all launches are done."""
        took_ns = {}
        for place, (began, ended) in self._events.items():
            ended.synchronize()
            took_ns[place] = self._device.elapsed_ns(began, ended)
        return took_ns


class SlowedLaunches:
    """An iteration each of whose launches is followed by a spin, within the launch and its events.

    Spins of a wave keep all of the device busy. If iterations launch different numbers of
    functions, those that were not timed spin like the mean of those that were.
    """

    def __init__(
        self, device: Device, enqueue: Enqueue, spins_ns: Mapping[Place, float],
        *, waves: int = 0,
    ) -> None:  # fmt: skip
        def spin(ns: float) -> Callable[[], None]:
            steps = round(math.log(max(1.0, ns)) / _STEP)
            rounded_ns = max(1, round(math.exp(steps * _STEP)))
            if rounded_ns not in kernels:
                kernels[rounded_ns] = device.kernel_of(rounded_ns, waves=waves)
            return kernels[rounded_ns]

        kernels: dict[int, Callable[[], None]] = {}
        self._enqueue = enqueue
        self._spins = {place: spin(ns) for place, ns in spins_ns.items()}
        self._usual: Callable[[], None] | None = None
        if spins_ns:
            self._usual = spin(sum(spins_ns.values()) / len(spins_ns))

    def __call__(self, streams: Sequence[Stream]) -> None:
        """Enqueue one iteration."""
        launches: Counter[int] = Counter()
        self._enqueue([_WrappedStream(stream, self, launches) for stream in streams])

    def launch(
        self,
        stream: Stream,
        number: int,
        function: Callable[..., object],
        arguments: tuple[object, ...],
        tag: str | None,
    ) -> None:
        """Launch the ``number``-th function of an iteration on a stream, and its spin."""
        spin = self._spins.get((stream.index, number), self._usual)

        def slowed() -> None:
            function(*arguments)
            if spin is not None:
                spin()

        stream.launch(slowed, tag=tag)


class _WrappedStream:
    """A stream whose launches go through something that times or slows them."""

    def __init__(
        self, stream: Stream, through: _TimedLaunches | SlowedLaunches, launches: Counter[int]
    ) -> None:
        self._stream = stream
        self._through = through
        self._launches = launches
        self.index = stream.index
        self.priority = stream.priority
        self.handle = stream.handle
        self.record, self.wait, self.synchronize = stream.record, stream.wait, stream.synchronize

    def launch(
        self, function: Callable[..., object], *arguments: object, tag: str | None = None
    ) -> None:
        """Launch the function, and what goes with it."""
        number = self._launches[self.index]
        self._launches[self.index] += 1
        self._through.launch(self._stream, number, function, arguments, tag)
