"""What ``--hwq-fault=slower:PERCENT`` plants, to check that the gate sees it.

A simulated device makes its kernels longer; on a real one each launch is followed by a spin for a
share of its time, and a tenant's request, which is judged as a whole, is as a whole.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_hwqueue.devices.protocol import Device, Event, Stream
    from pytest_hwqueue.harness.program import Enqueue

# Spins are rounded to steps of 5 %, so that launches of about one length share one kernel.
_STEP = math.log(1.05)


def percent(faults: Sequence[str]) -> float:
    """Return by how many percent faults such as ``slower:10`` slow down."""
    return sum(float(fault.removeprefix("slower:")) for fault in faults)


def slowed_model(device: Device, faults: Sequence[str]) -> AbstractContextManager[None]:
    """Slow down a simulated device's kernels in a block."""
    if device.model is None:
        return nullcontext()
    return device.model.slowed(1 + percent(faults) / 100)


def slowed_launches(device: Device, enqueue: Enqueue, faults: Sequence[str]) -> Enqueue:
    """Return an iteration whose launches on a real device are slower."""
    if not faults or device.model is not None:
        return enqueue
    return SlowedLaunches(device, enqueue, percent(faults))


def slowed_request(
    device: Device, enqueue: Enqueue, faults: Sequence[str], request_ns: int
) -> Enqueue:
    """Return a tenant's request with a kernel that starts once all its work has ended."""
    if not faults:
        return enqueue
    kernel = device.kernel_of(max(1, round(request_ns * percent(faults) / 100)))

    def slower(streams: Sequence[Stream]) -> None:
        enqueue(streams)
        for stream in streams[1:]:
            streams[0].wait(stream.record())
        streams[0].launch(kernel)

    return slower


class SlowedLaunches:
    """An iteration whose launches take ``percent`` longer, within the launch and its events.

    The first iteration loads libraries. The second measures how long each launch takes on its
    stream among the others. From the third on, which may be captured in a graph, each launch spins
    that much longer. If iterations launch different numbers of functions, those missing in the
    second spin like the mean of those it had.
    """

    def __init__(self, device: Device, enqueue: Enqueue, percent: float) -> None:
        self._device = device
        self._enqueue = enqueue
        self._share = percent / 100
        self._iteration = 0
        self._timed: dict[tuple[int, int], tuple[Event, Event]] = {}
        self._spins: dict[tuple[int, int], Callable[[], None]] = {}
        self._usual: Callable[[], None] | None = None

    def __call__(self, streams: Sequence[Stream]) -> None:
        """Enqueue one iteration."""
        self._iteration += 1
        if self._iteration == 1:
            self._enqueue(streams)
            return
        if self._iteration == 3:
            self._choose_spins()
        launches: Counter[int] = Counter()
        self._enqueue([_SlowedStream(stream, self, launches) for stream in streams])

    def launch(
        self,
        stream: Stream,
        number: int,
        function: Callable[..., object],
        arguments: tuple[object, ...],
        tag: str | None,
    ) -> None:
        """Launch the ``number``-th function of an iteration on a stream: timed, or slowed."""
        place = (stream.index, number)
        if self._iteration == 2:
            began, ended = self._device.new_event(), self._device.new_event()
            stream.record(began)
            stream.launch(function, *arguments, tag=tag)
            stream.record(ended)
            self._timed[place] = (began, ended)
            return
        spin = self._spins.get(place, self._usual)

        def slowed() -> None:
            function(*arguments)
            if spin is not None:
                spin()

        stream.launch(slowed, tag=tag)

    def _choose_spins(self) -> None:
        took_ns = {}
        for place, (began, ended) in self._timed.items():
            ended.synchronize()
            took_ns[place] = self._device.elapsed_ns(began, ended)
        self._timed.clear()
        self._spins = {place: self._spin(ns) for place, ns in took_ns.items()}
        if took_ns:
            self._usual = self._spin(sum(took_ns.values()) / len(took_ns))

    def _spin(self, took_ns: float) -> Callable[[], None]:
        steps = round(math.log(max(1.0, took_ns * self._share)) / _STEP)
        return self._device.kernel_of(max(1, round(math.exp(steps * _STEP))))


class _SlowedStream:
    """A stream whose launches go through `SlowedLaunches`."""

    def __init__(self, stream: Stream, slowed: SlowedLaunches, launches: Counter[int]) -> None:
        self._stream = stream
        self._slowed = slowed
        self._launches = launches
        self.index = stream.index
        self.priority = stream.priority
        self.handle = stream.handle

    def launch(
        self, function: Callable[..., object], *arguments: object, tag: str | None = None
    ) -> None:
        """Launch the function and its spin."""
        number = self._launches[self.index]
        self._launches[self.index] += 1
        self._slowed.launch(self._stream, number, function, arguments, tag)

    def record(self, event: Event | None = None) -> Event:
        """Record an event on the stream."""
        return self._stream.record(event)

    def wait(self, event: Event) -> None:
        """Make the stream wait for an event."""
        self._stream.wait(event)

    def synchronize(self) -> None:
        """Wait for the stream."""
        self._stream.synchronize()
