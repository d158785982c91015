"""What a device, a stream and an event must do; workloads and the harness know nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

    from pytest_hwqueue.devices.fingerprint import Fingerprint
    from pytest_hwqueue.devices.kinds import Capabilities
    from pytest_hwqueue.devices.launches import LaunchTrace, TagLog
    from pytest_hwqueue.devices.telemetry import TelemetryReader, Unavailable
    from pytest_hwqueue.metrics.timeline import Timeline


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
        """What was asked for: 0 is normal, larger is more urgent."""

    @property
    def handle(self) -> int:
        """What the runtime or operating system calls the queue; unique in its pool."""

    def launch(
        self, function: Callable[..., object], *arguments: object, tag: str | None = None
    ) -> None:
        """Enqueue ``function(*arguments)``; a tagged launch has its own latency distribution."""

    def record(self, event: Event | None = None) -> Event:
        """Record an event (a new one unless given) behind the work enqueued so far."""

    def wait(self, event: Event) -> None:
        """Let work enqueued from now on wait for the event, without blocking the host."""

    def synchronize(self) -> None:
        """Block the calling thread until all work enqueued so far is done."""


class StreamPool(Protocol):
    """Distinct streams on one device; closed by the ``with`` statement that made it."""

    tags: TagLog | None
    trace: LaunchTrace | None
    # Calls of its streams' launch since it was made.
    launched: int

    @property
    def streams(self) -> Sequence[Stream]:
        """The streams, by index."""

    def device_priorities(self) -> list[int]:
        """The priority of each stream as the device reports it, in the device's own numbers."""

    def synchronize(self) -> None:
        """Block the calling thread until all streams are idle; raise what their work raised."""

    def capture(self, index: int, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Capture what ``enqueue`` launches, from stream ``index`` on, into a graph.

        Returns:
            its replay, to be launched.

        Raises:
            DeviceError: if the device has no graphs.

        """

    def record_all(self, event: Event) -> None:
        """Record an event behind all work enqueued so far on all streams."""

    def timeline(self, enqueue: Callable[[], None]) -> Timeline:
        """Run ``enqueue`` and return the kernels' intervals, seen from outside the streams.

        Their times are of `Device.clock_ns`. ``enqueue`` may wait on the host.

        Raises:
            DeviceError: if this machine cannot see kernel times.

        """

    def held_timeline(self, enqueue: Callable[[], None]) -> Timeline:
        """Do the same with all streams held behind one gate until ``enqueue`` has returned.

        The hardware's dispatch is seen, and not Python's. ``enqueue`` must not wait on the host.

        Raises:
            DeviceError: if this machine cannot see kernel times.

        """

    def export_trace(self, enqueue: Callable[[], None], path: str) -> None:
        """Write one pass as a trace that Perfetto reads."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None: ...


class DeviceModel(Protocol):
    """What can be changed about a simulated device; nothing of a real one ever is."""

    def slowed(self, factor: float) -> AbstractContextManager[None]:
        """Make all kernels take ``factor`` times as long in a block; its end undoes all changes."""

    def dip_clock(self, share: float, begin_ns: int, end_ns: int) -> None:
        """Lower the clock by ``share`` from one virtual time to another; telemetry sees it."""

    def vary(self, noise: str, seed: int, of: str) -> None:
        """Make kernels' durations vary, as `--hwq-sim-noise` says; not at all if that is empty.

        Args:
            noise: amplitudes by name.
            seed: of the session.
            of: what is measured: other things get other draws.

        """


class Device(Protocol):
    """One accelerator, or the host's cores."""

    @property
    def kind(self) -> str:
        """What its label begins with: ``cpu``, ``cuda``, ``hip``, ``sim``, or another package's.

        For records and people; what a device can do, its `capabilities` say.
        """

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""

    @property
    def model(self) -> DeviceModel | None:
        """What can be changed about a simulated device; None for a real one."""

    @property
    def index(self) -> int:
        """Position among the visible devices of its kind."""

    @property
    def label(self) -> str:
        """What cell names say: ``cpu``, ``cuda``, ``cuda:1``."""

    @property
    def name(self) -> str:
        """The model, for people."""

    @property
    def torch_device(self) -> torch.device:
        """Where tensors go."""

    @property
    def connections(self) -> int | None:
        """How many streams have a hardware queue of their own; None if all have.

        Beyond it streams share queues, and an event recorded on one holds up the others that
        share its queue until it has passed.
        """

    @property
    def lease_key(self) -> str:
        """What one measuring session at a time may hold: the GPU's UUID, or ``cpu``."""

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
        """Let the host do nothing until its clock says ``when_ns``."""

    def open_telemetry(self) -> TelemetryReader | Unavailable:
        """Open what reads its clocks and temperatures, to be closed; or say why there is none."""

    def fingerprint(self) -> Fingerprint:
        """What must match for results to be compared, and what should be reported."""

    def new_event(self) -> Event:
        """Make an event that can be timed with `elapsed_ns`."""

    def new_graph_event(self) -> Event:
        """Make a timing event that may be recorded while a graph is captured.

        Raises:
            DeviceError: if the device or this torch has none.

        """

    def elapsed_ns(self, start: Event, end: Event) -> int:
        """Device time between two completed events, in nanoseconds."""

    def kernel_of(self, duration_ns: int) -> Callable[[], None]:
        """Return a function that occupies one execution unit for about this long."""

    def memory_bytes(self) -> dict[str, int]:
        """Memory in use, by the names this device can tell apart (peak since `reset_memory`)."""

    def reset_memory(self) -> None:
        """Start a new peak; give cached memory back."""

    def limits(self) -> dict[str, Any]:
        """What the device says of itself that doctor prints."""
