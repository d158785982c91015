"""The closed loop: warm up until stable, then measure iteration after iteration.

Two clocks are kept. Host-observed latency runs from before the first launch until the wait for all
streams returns; device time comes from events on the streams that did the work. Where iterations
are not waited for there is no latency: streams drift apart, and from the first start to the last
end of an iteration is the backlog between them. What they have is a pace. While measuring,
garbage collection is disabled, buffers and events already exist, and nothing else runs between the
two readings of the clock.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median

from pytest_hwqueue.data.records.cell import WarmUp
from pytest_hwqueue.engine.cell.program import Program
from pytest_hwqueue.engine.cell.sample_plan import SamplePlan
from pytest_hwqueue.engine.cell.stop_rule import StopRule
from pytest_hwqueue.parts.devices.cpu_counters import CpuCounting
from pytest_hwqueue.parts.devices.launches import no_garbage_collection
from pytest_hwqueue.parts.devices.protocol import Device, Event, StreamPool
from pytest_hwqueue.parts.workloads.workload import Ranks

PAUSE_NS = 200_000_000
_POLL_NS = 1_000_000
# Collecting garbage and making events have cooled the caches: these iterations are not samples.
_LEAD_IN = 3
# Events kept alive at once where nothing is synchronised; more would cost seconds to make.
MOST_EVENTS = 200_000
_WARM_UP_WINDOW = 5
_WARM_UP_TOLERANCE = 0.05
_MOST_WARM_UP_NS = 5_000_000_000


class RankSynchronisation:
    """What measuring needs from other ranks, outside measured intervals; here there are none."""

    ranks = Ranks()
    """This process's rank, and the number of ranks."""

    def agreed(self, value: int) -> int:
        """Return the value that rank 0 passed: all ranks must do the same next."""
        return value

    def barrier(self) -> None:
        """Return once all ranks have arrived here."""

    def begin(self, clock_ns: Callable[[], int]) -> int | None:
        """Return once all ranks begin an iteration, with the time on their clock they agreed on.

        None where there is none: one rank, or ranks on several hosts, which leave a barrier.
        """
        return None


ONE_RANK = RankSynchronisation()


@dataclass(frozen=True)
class Plan:
    """How much of a cell is measured, and how.

    Attributes:
        stop: when the measured loop ends.
        warmup: iterations before it, at least.
        sync_mode: what is waited for: ``per_iteration``, ``end_only`` or ``none``.
        samples: of the primary latency; None where iterations were asked for.
        iteration_ns: what an iteration takes, known from the warm-up. Where nothing is synchronised
            the host runs ahead of the device by up to a thousand launches, so the time cap is kept
            by it.
        traced_iterations: of a traced pass that times the primary latency; 0 for as many as the
            measured one.
        rank_sync: several processes begin together, and stop after the same iteration.
        flush: called before each synchronised iteration, outside of what is measured: empties the
            cache.

    """

    stop: StopRule
    warmup: int
    sync_mode: str
    samples: SamplePlan | None = None
    iteration_ns: int = 0
    traced_iterations: int = 0
    rank_sync: RankSynchronisation = ONE_RANK
    flush: Callable[[], None] | None = None

    @property
    def iterations(self) -> int:
        """Measured iterations, at most."""
        return self.stop.turns

    def of(self, iterations: int) -> Plan:
        """Return the plan with another number of iterations."""
        return replace(self, stop=replace(self.stop, turns=iterations))


@dataclass
class LoopResult:
    """Samples of one measured loop, in nanoseconds, in the order taken."""

    stopped: str = ""
    # Iterations before the first sample.
    lead_in: int = 0
    begun_ns: list[int] = field(default_factory=list)
    host_ns: list[int] = field(default_factory=list)
    device_ns: list[int] = field(default_factory=list)
    enqueue_ns: list[int] = field(default_factory=list)
    pace_ns: list[int] = field(default_factory=list)
    tags_ns: dict[str, list[int]] = field(default_factory=dict)
    # Iterations whose tagged launches were timed.
    tag_iterations: int = 0

    @property
    def iterations(self) -> int:
        """Measured iterations."""
        return len(self.enqueue_ns)


# Called between iterations with the number done, never inside a measured interval.
Pause = Callable[[int], None]


def warm_up(device: Device, pool: StreamPool, program: Program, plan: Plan) -> WarmUp:
    """Iterate until two windows' median times agree within 5 %, with a cap on time.

    The cap is a quarter of the measuring time, at most 5 s; a cell that is still changing then is
    measured all the same, and its record says so. With several processes, rank 0 decides.
    """
    clock_ns, rank_sync = device.clock_ns, plan.rank_sync
    times: list[int] = []
    stop = plan.stop.within(min(plan.stop.time_ns // 4, _MOST_WARM_UP_NS))
    stopping = stop.begin(device)
    pool.tags = program.tags
    while True:
        if plan.flush is not None:
            plan.flush()
        start = clock_ns()
        if program.tags is not None:
            program.tags.rewind()
        program.enqueue(pool.streams)
        pool.synchronize()
        now = clock_ns()
        times.append(now - start)
        if len(times) < plan.warmup:
            continue
        last = median(times[-_WARM_UP_WINDOW:])
        stable = False
        if len(times) >= 2 * _WARM_UP_WINDOW:
            before = median(times[-2 * _WARM_UP_WINDOW : -_WARM_UP_WINDOW])
            stable = abs(last - before) <= _WARM_UP_TOLERANCE * before
        late = stopping.time_is_up(now)
        if rank_sync.agreed(stable or late or stopping.simulated_too_long()):
            cap_s = (stop.time_ns if late else stop.wall_ns) / 1e9
            return WarmUp(
                iterations=len(times),
                iteration_ns=rank_sync.agreed(round(last)),
                stable=stable,
                reason="two windows agree within 5 %" if stable else f"changing after {cap_s:g} s",
            )


def measure(
    device: Device,
    pool: StreamPool,
    program: Program,
    plan: Plan,
    pause: Pause,
    window: CpuCounting | None = None,
) -> LoopResult:
    """Measure up to ``plan.iterations`` iterations in the plan's sync mode.

    The ``window`` opens once garbage is collected and events exist, before the lead-in iterations,
    so that opening does not cool the caches before the first sample. It closes after the last
    iteration, before times are processed.
    """
    pool.tags = program.tags
    loop = _synchronised if plan.sync_mode == "per_iteration" else _pipelined
    with garbage_collection_held():
        return loop(device, pool, program, plan, pause, window)


def _synchronised(
    device: Device,
    pool: StreamPool,
    program: Program,
    plan: Plan,
    pause: Pause,
    window: CpuCounting | None,
) -> LoopResult:
    streams, enqueue, tags = pool.streams, program.enqueue, program.tags
    clock_ns, rank_sync = device.clock_ns, plan.rank_sync
    host_ns = array("q", bytes(8 * plan.iterations))
    enqueue_ns = array("q", bytes(8 * plan.iterations))
    device_ns = array("q", bytes(8 * plan.iterations))
    begun_ns = array("q")
    result = LoopResult(stopped=f"{plan.iterations} iterations", lead_in=_LEAD_IN)
    start, end = device.new_event(), device.new_event()
    if window is not None:
        window.opened()
    for _ in range(_LEAD_IN):
        if tags is not None:
            tags.rewind()
        enqueue(streams)
        pool.synchronize()
    stopping = plan.stop.begin(device)
    next_pause = clock_ns() + PAUSE_NS
    done = 0
    while done < plan.iterations:
        if tags is not None:
            tags.rewind()
        if plan.flush is not None:
            plan.flush()
        agreed_ns = rank_sync.begin(clock_ns)
        # Device time counts from here: the first stream is idle, so it passes the event at once.
        streams[0].record(start)
        started = clock_ns()
        enqueue(streams)
        enqueued = clock_ns()
        pool.record_all(end)
        pool.synchronize()
        finished = clock_ns()
        host_ns[done] = finished - started
        enqueue_ns[done] = enqueued - started
        device_ns[done] = device.elapsed_ns(start, end)
        if agreed_ns is not None:
            begun_ns.append(started - agreed_ns)
        done += 1
        if tags is not None:
            tags.collect(device.elapsed_ns, result.tags_ns)
        if done < plan.iterations and rank_sync.agreed(stopping.time_is_up(finished)):
            result.stopped = plan.stop.time_cap
            break
        if stopping.simulated_too_long() and done < plan.iterations:
            result.stopped = plan.stop.wall_cap(done, plan.iterations)
            break
        if finished >= next_pause:
            pause(done)
            next_pause = clock_ns() + PAUSE_NS
    if window is not None:
        window.closed()
    result.tag_iterations = done if tags is not None else 0
    result.begun_ns = begun_ns.tolist()
    result.host_ns = host_ns[:done].tolist()
    result.enqueue_ns = enqueue_ns[:done].tolist()
    result.device_ns = device_ns[:done].tolist()
    return result


def _pipelined(
    device: Device,
    pool: StreamPool,
    program: Program,
    plan: Plan,
    pause: Pause,
    window: CpuCounting | None,
) -> LoopResult:
    """Enqueue iterations back to back; their pace comes from events, read once completed."""
    streams, enqueue, tags = pool.streams, program.enqueue, program.tags
    clock_ns = device.clock_ns
    result = LoopResult(stopped=f"{plan.iterations} iterations")
    by_events = max(1, MOST_EVENTS // len(streams))
    by_time = plan.stop.fitting(plan.iteration_ns)
    planned = min(by_events, by_time)
    if planned == by_time < plan.iterations:
        result.stopped = plan.stop.time_cap
    elif planned == by_events < plan.iterations:
        result.stopped = f"{MOST_EVENTS} events, the most kept without synchronising"
    origin = device.new_event()
    ends = [[device.new_event() for _ in streams] for _ in range(planned)]
    if tags is not None:
        tags.repeat(planned)
    pool.synchronize()
    plan.rank_sync.barrier()
    enqueue_ns = array("q", bytes(8 * planned))
    done = 0
    if window is not None:
        window.opened()
    stopping = plan.stop.begin(device)
    streams[0].record(origin)
    while done < planned:
        if done and stopping.simulated_too_long():
            result.stopped = plan.stop.wall_cap(done, planned)
            break
        began = clock_ns()
        enqueue(streams)
        for stream, event in zip(streams, ends[done], strict=True):
            stream.record(event)
        finished = clock_ns()
        enqueue_ns[done] = finished - began
        done += 1
    if plan.sync_mode == "end_only":
        pool.synchronize()
    else:
        # Only looked at, never waited for, until all has completed.
        while not all(event.query() for event in ends[done - 1]):
            device.sleep_until_ns(clock_ns() + _POLL_NS)
        pool.synchronize()
    if window is not None:
        window.closed()
    pause(done)
    result.enqueue_ns = enqueue_ns[:done].tolist()
    previous = origin
    for events in ends[:done]:
        last = _latest(device, events)
        result.pace_ns.append(device.elapsed_ns(previous, last))
        previous = last
    if tags is not None:
        tags.collect(device.elapsed_ns, result.tags_ns)
        result.tag_iterations = done
    return result


def _latest(device: Device, events: Sequence[Event]) -> Event:
    return max(events, key=lambda event: device.elapsed_ns(events[0], event))


@contextmanager
def garbage_collection_held() -> Iterator[None]:
    """Collect garbage now, and not again before the end."""
    gc.collect()
    with no_garbage_collection():
        yield
