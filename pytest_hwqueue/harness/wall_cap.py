"""Applies the time cap to wall time too if the device's own time is virtual."""

from __future__ import annotations

import time
from collections.abc import Callable

from pytest_hwqueue.devices.protocol import Device


def wall_cap(device: Device, max_time_ns: int) -> Callable[[], bool]:
    """Return a function that says whether simulating takes too long; never so on real devices.

    Args:
        device: to measure.
        max_time_ns: how long simulating may take from now on.

    """
    if not device.capabilities.virtual_time:
        return lambda: False
    deadline = time.monotonic_ns() + max_time_ns
    return lambda: time.monotonic_ns() >= deadline


def wall_cap_reached(max_time_ns: int, done: int, planned: int) -> str:
    """Return text saying that a loop ended because simulating took too long."""
    return (
        f"wall-time cap of {max_time_ns / 1e9:.3g} s, after {done} of {planned} iterations, which "
        "take this machine so long to simulate: raise --hwq-max-time, or measure less"
    )
