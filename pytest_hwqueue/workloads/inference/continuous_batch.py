"""Continuous batching: requests join and leave running batches while others are prefilled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field

from pytest_hwqueue.devices.protocol import Event, Stream
from pytest_hwqueue.workloads.inference.decoder import (
    SMALL_DECODER,
    TINY_DECODER,
    Decoder,
    DecoderParameters,
    held_layers,
    spoil_tokens,
)
from pytest_hwqueue.workloads.inference.serving_plan import (
    Join,
    Prefill,
    Step,
    draw_requests,
    plan,
)
from pytest_hwqueue.workloads.protocol import Setup, StreamRange, Workload


class BatchParameters(DecoderParameters):
    """The model, the queue of requests, and the size of a batch."""

    requests: int = Field(8, ge=2, description="requests per decoding stream in an iteration")
    arrivals: float = Field(
        0.5, gt=0, allow_inf_nan=False,
        description="Poisson arrivals per decode step and decoding stream",
    )  # fmt: skip
    prompt: int = Field(
        512, ge=4, description="tokens of the longest prompt; others are 1/4, 1/2 or 3/4 of it"
    )
    output: int = Field(16, ge=2, description="tokens of the longest output; the shortest is 2")
    slots: int = Field(4, ge=1, description="requests that a batch holds")


class ContinuousBatch(Workload):
    """An iteration serves a queue of requests, planned by `serving_plan`, from the first to last.

    Half of the streams decode, each a batch of its own, padded to its slots; of the others half
    prefill, and half move what was prefilled (keys, values and the first token) into a batch.
    Lengths belong to the requests, so no decision waits for a value. The latency of a tagged
    ``prefill`` is the time to the first token of a request that found its stream free, that of
    ``decode`` the time between tokens.
    """

    name = "continuous_batch"
    family = "inference"
    mark = "P1"
    description = "a queue of requests prefilled beside running batches that they join and leave"
    stream_range = StreamRange(3, 8, 32)
    units = ("tokens",)
    tags = ("prefill", "decode")
    parameter_model = BatchParameters
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {
            **TINY_DECODER, "layers": 1,
            "requests": 2, "arrivals": 1.0, "prompt": 16, "output": 3, "slots": 2,
        },
        "small": {**SMALL_DECODER, "requests": 4, "prompt": 128, "output": 8},
        "full": {},
    }  # fmt: skip
    decisions_drawn: tuple[str, ...] = ()

    def __init__(self, parameters: BatchParameters) -> None:
        self.parameters = parameters

    @classmethod
    def urgency(cls, streams: int) -> list[int]:
        """The running batches are the urgent ones: a user reads their tokens."""
        decoding, _, _ = _shares(streams)
        return [1] * decoding + [0] * (streams - decoding)

    def setup(self, setup: Setup) -> None:
        """Draw and plan the queue; make prompts, the batches' caches and those of prefills."""
        parameters = self.parameters
        place = setup.device.torch_device
        self._groups, self._prefills, self._moves = _shares(setup.streams)
        self._requests = draw_requests(
            parameters.requests * self._groups,
            parameters.arrivals * self._groups,
            parameters.prompt,
            parameters.output,
            setup.seed,
        )
        self._plan = plan(self._requests, self._prefills, self._groups, parameters.slots)
        self._decoder = Decoder(parameters, setup.device, setup.seed)
        # The host's generator: the same texts on every device.
        generator = torch.Generator().manual_seed(setup.seed)
        self._prompts = [
            torch.randint(parameters.vocabulary, (1, each.prompt_tokens), generator=generator).to(
                place
            )
            for each in self._requests
        ]
        self._prompt_positions = torch.arange(parameters.prompt, device=place)[None]
        capacity = parameters.prompt + parameters.output
        self._staging = [
            self._decoder.new_cache(1, parameters.prompt) for _ in range(self._prefills)
        ]
        self._caches = [
            self._decoder.new_cache(parameters.slots, capacity) for _ in range(self._groups)
        ]
        steps = [each for each in self._plan if isinstance(each, Step)]
        self._positions = torch.tensor([self._positions_of(step) for step in steps]).to(place)
        self._current = torch.zeros(
            (self._groups, parameters.slots, 1), dtype=torch.int64, device=place
        )
        self._first = torch.zeros((len(self._requests), 1), dtype=torch.int64, device=place)
        self._decoded = torch.zeros((len(steps), parameters.slots), dtype=torch.int64, device=place)

    def iterate(self, streams: Sequence[Stream]) -> None:
        """Enqueue the plan: prefills, moves and steps, each behind what it needs."""
        decoding = streams[: self._groups]
        prefilling = streams[self._groups : self._groups + self._prefills]
        moving = streams[self._groups + self._prefills :]
        prefilled: dict[int, Event] = {}
        stepped: dict[int, Event] = {}
        moved: dict[int, Event] = {}
        movers: set[tuple[int, int]] = set()
        number = 0
        for command in self._plan:
            if isinstance(command, Prefill):
                request, place = command.request, command.request % self._prefills
                stream = prefilling[place]
                if place in moved:
                    # What was prefilled here before must have been moved away.
                    stream.wait(moved[place])
                stream.launch(
                    self._prefill, self._prompts[request], self._first[request],
                    self._staging[place], tag="prefill",
                )  # fmt: skip
                prefilled[place] = stream.record()
            elif isinstance(command, Join):
                place, group = command.request % self._prefills, command.request % self._groups
                stream = moving[command.request % self._moves]
                movers.add((group, command.request % self._moves))
                stream.wait(prefilled[place])
                if group in stepped:
                    # The last step of the group may still write to its slots.
                    stream.wait(stepped[group])
                stream.launch(self._move, *self._parts(command, place, group))
                moved[place] = stream.record()
                decoding[group].wait(moved[place])
            else:
                stream = decoding[command.group]
                stream.launch(
                    self._step, self._current[command.group], self._positions[number],
                    self._decoded[number], self._caches[command.group], tag="decode",
                )  # fmt: skip
                stepped[command.group] = stream.record()
                number += 1
        # The next iteration begins behind all that it writes over.
        for place, event in moved.items():
            prefilling[place].wait(event)
        for group, mover in sorted(movers):
            moving[mover].wait(stepped[group])

    def work_per_iteration(self) -> dict[str, float]:
        """Tokens decoded for requests; those of empty slots do not count."""
        return {"tokens": float(sum(request.output_tokens for request in self._requests))}

    def check(self, run_once: Callable[[], None]) -> None:
        """Each request's tokens against a plain pass over its text alone, without a cache."""
        vocabulary = self.parameters.vocabulary
        with torch.inference_mode():
            for tokens in (self._first, self._decoded, self._current):
                spoil_tokens(tokens, vocabulary)
            for cache in (*self._staging, *self._caches):
                # Finite: a masked value counts with a weight of zero.
                cache.fill_(10.0)
            run_once()
            outputs = self._outputs()
            for index, (prompt, output) in enumerate(zip(self._prompts, outputs, strict=True)):
                self._decoder.require_greedy(f"request {index}", prompt[0], output)

    def timeline_parameters(self, streams: int) -> dict[str, Any]:
        """Few requests, tokens and layers: an accelerator cannot hold many kernels."""
        requests = 2 * _shares(streams)[0]
        # Each is prefilled, and needs one step.
        layers = held_layers(self.parameters.layers, 2 * requests)
        return {"requests": 2, "output": 2, "layers": layers}

    def _positions_of(self, step: Step) -> list[int]:
        """Position by slot of the token that a step is given; empty slots write over their first.

        What they write is overwritten when a request joins there.
        """
        return [
            0 if each is None else self._requests[each[0]].prompt_tokens + each[1]
            for each in step.running
        ]

    def _parts(self, join: Join, place: int, group: int) -> tuple[torch.Tensor, ...]:
        """Return what a move copies, and where to."""
        length = self._requests[join.request].prompt_tokens
        return (
            self._staging[place][:, :, 0, :, :length],
            self._caches[group][:, :, join.slot, :, :length],
            self._first[join.request],
            self._current[group, join.slot],
        )

    def _outputs(self) -> list[torch.Tensor]:
        """Return each request's tokens."""
        found = [[first] for first in self._first]
        steps = (command for command in self._plan if isinstance(command, Step))
        for decoded, step in zip(self._decoded, steps, strict=True):
            for slot, each in enumerate(step.running):
                if each is not None:
                    found[each[0]].append(decoded[slot : slot + 1])
        return [torch.cat(tokens) for tokens in found]

    def _prefill(self, prompt: torch.Tensor, first: torch.Tensor, cache: torch.Tensor) -> None:
        positions = self._prompt_positions[:, : prompt.shape[1]]
        logits = self._decoder.behind(prompt, positions, cache, 0)
        torch.argmax(logits[:, -1], dim=-1, out=first)

    def _move(
        self, staged: torch.Tensor, slot: torch.Tensor, first: torch.Tensor, current: torch.Tensor
    ) -> None:
        slot.copy_(staged)
        current.copy_(first)

    def _step(
        self,
        current: torch.Tensor,
        positions: torch.Tensor,
        decoded: torch.Tensor,
        cache: torch.Tensor,
    ) -> None:
        logits = self._decoder.at(current, positions[:, None], cache)
        torch.argmax(logits[:, -1], dim=-1, out=decoded)
        current.copy_(decoded[:, None])


def _shares(streams: int) -> tuple[int, int, int]:
    """How many streams decode, prefill and move."""
    decoding = streams // 2
    moving = (streams - decoding) // 2
    return decoding, streams - decoding - moving, moving
