"""Collectives over flat buffers under torch 2.6 to 2.13, and what their bandwidths count."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]

# torch 2.13 has renamed these two; the old names warn there, the new ones are not in 2.6.
_gather_into_one: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter_of_one: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_reduce(
    buffer: torch.Tensor, group: dist.ProcessGroup | None = None, *, async_op: bool = False
) -> dist.Work | None:
    """Replace ``buffer`` by its sum over the group's ranks.

    In place there is nothing to do for one rank, and libraries do nothing. To give its stream work,
    a group of one gathers the buffer into a temporary one instead: also a collective, which copies
    all bytes once.

    Args:
        buffer: contiguous, any shape, the same on all ranks.
        group: None is the default group.
        async_op: return at once a handle to wait for.

    """
    if dist.get_world_size(group) == 1:
        return all_gather(torch.empty_like(buffer), buffer, group, async_op=async_op)
    work: dist.Work | None = dist.all_reduce(buffer, group=group, async_op=async_op)
    return work


def all_gather(
    output: torch.Tensor,
    input: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    async_op: bool = False,
) -> dist.Work | None:
    """Concatenate the ranks' inputs in ``output``; a single rank copies its own.

    Args:
        output: (ranks × elements,), contiguous, not overlapping ``input``.
        input: (elements,), contiguous.
        group: None is the default group.
        async_op: return at once a handle to wait for.

    """
    work: dist.Work | None = _gather_into_one(output, input, group=group, async_op=async_op)
    return work


def reduce_scatter(
    output: torch.Tensor,
    input: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    async_op: bool = False,
) -> dist.Work | None:
    """Write this rank's part of the inputs' sum over ranks; a single rank copies its input.

    Args:
        output: (elements,), contiguous, not overlapping ``input``.
        input: (ranks × elements,), contiguous.
        group: None is the default group.
        async_op: return at once a handle to wait for.

    """
    work: dist.Work | None = _scatter_of_one(output, input, group=group, async_op=async_op)
    return work


def all_to_all(
    output: torch.Tensor,
    input: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    async_op: bool = False,
) -> dist.Work | None:
    """Send part r of the input to rank r, and write what rank r sends to part r of the output.

    Args:
        output: contiguous, not overlapping ``input``; its first dimension is what is cut.
        input: the same.
        group: None is the default group.
        async_op: return at once a handle to wait for.

    """
    work: dist.Work | None = dist.all_to_all_single(output, input, group=group, async_op=async_op)
    return work


def bus_factor(collective: Collective, ranks: int) -> float:
    """Return bus bandwidth divided by algorithm bandwidth.

    Algorithm bandwidth is S / t, where S is the size in bytes of the whole array: what one rank
    holds and gets for all_reduce, what it gets of all ranks for all_gather, what it gives to all
    ranks for reduce_scatter and all_to_all. Bus bandwidth is what each rank must at least send and
    receive in that time, whatever the number of ranks: it is comparable with the hardware's peak.
    With one rank nothing crosses a bus, and the factor is 0.

    Source: nccl-tests, doc/PERFORMANCE.md, "Bus Bandwidth", without in-network reduction.
    """
    share = (ranks - 1) / ranks
    return 2 * share if collective == "all_reduce" else share
