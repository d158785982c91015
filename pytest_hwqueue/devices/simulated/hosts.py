"""The hosts of modelled tenants: what a request's launches cost, and who launches when."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_hwqueue.devices.simulated.engine import Engine
from pytest_hwqueue.devices.simulated.hardware import RequestHost
from pytest_hwqueue.devices.simulated.work import KernelWork, Work

# What one call of the host enqueues: mostly one kernel.
Operation = tuple[Work, ...]
# Takes an operation that a thread has launched, and when.
Enqueue = Callable[[Operation, int], None]


def operations_of(works: Sequence[Work]) -> tuple[Operation, ...]:
    """Group works by the operation that launches them."""
    grouped: list[list[Work]] = []
    for work in works:
        if grouped and isinstance(work, KernelWork) and work.within:
            grouped[-1].append(work)
        else:
            grouped.append([work])
    return tuple(tuple(group) for group in grouped)


class Process:
    """A process of tenants: whether it is cold, and the lock that its threads pass on.

    A thread holds the lock while it launches one operation. Then those that wait go first.

    Args:
        engine: whose calendar it lives by.
        host: how it behaves.

    """

    def __init__(self, engine: Engine, host: RequestHost) -> None:
        self._engine = engine
        self._host = host
        self._threads = 0
        # It has just warmed up.
        self._launched_ns = 0
        self._waiting: deque[_Launches] = deque()
        self._held = False

    def add_thread(self) -> None:
        """Note that it has one more thread."""
        self._threads += 1

    def slowness(self, now_ns: int, draws: random.Random) -> float:
        """Return the factor on the host work of a request that begins now."""
        host = self._host
        factor = math.exp(draws.gauss(0, host.spread))
        if now_ns - self._launched_ns > host.cold_after_ns:
            factor *= host.cold_factor
        return factor

    def launch(
        self, now_ns: int, each_ns: int, operations: Sequence[Operation], enqueue: Enqueue
    ) -> None:
        """Let a thread enqueue operations, each of which takes it ``each_ns``."""
        if self._threads == 1:
            # Nobody can come between, so that all times are known at once.
            for operation in operations:
                now_ns += each_ns
                enqueue(operation, now_ns)
            self._launched_ns = now_ns
            return
        self._waiting.append(_Launches(operations, each_ns, enqueue))
        if not self._held:
            self._held = True
            self._engine.at(now_ns + each_ns, self._launched)

    def _launched(self, now_ns: int) -> None:
        thread = self._waiting.popleft()
        self._launched_ns = now_ns
        operation = thread.operations[thread.next]
        thread.next += 1
        if thread.next < len(thread.operations):
            self._waiting.append(thread)
        self._held = bool(self._waiting)
        if self._held:
            after = self._waiting[0]
            handover_ns = 0 if after is thread else self._host.handover_ns
            self._engine.at(now_ns + handover_ns + after.each_ns, self._launched)
        thread.enqueue(operation, now_ns)


@dataclass
class _Launches:
    """A thread's operations, and which of them is next."""

    operations: Sequence[Operation]
    each_ns: int
    enqueue: Enqueue
    next: int = 0
