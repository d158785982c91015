"""Names and shapes of models."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from pytest_hwqueue.errors import BadInput
from pytest_hwqueue.workloads.workload import MatmulType, valid_parameters

if TYPE_CHECKING:
    from pytest_hwqueue.workloads.tenants.families import ModelFamily


MISSING_TRANSFORMERS = (
    "models need the package transformers, which is not installed: "
    "pip install 'pytest-hwqueue[models]'"
)


def model_family(name: str) -> ModelFamily:
    """Import the family of the model called ``name`` and return its variant.

    Raises:
        BadInput: listing the names there are.

    """
    if name not in MODELS:
        raise BadInput(f"no model {name!r}; there are {', '.join(MODELS)}")
    family, variant, _ = MODELS[name]
    families = importlib.import_module("pytest_hwqueue.workloads.tenants.families")
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


def model_shape(model: str, size: ModelSize, given: Mapping[str, Any]) -> Shape:
    """Return the shape of one of `MODELS`: that of its size, with the parameters given.

    Raises:
        BadInput: naming the model, the parameter, its value and what is valid.

    """
    *_, found = MODELS[model]
    return valid_parameters(model, found, {**found.sizes[size], **given})
