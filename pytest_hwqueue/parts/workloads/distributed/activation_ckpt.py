"""Activation checkpointing: recomputing a segment alongside the next segment's backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from pydantic import Field
from torch import nn

from pytest_hwqueue.data.errors import NotApplicable
from pytest_hwqueue.parts.devices.protocol import Event, Stream
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
from pytest_hwqueue.parts.workloads.workload import PrimaryLatency, Setup, Where, Workload

# Relative error of a block's gradient. The reference does the same products in the same format; a
# library may sum them in another order, and attention's backward adds in no fixed one.
_TOLERANCES = {"fp32": 1e-5, "tf32": 2e-3, "bf16": 1e-2}


class CheckpointParameters(TransformerParameters):
    """Sizes of the transformer, and how it is cut."""

    blocks: int = Field(3, ge=2, description="transformer blocks")
    every: int = Field(1, ge=1, description="blocks between two checkpoints")


class ActivationCheckpoint(Workload, declared="activation_ckpt"):
    """Each pair of streams trains on its own batch; segments take the pair's streams in turn.

    In the backward pass, a pair recomputes a segment on one stream while the next segment does its
    backward on the other; no more than two segments' activations are kept. As in torch's
    `checkpoint_sequential`, the last segment's are kept from the forward. With an odd number of
    streams one batch has three. Batches' gradients are added up in a fixed order; a batch's step
    ends when its own have been added.
    """

    primary = PrimaryLatency(
        "step",
        "request",
        "a batch's forward and backward, until its gradients have been added",
        alike=True,
    )
    parameters: CheckpointParameters
    sizes = TRANSFORMER_SIZES
    gradients = True

    def require_applicable(self, where: Where) -> None:
        """Refuse fewer segments than a lane has streams to run them on."""
        parameters = self.parameters
        segments = -(-parameters.blocks // parameters.every)
        # The last lane has the odd stream.
        needed = 2 + where.streams % 2
        if segments < needed:
            raise NotApplicable(
                f"activation_ckpt.every={parameters.every} cuts {parameters.blocks} blocks into "
                f"{segments} segments, and {where.streams} streams need at least {needed}"
            )

    def setup(self, setup: Setup) -> None:
        """Create the blocks, the batches, and the buffers between segments."""
        self.require_applicable(setup.where)
        parameters = self.parameters
        lanes = setup.streams // 2
        ends = [*range(0, parameters.blocks, parameters.every), parameters.blocks]
        # Stream indices of each lane; the last lane takes an odd stream too.
        self._lane_streams = [[2 * lane, 2 * lane + 1] for lane in range(lanes)]
        self._lane_streams[-1] = list(range(2 * lanes - 2, setup.streams))
        self._model = make_blocks(parameters.blocks, parameters, setup)
        generator = setup.generator()
        self._cuts = [self._model[begin:end] for begin, end in pairwise(ends)]
        self.lanes = [
            _Lane(self._cuts, len(streams), lanes * parameters.batch,
                  random_batch(self._model, parameters, setup, generator),
                  random_batch(self._model, parameters, setup, generator))
            for streams in self._lane_streams
        ]  # fmt: skip
        self.sums = [
            torch.empty(segment.size, device=setup.device.torch_device)
            for segment in self.lanes[0].segments
        ]

    def iterate(self, streams: Sequence[Stream]) -> None:
        """Enqueue one step, segment by segment, each on all lanes."""
        turns = []
        for indices in self._lane_streams:
            own = [streams[index] for index in indices]
            turns.append([own[segment % len(own)] for segment in range(len(self._cuts))])
        self._go_forward(turns)
        self._go_back(turns)
        end_step(streams)

    def work_per_iteration(self) -> dict[str, float]:
        """Return the samples of all lanes."""
        return {"samples": float(len(self.lanes) * self.parameters.batch)}

    def check(self, run_once: Callable[[], None]) -> None:
        """Compare each block's gradient with one without checkpoints and other streams."""
        for lane in self.lanes:
            lane.poison()
        poison(*self.sums)
        run_once()
        samples = sum(lane.inputs.shape[0] for lane in self.lanes)
        of_lanes = [
            plain_gradients(self._model, lane.inputs, lane.target, samples) for lane in self.lanes
        ]
        expected = [torch.stack(of_block).sum(0) for of_block in zip(*of_lanes, strict=True)]
        require_gradients(self.sums, self._cuts, expected, _TOLERANCES[self.parameters.dtype])

    def _go_forward(self, turns: Sequence[Sequence[Stream]]) -> None:
        last = len(self._cuts) - 1
        for segment in range(last):
            for number, (lane, of_lane) in enumerate(zip(self.lanes, turns, strict=True)):
                of_lane[segment].launch(lane.forward, segment, tag=f"forward#{number}")
                of_lane[segment + 1].wait(of_lane[segment].record())
        for number, (lane, of_lane) in enumerate(zip(self.lanes, turns, strict=True)):
            of_lane[last].launch(lane.forward_last, tag=f"forward#{number}")

    def _go_back(self, turns: Sequence[Sequence[Stream]]) -> None:
        # What each lane has done last: its forward, or the backward of the segment behind.
        reached = [of_lane[-1].record() for of_lane in turns]
        for segment in reversed(range(len(self._cuts))):
            added: Event | None = None
            for number, (lane, of_lane) in enumerate(zip(self.lanes, turns, strict=True)):
                stream = of_lane[segment]
                if segment > 0:
                    # Alongside the backward enqueued next; the one before it has let its graph go.
                    of_lane[segment - 1].wait(reached[number])
                    again = f"recompute#{number}"
                    of_lane[segment - 1].launch(lane.recompute, segment - 1, tag=again)
                stream.wait(reached[number])
                stream.launch(lane.backward, segment, tag=f"backward#{number}")
                reached[number] = stream.record()
                # Lanes add one after the other; the first overwrites what the last step left.
                if added is not None:
                    stream.wait(added)
                stream.launch(self._add, number, segment, tag=f"#{number}")
                added = stream.record()

    def _add(self, number: int, segment: int) -> None:
        total, bucket = self.sums[segment], self.lanes[number].buckets[segment]
        if number == 0:
            total.copy_(bucket)
        else:
            total.add_(bucket)


class _Lane(Chain):
    """One batch's way through the segments and back.

    Attributes:
        inputs: (batch, sequence, hidden).
        target: likewise.
        samples: of all lanes, over which the loss is a mean.

    """

    def __init__(
        self,
        cuts: Sequence[Sequence[nn.Module]],
        streams: int,
        samples: int,
        inputs: torch.Tensor,
        target: torch.Tensor,
    ) -> None:
        super().__init__(cuts, inputs, len(cuts) - 1, streams)
        self.inputs = inputs
        self.target = target
        self.samples = samples
        # What each segment is given.
        self._given = [inputs, *(torch.empty_like(inputs) for _ in cuts[1:])]

    def forward(self, segment: int) -> None:
        """Compute a segment and keep only its output for the next."""
        self.segments[segment].run(self._given[segment], self._given[segment + 1])

    def forward_last(self) -> None:
        """Compute the last segment and the loss, with their graph."""
        self.segments[-1].record_loss(self._given[-1], self.target, self.samples)

    def recompute(self, segment: int) -> None:
        """Compute a segment once more, with its graph."""
        self.segments[segment].record(self._given[segment])

    def poison(self) -> None:
        """Make reading before writing fail the check."""
        super().poison()
        poison(*self._given[1:])
