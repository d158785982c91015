"""Families of models: images, encoders, decoders."""

from __future__ import annotations

import functools
import importlib
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import torch

from pytest_hwqueue.data.errors import BadInput, HwqError, nearest, translated
from pytest_hwqueue.parts.devices.conditions import uses_library
from pytest_hwqueue.parts.workloads.tenants.shapes import (
    MISSING_TRANSFORMERS,
    DecoderShape,
    EncoderShape,
    ImageShape,
    ModelSize,
    TorchvisionShape,
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


def torchvision() -> ModuleType:
    """Import torchvision, at the first use of one of its models.

    Raises:
        HwqError: if it cannot be imported, as where it was built for another torch.

    """
    with translated(HwqError, "torchvision cannot be imported", ImportError, RuntimeError):
        library = importlib.import_module("torchvision")
    uses_library("torchvision", library.__version__)
    return library


class ModelFamily(ABC):
    """One variant of a family of models; a new family is one subclass and its registry lines.

    Attributes:
        items: what a batch consists of, with the fields of its shape in braces.

    """

    items: ClassVar[str]

    def __init__(self, variant: str) -> None:
        self.variant = variant

    @abstractmethod
    def build(self, size: ModelSize, dtype: torch.dtype, **changed: Any) -> Any:
        """Return a model, its weights drawn from torch's generator on the current device.

        Args:
            size: of what the family offers.
            dtype: numeric format of the weights.
            changed: fields of the configuration, instead of the family's.

        Raises:
            HwqError: if the library that makes it is not installed.
            BadInput: if that library has no such model.

        """

    @abstractmethod
    def forward(
        self, model: Any, batch: int, shape: Any, generator: torch.Generator
    ) -> Callable[[], torch.Tensor]:
        """Create inputs on the model's device and return one forward pass over them.

        Args:
            model: of `build`, on its device and in its numeric format.
            batch: items in one pass.
            shape: of the family's class in `shapes`.
            generator: the host's, so that inputs are the same on every device.

        """

    def tame(self, model: Any) -> None:  # noqa: B027  # most families need nothing
        """Change freshly seeded weights so that values stay within every numeric format."""


class TransformersFamily(ModelFamily):
    """A family of transformers.

    Attributes:
        identity: the configuration fields that identify this variant.
        model_class: name of a transformers class that makes models from configurations.
        configuration_class: name of its configuration class.

    """

    identity: ClassVar[tuple[str, ...]]
    model_class: ClassVar[str]
    configuration_class: ClassVar[str]

    @abstractmethod
    def configuration(self, size: ModelSize) -> dict[str, Any]:
        """Return the arguments of the configuration class."""

    def build(self, size: ModelSize, dtype: torch.dtype, **changed: Any) -> Any:
        """Return a model of the configuration."""
        library = transformers()
        fields = {**self.configuration(size), **changed}
        configuration = getattr(library, self.configuration_class)(**fields)
        return getattr(library, self.model_class).from_config(configuration, dtype=dtype)


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


# Of a batch, so many items are drawn: a host draws a thousand images in more than a second, which
# every window's start would pay.
_DRAWN = 16


def _repeated(drawn: torch.Tensor, batch: int) -> torch.Tensor:
    """Return a batch in which items drawn for it take turns."""
    times = -(-batch // len(drawn))
    return drawn.repeat(times, *[1] * (drawn.dim() - 1))[:batch].contiguous()


def _images(
    batch: int, side: int, generator: torch.Generator, place: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """Return images of unit variance."""
    drawn = torch.randn(min(batch, _DRAWN), 3, side, side, generator=generator)
    return _repeated(drawn.to(place, dtype), batch)


class ResNet(TransformersFamily):
    """ResNet-18, -34, -50, -101 or -152 on square images (tiny: with thin layers)."""

    identity = ("layer_type", "depths", "hidden_sizes", "embedding_size", "num_channels")
    model_class = "AutoModelForImageClassification"
    configuration_class = "ResNetConfig"
    items = "images of 3×{image_size}×{image_size}"

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

    def forward(
        self, model: Any, batch: int, shape: ImageShape, generator: torch.Generator
    ) -> Callable[[], torch.Tensor]:
        """Make images of unit variance and return their classification."""
        images = _images(batch, shape.image_size, generator, model.device, model.dtype)
        return lambda: model(pixel_values=images).logits

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


class Torchvision(ModelFamily):
    """A classification model of torchvision, by its name there; all its layers at each size."""

    items = "images of 3×{image_size}×{image_size}"

    def build(self, size: ModelSize, dtype: torch.dtype, **changed: Any) -> Any:
        """Return the model without its published weights: nothing is downloaded."""
        models = torchvision().models
        # Those of detection, segmentation and video are in modules of their own.
        names = models.list_models(module=models)
        if self.variant not in names:
            near = nearest(self.variant, names)
            raise BadInput(f"torchvision has no classification model {self.variant!r}; {near}")
        # Not converted afterwards: that would exchange parameters, which fake ones do not allow.
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            return models.get_model(self.variant, weights=None, **changed)
        finally:
            torch.set_default_dtype(before)

    def forward(
        self, model: Any, batch: int, shape: TorchvisionShape, generator: torch.Generator
    ) -> Callable[[], torch.Tensor]:
        """Make images of unit variance and return their classification."""
        weight = next(model.parameters())
        images = _images(batch, shape.image_size, generator, weight.device, weight.dtype)
        return lambda: model(images)

    def tame(self, model: Any) -> None:
        """Scale what each block of a ResNet adds, as in `ResNet`."""
        blocks = [each for each in model.modules() if hasattr(each, "downsample")]
        for block in blocks:
            last = block.bn3 if hasattr(block, "bn3") else block.bn2
            last.weight.mul_(1 / math.sqrt(len(blocks)))


# Layers, hidden size and heads (Devlin et al., "BERT", 2018, section 3).
_BERT = {"base": (12, 768, 12), "large": (24, 1024, 16)}


class Bert(TransformersFamily):
    """BERT's encoder, base or large, over whole sequences (tiny: hidden 32)."""

    identity = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    model_class = "AutoModel"
    configuration_class = "BertConfig"
    items = "sequences of {sequence_length} tokens"

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

    def forward(
        self, model: Any, batch: int, shape: EncoderShape, generator: torch.Generator
    ) -> Callable[[], torch.Tensor]:
        """Make random tokens, all attended to, and return the last layer's states."""
        places = (batch, shape.sequence_length)
        tokens = torch.randint(model.config.vocab_size, places, generator=generator)
        tokens = tokens.to(model.device)
        return lambda: model(input_ids=tokens).last_hidden_state


class Qwen3Decode(TransformersFamily):
    """One greedy step of Qwen3-0.6B behind a context (tiny: four thin layers).

    Every request decodes the same token at the same position, so that all cost the same.
    """

    identity = (
        "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads",
        "head_dim", "intermediate_size",
    )  # fmt: skip
    model_class = "AutoModelForCausalLM"
    configuration_class = "Qwen3Config"
    items = "tokens behind a context of {sequence_length}"

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

    def forward(
        self, model: Any, batch: int, shape: DecoderShape, generator: torch.Generator
    ) -> DecodeStep:
        """Make a context of random keys and values and return the step behind it."""
        return DecodeStep(model, batch, shape.sequence_length, generator)


class DecodeStep:
    """One token of each sequence through the model, and its most likely successor.

    Attributes:
        tokens: (batch, 1), what the step is given.
        next_tokens: (batch, 1), what it decodes; not fed back.
        cache: keys and values of the context, as `CacheBehind` takes them, with one slot behind it
            that each step writes anew.

    """

    def __init__(self, model: Any, batch: int, context: int, generator: torch.Generator) -> None:
        config, place = model.config, model.device
        tokens = torch.randint(config.vocab_size, (batch, 1), generator=generator)
        self.tokens = tokens.to(place)
        self.next_tokens = torch.empty_like(self.tokens)
        shape = (batch, config.num_key_value_heads, context + 1, config.head_dim)
        drawn = torch.empty((2, config.num_hidden_layers, *shape), device=place, dtype=model.dtype)
        few = (min(batch, _DRAWN), *shape[1:])
        for layer in drawn.flatten(0, 1):
            layer.copy_(_repeated(torch.randn(few, generator=generator), batch))
        self.cache = drawn.transpose(0, 1)
        self._model = model
        self._context = context
        self._position = torch.full((batch, 1), context, device=place)

    def __call__(self) -> torch.Tensor:
        """Return the logits, (batch, 1, vocabulary)."""
        # The step sees the whole cache: there is no mask to make.
        cache = CacheBehind(self.cache, self._context)
        logits = decoded(self._model, self.tokens, self._position, cache)
        torch.argmax(logits, dim=-1, out=self.next_tokens)
        return logits


def decoded(
    model: Any,
    tokens: torch.Tensor,
    positions: torch.Tensor,
    cache: object,
    mask: torch.Tensor | None = None,
    last: int = 0,
) -> torch.Tensor:
    """Run tokens through a language model.

    Args:
        model: of transformers.
        tokens: (batch, n).
        positions: of the tokens, (batch, n) or (1, n).
        cache: for transformers' attention, whose ``update`` it calls; transformers' own StaticCache
            moves on with every call, and past its end a device asserts.
        mask: true where a token sees another; None if it sees all of the cache.
        last: of how many tokens to return logits; 0 is all.

    Returns:
        logits, (batch, n or last, vocabulary)

    """
    logits: torch.Tensor = model(
        input_ids=tokens,
        position_ids=positions,
        use_cache=True,
        attention_mask={"full_attention": mask},
        logits_to_keep=last,
        **{_cache_argument(type(model).forward): cache},
    ).logits
    return logits


@functools.cache
def _cache_argument(forward: Callable[..., object]) -> str:
    """Return the name under which a model takes its cache: transformers renamed it in 5.24."""
    renamed = "cache" in inspect.signature(forward).parameters
    return "cache" if renamed else "past_key_values"


class CacheBehind:
    """A cache for transformers' attention, for tokens that follow a known number of others.

    Args:
        cache: (layers, 2, batch, heads, capacity, head size), keys then values.
        start: how many tokens stand before; what follows them is written, and all is read.

    """

    def __init__(self, cache: torch.Tensor, start: int) -> None:
        self._cache = cache
        self._start = start

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a layer's new keys and values; return all valid ones."""
        end = self._start + keys.shape[2]
        layer = self._cache[layer_idx]
        layer[0, :, :, self._start : end] = keys
        layer[1, :, :, self._start : end] = values
        return layer[0, :, :, :end], layer[1, :, :, :end]
