"""Tenants that share a simulated device, and the hosts that launch for them.

Several hosts need virtual clocks of their own, so tenants are driven by the engine's calendar and
not through a device's pool.

As XSched's level 1 does: every stream's commands wait in a queue of its own; at most a threshold of
them are in flight on the hardware, and while a more urgent queue has work none is handed on beyond
the batch that was begun. What is already in flight is waited for.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Literal, NamedTuple

from pytest_hwqueue.data.metrics.attribution import DeviceWork
from pytest_hwqueue.data.records.tenants import RequestLog
from pytest_hwqueue.parts.devices.compute_units import Partition
from pytest_hwqueue.parts.devices.simulated.costs import CopyWork, KernelWork, Work
from pytest_hwqueue.parts.devices.simulated.engine import Done, Engine, Observer
from pytest_hwqueue.parts.devices.simulated.profile import Hardware, RequestHost


@dataclass(eq=False)
class _Queue:
    stream: int
    priority: int
    threshold: int
    batch: int
    # Of the batch that it had begun when it was stopped.
    left_of_batch: int
    waiting: deque[tuple[Work, Done | None, Any, float]] = field(default_factory=deque)
    in_flight: int = 0

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
        self._queues.append(_Queue(stream, priority, threshold, batch, batch))
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
                ended = partial(self._ended, queue, done, round(slowness * self._round_trip_ns))
                self._engine.submit(queue.stream, work, now_ns, done=ended, label=label)

    def _ended(self, queue: _Queue, done: Done | None, round_trip_ns: int, now_ns: int) -> None:
        if done is not None:
            done(now_ns)
        self._engine.at(now_ns + round_trip_ns, partial(self._noticed, queue))

    def _noticed(self, queue: _Queue, now_ns: int) -> None:
        queue.in_flight -= 1
        self._hand_on(now_ns)


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


# All tenants' kernels share the device (threads of one process, or MPS), or a process per tenant
# takes its turn.
Placement = Literal["together", "time-slices"]


@dataclass(frozen=True)
class ModelledTenant:
    """A model that runs one kernel sequence per request.

    Without arrivals it is a closed loop, which starts a request when the last is done.

    Attributes:
        name: for results.
        kernels: what one request enqueues, on one stream.
        host_ns: what its host thread spends on enqueueing one operation.
        synchronise_ns: from the end of a request's last kernel until the host has seen it.
        arrivals_ns: requests arrive at these times, ascending, whether or not the last is done.
        priority: larger is more urgent; for the hardware, or for the preemptive scheduler.
        in_flight: its commands that the preemptive scheduler lets be in flight at most.
        batch: its commands that the preemptive scheduler hands on after it was told to stop.
        seed: of what its requests' host work differs by.
        concurrency: how many requests are served at once, each by a thread on a stream of its own.
        partition: on which multiprocessors its kernels run; not with a preemptive scheduler.
        start_ns: when it begins to serve.
        delay_ns: without arrivals, from a request's end to the next one's start.
        most: without arrivals, how many requests there are; None for no limit.

    """

    name: str
    kernels: tuple[Work, ...]
    host_ns: int
    synchronise_ns: int
    arrivals_ns: Sequence[int] | None = None
    priority: int = 0
    in_flight: int = 16
    batch: int = 0
    seed: int = 0
    concurrency: int = 1
    partition: Partition | None = None
    start_ns: int = 0
    delay_ns: int = 0
    most: int | None = None


class ModelledLook(NamedTuple):
    """A look at what tenants have completed at a time, which may end the run."""

    at_ns: int
    ends: Callable[[Sequence[RequestLog]], bool]


@dataclass(frozen=True)
class SharedDevice:
    """A device that tenants share, and how they do.

    Attributes:
        hardware: the device.
        placement: how tenants share it.
        round_trip_ns: puts a preemptive scheduler in charge, and says how long it needs to notice
            that a command has ended; None for none.
        host: how the hosts of all tenants behave.
        threads: all tenants are threads of one process; otherwise each has one of its own.

    """

    hardware: Hardware
    placement: Placement = "together"
    round_trip_ns: int | None = None
    host: RequestHost = field(default_factory=RequestHost)
    threads: bool = False


def run_tenants(
    device: SharedDevice, tenants: Sequence[ModelledTenant], duration_ns: int,
    grace_ns: int | None = None, *, ran: list[DeviceWork] | None = None,
    looks: Sequence[ModelledLook] = (),
) -> list[RequestLog]:  # fmt: skip
    """Run tenants together and return what each completed, in order of ends.

    Args:
        device: that they share.
        tenants: who runs; each request on one stream.
        duration_ns: for how much virtual time.
        grace_ns: how long after the end a request that was due before it may still start; what
            has started then is completed. None to stop at the end, whatever runs.
        ran: takes every kernel and copy when it has ended; each tenant has its one stream 0 (no
            concurrency), and its requests are numbered from 0.
        looks: at what has been completed so far, in their order.

    """
    engine = Engine(device.hardware)
    if ran is not None:
        engine.observer = _noting(tenants, ran)
    preempts_ns = device.round_trip_ns
    scheduler = None if preempts_ns is None else PreemptiveScheduler(engine, preempts_ns)
    results = [RequestLog([], [], []) for _ in tenants]
    process = Process(engine, device.host)
    for index, tenant in enumerate(tenants):
        if index and not device.threads:
            process = Process(engine, device.host)
        context = index if device.placement == "time-slices" else 0
        numbers = count()
        operations = operations_of(tenant.kernels)
        for slot in range(tenant.concurrency):
            process.add_thread()
            if scheduler is None:
                stream = engine.add_stream(tenant.priority, context, tenant.partition)
            else:
                stream = scheduler.add_stream(
                    tenant.priority, tenant.in_flight, context, tenant.batch
                )
            loop = _RequestLoop(
                tenant, operations, engine, scheduler, stream, process, numbers, results[index],
                random.Random(f"{tenant.seed}/{slot}" if slot else str(tenant.seed)),
                duration_ns, duration_ns + (grace_ns or 0),
            )  # fmt: skip
            engine.at(tenant.start_ns, loop.begin)
    for look in looks:
        engine.run(look.at_ns)
        if look.ends(results):
            return results
    engine.run(duration_ns if grace_ns is None else None)
    return results


def _noting(tenants: Sequence[ModelledTenant], ran: list[DeviceWork]) -> Observer:
    """Note what the engine ran, whose it was, and when it could have run."""
    ended_ns = [0] * len(tenants)

    def note(
        stream: int, label: Any, name: str, handed_ns: int, start_ns: int, end_ns: int
    ) -> None:
        # Tenants' streams were made in their order. A preemptive scheduler hands on later than
        # the host enqueued.
        request, work, enqueued_ns = label
        ready_ns = max(enqueued_ns, ended_ns[stream])
        ended_ns[stream] = end_ns
        ran.append(
            DeviceWork(
                owner=tenants[stream].name, stream=0, name=_described(work),
                ready_ns=min(ready_ns, start_ns), start_ns=start_ns, end_ns=end_ns, request=request,
                enqueued_ns=enqueued_ns,
            )
        )  # fmt: skip

    return note


def _described(work: KernelWork | CopyWork) -> str:
    """Name a work so that those of one name are alike."""
    if isinstance(work, KernelWork):
        return f"{work.name} of {work.blocks} blocks"
    return f"{work.name} of {work.size_bytes} bytes"


@dataclass(eq=False)
class _RequestLoop:
    """One of a tenant's host threads: waits for an arrival, enqueues, synchronises."""

    tenant: ModelledTenant
    operations: Sequence[Operation]
    engine: Engine
    scheduler: PreemptiveScheduler | None
    # Of the scheduler, where there is one.
    stream: int
    process: Process
    # Shared with the tenant's other threads: whoever is free takes the next request.
    numbers: Iterator[int]
    result: RequestLog
    draws: random.Random
    end_ns: int
    latest_ns: int
    # Of the request being served.
    number: int = 0
    scheduled_ns: int = 0
    started_ns: int = 0
    slowness: float = 1.0
    left: int = 0

    def begin(self, now_ns: int) -> None:
        """Serve the next request as soon as it has arrived and the host is free."""
        due_ns = self._next_due(now_ns)
        if due_ns is None:
            return
        self.scheduled_ns, self.started_ns = due_ns, max(now_ns, due_ns)
        if due_ns > now_ns:
            self.engine.at(due_ns, self._serve)
        else:
            self._serve(now_ns)

    def _serve(self, now_ns: int) -> None:
        self.slowness = self.process.slowness(now_ns, self.draws)
        self.left = len(self.tenant.kernels)
        each_ns = round(self.tenant.host_ns * self.slowness)
        self.process.launch(now_ns, each_ns, self.operations, self._enqueue)

    def _enqueue(self, operation: Operation, at_ns: int) -> None:
        for work in operation:
            self.left -= 1
            done = None if self.left else self._ended
            label = (self.number, work, at_ns)
            if self.scheduler is None:
                self.engine.submit(self.stream, work, at_ns, done=done, label=label)
            else:
                self.scheduler.submit(
                    self.stream, work, at_ns, done=done, label=label, slowness=self.slowness
                )

    def _next_due(self, now_ns: int) -> int | None:
        """Take the next request; return when it is due, or None if there is none, or no time."""
        arrivals_ns = self.tenant.arrivals_ns
        self.number = next(self.numbers)
        if arrivals_ns is None:
            if self.tenant.most is not None and self.number >= self.tenant.most:
                return None
            return now_ns if now_ns < self.end_ns else None
        if self.number >= len(arrivals_ns):
            return None
        due_ns = arrivals_ns[self.number]
        return due_ns if due_ns < self.end_ns and now_ns < self.latest_ns else None

    def _ended(self, now_ns: int) -> None:
        free_ns = now_ns + self.tenant.synchronise_ns
        self.result.add(self.scheduled_ns, self.started_ns, free_ns)
        if self.tenant.delay_ns:
            self.engine.at(free_ns + self.tenant.delay_ns, self.begin)
        else:
            self.begin(free_ns)
