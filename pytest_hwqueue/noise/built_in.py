"""The built-in noises: their neighbours, and the remedies applied to the measured process."""

from __future__ import annotations

from pytest_hwqueue.noise.cpu import Cpu
from pytest_hwqueue.noise.disk import Disk
from pytest_hwqueue.noise.network import Network
from pytest_hwqueue.noise.opening import Noise, NoisePlaces


def none(places: NoisePlaces) -> Noise:
    """Load nothing."""
    return Noise("none", ())


def cpu(places: NoisePlaces) -> Noise:
    """Load all cores."""
    return Noise("cpu", (Cpu(),))


def network(places: NoisePlaces) -> Noise:
    """Load the loopback interface."""
    return Noise("network", (Network(),))


def disk(places: NoisePlaces) -> Noise:
    """Load a disk."""
    return Noise("disk", (Disk(places.folder, places.size_bytes),))


def heavy(places: NoisePlaces) -> Noise:
    """Load cores, network and disk."""
    return Noise("heavy", (Cpu(), Network(), Disk(places.folder, places.size_bytes)))


def optimised(places: NoisePlaces) -> Noise:
    """Load all cores; pin and raise the measured process."""
    return Noise("optimised", (Cpu(),), "pinned")


def isolated(places: NoisePlaces) -> Noise:
    """Load the cores that pinning leaves free; pin and raise the measured process."""
    return Noise("isolated", (Cpu(),), "isolated")
