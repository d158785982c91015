"""A mode for tenants, used for the streams of one cell: the cell's process is the one tenant."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pytest_hwqueue.devices.protocol import StreamPool
from pytest_hwqueue.schedulers.evidence import gather
from pytest_hwqueue.schedulers.mode import SchedulerMode, TenantRequest
from pytest_hwqueue.schedulers.protocol import Proof

# Whoever starts the process of cells gives it ``mode.environment(CELL)`` inside ``mode.services``.
CELL = TenantRequest("cell")


def unavailable_for_cells(mode: SchedulerMode, device_kind: str) -> str | None:
    """Why processes of one cell cannot be started under a mode; None if they can."""
    if device_kind == "sim":
        return (
            f"{mode.text}: a simulated device knows it between tenants, in scenario files, and "
            "not for single tests"
        )
    return mode.unavailable(device_kind, [CELL])


class OneCell:
    """A cell under a mode that needs an environment: all streams alike, in a process started so."""

    def __init__(self, mode: SchedulerMode) -> None:
        self._mode = mode

    @property
    def mode(self) -> str:
        """The mode with its parameters."""
        return self._mode.text

    def unavailable(self, device_kind: str, urgency: Sequence[int]) -> str | None:
        """Never here: `unavailable_for_cells` was asked before the process was started."""
        return None

    def priorities(self, urgency: Sequence[int]) -> list[int]:
        """The mode's own, of a tenant of normal priority, for all."""
        return [self._mode.stream_priority(CELL.priority)] * len(urgency)

    def proof(self, pool: StreamPool, urgency: Sequence[int]) -> Proof:
        """The mode's proof, asked for inside the process that it is about."""
        return self._mode.proof({CELL.name: os.getpid()}, {CELL.name: gather(pool)})
