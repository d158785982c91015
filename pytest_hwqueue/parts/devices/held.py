"""Work of all streams held behind a gate on an accelerator, and when the device did each launch.

Two kernels of one thread, compiled by torch's jiterator (NVRTC, hipRTC), read the device's clock:
the gate, which spins until the host opens it, and a stamp, which stores the time behind a launch.
Neither needs a profiler, under which replaying a graph takes 30 µs of host time in place of 4, so
that tiny work never overlaps, nor an event. An event behind a launch holds up every stream that
shares its hardware connection: on an H200, a burst of 48 tiny kernels on each of 32 streams takes
307 µs with one, 269 with a stamp in its graph, and 263 without either. A stamp needs a free
multiprocessor, though: behind a product that fills the device it waits for other streams' blocks,
and the streams no longer take turns as they do without it. There an event is right, and costs
nothing that can be measured.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.data.metrics.contention import HeldLaunch, HeldWindow
from pytest_hwqueue.parts.devices.kinds import Runtime
from pytest_hwqueue.parts.devices.protocol import Marks

if TYPE_CHECKING:
    from pytest_hwqueue.parts.devices.accelerator import AcceleratorPool, AcceleratorStream

# PTX ISA, "%globaltimer": ns, in steps of 32 on an H200.
_CUDA_NOW = 'asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));'
# HIP C++ language extensions, "wall_clock64": ticks of hipDeviceAttributeWallClockRate. Written
# after AMD's documentation, not run on AMD hardware.
_HIP_NOW = "now = wall_clock64();"
# hipDeviceAttributeWallClockRate of hip_runtime_api.h.
_WALL_CLOCK_KHZ = 10017
# The value of the only element is the address of a log, whose first number counts its others.
_STAMP = """template <typename T> T hwq_stamp(T where) {
  unsigned long long* log = (unsigned long long*)where;
  unsigned long long now, count = log[0];
  NOW
  log[1 + count] = now;
  log[0] = count + 1;
  return where;
}"""
# Whether it is open, when it opened, and whether the host had opened it by then.
_GATE = """template <typename T> T hwq_gate(T where) {
  volatile unsigned long long* log = (volatile unsigned long long*)where;
  unsigned long long now, begin;
  NOW
  begin = now;
  do { NOW } while (!log[0] && now - begin < MOSTull);
  log[2] = log[0];
  log[1] = now;
  return where;
}"""

# Longer than enqueueing takes; a queue that is full before would otherwise block the host for ever.
_LONGEST_HOLD_NS = 2_000_000_000
MOST_MARKS = 4096
"""Of one stream in a window."""


class NotHeld(DeviceError):
    """The gate opened by itself: the launch queue was full before all work was enqueued."""


class Gate:
    """The two kernels, and the flags that the gate reads and sets; one per device."""

    def __init__(self, device: torch.device) -> None:
        """Compile the kernels, and load them.

        Raises:
            DeviceError: if torch cannot compile for this device.

        """
        self.device = device
        self.ns_per_tick = ns_per_tick(device)
        most = str(round(_LONGEST_HOLD_NS / self.ns_per_tick))
        try:
            self.stamp = compiled(_STAMP, device)
            self._gate = compiled(_GATE.replace("MOST", most), device)
            # A stream of its own, since the default one may hold others back.
            self.stream = torch.cuda.Stream(device)
            self.flags = torch.zeros(3, dtype=torch.int64, pin_memory=True)
            self._flags_there = address_of(self.flags, device)
            self.opened = torch.cuda.Event(enable_timing=True)
            # The first launch of a kernel loads it, which would wait for all that runs.
            self.close(open_already=True)
            log = torch.zeros(2, dtype=torch.int64, device=device)
            self.stamp(address_of(log, device))
            torch.cuda.synchronize(device)
        except RuntimeError as error:
            raise no_kernel(device, error) from error

    def close(self, *, open_already: bool) -> None:
        """Launch the gate; streams that wait for `opened` are held until `open`."""
        self.flags.zero_()
        self.flags[0] = int(open_already)
        with torch.cuda.stream(self.stream):
            self._gate(self._flags_there)
            self.opened.record(self.stream)

    def open(self) -> None:
        """Open the gate."""
        self.flags[0] = 1

    @property
    def was_opened(self) -> bool:
        """Whether the host has opened it, and not time."""
        return bool(self.flags[2])


@cache
def gate_of(index: int) -> Gate:
    """Return the gate of a device, by its index; DeviceError if it cannot have one."""
    with torch.cuda.device(index), torch.inference_mode(False):
        return Gate(torch.device("cuda", index))


@dataclass(frozen=True)
class StampedReplay:
    """A graph whose launches are stamped inside; ``tags`` are theirs, in order."""

    replay: Callable[[], None]
    tags: tuple[str | None, ...]

    def __call__(self) -> None:
        """Launch the graph."""
        self.replay()


class Stamps:
    """The stamps of a pool's streams: a log for each, at an address that graphs may keep."""

    def __init__(self, gate: Gate, streams: int) -> None:
        shape = (streams, 1 + MOST_MARKS)
        self.logs = torch.zeros(shape, dtype=torch.int64, device=gate.device)
        self._places = [address_of(row, gate.device) for row in self.logs]
        self._stamp = gate.stamp

    def enqueue(self, stream: AcceleratorStream) -> None:
        """Enqueue a stamp, or capture it."""
        torch.cuda.set_stream(stream.stream)
        self._stamp(self._places[stream.index])


class StampingCapture:
    """Stamps launches while they are captured."""

    def __init__(self, stamps: Stamps, marks: Marks) -> None:
        self._stamps, self._marks = stamps, marks
        self.tags: list[str | None] = []

    def launch(
        self,
        stream: AcceleratorStream,
        function: Callable[..., object],
        arguments: tuple[object, ...],
        tag: str | None,
    ) -> None:
        """Capture a launch with its stamps."""
        function(*arguments)
        self.tags.append(tag)
        if stream.index in self._marks.streams:
            for _ in range(self._marks.each):
                self._stamps.enqueue(stream)


@dataclass(frozen=True)
class _Launched:
    stream: int
    tag: str | None
    began_ns: int
    # Which of its stream's marks stands behind it; None if none does.
    mark: int | None


@dataclass
class MarkedWindow:
    """Marks the launches of one window, unless their graphs hold stamps already."""

    pool: AcceleratorPool
    stamps: Stamps
    marks: Marks
    launches: list[_Launched] = field(default_factory=list)
    events: dict[int, list[torch.cuda.Event]] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)

    def launch(
        self,
        stream: AcceleratorStream,
        function: Callable[..., object],
        arguments: tuple[object, ...],
        tag: str | None,
    ) -> None:
        """Launch, mark the end, and note both."""
        index, each = stream.index, self.marks.each
        marked = bool(each) and index in self.marks.streams
        tags = function.tags if isinstance(function, StampedReplay) else (tag,)
        if self.counts.get(index, 0) + each * len(tags) >= MOST_MARKS:
            raise DeviceError(
                f"stream {index} has more than {MOST_MARKS} marked launches in a window: let an "
                "iteration launch less"
            )
        began_ns = time.perf_counter_ns()
        function(*arguments)
        for inside in tags:
            count = self.counts.get(index, 0)
            self.launches.append(_Launched(index, inside, began_ns, count if marked else None))
            if marked and isinstance(function, StampedReplay):
                self.counts[index] = count + each
            elif marked:
                for _ in range(each):
                    self.mark(stream)

    def mark(self, stream: AcceleratorStream) -> None:
        """Enqueue a mark behind a stream's work."""
        index = stream.index
        self.counts[index] = self.counts.get(index, 0) + 1
        if self.stamped(index):
            self.stamps.enqueue(stream)
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream.stream)
        self.events.setdefault(index, []).append(event)

    def stamped(self, index: int) -> bool:
        """Whether a stream's marks are stamps; what is not judged ends behind an event."""
        return self.marks.by == "stamps" and index in self.marks.streams

    def end(self) -> None:
        """Mark the ends of streams whose last launch has no mark."""
        last = {each.stream: each for each in self.launches}
        for index, each in last.items():
            if each.mark is None:
                self.mark(self.pool.streams[index])


def held_window(
    pool: AcceleratorPool, stamps: Stamps, enqueue: Callable[[], None], marks: Marks, *, hold: bool
) -> HeldWindow:
    """Run ``enqueue`` behind the gate, or with an open one; see `StreamPool.held_window`.

    Raises:
        NotHeld: if the launch queues do not take all work while it is held.

    """
    gate = gate_of(pool.device.index)
    stamps.logs[:, 0] = 0
    pool.synchronize()
    gate.close(open_already=not hold)
    for stream in pool.streams:
        stream.stream.wait_event(gate.opened)
    tags, pool.tags = pool.tags, None
    pool.held = held = MarkedWindow(pool, stamps, marks)
    opened_ns = time.perf_counter_ns()
    try:
        enqueue()
        held.end()
        if hold:
            opened_ns = time.perf_counter_ns()
    finally:
        # Whatever was raised, nothing waits for ever.
        gate.open()
        pool.held, pool.tags = None, tags
        pool.synchronize()
    if hold and not gate.was_opened:
        raise NotHeld(
            f"{len(held.launches)} launches are more than this device's launch queues hold: "
            "enqueueing waited for work that was held back"
        )
    return _Reading(gate, held, opened_ns).window()


class _Reading:
    """What a window's marks say, in ns from the opening."""

    def __init__(self, gate: Gate, held: MarkedWindow, opened_ns: int) -> None:
        self._gate, self._held, self._opened_ns = gate, held, opened_ns
        self._logs = held.stamps.logs.cpu().numpy()
        self._released = int(gate.flags[1])

    def window(self) -> HeldWindow:
        """Return the window."""
        held = self._held
        launches = tuple(
            HeldLaunch(
                each.stream,
                each.tag,
                each.began_ns - self._opened_ns,
                None if each.mark is None else self._when_ns(each.stream, each.mark),
            )
            for each in held.launches
        )
        pairs = tuple(
            self._when_ns(each.stream, each.mark + 1) - self._when_ns(each.stream, each.mark)
            for each in held.launches
            if each.mark is not None and held.marks.each > 1
        )
        last = {each.stream: each.mark for each in held.launches}
        # An unmarked stream has its only mark at its end.
        ended = {index: self._when_ns(index, mark or 0) for index, mark in last.items()}
        return HeldWindow(launches, ended, pairs)

    def _when_ns(self, index: int, mark: int) -> int:
        if not self._held.stamped(index):
            elapsed_ms: float = self._gate.opened.elapsed_time(self._held.events[index][mark])
            return round(elapsed_ms * 1e6)
        ticks = int(self._logs[index, 1 + mark]) - self._released
        return round(ticks * self._gate.ns_per_tick)


def address_of(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor's address as the only element of one on the device."""
    return torch.tensor([values.data_ptr()], dtype=torch.int64, device=device)


def compiled(source: str, device: torch.device) -> Callable[..., Any]:
    """Return a kernel of torch's jiterator, compiled when it is first launched.

    Args:
        source: C++ of it, in which ``NOW`` stands for reading the device's clock into ``now``.
        device: that it is for.

    Raises:
        DeviceError: if this torch has no jiterator.

    """
    now = _HIP_NOW if torch.version.hip else _CUDA_NOW
    try:
        made: Callable[..., Any] = torch.cuda.jiterator._create_jit_fn(source.replace("NOW", now))
    except (AttributeError, RuntimeError) as error:
        raise no_kernel(device, error) from error
    return made


def no_kernel(device: torch.device, error: Exception) -> DeviceError:
    """Return the error of a kernel that cannot be compiled."""
    return DeviceError(f"torch cannot compile a kernel for {device}: {error}")


def ns_per_tick(device: torch.device) -> float:
    """Return what a tick of the clock that `compiled` kernels read is in ns."""
    if not torch.version.hip:
        return 1.0
    khz = ctypes.c_int()
    Runtime(hip=True).call("DeviceGetAttribute", ctypes.byref(khz), _WALL_CLOCK_KHZ, device.index)
    return 1e6 / khz.value
