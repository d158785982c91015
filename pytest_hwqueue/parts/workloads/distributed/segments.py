"""Segments of a transformer, whole or split over ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from pydantic import Field, ValidationInfo, field_validator
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from pytest_hwqueue.parts.devices.protocol import Stream
from pytest_hwqueue.parts.workloads.numerics import poison, require_close, set_precision
from pytest_hwqueue.parts.workloads.workload import TORCH_SPELLINGS, Parameters, Setup


class ParallelBlock(nn.Module):
    """Attention and a feed-forward network, each after its norm, with a residual connection.

    Queries, keys and values have separate matrices: tensor parallelism gives each rank whole heads.
    """

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self._head = hidden // heads
        self.attention_norm = nn.LayerNorm(hidden, bias=False)
        self.queries = nn.Linear(hidden, hidden, bias=False)
        self.keys = nn.Linear(hidden, hidden, bias=False)
        self.values = nn.Linear(hidden, hidden, bias=False)
        self.attended = nn.Linear(hidden, hidden, bias=False)
        self.inner_norm = nn.LayerNorm(hidden, bias=False)
        self.up = nn.Linear(hidden, 4 * hidden, bias=False)
        self.down = nn.Linear(4 * hidden, hidden, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map (batch, sequence, hidden) to the same shape."""
        normed = self.attention_norm(inputs)
        queries, keys, values = (
            # As many heads as this rank has.
            each(normed).unflatten(-1, (-1, self._head)).transpose(1, 2)
            for each in (self.queries, self.keys, self.values)
        )
        attended = F.scaled_dot_product_attention(queries, keys, values)
        inner = inputs + self.attended(attended.transpose(1, 2).flatten(2))
        result: torch.Tensor = inner + self.down(F.gelu(self.up(self.inner_norm(inner))))
        return result


@dataclass(frozen=True)
class RankGrid:
    """Ranks in rows: a row has the same data, and shares each layer; a column shards parameters.

    Attributes:
        data_ranks: rows.
        tensor_ranks: in a row, which are neighbours.

    """

    data_ranks: int
    tensor_ranks: int

    def data_group(self) -> dist.ProcessGroup:
        """Create a new group of the ranks that shard the same parameters as this one."""
        step, ranks = self.tensor_ranks, self.data_ranks * self.tensor_ranks
        return _own_group([list(range(first, ranks, step)) for first in range(step)])

    def mesh(self, device_type: str) -> DeviceMesh:
        """Create a mesh with its own groups: ``data``, and ``tensor`` if ranks share layers."""
        if self.tensor_ranks == 1:
            return DeviceMesh.from_group(self.data_group(), device_type, mesh_dim_names=("data",))
        rows = [
            [row * self.tensor_ranks + column for column in range(self.tensor_ranks)]
            for row in range(self.data_ranks)
        ]
        groups = [self.data_group(), _own_group(rows)]
        return DeviceMesh.from_group(groups, device_type, rows, mesh_dim_names=("data", "tensor"))


def parallelize(block: ParallelBlock, mesh: DeviceMesh) -> None:
    """Give each rank of ``mesh`` whole heads and a part of the inner features.

    The norms stay whole. DTensor launches an all-reduce after the attention and one at the end.
    """
    # DTensor brings sympy: half a second for whoever only reads what workloads declare.
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    columns, rows = ColwiseParallel, RowwiseParallel
    plan = {
        "queries": columns(), "keys": columns(), "values": columns(), "attended": rows(),
        "up": columns(), "down": rows(),
    }  # fmt: skip
    parallelize_module(block, mesh, plan)


def _own_group(rows: list[list[int]]) -> dist.ProcessGroup:
    """Create a group for each row, as all ranks must; return this rank's group."""
    own: dist.ProcessGroup
    own, _ = dist.new_subgroups_by_enumeration(rows)
    return own


# fp16 is left out: its gradients need a scaled loss.
TrainingType = Annotated[Literal["fp32", "tf32", "bf16"], TORCH_SPELLINGS]


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


TRANSFORMER_SIZES: Mapping[str, Mapping[str, Any]] = {
    "tiny": {"hidden": 32, "heads": 2, "sequence": 16, "batch": 1},
    "small": {"hidden": 256, "heads": 4, "sequence": 128, "batch": 2},
    "full": {"hidden": 1024, "heads": 16, "sequence": 512, "batch": 4, "dtype": "tf32"},
}


def make_blocks(count: int, parameters: TransformerParameters, setup: Setup) -> list[nn.Module]:
    """Create encoder blocks with weights drawn on the host from the seed, the same everywhere.

    Leaves torch's global random state unchanged.
    """
    torch_type, hidden = set_precision(parameters.dtype), parameters.hidden
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


def require_gradients(
    buckets: Sequence[torch.Tensor],
    cuts: Sequence[Sequence[nn.Module]],
    expected: Sequence[torch.Tensor],
    tolerance: float,
) -> None:
    """Split segments' gradients into those of their blocks, all of one size, and compare each.

    Raises:
        CheckFailed: naming the block, and how far it is off.

    """
    pairs = zip(buckets, cuts, strict=True)
    found = [of_block for bucket, cut in pairs for of_block in bucket.chunk(len(cut))]
    for block, (gradient, right) in enumerate(zip(found, expected, strict=True)):
        require_close(f"gradient of block {block}", gradient, right, tolerance)


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


class Chain:
    """Segments one behind the other, whose buffers are used by one stream or lane.

    Attributes:
        segments: with their own leaves.
        buckets: by segment, (size,): where `backward` leaves its gradients.

    """

    def __init__(
        self, cuts: Sequence[Sequence[nn.Module]], like: torch.Tensor, slopes: int, buckets: int
    ) -> None:
        """Make the buffers.

        Args:
            cuts: blocks of each segment.
            like: what a segment is given, (batch, sequence, hidden).
            slopes: buffers for the slopes between segments, which take them in turn.
            buckets: memory for gradients, likewise.

        """
        self.segments = [Segment(cut) for cut in cuts]
        largest = max(segment.size for segment in self.segments)
        self._memory = [like.new_empty(largest) for _ in range(buckets)]
        self._slopes = [torch.empty_like(like) for _ in range(slopes)]
        self.buckets = [
            self._memory[number % buckets][: segment.size]
            for number, segment in enumerate(self.segments)
        ]

    def record(self, inputs: torch.Tensor, target: torch.Tensor, samples: int) -> None:
        """Compute all segments and the loss, with a graph per segment."""
        *before, last = self.segments
        for segment in before:
            segment.record(inputs)
            assert segment.result is not None
            inputs = segment.result
        last.record_loss(inputs, target, samples)

    def backward(self, number: int) -> None:
        """Compute a segment's gradients into its bucket, and the slope for the previous segment."""
        last, slopes = len(self.segments) - 1, self._slopes
        slope = slopes[number % len(slopes)] if number < last else None
        before = slopes[(number - 1) % len(slopes)] if number > 0 else None
        self.segments[number].backward(slope, before, self.buckets[number])

    def poison(self) -> None:
        """Make reading before writing fail the check."""
        poison(*self._memory, *self._slopes)


def _with_leaves(block: nn.Module, changed: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    """Copy a block with new leaves, which ``changed`` makes from the block's."""
    leaves = {id(leaf): nn.Parameter(changed(leaf.detach())) for leaf in block.parameters()}
    return copy.deepcopy(block, leaves)


def _through(blocks: Sequence[nn.Module], inputs: torch.Tensor) -> torch.Tensor:
    for block in blocks:
        inputs = block(inputs)
    return inputs
