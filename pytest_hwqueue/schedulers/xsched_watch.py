"""Counts xserver's reports on its XQueues, sample by sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from pytest_hwqueue.schedulers.xsched_server import Report, XQueue


class Watch:
    """What samples of xserver showed, by process and XQueue.

    Attributes:
        samples: how many were taken.
        held: number in which the first tenant had work but was suspended while the second had work.

    """

    def __init__(self) -> None:
        self.samples = 0
        self.held: Counter[tuple[str, str]] = Counter()
        self._queues: dict[tuple[int, int], XQueue] = {}
        self._states: dict[tuple[int, int], Counter[tuple[bool, bool]]] = {}

    def remember(self, report: Report) -> None:
        """Keep a report's XQueues: those of a process that ends are gone from the next."""
        for queue in report.queues:
            self._queues[queue.pid, queue.handle] = queue

    def add(self, report: Report, pids: Mapping[str, int]) -> None:
        """Count a sample of these tenants (name to process id)."""
        self.samples += 1
        self.remember(report)
        names = {pid: name for name, pid in pids.items()}
        ready, held = set(), set()
        for queue in report.queues:
            states = self._states.setdefault((queue.pid, queue.handle), Counter())
            states[queue.ready, queue.suspended] += 1
            if queue.ready and queue.pid in names:
                ready.add(names[queue.pid])
                if queue.suspended:
                    held.add(names[queue.pid])
        for low in held:
            for high in ready - {low}:
                self.held[low, high] += 1

    def queues(self, pid: int) -> list[XQueue]:
        """The XQueues that a process had."""
        return [queue for (owner, _), queue in self._queues.items() if owner == pid]

    def counts(self, pids: Mapping[str, int]) -> dict[str, int]:
        """Return all counts by name; omit what was never seen.

        XQueues never seen with work are only counted: libraries open streams in reserve.
        """
        if not self.samples:
            return {}
        counts = {"samples": self.samples}
        for name, pid in pids.items():
            never = 0
            for number, queue in enumerate(self.queues(pid)):
                states = self._states.get((pid, queue.handle), Counter())
                if not any(ready for ready, _ in states):
                    never += 1
                    continue
                for (ready, suspended), count in sorted(states.items()):
                    what = ("ready" if ready else "idle") + (" suspended" if suspended else "")
                    counts[f"{name} XQueue {number} {what}"] = count
            if never:
                counts[f"{name} XQueues never seen with work"] = never
        for (low, high), count in sorted(self.held.items()):
            counts[f"{low} ready and suspended while {high} ready"] = count
        return counts
