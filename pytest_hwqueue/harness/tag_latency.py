"""How tagged launches are timed: by events in the streams, or from outside where these disturb.

Streams beyond the device's hardware connections share queues, and an event holds up every stream
that shares its queue until it has passed. Events around tagged launches would then make streams
wait for each other, and date a launch's readiness too late: measured on an H200 with 32 streams on
8 connections, 0.03 ms where the launch really took 41 ms. There the times come from a separate
traced pass, from the kernels' activity records.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_hwqueue.devices.protocol import Device, StreamPool
from pytest_hwqueue.harness.closed_loop import LoopPlan, measure, warm_up
from pytest_hwqueue.harness.program import Program
from pytest_hwqueue.harness.rank_synchronisation import ONE_RANK, RankSynchronisation
from pytest_hwqueue.metrics.timeline import tag_latencies

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
    pool: StreamPool,
    program: Program,
    plan: LoopPlan,
    rank_sync: RankSynchronisation = ONE_RANK,
    *,
    primary: bool = False,
) -> tuple[dict[str, list[int]], int]:
    """Latency of each tagged launch and request, in ns, from the kernels' activity records.

    Args:
        pool: the streams.
        program: one iteration.
        plan: at most so many iterations; at most a quarter of its time; synchronised as it says.
        rank_sync: of the processes that do the same.
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
    iterations = rank_sync.agreed(max(1, min(planned, most // kernels, by_time)))

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
    device: Device,
    pool: StreamPool,
    program: Program,
    plan: LoopPlan,
    *,
    traced: bool,
    rank_sync: RankSynchronisation = ONE_RANK,
) -> ReferencePass:
    """Measure a reference, and its launches in the same way as the cell's own."""
    warmed = warm_up(device, pool, program, plan, rank_sync)
    measured = measure(device, pool, program, plan, _no_pause, rank_sync)
    found = measured.tags_ns
    if traced:
        pool.tags = None
        timed = LoopPlan(
            plan.iterations, plan.warmup, plan.max_time_ns, plan.sync_mode, warmed.iteration_ns
        )
        found, _ = traced_latencies(pool, program, timed, rank_sync)
    launches = [ns for values in found.values() for ns in values]
    return ReferencePass(launches, measured.device_ns)


def _no_pause(done: int) -> None:
    """Reference passes are short: nothing is read between their iterations."""
