"""Gradient accumulation: microbatches on several streams, their gradients reduced on another."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from pydantic import Field
from torch import nn

from pytest_hwqueue.devices.protocol import Event, Stream
from pytest_hwqueue.workloads.distributed.collectives import all_reduce
from pytest_hwqueue.workloads.distributed.segments import (
    TRANSFORMER_SIZES,
    Segment,
    TransformerParameters,
    end_step,
    make_blocks,
    plain_gradients,
    random_batch,
    split_by_block,
)
from pytest_hwqueue.workloads.numerics import poison, require_close
from pytest_hwqueue.workloads.workload import PrimaryLatency, Setup, Workload

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

    description = "microbatches' gradients reduced in buckets while later microbatches run"
    units = ("samples",)
    primary = PrimaryLatency(
        "microbatch",
        "request",
        "a microbatch's forward and backward, until its last bucket has been reduced",
        alike=True,
    )
    tags = ("forward", "backward", "reduce")
    parameter_model = AccumulationParameters
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
        self._replicas = [_Replica(self._cuts, self._inputs[0]) for _ in range(computing)]
        self._sums = [
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
        poison(*self._sums)
        run_once()
        inputs, target = torch.cat(self._inputs).float(), torch.cat(self._targets)
        model = [copy.deepcopy(block).float() for block in self._model]
        expected = plain_gradients(model, inputs, target, self._samples)
        tolerance = _TOLERANCES[self.parameters.dtype]
        for block, gradient in enumerate(split_by_block(self._sums, self._cuts)):
            all_reduce(expected[block], self._group)
            require_close(f"gradient of block {block}", gradient, expected[block], tolerance)

    def _forward(self, place: int, microbatch: int) -> None:
        inputs, target = self._inputs[microbatch], self._targets[microbatch]
        self._replicas[place].forward(inputs, target, self._samples)

    def _reduce(self, place: int, bucket: int, first: bool) -> None:
        gradients, total = self._replicas[place].buckets[bucket], self._sums[bucket]
        all_reduce(gradients, self._group)
        if first:
            total.copy_(gradients)
        else:
            total.add_(gradients)


class _Replica:
    """The model as one stream uses it: shared weights, its own gradients.

    Attributes:
        buckets: the gradients of the current microbatch, (elements,) per bucket.

    """

    def __init__(self, cuts: Sequence[Sequence[nn.Module]], like: torch.Tensor) -> None:
        self._segments = [Segment(cut) for cut in cuts]
        self.buckets = [like.new_empty(segment.size) for segment in self._segments]
        self._slope = torch.empty_like(like)

    def forward(self, inputs: torch.Tensor, target: torch.Tensor, samples: int) -> None:
        """Compute the loss, with a graph per segment."""
        *before, last = self._segments
        for segment in before:
            segment.record(inputs)
            assert segment.result is not None
            inputs = segment.result
        last.record_loss(inputs, target, samples)

    def backward(self, bucket: int) -> None:
        """Compute a bucket's gradients, and the slope for the previous bucket."""
        slope = self._slope if bucket < len(self._segments) - 1 else None
        before = self._slope if bucket > 0 else None
        self._segments[bucket].backward(slope, before, self.buckets[bucket])

    def poison(self) -> None:
        """Make reading before writing fail the check."""
        poison(*self.buckets, self._slope)
