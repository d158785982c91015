"""Continuous batching: requests join and leave running batches while others are prefilled."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field, ValidationInfo, field_validator

from pytest_hwqueue.data.errors import NotApplicable
from pytest_hwqueue.parts.devices.protocol import Event, Stream
from pytest_hwqueue.parts.workloads.inference.decoder import (
    SMALL_DECODER,
    TINY_DECODER,
    Decoder,
    DecoderParameters,
    Step,
    draw_requests,
    fewest_steps,
    held_layers,
    plan,
    spoil_tokens,
)
from pytest_hwqueue.parts.workloads.workload import PrimaryLatency, Setup, Where, Workload

# A request is prefilled in one iteration, and runs for at most as long as one.
_PERIODS = 3


class BatchParameters(DecoderParameters):
    """The model, and the requests that the batches serve."""

    requests: int = Field(
        4, ge=1,
        description="requests that a decoding stream serves in an iteration, each in a slot of its "
        "batch",
    )  # fmt: skip
    steps: int = Field(8, ge=2, description="decode steps of an iteration")
    prompt: int = Field(
        512, ge=4, description="tokens of the longest prompt; others are 1/4, 1/2 or 3/4 of it"
    )
    output: int = Field(
        9, ge=3,
        description="tokens of the longest output, at most steps + 1; the shortest is half of it",
    )  # fmt: skip

    @field_validator("output")
    @classmethod
    def _within_the_period(cls, output: int, info: ValidationInfo) -> int:
        steps = info.data.get("steps", output)
        if output > steps + 1:
            raise ValueError(f"must be at most {steps + 1}, one more than the {steps} steps")
        return output


class ContinuousBatch(Workload, declared="continuous_batch"):
    """Requests join and leave the running batches in a steady stream, planned by `serving_plan`.

    An iteration is one period of the plan: requests still running at its end continue in the next
    one, so values are right from the second iteration on.

    Half of the streams decode, each its own batch, padded to its slots; of the others, half
    prefill, and half move the prefilled data (keys, values and the first token) into a batch.
    Lengths belong to the requests, so no decision waits for a value.

    The time between tokens runs from the end of a batch's step to the end of the next, including
    the wait for joining requests in between. The latency of a tagged ``prefill`` is the time to the
    first token of a request that found its stream free; that of ``decode`` is a step alone.
    """

    primary = PrimaryLatency(
        "token", "request", "the time between two tokens of a request, joins included"
    )
    parameters: BatchParameters
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {
            **TINY_DECODER, "layers": 1, "requests": 2, "steps": 4, "prompt": 16, "output": 4,
        },
        "small": {**SMALL_DECODER, "prompt": 128},
        "full": {},
    }  # fmt: skip

    def require_applicable(self, where: Where) -> None:
        """Refuse more requests than the prefilling streams can take in an iteration."""
        groups, prefills, _ = _shares(where.streams)
        fewest = fewest_steps(self.parameters.requests * groups, prefills)
        if self.parameters.steps < fewest:
            raise NotApplicable(
                f"continuous_batch.steps={self.parameters.steps}: on {where.streams} streams "
                f"{prefills} prefill, each one request at a step, so "
                f"{self.parameters.requests * groups} requests need steps of at least {fewest}"
            )

    @classmethod
    def urgency(cls, streams: int) -> list[int]:
        """Return the urgencies: running batches are urgent, since users read their tokens."""
        decoding, _, _ = _shares(streams)
        return [1] * decoding + [0] * (streams - decoding)

    def setup(self, setup: Setup) -> None:
        """Draw and plan the requests; make prompts, the batches' caches and those of prefills."""
        self.require_applicable(setup.where)
        parameters = self.parameters
        place = setup.device.torch_device
        self._groups, self._prefills, self._moves = _shares(setup.streams)
        self.requests = draw_requests(
            parameters.requests * self._groups,
            parameters.steps,
            parameters.prompt,
            parameters.output,
            setup.seed,
        )
        self.plan = plan(self.requests, self._prefills, self._groups, parameters.steps)
        self.decoder = Decoder(parameters, setup.device, setup.seed, parameters.prompt)
        # The host's generator: the same texts on every device.
        generator = torch.Generator().manual_seed(setup.seed)
        self.prompts = [
            torch.randint(parameters.vocabulary, (1, each.prompt_tokens), generator=generator).to(
                place
            )
            for each in self.requests
        ]
        capacity = parameters.prompt + parameters.output
        slots = parameters.requests
        self._staging = [
            self.decoder.new_cache(1, parameters.prompt) for _ in range(self._prefills)
        ]
        self._caches = [self.decoder.new_cache(slots, capacity) for _ in range(self._groups)]
        self._steps = [step for moment in self.plan for step in moment.steps]
        self._positions = torch.tensor([self._positions_of(step) for step in self._steps]).to(place)
        self.first = torch.zeros((len(self.requests), 1), dtype=torch.int64, device=place)
        # By step: the tokens that it is given, and those that it decodes.
        self._given = torch.zeros((len(self._steps), slots), dtype=torch.int64, device=place)
        self._decoded = torch.zeros_like(self._given)

    def iterate(self, streams: Sequence[Stream]) -> None:
        """Enqueue the period: prefills, moves and steps, each after its dependencies."""
        decoding = streams[: self._groups]
        prefilling = streams[self._groups : self._groups + self._prefills]
        moving = streams[self._groups + self._prefills :]
        prefilled: dict[int, Event] = {}
        moved: dict[int, Event] = {}
        # The last step of each group, at first that of the iteration before.
        last = {step.group: number for number, step in enumerate(self._steps)}
        numbers = itertools.count()
        for moment in self.plan:
            steps = {step.group: (next(numbers), step) for step in moment.steps}
            for group, (number, step) in steps.items():
                if step.continues:
                    # The time between tokens begins here, before the wait for those who join.
                    decoding[group].launch(
                        self._feed, self._decoded[last[group]], self._given[number],
                        tag=f"#{group}.{number}",
                    )  # fmt: skip
                last[group] = number
            fed: dict[int, Event] = {}
            joined: dict[tuple[int, int], Event] = {}
            for request in moment.joins:
                place, group = request % self._prefills, request % self._groups
                mover = request % self._moves
                stream = moving[mover]
                if place in prefilled:
                    stream.wait(prefilled.pop(place))
                if group not in fed:
                    fed[group] = decoding[group].record()
                if (group, mover) not in joined:
                    # The last step of the group may still write to its slots.
                    stream.wait(fed[group])
                stream.launch(self._move, *self._parts(request, steps[group][0]))
                joined[group, mover] = moved[place] = stream.record()
            for (group, _), event in joined.items():
                decoding[group].wait(event)
            for request in moment.prefills:
                place = request % self._prefills
                if place in moved:
                    # What was prefilled here before must have been moved away.
                    prefilling[place].wait(moved.pop(place))
                prefilling[place].launch(
                    self._prefill, self.prompts[request], self.first[request],
                    self._staging[place], tag="prefill",
                )  # fmt: skip
                prefilled[place] = prefilling[place].record()
            for group, (number, step) in steps.items():
                decoding[group].launch(
                    self._step, self._given[number], self._positions[number],
                    self._decoded[number], self._caches[group],
                    tag=f"decode#{group}.{number}" if step.continues else "decode",
                )  # fmt: skip
        # The next iteration begins behind all that it reads and writes over.
        for place, event in moved.items():
            prefilling[place].wait(event)
        for request in self.plan[0].joins:
            moving[request % self._moves].wait(prefilled[request % self._prefills])

    def work_per_iteration(self) -> dict[str, float]:
        """Return the tokens decoded for requests; those of empty slots do not count."""
        return {"tokens": float(sum(request.output_tokens for request in self.requests))}

    def check(self, run_once: Callable[[], None]) -> None:
        """Compare each request's tokens with a plain pass over its text alone, without a cache."""
        vocabulary = self.parameters.vocabulary
        with torch.inference_mode():
            for tokens in (self.first, self._given, self._decoded):
                spoil_tokens(tokens, vocabulary)
            for cache in (*self._staging, *self._caches):
                # Finite: a masked value counts with a weight of zero.
                cache.fill_(10.0)
            # Requests that the first iteration leaves running end in the second, or the third.
            periods = []
            for _ in range(_PERIODS):
                run_once()
                periods.append((self.first.clone(), self._decoded.clone()))
            outputs = self.outputs(periods)
            for index, (prompt, output) in enumerate(zip(self.prompts, outputs, strict=True)):
                self.decoder.require_greedy(f"request {index}", prompt[0], output)

    def timeline_parameters(self, streams: int) -> dict[str, Any]:
        """Return few requests, tokens and layers: an accelerator cannot hold many kernels."""
        groups, prefills, _ = _shares(streams)
        # Each request is prefilled, and needs two steps.
        layers = held_layers(self.parameters.layers, 3 * groups)
        steps = max(2, fewest_steps(groups, prefills))
        return {"requests": 1, "output": 3, "steps": steps, "layers": layers}

    def _positions_of(self, step: Step) -> list[int]:
        """Return the position by slot of a step's input token; empty slots overwrite their first.

        A request that joins there overwrites that in turn.
        """
        return [
            0 if each is None else self.requests[each[0]].prompt_tokens + each[1]
            for each in step.running
        ]

    def _parts(self, request: int, step: int) -> tuple[torch.Tensor, ...]:
        """Return the sources and destinations of the copies by which a request joins a step."""
        length, slot = self.requests[request].prompt_tokens, request // self._groups
        return (
            self._staging[request % self._prefills][:, :, 0, :, :length],
            self._caches[request % self._groups][:, :, slot, :, :length],
            self.first[request],
            self._given[step, slot : slot + 1],
        )

    def outputs(
        self, periods: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()
    ) -> list[torch.Tensor]:
        """Return each request's tokens.

        Args:
            periods: first tokens and decoded ones after each of three iterations. A request that
                continues in the next iteration has tokens from both: if two logits are nearly
                equal, the request that takes its place there may get others. By default the current
                ones.

        """
        given = periods or [(self.first, self._decoded)] * _PERIODS
        found = [[given[0][0][index]] for index in range(len(self.requests))]
        begun = {each: at for at, moment in enumerate(self.plan) for each in moment.prefills}
        places: dict[tuple[int, int], tuple[int, int]] = {}
        for number, step in enumerate(self._steps):
            for slot, running in enumerate(step.running):
                if running is not None:
                    places[running] = number, slot
        for index, request in enumerate(self.requests):
            for token in range(request.output_tokens - 1):
                number, slot = places[index, token]
                period = (begun[index] + 1 + token) // len(self.plan)
                found[index].append(given[period][1][number, slot : slot + 1])
        return [torch.cat(tokens) for tokens in found]

    def _prefill(self, prompt: torch.Tensor, first: torch.Tensor, cache: torch.Tensor) -> None:
        logits = self.decoder.behind(prompt, cache, 0)
        torch.argmax(logits[:, -1], dim=-1, out=first)

    def _move(
        self, staged: torch.Tensor, slot: torch.Tensor, first: torch.Tensor, given: torch.Tensor
    ) -> None:
        slot.copy_(staged)
        given.copy_(first)

    def _feed(self, decoded: torch.Tensor, given: torch.Tensor) -> None:
        """Pass a step the tokens that the previous step decoded."""
        given.copy_(decoded)

    def _step(
        self,
        given: torch.Tensor,
        positions: torch.Tensor,
        decoded: torch.Tensor,
        cache: torch.Tensor,
    ) -> None:
        logits = self.decoder.at(given[:, None], positions[:, None], cache)
        torch.argmax(logits[:, -1], dim=-1, out=decoded)


def _shares(streams: int) -> tuple[int, int, int]:
    """Return how many streams decode, prefill and move."""
    decoding = streams // 2
    moving = (streams - decoding) // 2
    return decoding, streams - decoding - moving, moving
