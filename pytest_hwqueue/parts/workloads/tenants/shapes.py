"""Names and shapes of models."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from pytest_hwqueue.data.errors import BadInput
from pytest_hwqueue.parts.workloads.workload import MatmulType, valid_parameters

if TYPE_CHECKING:
    from pytest_hwqueue.parts.workloads.tenants.families import ModelFamily


MISSING_TRANSFORMERS = (
    "models need the package transformers, which is not installed: "
    "pip install 'pytest-hwqueue[models]'"
)
TORCHVISION = "torchvision:"
"""Begins the name of a model of torchvision: any of its classification models follows."""

MISSING_TORCHVISION = (
    "model {name} needs the package torchvision, which is not installed: pip install torchvision, "
    "in the build that fits your torch, or give model: {other} (transformers')"
)
_OF_TORCHVISION = re.compile(re.escape(TORCHVISION) + "([a-z][a-z0-9_]*)")


def model_family(name: str) -> ModelFamily:
    """Import the family of the model called ``name`` and return its variant.

    Raises:
        BadInput: listing the names there are.

    """
    family, variant, _ = find_model(name)
    families = importlib.import_module("pytest_hwqueue.parts.workloads.tenants.families")
    found: type[ModelFamily] = getattr(families, family)
    return found(variant)


ModelSize = Literal["full", "tiny"]
MODEL_SIZES: tuple[ModelSize, ...] = get_args(ModelSize)


class Shape(BaseModel):
    """A model's parameters; what is not given is as its size has it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    sizes: ClassVar[Mapping[ModelSize, Mapping[str, int]]]

    dtype: MatmulType = Field(
        "fp32", description="numeric format of weights, inputs and arithmetic"
    )


class ImageShape(Shape):
    """Images of ResNet, which halves their sides five times."""

    sizes = {"full": {"image_size": 224}, "tiny": {"image_size": 32}}

    image_size: int = Field(ge=32, description="pixels on each side")


class EncoderShape(Shape):
    """Sequences of BERT, which has embeddings for 512 positions."""

    sizes = {"full": {"sequence_length": 128}, "tiny": {"sequence_length": 16}}

    sequence_length: int = Field(ge=1, le=512, description="tokens in each sequence")


class DecoderShape(Shape):
    """Contexts of Qwen3, which has 40,960 positions; the decoded token takes one."""

    sizes = {"full": {"sequence_length": 512}, "tiny": {"sequence_length": 16}}

    sequence_length: int = Field(
        ge=1, le=40_959, description="tokens of context before the one that is decoded"
    )


class TorchvisionShape(ImageShape):
    """Images of torchvision's models, which have all their layers at each size.

    At ``tiny`` they have 96 pixels, since some take no fewer than 75; a model for images of one
    size alone, as vision transformers are, says so.
    """

    sizes = {"full": {"image_size": 224}, "tiny": {"image_size": 96}}


# The family's class in `families`, which of its variants the name means, and its shapes.
MODELS: dict[str, tuple[str, str, type[Shape]]] = {
    "resnet18": ("ResNet", "18", ImageShape),
    "resnet34": ("ResNet", "34", ImageShape),
    "resnet50": ("ResNet", "50", ImageShape),
    "resnet101": ("ResNet", "101", ImageShape),
    "resnet152": ("ResNet", "152", ImageShape),
    "bert-base": ("Bert", "base", EncoderShape),
    "bert-large": ("Bert", "large", EncoderShape),
    "qwen3-0.6b": ("Qwen3Decode", "0.6b", DecoderShape),
}


def find_model(name: str) -> tuple[str, str, type[Shape]]:
    """Return what `MODELS` has of a model, or the same of one of torchvision's.

    Whether torchvision has it is known only where torchvision is imported.

    Raises:
        BadInput: listing the names there are.

    """
    of_torchvision = _OF_TORCHVISION.fullmatch(name)
    if of_torchvision:
        return "Torchvision", of_torchvision[1], TorchvisionShape
    if name not in MODELS:
        raise BadInput(f"no model {name!r}; there are {', '.join(MODELS)}, and {TORCHVISION}NAME")
    return MODELS[name]


def missing_package(models: Iterable[str | None]) -> str | None:
    """Return which package models need that is not installed, and how to get it, or None."""
    for name in filter(None, models):
        if not name.startswith(TORCHVISION):
            if find_spec("transformers") is None:
                return MISSING_TRANSFORMERS
        elif find_spec("torchvision") is None:
            variant = name.removeprefix(TORCHVISION)
            other = variant if variant in MODELS else "resnet18"
            return MISSING_TORCHVISION.format(name=name, other=other)
    return None


def model_shape(model: str, size: ModelSize, given: Mapping[str, Any]) -> Shape:
    """Return a model's shape: that of its size, with the parameters given.

    Raises:
        BadInput: naming the model, the parameter, its value and what is valid.

    """
    *_, found = find_model(model)
    return valid_parameters(model, found, {**found.sizes[size], **given})
