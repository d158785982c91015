"""As many tiny kernels as the launch path takes: Python's (eager) or the GPU's (graph)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field

from pytest_hwqueue.parts.devices.protocol import Stream
from pytest_hwqueue.parts.workloads.numerics import poison, require_close
from pytest_hwqueue.parts.workloads.workload import (
    HELD_KERNELS,
    Parameters,
    PrimaryLatency,
    Setup,
    Workload,
)

_KERNELS_PER_ROUND = 4

# Slowly contracting: rounding does not grow along the chain, yet its end depends on its start.
_FACTOR = 0.995
_SUMMAND = 0.005

# A kernel takes 1.0 or 1.1 µs on an H200 by where its vector lies in memory. Rounds take turns with
# vectors this far apart, so that a burst takes the mean.
_VECTORS, _ELEMENTS_APART = 16, 1024


class TinyParameters(Parameters):
    """Length of each stream's chain and size of its kernels."""

    rounds: int = Field(12, ge=1, description="times (mul, add, abs, clamp) in a burst")
    elements: int = Field(256, ge=1, description="elements of a kernel")


class TinyKernelStress(Workload, declared="tiny_kernel_stress"):
    """Each stream runs a burst: ``rounds`` times (mul, add, abs, clamp), one after another."""

    primary = PrimaryLatency("burst", "launch", "a burst of tiny kernels on one stream")
    parameters: TinyParameters
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {},
        "small": {},
        "full": {},
    }

    def setup(self, setup: Setup) -> None:
        """Create an input and an output vector for each stream, and some for what is between."""
        shape = (setup.streams, self.parameters.elements)
        place = setup.device.torch_device
        self._inputs = torch.randn(shape, generator=setup.generator(), device=place)
        self.outputs = [torch.empty_like(row) for row in self._inputs]
        apart = max(self.parameters.elements, _ELEMENTS_APART)
        between = torch.empty((setup.streams, _VECTORS, apart), device=place)
        self._between = [list(each[:, : self.parameters.elements]) for each in between]

    def iterate(self, streams: Sequence[Stream]) -> None:
        """Enqueue each stream's chain, stream by stream."""
        for index, output in enumerate(self.outputs):
            chain = (self._inputs[index], self._between[index], output)
            streams[index].launch(self._run_chain, *chain, tag="burst")

    def work_per_iteration(self) -> dict[str, float]:
        """Return the kernels of all streams."""
        per_stream = self.parameters.rounds * _KERNELS_PER_ROUND
        return {"kernels": float(len(self.outputs) * per_stream)}

    def check(self, run_once: Callable[[], None]) -> None:
        """Compare each stream's result with the same chain in float64."""
        poison(*self.outputs)
        run_once()
        for index, output in enumerate(self.outputs):
            expected = self._inputs[index].double()
            for _ in range(self.parameters.rounds):
                expected = (expected * _FACTOR + _SUMMAND).abs().clamp(max=2.0)
            require_close(f"stream {index}", output, expected, 1e-4)

    def timeline_parameters(self, streams: int) -> dict[str, Any]:
        """Return a chain so short that the chains of all streams can be held back together."""
        fitting = max(1, HELD_KERNELS // (_KERNELS_PER_ROUND * streams))
        return {"rounds": min(self.parameters.rounds, fitting)}

    def _run_chain(
        self, source: torch.Tensor, between: Sequence[torch.Tensor], output: torch.Tensor
    ) -> None:
        last = self.parameters.rounds - 1
        for number in range(self.parameters.rounds):
            result = output if number == last else between[number % _VECTORS]
            torch.mul(source, _FACTOR, out=result).add_(_SUMMAND).abs_().clamp_(max=2.0)
            source = result
