"""Streams whose relative speed is perturbed by seeded delays, under a workload's own check."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

from pytest_hwqueue.engine.cell.ranks import group_of_one
from pytest_hwqueue.parts.devices.protocol import Device, Event, Stream
from pytest_hwqueue.parts.workloads.workload import Setup, Workload

# Iterations enqueued back to back, so that one may run into the next.
ITERATIONS = 3
Delay = Callable[[], object]


def group_for(
    workload: Workload | type[Workload], device: Device
) -> AbstractContextManager[object]:
    """The process group of one rank that a workload with collectives needs."""
    return group_of_one(device) if workload.collective else nullcontext()


class StreamBeside:
    """A stream that hands everything on to another; what it changes is up to its subclasses."""

    def __init__(self, stream: Stream) -> None:
        self.inner = stream
        self.index = stream.index
        self.priority = stream.priority
        self.handle = stream.handle

    def launch(
        self, function: Callable[..., object], *arguments: object, tag: str | None = None
    ) -> None:
        self.inner.launch(function, *arguments, tag=tag)

    def record(self, event: Event | None = None) -> Event:
        return self.inner.record(event)

    def wait(self, event: Event) -> None:
        self.inner.wait(event)

    def synchronize(self) -> None:
        raise AssertionError("an iteration only enqueues")


class PerturbedStream(StreamBeside):
    """Puts a delay before every other launch, on average."""

    def __init__(self, stream: Stream, draw: Callable[[], Delay | None]) -> None:
        super().__init__(stream)
        self._draw = draw

    def launch(
        self, function: Callable[..., object], *arguments: object, tag: str | None = None
    ) -> None:
        delay = self._draw()
        if delay is not None:
            self.inner.launch(delay)
        self.inner.launch(function, *arguments, tag=tag)


class HeedlessStream(StreamBeside):
    """Waits for no event: a planted race."""

    def wait(self, event: Event) -> None:
        pass


def delays(device: Device, seed: int, most_ms: float) -> Callable[[], Delay | None]:
    """Return what draws a delay before a launch, if any: sleeps of up to ``most_ms``, seeded."""
    drawn, steps_ns = random.Random(seed), [round(most_ms * 1e6 * step / 8) for step in range(1, 9)]
    # A few lengths made beforehand: making a kernel measures the device's clock.
    kernels: list[Delay] = (
        [partial(time.sleep, ns / 1e9) for ns in steps_ns]
        if device.capabilities.host
        else [device.kernel_of(ns) for ns in steps_ns]
    )
    return lambda: drawn.choice(kernels) if drawn.random() < 0.5 else None


def check_perturbed(
    device: Device,
    workload: Workload,
    streams: int,
    seed: int,
    *,
    most_ms: float = 3.0,
    around: Callable[[Stream], Stream] = lambda stream: stream,
) -> None:
    """Run the workload's own check on one perturbed iteration, then on several back to back.

    The first finds what reads before it was written, since the check spoils buffers before it; the
    others what an iteration spoils for the one before it. A stale value that equals the right one
    passes: `orders.unordered` finds that race too, on the host.

    Args:
        device: to run on.
        workload: not set up yet.
        streams: how many.
        seed: of the workload and of the delays.
        most_ms: longest delay.
        around: wrapped around each stream within the delays; a test plants its race there.

    Raises:
        CheckFailed: naming what came out wrong.

    """
    with (
        group_for(workload, device),
        device.open_streams(streams, gradients=workload.gradients) as pool,
    ):
        torch.manual_seed(seed)
        workload.setup(Setup(device, streams, seed))
        pool.synchronize()
        draw = delays(device, seed, most_ms)
        perturbed = [around(PerturbedStream(stream, draw)) for stream in pool.streams]

        def run(iterations: int) -> None:
            pool.synchronize()
            for _ in range(iterations):
                workload.iterate(perturbed)
            pool.synchronize()

        # Libraries are loaded and workspaces made once, before anything is compared.
        workload.iterate(pool.streams)
        pool.synchronize()
        if not device.capabilities.has_values:
            run(ITERATIONS)
            return
        workload.check(lambda: run(1))
        workload.check(lambda: run(ITERATIONS))
