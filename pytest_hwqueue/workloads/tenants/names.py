"""The models by name, without importing what runs them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_hwqueue.workloads.tenants.family import ModelFamily

_PACKAGE = "pytest_hwqueue.workloads.tenants"

# Where the family is, and which of its variants the name means.
MODELS: dict[str, tuple[str, str]] = {
    "resnet18": (f"{_PACKAGE}.image:ResNet", "18"),
    "resnet34": (f"{_PACKAGE}.image:ResNet", "34"),
    "resnet50": (f"{_PACKAGE}.image:ResNet", "50"),
    "resnet101": (f"{_PACKAGE}.image:ResNet", "101"),
    "resnet152": (f"{_PACKAGE}.image:ResNet", "152"),
    "bert-base": (f"{_PACKAGE}.text:Bert", "base"),
    "bert-large": (f"{_PACKAGE}.text:Bert", "large"),
    "qwen3-0.6b": (f"{_PACKAGE}.text:Qwen3Decode", "0.6b"),
}

MISSING_TRANSFORMERS = (
    "models need the package transformers, which is not installed: "
    "pip install 'pytest-hwqueue[models]'"
)


class UnknownModel(ValueError):
    """No model has this name; the text lists those there are."""


def model_family(name: str) -> ModelFamily:
    """Import the family of the model called ``name`` and return its variant.

    Raises:
        UnknownModel: listing the names there are.

    """
    if name not in MODELS:
        raise UnknownModel(f"no model {name!r}; there are {', '.join(MODELS)}")
    place, variant = MODELS[name]
    module, _, attribute = place.partition(":")
    found: type[ModelFamily] = getattr(importlib.import_module(module), attribute)
    return found(variant)
