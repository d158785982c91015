"""The gate of a mixture of experts: which token goes where, decided on the device."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch

from pytest_hwqueue.errors import CheckFailed


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
        self.weights.fill_(float("nan"))
        self.dropped.fill_(-1)

    def plain(self) -> PlainRouting:
        """Make the same decisions plainly, after a run.

        If logits are equal up to rounding, either choice is right: so the run's choices are taken
        for what follows, and their logits are compared with the largest ones.
        """
        logits = self.tokens.double() @ self._gate.double()
        top_k = len(self.chosen)
        of_chosen = logits.gather(1, self.chosen.t())
        off = (of_chosen - logits.topk(top_k).values).abs().max() / logits.abs().max()
        asked: Counter[int] = Counter()
        served = []
        for expert in self.chosen.flatten().tolist():
            served.append(asked[expert] < self._capacity)
            asked[expert] += 1
        kept = torch.tensor(served, device=logits.device).view(self.chosen.shape).t()
        weights = of_chosen.softmax(dim=1) * kept
        return PlainRouting(
            weights=torch.zeros_like(logits).scatter_(1, self.chosen.t(), weights),
            error=float(off),
            dropped=served.count(False),
            counted=int(self.dropped),
        )


@dataclass(frozen=True)
class PlainRouting:
    """The decisions that a router should have made.

    Attributes:
        weights: of each expert in each token's result, (tokens, experts), float64.
        error: largest difference of a chosen expert's logit from the one that should have been
            chosen, relative to the largest of all logits.
        dropped: how many choices have no room.
        counted: how many the router has counted.

    """

    weights: torch.Tensor
    error: float
    dropped: int
    counted: int

    def require_right(self, tolerance: float) -> None:
        """Check the router's decisions.

        Args:
            tolerance: largest ``error`` that rounding explains.

        Raises:
            CheckFailed: naming what differs, and by how much.

        """
        if not self.error <= tolerance:
            raise CheckFailed(
                f"gate: an expert was chosen whose logit is off by {self.error:.3g} of the "
                f"largest, which exceeds {tolerance:.3g}"
            )
        if self.counted != self.dropped:
            raise CheckFailed(f"{self.dropped} choices find no room, {self.counted} were counted")
