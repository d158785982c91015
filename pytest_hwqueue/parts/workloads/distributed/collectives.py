"""Collectives and exchanges between ranks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, cast

import torch
import torch.distributed as dist

from pytest_hwqueue.data.errors import CheckFailed
from pytest_hwqueue.parts.workloads.numerics import poison
from pytest_hwqueue.parts.workloads.workload import Setup

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]


class _Exchanging(Protocol):
    def __call__(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        *,
        group: dist.ProcessGroup | None = None,
        async_op: bool = False,
    ) -> dist.Work | None: ...


# Output and input are contiguous and do not overlap; no group is the default group; with async_op
# they return at once a handle to wait for. torch 2.13 has renamed the first two; the old names warn
# there, the new ones are not in 2.6.

# Concatenates the ranks' inputs (elements,) in the output (ranks × elements,).
all_gather: _Exchanging = getattr(dist, "all_gather_single", None) or cast(
    "_Exchanging", dist.all_gather_into_tensor
)
# Writes this rank's part (elements,) of the sum over ranks of the inputs (ranks × elements,).
reduce_scatter: _Exchanging = getattr(dist, "reduce_scatter_single", None) or cast(
    "_Exchanging", dist.reduce_scatter_tensor
)
# Sends part r of the input, cut along its first dimension, to rank r, and writes what rank r sends
# to part r of the output.
all_to_all: _Exchanging = dist.all_to_all_single


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
        return all_gather(torch.empty_like(buffer), buffer, group=group, async_op=async_op)
    work: dist.Work | None = dist.all_reduce(buffer, group=group, async_op=async_op)
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


# A prime, so that no part of an input begins like another.
_DRAWN = 1_000_003


@dataclass(eq=False)
class Exchange:
    """Collectives over one group, each with its own buffers.

    Inputs are drawn from the seed: -1, 0 and 1, whose sums over ranks every format holds exactly.
    So a result can be compared bit by bit with one computed from all ranks' inputs. In place, sums
    of sums grow from iteration to iteration until they are infinite: adding those takes just as
    long, and the check begins with the inputs again. All-reduce over one rank is a copy, by
    gathering.

    Attributes:
        collective: which one.
        count: how many of them `run` enqueues.
        elements: of the whole array, as nccl-tests count it; a multiple of the members.
        dtype: of the elements.
        members: the group's ranks, ascending.
        group: a communicator that nothing else uses.
        setup: of the workload.
        name: distinguishes its inputs from others with the same seed.
        async_op: start all collectives before waiting for any.

    """

    collective: Collective
    count: int
    elements: int
    dtype: torch.dtype
    members: Sequence[int]
    group: dist.ProcessGroup | None
    setup: Setup
    name: str
    async_op: bool

    def __post_init__(self) -> None:
        """Make the buffers."""
        others = {"reduce_scatter": reduce_scatter, "all_to_all": all_to_all}
        self._exchange = others.get(self.collective, all_gather)
        part = self.elements // len(self.members)
        own = self.setup.ranks.rank
        self._place = self.members.index(own)
        self.inputs = [self._draw(own, number) for number in range(self.count)]
        # In place, the sum over one rank is what was there before: nobody would notice its absence.
        self._in_place = self.collective == "all_reduce" and len(self.members) > 1
        if self._in_place:
            self.outputs = self.inputs
        else:
            size = part if self.collective == "reduce_scatter" else self.elements
            self.outputs = [each.new_empty(size) for each in self.inputs]

    def run(self) -> None:
        """Enqueue all collectives on the current stream, and its wait for their ends."""
        for work in [self._start(*each) for each in zip(self.outputs, self.inputs, strict=True)]:
            if work is not None:
                work.wait()

    def reset(self) -> None:
        """Spoil results, so that one that was never written fails the check."""
        own = self.setup.ranks.rank
        for number, output in enumerate(self.outputs):
            if self._in_place:
                output.copy_(self._draw(own, number))
            else:
                poison(output)

    def check(self) -> None:
        """Compare every result; raise CheckFailed if one differs."""
        for number, output in enumerate(self.outputs):
            expected = self._expected(number)
            wrong = int((output != expected).sum())
            if wrong:
                raise CheckFailed(
                    f"{self.name}: {wrong} of {expected.numel()} elements that {self.collective} "
                    f"{number} gave rank {self.setup.ranks.rank} differ from those computed from "
                    f"the inputs of ranks {list(self.members)}"
                )

    def _start(self, output: torch.Tensor, given: torch.Tensor) -> dist.Work | None:
        if self._in_place:
            return all_reduce(output, self.group, async_op=self.async_op)
        return self._exchange(output, given, group=self.group, async_op=self.async_op)

    def _draw(self, rank: int, number: int) -> torch.Tensor:
        """Return a rank's input of a collective."""
        size = self.elements
        if self.collective == "all_gather":
            size //= len(self.members)
        # On the host, where all ranks draw the same whatever their accelerators; then repeated.
        mixed = random.Random(f"{self.setup.seed} {self.name} {rank} {number}").getrandbits(62)
        generator = torch.Generator().manual_seed(mixed)
        drawn = torch.randint(-1, 2, (min(size, _DRAWN),), generator=generator, dtype=torch.int8)
        drawn = drawn.to(self.setup.device.torch_device, self.dtype)
        return drawn.repeat(-(-size // drawn.numel()))[:size]

    def _expected(self, number: int) -> torch.Tensor:
        collective, count, place = self.collective, len(self.members), self._place
        inputs = (self._draw(rank, number) for rank in self.members)
        if collective == "all_gather":
            return torch.cat(list(inputs))
        if collective == "all_to_all":
            return torch.cat([each.chunk(count)[place] for each in inputs])
        total = next(inputs)
        for each in inputs:
            total += each
        return total.chunk(count)[place] if collective == "reduce_scatter" else total
