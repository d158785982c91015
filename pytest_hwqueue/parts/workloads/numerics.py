"""The workloads' numeric formats: their torch types, matrix products, and how results compare."""

from __future__ import annotations

import torch

from pytest_hwqueue.data.errors import CheckFailed
from pytest_hwqueue.parts.devices.tensors import TORCH_TYPES
from pytest_hwqueue.parts.devices.torch_settings import (
    Float32Precision,
    set_float32_precision,
)
from pytest_hwqueue.parts.workloads.workload import MatmulType, Setup

# Relative error of the norm against a product in float64: rounding of the format's products and
# of the stored result, with room for the order of summation.
_TOLERANCES = {"fp32": 1e-5, "tf32": 2e-3, "bf16": 1e-2, "fp16": 2e-3}


# What held before the first `set_precision` since it was last restored.
_BEFORE: list[Float32Precision] = []


def set_precision(dtype: MatmulType) -> torch.dtype:
    """Allow TF32 in float32 for ``tf32`` and forbid it otherwise; return torch's type.

    It holds for the process, in products and convolutions, until `restore_precision`.
    """
    if not _BEFORE:
        _BEFORE.append(Float32Precision.now())
    set_float32_precision(tf32=dtype == "tf32")
    return TORCH_TYPES[dtype]


def restore_precision() -> None:
    """Put back what `set_precision` has set, so that a cell leaves its process as it was."""
    while _BEFORE:
        _BEFORE.pop().restore()


def poison(*buffers: torch.Tensor) -> None:
    """Make what is read before it was written, or never written, fail the check."""
    for buffer in buffers:
        buffer.fill_(float("nan"))


def require_close(
    what: str, actual: torch.Tensor, expected: torch.Tensor, tolerance: float
) -> None:
    """Compare by the norm of the difference relative to the norm of ``expected``.

    Raises:
        CheckFailed: if the relative error exceeds ``tolerance`` or is not a number.

    """
    expected = expected.to(torch.float64)
    difference = torch.linalg.vector_norm(actual.to(torch.float64) - expected)
    error = float(difference / torch.linalg.vector_norm(expected))
    if not error <= tolerance:
        raise CheckFailed(f"{what}: relative error {error:.3g} exceeds {tolerance:.3g}")


class Matmul:
    """``a @ b`` of M × K and K × N into its own buffer."""

    def __init__(
        self, m: int, n: int, k: int, dtype: MatmulType, setup: Setup, generator: torch.Generator
    ) -> None:
        place, torch_type = setup.device.torch_device, TORCH_TYPES[dtype]
        self._tolerance = _TOLERANCES[dtype]
        self.flop = 2.0 * m * n * k
        self.a = torch.randn((m, k), generator=generator, device=place).to(torch_type)
        self.b = torch.randn((k, n), generator=generator, device=place).to(torch_type)
        self.out = torch.empty((m, n), device=place, dtype=torch_type)

    def run(self) -> None:
        """Enqueue the product on the current stream."""
        torch.mm(self.a, self.b, out=self.out)

    def check(self, what: str) -> None:
        """Compare 64 rows with a product in float64; raise CheckFailed if they differ."""
        rows = torch.linspace(0, self.a.shape[0] - 1, min(64, self.a.shape[0])).long()
        rows = rows.to(self.a.device)
        expected = self.a[rows].double() @ self.b.double()
        require_close(what, self.out[rows], expected, self._tolerance)
