"""The timeline pass, separate from the measured one: kernel intervals, and what switching costs.

One gate holds all work until it is enqueued, so that the pass sees the hardware's dispatch and not
Python's. The same kernels run once on all streams and once on one stream, in the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pytest_hwqueue.devices.protocol import Device, StreamPool
from pytest_hwqueue.errors import DeviceError
from pytest_hwqueue.harness.program import Enqueue
from pytest_hwqueue.harness.rank_synchronisation import ONE_RANK, RankSynchronisation
from pytest_hwqueue.metrics.switching import THREADS, QueueSwitch, queue_switch, without_switch
from pytest_hwqueue.metrics.timeline import Timeline, TimelineSummary, summarise_timeline

# An accelerator's launch queues take about a thousand launches (facts: trouble from 960 on).
_HELD_LAUNCHES = 850
_MOST_REPEATS = 20
_MOST_SPAN_NS = 500_000_000

# The probe's kernels: long against a launch, of one block each, so that they fill no device.
PROBE_KERNEL_NS = 50_000
_PROBE_KERNELS_PER_STREAM = 20
_STREAMS_PER_PROBE_KERNEL = 32


@dataclass(frozen=True)
class TimelinePass:
    """The results of a cell's timeline pass."""

    summary: TimelineSummary
    ready_to_start: QueueSwitch
    kernels_per_iteration: int


def timeline_pass(
    pool: StreamPool, enqueue: Enqueue, rank_sync: RankSynchronisation = ONE_RANK
) -> TimelinePass:
    """Trace iterations of ``enqueue`` on all streams, then the same kernels on the first.

    Raises:
        DeviceError: if this machine cannot see kernel times.

    """
    streams = pool.streams
    once = pool.held_timeline(lambda: enqueue(streams))
    repeats = rank_sync.agreed(_repeats(once))
    collapsed = [streams[0]] * len(streams)
    many = pool.held_timeline(_repeat(lambda: enqueue(streams), repeats))
    one = pool.held_timeline(_repeat(lambda: enqueue(collapsed), repeats))
    try:
        summary, switch = summarise_timeline(many), queue_switch(many, one)
        return TimelinePass(summary, switch, len(once.kernels))
    except ValueError as error:
        raise DeviceError(f"the timeline cannot be read: {error}") from error


def probe_queue_switch(device: Device, pool: StreamPool) -> QueueSwitch:
    """Measure queue-switch overhead with kernels of one block, round-robin.

    They last 50 µs, or longer beyond 32 streams, whose first kernels start one after the other.

    On an accelerator that does not run one kernel of every stream at once (few multiprocessors or
    queues, slow starts), kernels wait for each other, which is not a switch: the figure is refused.
    So are the CPU's differences: its streams are threads, between which nothing switches.
    """
    streams = pool.streams
    kernel = device.kernel_of(PROBE_KERNEL_NS * -(-len(streams) // _STREAMS_PER_PROBE_KERNEL))
    rounds = max(2, min(_PROBE_KERNELS_PER_STREAM, _HELD_LAUNCHES // len(streams)))

    def spread() -> None:
        for _ in range(rounds):
            for stream in streams:
                stream.launch(kernel)

    def collapsed() -> None:
        for _ in range(rounds * len(streams)):
            streams[0].launch(kernel)

    many = pool.held_timeline(spread)
    found = queue_switch(many, pool.held_timeline(collapsed))
    if device.capabilities.host:
        return without_switch(found, THREADS)
    at_once = summarise_timeline(many).in_flight_max
    if found.overhead.difference is None or at_once >= len(streams):
        return found
    reason = (
        f"at most {at_once} of {len(streams)} streams' kernels ran at once: they waited for each "
        "other, not for a switch of queues"
    )
    refused = {"difference": reason, "interval": reason}
    return replace(
        found, overhead=replace(found.overhead, difference=None, interval=None, refused=refused)
    )


def _repeats(once: Timeline) -> int:
    """Return how many iterations can be held back together and still run in half a second."""
    if not once.kernels:
        raise DeviceError("an iteration launched no kernels, so there is no timeline")
    launches = len(once.kernels)
    span_ns = max(kernel.end_ns for kernel in once.kernels) - min(
        kernel.start_ns for kernel in once.kernels
    )
    by_time = _MOST_SPAN_NS // max(1, span_ns)
    return max(1, min(_MOST_REPEATS, _HELD_LAUNCHES // launches, by_time))


def _repeat(function: Callable[[], None], times: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(times):
            function()

    return run
