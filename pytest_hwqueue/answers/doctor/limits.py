"""Measures a device's limits: its own rates, launching, concurrent queues, dispatch.

A number that could not be measured is refused, with the reason. There are no thresholds: these are
floors and ceilings for reading other results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.latency import median_estimate
from pytest_hwqueue.engine.cell.attempt import describe_failure
from pytest_hwqueue.engine.cell.timeline_pass import probe_queue_switch
from pytest_hwqueue.parts.devices.limits import LIMITS, measured_limit
from pytest_hwqueue.parts.devices.protocol import Device, StreamPool

_clock_ns = time.perf_counter_ns

_ELEMENTS = 1024
# Fewer launches than an accelerator's launch queue takes (about a thousand), so that none waits.
_LAUNCHES = 500
_REPLAYS = 20
_MOST_STREAMS = 128
_KERNEL_NS = 2_000_000
# Those above take two cores a second each round; whoever is in a hurry gets shorter ones there.
_QUICK_KERNEL_NS_OF_HOST = 100_000
_LEAST_HOLD_NS = 1_000_000
_MOST_HOLD_NS = 512_000_000
_PROBED_STREAMS = (2, 8, 32)

SayNext = Callable[[str], None]


@dataclass(frozen=True)
class Limit:
    """One measured number: the median of what was timed, or a count."""

    name: str
    figure: Estimate


@dataclass(frozen=True)
class QueuesAtOnce:
    """How many of ``streams`` equal kernels ran concurrently: streams × t(1) / t(streams).

    ``effective_with_events`` is the same with a timing event after each kernel.
    """

    streams: int
    time_ms: float
    effective: Estimate
    effective_with_events: float


@dataclass(frozen=True)
class DispatchDelay:
    """Median delay from ready to start on ``streams`` streams, and of the same kernels on one."""

    streams: int
    delay: Estimate
    on_one_stream: Estimate
    overhead: Estimate


@dataclass(frozen=True)
class DeviceLimits:
    """All limits of a device; ``refused`` names the tables that could not be measured, and why.

    Attributes:
        rates: what an accelerator does of one thing with nothing else to do; empty for the CPU.

    """

    rates: list[Limit]
    launching: list[Limit]
    streams: list[Limit]
    queues: list[QueuesAtOnce]
    dispatch: list[DispatchDelay]
    refused: dict[str, str]

    @property
    def most_at_once(self) -> QueuesAtOnce | None:
        """The row with the most concurrent kernels."""
        return max(self.queues, key=lambda row: row.effective, default=None)


def measure_limits(device: Device, *, quick: bool, progress: SayNext) -> DeviceLimits:
    """Measure all limits of a device; the caller holds its lease."""
    blocks, rounds = (8, 3) if quick else (30, 9)
    kernel_ns = _QUICK_KERNEL_NS_OF_HOST if quick and device.capabilities.host else _KERNEL_NS
    rates = []
    for name in () if device.capabilities.host else LIMITS:
        progress(f"timing: {name}")
        rates.append(Limit(name, _tried("", partial(measured_limit, device, name))))
    launching = []
    for name, (prepare, launches) in _FLOORS.items():
        progress(f"timing: {name}")
        measure = partial(_launch_floor, device, blocks, prepare, launches)
        launching.append(Limit(name, _tried("us", measure)))
    progress("counting distinct streams")
    streams = [
        Limit(f"{who}, {_MOST_STREAMS} requested", _tried("distinct", partial(count, device)))
        for who, count in (
            ("opened by pytest-hwqueue", distinct_streams),
            ("torch.cuda.Stream()", distinct_torch_streams),
        )
    ]
    queues: list[QueuesAtOnce] = []
    refused: dict[str, str] = {}
    progress("counting queues that run at once")
    try:
        queues = queues_at_once(device, rounds, kernel_ns)
    except Exception as error:  # whatever it is, the other tables stand
        refused["queues"] = failure_reason(error)
    dispatch = []
    for number in _PROBED_STREAMS:
        progress(f"timing dispatch on {number} streams")
        dispatch.append(dispatch_delay(device, number))
    return DeviceLimits(rates, launching, streams, queues, dispatch, refused)


Prepare = Callable[[StreamPool, Callable[[], object]], Callable[[], None]]


def _one_each(pool: StreamPool, kernel: Callable[[], object]) -> Callable[[], None]:
    """Launch each kernel separately, as workloads do."""
    stream = pool.streams[0]

    def block() -> None:
        for _ in range(_LAUNCHES):
            stream.launch(kernel)

    return block


def _many_in_one(pool: StreamPool, kernel: Callable[[], object]) -> Callable[[], None]:
    """Let one launch enqueue many kernels: torch's own floor."""
    stream, burst = pool.streams[0], _burst(kernel)
    return lambda: stream.launch(burst)


def _each_awaited(pool: StreamPool, kernel: Callable[[], object]) -> Callable[[], None]:
    """Launch a kernel and wait for its end."""
    stream = pool.streams[0]

    def block() -> None:
        for _ in range(_LAUNCHES):
            stream.launch(kernel)
            stream.synchronize()

    return block


def _replayed(pool: StreamPool, kernel: Callable[[], object]) -> Callable[[], None]:
    """Replay a graph of several hundred kernels; DeviceError if the device has no graphs."""
    stream, burst = pool.streams[0], _burst(kernel)
    # What a capture cannot do for the first time (load the kernel) is done now.
    stream.launch(burst)
    stream.synchronize()
    replay = pool.capture(stream.index, burst)

    def block() -> None:
        for _ in range(_REPLAYS):
            stream.launch(replay)

    return block


# By name: what is repeated, and how many small kernels that is.
_FLOORS: dict[str, tuple[Prepare, int]] = {
    "launch, one kernel each": (_one_each, _LAUNCHES),
    "launch, many kernels in one": (_many_in_one, _LAUNCHES),
    "launch and synchronise": (_each_awaited, _LAUNCHES),
    "kernel in a replayed graph": (_replayed, _REPLAYS * _LAUNCHES),
}


def _launch_floor(device: Device, blocks: int, prepare: Prepare, launches: int) -> Estimate:
    """Return µs per small kernel, of blocks with one wait at their ends."""
    data = torch.zeros(_ELEMENTS, device=device.torch_device)
    with device.open_streams(1) as pool:
        block = prepare(pool, lambda: data.add_(1.0))
        times = []
        for index in range(blocks + 1):
            started = _clock_ns()
            block()
            pool.streams[0].synchronize()
            if index:  # the first one warms up
                times.append((_clock_ns() - started) / launches / 1000)
    return median_estimate(times, "us")


def _burst(kernel: Callable[[], object]) -> Callable[[], None]:
    def burst() -> None:
        for _ in range(_LAUNCHES):
            kernel()

    return burst


def _tried(unit: str, measure: Callable[[], Estimate]) -> Estimate:
    """Return a figure, or why it is missing, as of a device without graphs: the others stand."""
    try:
        return measure()
    except Exception as error:
        return Estimate(unit=unit, refused=failure_reason(error))


def distinct_streams(device: Device) -> Estimate:
    """Count the distinct handles of the streams that this package opens."""
    with device.open_streams(_MOST_STREAMS) as pool:
        return _counted({stream.handle for stream in pool.streams})


def distinct_torch_streams(device: Device) -> Estimate:
    """Count the distinct handles that torch returns for as many streams.

    Raises:
        DeviceError: on the CPU, which has none.

    """
    if device.capabilities.host:
        raise DeviceError("torch has no streams on the CPU")
    made = [torch.cuda.Stream(device.torch_device) for _ in range(_MOST_STREAMS)]
    return _counted({stream.cuda_stream for stream in made})


def _counted(handles: Set[int]) -> Estimate:
    return Estimate(value=float(len(handles)), n=1, unit="distinct", refused="counted, not sampled")


def queues_at_once(device: Device, rounds: int, kernel_ns: int = _KERNEL_NS) -> list[QueuesAtOnce]:
    """Time one kernel of this length and one block on each of 1, 2, 4 … 128 streams.

    Once with nothing else in the streams, and once with a timing event after each kernel: streams
    that share a hardware connection then wait for each other's events. Every round times all
    counts, so that drift falls on all of them alike.

    Raises:
        DeviceError: if the kernel is so short that its launch would be measured.

    """
    counts = [2**power for power in range(_MOST_STREAMS.bit_length())]
    times: dict[tuple[int, bool], list[int]] = {
        (count, events): [] for count in counts for events in (False, True)
    }
    with device.open_streams(_MOST_STREAMS + 1) as pool:
        # With the streams open: the host then computes on one core a thread, as it will later.
        kernel = device.kernel_of(kernel_ns)
        for count, events in times:
            _held_together(device, pool, count, kernel, events)
        for _ in range(rounds):
            for (count, events), taken in times.items():
                taken.append(_held_together(device, pool, count, kernel, events))
    alone = times[1, False]
    if median(alone) < kernel_ns / 2:
        raise DeviceError(
            f"a kernel meant to last {kernel_ns / 1e6:g} ms lasted {median(alone) / 1e6:.3g} "
            "ms: something disturbed its calibration; run again when the machine is quiet"
        )
    return [
        counted_at_once(count, times[count, False], times[count, True], alone) for count in counts
    ]


def dispatch_delay(device: Device, streams: int) -> DispatchDelay:
    """Measure the hardware's delay from ready to start, with 50 µs kernels of one block."""
    try:
        with device.open_streams(streams) as pool:
            found = probe_queue_switch(device, pool).queue_switch.overhead
    except Exception as error:  # no right to trace, for one; the other counts stand
        refused = Estimate(unit="us", refused=failure_reason(error))
        return DispatchDelay(streams, refused, refused, refused)
    return DispatchDelay(streams, found.first.median, found.second.median, found.difference)


def failure_reason(error: Exception) -> str:
    """Return why a number is missing; our own refusals need no exception name."""
    return describe_failure(error, DeviceError).reason


def _held_together(
    device: Device, pool: StreamPool, count: int, kernel: Callable[[], None], events: bool
) -> int:
    """Return the ns from the opening of a gate to the end of the last of one kernel per stream.

    The gate is a kernel on a separate stream that outlasts the enqueueing, so that Python's
    launch rate, slower than these kernels on many streams, does not count.
    """
    *streams, gate = pool.streams
    opened, ended = device.new_event(), device.new_event()
    between = [device.new_event() for _ in range(count)]
    hold_ns = _LEAST_HOLD_NS
    while hold_ns <= _MOST_HOLD_NS:
        hold = device.kernel_of(hold_ns)
        started = _clock_ns()
        gate.launch(hold)
        gate.record(opened)
        for stream, event in zip(streams, between, strict=False):
            stream.wait(opened)
            stream.launch(kernel)
            if events:
                stream.record(event)
        held = not opened.query()
        enqueueing_ns = _clock_ns() - started
        pool.record_all(ended)
        pool.synchronize()
        if held:
            return device.elapsed_ns(opened, ended)
        while hold_ns <= _MOST_HOLD_NS and hold_ns < 2 * enqueueing_ns:
            hold_ns *= 2
        hold_ns *= 2
    raise DeviceError(
        f"{count} kernels could not be enqueued within {_MOST_HOLD_NS / 1e6:g} ms behind a "
        "gate: launches wait for their kernels (see the check of queue settings), or the host is "
        "too busy"
    )


def counted_at_once(
    count: int, times: Sequence[int], with_events: Sequence[int], alone: Sequence[int]
) -> QueuesAtOnce:
    """Return how many of ``count`` kernels ran at once, by the ns that rounds of them took.

    Args:
        count: of kernels.
        times: of each round.
        with_events: the same with a timing event after each kernel.
        alone: of one kernel.

    """
    each = [count * one / many for one, many in zip(alone, times, strict=True)]
    return QueuesAtOnce(
        streams=count,
        time_ms=median(times) / 1e6,
        effective=median_estimate(each, ""),
        effective_with_events=count * median(alone) / median(with_events),
    )
