"""The event-driven model of hardware queues, in whole virtual nanoseconds.

Streams are mapped onto hardware queues (connections). A queue issues its commands in order: the
head waits until its stream's previous command has ended, or until the event it waits for has
passed, and meanwhile holds up every other stream of its queue, as hardware queues do. Issued
kernels pass a front end that starts one after the other, then get slots of the multiprocessors
(`multiprocessors`). Copies go to copy engines. Processes share the slots or take turns.

A calendar (binary heap) drives it, not simpy: with two or three coroutine switches per kernel,
simpy alone would take most of the time allowed for 450,000 kernels (180 s of two models side by
side). Events at one instant happen in the order in which they were scheduled; slots and front ends
are assigned last, so that nothing depends on the order within an instant.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, NamedTuple

from pytest_hwqueue.parts.devices.compute_units import Partition
from pytest_hwqueue.parts.devices.simulated.costs import (
    CopyWork,
    GraphWork,
    KernelWork,
    Point,
    Work,
)
from pytest_hwqueue.parts.devices.simulated.multiprocessors import (
    FrontEnd,
    Multiprocessors,
    RunningKernel,
    TimeSlices,
)
from pytest_hwqueue.parts.devices.simulated.profile import Hardware

# Stream, label given at submission, name, when it was submitted, start and end.
Observer = Callable[[int, Any, str, int, int, int], None]
Done = Callable[[int], None]


class Rest(NamedTuple):
    """The state of an idle device, which decides what happens next; times are relative to now.

    Attributes:
        front_end: state of the front end of streams, see `FrontEnd.rest`.
        graph_front_end: state of the front end of graphs.
        copies_ns: until when each copy engine is busy.

    """

    front_end: tuple[int, int]
    graph_front_end: tuple[int, int]
    copies_ns: tuple[int, ...]


_NO_POINTS: Mapping[int, Point] = {}
# Stands for a node's index where a command is a kernel or copy by itself.
_WHOLE = -1


@dataclass(slots=True, eq=False)
class _Stream:
    """An in-order stream, its hardware queue, and where its kernels run."""

    index: int
    priority: int
    queue: _HardwareQueue
    context: int
    multiprocessors: Multiprocessors
    busy: bool = False
    outstanding: int = 0


@dataclass(slots=True, eq=False)
class _HardwareQueue:
    """Commands of the streams mapped onto it, issued in order."""

    index: int
    commands: deque[_Command | _EventCommand] = field(default_factory=deque)
    wake_ns: int = -1


@dataclass(slots=True, eq=False)
class _Command:
    """Work submitted to a stream; ``points`` are the events that a graph's replay records."""

    stream: _Stream
    at_ns: int
    work: Work
    done: Done | None
    label: Any
    points: Mapping[int, Point]
    # Of a graph: how many others each node still waits for, and how many have not ended.
    left: list[int] | None = None
    remaining: int = 0


@dataclass(slots=True, eq=False)
class _EventCommand:
    """An event to record, or one to wait for (``waits``)."""

    stream: _Stream
    at_ns: int
    point: Point
    waits: bool


class Engine:
    """A device in virtual time. Single-threaded; the caller submits work and runs it."""

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self.now_ns = 0
        self.observer: Observer | None = None
        self._calendar: list[tuple[int, int, Callable[[int, Any], None], Any]] = []
        self._sequence = 0
        self._resident = 0
        self._streams: list[_Stream] = []
        self._alike: Counter[tuple[int, int]] = Counter()
        self._queues: dict[tuple[int, int, int], _HardwareQueue] = {}
        self._copy_free_ns = [0] * len(hardware.copy_bytes_per_s)
        self._multiprocessors: dict[tuple[int, Partition | None], Multiprocessors] = {}
        self._all_multiprocessors: list[Multiprocessors] = []
        self._slices = TimeSlices(
            hardware.time_slice_ns, hardware.process_switch_ns, self._schedule
        )
        self._front_end = FrontEnd(
            hardware.front_end_ns, hardware.start_ns, hardware.queue_switch_ns,
            self._schedule, self._started,
        )  # fmt: skip
        self._graph_front_end = FrontEnd(
            hardware.graph_start_ns, hardware.graph_gap_ns, 0, self._schedule, self._started
        )

    def add_stream(
        self, priority: int = 0, process: int = 0, partition: Partition | None = None
    ) -> int:
        """Create a stream; return its index. Larger priorities are more urgent.

        Streams of a process either all have a partition, of the same split, or none has one.
        """
        alike = self._alike[process, priority]
        self._alike[process, priority] += 1
        key = (process, priority, alike % self.hardware.connections)
        queue = self._queues.setdefault(key, _HardwareQueue(len(self._queues)))
        context = 0 if self.hardware.share_processes else process
        if (context, partition) not in self._multiprocessors:
            size = self.hardware.slots_of(partition)
            slots = Multiprocessors(size, self._schedule, self._kernel_ended)
            self._multiprocessors[context, partition] = slots
            self._all_multiprocessors.append(slots)
            self._slices.add(context, slots)
        slots = self._multiprocessors[context, partition]
        index = len(self._streams)
        self._streams.append(_Stream(index, priority, queue, context, slots))
        return index

    def submit(
        self,
        stream: int,
        work: Work,
        at_ns: int,
        *,
        done: Done | None = None,
        label: Any = None,
        points: Mapping[int, Point] = _NO_POINTS,
    ) -> None:
        """Submit work at a time not before `now_ns` nor before the queue's last submission.

        Args:
            stream: index of the stream.
            work: what to do.
            at_ns: when the host has submitted it.
            done: called with the time at which it ended.
            label: passed on to the observer.
            points: for a graph, the events that this replay records, by node.

        """
        self._enqueue(_Command(self._streams[stream], at_ns, work, done, label, points))

    def record(self, stream: int, point: Point, at_ns: int) -> None:
        """Have a point passed after the work submitted to a stream so far."""
        self._enqueue(_EventCommand(self._streams[stream], at_ns, point, waits=False))

    def wait(self, stream: int, point: Point, at_ns: int) -> None:
        """Make later submissions to a stream wait for a point."""
        self._enqueue(_EventCommand(self._streams[stream], at_ns, point, waits=True))

    def outstanding(self, stream: int) -> int:
        """Return the number of submitted commands of a stream that have not ended."""
        return self._streams[stream].outstanding

    def at(self, when_ns: int, action: Callable[[int], None]) -> None:
        """Call ``action`` with the time when virtual time gets there."""
        self._schedule(when_ns, _call, action)

    def next_ns(self) -> int | None:
        """Return the time of the next event; None if nothing is left."""
        return self._calendar[0][0] if self._calendar else None

    def run(self, until_ns: int | None = None) -> None:
        """Run up to and including ``until_ns``, or to the end."""
        self._go_on(until_ns)
        if until_ns is not None:
            self.now_ns = max(self.now_ns, until_ns)

    def run_until_passed(self, point: Point) -> bool:
        """Run until a point has passed; False if it never will without more work."""
        if point.when_ns is None:
            self._go_on(None, point)
        return point.when_ns is not None

    def rest(self, now_ns: int) -> Rest | None:
        """Return the state of an idle device; None if it is not idle."""
        # Several processes take turns by the clock.
        together = len(self._multiprocessors) == 1
        if self._calendar or not together or any(each.outstanding for each in self._streams):
            return None
        copies_ns = tuple(max(0, free_ns - now_ns) for free_ns in self._copy_free_ns)
        front_ends = self._front_end.rest(now_ns), self._graph_front_end.rest(now_ns)
        return Rest(*front_ends, copies_ns)

    def resume(self, rest: Rest, now_ns: int) -> None:
        """Restore a state that `rest` has returned, at a later time; the device must be idle."""
        self.now_ns = now_ns - 1
        self._front_end.resume(rest.front_end, now_ns)
        self._graph_front_end.resume(rest.graph_front_end, now_ns)
        self._copy_free_ns = [now_ns + free_ns for free_ns in rest.copies_ns]

    def _go_on(self, until_ns: int | None, until_passed: Point | None = None) -> None:
        """Run instants: everything that the calendar has for one time, then what follows of it.

        One loop, without a call for each instant: a scenario's windows have millions of them.
        """
        calendar, all_multiprocessors = self._calendar, self._all_multiprocessors
        front_end, graph_front_end = self._front_end, self._graph_front_end
        for_kernels, for_graphs = front_end.waiting, graph_front_end.waiting
        most_resident = self.hardware.concurrent_kernels
        while calendar:
            now_ns = calendar[0][0]
            if until_ns is not None and now_ns > until_ns:
                return
            self.now_ns = now_ns
            while calendar and calendar[0][0] == now_ns:
                _, _, action, argument = heappop(calendar)
                action(now_ns, argument)
            if for_kernels:
                self._resident += front_end.serve(now_ns, most_resident - self._resident)
            if for_graphs:
                self._resident += graph_front_end.serve(now_ns, most_resident - self._resident)
            if not calendar or calendar[0][0] != now_ns:
                for slots in all_multiprocessors:
                    if slots.changed:
                        slots.allocate(now_ns)
            if until_passed is not None and until_passed.when_ns is not None:
                return

    def _schedule(self, when_ns: int, action: Callable[[int, Any], None], argument: Any) -> None:
        self._sequence += 1
        heappush(self._calendar, (when_ns, self._sequence, action, argument))

    def _enqueue(self, command: _Command | _EventCommand) -> None:
        stream = command.stream
        stream.outstanding += 1
        queue = stream.queue
        queue.commands.append(command)
        if len(queue.commands) == 1:
            at_ns, now_ns = command.at_ns, self.now_ns
            self._wake(queue, at_ns if at_ns > now_ns else now_ns)

    def _wake(self, queue: _HardwareQueue, when_ns: int) -> None:
        if queue.wake_ns != when_ns:
            queue.wake_ns = when_ns
            self._schedule(when_ns, self._woken, queue)

    def _woken(self, now_ns: int, queue: _HardwareQueue) -> None:
        # Another time means that the queue has been woken, and put to sleep again, since.
        if queue.wake_ns == now_ns:
            queue.wake_ns = -1
            self._issue(now_ns, queue)

    def _issue(self, now_ns: int, queue: _HardwareQueue) -> None:
        commands = queue.commands
        while commands:
            command = commands[0]
            stream = command.stream
            if command.at_ns > now_ns:
                self._wake(queue, command.at_ns)
                return
            if isinstance(command, _Command):
                if stream.busy:
                    return
                stream.busy = True
                commands.popleft()
                self._dispatch(now_ns, command)
                continue
            if command.waits:
                if command.point.when_ns is None:
                    command.point.waiters.append(lambda: self._wake(queue, self.now_ns))
                    return
            elif stream.busy:
                return
            else:
                command.point.pass_at(now_ns)
            commands.popleft()
            stream.outstanding -= 1

    def _dispatch(self, now_ns: int, command: _Command) -> None:
        work, stream = command.work, command.stream
        if isinstance(work, KernelWork):
            self._slices.load(now_ns, stream.context)
            # As `_offer` would: most kernels begin here.
            self._sequence += 1
            rank = (-stream.priority, self._sequence)
            heappush(self._front_end.waiting, (rank, stream.queue.index, (command, work, _WHOLE)))
        elif isinstance(work, CopyWork):
            self._copy(now_ns, command, work, _WHOLE)
        else:
            self._slices.load(now_ns, stream.context)
            command.left = [len(node.after) for node in work.nodes]
            command.remaining = len(work.nodes)
            self._schedule(now_ns + self.hardware.start_ns, self._graph_started, command)

    def _offer(self, front_end: FrontEnd, command: _Command, work: KernelWork, node: int) -> None:
        stream = command.stream
        self._sequence += 1
        rank = (-stream.priority, self._sequence)
        front_end.offer(rank, stream.queue.index, (command, work, node))

    def _started(self, now_ns: int, item: tuple[_Command, KernelWork, int]) -> None:
        command, work, _ = item
        stream = command.stream
        slots = stream.multiprocessors
        self._sequence += 1
        rank = (-stream.priority, self._sequence)
        slots.add(now_ns, RunningKernel(work, rank, item, slots.slots, self.hardware.slots))

    def _kernel_ended(self, now_ns: int, kernel: RunningKernel) -> None:
        self._resident -= 1
        command, work, node = kernel.item
        if self.observer is None and node == _WHOLE:
            # As `_ran` would: most kernels end here, millions of them in a scenario's windows.
            self._command_ended(now_ns, command)
        else:
            self._ran(now_ns, (command, node, work.name, kernel.start_ns))

    def _copy(self, now_ns: int, command: _Command, work: CopyWork, node: int) -> None:
        rate = self.hardware.copy_bytes_per_s[work.engine]
        start_ns = max(now_ns + self.hardware.start_ns, self._copy_free_ns[work.engine])
        end_ns = start_ns + max(1, round(work.size_bytes * 1e9 / rate))
        self._copy_free_ns[work.engine] = end_ns
        self._schedule(end_ns, self._ran, (command, node, work.name, start_ns))

    def _ran(self, now_ns: int, argument: tuple[_Command, int, str, int]) -> None:
        """Report a kernel or copy that has ended, and go on behind it."""
        command, node, name, start_ns = argument
        if self.observer is not None:
            stream = command.stream.index
            self.observer(stream, command.label, name, command.at_ns, start_ns, now_ns)
        if node == _WHOLE:
            self._command_ended(now_ns, command)
        else:
            self._node_ended(now_ns, (command, node))

    def _command_ended(self, now_ns: int, command: _Command) -> None:
        stream = command.stream
        if not isinstance(command.work, CopyWork):
            self._slices.unload(now_ns, stream.context)
        stream.busy = False
        stream.outstanding -= 1
        if stream.queue.commands:
            self._issue(now_ns, stream.queue)
        if command.done is not None:
            command.done(now_ns)

    def _graph_started(self, now_ns: int, command: _Command) -> None:
        assert isinstance(command.work, GraphWork)
        if not command.remaining:
            self._command_ended(now_ns, command)
        for index, node in enumerate(command.work.nodes):
            if not node.after:
                self._node_ready(now_ns, command, index)

    def _node_ready(self, now_ns: int, command: _Command, index: int) -> None:
        assert isinstance(command.work, GraphWork)
        work = command.work.nodes[index].work
        if work is None:
            if index in command.points:
                command.points[index].pass_at(now_ns)
            self._schedule(now_ns, self._node_ended, (command, index))
        elif isinstance(work, CopyWork):
            self._copy(now_ns, command, work, index)
        else:
            self._offer(self._graph_front_end, command, work, index)

    def _node_ended(self, now_ns: int, argument: tuple[_Command, int]) -> None:
        command, index = argument
        assert isinstance(command.work, GraphWork)
        assert command.left is not None
        command.remaining -= 1
        for after in command.work.successors[index]:
            command.left[after] -= 1
            if not command.left[after]:
                self._node_ready(now_ns, command, after)
        if not command.remaining:
            self._command_ended(now_ns, command)


def _call(now_ns: int, action: Callable[[int], None]) -> None:
    action(now_ns)
