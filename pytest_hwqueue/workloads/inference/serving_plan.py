"""Plans of serving: which request runs when and where.

A plan's time is counted in decode steps, and a period of them repeats forever: the requests of a
period arrive again in the next one, and those still running at its end continue there. Its
decisions depend on arrivals and lengths, which belong to the requests, and never on decoded values;
so a period is planned ahead, and one captured graph serves all periods.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pytest_hwqueue.devices.protocol import Device
from pytest_hwqueue.workloads.matmul import MatmulType, set_precision
from pytest_hwqueue.workloads.tenants.families import ModelFamily
from pytest_hwqueue.workloads.tenants.models import seeded_model

_TORCH_TYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


def placed_model(family: ModelFamily, dtype: MatmulType, device: Device, seed: int) -> Any:
    """Build a family's full model for inference; allow TF32 in the process or forbid it.

    Raises:
        MissingTransformers: if transformers is not installed.

    """
    set_precision(dtype)
    model = seeded_model(family, "full", seed, _TORCH_TYPES[dtype], device.torch_device)
    model.eval().requires_grad_(False)
    return model


@dataclass(frozen=True)
class PlannedRequest:
    """One request of a period.

    Attributes:
        arrival: it arrives before this decode step of the period.
        prompt_tokens: length of its prompt.
        output_tokens: tokens to decode, at least 2: the first by the prefill, the others by steps.

    """

    arrival: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Join:
    """Move a prefilled request into a slot of its group's batch."""

    request: int
    slot: int


@dataclass(frozen=True)
class Step:
    """Decode a token of each running request of a group.

    Attributes:
        group: whose batch.
        running: by slot, the request and the number of its input token; None for an empty slot.

    """

    group: int
    running: tuple[tuple[int, int] | None, ...]

    @property
    def continues(self) -> bool:
        """Whether a request got a token from the previous step, and so waits for the next."""
        return any(each is not None and each[1] > 0 for each in self.running)


@dataclass(frozen=True)
class Moment:
    """What happens at one decode step of the period.

    Attributes:
        joins: requests that join their batches before the step.
        prefills: requests prefilled meanwhile; they join before the next step.
        steps: of the groups with running requests.

    """

    joins: tuple[Join, ...]
    prefills: tuple[int, ...]
    steps: tuple[Step, ...]


def draw_requests(
    count: int, steps: int, longest_prompt: int, longest_output: int, seed: int
) -> list[PlannedRequest]:
    """Draw the requests of a period, by arrival.

    Args:
        count: of requests.
        steps: of the period. Arrivals are uniform over it, like those of a Poisson process given
            their number.
        longest_prompt: prompts are a quarter, half, three quarters or all of it.
        longest_output: outputs are uniform from half of it to all of it, but at least 3 tokens.
        seed: of all random draws.

    """
    source = random.Random(seed)
    shortest = max(3, (longest_output + 1) // 2)
    drawn = [
        PlannedRequest(
            arrival=source.randrange(steps),
            prompt_tokens=max(1, longest_prompt * source.randint(1, 4) // 4),
            output_tokens=source.randint(shortest, longest_output),
        )
        for _ in range(count)
    ]
    return sorted(drawn, key=lambda request: request.arrival)


def fewest_steps(requests: int, prefills: int) -> int:
    """Return the fewest steps of a period: each place prefills one request per step."""
    return -(-requests // prefills)


def plan(
    requests: Sequence[PlannedRequest], prefills: int, groups: int, steps: int
) -> list[Moment]:
    """Serve the requests of a period, first come, first served; return what happens at each step.

    A router sends request i to prefill i modulo ``prefills`` and to group i modulo ``groups``,
    where it has a slot to itself. A prefill keeps one request until it joins its group, at the next
    step: so a prefill overlaps a step.

    Args:
        requests: by arrival; each runs for at most ``steps`` steps.
        prefills: places that prefill requests, with `fewest_steps` of at most ``steps``.
        groups: batches that decode.
        steps: of the period.

    """
    prefilled: list[list[int]] = [[] for _ in range(steps)]
    joined: list[list[Join]] = [[] for _ in range(steps)]
    slots = -(-len(requests) // groups)
    running: list[list[list[tuple[int, int] | None]]] = [
        [[None] * slots for _ in range(groups)] for _ in range(steps)
    ]
    taken: list[set[int]] = [set() for _ in range(prefills)]
    for number, request in enumerate(requests):
        at = request.arrival
        while at in taken[number % prefills]:
            at = (at + 1) % steps
        taken[number % prefills].add(at)
        prefilled[at].append(number)
        slot = number // groups
        joined[(at + 1) % steps].append(Join(number, slot))
        for token in range(request.output_tokens - 1):
            running[(at + 1 + token) % steps][number % groups][slot] = number, token
    return [
        Moment(
            joins=tuple(joined[at]),
            prefills=tuple(prefilled[at]),
            steps=tuple(
                Step(group, tuple(batch)) for group, batch in enumerate(running[at]) if any(batch)
            ),
        )
        for at in range(steps)
    ]
