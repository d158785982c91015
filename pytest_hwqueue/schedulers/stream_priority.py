"""Stream priorities: work that a workload or tenant calls urgent gets more urgent streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from pytest_hwqueue.devices.protocol import StreamPool
from pytest_hwqueue.errors import NotProven
from pytest_hwqueue.schedulers.evidence import InsideEvidence
from pytest_hwqueue.schedulers.mode import (
    THREADS,
    ModeWithoutServices,
    TenantRequest,
    differing_priorities,
)
from pytest_hwqueue.schedulers.protocol import Proof

_NEEDS_ACCELERATOR = "stream-priority needs an accelerator: the CPU's streams have no priorities"


class StreamPriority:
    """Each stream of a cell gets the priority that its work deserves, within the device's range."""

    mode = "stream-priority"

    def unavailable(self, device_kind: str, urgency: Sequence[int]) -> str | None:
        """The CPU's threads have no priorities, and equal urgency leaves nothing to order."""
        if device_kind == "cpu":
            return _NEEDS_ACCELERATOR
        if len(set(urgency)) < 2:
            return "stream-priority would change nothing: no stream's work is more urgent"
        return None

    def priorities(self, urgency: Sequence[int]) -> list[int]:
        """As asked for."""
        return list(urgency)

    def proof(self, pool: StreamPool, urgency: Sequence[int]) -> Proof:
        """The streams report priorities in the order of urgency (lower numbers are more urgent)."""
        return _in_order(self.mode, urgency, pool.device_priorities())


class StreamPriorityTenants(ModeWithoutServices):
    """Each tenant's streams get its priority; the driver orders streams of one process only."""

    text = "stream-priority"
    placements = frozenset({THREADS})

    def unavailable(self, device_kind: str, tenants: Sequence[TenantRequest]) -> str | None:
        """The CPU's threads have no priorities, and equal tenants leave nothing to order."""
        if device_kind == "cpu":
            return _NEEDS_ACCELERATOR
        return differing_priorities(self.text, tenants)

    def stream_priority(self, priority: int) -> int:
        """Return the tenant's."""
        return priority

    def proof(self, pids: Mapping[str, int], inside: Mapping[str, InsideEvidence]) -> Proof:
        """The tenants' streams report priorities in the order asked for."""
        if len(set(pids.values())) > 1:
            raise NotProven(
                "stream-priority: the tenants live in several processes, between which the driver "
                "knows no stream priorities; place them in threads"
            )
        asked = [priority for each in inside.values() for priority in each.asked_priorities]
        seen = [priority for each in inside.values() for priority in each.stream_priorities]
        return _in_order(self.text, asked, seen)


def _in_order(mode: str, urgency: Sequence[int], seen: list[int]) -> Proof:
    levels = {urgent: {seen[i] for i in range(len(seen)) if urgency[i] == urgent}
              for urgent in set(urgency)}  # fmt: skip
    ordered = [levels[urgent] for urgent in sorted(levels, reverse=True)]
    for more, less in pairwise(ordered):
        if max(more) >= min(less):
            raise NotProven(
                f"{mode}: urgent streams should report lower numbers than normal ones, but the "
                f"streams report {seen} for urgencies {list(urgency)}"
            )
    return Proof(mode, f"priorities read back: {seen}", tuple(seen))
