"""The convoy test: chains of small kernels that arrive while large matrix products run."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field

from pytest_hwqueue.data.records.declared import LatencyRatio
from pytest_hwqueue.parts.devices.limits import matrix_units
from pytest_hwqueue.parts.devices.protocol import Stream
from pytest_hwqueue.parts.workloads.numerics import (
    Matmul,
    poison,
    require_close,
    set_precision,
)
from pytest_hwqueue.parts.workloads.workload import (
    MatmulType,
    Parameters,
    PrimaryLatency,
    Setup,
    Workload,
)


class HeteroParameters(Parameters):
    """Sizes of the large and the small work, and the order in which they are enqueued."""

    mm_dim: int = Field(4096, ge=1, description="rows and columns of the large product")
    dtype: MatmulType = Field("fp32", description="numeric format of the large product")
    elements: int = Field(1024, ge=1, description="elements of a small kernel")
    chain_length: int = Field(10, ge=1, description="small kernels in a chain")
    pattern: Literal["alternating", "batched", "random"] = Field(
        "alternating", description="order of enqueueing large products and small chains"
    )


class HeteroKernels(Workload, declared="hetero_kernels"):
    """Half of the streams run one large product each, the others one small chain each."""

    primary = PrimaryLatency(
        "small", "launch", "a chain of small kernels, from ready to done", bounded=True
    )
    ratios = (
        LatencyRatio(
            "convoy_ratio", "small", "small_alone",
            "latency of a small chain alongside large products, divided by that alone",
        ),
        LatencyRatio(
            "large_slowdown", "large", "large_alone",
            "latency of a large product alongside everything else, divided by that alone",
        ),
    )  # fmt: skip
    parameters: HeteroParameters
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {"mm_dim": 256},
        "small": {"mm_dim": 1024},
        "full": {"mm_dim": 4096},
    }

    def setup(self, setup: Setup) -> None:
        """Create a product for each large stream and a vector for each small one."""
        parameters = self.parameters
        set_precision(parameters.dtype)
        dim, generator = parameters.mm_dim, setup.generator()
        large = setup.streams // 2
        self.products = [
            Matmul(dim, dim, dim, parameters.dtype, setup, generator) for _ in range(large)
        ]
        shape = (setup.streams - large, parameters.elements)
        self._inputs = torch.rand(shape, generator=generator, device=setup.device.torch_device)
        self.chains = [torch.empty_like(row) for row in self._inputs]
        self._order = self._enqueue_order(setup.streams, setup.seed)

    @classmethod
    def urgency(cls, streams: int) -> list[int]:
        """Return the urgencies: the streams of small chains are urgent."""
        return [0 if index < streams // 2 else 1 for index in range(streams)]

    def iterate(self, streams: Sequence[Stream]) -> None:
        """Enqueue each large product and each small chain once, in the pattern's order."""
        large = len(self.products)
        for index in self._order:
            if index < large:
                streams[index].launch(self.products[index].run, tag="large")
            else:
                streams[index].launch(self._run_chain, index - large, tag="small")

    def references(self) -> dict[str, Callable[[Sequence[Stream]], None]]:
        """Return one small chain, and one large product, each alone on the device."""
        return {"small_alone": self._small_alone, "large_alone": self._large_alone}

    def work_per_iteration(self) -> dict[str, float]:
        """Return the small kernels, and the large products' arithmetic in TFLOP."""
        flop = sum(product.flop for product in self.products)
        return {
            "small kernels": float(len(self.chains) * self.parameters.chain_length),
            "TFLOP": flop / 1e12,
        }

    def limits_used(self) -> dict[str, float]:
        """Return the products' arithmetic."""
        return {matrix_units(self.parameters.dtype): self.work_per_iteration()["TFLOP"]}

    def check(self, run_once: Callable[[], None]) -> None:
        """Compare products with float64, and chains with the sum they amount to."""
        poison(*(product.out for product in self.products))
        poison(*self.chains)
        run_once()
        for index, product in enumerate(self.products):
            product.check(f"large product {index}")
        expected = self._inputs + self.parameters.chain_length
        for index, chain in enumerate(self.chains):
            require_close(f"small chain {index}", chain, expected[index], 1e-6)

    def _small_alone(self, streams: Sequence[Stream]) -> None:
        streams[len(self.products)].launch(self._run_chain, 0, tag="small")

    def _large_alone(self, streams: Sequence[Stream]) -> None:
        streams[0].launch(self.products[0].run, tag="large")

    def _run_chain(self, index: int) -> None:
        chain = self.chains[index]
        torch.add(self._inputs[index], 1.0, out=chain)
        for _ in range(self.parameters.chain_length - 1):
            chain.add_(1.0)

    def _enqueue_order(self, streams: int, seed: int) -> list[int]:
        large = list(range(streams // 2))
        small = list(range(streams // 2, streams))
        if self.parameters.pattern == "batched":
            return large + small
        if self.parameters.pattern == "random":
            order = large + small
            random.Random(seed).shuffle(order)
            return order
        pairs = zip(large, small, strict=False)
        return [index for pair in pairs for index in pair] + small[len(large) :]
