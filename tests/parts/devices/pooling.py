"""The CPU as a device with pools that see, or refuse, something else."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_hwqueue.parts.devices.host import HostDevice, HostPool


class Pooling(HostDevice):
    """The CPU with a kind of pool of its own."""

    def __init__(self, kind: type[HostPool]) -> None:
        super().__init__()
        self._kind = kind

    def open_streams(
        self, count: int, priorities: Sequence[int] | None = None, *, gradients: bool = False
    ) -> HostPool:
        return self._kind(count, priorities or [0] * count, gradients)
