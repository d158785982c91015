"""Decodes perf records into interrupts and the times threads were off the CPU."""

from __future__ import annotations

import struct
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from pytest_hwqueue.metrics.cpu_events import Interrupt, InterruptKind, OffCpu, OffCpuReason
from pytest_hwqueue.tracing.perf_event_open import (
    MISC_SWITCH_OUT,
    MISC_SWITCH_OUT_PREEMPT,
    RECORD_LOST,
    RECORD_SAMPLE,
    RECORD_SWITCH,
)
from pytest_hwqueue.tracing.tracepoints import SCHED_SWITCH, SCHED_WAKEUP, Tracepoint

# struct perf_event_header: type, misc, size.
_HEADER = struct.Struct("=IHH")
# What SAMPLE_TID, SAMPLE_TIME and SAMPLE_CPU add, at the end of a switch and the start of a
# sample: pid, tid, time, cpu, reserved.
_ORIGIN = struct.Struct("=iiQII")
_LOST = struct.Struct("=QQ")
# __TASK_STOPPED and __TASK_TRACED of include/linux/sched.h, as sched_switch reports them.
_STOPPED_STATES = 0x4 | 0x8


@dataclass(frozen=True, slots=True)
class _PerfRecord:
    when_ns: int
    pid: int
    tid: int
    cpu: int


@dataclass(frozen=True, slots=True)
class _Switch(_PerfRecord):
    out: bool
    preempted: bool


@dataclass(frozen=True, slots=True)
class _Sample(_PerfRecord):
    raw: bytes

    @property
    def number(self) -> int:
        """The tracepoint's number, with which each of its records begins."""
        return int.from_bytes(self.raw[:2], sys.byteorder)


@dataclass(frozen=True)
class Decoded:
    """Records of one trace, in time order; ``lost`` of them did not fit into the rings."""

    off_cpu: tuple[OffCpu, ...]
    interrupts: tuple[Interrupt, ...]
    lost: int


def decode(
    rings: Iterable[bytes],
    tracepoints: Mapping[str, Tracepoint],
    pid: int,
    tids: Collection[int],
    begin_ns: int,
    end_ns: int,
) -> Decoded:
    """Decode complete records.

    Args:
        rings: of each CPU, all its records.
        tracepoints: those that were open, by name.
        pid: the process; its children's records, which inherited the events, are left out.
        tids: threads that were there at the beginning: one without a switch out before its first
            switch in was off the CPU from the beginning.
        begin_ns: earlier records are left out.
        end_ns: later ones too; threads still off the CPU are so until then.

    """
    records: list[_Switch | _Sample] = []
    lost = 0
    for ring in rings:
        for found in _records(ring):
            if isinstance(found, int):
                lost += found
            elif begin_ns <= found.when_ns <= end_ns:
                records.append(found)
    # The kernel writes sched_switch before the switch out of the same moment, and sorting is
    # stable. A wake-up may stand in another CPU's ring than the switches around it.
    records.sort(key=lambda record: record.when_ns)
    off_cpu = _off_cpu(records, tracepoints, pid, tids, begin_ns, end_ns)
    samples = [one for one in records if isinstance(one, _Sample) and one.pid == pid]
    interrupts = _interrupts(samples, {one.number: one for one in tracepoints.values()})
    return Decoded(tuple(off_cpu), tuple(interrupts), lost)


def _records(ring: bytes) -> Iterator[_Switch | _Sample | int]:
    """Yield a ring's records; a number in between is how many were lost there."""
    at = 0
    while at < len(ring):
        kind, misc, size = _HEADER.unpack_from(ring, at)
        if kind == RECORD_LOST:
            yield int(_LOST.unpack_from(ring, at + _HEADER.size)[1])
        elif kind == RECORD_SWITCH:
            pid, tid, when, cpu, _ = _ORIGIN.unpack_from(ring, at + size - _ORIGIN.size)
            out = bool(misc & MISC_SWITCH_OUT)
            yield _Switch(when, pid, tid, cpu, out, bool(misc & MISC_SWITCH_OUT_PREEMPT))
        elif kind == RECORD_SAMPLE:
            pid, tid, when, cpu, _ = _ORIGIN.unpack_from(ring, at + _HEADER.size)
            begin = at + _HEADER.size + _ORIGIN.size
            (length,) = struct.unpack_from("=I", ring, begin)
            yield _Sample(when, pid, tid, cpu, ring[begin + 4 : begin + 4 + length])
        at += size


@dataclass
class _Away:
    """A thread that is off the CPU until it is switched in."""

    cpu: int | None
    start_ns: int
    reason: OffCpuReason | None
    runnable_ns: int | None = None
    next_tid: int | None = None
    next_comm: str | None = None
    before_tid: int | None = None
    before_comm: str | None = None

    def back(self, tid: int, end_ns: int, end_cpu: int | None) -> OffCpu:
        return OffCpu(
            tid, self.cpu, end_cpu, self.start_ns, end_ns, self.reason,
            self.runnable_ns, self.next_tid, self.next_comm, self.before_tid, self.before_comm,
        )  # fmt: skip


def _off_cpu(
    records: Iterable[_Switch | _Sample],
    tracepoints: Mapping[str, Tracepoint],
    pid: int,
    tids: Collection[int],
    begin_ns: int,
    end_ns: int,
) -> list[OffCpu]:
    found: list[OffCpu] = []
    away: dict[int, _Away] = {}
    unseen = set(tids)
    switch, wakeup = tracepoints.get(SCHED_SWITCH), tracepoints.get(SCHED_WAKEUP)
    switched: dict[int, bytes] = {}
    for record in records:
        tid = record.tid
        if isinstance(record, _Sample):
            if switch is not None and record.number == switch.number:
                _before(record, switch, away)
                if record.pid == pid:
                    switched[tid] = record.raw
            elif wakeup is not None and record.number == wakeup.number:
                woken = wakeup.value(record.raw, "pid")
                if woken in away and away[woken].runnable_ns is None:
                    away[woken].runnable_ns = record.when_ns
                elif woken in unseen:
                    away[woken] = _Away(None, begin_ns, None, record.when_ns)
                    unseen.discard(woken)
        elif record.pid != pid:
            continue
        elif record.out:
            unseen.discard(tid)
            away[tid] = _leave(record, switch, switched.pop(tid, None))
        else:
            if tid in unseen:
                away[tid] = _Away(None, begin_ns, None)
                unseen.discard(tid)
            # None is away if the record of its leaving was lost.
            if tid in away:
                found.append(away.pop(tid).back(tid, record.when_ns, record.cpu))
    found += [thread.back(tid, end_ns, None) for tid, thread in away.items()]
    found.sort(key=lambda one: one.start_ns)
    return found


def _before(record: _Sample, switch: Tracepoint, away: Mapping[int, _Away]) -> None:
    """Note who made room for a thread that is away."""
    coming = away.get(switch.value(record.raw, "next_pid"))
    if coming is not None:
        coming.before_tid = switch.value(record.raw, "prev_pid")
        coming.before_comm = switch.text(record.raw, "prev_comm")


def _leave(record: _Switch, switch: Tracepoint | None, raw: bytes | None) -> _Away:
    reason: OffCpuReason = "preempted" if record.preempted else "waited"
    leaving = _Away(record.cpu, record.when_ns, reason)
    if record.preempted:
        leaving.runnable_ns = record.when_ns
    if switch is not None and raw is not None:
        if reason == "waited" and switch.value(raw, "prev_state") & _STOPPED_STATES:
            leaving.reason = "stopped"
        leaving.next_tid = switch.value(raw, "next_pid")
        leaving.next_comm = switch.text(raw, "next_comm")
    return leaving


def _interrupts(
    samples: Iterable[_Sample], tracepoints: Mapping[int, Tracepoint]
) -> list[Interrupt]:
    """Pair entries and exits, which nest on one CPU."""
    found: list[Interrupt] = []
    entered: dict[int, list[tuple[str, _Sample]]] = {}
    for sample in samples:
        tracepoint = tracepoints[sample.number]
        stem, _, edge = tracepoint.name.rpartition("_")
        if edge == "entry":
            entered.setdefault(sample.cpu, []).append((stem, sample))
        elif edge == "exit":
            # What was entered later has lost its exit.
            stack = entered.get(sample.cpu, [])
            while stack:
                name, entry = stack.pop()
                if name == stem:
                    entry_point = tracepoints[entry.number]
                    found.append(_interrupt(entry_point, entry, sample.when_ns))
                    break
    found.sort(key=lambda one: one.start_ns)
    return found


def _interrupt(tracepoint: Tracepoint, entry: _Sample, end_ns: int) -> Interrupt:
    kind: InterruptKind = "vector"
    if tracepoint.name == "irq/irq_handler_entry":
        kind, number = "hardirq", tracepoint.value(entry.raw, "irq")
        name = tracepoint.text(entry.raw, "name")
    elif tracepoint.name == "irq/softirq_entry":
        kind, number = "softirq", tracepoint.value(entry.raw, "vec")
        name = tracepoint.symbols.get(number, str(number))
    elif tracepoint.name == "ipi/ipi_entry":
        number, name = 0, "ipi"
    else:
        number = tracepoint.value(entry.raw, "vector")
        name = tracepoint.name.removeprefix("irq_vectors/").removesuffix("_entry")
    return Interrupt(entry.tid, entry.cpu, entry.when_ns, end_ns, kind, number, name)
