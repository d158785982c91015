"""Measures the harness's own cost against a hand-written loop, in one run.

Both loops run the same workload on the same streams, in blocks ordered A B B A, so that a drift
of the machine falls on both sides alike. Latency is compared as the ratio of quantiles,
throughput as the ratio of rates.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
import torch

from pytest_hwqueue.devices.protocol import Device, Stream, StreamPool
from pytest_hwqueue.doctor.limits import SayNext, failure_reason
from pytest_hwqueue.harness.closed_loop import LoopPlan, measure, warm_up
from pytest_hwqueue.harness.program import Program, eager, graph
from pytest_hwqueue.metrics.latency import CONFIDENCE, minimum_samples, quantile_interval
from pytest_hwqueue.metrics.throughput import throughput
from pytest_hwqueue.workloads.latency_sensitive.tiny_kernel_stress import TinyKernelStress
from pytest_hwqueue.workloads.workload import Setup, parameters_for

OverheadVerdict = Literal["within", "not within", "undecided"]

# Samples of one round in ns: the harness's, and those of the loop by hand.
LoopRound = tuple[list[int], list[int]]

TARGETS = {"p50": 1.01, "p99": 1.05}
"""The most that the harness's latency should be, as a multiple of the loop's by hand."""

STREAMS = (1, 8)
_QUANTILES = {"p50": 0.5, "p99": 0.99}
# Short blocks, because the speed of launching from Python wanders within a second; five cycles of
# A B B A make a round of a hundred samples a side, which its P99 needs.
_BLOCK = 10
_CYCLES = 5
_PIPELINED_BLOCK = 25
_LEAST_PIPELINED = 10
_BUDGET_S = 20.0
_QUICK_BUDGET_S = 3.0
_WARM_UP = LoopPlan(iterations=1, warmup=20, max_time_ns=4_000_000_000, sync_mode="per_iteration")


@dataclass(frozen=True)
class Ratio:
    """The harness over the hand-written loop at one quantile, and the difference in µs."""

    quantile: str
    target: float
    verdict: OverheadVerdict
    value: float | None = None
    interval: tuple[float, float] | None = None
    difference_us: float | None = None
    difference_interval_us: tuple[float, float] | None = None
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Rate:
    """Kernels per second of the harness over those of the hand-written loop.

    The interval divides both rates' own intervals crosswise, so it holds with at least
    ``1 - 2 * (1 - confidence of one)``.
    """

    confidence: float
    harness_per_s: float | None = None
    bare_per_s: float | None = None
    value: float | None = None
    interval: tuple[float, float] | None = None
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Overhead:
    """One comparison, or in ``refused`` why there is none.

    ``rate`` is of synchronised iterations, ``pipelined_rate`` of iterations with one wait at the
    end of each block of them.
    """

    dispatch: str
    streams: int
    size: str
    n: int = 0
    bare_n: int = 0
    bare_p50_us: float | None = None
    confidence: float = CONFIDENCE
    ratios: list[Ratio] = field(default_factory=list)
    rate: Rate | None = None
    pipelined_rate: Rate | None = None
    refused: str = ""


def measure_overhead(device: Device, *, quick: bool, progress: SayNext) -> list[Overhead]:
    """Compare the harness with a hand-written loop, per dispatch and number of streams.

    The caller holds the device's lease.
    """
    budget_s = _QUICK_BUDGET_S if quick else _BUDGET_S
    found = []
    for dispatch in ("eager", "graph"):
        for streams in STREAMS:
            progress(f"comparing with a loop by hand: {dispatch} dispatch, streams: {streams}")
            found.append(compare(device, dispatch, streams, budget_s))
    return found


def compare(device: Device, dispatch: str, streams: int, budget_s: float) -> Overhead:
    """Compare on ``streams`` streams of ``tiny_kernel_stress`` for about ``budget_s`` seconds."""
    # Short iterations where launching is slow, so that every round has samples enough for P99.
    short = device.capabilities.host or (dispatch == "eager" and streams > 1)
    size = "tiny" if short else "full"
    workload = TinyKernelStress(cast(Any, parameters_for(TinyKernelStress, size, {})))
    try:
        with device.open_streams(streams) as pool:
            workload.setup(Setup(device, streams, 0))
            pool.synchronize()
            program, bare_enqueue = _both_programs(device, pool, workload, dispatch)
            warm_up(device, pool, program, _WARM_UP)
            rounds = _interleaved(device, pool, program, bare_enqueue, budget_s)
            pipelined = _pipelined(device, pool, program, bare_enqueue, budget_s / 4)
    except Exception as error:  # no graphs on this device, for one; the other comparisons stand
        return Overhead(dispatch, streams, size, refused=failure_reason(error))
    kernels = workload.work_per_iteration()["kernels"]
    harness = [ns for ours, _ in rounds for ns in ours]
    bare = [ns for _, by_hand in rounds for ns in by_hand]
    return Overhead(
        dispatch=dispatch,
        streams=streams,
        size=size,
        n=len(harness),
        bare_n=len(bare),
        bare_p50_us=float(np.median(bare)) / 1000,
        ratios=_ratios(rounds),
        rate=_rate(harness, bare, kernels),
        pipelined_rate=_rate(*pipelined, kernels),
    )


def bare_loop(
    enqueue: Callable[[Sequence[Stream]], None],
    streams: Sequence[Stream],
    synchronize: Callable[[], None],
    iterations: int,
) -> list[int]:
    """Time iterations as a careful person would, without the harness; return ns."""
    samples = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(iterations):
            started = time.perf_counter_ns()
            enqueue(streams)
            synchronize()
            samples.append(time.perf_counter_ns() - started)
    finally:
        gc.enable()
    return samples


def _interleaved(
    device: Device,
    pool: StreamPool,
    program: Program,
    bare_enqueue: Callable[[Sequence[Stream]], None],
    budget_s: float,
) -> list[LoopRound]:
    """Take rounds of blocks in the order A B B A until the time is up."""
    rounds: list[LoopRound] = []
    plan = LoopPlan(_BLOCK, 0, 10**15, "per_iteration")

    def take_harness() -> list[int]:
        return measure(device, pool, program, plan, _no_pause).host_ns

    def take_bare() -> list[int]:
        return bare_loop(bare_enqueue, pool.streams, pool.synchronize, _BLOCK)

    # Each block collects garbage first; what exists already need not be looked at every time.
    gc.collect()
    gc.freeze()
    try:
        take_bare()  # warms up the loop by hand too
        deadline = time.perf_counter() + budget_s
        while True:
            harness: list[int] = []
            bare: list[int] = []
            for _ in range(_CYCLES):
                harness += take_harness()
                bare += take_bare()
                bare += take_bare()
                harness += take_harness()
            rounds.append((harness, bare))
            if time.perf_counter() >= deadline:
                return rounds
    finally:
        gc.unfreeze()


def _pipelined(
    device: Device,
    pool: StreamPool,
    program: Program,
    bare_enqueue: Callable[[Sequence[Stream]], None],
    budget_s: float,
) -> tuple[list[float], list[float]]:
    """Return ns per iteration of blocks with one final wait: the harness's and the bare loop's."""
    harness: list[float] = []
    bare: list[float] = []
    plan = LoopPlan(_PIPELINED_BLOCK, 0, 10**15, "end_only")

    def take_harness() -> None:
        pace_ns = measure(device, pool, program, plan, _no_pause).pace_ns
        harness.append(sum(pace_ns) / len(pace_ns))

    def take_bare() -> None:
        started = time.perf_counter_ns()
        for _ in range(_PIPELINED_BLOCK):
            bare_enqueue(pool.streams)
        pool.synchronize()
        bare.append((time.perf_counter_ns() - started) / _PIPELINED_BLOCK)

    deadline = time.perf_counter() + budget_s
    while time.perf_counter() < deadline or len(bare) < _LEAST_PIPELINED:
        for take in (take_harness, take_bare, take_bare, take_harness):
            take()
    return harness, bare


def _no_pause(done: int) -> None:
    """Do nothing between iterations, like the hand-written loop."""


def _both_programs(
    device: Device, pool: StreamPool, workload: TinyKernelStress, dispatch: str
) -> tuple[Program, Callable[[Sequence[Stream]], None]]:
    """Return what the harness enqueues, and what the hand-written loop enqueues."""
    if dispatch == "eager":
        return eager(device, workload.iterate, tagged=False), workload.iterate
    # What a capture cannot do for the first time (load kernels) is done now.
    workload.iterate(pool.streams)
    pool.synchronize()
    kept = _KeepsGraphs(pool)
    program = graph(device, cast(StreamPool, kept), workload.iterate, tagged=False)
    graphs = [
        (torch.cuda.ExternalStream(handle, device=device.torch_device), replay)
        for handle, replay in kept.graphs
    ]

    def replay_by_hand(_: Sequence[Stream]) -> None:
        for stream, replay in graphs:
            torch.cuda.set_stream(stream)
            replay()

    return program, replay_by_hand


class _KeepsGraphs:
    """A pool that keeps its captures, so both loops replay the same graphs."""

    def __init__(self, pool: StreamPool) -> None:
        self._pool = pool
        self.graphs: list[tuple[int, Callable[[], None]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def capture(self, index: int, enqueue: Callable[[], None]) -> Callable[[], None]:
        replay = self._pool.capture(index, enqueue)
        self.graphs.append((self._pool.streams[index].handle, replay))
        return replay


def _ratios(rounds: Sequence[LoopRound]) -> list[Ratio]:
    """Compare quantiles within each round, and take the median over the rounds.

    A burst of noise falls on one side of one round; pooled, it would decide P99 by itself.
    """
    smallest = min(min(len(harness), len(bare)) for harness, bare in rounds)
    ratios = []
    for name, quantile in _QUANTILES.items():
        target = TARGETS[name]
        needed = round(1 / (1 - quantile))
        rows = minimum_samples(0.5)
        if smallest < needed or len(rounds) < rows:
            refused = (
                f"needs at least {rows} rounds of {needed} samples a side, has {len(rounds)} of "
                f"{smallest}"
            )
            ratios.append(Ratio(name, target, "undecided", refused={"value": refused}))
            continue
        ours = np.array([np.quantile(harness, quantile) for harness, _ in rounds])
        by_hand = np.array([np.quantile(bare, quantile) for _, bare in rounds])
        each = np.sort(ours / by_hand)
        interval = quantile_interval(each, 0.5, CONFIDENCE)
        differences = np.sort(ours - by_hand) / 1000
        ratios.append(
            Ratio(
                quantile=name,
                target=target,
                verdict=verdict(interval, target),
                value=float(np.median(each)),
                interval=interval,
                difference_us=float(np.median(differences)),
                difference_interval_us=quantile_interval(differences, 0.5, CONFIDENCE),
            )
        )
    return ratios


def verdict(interval: tuple[float, float], target: float) -> OverheadVerdict:
    """Return whether a ratio is at most ``target``, as far as its interval shows."""
    low, high = interval
    if high <= target:
        return "within"
    return "not within" if low > target else "undecided"


def _rate(harness: Sequence[float], bare: Sequence[float], kernels: float) -> Rate:
    ours, by_hand = (throughput(kernels, side, "kernels/s") for side in (harness, bare))
    confidence = 1 - 2 * (1 - CONFIDENCE)
    interval, refused = None, {**by_hand.refused, **ours.refused}
    if ours.interval is not None and by_hand.interval is not None:
        interval = (ours.interval[0] / by_hand.interval[1], ours.interval[1] / by_hand.interval[0])
    return Rate(
        confidence=confidence,
        harness_per_s=ours.value,
        bare_per_s=by_hand.value,
        value=ours.value / by_hand.value,
        interval=interval,
        refused=refused,
    )
