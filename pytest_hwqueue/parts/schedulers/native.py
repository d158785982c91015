"""The driver's own scheduling: all streams at one priority, nothing between them and the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_hwqueue.data.errors import NotProven
from pytest_hwqueue.data.metrics.numbers import counted
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.data.records.proof import Proof
from pytest_hwqueue.parts.schedulers import mps_daemons
from pytest_hwqueue.parts.schedulers.inside_evidence import InsideEvidence, refuse_interceptors
from pytest_hwqueue.parts.schedulers.syntax import (
    Scheduler,
    TenantRequest,
    shared_by_mps,
)


class Native(Scheduler):
    """One priority for all streams."""

    placements = frozenset(TenantPlacement)

    def missing(self, device_kind: str, tenants: Sequence[TenantRequest]) -> str | None:
        """Return the MPS daemon that would take the tenants as its clients, or None.

        A cell is measured wherever the user started pytest, even under their own MPS.
        """
        if device_kind == "cuda" and not any(tenant.urgency for tenant in tenants):
            return mps_daemons.serves_us(self.paths.programs)
        return None

    def proof(self, pids: Mapping[str, int], inside: Mapping[str, InsideEvidence]) -> Proof:
        """Require that all streams report one priority, and that no other scheduler is active.

        Of a process that was looked at from outside the streams are not known.
        """
        refuse_interceptors(self.mode, inside)
        shared = shared_by_mps(self.mode, inside)
        seen = [priority for each in inside.values() for priority in each.stream_priorities]
        if len(set(seen)) > 1:
            raise NotProven(f"native: streams should share one priority, but report {seen}")
        evidence = f"no scheduler's library is mapped in {', '.join(inside)}"
        if seen:
            evidence = f"priority {seen[0]} read back from {counted(len(seen), 'stream')}"
        return Proof(self.mode, f"{evidence}{shared}", tuple(seen))
