"""A transformer split into segments, whose forwards and backwards are launched one by one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import nn

from pytest_hwqueue.devices.protocol import Stream
from pytest_hwqueue.workloads.matmul import set_precision
from pytest_hwqueue.workloads.workload import Parameters, Setup

# fp16 is left out: its gradients need a scaled loss.
TrainingType = Literal["fp32", "tf32", "bf16"]


class TransformerParameters(Parameters):
    """Sizes of the transformer and its inputs."""

    hidden: int = Field(1024, ge=1, description="features of a token")
    heads: int = Field(16, ge=1, description="attention heads; must divide hidden")
    sequence: int = Field(512, ge=1, description="tokens of a sample")
    batch: int = Field(4, ge=1, description="samples in one forward")
    dtype: TrainingType = Field("fp32", description="numeric format; sums of gradients are fp32")

    @field_validator("heads")
    @classmethod
    def _divides_hidden(cls, heads: int, found: ValidationInfo) -> int:
        hidden = found.data.get("hidden", heads)
        if hidden % heads:
            raise ValueError(f"must divide hidden={hidden}")
        return heads


def make_blocks(count: int, parameters: TransformerParameters, setup: Setup) -> list[nn.Module]:
    """Create encoder blocks with weights drawn on the host from the seed, the same everywhere.

    Leaves torch's global random state unchanged.
    """
    set_precision(parameters.dtype)
    hidden = parameters.hidden
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setup.seed)
        blocks = [
            nn.TransformerEncoderLayer(
                hidden, parameters.heads, 4 * hidden, dropout=0.0, batch_first=True,
                # Not ReLU: at its kink the last bit of a sum decides on a whole gradient.
                activation="gelu", norm_first=True,
            )
            for _ in range(count)
        ]  # fmt: skip
    torch_type = torch.bfloat16 if parameters.dtype == "bf16" else torch.float32
    place = setup.device.torch_device
    return [_with_leaves(block, lambda leaf: leaf.to(place, torch_type)) for block in blocks]


def random_batch(
    blocks: Sequence[nn.Module],
    parameters: TransformerParameters,
    setup: Setup,
    generator: torch.Generator,
) -> torch.Tensor:
    """Draw (batch, sequence, hidden) in the blocks' numeric format."""
    shape = (parameters.batch, parameters.sequence, parameters.hidden)
    drawn = torch.randn(shape, generator=generator, device=setup.device.torch_device)
    return drawn.to(next(blocks[0].parameters()).dtype)


def squared_error(output: torch.Tensor, target: torch.Tensor, samples: int) -> torch.Tensor:
    """Return the squared error, a scalar in fp32: the mean over features, over ``samples``.

    Partial batches' errors add up to that of the whole batch if ``samples`` is the whole's.
    """
    difference = output.float() - target.float()
    return difference.square().sum() / (samples * output[0].numel())


def plain_gradients(
    blocks: Sequence[nn.Module], inputs: torch.Tensor, target: torch.Tensor, samples: int
) -> list[torch.Tensor]:
    """Return each block's gradient, flat and in fp32, by one plain backward."""
    leaves = [list(block.parameters()) for block in blocks]
    loss = squared_error(_through(blocks, inputs), target, samples)
    gradients = iter(torch.autograd.grad(loss, [leaf for own in leaves for leaf in own]))
    return [torch.cat([next(gradients).reshape(-1) for _ in own]).float() for own in leaves]


def split_by_block(
    buckets: Sequence[torch.Tensor], cuts: Sequence[Sequence[nn.Module]]
) -> list[torch.Tensor]:
    """Split the gradients of segments into those of their blocks, which are all of one size."""
    pairs = zip(buckets, cuts, strict=True)
    return [of_block for bucket, cut in pairs for of_block in bucket.chunk(len(cut))]


def end_step(streams: Sequence[Stream]) -> None:
    """Make all later work wait for all earlier work, as after an optimiser's step."""
    first, *others = streams
    for stream in others:
        first.wait(stream.record())
    ended = first.record()
    for stream in others:
        stream.wait(ended)


class Segment:
    """Consecutive blocks, for one stream at a time.

    Autograd runs a backward on the stream of its forward, and all graphs with the same leaf meet in
    one node, on one stream. So a segment has its own leaves, which share the blocks' memory.

    Attributes:
        size: elements of all its gradients.
        result: computed by `record`, with its graph; None after `backward`.

    """

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        self._blocks = [_with_leaves(block, lambda leaf: leaf) for block in blocks]
        self._leaves = [leaf for block in self._blocks for leaf in block.parameters()]
        self._inputs: torch.Tensor | None = None
        self.size = sum(leaf.numel() for leaf in self._leaves)
        self.result: torch.Tensor | None = None

    def run(self, inputs: torch.Tensor, out: torch.Tensor) -> None:
        """Enqueue the forward alone; keep only the result, in ``out``."""
        with torch.no_grad():
            out.copy_(_through(self._blocks, inputs))

    def record(self, inputs: torch.Tensor) -> None:
        """Enqueue the forward and keep its graph for `backward`."""
        self._inputs = inputs.detach().requires_grad_()
        self.result = _through(self._blocks, self._inputs)

    def record_loss(self, inputs: torch.Tensor, target: torch.Tensor, samples: int) -> None:
        """Enqueue the forward and then `squared_error`; keep the graph of both."""
        self.record(inputs)
        assert self.result is not None
        self.result = squared_error(self.result, target, samples)

    def backward(
        self, slope: torch.Tensor | None, slope_before: torch.Tensor | None, bucket: torch.Tensor
    ) -> None:
        """Enqueue the backward of the recorded forward, and release its graph.

        Args:
            slope: derivative of the loss by the result; None after `record_loss`.
            slope_before: output: derivative of the loss by the inputs; None if not needed.
            bucket: output: (size,), the gradients concatenated.

        """
        assert self.result is not None
        assert self._inputs is not None
        before, *gradients = torch.autograd.grad(self.result, [self._inputs, *self._leaves], slope)
        self.result = self._inputs = None
        if slope_before is not None:
            slope_before.copy_(before)
        torch.cat([gradient.reshape(-1) for gradient in gradients], out=bucket)


def _with_leaves(block: nn.Module, changed: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    """Copy a block with new leaves, which ``changed`` makes from the block's."""
    leaves = {id(leaf): nn.Parameter(changed(leaf.detach())) for leaf in block.parameters()}
    return copy.deepcopy(block, leaves)


def _through(blocks: Sequence[nn.Module], inputs: torch.Tensor) -> torch.Tensor:
    for block in blocks:
        inputs = block(inputs)
    return inputs
