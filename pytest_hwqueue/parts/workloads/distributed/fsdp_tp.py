"""FSDP and tensor parallelism: blocks gathered and gradients reduced alongside the computation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch.nn.utils import vector_to_parameters

from pytest_hwqueue.data.errors import NotApplicable
from pytest_hwqueue.parts.devices.protocol import Stream
from pytest_hwqueue.parts.devices.tensors import TORCH_TYPES
from pytest_hwqueue.parts.workloads.distributed.segments import (
    ParallelBlock,
    RankGrid,
    TransformerParameters,
    end_step,
    plain_gradients,
)
from pytest_hwqueue.parts.workloads.numerics import require_close, set_precision
from pytest_hwqueue.parts.workloads.workload import PrimaryLatency, Setup, Where, Workload

# Relative error of a block's gradient. The reference does the same products, over the same batches
# one by one; over ranks they are summed in another order, and so is what tensor parallelism splits.
_TOLERANCES = {"fp32": 1e-5, "tf32": 2e-3, "bf16": 2e-2}
# A step rounds each parameter twice in fp32, the product and the sum, and the reference's too.
_ROUNDING = 4 * 2.0**-24


class FsdpParameters(TransformerParameters):
    """Sizes of the transformer, and how ranks share it."""

    batch: int = Field(8, ge=1, description="samples of a model on each rank with its own data")
    layers: int = Field(2, ge=2, description="transformer blocks, each sharded by itself")
    tensor_ranks: int | None = Field(
        None,
        ge=1,
        description="ranks that share each layer; must divide the ranks and the heads; "
        "by default 2 if there are at least 4 ranks and both are even, else 1",
    )
    learning_rate: float = Field(
        0.01,
        gt=0,
        allow_inf_nan=False,
        description="of the optimiser, plain gradient descent; small, so that steps stay alike",
    )


class FsdpTensorParallel(Workload, declared="fsdp_tp"):
    """Every three streams train their own model, as described in `FsdpLane`.

    Remaining streams go to the first model: one takes its optimiser's steps, another every second
    reduction. Ranks form a grid: rows have different data and shard the parameters by
    `fully_shard`; the ranks of a row share each layer's work by `parallelize_module`. All models
    start equal, and continue training in every iteration.
    """

    primary = PrimaryLatency(
        "step",
        "request",
        "a training step of one model, until all its blocks have been updated",
        alike=True,
    )
    parameters: FsdpParameters
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {"hidden": 32, "heads": 2, "sequence": 16, "batch": 1, "learning_rate": 1e-4},
        "small": {"hidden": 256, "heads": 4, "sequence": 128, "batch": 2, "learning_rate": 1e-3},
        "full": {"hidden": 1024, "heads": 16, "sequence": 512, "batch": 8, "dtype": "tf32"},
    }
    gradients = True

    def require_applicable(self, where: Where) -> None:
        """Refuse graphs, and ``tensor_ranks`` that divide neither the ranks nor the heads."""
        if where.dispatch == "graph":
            raise NotApplicable(f"fsdp_tp: {self.no_graph}; use --hwq-dispatch=eager")
        parameters = self.parameters
        asked = parameters.tensor_ranks or 1
        for what, count in (("ranks", where.ranks), ("heads", parameters.heads)):
            if count % asked:
                raise NotApplicable(
                    f"fsdp_tp.tensor_ranks={asked} does not divide the {count} {what}; "
                    "give a number that does"
                )

    def setup(self, setup: Setup) -> None:
        """Create the models, their shards and their batches."""
        # FSDP brings sympy: half a second for whoever only reads what workloads declare.
        from pytest_hwqueue.parts.workloads.distributed.fsdp_lane import FsdpLane

        self.require_applicable(setup.where)
        parameters = self.parameters
        set_precision(parameters.dtype)
        self._setup = setup
        self._grid = _grid(parameters, setup.ranks.size)
        self._steps = 0
        row = setup.ranks.rank // self._grid.tensor_ranks
        # The first lane has the streams that are left over.
        firsts = [0, *range(setup.streams % 3 + 3, setup.streams, 3)]
        self._own = [slice(*ends) for ends in pairwise([*firsts, setup.streams])]
        self.lanes = [
            FsdpLane(
                lane,
                self._blocks(),
                self._grid,
                own.stop - own.start,
                self._batch(lane, row),
                parameters.learning_rate,
            )
            for lane, own in enumerate(self._own)
        ]

    def iterate(self, streams: Sequence[Stream]) -> None:
        """Enqueue one step of each model, block by block, each on all models."""
        by_lane = [streams[own] for own in self._own]
        steps = [lane.enqueue(own) for lane, own in zip(self.lanes, by_lane, strict=True)]
        for _ in zip(*steps, strict=True):
            pass
        for own in by_lane:
            end_step(own)
        self._steps += 1

    def work_per_iteration(self) -> dict[str, float]:
        """Return the samples of all models on all ranks."""
        samples = len(self.lanes) * self._grid.data_ranks * self.parameters.batch
        return {"samples": float(samples)}

    def check(self, run_once: Callable[[], None]) -> None:
        """Compare the last step's gradients and all parameters with training in one process."""
        before = [lane.parameters() for lane in self.lanes]
        for lane in self.lanes:
            lane.poison()
        begun = self._steps
        run_once()
        steps = self._steps - begun
        tolerance = _TOLERANCES[self.parameters.dtype]
        for number, lane in enumerate(self.lanes):
            gradients, after = lane.gradients(), lane.parameters()
            expected, reached = self._plain_steps(number, before[number], steps)
            for block, start in enumerate(before[number]):
                what = f"block {block} of model {number}"
                require_close(f"gradient of {what}", gradients[block], expected[block], tolerance)
                change = reached[block] - start
                # By the norm, a step is small against a parameter.
                rounding = steps * _ROUNDING * float(reached[block].norm() / change.norm())
                require_close(
                    f"change of {what}", after[block] - start, change, tolerance + rounding
                )

    @classmethod
    def urgency(cls, streams: int) -> list[int]:
        """Return the urgencies: gathers and reductions come first, as in FSDP itself."""
        first = [1, 0, 1, 0, 1][: 3 + streams % 3]
        return [*first, *[1, 0, 1] * (streams // 3 - 1)]

    def _plain_steps(
        self, lane: int, weights: Sequence[torch.Tensor], steps: int
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Train in this process alone: return the last step's gradients and parameters, by block.

        All are flat and in fp32.
        """
        rows = self._grid.data_ranks
        batches = [self._batch(lane, row) for row in range(rows)]
        dtype = batches[0][0].dtype
        blocks = [block.to(dtype) for block in self._blocks()]
        reached, gradients = list(weights), list(weights)
        for _ in range(steps):
            for block, flat in zip(blocks, reached, strict=True):
                vector_to_parameters(flat.to(dtype), block.parameters())
            by_row = [
                plain_gradients(blocks, *batch, rows * self.parameters.batch) for batch in batches
            ]
            gradients = [torch.stack(of_rows).sum(0) for of_rows in zip(*by_row, strict=True)]
            reached = [
                flat - self.parameters.learning_rate * gradient
                for flat, gradient in zip(reached, gradients, strict=True)
            ]
        return gradients, reached

    def _blocks(self) -> list[ParallelBlock]:
        """Make a model on the device, in fp32, from the seed."""
        parameters = self.parameters
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._setup.seed)
            blocks = [
                ParallelBlock(parameters.hidden, parameters.heads) for _ in range(parameters.layers)
            ]
        place = self._setup.device.torch_device
        # Fake tensors cannot be moved, and are where they should be.
        return blocks if place.type == "cpu" else [block.to(place) for block in blocks]

    def _batch(self, lane: int, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw a model's inputs and target for the ranks of a row."""
        parameters, place = self.parameters, self._setup.device.torch_device
        number = lane * self._grid.data_ranks + row
        generator = torch.Generator(device=place).manual_seed(self._setup.seed + number)
        shape = (2, parameters.batch, parameters.sequence, parameters.hidden)
        drawn = torch.randn(shape, generator=generator, device=place)
        inputs, target = drawn.to(TORCH_TYPES[parameters.dtype])
        return inputs, target


def _grid(parameters: FsdpParameters, ranks: int) -> RankGrid:
    asked = parameters.tensor_ranks
    if asked is None:
        paired = ranks >= 4 and ranks % 2 == 0 and parameters.heads % 2 == 0
        asked = 2 if paired else 1
    return RankGrid(ranks // asked, asked)
