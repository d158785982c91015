"""What the harness adds to a loop written by hand: ratios of P50 and P99, and of the throughput.

    python tools/overhead.py [--device DEVICE] [--seconds S]

Both loops run `tiny_kernel_stress` on the same streams (and replay the same graphs), in blocks
ordered A B B A, so that a drift of the machine falls on both sides alike. Quantiles are compared
within each round of a hundred samples a side, and the median over the rounds is printed with its
interval: pooled, a burst of noise on one side of one round would decide P99 by itself. Prints a
Markdown table; targets are P50 <= 1.01 and P99 <= 1.05.

A second table, on accelerators, compares the pass that keeps the queues full with replaying the
same graphs from a bare loop that waits once, at the end; its target is >= 0.90 of that throughput.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, cast

import numpy as np
import torch

from pytest_hwqueue.data.metrics.latency import (
    CONFIDENCE,
    LEAST_ITERATIONS,
    minimum_samples,
    quantile_interval,
)
from pytest_hwqueue.engine.cell.closed_loop import Plan, measure, warm_up
from pytest_hwqueue.engine.cell.measured_pass import back_to_back, block_iterations
from pytest_hwqueue.engine.cell.program import Program, eager, graph
from pytest_hwqueue.engine.cell.stop_rule import StopRule
from pytest_hwqueue.parts.devices.kinds import choose_devices, open_device
from pytest_hwqueue.parts.devices.lease import lease
from pytest_hwqueue.parts.devices.protocol import Device, Stream, StreamPool
from pytest_hwqueue.parts.workloads.latency_sensitive.tiny_kernel_stress import TinyKernelStress
from pytest_hwqueue.parts.workloads.workload import Setup, parameters_for

Enqueue = Callable[[Sequence[Stream]], None]
# Short blocks, because the speed of launching from Python wanders within a second.
_BLOCK, _CYCLES = 10, 5
_WARM_UP = Plan(StopRule(1, 4_000_000_000), warmup=20, sync_mode="per_iteration")
_PLAN = Plan(StopRule(_BLOCK, 10**15), 0, "per_iteration")


def by_hand(enqueue: Enqueue, pool: StreamPool) -> list[int]:
    """Time a block of iterations as a careful person would, without the harness; return ns."""
    samples = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(_BLOCK):
            started = time.perf_counter_ns()
            enqueue(pool.streams)
            pool.synchronize()
            samples.append(time.perf_counter_ns() - started)
    finally:
        gc.enable()
    return samples


class _KeepsGraphs:
    """A pool that keeps its captures, so that both loops replay the same graphs."""

    def __init__(self, pool: StreamPool) -> None:
        self._pool = pool
        self.graphs: list[tuple[int, Callable[[], None]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def capture(self, index: int, enqueue: Callable[[], None]) -> Callable[[], None]:
        replay = self._pool.capture(index, enqueue)
        self.graphs.append((self._pool.streams[index].handle, replay))
        return replay


def both(
    device: Device, pool: StreamPool, iterate: Enqueue, dispatch: str
) -> tuple[Program, Enqueue]:
    """Return what the harness enqueues, and what the loop by hand enqueues."""
    if dispatch == "eager":
        return eager(device, iterate, tagged=False), iterate
    # What a capture cannot do for the first time (load kernels) is done now.
    iterate(pool.streams)
    pool.synchronize()
    kept = _KeepsGraphs(pool)
    program = graph(device, cast(StreamPool, kept), iterate)
    graphs = [
        (torch.cuda.ExternalStream(handle, device=device.torch_device), replay)
        for handle, replay in kept.graphs
    ]

    def replay_by_hand(_: Sequence[Stream]) -> None:
        for stream, replay in graphs:
            torch.cuda.set_stream(stream)
            replay()

    return program, replay_by_hand


def rounds(
    device: Device, dispatch: str, streams: int, seconds: float
) -> list[tuple[list[int], list[int]]]:
    """Return the samples of each round in ns: the harness's, and the loop's by hand."""
    # Short iterations where launching is slow, so that every round has samples enough for P99.
    short = device.capabilities.host or (dispatch == "eager" and streams > 1)
    size = "tiny" if short else "full"
    workload = TinyKernelStress(cast(Any, parameters_for(TinyKernelStress, size, {})))
    found: list[tuple[list[int], list[int]]] = []
    with device.open_streams(streams) as pool:
        workload.setup(Setup(device, streams, 0))
        pool.synchronize()
        program, enqueue = both(device, pool, workload.iterate, dispatch)

        def harness() -> list[int]:
            return measure(device, pool, program, _PLAN, lambda done: None).host_ns

        warm_up(device, pool, program, _WARM_UP)
        by_hand(enqueue, pool)
        # Each block collects garbage first; what exists already need not be looked at every time.
        gc.collect()
        gc.freeze()
        until = time.perf_counter() + seconds
        while len(found) < minimum_samples(0.5) or time.perf_counter() < until:
            ours: list[int] = []
            bare: list[int] = []
            for _ in range(_CYCLES):
                ours += harness()
                bare += by_hand(enqueue, pool) + by_hand(enqueue, pool)
                ours += harness()
            found.append((ours, bare))
        gc.unfreeze()
    return found


def full_queues(device: Device, streams: int) -> tuple[float, list[float]]:
    """Return a bare loop's tiny kernels per µs, and rounds' ratios of our throughput to its."""
    workload = TinyKernelStress(cast(Any, parameters_for(TinyKernelStress, "full", {})))
    ratios, bare_ns = [], 0.0
    with device.open_streams(streams) as pool:
        workload.setup(Setup(device, streams, 0))
        pool.synchronize()
        program, replay = both(device, pool, workload.iterate, "graph")
        warm = warm_up(device, pool, program, _WARM_UP)
        each = block_iterations(warm.iteration_ns, _WARM_UP.stop.time_ns)

        def ours() -> float:
            return float(np.mean(back_to_back(device, pool, program, each).blocks_ns)) / each

        def bare() -> float:
            count = LEAST_ITERATIONS * each
            pool.synchronize()
            started = time.perf_counter_ns()
            for _ in range(count):
                replay(pool.streams)
            pool.synchronize()
            return (time.perf_counter_ns() - started) / count

        bare()
        for _ in range(minimum_samples(0.5)):
            first, between, last = bare(), ours() + ours(), bare()
            bare_ns = (first + last) / 2
            ratios.append(2 * bare_ns / between)
    return workload.work_per_iteration()["kernels"] * 1e3 / bare_ns, ratios


def ratio(found: Sequence[tuple[list[int], list[int]]], quantile: float) -> str:
    """Return the median ratio of a quantile over the rounds, and its interval."""
    each = np.sort([np.quantile(ours, quantile) / np.quantile(bare, quantile)
                    for ours, bare in found])  # fmt: skip
    low, high = quantile_interval(each, 0.5, CONFIDENCE)
    return f"{np.median(each):.4f} [{low:.4f}, {high:.4f}]"


def main() -> None:
    """Compare on 1 and 8 streams, by each dispatch mode that the device has."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each row")
    given = parser.parse_args()
    device = open_device(choose_devices(given.device)[0].label)
    with nullcontext() if device.lease_key is None else lease(device.lease_key, on_wait=print):
        print(f"{device.name}; intervals: {CONFIDENCE:.0%}\n")
        print("| dispatch | streams | n a side | by hand, P50 µs | P50 | P99 |")
        print("|---|---|---|---|---|---|")
        for dispatch in ("eager",) if device.capabilities.host else ("eager", "graph"):
            for streams in (1, 8):
                found = rounds(device, dispatch, streams, given.seconds)
                bare = np.concatenate([bare for _, bare in found])
                print(f"| {dispatch} | {streams} | {bare.size} | {np.median(bare) / 1e3:.1f} "
                      f"| {ratio(found, 0.5)} | {ratio(found, 0.99)} |", flush=True)  # fmt: skip
        if device.capabilities.host:
            return
        print("\n| streams | by hand, M kernels/s | throughput | least, most |\n|---|---|---|---|")
        for streams in (1, 8, 16, 32, 64):
            by_hand, ratios = full_queues(device, streams)
            print(f"| {streams} | {by_hand:.2f} | {np.median(ratios):.4f} "
                  f"| {min(ratios):.4f}, {max(ratios):.4f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
