"""The traced pass: iterations apart from the measured ones, to see why the slow ones are slow.

Each iteration is one request of a closed loop, and the host waits for it. They run in chunks, each
under the device's own tracer; the CPU's rings are read, and telemetry, between chunks.
"""

from __future__ import annotations

import gc
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pytest_hwqueue.data.metrics.attribution import Request
from pytest_hwqueue.data.metrics.latency import minimum_samples
from pytest_hwqueue.data.metrics.timeline import Span, Timeline
from pytest_hwqueue.data.records.telemetry import Telemetry
from pytest_hwqueue.data.records.tracing import Refusal
from pytest_hwqueue.engine.causes.explain import HostWork
from pytest_hwqueue.engine.causes.perf_events import RING_BYTES, Tracing, open_tracing
from pytest_hwqueue.engine.causes.perf_records import CpuTrace
from pytest_hwqueue.engine.cell.closed_loop import (
    ONE_RANK,
    RankSynchronisation,
    garbage_collection_held,
)
from pytest_hwqueue.engine.cell.program import Program
from pytest_hwqueue.parts.devices.cpu_counters import RunDelays
from pytest_hwqueue.parts.devices.host import HostStream
from pytest_hwqueue.parts.devices.protocol import Device, StreamPool

MOST_REQUESTS = 1000
"""So many, where nothing else is said, show the tail above P99 by ten requests."""

# What ran before a chunk has cooled the caches.
_LEAD_IN = 1
_FIRST_CHUNK = 5
_CHUNK_NS = 200_000_000
# A profiler's trace of more takes long to read, and much memory.
_MOST_LAUNCHES = 10_000
# All CPUs' rings together, and one.
_MOST_RING_BYTES = 64 * 1024 * 1024
_PAGE = 4096
_LARGEST_RING = 8 * 1024 * 1024

# A little more than the time asked for is spent where it makes a percentile known that else is not.
_PERCENTILES = (0.99, 0.95)
_LONGER = 4

VIRTUAL = "a simulated device runs in virtual time: nothing takes the CPU from its host"


@dataclass(frozen=True)
class TracePlan:
    """What a traced pass is to do.

    Attributes:
        requests: at most.
        max_time_ns: of real time, after which no further chunk begins; four times as much where
            that is what a percentile still needs.
        limit_ns: of real time, after which none begins whatever is missing.
        folder: where its picture goes; None writes none.
        csv: whether its events are also written as CSV, next to the trace.
        all_threads: trace every thread of this process, as where some launch work that is not this
            one: backward passes.

    """

    requests: int
    max_time_ns: int
    folder: Path | None = None
    csv: bool = False
    limit_ns: float = math.inf
    all_threads: bool = False


@dataclass(frozen=True)
class Chunk:
    """Requests that were traced together.

    Attributes:
        timeline: of the device; its launches are numbered from 0.
        requests: by launch, the number of the request that made it.
        begin_ns: of the first request.
        end_ns: of the last.
        lead_in: iterations before the first request, which are none; they made the other launches.

    """

    timeline: Timeline
    requests: Mapping[int, int]
    begin_ns: int
    end_ns: int
    lead_in: Sequence[Span] = ()


@dataclass
class TracedPass:
    """What a traced pass saw; all times are of the device's host clock.

    Attributes:
        tracing: the level of the CPU's trace, and why not a better one.
        main: the operating system's id of the thread that launches.
        streams: of the threads that are streams, by id the stream's index; empty on accelerators.
        requests: one for each iteration.
        waits: for each request, from when until when the host waited for the device.
        chunks: in order.
        trace: of the CPU; None at the levels without one.
        delays: what counts at level rusage how long threads waited for a core; None where nothing
            of that could be counted.
        delayed: that for each request, in ns by thread.
        compilations: when torch.compile compiled.
        collections: of garbage.
        telemetry: of the pass; its samples are the requests.

    """

    tracing: Tracing
    main: int
    streams: Mapping[int, int]
    requests: list[Request] = field(default_factory=list)
    waits: list[Span] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    trace: CpuTrace | None = None
    delays: RunDelays | None = None
    delayed: list[Mapping[int, int]] = field(default_factory=list)
    compilations: Sequence[Span] = ()
    collections: Sequence[HostWork] = ()
    telemetry: Telemetry = field(default_factory=lambda: Telemetry(source="none"))


def traced_pass(
    device: Device,
    pool: StreamPool,
    program: Program,
    plan: TracePlan,
    pause: Callable[[int], None],
    rank_sync: RankSynchronisation = ONE_RANK,
) -> TracedPass:
    """Run requests until there are enough, or the time is over; several processes as rank 0 does.

    Args:
        device: the streams' own.
        pool: idle streams.
        program: one iteration.
        plan: how many.
        pause: called before the first request and after each chunk, with the number done.
        rank_sync: of the processes that do the same.

    Raises:
        DeviceError: if this machine cannot see kernel times.

    """
    pool.tags = None
    with ExitStack() as stack:
        stack.enter_context(garbage_collection_held())
        passed = open_pass(device, pool, stack, all_threads=plan.all_threads)
        perf = passed.tracing.perf
        if perf is not None:
            perf.start()
        stack.enter_context(noted_host_work(passed, device.clock_ns))
        pause(0)
        begin_ns = time.monotonic_ns()
        size = min(_FIRST_CHUNK, plan.requests)
        while True:
            took_ns = _run_chunk(device, pool, program, size, passed, rank_sync)
            if perf is not None:
                perf.drain()
            done = len(passed.requests)
            pause(done)
            if rank_sync.agreed(_enough(done, time.monotonic_ns() - begin_ns, plan)):
                break
            wanted = _next_size(passed.chunks[-1], size, took_ns)
            size = rank_sync.agreed(min(wanted, plan.requests - done))
        if perf is not None:
            passed.trace = perf.stop()
    return passed


def open_pass(
    device: Device,
    pool: StreamPool,
    stack: ExitStack,
    *,
    all_threads: bool = False,
    sharing: int = 1,
) -> TracedPass:
    """Open the best trace of the CPU there is, not started; call it from the thread that launches.

    Args:
        device: the streams' own.
        pool: whose streams are traced if they are threads.
        stack: closes it.
        all_threads: as in a `TracePlan`.
        sharing: how many are traced on this machine at once: what a user may lock is shared.

    """
    main = threading.get_native_id()
    streams = {
        stream.native_id: stream.index for stream in pool.streams if isinstance(stream, HostStream)
    }
    if device.capabilities.virtual_time:
        refused = Refusal("perf", None, VIRTUAL)
        return TracedPass(Tracing("none", (refused,), None), main, streams)
    tids = [main, *streams]
    tracing = _open_tracing(None if all_threads else tids, sharing)
    passed = TracedPass(tracing, main, streams)
    if tracing.perf is not None:
        stack.callback(tracing.perf.close)
        return passed
    delays = RunDelays(tids)
    if delays.threads:
        passed.delays = delays
        stack.callback(delays.close)
    return passed


@contextmanager
def noted_host_work(passed: TracedPass, clock_ns: Callable[[], int]) -> Iterator[None]:
    """Note what the host does in the ``with`` block beside launching."""
    with (
        noted_compilations(clock_ns) as passed.compilations,
        noted_collections(clock_ns) as passed.collections,
    ):
        yield


@contextmanager
def noted_collections(clock_ns: Callable[[], int]) -> Iterator[Sequence[HostWork]]:
    """Note for the ``with`` block each collection, in ns of ``clock_ns``.

    It holds the interpreter's lock, so whoever collects, no thread runs Python meanwhile.
    """
    found: list[HostWork] = []
    began: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            began.append(clock_ns())
        elif began:
            name = f"generation {info['generation']}"
            found.append(HostWork(name=name, begin_ns=began.pop(), end_ns=clock_ns()))

    gc.callbacks.append(note)
    try:
        yield found
    finally:
        gc.callbacks.remove(note)


def _open_tracing(tids: Sequence[int] | None, sharing: int) -> Tracing:
    """Open the CPU's trace with rings for many switches, or with those that any user may have."""
    most = min(_LARGEST_RING, _MOST_RING_BYTES // len(os.sched_getaffinity(0)))
    tracing = open_tracing(tids, max(RING_BYTES, _power_of_two(most)))
    if tracing.perf is not None:
        return tracing
    # Each has a head page too.
    return open_tracing(tids, max(_PAGE, _power_of_two((RING_BYTES + _PAGE) // sharing - _PAGE)))


def _power_of_two(at_most: int) -> int:
    return 1 << max(0, at_most.bit_length() - 1)


def _run_chunk(
    device: Device,
    pool: StreamPool,
    program: Program,
    size: int,
    passed: TracedPass,
    rank_sync: RankSynchronisation,
) -> int:
    """Run requests under the device's tracer; return what they took in real time, in ns."""
    streams, enqueue, clock_ns = pool.streams, program.enqueue, device.clock_ns
    delays = passed.delays
    of_launch: dict[int, int] = {}
    first = len(passed.requests)
    took_ns = 0
    lead_in: list[Span] = []

    def iterate() -> None:
        nonlocal took_ns
        trace = pool.trace
        assert trace is not None
        began_ns = time.monotonic_ns()
        for number in range(first - _LEAD_IN, first + size):
            rank_sync.begin(clock_ns)
            launches = len(trace.launches)
            started = clock_ns()
            enqueue(streams)
            enqueued = clock_ns()
            pool.synchronize()
            finished = clock_ns()
            waited = None if delays is None else delays.step()
            if number < first:
                lead_in.append((started, finished))
                continue
            passed.requests.append(Request(number, started, started, started, finished))
            passed.waits.append((enqueued, finished))
            of_launch.update(dict.fromkeys(range(launches, len(trace.launches)), number))
            if waited is not None:
                passed.delayed.append(waited)
        took_ns = time.monotonic_ns() - began_ns

    timeline = pool.timeline(iterate)
    begin_ns, end_ns = passed.requests[first].arrival_ns, passed.requests[-1].finished_ns
    passed.chunks.append(Chunk(timeline, of_launch, begin_ns, end_ns, lead_in))
    return took_ns


def _enough(done: int, took_ns: int, plan: TracePlan) -> bool:
    """Whether to stop: by the plan, or since what is still missing would take too long."""
    if done >= plan.requests:
        return True
    if took_ns < min(plan.max_time_ns, plan.limit_ns):
        return False
    most_ns = min(_LONGER * plan.max_time_ns, plan.limit_ns)
    for quantile in _PERCENTILES:
        needed = minimum_samples(quantile)
        if done < needed <= plan.requests and took_ns * needed < most_ns * done:
            return False
    return True


def _next_size(last: Chunk, size: int, took_ns: int) -> int:
    """How many requests the next chunk may have by their time, and by their launches."""
    launches = max(1, len(last.timeline.kernels), len(last.timeline.calls))
    by_time = size * _CHUNK_NS // max(1, took_ns)
    return max(1, min(by_time, size * _MOST_LAUNCHES // launches))


@contextmanager
def noted_compilations(clock_ns: Callable[[], int]) -> Iterator[Sequence[Span]]:
    """Note when something is compiled during the ``with`` block, in ns of ``clock_ns``.

    If torch's compiler has not been imported, nothing can be compiled, and nothing is imported.
    What is compiled after a `torch._dynamo.reset` in the block is not noted.
    """
    spans: list[Span] = []
    began: list[int] = []
    if "torch._dynamo" not in sys.modules:
        yield spans
        return
    from torch._dynamo.callback import callback_handler

    # Later versions pass what is compiled.
    def begin(*_: object) -> None:
        began.append(clock_ns())

    def end(*_: object) -> None:
        if began:
            spans.append((began.pop(), clock_ns()))

    callback_handler.register_start_callback(begin)
    callback_handler.register_end_callback(end)
    try:
        yield spans
    finally:
        # What is measured may have called torch._dynamo.reset(), which drops all callbacks.
        with suppress(ValueError):
            callback_handler.remove_start_callback(begin)
        with suppress(ValueError):
            callback_handler.remove_end_callback(end)
