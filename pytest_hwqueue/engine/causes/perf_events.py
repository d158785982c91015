"""Traces context switches and interrupts of this process's threads with perf_event_open(2).

Nothing runs in a thread: the kernel writes into rings, one for each CPU, and `PerfTracer.drain`
reads them where nothing is being measured. What does not fit is lost, and counted.

Every event belongs to a thread and to a CPU, so the kernel itself leaves out what happens to
others; threads that start later inherit the events. An interrupt belongs to the thread in whose
time it ran. Only wake-ups happen in the time of whoever wakes: their event belongs to the CPU
alone, with a condition on who is woken, and so misses threads that start later. The same holds for
the switch that ends somebody else's time on a CPU in a thread's favour.

Who ran next is often a thread of the same process that gives way itself at once, to whoever really
had the CPU. So each CPU's time is put together from the switches of all traced threads. Between two
of them others may have taken turns unseen.
"""

from __future__ import annotations

import errno
import os
import resource
import time
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from pytest_hwqueue.data.metrics.cpu_events import OffCpu
from pytest_hwqueue.data.records.tracing import Level, Refusal
from pytest_hwqueue.engine.causes import perf_records as perf
from pytest_hwqueue.engine.causes.perf_records import (
    SCHED_SWITCH,
    SCHED_WAKEUP,
    CpuTrace,
    Tracepoint,
    decode,
    read_tracepoints,
)
from pytest_hwqueue.parts.devices.clocks import own_threads

RING_BYTES = 512 * 1024
"""Per CPU: with its head page as much as any user may lock (perf_event_mlock_kb is 516)."""

OWN_THREAD = "another thread of its own"
"""What gives way to a thread of the same process gave way to."""

_COMMON = perf.DISABLED | perf.INHERIT | perf.SAMPLE_ID_ALL | perf.USE_CLOCKID | perf.WATERMARK
_ORIGIN = perf.SAMPLE_TID | perf.SAMPLE_TIME | perf.SAMPLE_CPU
# Nobody waits for the ring, so nobody needs to be woken.
_NEVER_WAKE = 1 << 31
_ANY_THREAD = -1
_SPARE_DESCRIPTORS = 256
# PROC_PID_INIT_INO of include/linux/proc_ns.h.
_ROOT_NAMESPACE = "pid:[4026531836]"
_IDLE, _UNSEEN = 0, -1

# From when on, and who: thread and name.
_Turn = tuple[int, int, str | None]


def in_root_namespace() -> bool:
    """Whether the kernel's events use this process's thread ids."""
    return os.readlink("/proc/self/ns/pid") == _ROOT_NAMESPACE


class PerfTracer:
    """Traces threads of this process between `start` and `stop`.

    Args:
        tids: threads, by default all there are; those that they start later are traced too.
        tracepoints: of switches and interrupts, which take CAP_PERFMON or root; None traces
            switches alone.
        ring_bytes: of each CPU's ring, a power of two of at least a page.

    Attributes:
        taken_bytes: how much has been taken out of the rings and is kept until `stop`.

    Raises:
        OSError: from the kernel; nothing is left open.
        ValueError: if the ring's size is not a power of two.

    """

    def __init__(
        self,
        tids: Collection[int] | None = None,
        tracepoints: Mapping[str, Tracepoint] | None = None,
        ring_bytes: int = RING_BYTES,
    ) -> None:
        self._tids = own_threads() if tids is None else sorted(tids)
        self._tracepoints = dict(tracepoints or {})
        self._descriptors: list[int] = []
        self._rings: dict[int, perf.Ring] = {}
        self._first: dict[int, int] = {}
        self._taken: dict[int, list[bytes]] = {}
        self.taken_bytes = 0
        self._begin_ns = 0
        cpus = _cpus_of(self._tids)
        _allow_descriptors(len(cpus) * len(self._tids) * (1 + len(self._tracepoints)))
        try:
            for cpu in cpus:
                self._open_cpu(cpu, ring_bytes)
        except (OSError, ValueError):
            self.close()
            raise

    def start(self) -> None:
        """Start writing records."""
        self._begin_ns = time.monotonic_ns()
        for descriptor in self._descriptors:
            perf.enable(descriptor)

    def drain(self) -> float:
        """Empty the rings; return how full the fullest was, from 0 to 1.

        Costs a copy of their content.
        """
        fullest = 0.0
        for cpu, ring in self._rings.items():
            records, full = ring.take()
            fullest = max(fullest, len(records) / ring.size_bytes)
            if full:
                records += self._count_lost(cpu, ring)
            if records:
                self._taken[cpu].append(records)
                self.taken_bytes += len(records)
        return fullest

    def stop(self) -> CpuTrace:
        """Stop writing records; return them."""
        end_ns = time.monotonic_ns()
        self.drain()
        for descriptor in self._descriptors:
            perf.disable(descriptor)
        rings = [b"".join(parts) for parts in self._taken.values()]
        trace = decode(rings, self._tracepoints, os.getpid(), self._tids, self._begin_ns, end_ns)
        for parts in self._taken.values():
            parts.clear()
        self.taken_bytes = 0
        return replace(trace, off_cpu=_named(trace.off_cpu))

    def close(self) -> None:
        """Close all events. With tracepoints this takes the kernel most of a second."""
        for ring in self._rings.values():
            ring.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._rings.clear()
        self._descriptors.clear()

    def _open_cpu(self, cpu: int, ring_bytes: int) -> None:
        for tid in self._tids:
            self._open(_switches(), tid, cpu, ring_bytes)
            for name, tracepoint in self._tracepoints.items():
                if name != SCHED_WAKEUP:
                    self._open(_samples(tracepoint), tid, cpu, ring_bytes)
        # These name threads as the root namespace does, which from inside another is unknown.
        if not in_root_namespace():
            return
        for name, field in ((SCHED_WAKEUP, "pid"), (SCHED_SWITCH, "next_pid")):
            if name not in self._tracepoints:
                continue
            attributes = _samples(self._tracepoints[name])
            attributes.flags &= ~perf.INHERIT
            descriptor = self._open(attributes, _ANY_THREAD, cpu, ring_bytes)
            if descriptor is not None:
                perf.keep_only(descriptor, "||".join(f"{field}=={tid}" for tid in self._tids))

    def _open(self, attributes: perf.Attributes, tid: int, cpu: int, ring_bytes: int) -> int | None:
        """Open an event that writes into its CPU's ring; None if the thread has ended."""
        try:
            descriptor = perf.open_event(attributes, tid, cpu)
        except ProcessLookupError:
            return None
        self._descriptors.append(descriptor)
        if cpu in self._rings:
            perf.write_into(descriptor, self._first[cpu])
        else:
            self._rings[cpu] = perf.Ring(descriptor, ring_bytes)
            self._first[cpu] = descriptor
            self._taken[cpu] = []
        return descriptor

    def _count_lost(self, cpu: int, ring: perf.Ring) -> bytes:
        """Make the kernel write how many records were lost, which it does only before the next one.

        A switch of the calling thread on that CPU is the next one.
        """
        helper = perf.open_event(_switches(), 0, cpu)
        allowed = os.sched_getaffinity(0)
        try:
            perf.write_into(helper, self._first[cpu])
            perf.enable(helper)
            os.sched_setaffinity(0, {cpu})
            time.sleep(1e-4)
        finally:
            os.sched_setaffinity(0, allowed)
            os.close(helper)
        records, _ = ring.take()
        return records


def _named(off_cpu: tuple[OffCpu, ...]) -> tuple[OffCpu, ...]:
    """Name the threads of this process that ran instead: in Python all have one name."""
    if not in_root_namespace():
        return off_cpu
    own = set(own_threads())
    return tuple(
        replace(
            one,
            next_comm=OWN_THREAD if one.next_tid in own else one.next_comm,
            before_comm=OWN_THREAD if one.before_tid in own else one.before_comm,
        )
        for one in with_culprits(off_cpu)
    )


def _cpus_of(tids: Collection[int]) -> list[int]:
    """Return the CPUs that any of the threads may run on."""
    cpus: set[int] = set()
    for tid in tids:
        # A thread that has just ended runs nowhere.
        with suppress(ProcessLookupError):
            cpus |= os.sched_getaffinity(tid)
    return sorted(cpus)


def _switches() -> perf.Attributes:
    return perf.Attributes(
        type=perf.TYPE_SOFTWARE,
        config=perf.SOFTWARE_DUMMY,
        sample_type=_ORIGIN,
        flags=_COMMON | perf.CONTEXT_SWITCH | perf.EXCLUDE_KERNEL | perf.EXCLUDE_HYPERVISOR,
        wakeup_watermark=_NEVER_WAKE,
        clockid=perf.CLOCK_MONOTONIC,
    )


def _samples(tracepoint: Tracepoint) -> perf.Attributes:
    return perf.Attributes(
        type=perf.TYPE_TRACEPOINT,
        config=tracepoint.number,
        sample_period=1,
        sample_type=_ORIGIN | perf.SAMPLE_RAW,
        flags=_COMMON,
        wakeup_watermark=_NEVER_WAKE,
        clockid=perf.CLOCK_MONOTONIC,
    )


def _allow_descriptors(needed: int) -> None:
    """Raise this process's limit of open files as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed + _SPARE_DESCRIPTORS
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))


def with_culprits(off_cpu: Sequence[OffCpu]) -> list[OffCpu]:
    """Return times off the CPU with who ran longest while the thread wanted it.

    That is ``next`` of one that was preempted. Of one that was woken late it is ``before``, which
    stays whoever made room where nobody is known to have run for half of that time.
    """
    cpus = _turns(off_cpu)
    own = {one.tid for one in off_cpu}
    return [_with_culprit(one, cpus, own) for one in off_cpu]


def _with_culprit(one: OffCpu, cpus: Mapping[int, Sequence[_Turn]], own: Collection[int]) -> OffCpu:
    where = one.cpu if one.reason == "preempted" else one.end_cpu
    if one.withheld is None or one.reason == "stopped" or where is None or where not in cpus:
        return one
    begin_ns, end_ns = one.withheld
    spent = _spent(cpus[where], begin_ns, end_ns, own)
    who = max(spent, key=lambda runner: spent[runner], default=None)
    if who is None or who[0] == _UNSEEN:
        return one
    tid, comm = who
    if one.reason == "preempted":
        return replace(one, next_tid=tid, next_comm=comm)
    if 2 * spent[who] >= end_ns - begin_ns:
        return replace(one, before_tid=tid, before_comm=comm)
    return one


def _spent(
    turns: Sequence[_Turn], start_ns: int, end_ns: int, own: Collection[int]
) -> dict[tuple[int, str | None], int]:
    """Return how long each thread ran between two times, as far as is known."""
    found: dict[tuple[int, str | None], int] = {}
    first = max(0, bisect_right(turns, start_ns, key=_when) - 1)
    last = bisect_left(turns, end_ns, key=_when)
    for index in range(first, last):
        when_ns, tid, comm = turns[index]
        # Others that came before may have gone meanwhile; a traced one would have been seen to.
        if tid == _IDLE or (when_ns < start_ns and tid not in own):
            continue
        until_ns = turns[index + 1][0] if index + 1 < last else end_ns
        found[tid, comm] = found.get((tid, comm), 0) + until_ns - max(start_ns, when_ns)
    return found


def _turns(off_cpu: Iterable[OffCpu]) -> dict[int, list[_Turn]]:
    """Return by CPU who ran there, from each switch of a traced thread on."""
    found: dict[int, list[_Turn]] = {}
    for one in off_cpu:
        if one.cpu is not None:
            next_tid = _UNSEEN if one.next_tid is None else one.next_tid
            found.setdefault(one.cpu, []).append((one.start_ns, next_tid, one.next_comm))
        if one.end_cpu is not None:
            found.setdefault(one.end_cpu, []).append((one.end_ns, one.tid, None))
    for turns in found.values():
        # One thread goes and another comes in one moment: who comes has both.
        turns.sort(key=_when)
    return found


def _when(turn: _Turn) -> int:
    return turn[0]


@dataclass(frozen=True)
class Tracing:
    """The best available level.

    Attributes:
        level: ``perf`` sees switches, and with tracepoints what ran instead, wake-ups and
            interrupts; ``rusage`` is what /proc counts; ``none`` is nothing.
        refused: what would see more, in the order tried.
        perf: the tracer, open but not started; the caller closes it.

    """

    level: Level
    refused: tuple[Refusal, ...]
    perf: PerfTracer | None


def open_tracing(tids: Collection[int] | None = None, ring_bytes: int = RING_BYTES) -> Tracing:
    """Open the best level that this process may use; a missing permission never raises.

    Args:
        tids: threads of this process to trace; all by default.
        ring_bytes: of each CPU's ring.

    """
    refused: list[Refusal] = []
    for read in (read_tracepoints, dict[str, Tracepoint]):
        try:
            return Tracing("perf", tuple(refused), PerfTracer(tids, read(), ring_bytes))
        except OSError as error:
            refused.append(Refusal("perf", error.errno, _explained(error)))
    return Tracing("rusage", tuple(refused), None)


def _explained(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            f"{error.strerror}: needs root or CAP_PERFMON, or for one's own threads "
            "kernel.perf_event_paranoid of at most 2, and no filter of system calls against it"
        )
    if error.errno == errno.EMFILE:
        return f"{error.strerror}: raise the hard limit of open files (ulimit -Hn)"
    return str(error.strerror)
