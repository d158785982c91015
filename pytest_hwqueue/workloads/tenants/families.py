"""Families of models: images, encoders, decoders."""

from __future__ import annotations

import importlib
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import torch

from pytest_hwqueue.errors import HwqError
from pytest_hwqueue.workloads.tenants.shapes import (
    MISSING_TRANSFORMERS,
    DecoderShape,
    EncoderShape,
    ImageShape,
    ModelSize,
)


def transformers() -> ModuleType:
    """Import transformers, at the first use of a model.

    Raises:
        HwqError: if it is not installed.

    """
    try:
        return importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise HwqError(MISSING_TRANSFORMERS) from None


class ModelFamily(ABC):
    """One variant of a family of models; a new family is one subclass and its registry lines.

    Attributes:
        identity: the configuration fields that identify this variant.
        model_class: name of a transformers class that makes models from configurations.
        configuration_class: name of its configuration class.

    """

    identity: ClassVar[tuple[str, ...]]
    model_class: ClassVar[str]
    configuration_class: ClassVar[str]

    def __init__(self, variant: str) -> None:
        self.variant = variant

    @abstractmethod
    def configuration(self, size: ModelSize) -> dict[str, Any]:
        """Return the arguments of the configuration class."""

    @abstractmethod
    def items(self, shape: Any) -> str:
        """Describe what a batch of a shape, as in `forward`, consists of."""

    @abstractmethod
    def forward(
        self, model: Any, batch: int, shape: Any, generator: torch.Generator
    ) -> Callable[[], torch.Tensor]:
        """Create inputs on the model's device and return one forward pass over them.

        Args:
            model: of `model_class`, on its device and in its numeric format.
            batch: items in one pass.
            shape: of the family's class in `shapes`.
            generator: the host's, so that inputs are the same on every device.

        """

    def tame(self, model: Any) -> None:  # noqa: B027  # most families need nothing
        """Change freshly seeded weights so that values stay within every numeric format."""


# Residual layers in each of four stages (He et al., "Deep Residual Learning for Image
# Recognition", 2015, table 1); up to 34 each has two convolutions, from 50 on three.
_DEPTHS = {
    "18": [2, 2, 2, 2],
    "34": [3, 4, 6, 3],
    "50": [3, 4, 6, 3],
    "101": [3, 4, 23, 3],
    "152": [3, 8, 36, 3],
}
_BASIC = ("18", "34")


class ResNet(ModelFamily):
    """ResNet-18, -34, -50, -101 or -152 on square images (tiny: with thin layers)."""

    identity = ("layer_type", "depths", "hidden_sizes", "embedding_size", "num_channels")
    model_class = "AutoModelForImageClassification"
    configuration_class = "ResNetConfig"

    def configuration(self, size: ModelSize) -> dict[str, Any]:
        """Return the arguments of ResNetConfig."""
        first = 64 if size == "full" else 8
        widening = 1 if self.variant in _BASIC else 4
        return {
            "layer_type": "basic" if self.variant in _BASIC else "bottleneck",
            "depths": _DEPTHS[self.variant],
            "hidden_sizes": [widening * first * 2**stage for stage in range(4)],
            "embedding_size": first,
            "num_channels": 3,
            "num_labels": 1000 if size == "full" else 10,
        }

    def items(self, shape: ImageShape) -> str:
        """Images, and how large they are."""
        side = shape.image_size
        return f"images of 3×{side}×{side}"

    def forward(
        self, model: Any, batch: int, shape: ImageShape, generator: torch.Generator
    ) -> Callable[[], torch.Tensor]:
        """Make images of unit variance and return their classification."""
        side = shape.image_size
        images = torch.randn(batch, 3, side, side, generator=generator)
        images = images.to(model.device, model.dtype)

        def run() -> torch.Tensor:
            logits: torch.Tensor = model(pixel_values=images).logits
            return logits

        return run

    def tame(self, model: Any) -> None:
        """Scale what each residual layer adds, so that a deep sum of them keeps its size.

        Untrained, each layer doubles the variance: ResNet-101 leaves float16's range and
        ResNet-152 reaches 1e9. With a factor of 1/√n on n layers the variance grows by at most
        (1 + 1/n)ⁿ < e.
        """
        stages = model.resnet.encoder.stages
        layers = [layer for stage in stages for layer in stage.layers]
        for layer in layers:
            layer.layer[-1].normalization.weight.mul_(1 / math.sqrt(len(layers)))


# Layers, hidden size and heads (Devlin et al., "BERT", 2018, section 3).
_BERT = {"base": (12, 768, 12), "large": (24, 1024, 16)}


class Bert(ModelFamily):
    """BERT's encoder, base or large, over whole sequences (tiny: hidden 32)."""

    identity = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    model_class = "AutoModel"
    configuration_class = "BertConfig"

    def configuration(self, size: ModelSize) -> dict[str, Any]:
        """Return the arguments of BertConfig."""
        layers, hidden, heads = _BERT[self.variant]
        if size == "tiny":
            hidden, heads = 32, 2
        return {
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "num_attention_heads": heads,
            "intermediate_size": 4 * hidden,
            "vocab_size": 30522 if size == "full" else 128,
            "attn_implementation": "sdpa",
        }

    def items(self, shape: EncoderShape) -> str:
        """Sequences, and how long they are."""
        return f"sequences of {shape.sequence_length} tokens"

    def forward(
        self, model: Any, batch: int, shape: EncoderShape, generator: torch.Generator
    ) -> Callable[[], torch.Tensor]:
        """Make random tokens, all attended to, and return the last layer's states."""
        places = (batch, shape.sequence_length)
        tokens = torch.randint(model.config.vocab_size, places, generator=generator)
        tokens = tokens.to(model.device)

        def run() -> torch.Tensor:
            states: torch.Tensor = model(input_ids=tokens).last_hidden_state
            return states

        return run


class Qwen3Decode(ModelFamily):
    """One greedy step of Qwen3-0.6B behind a context (tiny: four thin layers).

    Every request decodes the same token at the same position, so that all cost the same.
    """

    identity = (
        "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads",
        "head_dim", "intermediate_size",
    )  # fmt: skip
    model_class = "AutoModelForCausalLM"
    configuration_class = "Qwen3Config"

    def configuration(self, size: ModelSize) -> dict[str, Any]:
        """Return the arguments of Qwen3Config, from the published model's config.json."""
        full = size == "full"
        return {
            "num_hidden_layers": 28 if full else 4,
            "hidden_size": 1024 if full else 32,
            "num_attention_heads": 16 if full else 4,
            "num_key_value_heads": 8 if full else 2,
            "head_dim": 128 if full else 16,
            "intermediate_size": 3072 if full else 96,
            "vocab_size": 151936 if full else 128,
            "max_position_embeddings": 40960,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
            "tie_word_embeddings": True,
            "attn_implementation": "sdpa",
        }

    def items(self, shape: DecoderShape) -> str:
        """Tokens, and what stands before each."""
        return f"tokens behind a context of {shape.sequence_length}"

    def forward(
        self, model: Any, batch: int, shape: DecoderShape, generator: torch.Generator
    ) -> DecodeStep:
        """Make a context of random keys and values and return the step behind it."""
        return DecodeStep(model, batch, shape.sequence_length, generator)


def cache_argument(model: Any) -> str:
    """Return the name under which a model takes its cache: transformers renamed it in 5.24."""
    renamed = "cache" in inspect.signature(model.forward).parameters
    return "cache" if renamed else "past_key_values"


class DecodeStep:
    """One token of each sequence through the model, and its most likely successor.

    Attributes:
        tokens: (batch, 1), what the step is given.
        next_tokens: (batch, 1), what it decodes; not fed back.
        cache: keys and values of the context.

    """

    def __init__(self, model: Any, batch: int, context: int, generator: torch.Generator) -> None:
        device = model.device
        tokens = torch.randint(model.config.vocab_size, (batch, 1), generator=generator)
        self.tokens = tokens.to(device)
        self.next_tokens = torch.empty_like(self.tokens)
        self.cache = StepCache(model, batch, context, generator)
        self._model = model
        self._cache_argument = cache_argument(model)
        self._position = torch.full((batch, 1), context, device=device)

    def __call__(self) -> torch.Tensor:
        """Return the logits, (batch, 1, vocabulary)."""
        logits: torch.Tensor = self._model(
            input_ids=self.tokens,
            position_ids=self._position,
            use_cache=True,
            # The step sees the whole cache: there is no mask to make.
            attention_mask={"full_attention": None},
            **{self._cache_argument: self.cache},
        ).logits
        torch.argmax(logits, dim=-1, out=self.next_tokens)
        return logits


class StepCache:
    """Keys and values of a context, and one slot behind it that each step writes anew.

    transformers' own StaticCache moves on with every step, and past its end a device asserts.

    Attributes:
        keys: per layer (batch, heads, context + 1, head size), the last slot the step's.
        values: likewise.

    """

    def __init__(self, model: Any, batch: int, context: int, generator: torch.Generator) -> None:
        config = model.config
        shape = (batch, config.num_key_value_heads, context + 1, config.head_dim)

        def random() -> list[torch.Tensor]:
            return [
                torch.randn(shape, generator=generator).to(model.device, model.dtype)
                for _ in range(config.num_hidden_layers)
            ]

        self._context = context
        self.keys = random()
        self.values = random()

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return how many tokens stand before the step, whatever the layer."""
        return self._context

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the step's keys and values of a layer; return the layer's whole cache."""
        self.keys[layer_idx][:, :, self._context :] = keys
        self.values[layer_idx][:, :, self._context :] = values
        return self.keys[layer_idx], self.values[layer_idx]
