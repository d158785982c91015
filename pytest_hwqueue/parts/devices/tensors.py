"""Tensors that workloads and measured limits make alike: their types, and memory of the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pytest_hwqueue.parts.devices.protocol import Device

TORCH_TYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
"""torch's types by numeric format; what tells TF32 from float32 is a setting of torch."""


def host_empty(device: Device, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Create a tensor in host memory, page-locked if the device copies from it directly.

    Without page-locking a runtime makes the host wait for each copy. If the device is the host, or
    simulated, there is nothing to lock.
    """
    pinned = device.torch_device.type != "cpu"
    return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=pinned)
