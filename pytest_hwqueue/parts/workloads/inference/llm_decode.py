"""Greedy decoding at batch 1: hundreds of small kernels per token, token after token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field

from pytest_hwqueue.parts.devices.protocol import Stream
from pytest_hwqueue.parts.workloads.inference.decoder import (
    SMALL_DECODER,
    TINY_DECODER,
    Decoder,
    DecoderParameters,
    held_layers,
    spoil_tokens,
)
from pytest_hwqueue.parts.workloads.numerics import poison
from pytest_hwqueue.parts.workloads.workload import PrimaryLatency, Setup, Workload


class DecodeParameters(DecoderParameters):
    """The model, the text before the decoded tokens, and their number."""

    context: int = Field(512, ge=2, description="tokens before the first decoded one")
    tokens: int = Field(4, ge=2, description="tokens that each stream decodes in an iteration")


class LlmDecode(Workload, declared="llm_decode"):
    """Each stream decodes its own sequence, one launch per token, with shared weights.

    Every iteration decodes the same tokens again after the same context, so that all cost the same.
    A launch tagged ``token`` is ready when the previous token is done: its latency is the time
    between tokens. The first stream's sequence starts anew in each iteration: its first token comes
    from a pass over its context, whose latency is the time to first token. Which token comes next
    changes no shape and no launch: nothing is decided on values.
    """

    # A token is 950 kernels: 4 ms against 0.1 ms to launch its graph.
    primary = PrimaryLatency(
        "token", "launch", "the time between two tokens of a sequence", marks=None
    )
    parameters: DecodeParameters
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {**TINY_DECODER, "context": 16},
        "small": {**SMALL_DECODER, "context": 128},
        "full": {},
    }

    def setup(self, setup: Setup) -> None:
        """Create the weights, and for each stream a context and its key-value cache."""
        parameters = self.parameters
        place = setup.device.torch_device
        context = parameters.context
        length = context + parameters.tokens
        self.decoder = Decoder(parameters, setup.device, setup.seed, length)
        # The host's generator: the same texts on every device.
        generator = torch.Generator().manual_seed(setup.seed)
        shape = (setup.streams, 1, length)
        texts = torch.randint(parameters.vocabulary, shape, generator=generator)
        self.texts = list(texts.to(place))
        self.caches = [self.decoder.new_cache(1, length) for _ in self.texts]
        # The context's last token is what the first step is given.
        for text, cache in zip(self.texts, self.caches, strict=True):
            self.decoder.behind(text[:, : context - 1], cache, 0)

    def iterate(self, streams: Sequence[Stream]) -> None:
        """Enqueue the tokens, each for all streams before the next."""
        first = self.parameters.context - 1
        for position in range(first, first + self.parameters.tokens):
            for index, (text, cache) in enumerate(zip(self.texts, self.caches, strict=True)):
                if (index, position) == (0, first):
                    streams[0].launch(self._prefill, text, cache, tag="first_token")
                else:
                    streams[index].launch(self._decode, position, text, cache, tag="token")

    def work_per_iteration(self) -> dict[str, float]:
        """Return the tokens of all streams."""
        return {"tokens": float(len(self.texts) * self.parameters.tokens)}

    def check(self, run_once: Callable[[], None]) -> None:
        """Compare each sequence with a plain pass over its whole text, without a cache."""
        context = self.parameters.context
        with torch.inference_mode():
            for text, cache in zip(self.texts, self.caches, strict=True):
                spoil_tokens(text[:, context:], self.parameters.vocabulary)
                cache[..., context - 1 :, :] = float("nan")
            poison(self.caches[0])
            run_once()
            for index, text in enumerate(self.texts):
                what = f"stream {index}"
                self.decoder.require_greedy(what, text[0, :context], text[0, context:])

    def timeline_parameters(self, streams: int) -> dict[str, Any]:
        """Return two tokens each and few layers: an accelerator cannot hold many kernels."""
        return {"tokens": 2, "layers": held_layers(self.parameters.layers, 2 * streams)}

    def _prefill(self, text: torch.Tensor, cache: torch.Tensor) -> None:
        """Run the whole context and append its most likely successor."""
        self.decoder.decode(text, cache, 0, self.parameters.context)

    def _decode(self, position: int, text: torch.Tensor, cache: torch.Tensor) -> None:
        """Run the token at a position and write its most likely successor after it."""
        self.decoder.decode(text, cache, position, position + 1)
