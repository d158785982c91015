"""Probes whether a mode serves urgent work first: two clients take turns in keeping it busy.

One client fills the device with long kernels of many blocks, the other launches small kernels one
after the other. A device that honours priorities starts the small kernels of an urgent client as
soon as any block ends; those of another client wait for the long kernel. Each round is measured
both ways round, in an order that alternates, so that a drift falls on both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_hwqueue.data.errors import NotProven
from pytest_hwqueue.data.metrics.interference import PriorityEffect, priority_effect

if TYPE_CHECKING:
    import torch

    from pytest_hwqueue.parts.devices.protocol import Device, StreamPool

_ROUNDS = 12
_REQUESTS = 10
_LONGEST_S = 5.0
# Long against a launch and against one of its blocks.
_LOAD_NS = 400_000
_FEWEST_ELEMENTS, _MOST_ELEMENTS = 1 << 11, 1 << 27
_SMALL_ELEMENTS = 256
# The load outlasts small kernels that wait for a long one each, and what starting them takes.
_LOADS_PER_REQUEST, _STARTING_NS = 3, 15_000_000
_MOST_LOADS = 500


class ProbeClient:
    """A tenant in the probe, on a stream of its process; any device. Its answers are plain data."""

    def __init__(self, device: Device, pool: StreamPool, stream: int = 0) -> None:
        """Take the stream by its index in an open pool."""
        self._device = device
        self._pool = pool
        self._stream = pool.streams[stream]
        self._tensors: tuple[torch.Tensor, ...] = ()

    def prepare(self, elements: int) -> list[int]:
        """Allocate a load of so many elements, or find how many last long enough if 0.

        Returns:
            the elements, and how long a load lasts in ns: the shortest of three.

        """
        if elements:
            return [elements, self._allocate(elements)]
        elements = _FEWEST_ELEMENTS
        while (length_ns := self._allocate(elements)) < _LOAD_NS and elements < _MOST_ELEMENTS:
            elements *= 2
        return [elements, length_ns]

    def small(self, requests: int) -> int:
        """Run so many small kernels, one after the other; return their mean latency in ns."""
        began_ns = self._device.clock_ns()
        for _ in range(requests):
            self._stream.launch(_small, self._tensors[-1])
            self._stream.synchronize()
        return round((self._device.clock_ns() - began_ns) / requests)

    def fill(self, loads: int) -> None:
        """Enqueue so many loads; the host does not wait."""
        for _ in range(loads):
            self._stream.launch(_load, *self._tensors[:3])
        self._end = self._stream.record()

    def drain(self) -> bool:
        """Wait for the loads; return whether any was still running."""
        running = not self._end.query()
        self._stream.synchronize()
        return running

    def close(self) -> None:
        """Give the memory back; nothing runs on it."""
        self._tensors = ()

    def _allocate(self, elements: int) -> int:
        import torch

        where = self._device.torch_device
        self._tensors = ()
        # One number each, read by all: only the result takes memory.
        self._tensors = (
            torch.full((1,), 5.0, device=where).expand(elements),
            torch.full((1,), 4.0, device=where).expand(elements),
            torch.empty(elements, device=where),
            torch.zeros(_SMALL_ELEMENTS, device=where),
        )
        # What fills them runs on the stream that is current, not on this one.
        self._pool.synchronize()
        self.small(1)
        times_ns = []
        for _ in range(3):
            began_ns = self._device.clock_ns()
            self._stream.launch(_load, *self._tensors[:3])
            self._stream.synchronize()
            times_ns.append(self._device.clock_ns() - began_ns)
        return min(times_ns)


def _load(order: torch.Tensor, argument: torch.Tensor, result: torch.Tensor) -> None:
    """Compute for some hundred instructions an element: many blocks, little memory."""
    import torch

    torch.igamma(order, argument, out=result)


def _small(few: torch.Tensor) -> None:
    few.add_(1)


def probe_priority(
    urgent: tuple[str, ProbeClient],
    other: tuple[str, ProbeClient],
    clock_s: Callable[[], float] = time.monotonic,
) -> PriorityEffect:
    """Probe whether the first client's work is served before the second's; takes some seconds.

    Args:
        urgent: name and client of the most urgent tenant.
        other: likewise the least urgent one.
        clock_s: of the time after which no further round begins.

    """
    names = urgent[0], other[0]
    try:
        return _probe(names, urgent[1], other[1], clock_s)
    except NotProven as failed:
        urgent[1].close()
        other[1].close()
        return PriorityEffect(
            verdict="undecided", reason=f"the probe failed: {failed}",
            urgent=names[0], other=names[1],
        )  # fmt: skip


def _probe(
    names: tuple[str, str], urgent: ProbeClient, other: ProbeClient, clock_s: Callable[[], float]
) -> PriorityEffect:
    until_s = clock_s() + _LONGEST_S
    elements, load_ns = other.prepare(0)
    urgent.prepare(elements)
    loads = min(_MOST_LOADS, _LOADS_PER_REQUEST * _REQUESTS + -(-_STARTING_NS // load_ns))
    alone_ns = min(client.small(_REQUESTS) for client in (urgent, other))

    def beside(small: ProbeClient, busy: ProbeClient) -> tuple[int, bool]:
        busy.fill(loads)
        mean_ns = small.small(_REQUESTS)
        return mean_ns, busy.drain()

    urgent_ns, other_ns = [], []
    for number in range(_ROUNDS):
        if clock_s() > until_s:
            break
        if number % 2:
            swapped, (served, loaded) = beside(other, urgent), beside(urgent, other)
        else:
            (served, loaded), swapped = beside(urgent, other), beside(other, urgent)
        # Without load anything is fast. The other side may take until the load has ended.
        if loaded:
            urgent_ns.append(served)
            other_ns.append(swapped[0])
    urgent.close()
    other.close()
    return priority_effect(
        names, urgent_ns, other_ns, alone_ns=alone_ns, load_ns=load_ns, requests=_REQUESTS
    )
