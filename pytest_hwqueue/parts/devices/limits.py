"""A device's own limits: how fast it does one thing, with that to do and nothing else.

Each is the rate of work that lies ready behind a gate when it begins (`StreamPool.held_window`), so
that no launching from the host is in it. They are ceilings for reading other figures: a cell that
reaches nine tenths of one is bounded by it, whatever its scheduler does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.latency import median_estimate
from pytest_hwqueue.parts.devices.protocol import Device, Marks, StreamPool
from pytest_hwqueue.parts.devices.tensors import TORCH_TYPES, host_empty
from pytest_hwqueue.parts.devices.torch_settings import (
    float32_precision_kept,
    set_float32_precision,
)

FRONT_END, GRAPH_START, MEMORY = "front end", "graph start", "memory"
TO_DEVICE, TO_HOST = "H2D copy", "D2H copy"


def matrix_units(dtype: str) -> str:
    """Return the limit's name for a numeric format: ``fp32``, ``tf32``, ``bf16`` or ``fp16``."""
    return f"matrix {dtype}"


# Small kernels start no faster from more streams (5.74 M/s on 16 of an H200, 5.77 on 32), and
# graphs of so many each take far longer than the gate needs to get around.
_FRONT_END_STREAMS = 16
_GRAPH_KERNELS = 500
# A model of a device takes time for each kernel, and needs no average over many.
_MODELLED_KERNELS = 16
_STARTS_PER_STREAM = 20
_ELEMENTS = 1024
# Larger than any cache, and small beside the memory of a GPU.
_COPIED_BYTES = 256 * 2**20
_MOVED_BYTES = 2**30
# The largest products are the fastest (779 TFLOP/s at 8,192 on an H200, 689 at 4,096; bf16), and
# several at once leave no multiprocessor idle at the end of each: 52.6, not 51.1 TFLOP/s (fp32).
_MATRIX_ROWS = 8192
_MATRIX_STREAMS = 4
# One more than the fewest that give a median's interval.
_ROUNDS = 7


class _Work(NamedTuple):
    """What is timed: its amount, and what enqueues it."""

    amount: float
    enqueue: Callable[[], None]


class _Limit(NamedTuple):
    """How a limit is measured.

    Attributes:
        unit: of its rate.
        streams: that it takes.
        prepare: makes the work on a device and its streams.

    """

    unit: str
    streams: int
    prepare: Callable[[Device, StreamPool], _Work]


def _small_kernels(device: Device, pool: StreamPool, count: int, replays: int) -> _Work:
    """Return replays of a graph of small kernels on every stream; what is counted are kernels."""
    data = torch.zeros(len(pool.streams), _ELEMENTS, device=device.torch_device)
    graphs = []
    for stream, row in zip(pool.streams, data, strict=True):
        launch = partial(stream.launch, partial(_burst, row, count))
        # What a capture cannot do for the first time (load the kernel) is done now.
        launch()
        pool.synchronize()
        graphs.append(pool.capture(stream.index, launch))

    def enqueue() -> None:
        for _ in range(replays):
            for stream, replay in zip(pool.streams, graphs, strict=True):
                stream.launch(replay)

    return _Work(float(len(pool.streams) * count * replays), enqueue)


def _burst(row: torch.Tensor, count: int) -> None:
    for _ in range(count):
        row.add_(1.0)


def _front_end(device: Device, pool: StreamPool) -> _Work:
    modelled = device.capabilities.virtual_time
    return _small_kernels(device, pool, _MODELLED_KERNELS if modelled else _GRAPH_KERNELS, 1)


def _graph_start(device: Device, pool: StreamPool) -> _Work:
    return _small_kernels(device, pool, 1, _STARTS_PER_STREAM)


def _copies(to_host: bool) -> Callable[[Device, StreamPool], _Work]:
    def prepare(device: Device, pool: StreamPool) -> _Work:
        there = torch.empty(_COPIED_BYTES, dtype=torch.uint8, device=device.torch_device)
        here = host_empty(device, (_COPIED_BYTES,), torch.uint8)
        source, target = (there, here) if to_host else (here, there)
        return _repeated(pool, lambda: target.copy_(source, non_blocking=True), _COPIED_BYTES / 1e9)

    return prepare


def _memory(device: Device, pool: StreamPool) -> _Work:
    data = torch.zeros(_MOVED_BYTES // 4, device=device.torch_device)
    # Read and written.
    return _repeated(pool, lambda: data.add_(1.0), 2 * _MOVED_BYTES / 1e9)


def _products(dtype: str) -> Callable[[Device, StreamPool], _Work]:
    def prepare(device: Device, pool: StreamPool) -> _Work:
        shape = (_MATRIX_ROWS, _MATRIX_ROWS)
        a, b = (
            torch.randn(shape, device=device.torch_device).to(TORCH_TYPES[dtype]) for _ in range(2)
        )
        outs = [torch.empty_like(a) for _ in pool.streams]

        def enqueue() -> None:
            for stream, out in zip(pool.streams, outs, strict=True):
                stream.launch(partial(torch.mm, a, b, out=out))

        return _Work(len(outs) * 2 * _MATRIX_ROWS**3 / 1e12, enqueue)

    return prepare


def _repeated(pool: StreamPool, launch: Callable[[], object], amount: float) -> _Work:
    """Return a launch that is timed twice in a row."""
    stream = pool.streams[0]

    def enqueue() -> None:
        for _ in range(2):
            stream.launch(launch)

    return _Work(2 * amount, enqueue)


_LIMITS = {
    FRONT_END: _Limit("kernels/s", _FRONT_END_STREAMS, _front_end),
    GRAPH_START: _Limit("graphs/s", _FRONT_END_STREAMS, _graph_start),
    TO_DEVICE: _Limit("GB/s", 1, _copies(to_host=False)),
    TO_HOST: _Limit("GB/s", 1, _copies(to_host=True)),
    MEMORY: _Limit("GB/s", 1, _memory),
    **{
        matrix_units(each): _Limit("TFLOP/s", _MATRIX_STREAMS, _products(each))
        for each in TORCH_TYPES
    },
}
LIMITS = tuple(_LIMITS)
"""Names of the limits of any device."""


def device_limit(device: Device, name: str) -> Estimate:
    """Return one of a device's `LIMITS`, a rate per second: a model's own, or else measured.

    Raises:
        DeviceError: as `measured_limit`.
        RuntimeError: likewise.

    """
    if device.model is None:
        return measured_limit(device, name)
    profile, unit = device.model.profile, _LIMITS[name].unit
    arithmetic, memory = profile.arithmetic, profile.memory
    per_s = {
        FRONT_END: 1e9 / profile.dispatch.graph_start_ns.value,
        GRAPH_START: 1e9 / profile.dispatch.graph_start_ns.value,
        MEMORY: memory.bandwidth_bytes_per_s.value * memory.bandwidth_efficiency.value / 1e9,
        **{
            matrix_units(dtype): peak.value * arithmetic.matrix_efficiency.value / 1e12
            for dtype, peak in (
                ("fp32", arithmetic.fp32_flop_per_s), ("tf32", arithmetic.tf32_flop_per_s),
                ("bf16", arithmetic.bf16_flop_per_s), ("fp16", arithmetic.fp16_flop_per_s),
            )
        },
        TO_DEVICE: profile.copy_engines[0].bandwidth_bytes_per_s.value / 1e9,
        TO_HOST: profile.copy_engines[-1].bandwidth_bytes_per_s.value / 1e9,
    }  # fmt: skip
    return Estimate(value=per_s[name], unit=unit, refused="the model's own figure, not measured")


def measured_limit(device: Device, name: str) -> Estimate:
    """Measure one of a device's `LIMITS`: a rate per second, the median of seven.

    The precision of float32 products is that of the limit while it is measured, and then again
    what it was.

    Raises:
        DeviceError: if the device has no graphs, or work cannot be held.
        RuntimeError: torch's, as when memory is short.

    """
    unit, streams, prepare = _LIMITS[name]
    with float32_precision_kept(), device.open_streams(streams) as pool:
        set_float32_precision(tf32=name == matrix_units("tf32"))
        work = prepare(device, pool)
        # Kernels are loaded, graphs uploaded and workspaces allocated now: the last of these waits
        # for all that runs, so that behind a gate it would wait for ever.
        work.enqueue()
        pool.synchronize()
        marks = Marks(frozenset(range(streams)), "stamps", 0)
        ended_ns = [
            max(pool.held_window(work.enqueue, marks).ended_ns.values()) for _ in range(_ROUNDS)
        ]
    return median_estimate([work.amount / ns * 1e9 for ns in ended_ns], unit)
