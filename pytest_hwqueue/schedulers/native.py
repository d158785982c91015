"""The driver's own scheduling, all streams at one priority."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_hwqueue.devices.protocol import StreamPool
from pytest_hwqueue.errors import NotProven
from pytest_hwqueue.schedulers import mps_daemons
from pytest_hwqueue.schedulers.evidence import InsideEvidence, named
from pytest_hwqueue.schedulers.mode import (
    PROCESSES,
    THREADS,
    ModeWithoutServices,
    TenantRequest,
)
from pytest_hwqueue.schedulers.protocol import Proof

# Libraries of schedulers that would stand between a process and the driver.
_INTERCEPTORS = ("libshimcuda.so", "libshimhip.so", "libpreempt.so")


class Native:
    """One priority for all streams of a cell."""

    mode = "native"

    def unavailable(self, device_kind: str, urgency: Sequence[int]) -> str | None:
        """Say why the mode cannot be used: it always can."""
        return None

    def priorities(self, urgency: Sequence[int]) -> list[int]:
        """Normal for all."""
        return [0] * len(urgency)

    def proof(self, pool: StreamPool, urgency: Sequence[int]) -> Proof:
        """All streams report one priority."""
        return _one_priority(self.mode, pool.device_priorities())


class NativeTenants(ModeWithoutServices):
    """One priority for all tenants, and nothing between them and the driver."""

    text = "native"
    placements = frozenset({PROCESSES, THREADS})

    def unavailable(self, device_kind: str, tenants: Sequence[TenantRequest]) -> str | None:
        """An MPS daemon may be running that would make every process its client."""
        if device_kind == "cuda":
            return mps_daemons.serves_us()
        return None

    def proof(self, pids: Mapping[str, int], inside: Mapping[str, InsideEvidence]) -> Proof:
        """All streams report one priority, and no scheduler's library is mapped."""
        for name, evidence in inside.items():
            found = [path for stem in _INTERCEPTORS for path in named(evidence.maps, stem)]
            if found:
                raise NotProven(
                    f"native: tenant {name} has {', '.join(found)} mapped; remove its folder from "
                    "LD_LIBRARY_PATH"
                )
        seen = [priority for each in inside.values() for priority in each.stream_priorities]
        return _one_priority(self.text, seen)


def _one_priority(mode: str, seen: list[int]) -> Proof:
    if len(set(seen)) != 1:
        raise NotProven(f"{mode}: streams should share one priority, but report {seen}")
    return Proof(mode, f"all {len(seen)} streams report priority {seen[0]}", tuple(seen))
