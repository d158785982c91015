"""The pass that keeps the queues full: what a device carries, and not what a host gets that waits.

A measured iteration is waited for, as its latency asks, and meanwhile the device is idle: on an
H200, 8 streams of tiny kernels carry 5.2 million a second if iterations follow each other at once,
and 3.4 million if each is waited for. Eager launches are bounded by Python either way, so this pass
is for graphs.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import median

from pytest_hwqueue.devices.protocol import Device, StreamPool
from pytest_hwqueue.harness.cell import OpenCell
from pytest_hwqueue.harness.closed_loop import (
    ONE_RANK,
    RankSynchronisation,
    garbage_collection_held,
)
from pytest_hwqueue.harness.program import Enqueue, Program, graph
from pytest_hwqueue.metrics.latency import LEAST_ITERATIONS
from pytest_hwqueue.records.cell import BackToBack

_BLOCKS = LEAST_ITERATIONS
_PLANNED_NS = 400_000_000
# Beyond this share of the measuring time an iteration is so long that waiting costs it nothing.
_SHARE_OF_TIME = 10
# Events on all of 64 streams would take the host 5 % of a block.
_MOST_MARKED = 8


def block_iterations(iteration_ns: int, max_time_ns: int) -> int:
    """Return of how many iterations a block is; 0 if they are too long for this pass.

    Args:
        iteration_ns: duration of an iteration that is waited for.
        max_time_ns: measuring time of the cell.

    """
    most_ns = max_time_ns // _SHARE_OF_TIME
    if _BLOCKS * iteration_ns > most_ns:
        return 0
    return max(1, min(_PLANNED_NS, most_ns) // (_BLOCKS * max(1, iteration_ns)))


def back_to_back(
    device: Device,
    pool: StreamPool,
    program: Program,
    iterations: int,
    rank_sync: RankSynchronisation = ONE_RANK,
) -> BackToBack:
    """Enqueue 50 blocks of iterations without waiting; return each one's device time.

    A block ends with its last iteration on up to 8 streams spread over the pool, and the last block
    with all streams: together they are the time of all work.

    Args:
        device: whose events time the blocks.
        pool: the streams; no tags are timed.
        program: one iteration, without events.
        iterations: of a block.
        rank_sync: of the processes that do the same.

    """
    streams = pool.streams
    marked = streams[:: -(-len(streams) // _MOST_MARKED)]
    ends = [[device.new_event() for _ in marked] for _ in range(_BLOCKS)]
    last = device.new_event()
    launching_ns: list[int] = []
    pool.tags = None
    with garbage_collection_held():
        pool.synchronize()
        rank_sync.barrier()
        # One block more, whose end is the first one's begin: it fills the queues.
        for _ in range(iterations):
            began_ns = device.clock_ns()
            program.enqueue(streams)
            launching_ns.append(device.clock_ns() - began_ns)
        for events in ends:
            for stream, event in zip(marked, events, strict=True):
                stream.record(event)
            for _ in range(iterations):
                program.enqueue(streams)
        pool.record_all(last)
        pool.synchronize()
    origin = ends[0][0]
    ended_ns = [max(device.elapsed_ns(origin, event) for event in events) for events in ends]
    ended_ns.append(device.elapsed_ns(origin, last))
    return BackToBack(
        blocks_ns=[end - begin for begin, end in pairwise(ended_ns)],
        iterations=iterations,
        launching_ns=round(median(launching_ns)),
    )


def planned_of(cell: OpenCell) -> int:
    """Return of how many iterations a cell's blocks are; 0 if its throughput comes from elsewhere.

    Simulating without idle moments would take long: there it stays that of iterations waited for,
    as it does under noise, which is felt by a host that waits.
    """
    request, warm_up = cell.request, cell.found.warm_up
    assert warm_up is not None
    replayed = request.cell.dispatch == "graph" and request.plan.sync_mode == "per_iteration"
    if not replayed or cell.device.capabilities.virtual_time:
        return 0
    if request.only_traced or request.noise is not None:
        return 0
    return block_iterations(warm_up.iteration_ns, request.plan.max_time_ns)


def measure_blocks(
    cell: OpenCell, program: Program, iteration: Enqueue, iterations: int
) -> BackToBack:
    """Measure a cell's graph back to back.

    Args:
        cell: measured, and not yet traced: launching takes longer after a profiler has run.
        program: its iteration.
        iteration: what the program's graph was captured from.
        iterations: of a block.

    """
    cell.stage("throughput", 0, _BLOCKS * iterations)
    if cell.request.workload.tags:
        # Events of tags take the place of kernels: on an H200 they cost 32 streams a quarter.
        program = graph(cell.device, cell.pool, iteration, tagged=False, apart=False)
    rank_sync = cell.request.plan.rank_sync
    return back_to_back(cell.device, cell.pool, program, iterations, rank_sync)
