"""The pass that gives timelines, and latencies of tagged launches from it.

Streams beyond the device's hardware connections share queues, and an event holds up every stream
that shares its queue until it has passed. Events around tagged launches would then make streams
wait for each other, and date a launch's readiness too late: measured on an H200 with 32 streams on
8 connections, 0.03 ms where the launch really took 41 ms. There the times come from a separate
traced pass, from the kernels' activity records.

In the timeline pass one gate holds all work until it is enqueued, so that the pass sees the
hardware's dispatch and not Python's. The same kernels run once on all streams and once on one
stream, in the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pytest_hwqueue.devices.protocol import Device, StreamPool
from pytest_hwqueue.errors import DeviceError, translated
from pytest_hwqueue.harness.closed_loop import (
    ONE_RANK,
    LoopPlan,
    RankSynchronisation,
    measure,
    warm_up,
)
from pytest_hwqueue.harness.program import Enqueue, Program
from pytest_hwqueue.metrics.overlap import TimelineSummary, summarise_timeline
from pytest_hwqueue.metrics.switching import (
    THREADS,
    QueueSwitch,
    queue_switch,
    without_difference,
    without_switch,
)
from pytest_hwqueue.metrics.timeline import (
    Timeline,
    tag_latencies,
)

# Enough for P99 of a tag with few launches an iteration; more would cost seconds to read.
_MOST_KERNELS = 60_000
_SHARE_OF_TIME = 4
# Where the latency that is judged comes from that pass, it has to have the samples planned.
_MOST_KERNELS_OF_PRIMARY = 150_000


def events_disturb(device: Device, streams: int) -> str | None:
    """Why events must not stand between launches on so many streams, or None."""
    if device.connections is None or streams <= device.connections:
        return None
    return (
        f"{streams} streams share {device.connections} hardware connections, so that events would "
        "make streams wait for each other"
    )


def traced_latencies(
    pool: StreamPool, program: Program, plan: LoopPlan, *, primary: bool = False
) -> tuple[dict[str, list[int]], int]:
    """Latency of each tagged launch and request, in ns, from the kernels' activity records.

    Args:
        pool: the streams.
        program: one iteration.
        plan: at most so many iterations; at most a quarter of its time; synchronised as it says.
        primary: the primary latency is among them: at most the plan's whole time.

    Returns:
        the latencies by tag, and the number of iterations that they are of.

    Raises:
        DeviceError: if this machine cannot see kernel times.

    """

    def once() -> None:
        program.enqueue(pool.streams)
        if plan.sync_mode == "per_iteration":
            pool.synchronize()

    launched = pool.launched
    kernels = max(1, len(pool.timeline(once).kernels))
    launches = pool.launched - launched
    most = _MOST_KERNELS_OF_PRIMARY if primary else _MOST_KERNELS
    time_ns = plan.max_time_ns if primary else plan.max_time_ns // _SHARE_OF_TIME
    by_time = time_ns // max(1, plan.iteration_ns)
    planned = plan.traced_iterations if primary and plan.traced_iterations else plan.iterations
    iterations = plan.rank_sync.agreed(max(1, min(planned, most // kernels, by_time)))

    def repeated() -> None:
        for _ in range(iterations):
            once()

    timeline = pool.timeline(repeated)
    return tag_latencies(timeline, program.request_name, launches), iterations


@dataclass(frozen=True)
class ReferencePass:
    """What a reference took, in ns: its tagged launches, and its iterations on the device."""

    launches_ns: list[int]
    iterations_ns: list[int]


def reference_pass(
    device: Device, pool: StreamPool, program: Program, plan: LoopPlan, *, traced: bool
) -> ReferencePass:
    """Measure a reference, and its launches in the same way as the cell's own."""
    warmed = warm_up(device, pool, program, plan)
    # It is short: nothing is read between its iterations.
    measured = measure(device, pool, program, plan, lambda done: None)
    found = measured.tags_ns
    if traced:
        pool.tags = None
        timed = replace(plan, iteration_ns=warmed.iteration_ns)
        found, _ = traced_latencies(pool, program, timed)
    launches = [ns for values in found.values() for ns in values]
    return ReferencePass(launches, measured.device_ns)


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
    """The results of a cell's timeline pass, and the timelines that they come from."""

    summary: TimelineSummary
    ready_to_start: QueueSwitch
    kernels_per_iteration: int
    many: Timeline
    one: Timeline


@dataclass(frozen=True)
class Probe:
    """The result of a cell's queue-switch probe, and the timelines that it comes from."""

    queue_switch: QueueSwitch
    many: Timeline
    one: Timeline


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
    with translated(DeviceError, "the timeline cannot be read", ValueError):
        summary, switch = summarise_timeline(many), queue_switch(many, one)
        return TimelinePass(summary, switch, len(once.kernels), many, one)


def probe_queue_switch(device: Device, pool: StreamPool) -> Probe:
    """Measure queue-switch overhead with kernels of one block, round-robin.

    They last 50 µs, or longer beyond 32 streams, whose first kernels start one after the other.
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

    many, one = pool.held_timeline(spread), pool.held_timeline(collapsed)
    return Probe(probed_switch(many, one, host=device.capabilities.host), many, one)


def refused_on_host(found: QueueSwitch, *, host: bool) -> QueueSwitch:
    """Return delays without their differences where streams are threads of the host."""
    return without_switch(found, THREADS) if host else found


def probed_switch(many: Timeline, one: Timeline, *, host: bool) -> QueueSwitch:
    """Return the queue switch of a probe.

    On an accelerator that does not run one kernel of every stream at once (few multiprocessors or
    queues, slow starts), kernels wait for each other, which is not a switch: the figure is refused.
    So are the CPU's differences: its streams are threads, between which nothing switches.
    """
    found = refused_on_host(queue_switch(many, one), host=host)
    at_once = summarise_timeline(many).in_flight_max
    if host or found.overhead.difference.value is None or at_once >= many.streams:
        return found
    reason = (
        f"at most {at_once} of {many.streams} streams' kernels ran at once: they waited for each "
        "other, not for a switch of queues"
    )
    return found.model_copy(update={"overhead": without_difference(found.overhead, reason)})


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
