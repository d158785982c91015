"""Independent subgraphs that one stream merges: fan-in, where the slowest stream sets the pace."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import torch
from pydantic import Field

from pytest_hwqueue.parts.devices.protocol import Stream
from pytest_hwqueue.parts.devices.tensors import TORCH_TYPES
from pytest_hwqueue.parts.workloads.numerics import (
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

# Relative error of the norm against float64 behind four layers. A format of p bits of mantissa
# rounds by 2^-(p+1), evenly spread (over √3), at about eight places (operands, stored results):
# 3e-3 for bf16 (7 bits), 8e-4 for tf32 and fp16 (10); fp32 (23) with room for the sums' order.
_TOLERANCES = {"fp32": 1e-5, "tf32": 2e-3, "bf16": 1e-2, "fp16": 2e-3}


class SubgraphParameters(Parameters):
    """Sizes of each subgraph; the merge's follow from them and from the number of streams."""

    batch: int = Field(32, ge=1, description="samples per subgraph")
    inputs: int = Field(1024, ge=1, description="features of a sample")
    hidden: int = Field(2048, ge=1, description="features of the two hidden layers")
    outputs: int = Field(512, ge=1, description="features out of a subgraph and of the merge")
    dtype: MatmulType = Field("fp32", description="numeric format")


class GraphSubgraphs(Workload, declared="graph_subgraphs"):
    """Each stream but the last runs its own MLP; the last stream merges their results."""

    primary = PrimaryLatency("forward", "iteration", "all subgraphs and the merge of their results")
    parameters: SubgraphParameters
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {"inputs": 128, "hidden": 256, "outputs": 64},
        "small": {"inputs": 512, "hidden": 1024, "outputs": 256},
        "full": {"inputs": 1024, "hidden": 2048, "outputs": 512},
    }

    def setup(self, setup: Setup) -> None:
        """Create a subgraph for each stream but the last, and the merge's weights and buffers."""
        parameters = self.parameters
        set_precision(parameters.dtype)
        generator = setup.generator()
        self.subgraphs = [_Subgraph(parameters, setup, generator) for _ in range(setup.streams - 1)]
        width = len(self.subgraphs) * parameters.outputs
        self.weight = _weight(width, parameters.outputs, parameters.dtype, setup, generator)
        self._joined = self.weight.new_empty(parameters.batch, width)
        self.merged = self.weight.new_empty(parameters.batch, parameters.outputs)

    def iterate(self, streams: Sequence[Stream]) -> None:
        """Enqueue each subgraph, and the merge after all of them."""
        *branches, last = streams
        for subgraph, stream in zip(self.subgraphs, branches, strict=True):
            stream.launch(subgraph.run, tag="subgraph")
            last.wait(stream.record())
        last.launch(self._merge, tag="merge")
        # The next iteration's subgraphs write what this merge reads.
        merged = last.record()
        for stream in branches:
            stream.wait(merged)

    def work_per_iteration(self) -> dict[str, float]:
        """Return the number of samples, each of which passes through one subgraph."""
        return {"samples": float(len(self.subgraphs) * self.parameters.batch)}

    def check(self, run_once: Callable[[], None]) -> None:
        """Compare the merged result with one in float64."""
        poison(self._joined, self.merged)
        for subgraph in self.subgraphs:
            poison(*subgraph.results)
        run_once()
        joined = torch.cat([subgraph.expected() for subgraph in self.subgraphs], dim=1)
        expected = joined @ self.weight.double()
        require_close("merge", self.merged, expected, _TOLERANCES[self.parameters.dtype])

    def _merge(self) -> None:
        torch.cat([subgraph.results[-1] for subgraph in self.subgraphs], dim=1, out=self._joined)
        torch.mm(self._joined, self.weight, out=self.merged)


class _Subgraph:
    """Three layers with ReLU between them, and the buffers of their results."""

    def __init__(self, parameters: SubgraphParameters, setup: Setup, generator: torch.Generator):
        widths = (parameters.inputs, parameters.hidden, parameters.hidden, parameters.outputs)
        self._weights = [
            _weight(before, after, parameters.dtype, setup, generator)
            for before, after in pairwise(widths)
        ]
        place = setup.device.torch_device
        source = torch.randn(parameters.batch, widths[0], generator=generator, device=place)
        self._source = source.to(self._weights[0].dtype)
        self.results = [self._source.new_empty(parameters.batch, width) for width in widths[1:]]

    def run(self) -> None:
        """Enqueue the layers on the current stream."""
        layer_input = self._source
        for index, (weight, result) in enumerate(zip(self._weights, self.results, strict=True)):
            torch.mm(layer_input, weight, out=result)
            if index < len(self._weights) - 1:
                result.relu_()
            layer_input = result

    def expected(self) -> torch.Tensor:
        """Return the result in float64, (batch, outputs)."""
        first, second, third = (weight.double() for weight in self._weights)
        hidden = (self._source.double() @ first).clamp_min(0)
        hidden = (hidden @ second).clamp_min(0)
        return hidden @ third


def _weight(
    before: int, after: int, dtype: MatmulType, setup: Setup, generator: torch.Generator
) -> torch.Tensor:
    """Draw a weight, (before, after), that keeps the features' size."""
    place = setup.device.torch_device
    weight = torch.randn(before, after, generator=generator, device=place)
    return weight.div_(math.sqrt(before)).to(TORCH_TYPES[dtype])
