"""A transformer block that `parallelize_module` and `fully_shard` can split, and their mesh."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


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
