"""Matrix products in the workloads' numeric formats."""

from __future__ import annotations

from typing import Literal

import torch

from pytest_hwqueue.workloads.workload import Setup, require_close

MatmulType = Literal["fp32", "tf32", "bf16", "fp16"]

TORCH_TYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
# Relative error of the norm against a product in float64: rounding of the format's products and
# of the stored result, with room for the order of summation.
_TOLERANCES = {"fp32": 1e-5, "tf32": 2e-3, "bf16": 1e-2, "fp16": 2e-3}


def set_precision(dtype: MatmulType) -> None:
    """Allow TF32 in float32 products for ``tf32`` and forbid it otherwise."""
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")


class Matmul:
    """``a @ b`` of size dim × dim × dim into its own buffer."""

    def __init__(self, dim: int, dtype: MatmulType, setup: Setup, generator: torch.Generator):
        shape = (dim, dim)
        place = setup.device.torch_device
        torch_type = TORCH_TYPES[dtype]
        self.dtype = dtype
        self.flop = 2.0 * dim**3
        self.a = torch.randn(shape, generator=generator, device=place).to(torch_type)
        self.b = torch.randn(shape, generator=generator, device=place).to(torch_type)
        self.out = torch.empty(shape, device=place, dtype=torch_type)

    def run(self) -> None:
        """Enqueue the product on the current stream."""
        torch.mm(self.a, self.b, out=self.out)

    def poison(self) -> None:
        """Make a result that was never written fail its check."""
        self.out.fill_(float("nan"))

    def check(self, what: str) -> None:
        """Compare 64 rows with a product in float64; raise CheckFailed if they differ."""
        rows = torch.linspace(0, self.a.shape[0] - 1, min(64, self.a.shape[0])).long()
        rows = rows.to(self.a.device)
        expected = self.a[rows].double() @ self.b.double()
        require_close(what, self.out[rows], expected, _TOLERANCES[self.dtype])
