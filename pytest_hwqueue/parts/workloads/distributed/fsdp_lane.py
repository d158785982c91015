"""One model under `fully_shard`, and the launches of its training step, phase by phase."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate

from pytest_hwqueue.parts.devices.protocol import Event, Stream
from pytest_hwqueue.parts.workloads.distributed.collectives import reduce_scatter
from pytest_hwqueue.parts.workloads.distributed.segments import (
    ParallelBlock,
    RankGrid,
    parallelize,
    squared_error,
)
from pytest_hwqueue.parts.workloads.numerics import poison

# Gradients of so many blocks may be on their way to the reduction: of one while the next computes.
_BUCKETS = 2

# Either pass gathers a block anew.
Pass = Literal["forward", "backward"]


@dataclass(frozen=True)
class LaneStreams:
    """A lane's streams by their tasks.

    Attributes:
        gather: gathers blocks, and frees them.
        compute: forward and backward.
        reduce: reduce gradients, taking the blocks in turn.
        update: the optimiser's steps; the first of ``reduce`` if there are three streams.

    """

    gather: Stream
    compute: Stream
    reduce: Sequence[Stream]
    update: Stream

    @classmethod
    def of(cls, streams: Sequence[Stream]) -> LaneStreams:
        """Assign the tasks to three to five streams."""
        gather, compute, reduce, *more = streams
        return cls(gather, compute, [reduce, *more[1:]], more[0] if more else reduce)


class FsdpLane:
    """A model, its batch, and the launches of one training step.

    By default, FSDP launches a block's collectives from hooks around its forward and backward, on
    streams that it creates itself; on a CPU these do nothing, and everything would run in one
    thread. Collectives can be passed to it instead, but are not called with one rank. So its hooks
    are not used, and the parts it offers as calls are launched phase by phase.

    - FSDP's own: the shards; `unshard`, which is copy-in, all-gather and copy-out, all on the
      stream it is launched on, and with one rank a copy; `reshard`, which frees what was gathered.
    - Done here as FSDP does it, with the same operations: gradients are copied into a bucket, and
      the bucket is reduce-scattered into those of the shards. With one rank that is a copy.
    - DTensor's own: with tensor parallelism, all-reduces within a block. The computing stream waits
      for them; they run where torch puts them.

    A block is gathered while the previous one computes, and freed after its computation by the
    stream that gathered it, which owns the memory: two exist at a time. The last one stays for the
    backward, which starts with it.

    Args:
        number: identifies the lane and its steps.
        blocks: of the model.
        grid: of the ranks.
        streams: of the lane.
        inputs: (batch, sequence, hidden), of this rank's row.
        target: likewise.
        learning_rate: of the optimiser.

    Attributes:
        blocks: each sharded by itself; outside a step their parameters are DTensors.

    """

    def __init__(
        self,
        number: int,
        blocks: Sequence[ParallelBlock],
        grid: RankGrid,
        streams: int,
        batch: tuple[torch.Tensor, torch.Tensor],
        learning_rate: float,
    ) -> None:
        inputs, self._target = batch
        self._number = number
        self.blocks = blocks
        self._inputs = inputs
        self._samples = grid.data_ranks * len(inputs)
        mesh = grid.mesh(inputs.device.type)
        self.sharded = [_Sharded(block, mesh, inputs.dtype, learning_rate) for block in blocks]
        self._reduce_groups = [grid.data_group() for _ in range(max(1, streams - 3))]
        # Their elements by the rank that gets their sum.
        shape = (grid.data_ranks, self.sharded[0].gradients.numel())
        self._buckets = [inputs.new_empty(shape, dtype=torch.float32) for _ in range(_BUCKETS)]
        # By block, from its forward to its backward: what it was given, and what it made of that.
        self._graphs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._slope: torch.Tensor | None = None

    def enqueue(self, streams: Sequence[Stream]) -> Iterator[None]:
        """Enqueue one step except for `end_step`; after each block, other lanes may have a turn."""
        tasks = LaneStreams.of(streams)
        yield from self._enqueue_forward(tasks.gather, tasks.compute)
        yield from self._enqueue_backward(tasks)

    def _enqueue_forward(self, gather: Stream, compute: Stream) -> Iterator[None]:
        last = len(self.blocks) - 1
        gathered = self._gather(gather, 0, "forward")
        for number in range(len(self.blocks)):
            compute.wait(gathered)
            if number < last:
                gathered = self._gather(gather, number + 1, "forward")
            compute.launch(self._forward, number, tag=self._tag("compute"))
            if number < last:
                gather.wait(compute.record())
                gather.launch(self._free, number, "forward")
            yield

    def _enqueue_backward(self, streams: LaneStreams) -> Iterator[None]:
        gather, compute, update = streams.gather, streams.compute, streams.update
        gathered: Event | None = None
        reduced: dict[int, Event] = {}
        for number in reversed(range(len(self.blocks))):
            if gathered is not None:
                compute.wait(gathered)
            if number > 0:
                gathered = self._gather(gather, number - 1, "backward")
            if number + _BUCKETS in reduced:
                compute.wait(reduced[number + _BUCKETS])
            compute.launch(self._backward, number, tag=self._tag("compute"))
            computed = compute.record()
            gather.wait(computed)
            gather.launch(self._free, number, "backward")
            turn = number % len(streams.reduce)
            reduce = streams.reduce[turn]
            reduce.wait(computed)
            reduce.launch(self._reduce, number, turn, tag=self._tag("reduce"))
            reduced[number] = reduce.record()
            if update is not reduce:
                update.wait(reduced[number])
            update.launch(self.sharded[number].optimiser.step, tag=self._tag(""))
            yield

    def poison(self) -> None:
        """Make what is read before it was written fail the check."""
        poison(*self._buckets, *(sharded.gradients for sharded in self.sharded))

    def parameters(self) -> list[torch.Tensor]:
        """Return each block's whole parameters, flat and in fp32; all ranks must take part."""
        return [_flat(block.parameters()) for block in self.blocks]

    def gradients(self) -> list[torch.Tensor]:
        """Return the last step's gradients in the same form."""
        return [_flat(sharded.whole_gradients()) for sharded in self.sharded]

    def _gather(self, stream: Stream, number: int, of: Pass) -> Event:
        stream.launch(self._unshard, number, of, tag=self._tag("all_gather"))
        return stream.record()

    def _tag(self, name: str) -> str:
        """Return the tag of a launch in this lane's step."""
        return f"{name}#{self._number}"

    # What these do depends on what was done before, which devices that look at a launch once cannot
    # see: so they receive which pass they are in.

    def _unshard(self, number: int, _: Pass) -> None:
        self.sharded[number].fsdp.unshard()

    def _free(self, number: int, _: Pass) -> None:
        self.sharded[number].fsdp.reshard()

    def _forward(self, number: int) -> None:
        inputs = self._graphs[number - 1][1] if number > 0 else self._inputs
        inputs = inputs.detach().requires_grad_(number > 0)
        # Not by calling the block, which would run FSDP's hooks.
        result = self.blocks[number].forward(inputs)
        if number == len(self.blocks) - 1:
            result = squared_error(result, self._target, self._samples)
        self._graphs[number] = inputs, result

    def _backward(self, number: int) -> None:
        inputs, result = self._graphs.pop(number)
        parameters = list(self.blocks[number].parameters())
        wanted = [*parameters, inputs] if number > 0 else parameters
        # None for the last block, which ends in the loss.
        found = torch.autograd.grad(result, wanted, self._slope)
        self._slope = found[-1] if number > 0 else None
        pairs = zip(found[: len(parameters)], parameters, strict=True)
        gradients = [_local_gradient(gradient, parameter) for gradient, parameter in pairs]
        # As FSDP's copy-in: each is cut into the ranks' parts, with zeros up to equal sizes.
        bucket = self._buckets[number % _BUCKETS]
        torch._chunk_cat(gradients, dim=0, num_chunks=len(bucket), out=bucket)

    def _reduce(self, number: int, turn: int) -> None:
        bucket = self._buckets[number % _BUCKETS]
        gradients, group = self.sharded[number].gradients, self._reduce_groups[turn]
        reduce_scatter(gradients, bucket.view(-1), group=group)


class _Sharded:
    """A block under `fully_shard`, and the optimiser of this rank's shards.

    Attributes:
        fsdp: the block.
        gradients: (elements,), fp32, the shards' gradients concatenated; written by the reduction.
        optimiser: of the shards; it reads ``gradients``.

    """

    def __init__(
        self, block: ParallelBlock, mesh: DeviceMesh, dtype: torch.dtype, learning_rate: float
    ) -> None:
        if mesh.ndim > 1:
            parallelize(block, mesh["tensor"])
        data = mesh["data"]
        fully_shard(block, mesh=data, mp_policy=MixedPrecisionPolicy(param_dtype=dtype))
        self._block = block
        self.fsdp = cast(FSDPModule, block)
        # Once here: FSDP may move the shards at the first time.
        self.fsdp.unshard()
        shapes = [_local(parameter).shape for parameter in block.parameters()]
        self.fsdp.reshard()
        shards = [_local(parameter) for parameter in block.parameters()]
        # Of equal size on all ranks; the last ranks' shards may fill less of it, or nothing.
        sizes = [-(-shape[0] // data.size()) * shape[1:].numel() for shape in shapes]
        self.gradients = shards[0].new_empty(sum(sizes))
        parts = zip(shards, self.gradients.split(sizes), strict=True)
        self._parts = [part[: shard.numel()].view(shard.shape) for shard, part in parts]
        # An elementwise step needs no DTensors: these share the shards' memory.
        weights = [torch.nn.Parameter(shard) for shard in shards]
        for weight, part in zip(weights, self._parts, strict=True):
            weight.grad = part
        self.optimiser = torch.optim.SGD(weights, lr=learning_rate, foreach=True)

    def whole_gradients(self) -> Iterator[torch.Tensor]:
        """Yield each parameter's gradient, sharded over the ranks like the parameter."""
        for parameter, part in zip(self._block.parameters(), self._parts, strict=True):
            gradient = torch.empty_like(parameter.detach())
            _local(gradient).copy_(part)
            yield gradient


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a tensor, detached and in the same memory."""
    part = tensor.detach()
    return part.to_local() if isinstance(part, DTensor) else part


def _local_gradient(gradient: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a gradient, sharded over the ranks like its parameter."""
    if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
        gradient = gradient.redistribute(placements=parameter.placements)
    return _local(gradient)


def _flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([_whole(tensor.detach()).reshape(-1) for tensor in tensors])


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """Gather a tensor from all ranks that have a part of it."""
    if not isinstance(tensor, DTensor):
        return tensor
    # FSDP's cut first, which is the finer one; both at once is a case that torch warns of.
    return tensor.redistribute(placements=[Replicate(), *tensor.placements[1:]]).full_tensor()
