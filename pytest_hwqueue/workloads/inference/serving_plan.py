"""Continuous batching's scheduler: which request is prefilled, joins a batch and leaves it, when.

Its time is counted in decode steps. What it decides depends on arrivals and lengths, which belong
to the requests, and never on decoded values; so a whole queue is planned ahead.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """One request of the queue.

    Attributes:
        arrival: the decode step before which it arrives.
        prompt_tokens: length of its prompt.
        output_tokens: tokens to decode, at least 2: the first by the prefill, the others by steps.

    """

    arrival: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Prefill:
    """Compute a request's keys and values beside the batches, and its first token."""

    request: int


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
        running: by slot, the request and the number of its token that the step is given; None
            for an empty slot.

    """

    group: int
    running: tuple[tuple[int, int] | None, ...]


Command = Prefill | Join | Step


def draw_requests(
    count: int, per_step: float, longest_prompt: int, longest_output: int, seed: int
) -> list[Request]:
    """Draw a queue of requests.

    Args:
        count: of requests.
        per_step: Poisson arrivals per decode step.
        longest_prompt: prompts are a quarter, half, three quarters or all of it.
        longest_output: outputs are uniform from 2 to this.
        seed: of everything drawn.

    """
    source = random.Random(seed)
    gaps = (source.expovariate(per_step) for _ in range(count))
    return [
        Request(
            arrival=int(arrival),
            prompt_tokens=max(1, longest_prompt * source.randint(1, 4) // 4),
            output_tokens=source.randint(2, longest_output),
        )
        for arrival in itertools.accumulate(gaps)
    ]


def plan(requests: Sequence[Request], prefills: int, groups: int, slots: int) -> list[Command]:
    """Serve requests first come, first served, and return what to enqueue, in order.

    A router sends request i to prefill i modulo ``prefills`` and to group i modulo ``groups``. A
    prefill keeps one request until it joins its group, from the next step on at the earliest: so a
    prefill overlaps a step. A group runs up to ``slots`` requests at once.

    Args:
        requests: by arrival.
        prefills: places that prefill requests.
        groups: batches that decode.
        slots: requests in a batch.

    """
    commands: list[Command] = []
    waiting = [deque(range(place, len(requests), prefills)) for place in range(prefills)]
    prefilled: list[int | None] = [None] * prefills
    batches: list[list[int | None]] = [[None] * slots for _ in range(groups)]
    decoded = [0] * len(requests)
    finished = 0
    for step in itertools.count():
        if finished == len(requests):
            return commands
        for request in sorted(each for each in prefilled if each is not None):
            batch = batches[request % groups]
            if None in batch:
                slot = batch.index(None)
                batch[slot] = request
                prefilled[request % prefills] = None
                commands.append(Join(request, slot))
        for place, queue in enumerate(waiting):
            if queue and prefilled[place] is None and requests[queue[0]].arrival <= step:
                request = queue.popleft()
                prefilled[place] = request
                decoded[request] = 1
                commands.append(Prefill(request))
        for group, batch in enumerate(batches):
            running = tuple(None if each is None else (each, decoded[each] - 1) for each in batch)
            if not any(running):
                continue
            commands.append(Step(group, running))
            for slot, request_or_none in enumerate(batch):
                if request_or_none is None:
                    continue
                decoded[request_or_none] += 1
                if decoded[request_or_none] == requests[request_or_none].output_tokens:
                    batch[slot] = None
                    finished += 1
    raise AssertionError("unreachable: the steps are counted without end")
