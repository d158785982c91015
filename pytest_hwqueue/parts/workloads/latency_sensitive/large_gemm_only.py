"""One large matrix product per stream: the reference throughput for other workloads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from pytest_hwqueue.parts.devices.limits import matrix_units
from pytest_hwqueue.parts.devices.protocol import Stream
from pytest_hwqueue.parts.workloads.numerics import Matmul, poison, set_precision
from pytest_hwqueue.parts.workloads.workload import (
    MatmulType,
    Parameters,
    PrimaryLatency,
    Setup,
    Workload,
)


class GemmParameters(Parameters):
    """Size and numeric format of the product."""

    mm_dim: int = Field(2048, ge=1, description="rows and columns of the product")
    dtype: MatmulType = Field("fp32", description="numeric format")


class LargeGemmOnly(Workload, declared="large_gemm_only"):
    """Each stream multiplies its own inputs into its own buffer."""

    primary = PrimaryLatency(
        "product", "launch", "one large product, from ready to done", marks="events"
    )
    parameters: GemmParameters
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {"mm_dim": 320},
        "small": {"mm_dim": 1024},
        "full": {"mm_dim": 2048},
    }

    def setup(self, setup: Setup) -> None:
        """Create inputs and an output for each stream."""
        set_precision(self.parameters.dtype)
        dim, generator = self.parameters.mm_dim, setup.generator()
        self.products = [
            Matmul(dim, dim, dim, self.parameters.dtype, setup, generator)
            for _ in range(setup.streams)
        ]

    def iterate(self, streams: Sequence[Stream]) -> None:
        """Enqueue one product on each stream."""
        for index, product in enumerate(self.products):
            streams[index].launch(product.run, tag="product")

    def work_per_iteration(self) -> dict[str, float]:
        """Return the arithmetic in TFLOP."""
        return {"TFLOP": sum(product.flop for product in self.products) / 1e12}

    def limits_used(self) -> dict[str, float]:
        """Return the products' arithmetic."""
        return {matrix_units(self.parameters.dtype): self.work_per_iteration()["TFLOP"]}

    def check(self, run_once: Callable[[], None]) -> None:
        """Compare each product with one in float64."""
        poison(*(product.out for product in self.products))
        run_once()
        for index, product in enumerate(self.products):
            product.check(f"product {index}")
