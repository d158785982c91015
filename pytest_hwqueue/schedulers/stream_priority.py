"""Stream priorities: work that a workload calls urgent goes to streams of higher priority."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pytest_hwqueue.devices.protocol import StreamPool
from pytest_hwqueue.schedulers.protocol import NotProven, Proof


class StreamPriority:
    """Each stream gets the priority that its work deserves, within the device's range."""

    mode = "stream-priority"

    def unavailable(self, device_kind: str, urgency: Sequence[int]) -> str | None:
        """The CPU's threads have no priorities, and equal urgency leaves nothing to order."""
        if device_kind == "cpu":
            return "stream-priority needs an accelerator: the CPU's streams have no priorities"
        if len(set(urgency)) < 2:
            return "stream-priority would change nothing: no stream's work is more urgent"
        return None

    def priorities(self, urgency: Sequence[int]) -> list[int]:
        """As asked for."""
        return list(urgency)

    def proof(self, pool: StreamPool, urgency: Sequence[int]) -> Proof:
        """The streams report priorities in the order of urgency (lower numbers are more urgent)."""
        seen = pool.device_priorities()
        levels = {urgent: {seen[i] for i in range(len(seen)) if urgency[i] == urgent}
                  for urgent in set(urgency)}  # fmt: skip
        ordered = [levels[urgent] for urgent in sorted(levels, reverse=True)]
        for more, less in pairwise(ordered):
            if max(more) >= min(less):
                raise NotProven(
                    f"stream-priority: urgent streams should report lower numbers than normal "
                    f"ones, but the streams report {seen} for urgencies {list(urgency)}"
                )
        return Proof(self.mode, f"priorities read back: {seen}", tuple(seen))
