"""A transformers model with seeded weights, drawn on its device in its numeric format."""

from __future__ import annotations

from typing import Any

import torch

from pytest_hwqueue.devices.protocol import Device
from pytest_hwqueue.workloads.matmul import MatmulType, set_precision
from pytest_hwqueue.workloads.tenants.family import ModelFamily
from pytest_hwqueue.workloads.tenants.weights import seeded_model

_TORCH_TYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


def placed_model(family: ModelFamily, dtype: MatmulType, device: Device, seed: int) -> Any:
    """Build a family's full model for inference; allow TF32 in the process or forbid it.

    Raises:
        MissingTransformers: if transformers is not installed.

    """
    set_precision(dtype)
    model = seeded_model(family, "full", seed, _TORCH_TYPES[dtype], device.torch_device)
    model.eval().requires_grad_(False)
    return model
