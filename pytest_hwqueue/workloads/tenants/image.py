"""Residual networks that classify images, in their usual depths."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from pytest_hwqueue.workloads.tenants.family import ModelFamily
from pytest_hwqueue.workloads.tenants.shapes import ImageShape, ModelSize

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
