"""A mixture of experts: a gate sends tokens to experts on their own streams, over all ranks."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from pydantic import Field, ValidationInfo, field_validator

from pytest_hwqueue.data.errors import CheckFailed, NotApplicable
from pytest_hwqueue.parts.devices.protocol import Stream
from pytest_hwqueue.parts.workloads.distributed.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
)
from pytest_hwqueue.parts.workloads.numerics import poison, set_precision
from pytest_hwqueue.parts.workloads.workload import (
    MatmulType,
    Parameters,
    PrimaryLatency,
    Setup,
    Where,
    Workload,
)


class Router:
    """Gives each token to the experts that its gate prefers, as far as they have room.

    An expert has room for ``capacity`` tokens of this rank. All first choices are served before
    any second one, and among equal choices tokens are served in their order (GShard, Lepikhin et
    al. 2020, section 2.2). A choice without room is dropped: that expert adds nothing to the token.
    So every shape is fixed, and the host need not know the decisions.

    Attributes:
        tokens: this rank's, (tokens, hidden).
        rows: the tokens followed by a row of zeros, (tokens + 1, hidden).
        chosen: experts of each token, best first, (top_k, tokens).
        weights: softmax over the chosen experts' logits, (top_k, tokens).
        slots: the place of each choice among the slots of all experts, ``expert * capacity + n``,
            or the one after the last slot if it was dropped, (top_k * tokens,).
        sources: the row in each slot, (experts * capacity,); the row of zeros in an empty one.
        dropped: how many choices were dropped, ().

    """

    def __init__(self, tokens: torch.Tensor, gate: torch.Tensor, top_k: int, capacity: int) -> None:
        """Make the buffers.

        Args:
            tokens: (tokens, hidden), in any numeric format.
            gate: weights, (hidden, experts), fp32.
            top_k: experts per token.
            capacity: slots of each expert.

        """
        count, experts = len(tokens), gate.shape[1]
        self._gate = gate
        self._capacity = capacity
        self.rows = torch.cat([tokens, torch.zeros_like(tokens[:1])])
        self.tokens = self.rows[:-1]
        self._experts = torch.arange(experts, device=gate.device)
        self._token_of_choice = torch.arange(count, device=gate.device).repeat(top_k)
        self.chosen = torch.zeros_like(self._token_of_choice).view(top_k, count)
        self.weights = self.rows.new_empty(top_k, count)
        self.slots = torch.zeros_like(self._token_of_choice)
        self._slot_rows = self.slots.new_zeros(experts * capacity + 1)
        self.sources = self._slot_rows[:-1]
        self.dropped = self.slots.new_zeros(())

    def run(self) -> None:
        """Enqueue all decisions on the current stream."""
        top_k, count = self.chosen.shape
        nowhere = len(self.sources)
        logits, chosen = (self.tokens.float() @ self._gate).topk(top_k)
        self.chosen.copy_(chosen.t())
        self.weights.copy_(logits.softmax(dim=1).t())
        choices = self.chosen.view(-1)
        asked = (choices[:, None] == self._experts).cumsum(dim=0)
        places = asked.gather(1, choices[:, None])[:, 0] - 1
        without_room = places >= self._capacity
        torch.sum(without_room, dim=0, out=self.dropped)
        self.slots.copy_(choices * self._capacity + places).masked_fill_(without_room, nowhere)
        self._slot_rows.fill_(count)
        self._slot_rows.scatter_(0, self.slots, self._token_of_choice)

    def poison(self) -> None:
        """Make reading before writing fail the check, but with valid indices."""
        for indices in (self.chosen, self.slots, self._slot_rows):
            indices.zero_()
        poison(self.weights)
        self.dropped.fill_(-1)

    def plain(self, tolerance: float) -> tuple[torch.Tensor, str]:
        """Make the same decisions plainly, after a run.

        If logits are equal up to rounding, either choice is right: so the run's choices are taken
        for what follows, and their logits are compared with the largest ones.

        Args:
            tolerance: largest difference of a chosen expert's logit from the one that should have
                been chosen, relative to the largest of all logits, that rounding explains.

        Returns:
            the weights of each expert in each token's result, (tokens, experts), float64; and what
            is wrong with the run's decisions, empty if nothing is.

        """
        logits = self.tokens.double() @ self._gate.double()
        top_k = len(self.chosen)
        of_chosen = logits.gather(1, self.chosen.t())
        off = float((of_chosen - logits.topk(top_k).values).abs().max() / logits.abs().max())
        asked: Counter[int] = Counter()
        served = []
        for expert in self.chosen.flatten().tolist():
            served.append(asked[expert] < self._capacity)
            asked[expert] += 1
        kept = torch.tensor(served, device=logits.device).view(self.chosen.shape).t()
        wrong, dropped, counted = "", served.count(False), int(self.dropped)
        if not off <= tolerance:
            wrong = (
                f"gate: an expert was chosen whose logit is off by {off:.3g} of the largest, which "
                f"exceeds {tolerance:.3g}"
            )
        elif counted != dropped:
            wrong = f"{dropped} choices find no room, {counted} were counted"
        weights = of_chosen.softmax(dim=1) * kept
        return torch.zeros_like(logits).scatter_(1, self.chosen.t(), weights), wrong


# Error of a token's result, by its norm, relative to the tokens' root mean square, against
# float64. Two products, the weights and the weighted sum are rounded: see graph_subgraphs, which
# has more layers; but here the worst token counts and not the mean.
_TOLERANCES = {"fp32": 1e-5, "tf32": 4e-3, "bf16": 2e-2, "fp16": 4e-3}
# Error of a logit relative to the largest one: the gate computes in fp32, for tf32 in that.
_GATE_TOLERANCES = {"fp32": 1e-5, "tf32": 2e-3, "bf16": 1e-5, "fp16": 1e-5}


class MixtureParameters(Parameters):
    """Sizes of the experts, and of each rank's input to them."""

    experts: int = Field(
        32, ge=8, description="experts over all ranks; each rank has an equal part of them"
    )
    hidden: int = Field(1024, ge=1, description="features of a token")
    inner: int = Field(4096, ge=1, description="features between an expert's two layers")
    tokens: int = Field(2048, ge=1, description="tokens of each rank")
    top_k: int = Field(2, ge=1, description="experts per token; at most all of them")
    capacity_factor: float = Field(
        1.25, gt=0, allow_inf_nan=False,
        description="room of an expert over its share of the tokens if all had the same; what "
        "finds no room is dropped and counted; experts / top_k drops nothing",
    )  # fmt: skip
    dtype: MatmulType = Field("fp32", description="numeric format; the gate's is fp32, or tf32")

    @field_validator("top_k")
    @classmethod
    def _at_most_all(cls, top_k: int, info: ValidationInfo) -> int:
        experts = info.data.get("experts", top_k)
        if top_k > experts:
            raise ValueError(f"must be at most experts={experts}")
        return top_k


class MixtureOfExperts(Workload, declared="moe"):
    """The first stream routes, exchanges and combines; the others run this rank's experts in turn.

    An expert computes on all its slots for each rank's tokens, filled or not, so neither shapes nor
    the amount of work depend on the routing: none need be drawn where tensors have no values. With
    one rank, both exchanges are copies. `Router` decides which choices are dropped;
    ``dropped_choices_percent`` is the share of this rank's.
    """

    primary = PrimaryLatency(
        "layer pass", "iteration", "a batch of tokens: gate, exchanges, experts and weighted sum"
    )
    parameters: MixtureParameters
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {"hidden": 32, "inner": 64, "tokens": 128},
        "small": {"hidden": 256, "inner": 1024, "tokens": 512},
        "full": {"hidden": 1024, "inner": 4096, "tokens": 2048},
    }

    def require_applicable(self, where: Where) -> None:
        """Refuse settings that give ranks unequal parts of the experts, or streams no expert."""
        experts, ranks, computing = self.parameters.experts, where.ranks, where.streams - 1
        own, left = divmod(experts, ranks)
        if left:
            raise NotApplicable(
                f"moe.experts={experts} cannot be spread evenly over {ranks} ranks; "
                f"take a multiple of {ranks}"
            )
        if own < computing:
            raise NotApplicable(
                f"moe.experts={experts} leaves {own} to each of {ranks} ranks, and "
                f"{where.streams} streams need at least {computing}: set "
                f"experts={computing * ranks} or more, or use at most {own + 1} streams"
            )

    def setup(self, setup: Setup) -> None:
        """Create the gate, this rank's tokens and experts; the model is the same for any ranks."""
        self.require_applicable(setup.where)
        parameters, ranks = self.parameters, setup.ranks
        own = parameters.experts // ranks.size
        dtype = set_precision(parameters.dtype)
        self._ranks = ranks
        self._has_values = setup.device.capabilities.has_values
        # Of its own, since the stream that exchanges is the only one that may use it.
        self._group = dist.new_group()
        hidden, top_k = parameters.hidden, parameters.top_k
        share = parameters.tokens * top_k / parameters.experts
        # A token chooses an expert at most once.
        capacity = min(parameters.tokens, math.ceil(parameters.capacity_factor * share))
        tokens = _draw((parameters.tokens, hidden), f"tokens of rank {ranks.rank}", setup)
        tokens = tokens.to(dtype)
        gate = _draw((hidden, parameters.experts), "gate", setup).div_(math.sqrt(hidden))
        self.router = Router(tokens, gate, top_k, capacity)
        # With a slot for what was dropped, which stays zero.
        self._combined = tokens.new_zeros(parameters.experts * capacity + 1, hidden)
        self._returned = self._combined[:-1]
        self._sent, self._received, self._computed = (
            torch.empty_like(self._returned) for _ in range(3)
        )
        self._of_choices = tokens.new_empty(top_k * parameters.tokens, hidden)
        self.output = torch.empty_like(tokens)
        # By rank that has sent the tokens, by this rank's experts, by slot.
        parts = (ranks.size, own, capacity, hidden)
        received, computed = self._received.view(parts), self._computed.view(parts)
        self._experts = [
            _Expert(ranks.rank * own + index, received[:, index], computed[:, index],
                    parameters.inner, setup)
            for index in range(own)
        ]  # fmt: skip

    def iterate(self, streams: Sequence[Stream]) -> None:
        """Enqueue the routing, the experts between two exchanges, and the weighted sum."""
        first, *computing = streams
        first.launch(self.router.run, tag="gate")
        first.launch(self._dispatch)
        dispatched = first.record()
        for stream in computing:
            stream.wait(dispatched)
        for index, expert in enumerate(self._experts):
            computing[index % len(computing)].launch(expert.run, tag="expert")
        # The next iteration's dispatch stands behind these too, and may write over what they read.
        for ended in [stream.record() for stream in computing]:
            first.wait(ended)
        first.launch(self._return)
        first.launch(self._combine, tag="combine")

    def work_per_iteration(self) -> dict[str, float]:
        """Return the tokens of all ranks, whether or not an expert had room for them."""
        return {"tokens": float(self.parameters.tokens * self._ranks.size)}

    def measured_apart(self) -> dict[str, float]:
        """Return this rank's dropped choices, as counted on the device in the last iteration.

        Returns nothing if tensors have no values.
        """
        if not self._has_values:
            return {}
        dropped = int(self.router.dropped)
        return {"dropped_choices_percent": 100.0 * dropped / len(self.router.slots)}

    def check(self, run_once: Callable[[], None]) -> None:
        """The routing, and each token's result against all experts' on all tokens, weighted.

        Each rank computes its own experts on the tokens of all ranks; what they give is summed over
        ranks. All of that comes before anything is compared: a rank that fails lets none wait.
        """
        dtype = self.parameters.dtype
        self._poison()
        run_once()
        weights, wrong = self.router.plain(_GATE_TOLERANCES[dtype])
        tokens, weights = self._of_all_ranks(self.router.tokens), self._of_all_ranks(weights)
        expected = torch.zeros_like(tokens, dtype=torch.float64)
        for expert in self._experts:
            expected += weights[:, expert.number, None] * expert.expected(tokens)
        all_reduce(expected, self._group)
        if wrong:
            raise CheckFailed(wrong)
        own = expected.chunk(self._ranks.size)[self._ranks.rank]
        _require_tokens_close(self.output, own, _TOLERANCES[dtype])

    def _dispatch(self) -> None:
        torch.index_select(self.router.rows, 0, self.router.sources, out=self._sent)
        all_to_all(self._received, self._sent, group=self._group)

    def _return(self) -> None:
        all_to_all(self._returned, self._computed, group=self._group)

    def _combine(self) -> None:
        weights = self.router.weights
        torch.index_select(self._combined, 0, self.router.slots, out=self._of_choices)
        weighted = self._of_choices.view(*weights.shape, -1)
        weighted.mul_(weights[..., None])
        torch.sum(weighted, dim=0, out=self.output)

    def _of_all_ranks(self, own: torch.Tensor) -> torch.Tensor:
        everyones = own.new_empty(self._ranks.size * len(own), *own.shape[1:])
        all_gather(everyones, own, group=self._group)
        return everyones

    def _poison(self) -> None:
        self.router.poison()
        poison(
            self._sent, self._received, self._computed, self._returned, self._of_choices,
            self.output, *(expert.inner for expert in self._experts),
        )  # fmt: skip


class _Expert:
    """Two layers with ReLU between them, on the slots that one expert has for each rank.

    Attributes:
        number: among the experts of all ranks.
        inner: (ranks, slots, features between the layers).

    """

    def __init__(
        self, number: int, rows: torch.Tensor, results: torch.Tensor, inner: int, setup: Setup
    ) -> None:
        """Draw the weights.

        Args:
            number: among the experts of all ranks.
            rows: what the ranks have sent, (ranks, slots, hidden).
            results: written, (ranks, slots, hidden).
            inner: features between the layers.
            setup: whose seed the weights are drawn from.

        """
        self.number = number
        self._rows = rows
        self._results = results
        ranks, slots, hidden = rows.shape
        up = _draw((hidden, inner), f"first layer of expert {number}", setup)
        down = _draw((inner, hidden), f"second layer of expert {number}", setup)
        self._up = up.div_(math.sqrt(hidden)).to(rows.dtype)
        self._down = down.div_(math.sqrt(inner)).to(rows.dtype)
        self.inner = rows.new_empty(ranks, slots, inner)

    def run(self) -> None:
        """Enqueue both layers on the current stream."""
        ranks = len(self._rows)
        torch.bmm(self._rows, self._up.expand(ranks, -1, -1), out=self.inner)
        self.inner.relu_()
        torch.bmm(self.inner, self._down.expand(ranks, -1, -1), out=self._results)

    def expected(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return what the expert makes of any tokens, (tokens, hidden), in float64."""
        return (tokens.double() @ self._up.double()).clamp_min(0) @ self._down.double()


def _draw(shape: tuple[int, ...], what: str, setup: Setup) -> torch.Tensor:
    """Draw normal values in fp32 that depend on the seed and on what they are, not on the rank."""
    place = setup.device.torch_device
    seed = random.Random(f"{setup.seed} {what}").getrandbits(63)
    generator = torch.Generator(device=place).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=place)


def _require_tokens_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Compare token by token: one wrong among thousands would hide in a norm over all."""
    errors = torch.linalg.vector_norm(actual.double() - expected, dim=1)
    scale = expected.square().sum(dim=1).mean().sqrt()
    worst = int(errors.argmax())
    error = float(errors[worst] / scale)
    if not error <= tolerance:
        raise CheckFailed(
            f"result of token {worst}: relative error {error:.3g} exceeds {tolerance:.3g}"
        )
