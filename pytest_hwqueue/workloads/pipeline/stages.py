"""Shared by pipelines: streams in three groups, and memory for copies that overlap kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pytest_hwqueue.devices.protocol import Device, Stream


def thirds(streams: int) -> tuple[int, int, int]:
    """Split a number of streams in three, the largest part first; none is 0 from 3 streams on."""
    return (streams + 2) // 3, (streams + 1) // 3, streams // 3


def grouped(
    streams: Sequence[Stream], sizes: tuple[int, int, int]
) -> tuple[Sequence[Stream], Sequence[Stream], Sequence[Stream]]:
    """Cut streams into three groups of these sizes, in order."""
    first, second = sizes[0], sizes[0] + sizes[1]
    return streams[:first], streams[first:second], streams[second:]


def host_empty(device: Device, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Create a tensor in host memory, page-locked if the device copies from it directly.

    Without page-locking a runtime makes the host wait for each copy. If the device is the host, or
    simulated, there is nothing to lock.
    """
    pinned = device.torch_device.type != "cpu"
    return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=pinned)
