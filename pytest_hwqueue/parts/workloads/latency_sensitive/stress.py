"""One resource of a device at its limit: what a neighbour takes most of, and what feels it most."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch
from pydantic import Field

from pytest_hwqueue.data.errors import CheckFailed
from pytest_hwqueue.data.resources import Resource
from pytest_hwqueue.parts.devices.cache import cached_bytes, l2_bytes
from pytest_hwqueue.parts.devices.protocol import Stream
from pytest_hwqueue.parts.devices.tensors import host_empty
from pytest_hwqueue.parts.workloads.numerics import Matmul, poison, require_close, set_precision
from pytest_hwqueue.parts.workloads.workload import (
    HELD_KERNELS,
    Parameters,
    PrimaryLatency,
    Setup,
    Workload,
)

_MIB = 1 << 20
# Two tenants' buffers, and what stands twice in a cache of two halves, as an H200's does, still fit
# in part: both lose what the other evicts.
_OF_L2 = 1 / 3
# Beyond the cache, so that nothing of it is left there when it is read again.
_BEYOND_CACHE = 4
# A device whose properties have no cache, such as the CPU, gets that of an H200.
_L2_BYTES = 60 * _MIB
# A block reduces a few rows of these.
_COLUMNS = 1024
_ELEMENTS = 256
# One operation is to last some 300 µs on an H200 whatever the resource, as a product in fp32 does:
# then the first launch of an iteration and the wait for its end are a small part of it. An H200
# took, natively and alone, 344 µs for products, 182 for blocks, 169 for the cache, 247 for memory,
# 311 for copies and 350 for launches (docs/results/certify.md: sixteen of them).
_L2_PASSES, _MEMORY_PASSES = 64, 4
_COPIED_MIB = 16
_BLOCKS_MIB, _KERNELS_OF_BLOCKS = 32, 8
_LAUNCHES = 48


class StressParameters(Parameters):
    """Which resource, and how much of it an iteration takes."""

    resource: Resource = Field(
        "multiprocessors",
        description="what is taken: multiprocessors (products), blocks (kernels of tens of "
        "thousands of short blocks), l2 (a buffer that fits the cache, read again and again), "
        "memory (one that does not), copies (page-locked: of even streams to the device, of odd "
        "ones back), launches (tiny kernels)",
    )
    depth: int = Field(16, ge=1, description="operations that a stream enqueues at once")
    mm_dim: int = Field(
        2048, ge=1, description="rows and columns of the products, where they are the resource"
    )
    mebibytes: int | None = Field(
        None,
        ge=1,
        description="size in MiB of the buffer that blocks, l2, memory and copies have; by default "
        "32, a third of the L2 cache, four times what is cached, and 16",
    )


class _Operation(Protocol):
    """What a stream repeats.

    Attributes:
        outputs: what it leaves.

    """

    outputs: list[torch.Tensor]

    def run(self) -> None:
        """Enqueue it on the current stream."""

    def check(self, what: str) -> None:
        """Compare what it leaves with a reference; raise CheckFailed if it differs."""


class Stress(Workload, declared="stress"):
    """Each stream repeats ``depth`` operations that take one resource of the device.

    All of an iteration's are enqueued at once, so that the resource is never idle in between.
    """

    primary = PrimaryLatency(
        "burst", "launch", "a stream's operations, from ready to done", marks="events"
    )
    parameters: StressParameters
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {"mm_dim": 128, "mebibytes": 1, "depth": 4},
        "small": {"mm_dim": 512, "mebibytes": 4},
        "full": {},
    }

    def setup(self, setup: Setup) -> None:
        """Make each stream's operation."""
        set_precision("fp32")
        generator = setup.generator()
        self._operations = [
            self._operation(setup, index, generator) for index in range(setup.streams)
        ]
        self.outputs = [output for each in self._operations for output in each.outputs]

    def iterate(self, streams: Sequence[Stream]) -> None:
        """Enqueue each stream's operations, stream by stream."""
        for index in range(len(self._operations)):
            streams[index].launch(self._burst, index, self.parameters.depth, tag="burst")

    def work_per_iteration(self) -> dict[str, float]:
        """Return the operations of all streams."""
        return {"operations": float(len(self._operations) * self.parameters.depth)}

    def check(self, run_once: Callable[[], None]) -> None:
        """Compare what each stream's last operation leaves with a reference."""
        poison(*self.outputs)
        run_once()
        for index, operation in enumerate(self._operations):
            operation.check(f"stream {index}")

    def timeline_parameters(self, streams: int) -> dict[str, Any]:
        """Return so few operations that those of all streams can be held back together."""
        each = {"launches": _LAUNCHES, "blocks": _KERNELS_OF_BLOCKS}.get(
            self.parameters.resource, 1
        )
        return {"depth": min(self.parameters.depth, max(1, HELD_KERNELS // streams // each))}

    def _burst(self, index: int, depth: int) -> None:
        for _ in range(depth):
            self._operations[index].run()

    def _operation(self, setup: Setup, index: int, generator: torch.Generator) -> _Operation:
        resource, dim = self.parameters.resource, self.parameters.mm_dim
        if resource == "multiprocessors":
            return _Product(Matmul(dim, dim, dim, "fp32", setup, generator))
        if resource == "launches":
            return _TinyKernels(setup, generator)
        size_bytes = (self.parameters.mebibytes or 0) * _MIB
        if resource == "blocks":
            return _ShortBlocks(setup, generator, size_bytes or _BLOCKS_MIB * _MIB)
        if resource == "copies":
            return _Copy(setup, size_bytes or _COPIED_MIB * _MIB, to_host=bool(index % 2))
        of_l2 = l2_bytes(setup.device.torch_device) or _L2_BYTES
        if resource == "l2":
            return _Reads(setup, generator, size_bytes or round(of_l2 * _OF_L2), _L2_PASSES)
        cached = cached_bytes(setup.device.kind, of_l2)
        return _Reads(setup, generator, size_bytes or cached * _BEYOND_CACHE, _MEMORY_PASSES)


class _Product:
    """One product, in fp32 without tensor cores: it computes most, and reads and heats least."""

    def __init__(self, product: Matmul) -> None:
        self._product = product
        self.outputs = [product.out]

    def run(self) -> None:
        self._product.run()

    def check(self, what: str) -> None:
        self._product.check(what)


class _ShortBlocks:
    """Kernels of tens of thousands of blocks, each of which adds one to one and the same number.

    Where an input is not contiguous, torch gives each block 512 halves, 1,024 on AMD
    (ATen/native/cuda/CUDALoops.cuh, `gpu_kernel_impl_nocast`).
    """

    def __init__(self, setup: Setup, generator: torch.Generator, size_bytes: int) -> None:
        place = setup.device.torch_device
        count = size_bytes // torch.float16.itemsize
        self._one = torch.rand(1, generator=generator, device=place).half()
        self._input = self._one.expand(count)
        self._output = torch.empty(count, dtype=torch.float16, device=place)
        self.outputs = [self._output]

    def run(self) -> None:
        for _ in range(_KERNELS_OF_BLOCKS):
            torch.add(self._input, 1, out=self._output)

    def check(self, what: str) -> None:
        _require_equal(what, self._output, self._one + 1)


class _Reads:
    """Sums of a buffer's rows, over all of it as often as there are passes."""

    def __init__(
        self, setup: Setup, generator: torch.Generator, size_bytes: int, passes: int
    ) -> None:
        place = setup.device.torch_device
        rows = size_bytes // (_COLUMNS * torch.float32.itemsize)
        self._buffer = torch.rand((rows, _COLUMNS), generator=generator, device=place)
        self._read = self._buffer.expand(passes, rows, _COLUMNS)
        self._sums = torch.empty((passes, rows), device=place)
        self.outputs = [self._sums]

    def run(self) -> None:
        torch.sum(self._read, dim=-1, out=self._sums)

    def check(self, what: str) -> None:
        expected = self._buffer.sum(dim=-1, dtype=torch.float64)
        for number, sums in enumerate(self._sums):
            require_close(f"{what}, pass {number}", sums, expected, 1e-5)


class _Copy:
    """A copy between page-locked memory of the host and the device."""

    def __init__(self, setup: Setup, size_bytes: int, *, to_host: bool) -> None:
        shape = (size_bytes // torch.float32.itemsize,)
        here = host_empty(setup.device, shape, torch.float32)
        there = torch.empty(shape, device=setup.device.torch_device)
        self._source, self._target = (there, here) if to_host else (here, there)
        given = torch.rand(shape, generator=torch.Generator().manual_seed(setup.seed))
        self._source.copy_(given)
        self.outputs = [self._target]

    def run(self) -> None:
        self._target.copy_(self._source, non_blocking=True)

    def check(self, what: str) -> None:
        _require_equal(what, self._target.cpu(), self._source.cpu())


class _TinyKernels:
    """As many kernels as take the host what an operation takes a device, each of them short."""

    def __init__(self, setup: Setup, generator: torch.Generator) -> None:
        place = setup.device.torch_device
        self._input = torch.rand(_ELEMENTS, generator=generator, device=place)
        self._output = torch.empty_like(self._input)
        self.outputs = [self._output]

    def run(self) -> None:
        for _ in range(_LAUNCHES):
            torch.add(self._input, 1, out=self._output)

    def check(self, what: str) -> None:
        require_close(what, self._output, self._input.double() + 1, 1e-6)


def _require_equal(what: str, actual: torch.Tensor, expected: torch.Tensor) -> None:
    wrong = int((actual != expected).sum())
    if wrong:
        raise CheckFailed(f"{what}: {wrong} of {actual.numel()} numbers are wrong")
