"""Gradient accumulation: microbatches on several streams, their gradients reduced on another."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from pydantic import Field

from pytest_hwqueue.parts.devices.protocol import Event, Stream
from pytest_hwqueue.parts.workloads.distributed.collectives import all_reduce
from pytest_hwqueue.parts.workloads.distributed.segments import (
    TRANSFORMER_SIZES,
    Chain,
    TransformerParameters,
    end_step,
    make_blocks,
    plain_gradients,
    random_batch,
    require_gradients,
)
from pytest_hwqueue.parts.workloads.numerics import poison
from pytest_hwqueue.parts.workloads.workload import PrimaryLatency, Setup, Workload

# Relative error of a block's gradient. The reference sums over all samples within its products,
# this sums those of the microbatches: the same terms, rounded in another order (measured on a CPU:
# 2e-7). In bf16 the reference is in fp32, since a big batch's sums of bf16 may be worse than those
# under test, and every result between is rounded to 8 bits (measured: 5e-3).
_TOLERANCES = {"fp32": 1e-5, "tf32": 2e-3, "bf16": 2e-2}


class AccumulationParameters(TransformerParameters):
    """Sizes of the transformer, of the step, and of the buckets."""

    blocks: int = Field(2, ge=1, description="transformer blocks")
    bucket_blocks: int = Field(1, ge=1, description="blocks whose gradients are reduced together")
    microbatches: int = Field(
        4, ge=4, description="microbatches of a step; more if there are more streams to compute on"
    )


class GradientAccumulation(Workload, declared="grad_accum"):
    """All streams but the last compute microbatches, the last reduces their gradients.

    A bucket is reduced as soon as a microbatch's backward has passed its blocks, while that
    microbatch and later ones continue; only the last stream adds to the sums, so microbatches never
    conflict there. Each rank has the same model and its own microbatches; a bucket is summed over
    the ranks.
    """

    primary = PrimaryLatency(
        "microbatch",
        "request",
        "a microbatch's forward and backward, until its last bucket has been reduced",
        alike=True,
    )
    parameters: AccumulationParameters
    sizes = TRANSFORMER_SIZES
    gradients = True

    def setup(self, setup: Setup) -> None:
        """Create the blocks, the microbatches, and buckets for each computing stream."""
        parameters = self.parameters
        computing = setup.streams - 1
        count = max(parameters.microbatches, computing)
        self._model = make_blocks(parameters.blocks, parameters, setup)
        self._group = dist.new_group()
        generator = setup.generator().manual_seed(setup.seed + setup.ranks.rank)

        def draw() -> list[torch.Tensor]:
            return [random_batch(self._model, parameters, setup, generator) for _ in range(count)]

        self._inputs, self._targets = draw(), draw()
        self._samples = count * parameters.batch * setup.ranks.size
        self._cuts = [
            self._model[begin : begin + parameters.bucket_blocks]
            for begin in range(0, parameters.blocks, parameters.bucket_blocks)
        ]
        # The model as each stream uses it: shared weights, its own gradients.
        self._replicas = [
            Chain(self._cuts, self._inputs[0], 1, len(self._cuts)) for _ in range(computing)
        ]
        self.sums = [
            torch.empty(bucket.numel(), device=setup.device.torch_device)
            for bucket in self._replicas[0].buckets
        ]

    def iterate(self, streams: Sequence[Stream]) -> None:
        """Enqueue one step in rounds of one microbatch per stream, bucket by bucket."""
        *computing, reducing = streams
        free: dict[tuple[int, int], Event] = {}
        for begin in range(0, len(self._inputs), len(computing)):
            in_round = range(min(len(computing), len(self._inputs) - begin))
            for place in in_round:
                number = begin + place
                computing[place].launch(self._forward, place, number, tag=f"forward#{number}")
            for bucket in reversed(range(len(self._cuts))):
                for place in in_round:
                    stream, number = computing[place], begin + place
                    # Where the stream's last microbatch left its gradients for the reduction.
                    if (place, bucket) in free:
                        stream.wait(free[place, bucket])
                    stream.launch(self._replicas[place].backward, bucket, tag=f"backward#{number}")
                    reducing.wait(stream.record())
                    of_microbatch = f"reduce#{number}"
                    reducing.launch(self._reduce, place, bucket, number == 0, tag=of_microbatch)
                    free[place, bucket] = reducing.record()
        end_step(streams)

    def work_per_iteration(self) -> dict[str, float]:
        """Return the samples of all ranks' microbatches."""
        return {"samples": float(self._samples)}

    def check(self, run_once: Callable[[], None]) -> None:
        """Compare each block's gradient with that of all ranks' microbatches as one batch."""
        for replica in self._replicas:
            replica.poison()
        poison(*self.sums)
        run_once()
        inputs, target = torch.cat(self._inputs).float(), torch.cat(self._targets)
        model = [copy.deepcopy(block).float() for block in self._model]
        expected = plain_gradients(model, inputs, target, self._samples)
        for gradient in expected:
            all_reduce(gradient, self._group)
        require_gradients(self.sums, self._cuts, expected, _TOLERANCES[self.parameters.dtype])

    def _forward(self, place: int, microbatch: int) -> None:
        inputs, target = self._inputs[microbatch], self._targets[microbatch]
        self._replicas[place].record(inputs, target, self._samples)

    def _reduce(self, place: int, bucket: int, first: bool) -> None:
        gradients, total = self._replicas[place].buckets[bucket], self.sums[bucket]
        all_reduce(gradients, self._group)
        if first:
            total.copy_(gradients)
        else:
            total.add_(gradients)
