"""The interface of model families: configuration, inputs, and one forward pass."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import torch

from pytest_hwqueue.workloads.tenants.names import MISSING_TRANSFORMERS
from pytest_hwqueue.workloads.tenants.shapes import ModelSize


class MissingTransformers(ImportError):
    """The library that the models come from is not installed; the text says how to install it."""


def transformers() -> ModuleType:
    """Import transformers, at the first use of a model.

    Raises:
        MissingTransformers: if it is not installed.

    """
    try:
        return importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise MissingTransformers(MISSING_TRANSFORMERS) from None


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
