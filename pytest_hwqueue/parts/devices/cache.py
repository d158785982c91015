"""Emptying a device's cache between iterations."""

from __future__ import annotations

from typing import Protocol

import torch

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.parts.devices.protocol import Device

# The allocator's blocks of this size are whole: memory figures can be told without the buffer.
_BLOCK_BYTES = 2 << 20
# An MI300's Infinity Cache, which stands behind its L2 and is not in its properties.
_BEHIND_L2_BYTES = {"hip": 256 << 20}


def l2_bytes(device: torch.device) -> int:
    """Return the size of the cache that all multiprocessors have in common; 0 if unknown."""
    if device.type == "cpu":
        return 0
    return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))


def cached_bytes(kind: str, of_l2: int) -> int:
    """Return how much a kind of device with an L2 cache of this size keeps in all its caches."""
    return of_l2 + _BEHIND_L2_BYTES.get(kind, 0)


class CacheFlush(Protocol):
    """Empties a cache."""

    size_bytes: int
    """Memory that it holds on the device."""

    def __call__(self) -> None:
        """Return once nothing that the device worked on before is in its cache."""


class CachedDevice(Device, Protocol):
    """A device whose `Capabilities.cold_cache` is set."""

    def cache_flush(self) -> CacheFlush:
        """Return what empties its cache.

        Raises:
            DeviceError: if the size of the cache is not known.

        """


class BufferFlush:
    """Writes a buffer of twice the cache's size, as nvbench and Triton do, and waits for it."""

    def __init__(self, device: torch.device, kind: str, l2_bytes: int) -> None:
        """Allocate the buffer.

        Raises:
            DeviceError: if the driver gives no size of the cache.

        """
        if l2_bytes <= 0:
            raise DeviceError(f"the driver does not tell how large the L2 cache of {device} is")
        cached = cached_bytes(kind, l2_bytes)
        self.size_bytes = -(-2 * cached // _BLOCK_BYTES) * _BLOCK_BYTES
        self._device = device
        self._buffer = torch.empty(self.size_bytes, dtype=torch.int8, device=device)

    def __call__(self) -> None:
        """Write it."""
        self._buffer.zero_()
        if self._device.type != "cpu":
            torch.cuda.synchronize(self._device)
