"""A preemptive scheduler in front of the hardware queues, at the granularity of kernels.

As XSched's level 1 does: every stream's commands wait in a queue of its own; at most a threshold of
them are in flight on the hardware, and while a more urgent queue has work none is handed on beyond
the batch that was begun. What is already in flight is waited for.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from pytest_hwqueue.devices.simulated.engine import Done, Engine
from pytest_hwqueue.devices.simulated.work import Work


class _Queue:
    def __init__(self, stream: int, priority: int, threshold: int, batch: int) -> None:
        self.stream = stream
        self.priority = priority
        self.threshold = threshold
        self.batch = batch
        self.waiting: deque[tuple[Work, Done | None, Any, float]] = deque()
        self.in_flight = 0
        # Of the batch that it had begun when it was stopped.
        self.left_of_batch = batch

    @property
    def active(self) -> bool:
        return bool(self.waiting or self.in_flight)


class PreemptiveScheduler:
    """Hands commands on to an engine's streams by priority.

    Args:
        engine: the device.
        round_trip_ns: from a command's end until the scheduler has noticed it.

    """

    def __init__(self, engine: Engine, round_trip_ns: int = 0) -> None:
        self._engine = engine
        self._round_trip_ns = round_trip_ns
        self._queues: list[_Queue] = []

    def add_stream(self, priority: int, threshold: int, process: int = 0, batch: int = 0) -> int:
        """Make a queue in front of a stream of its own; return its index.

        Args:
            priority: the scheduler's alone; to the hardware all its streams are equal.
            threshold: commands of this queue in flight at most.
            process: whose stream it is.
            batch: commands that it still hands on after a more urgent queue has got work.

        Raises:
            ValueError: if the threshold is below 1.

        """
        if threshold < 1:
            raise ValueError(f"threshold {threshold}: at least one command must be in flight")
        stream = self._engine.add_stream(0, process)
        self._queues.append(_Queue(stream, priority, threshold, batch))
        return len(self._queues) - 1

    def submit(
        self,
        queue: int,
        work: Work,
        at_ns: int,
        *,
        done: Done | None = None,
        label: Any = None,
        slowness: float = 1.0,
    ) -> None:
        """Submit work at a time not before the engine's, in the order of time.

        ``slowness`` is a factor on the round trip; the rest is as for `Engine.submit`.
        """

        def arrive(now_ns: int) -> None:
            self._queues[queue].waiting.append((work, done, label, slowness))
            self._hand_on(now_ns)

        self._engine.at(at_ns, arrive)

    def _hand_on(self, now_ns: int) -> None:
        active = [queue for queue in self._queues if queue.active]
        urgent = max((queue.priority for queue in active), default=0)
        for queue in active:
            if queue.priority == urgent:
                queue.left_of_batch = queue.batch
            while queue.waiting and queue.in_flight < queue.threshold:
                if queue.priority < urgent:
                    if not queue.left_of_batch:
                        break
                    queue.left_of_batch -= 1
                work, done, label, slowness = queue.waiting.popleft()
                queue.in_flight += 1
                ended = self._ended(queue, done, round(slowness * self._round_trip_ns))
                self._engine.submit(queue.stream, work, now_ns, done=ended, label=label)

    def _ended(self, queue: _Queue, done: Done | None, round_trip_ns: int) -> Done:
        def noticed(now_ns: int) -> None:
            queue.in_flight -= 1
            self._hand_on(now_ns)

        def ended(now_ns: int) -> None:
            if done is not None:
                done(now_ns)
            self._engine.at(now_ns + round_trip_ns, noticed)

        return ended
