"""The interface of devices, streams and events: all that workloads and the harness know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

    from pytest_hwqueue.data.metrics.contention import HeldWindow
    from pytest_hwqueue.data.metrics.launching import LaunchingWindow
    from pytest_hwqueue.data.metrics.timeline import Timeline
    from pytest_hwqueue.data.records.fingerprint import Fingerprint
    from pytest_hwqueue.data.records.kinds import Capabilities
    from pytest_hwqueue.parts.devices.launches import LaunchTrace, TagLog
    from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
    from pytest_hwqueue.parts.devices.telemetry import TelemetryReader, Unavailable


Call = Callable[[], object]
"""A call that a thread of the host makes: a launch on its stream, or another."""


@dataclass(frozen=True)
class Marks:
    """What marks the ends of launches in a held window, where the device cannot be watched.

    Attributes:
        streams: indices of those whose launches are marked.
        by: a kernel that stores the device's time, or an event.
        each: marks behind each launch: 1; 0 for one at the end of the stream alone; 2 to learn what
            a mark takes.

    """

    streams: frozenset[int]
    by: Literal["stamps", "events"]
    each: int


class Event(Protocol):
    """A point in a stream's work. Reusable: recording again moves it."""

    def query(self) -> bool:
        """Whether the stream has passed the point; true if never recorded."""

    def synchronize(self) -> None:
        """Block the calling thread until the stream has passed the point."""


class Stream(Protocol):
    """An in-order queue of work. Everything a workload enqueues goes through `launch`."""

    @property
    def index(self) -> int:
        """Position in its pool, from 0."""

    @property
    def priority(self) -> int:
        """The requested priority: 0 is normal, larger is more urgent."""

    @property
    def handle(self) -> int:
        """The runtime's or operating system's name for the queue; unique in its pool."""

    def launch(
        self, function: Callable[..., object], *arguments: object, tag: str | None = None
    ) -> None:
        """Enqueue ``function(*arguments)``; a tagged launch has its own latency distribution."""

    def record(self, event: Event | None = None) -> Event:
        """Record an event (a new one unless given) after the work enqueued so far."""

    def wait(self, event: Event) -> None:
        """Make work enqueued from now on wait for the event, without blocking the host."""

    def synchronize(self) -> None:
        """Block the calling thread until all work enqueued so far is done."""


class StreamPool(Protocol):
    """Distinct streams on one device; closed by the ``with`` statement that made it."""

    tags: TagLog | None
    trace: LaunchTrace | None

    @property
    def streams(self) -> Sequence[Stream]:
        """The streams, by index."""

    @property
    def launched(self) -> int:
        """Calls of its streams' launch since it was made."""

    def device_priorities(self) -> list[int]:
        """The priority of each stream as the device reports it, in the device's own numbers."""

    def synchronize(self) -> None:
        """Block the calling thread until all streams are idle; raise what their work raised."""

    def capture(
        self, index: int, enqueue: Callable[[], None], marks: Marks | None = None
    ) -> Callable[[], None]:
        """Capture what ``enqueue`` launches, from stream ``index`` on, into a graph.

        Args:
            index: of the stream.
            enqueue: launches work.
            marks: whose stamps are part of the graph, for `held_window` with the same marks.

        Returns:
            its replay, to be launched.

        Raises:
            DeviceError: if the device has no graphs.

        """

    def record_all(self, event: Event) -> None:
        """Record an event after all work enqueued so far on all streams.

        Streams without work since all were last idle must cost nothing: an iteration's latency
        includes this.
        """

    def timeline(self, enqueue: Callable[[], None]) -> Timeline:
        """Run ``enqueue`` and return the kernels' intervals, seen from outside the streams.

        Their times are on the clock of `Device.clock_ns`. ``enqueue`` may wait on the host.

        Raises:
            DeviceError: if this machine cannot see kernel times.

        """

    def held_timeline(self, enqueue: Callable[[], None]) -> Timeline:
        """Do the same with all streams held behind one gate until ``enqueue`` has returned.

        This shows the hardware's dispatch, not Python's. ``enqueue`` must not wait on the host.

        Raises:
            DeviceError: if this machine cannot see kernel times.

        """

    def held_window(
        self, enqueue: Callable[[], None], marks: Marks, *, hold: bool = True
    ) -> HeldWindow:
        """Release the work of all streams at once, and return when each launch was done.

        Args:
            enqueue: enqueues work on the pool's streams, and must not wait on the host.
            marks: which launches are marked, and by what, where kernels cannot be watched without
                a cost.
            hold: whether the gate is closed until ``enqueue`` has returned; if not, launching is
                part of what is seen.

        Raises:
            DeviceError: if the work cannot be held, or the device's clock not be read.

        """

    def launching_window(
        self, calls: Sequence[Call], launches: int, most_held: int
    ) -> LaunchingWindow:
        """Have threads of the host launch at once, and time each of their calls.

        Each has one of the first streams, which is current in it, and begins once all are awake.

        Args:
            calls: one for each thread, made again and again: `capture`'s replay, a function that
                enqueues on the current stream, or one of `Device.call_of`.
            launches: calls of all threads together.
            most_held: calls of one thread after which it waits for its stream, untimed, so that no
                launch queue is ever full.

        """

    def export_trace(self, enqueue: Callable[[], None], path: str) -> None:
        """Write one pass as a trace that Perfetto reads."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: Any, error: BaseException | None, where: Any) -> None: ...


class Device(Protocol):
    """One accelerator, or the host's cores."""

    @property
    def kind(self) -> str:
        """The start of its label: ``cpu``, ``cuda``, ``hip``, ``sim``, or another package's.

        For records and messages; to know what a device can do, ask its `capabilities`.
        """

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""

    @property
    def model(self) -> SimulatedDevice | None:
        """What can be changed about a simulated device; None for a real one."""

    @property
    def profiled(self) -> bool:
        """Whether a profiler in this process has left launching slower for good."""

    @property
    def index(self) -> int:
        """Position among the visible devices of its kind."""

    @property
    def label(self) -> str:
        """Its name in cell names: ``cpu``, ``cuda``, ``cuda:1``."""

    @property
    def name(self) -> str:
        """The model's name."""

    @property
    def torch_device(self) -> torch.device:
        """The torch device of tensors."""

    @property
    def connections(self) -> int | None:
        """How many streams have their own hardware queue; None if all have.

        Beyond that number streams share queues, and an event recorded on one holds up the others in
        its queue until it has passed.
        """

    @property
    def lease_key(self) -> str | None:
        """The key of the lease that one session at a time holds: the GPU's UUID, or ``cpu``.

        None for a device that others cannot disturb: a simulated one.
        """

    def open_streams(
        self, count: int, priorities: Sequence[int] | None = None, *, gradients: bool = False
    ) -> StreamPool:
        """Create ``count`` distinct streams.

        Args:
            count: number of streams, at least 1.
            priorities: one per stream, 0 normal, larger more urgent; all normal if None.
            gradients: whether launched work records autograd graphs.

        Raises:
            DeviceError: if the runtime refuses or two handles are equal.

        """

    def clock_ns(self) -> int:
        """Read the host's clock, in nanoseconds; virtual on a simulated device."""

    def sleep_until_ns(self, when_ns: int) -> None:
        """Have the host sleep until its clock reads ``when_ns``."""

    def open_telemetry(self) -> TelemetryReader | Unavailable:
        """Open a reader of clocks and temperatures, to be closed; or return why there is none."""

    def fingerprint(self) -> Fingerprint:
        """Return what must match for results to be compared, and what to report."""

    def new_event(self) -> Event:
        """Create an event that can be timed with `elapsed_ns`."""

    def new_graph_event(self) -> Event:
        """Create a timing event that may be recorded while a graph is captured.

        Raises:
            DeviceError: if the device or this torch has none.

        """

    def elapsed_ns(self, start: Event, end: Event) -> int:
        """Return the device time between two completed events, in nanoseconds."""

    def kernel_of(self, duration_ns: int, *, waves: int = 0) -> Callable[[], None]:
        """Return a function that occupies the device for about ``duration_ns``.

        Args:
            duration_ns: how long it takes alone.
            waves: how many times as many blocks it has as the device holds at once; with 0 it has
                one block, which leaves room for others.

        Raises:
            DeviceError: if none can be made that fills this device.

        """

    def call_of(self, duration_ns: int) -> Call:
        """Return a call of the host that takes about so long, and neither launches nor waits."""

    def clock_reading_ns(self) -> int | None:
        """Return what two readings of `clock_ns` add to what is between them; None if nothing."""

    def memory_bytes(self) -> dict[str, int]:
        """Return memory in use by kind, as far as the device tells (peak since `reset_memory`)."""

    def reset_memory(self) -> str | None:
        """Release cached memory and start a new peak; return why there can be none, or None."""

    def limits(self) -> dict[str, Any]:
        """Return the device's properties that doctor prints."""
