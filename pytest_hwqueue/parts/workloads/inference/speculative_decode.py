"""A small model drafts tokens, a large one verifies them: several sequences in flight.

The device decides what is accepted, and the host never knows it while enqueueing: a sequence's
length is a tensor, caches have a fixed shape and are masked, and counters are read after the
iterations.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from pydantic import Field, ValidationInfo, field_validator

from pytest_hwqueue.data.errors import CheckFailed
from pytest_hwqueue.parts.devices.protocol import Event, Stream
from pytest_hwqueue.parts.workloads.inference.decoder import (
    SMALL_DECODER,
    TINY_DECODER,
    Decoder,
    DecoderParameters,
    held_layers,
    spoil_tokens,
)
from pytest_hwqueue.parts.workloads.workload import PrimaryLatency, Setup, Workload

# Without values: the chance that a draft is accepted behind accepted ones.
_DRAWN_ACCEPTANCE = 0.7


class SpeculativeParameters(DecoderParameters):
    """Both models, the text before the decoded tokens, and how far drafts reach."""

    draft_layers: int = Field(
        4, ge=1, description="layers of the draft model, the first ones of the large model"
    )
    divergence: float = Field(
        0.05, ge=0, allow_inf_nan=False,
        description="factor on what the large model's other layers add; 0 accepts every draft",
    )  # fmt: skip
    context: int = Field(512, ge=2, description="tokens before the first decoded one")
    draft_tokens: int = Field(4, ge=1, description="tokens drafted before each verification")
    rounds: int = Field(2, ge=1, description="drafts and verifications of each sequence")

    @field_validator("draft_layers")
    @classmethod
    def _fewer_than_the_large(cls, draft_layers: int, info: ValidationInfo) -> int:
        layers = info.data.get("layers", draft_layers + 1)
        if draft_layers >= layers:
            raise ValueError(f"must be fewer than the {layers} layers of the large model")
        return draft_layers


@dataclass(frozen=True)
class _Sequence:
    """A sequence's state; only its own draft and verification touch it, in turn.

    Attributes:
        text: (capacity,) tokens; valid up to the length.
        length: (1,)
        accepted: (1,) drafts accepted in this iteration.
        drafts: (rounds, draft_tokens), all drafts of this iteration.
        best: (rounds, draft_tokens + 1), tokens that the large model decodes after the text, and
            after each draft if the drafts before it are right.
        small: the draft model's cache.
        large: the large model's.

    """

    text: torch.Tensor
    length: torch.Tensor
    accepted: torch.Tensor
    drafts: torch.Tensor
    best: torch.Tensor
    small: torch.Tensor
    large: torch.Tensor


class SpeculativeDecode(Workload, declared="speculative_decode"):
    """Half of the streams draft, the others verify; sequences take turns on them.

    There is one more sequence than drafting streams, so that one is verified while the others are
    drafted. Each iteration begins after the same contexts and is the same as the last.

    The tokens that a verification accepts reach the user together, and only the device knows how
    many there are. So the latency is that of a round: from when a sequence's last tokens were
    verified until its next ones are, including its waits for a drafting and a verifying stream. In
    the first round it runs from the iteration's start.

    The draft model is the large one without its later layers, so that it is often right, like a
    trained draft model; how often depends on the models.
    """

    primary = PrimaryLatency(
        "round", "request", "a draft and its verification: the time between a sequence's tokens"
    )
    parameters: SpeculativeParameters
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {
            **TINY_DECODER, "draft_layers": 1, "divergence": 0.3,
            "context": 8, "draft_tokens": 2, "rounds": 1,
        },
        "small": {**SMALL_DECODER, "draft_layers": 2, "context": 128},
        "full": {},
    }  # fmt: skip

    def setup(self, setup: Setup) -> None:
        """Make both models, and contexts with their caches."""
        parameters = self.parameters
        place = setup.device.torch_device
        device, seed, context = setup.device, setup.seed, parameters.context
        self._large = Decoder(parameters, device, seed, context)
        self._small = Decoder(parameters, device, seed, context, parameters.draft_layers)
        layers = self._large.model.model.layers[parameters.draft_layers :]
        with torch.no_grad():
            for layer in layers:
                layer.self_attn.o_proj.weight.mul_(parameters.divergence)
                layer.mlp.down_proj.weight.mul_(parameters.divergence)
        self._small.model.load_state_dict(self._large.model.state_dict(), strict=False)
        # A verification writes as far as all its drafts, accepted or not.
        capacity = parameters.context + parameters.rounds * (parameters.draft_tokens + 1)
        self._offsets = torch.arange(max(2, parameters.draft_tokens + 1), device=place)
        # The host's generator: the same texts on every device.
        generator = torch.Generator().manual_seed(setup.seed)
        self._drafting = setup.streams // 2
        self.sequences = [
            self._new_sequence(capacity, place, generator) for _ in range(self._drafting + 1)
        ]
        self._drawn: int | None = None
        if setup.device.capabilities.has_values:
            self._run_plainly()
        else:
            self.decisions_drawn = ("accepted tokens",)
            source = random.Random(setup.seed)
            verifications = parameters.rounds * len(self.sequences)
            self._drawn = sum(
                _draw_accepted(source, parameters.draft_tokens) for _ in range(verifications)
            )

    def iterate(self, streams: Sequence[Stream]) -> None:
        """Enqueue the rounds of all sequences, each a draft and then its verification."""
        drafting, verifying = streams[: self._drafting], streams[self._drafting :]
        for index, sequence in enumerate(self.sequences):
            # Rounds begin before they wait for a stream, so that the wait is part of them.
            drafting[index % len(drafting)].launch(
                self._begin, sequence.length, sequence.accepted, tag=f"#{index}.0"
            )
        verified: dict[int, Event] = {}
        last: dict[tuple[int, int], Event] = {}
        for number in range(self.parameters.rounds):
            for index, sequence in enumerate(self.sequences):
                places = index % len(drafting), index % len(verifying)
                draft, verify = drafting[places[0]], verifying[places[1]]
                if index in verified:
                    draft.wait(verified[index])
                drafts, best = sequence.drafts[number], sequence.best[number]
                draft.launch(
                    self._draft, sequence.text, sequence.length, drafts, sequence.small,
                    tag=f"draft#{index}.{number}",
                )  # fmt: skip
                verify.wait(draft.record())
                verify.launch(
                    self._verify, sequence.text, sequence.length, drafts, sequence.large,
                    best, tag=f"verify#{index}.{number}",
                )  # fmt: skip
                following = number + 1
                verify.launch(
                    self._accept, sequence.text, sequence.length, drafts, best, sequence.accepted,
                    tag=f"#{index}.{following}" if following < self.parameters.rounds else None,
                )  # fmt: skip
                verified[index] = last[places] = verify.record()
        # The next iteration begins on the drafting streams, behind all that it writes over.
        for (place, _), event in last.items():
            drafting[place].wait(event)

    def work_per_iteration(self) -> dict[str, float]:
        """Return the verified tokens: accepted drafts, and one of the large model's own after them.

        The device counted them in the last iteration, which must have ended.
        """
        verifications = self.parameters.rounds * len(self.sequences)
        drafts = self._drawn
        if drafts is None:
            drafts = sum(int(sequence.accepted) for sequence in self.sequences)
        return {
            "accepted tokens": float(drafts + verifications),
            "verifications": float(verifications),
        }

    def measured_apart(self) -> dict[str, float]:
        """Return how many drafts were accepted; nothing if tensors have no values."""
        if self._drawn is not None:
            return {}
        accepted = sum(int(sequence.accepted) for sequence in self.sequences)
        drafted = sum(sequence.drafts.numel() for sequence in self.sequences)
        return {"accepted_drafts_percent": 100.0 * accepted / drafted}

    def check(self, run_once: Callable[[], None]) -> None:
        """Compare texts and drafts with plain passes over them, and counters with both."""
        context, vocabulary = self.parameters.context, self.parameters.vocabulary
        with torch.inference_mode():
            for sequence in self.sequences:
                spoil_tokens(sequence.text[context:], vocabulary)
                spoil_tokens(sequence.drafts, vocabulary)
                spoil_tokens(sequence.best, vocabulary)
                sequence.length.fill_(context)
                sequence.accepted.fill_(-1)
                # Finite: a masked value counts with a weight of zero.
                sequence.small[..., context:, :] = 10.0
                sequence.large[..., context:, :] = 10.0
            run_once()
            for index, sequence in enumerate(self.sequences):
                self._check_sequence(f"sequence {index}", sequence)

    def timeline_parameters(self, streams: int) -> dict[str, Any]:
        """Return one round of one draft and few layers: an accelerator cannot hold many kernels."""
        sequences = streams // 2 + 1
        layers = held_layers(self.parameters.layers, 2 * sequences)
        return {"rounds": 1, "draft_tokens": 1, "draft_layers": 1, "layers": max(2, layers)}

    def _new_sequence(
        self, capacity: int, place: torch.device, generator: torch.Generator
    ) -> _Sequence:
        parameters = self.parameters
        text = torch.randint(parameters.vocabulary, (capacity,), generator=generator).to(place)
        small, large = (model.new_cache(1, capacity) for model in (self._small, self._large))
        for model, cache in ((self._small, small), (self._large, large)):
            model.behind(text[None, : parameters.context], cache, 0)
        return _Sequence(
            text=text,
            length=torch.full((1,), parameters.context, device=place),
            accepted=torch.zeros(1, dtype=torch.int64, device=place),
            drafts=torch.zeros(
                (parameters.rounds, parameters.draft_tokens), dtype=torch.int64, device=place
            ),
            best=torch.zeros(
                (parameters.rounds, parameters.draft_tokens + 1), dtype=torch.int64, device=place
            ),
            small=small,
            large=large,
        )

    def _run_plainly(self) -> None:
        """Run an iteration without streams: all are the same, so its counters hold for each."""
        for sequence in self.sequences:
            self._begin(sequence.length, sequence.accepted)
            for drafts, best in zip(sequence.drafts, sequence.best, strict=True):
                self._draft(sequence.text, sequence.length, drafts, sequence.small)
                self._verify(sequence.text, sequence.length, drafts, sequence.large, best)
                self._accept(sequence.text, sequence.length, drafts, best, sequence.accepted)

    def _begin(self, length: torch.Tensor, accepted: torch.Tensor) -> None:
        """Go back to the context's end."""
        length.fill_(self.parameters.context)
        accepted.zero_()

    def _draft(
        self, text: torch.Tensor, length: torch.Tensor, drafts: torch.Tensor, cache: torch.Tensor
    ) -> None:
        """Decode the next tokens with the draft model.

        It begins one token earlier: if all of the last drafts were accepted, the last of them has
        not been run yet.
        """
        positions = length - 2 + self._offsets[:2]
        tokens = text.index_select(0, positions)
        for number in range(len(drafts)):
            logits = self._small.at(tokens[None], positions[None], cache)
            tokens = drafts[number : number + 1]
            torch.argmax(logits[:, -1], dim=-1, out=tokens)
            positions = positions[-1:] + 1

    def _verify(
        self, text: torch.Tensor, length: torch.Tensor, drafts: torch.Tensor, cache: torch.Tensor,
        best: torch.Tensor,
    ) -> None:  # fmt: skip
        """Decode with the large model after the text, and after each of the drafts."""
        positions = length - 1 + self._offsets[: len(drafts) + 1]
        tokens = torch.cat([text.index_select(0, positions[:1]), drafts])
        logits = self._large.at(tokens[None], positions[None], cache)
        torch.argmax(logits[0], dim=-1, out=best)

    def _accept(
        self, text: torch.Tensor, length: torch.Tensor, drafts: torch.Tensor, best: torch.Tensor,
        accepted: torch.Tensor,
    ) -> None:  # fmt: skip
        """Accept drafts up to the first that the large model would not have decoded.

        All its own tokens are written: they agree with the accepted drafts, the next one is right
        as well, and later ones are beyond the new length.
        """
        agreed = (best[:-1] == drafts).long().cumprod(0).sum()
        text.index_copy_(0, length + self._offsets[: len(best)], best)
        length.add_(agreed + 1)
        accepted.add_(agreed)

    def _check_sequence(self, what: str, sequence: _Sequence) -> None:
        context = self.parameters.context
        text, length = sequence.text, int(sequence.length)
        if length < context + self.parameters.rounds:
            raise CheckFailed(
                f"{what}: {length - context} tokens were decoded, but each of its "
                f"{self.parameters.rounds} verifications decodes at least one"
            )
        self._large.require_greedy(what, text[:context], text[context:length])
        start, accepted = context, 0
        for number, drafts in enumerate(sequence.drafts):
            self._small.require_greedy(f"{what}, draft {number}", text[:start], drafts)
            agrees = (drafts == text[start : start + len(drafts)]).long()
            agreed = int(agrees.cumprod(0).sum())
            accepted += agreed
            start += agreed + 1
        if (accepted, start) != (int(sequence.accepted), length):
            raise CheckFailed(
                f"{what}: {accepted} drafts agree with the text up to token {start}, but "
                f"{int(sequence.accepted)} were counted, and its length is {length}"
            )


def _draw_accepted(source: random.Random, drafts: int) -> int:
    """Draw how many of a round's drafts are accepted before the first that is not."""
    accepted = 0
    while accepted < drafts and source.random() < _DRAWN_ACCEPTANCE:
        accepted += 1
    return accepted
