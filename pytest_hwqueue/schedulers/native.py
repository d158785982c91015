"""The driver's own scheduling, all streams at one priority."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_hwqueue.devices.protocol import StreamPool
from pytest_hwqueue.schedulers.protocol import NotProven, Proof


class Native:
    """One priority for all streams."""

    mode = "native"

    def unavailable(self, device_kind: str, urgency: Sequence[int]) -> str | None:
        """Say why the mode cannot be used: it always can."""
        return None

    def priorities(self, urgency: Sequence[int]) -> list[int]:
        """Normal for all."""
        return [0] * len(urgency)

    def proof(self, pool: StreamPool, urgency: Sequence[int]) -> Proof:
        """All streams report one priority."""
        seen = pool.device_priorities()
        if len(set(seen)) != 1:
            raise NotProven(f"native: streams should share one priority, but report {seen}")
        return Proof(self.mode, f"all {len(seen)} streams report priority {seen[0]}", tuple(seen))
