"""Streams of a modelled device: launching costs virtual host time, waiting lets the model run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.data.metrics.contention import HeldWindow, window_of
from pytest_hwqueue.data.metrics.launching import LaunchingWindow
from pytest_hwqueue.data.metrics.timeline import Kernel, Timeline
from pytest_hwqueue.parts.devices.compute_units import GroupEvidence, Partition
from pytest_hwqueue.parts.devices.launches import LaunchTrace, TagLog, write_trace
from pytest_hwqueue.parts.devices.protocol import Call, Event, Marks
from pytest_hwqueue.parts.devices.simulated.costs import (
    EnqueuedWork,
    GraphWork,
    KernelWork,
    Point,
    SimulatedEvent,
    Work,
    simulated_event,
)
from pytest_hwqueue.parts.devices.simulated.engine import Engine
from pytest_hwqueue.parts.devices.simulated.launching import (
    ModelledCall,
    made_calls,
    window_of_calls,
)
from pytest_hwqueue.parts.devices.simulated.repeats import Capture, Repeats

if TYPE_CHECKING:
    from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice


class SimulatedStream:
    """An in-order queue of the modelled device."""

    def __init__(
        self, pool: SimulatedPool, index: int, priority: int, partition: Partition | None
    ) -> None:
        self.index = index
        self.priority = priority
        self.device_priority = pool.device.device_priority(priority)
        self.partition = partition
        # Its number in the engine is its index.
        pool.engine.add_stream(-self.device_priority, partition=partition)
        self._pool = pool

    @property
    def handle(self) -> int:
        """The stream's number in its pool, from 1."""
        return self.index + 1

    def launch(
        self, function: Callable[..., object], *arguments: object, tag: str | None = None
    ) -> None:
        """Enqueue what ``function(*arguments)`` enqueues, at the virtual cost of doing so."""
        pool = self._pool
        pool.launched += 1
        begin_ns = pool.device.clock.now_ns
        index = pool.trace.launched(self.index, tag) if pool.trace is not None else None
        tagged = None
        if index is None and tag is not None and pool.tags is not None:
            tagged = pool.tags.next(tag, self.index)
            self._record(simulated_event(tagged.ready))
        works = pool.device.costs.of(function, arguments)
        if pool.capturing is not None:
            pool.capturing.launched(self.index, works)
        else:
            pool.busy.add(self.index)
            pool.submit(self.index, works, function, index)
        if pool.trace is not None:
            replays = any(isinstance(work, GraphWork) for work in works)
            name = "graph launch" if replays else "launch"
            pool.trace.called(None, begin_ns, pool.device.clock.now_ns, name)
        if tagged is not None:
            self._record(simulated_event(tagged.done))

    def record(self, event: Event | None = None) -> Event:
        """Record an event behind the work enqueued so far."""
        recorded = SimulatedEvent() if event is None else simulated_event(event)
        if self._pool.trace is not None:
            self._pool.trace.recorded(self.index, recorded)
        self._record(recorded)
        return recorded

    def wait(self, event: Event) -> None:
        """Let work enqueued from now on wait for the event, without blocking the host."""
        pool, waited = self._pool, simulated_event(event)
        if pool.trace is not None:
            pool.trace.waited(self.index, waited)
        if pool.capturing is not None:
            pool.capturing.waited(self.index, waited)
            return
        pool.busy.add(self.index)
        places = pool.repeats.places(waited.points)
        if places is None:
            pool.repeats.leave()
        pool.repeats.do(("wait", self.index, places), pool.wait, (self.index, waited.points))

    def synchronize(self) -> None:
        """Let the host wait until all work enqueued so far is done."""
        self._pool.repeats.leave()
        self._pool.wait_for_streams([self.index])

    def _record(self, event: SimulatedEvent) -> None:
        if self._pool.capturing is not None:
            self._pool.capturing.recorded(self.index, event)
        else:
            self._pool.record_on((self.index,), event)


class SimulatedPool:
    """Streams on an engine of their own, which continues the device's clock."""

    def __init__(
        self,
        device: SimulatedDevice,
        priorities: Sequence[int],
        partitions: Sequence[Partition | None],
        gradients: bool,
        run: int,
    ) -> None:
        self.tags: TagLog | None = None
        self.trace: LaunchTrace | None = None
        self.launched = 0
        # Indices of the streams that got work since all were last idle.
        self.busy: set[int] = set()
        self.device = device
        self.engine = Engine(device.profile.hardware())
        self.capturing: Capture | None = None
        self.streams = tuple(
            SimulatedStream(self, index, *asked)
            for index, asked in enumerate(zip(priorities, partitions, strict=True))
        )
        self.repeats = Repeats(self.engine, device.clock)
        self._held = False
        self._gradients = torch.inference_mode(not gradients)
        self._run = run

    def device_priorities(self) -> list[int]:
        """The priority of each stream in the device's own numbers (lower is more urgent)."""
        return [stream.device_priority for stream in self.streams]

    def groups(self, *, replayed: bool) -> list[GroupEvidence]:
        """Return which multiprocessors the model gives each stream; graphs change nothing."""
        units = self.device.profile.multiprocessing.multiprocessors.value
        found = []
        for partition in (stream.partition for stream in self.streams):
            numbers = list(partition.numbers(units) if partition else range(units))
            found.append(GroupEvidence(len(numbers) if partition else 0, numbers))
        return found

    def synchronize(self) -> None:
        """Let the host wait until all streams are idle."""
        self.busy.clear()
        self.repeats.finish(lambda: self.wait_for_streams(range(len(self.streams))))

    def record_all(self, event: Event) -> None:
        """Record an event behind all work enqueued so far on all streams."""
        # Recorded on the first, it waits for the ends of the busy ones, as on an accelerator.
        self.record_on(tuple(sorted(self.busy | {0})), simulated_event(event))

    def record_on(self, indices: tuple[int, ...], event: SimulatedEvent) -> None:
        """Record an event on the first of these streams, behind the work of all of them."""
        points = event.begin(self, len(indices))
        self.repeats.do(("record", indices), self._record, (indices, points), points)

    def _record(self, indices: Sequence[int], points: Sequence[Point]) -> None:
        clock, host = self.device.clock, self.device.profile.host
        others_ns = (len(indices) - 1) * host.stream_wait_ns.value
        clock.advance(host.event_record_ns.value + others_ns)
        for index, point in zip(indices, points, strict=True):
            self.engine.record(index, point, clock.now_ns)

    def wait(self, index: int, points: Sequence[Point]) -> None:
        """Let a stream wait for an event's points."""
        self.device.clock.advance(self.device.profile.host.stream_wait_ns.value)
        for point in points:
            self.engine.wait(index, point, self.device.clock.now_ns)

    def capture(
        self, index: int, enqueue: Callable[[], None], marks: Marks | None = None
    ) -> Callable[[], None]:
        """Capture what ``enqueue`` launches, from stream ``index`` on; return the replay."""
        if self.capturing is not None:
            raise DeviceError("a graph is being captured already")
        self.capturing = capture = Capture()
        try:
            enqueue()
        finally:
            self.capturing = None
        return EnqueuedWork(self.device.costs, capture.graph, capture.events)

    def timeline(self, enqueue: Callable[[], None]) -> Timeline:
        """Run ``enqueue`` and return the intervals of its kernels and copies."""
        return self._traced(enqueue, held=False)

    def held_timeline(self, enqueue: Callable[[], None]) -> Timeline:
        """Do the same with all streams held behind one gate until ``enqueue`` has returned."""
        return self._traced(enqueue, held=True)

    def held_window(
        self, enqueue: Callable[[], None], marks: Marks, *, hold: bool = True
    ) -> HeldWindow:
        """Release the work of all streams at once; every launch's own times are known."""
        if hold:
            return window_of(self.held_timeline(enqueue))
        opened_ns = self.device.clock.now_ns
        return window_of(self.timeline(enqueue), opened_ns)

    def launching_window(
        self, calls: Sequence[Call], launches: int, most_held: int
    ) -> LaunchingWindow:
        """Launch from a thread for each stream at once; locks and what holds them are modelled.

        Raises:
            DeviceError: if a thread were to wait for its stream, which is not modelled.

        """
        if launches > most_held * len(calls):
            raise DeviceError("waits of launching threads are not modelled: launch less at once")
        clock, locks, costs = self.device.clock, self.device.profile.locks(), self.device.costs
        works = [() if isinstance(call, ModelledCall) else costs.of(call, ()) for call in calls]
        asked = calls[0]
        if not isinstance(asked, ModelledCall):
            driver_ns = locks.driver_ns or sum(map(self._native_ns, works[0]))
            # A planted fault is to be felt by what is judged.
            asked = ModelledCall(0, max(1, round(driver_ns * self.device.slowdown)))
        made = made_calls(asked, len(calls), launches, locks.interpreter_ns, clock.now_ns)
        self.repeats.leave()
        self.busy.update(range(len(calls)))
        factor = self.device.kernel_factor(self._run)
        for each in made:
            for work in works[each.thread]:
                at_ns = each.launched_ns
                self.engine.submit(each.thread, work.slowed(factor), at_ns)
        clock.reach(max(each.returned_ns for each in made))
        return window_of_calls(made, len(calls))

    def _native_ns(self, work: Work) -> int:
        """Return how long the driver's call for a launch takes a thread."""
        host = self.device.profile.host
        if isinstance(work, GraphWork):
            return host.graph_launch_ns.value + len(work.nodes) * host.graph_node_launch_ns.value
        within = isinstance(work, KernelWork) and work.within
        return 0 if within else host.kernel_launch_ns.value

    def export_trace(self, enqueue: Callable[[], None], path: str) -> None:
        """Write one pass as Chrome trace events, a track per stream, labelled simulated."""
        write_trace(
            self.held_timeline(enqueue), path, process=self.device.name, label="(simulated)"
        )

    def submit(
        self, stream: int, works: Sequence[Work], function: Callable[..., object], label: int | None
    ) -> None:
        """Submit the works of one launch, each when the host has come to it."""
        points: dict[int, Point] = {}
        if isinstance(function, EnqueuedWork):
            for node, event in function.events.items():
                (points[node],) = event.begin(self)
        factor = self.device.steady_factor(self._run)
        if factor is None:
            self.repeats.leave()
        key = ("launch", stream, id(works), factor)
        arguments = (stream, works, points, label)
        self.repeats.do(key, self._submit, arguments, points.values(), works, label)

    def _submit(
        self, stream: int, works: Sequence[Work], points: Mapping[int, Point], label: int | None
    ) -> None:
        clock, host = self.device.clock, self.device.profile.host
        clock.advance(host.launch_call_ns.value)
        for work in works:
            clock.advance(self._native_ns(work))
            self._wait_for_room(stream)
            noisy = work.slowed(self.device.kernel_factor(self._run))
            self.engine.submit(stream, noisy, clock.now_ns, label=label, points=points)

    def wait_for_streams(self, indices: Iterable[int]) -> None:
        """Let the host wait until streams are idle."""
        points = []
        for index in indices:
            points.append(Point())
            self.engine.record(index, points[-1], self.device.clock.now_ns)
        self.wait_for(points)

    def wait_for(self, points: Sequence[Point]) -> None:
        """Let the host wait until points have passed.

        Raises:
            DeviceError: if they never will: streams wait for one another, or for a closed gate.

        """
        clock = self.device.clock
        self._ask_model(points)
        for point in points:
            if not self.engine.run_until_passed(point):
                raise DeviceError("deadlock: the streams wait for what nothing enqueued will do")
            assert point.when_ns is not None
            clock.reach(point.when_ns)
        clock.advance(self.device.profile.host.synchronise_ns.value)

    def poll(self, points: Sequence[Point]) -> bool:
        """Whether all points have passed by now; if not, go on to the next thing to happen."""
        clock = self.device.clock
        if not self._ask_model(points):
            return True
        self.engine.run(clock.now_ns)
        passed = all(point.when_ns is not None for point in points)
        next_ns = self.engine.next_ns()
        if not passed and next_ns is not None:
            clock.reach(next_ns)
        return passed

    def _ask_model(self, points: Sequence[Point]) -> bool:
        """Let the model tell when points are passed, unless all are; return whether it must."""
        if all(point.when_ns is not None for point in points):
            return False
        self.repeats.leave()
        return True

    def _wait_for_room(self, stream: int) -> None:
        """Hold the host up while the launch queue is full (but not behind a closed gate)."""
        clock = self.device.clock
        most = self.device.profile.host.launch_queue_commands.value
        if not self._held and self.engine.outstanding(stream) >= most:
            # What has happened before now, in one go.
            self.engine.run(clock.now_ns - 1)
        while not self._held and self.engine.outstanding(stream) >= most:
            next_ns = self.engine.next_ns()
            if next_ns is None:
                raise DeviceError("deadlock: a full launch queue waits for what is not enqueued")
            self.engine.run(next_ns)
            clock.reach(next_ns)

    def _traced(self, enqueue: Callable[[], None], *, held: bool) -> Timeline:
        clock = self.device.clock
        kernels: list[Kernel] = []
        released_ns = None
        self.synchronize()
        self.trace = trace = LaunchTrace()
        tags, self.tags = self.tags, None

        def observe(
            stream: int, label: Any, name: str, enqueued_ns: int, start_ns: int, end_ns: int
        ) -> None:
            launch = trace.launches[label]
            kernels.append(
                Kernel(
                    stream=stream, launch=label, name=name, tag=launch.tag,
                    enqueued_ns=enqueued_ns, start_ns=start_ns, end_ns=end_ns,
                    waits_for=launch.waits_for, call=label,
                )
            )  # fmt: skip

        self.repeats.observe(observe)
        if held:
            self.repeats.leave()
            gate = Point()
            for stream in self.streams:
                self.engine.wait(stream.index, gate, clock.now_ns)
        self._held = held
        try:
            enqueue()
        finally:
            self._held = False
            try:
                if held:
                    released_ns = clock.now_ns
                    self.engine.at(released_ns, gate.pass_at)
                # Also after an error: what was enqueued belongs to this trace and to no other.
                self.synchronize()
            finally:
                self.trace, self.tags = None, tags
                self.repeats.observe(None)
        kernels.sort(key=lambda kernel: (kernel.start_ns, kernel.stream))
        return Timeline(tuple(kernels), len(self.streams), released_ns, calls=tuple(trace.calls))

    def __enter__(self) -> SimulatedPool:
        # Outermost the device's fake tensors, so that what is made in here has no values.
        self.device.costs.age()
        self.device.fake_tensors.__enter__()
        self._gradients.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._gradients.__exit__(*raised)
        self.device.fake_tensors.__exit__(*raised)
