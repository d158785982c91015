"""Stream priorities: work that a workload or tenant declares urgent gets urgent streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from pytest_hwqueue.data.errors import NotProven
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.data.records.proof import Proof
from pytest_hwqueue.parts.schedulers.inside_evidence import InsideEvidence, refuse_interceptors
from pytest_hwqueue.parts.schedulers.syntax import Scheduler, TenantRequest, shared_by_mps


class StreamPriority(Scheduler):
    """Each stream gets the priority of its work, within the device's range.

    The driver orders only streams of one process.
    """

    placements = frozenset({TenantPlacement.THREADS})

    def pointless(self, tenants: Sequence[TenantRequest]) -> str | None:
        """Refuse equal urgency or equal tenants, which leave nothing to order."""
        if any(len(set(tenant.urgency)) == 1 for tenant in tenants):
            return f"{self.mode} would change nothing: no stream's work is more urgent"
        return self.equal_priorities(tenants)

    def priorities(self, urgency: Sequence[int]) -> list[int]:
        """Return the requested priorities."""
        return list(urgency)

    def proof(self, pids: Mapping[str, int], inside: Mapping[str, InsideEvidence]) -> Proof:
        """Require priorities in the requested order (lower numbers are more urgent)."""
        if len(set(pids.values())) > 1:
            raise NotProven(
                f"{self.mode}: the tenants live in several processes, between which the driver "
                "knows no stream priorities; place them in threads"
            )
        asked = [priority for each in inside.values() for priority in each.asked_priorities]
        seen = [priority for each in inside.values() for priority in each.stream_priorities]
        levels = {urgent: {seen[i] for i in range(len(seen)) if asked[i] == urgent}
                  for urgent in set(asked)}  # fmt: skip
        ordered = [levels[urgent] for urgent in sorted(levels, reverse=True)]
        for more, less in pairwise(ordered):
            if max(more) >= min(less):
                raise NotProven(
                    f"{self.mode}: urgent streams should report lower numbers than normal ones, "
                    f"but the streams report {seen} for urgencies {asked}"
                )
        refuse_interceptors(self.mode, inside)
        shared = shared_by_mps(self.mode, inside)
        return Proof(self.mode, f"priorities read back: {seen}{shared}", tuple(seen))
