"""A language model with seeded weights, decoding greedily over caches of a fixed shape.

A plan's time is counted in decode steps, and a period of them repeats forever: the requests of a
period arrive again in the next one, and those still running at its end continue there. Its
decisions depend on arrivals and lengths, which belong to the requests, and never on decoded values;
so a period is planned ahead, and one captured graph serves all periods.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import Field, ValidationInfo, field_validator

from pytest_hwqueue.data.errors import CheckFailed
from pytest_hwqueue.parts.devices.protocol import Device
from pytest_hwqueue.parts.workloads.numerics import set_precision
from pytest_hwqueue.parts.workloads.tenants.families import CacheBehind, Qwen3Decode, decoded
from pytest_hwqueue.parts.workloads.tenants.models import seeded_model
from pytest_hwqueue.parts.workloads.workload import HELD_KERNELS, MatmulType, Parameters


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
        joins: requests that join their groups' batches before the step.
        prefills: requests prefilled meanwhile; they join before the next step.
        steps: of the groups with running requests.

    """

    joins: tuple[int, ...]
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
    where it has slot i // ``groups`` to itself. A prefill keeps one request until it joins its
    group, at the next step: so a prefill overlaps a step.

    Args:
        requests: by arrival; each runs for at most ``steps`` steps.
        prefills: places that prefill requests, with `fewest_steps` of at most ``steps``.
        groups: batches that decode.
        steps: of the period.

    """
    prefilled: list[list[int]] = [[] for _ in range(steps)]
    joined: list[list[int]] = [[] for _ in range(steps)]
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
        joined[(at + 1) % steps].append(number)
        for token in range(request.output_tokens - 1):
            running[(at + 1 + token) % steps][number % groups][number // groups] = number, token
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


# How far, in standard deviations of a position's logits, a decoded token's may lie below the best.
# A pass over the whole text and one over a cache round differently: two tokens within this distance
# are a tie. In bf16 rounding moves a logit by about 0.02 deviations; even there fewer than one of
# 150,000 tokens other than the best lies within the tolerance, so a wrong token does not pass.
GREEDY_TOLERANCES = {"fp32": 1e-4, "tf32": 2e-2, "bf16": 1e-1, "fp16": 2e-2}

# Kernels of one pass in bf16: of a layer, and of what stands around the layers.
_KERNELS_PER_LAYER = 56
_OTHER_KERNELS = 20

# The width at which the published standard deviation of weights, 0.02, belongs.
_PUBLISHED_HIDDEN = 1024


class DecoderParameters(Parameters):
    """Shape and numeric format of the language model; defaults are those of Qwen3-0.6B."""

    layers: int = Field(28, ge=1, description="layers of the language model")
    hidden: int = Field(1024, ge=1, description="elements of a token's state")
    heads: int = Field(16, ge=1, description="heads of queries")
    kv_heads: int = Field(8, ge=1, description="heads of keys and values; divides heads")
    head_dim: int = Field(128, ge=2, multiple_of=2, description="elements of a head")
    inner: int = Field(3072, ge=1, description="elements between the products of a layer's MLP")
    vocabulary: int = Field(151936, ge=2, description="tokens that the model knows")
    dtype: MatmulType = Field("bf16", description="numeric format of weights and arithmetic")

    @field_validator("kv_heads")
    @classmethod
    def _divides_heads(cls, kv_heads: int, info: ValidationInfo) -> int:
        heads = info.data.get("heads", kv_heads)
        if heads % kv_heads:
            raise ValueError(f"must divide the {heads} heads of queries")
        return kv_heads


# Of a language model that takes a CPU under a millisecond a token.
TINY_DECODER = {
    "layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "head_dim": 16, "inner": 96,
    "vocabulary": 512, "dtype": "fp32",
}  # fmt: skip
SMALL_DECODER = {"layers": 8, "vocabulary": 32768}


class Decoder:
    """The model on its device, and its passes over caches that the caller keeps.

    A cache is one tensor (layers, 2, batch, kv_heads, capacity, head_dim), keys then values, so
    that it can be an argument of a launch. Passes run on the current stream.

    Args:
        parameters: shape and numeric format.
        device: holds the weights.
        seed: of the weights.
        longest: tokens that `behind` may find or add in a sequence.
        layers: number of layers, if not the parameters'.

    """

    def __init__(
        self,
        parameters: DecoderParameters,
        device: Device,
        seed: int,
        longest: int,
        layers: int | None = None,
    ) -> None:
        self._shape = shape = parameters
        self._layers = parameters.layers if layers is None else layers
        self._place = device.torch_device
        self._positions = torch.arange(longest, device=self._place)[None]
        self.model = seeded_model(
            Qwen3Decode("0.6b"), "full", seed, set_precision(shape.dtype), self._place,
            num_hidden_layers=self._layers,
            hidden_size=shape.hidden,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            intermediate_size=shape.inner,
            vocab_size=shape.vocabulary,
            # With 0.02 at any width, the layers of a narrow model would add next to nothing to a
            # token's own embedding, and each token would be followed by itself.
            initializer_range=0.02 * (_PUBLISHED_HIDDEN / shape.hidden) ** 0.5,
        )  # fmt: skip

    def new_cache(self, batch: int, capacity: int) -> torch.Tensor:
        """Make an empty cache."""
        shape = self._shape
        size = (self._layers, 2, batch, shape.kv_heads, capacity, shape.head_dim)
        return torch.zeros(size, device=self._place, dtype=self.model.dtype)

    def behind(self, tokens: torch.Tensor, cache: torch.Tensor, start: int) -> torch.Tensor:
        """Run tokens that follow ``start`` others; return the last token's logits.

        Args:
            tokens: (batch, n); one token, or a whole text that follows nothing.
            cache: holds the ``start`` preceding tokens; the new ones are written after them.
            start: known to the host, so that only the valid part of the cache is read.

        Returns:
            (batch, 1, vocabulary)

        """
        positions = self._positions[:, start : start + tokens.shape[1]]
        return decoded(self.model, tokens, positions, CacheBehind(cache, start), last=1)

    def decode(self, text: torch.Tensor, cache: torch.Tensor, start: int, end: int) -> None:
        """Run a text's tokens from ``start`` to ``end``, and write their most likely successor."""
        logits = self.behind(text[:, start:end], cache, start)
        torch.argmax(logits[:, -1], dim=-1, keepdim=True, out=text[:, end : end + 1])

    def at(
        self, tokens: torch.Tensor, positions: torch.Tensor, cache: torch.Tensor
    ) -> torch.Tensor:
        """Run tokens at positions that only the device knows; return the logits of each.

        The whole cache is read, and masked beyond each token's own position.

        Args:
            tokens: (batch, n).
            positions: (batch, n).
            cache: is written at the positions; other values must be finite.

        Returns:
            (batch, n, vocabulary)

        """
        slots = torch.arange(cache.shape[4], device=positions.device)
        seen = slots <= positions[:, None, :, None]
        return decoded(self.model, tokens, positions, _At(cache, positions), seen)

    def plain(self, tokens: torch.Tensor, last: int) -> torch.Tensor:
        """Run whole texts (batch, n) without a cache, with transformers' own mask.

        Returns:
            logits of the ``last`` positions, (batch, last, vocabulary)

        """
        output = self.model(input_ids=tokens, use_cache=False, logits_to_keep=last)
        logits: torch.Tensor = output.logits
        return logits

    def require_greedy(self, what: str, prompt: torch.Tensor, output: torch.Tensor) -> None:
        """Require that each token is the most likely after the prompt and earlier tokens.

        By induction this is greedy decoding, up to ties. It takes one plain pass over the whole
        text.

        Args:
            what: for the error.
            prompt: (n,)
            output: (m,), at least 1; decoded after the prompt.

        Raises:
            CheckFailed: naming the first wrong token, and its deviation.

        """
        text = torch.cat([prompt, output])[None]
        # The last token's own successor is not asked for.
        logits = self.plain(text[:, :-1], len(output))[0].float()
        best = logits.max(dim=-1)
        found = logits.gather(1, output[:, None])[:, 0]
        below = (best.values - found) / logits.std(dim=-1)
        tolerance = GREEDY_TOLERANCES[self._shape.dtype]
        for index, distance in enumerate(below.tolist()):
            if not distance <= tolerance:
                raise CheckFailed(
                    f"{what}: decoded token {index} is {int(output[index])}, but "
                    f"{int(best.indices[index])} is likelier by {distance:.3g} standard "
                    f"deviations of the logits (tolerance {tolerance:g})"
                )


def held_layers(layers: int, passes: int) -> int:
    """Return the most layers with which all kernels of some passes can be held back."""
    fitting = (HELD_KERNELS // passes - _OTHER_KERNELS) // _KERNELS_PER_LAYER
    return max(1, min(layers, fitting))


def spoil_tokens(tokens: torch.Tensor, vocabulary: int) -> None:
    """Replace tokens by other valid ones, so that a device can still look them up."""
    tokens.add_(1).remainder_(vocabulary)


class _At:
    """As `CacheBehind`, for tokens at positions (batch, n) held on the device."""

    def __init__(self, cache: torch.Tensor, positions: torch.Tensor) -> None:
        self._cache = cache
        self._positions = positions

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a layer's new keys and values; return the whole cache of the layer."""
        where = self._positions[:, None, :, None].expand_as(keys)
        layer = self._cache[layer_idx]
        layer[0].scatter_(2, where, keys)
        layer[1].scatter_(2, where, values)
        return layer[0], layer[1]
