"""perf_event_open(2) by ctypes, the kernel's tracepoints, and the times that its records become.

A tracepoint's number and the layout of its fields are read from tracefs, where that is mounted.

Layouts and numbers are those of the kernel's interface, include/uapi/linux/perf_event.h, which
never change; the words are those of perf_event_open(2).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import re
import struct
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_hwqueue.data.metrics.cpu_events import Interrupt, InterruptKind, OffCpu, OffCpuReason

# Numbers of the system call: arch/x86/entry/syscalls/syscall_64.tbl and, for newer machines,
# include/uapi/asm-generic/unistd.h.
_SYSTEM_CALL = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}

TYPE_SOFTWARE = 1
TYPE_TRACEPOINT = 2
SOFTWARE_DUMMY = 9
SAMPLE_TID = 1 << 1
SAMPLE_TIME = 1 << 2
SAMPLE_CPU = 1 << 7
SAMPLE_RAW = 1 << 10
RECORD_LOST = 2
RECORD_SAMPLE = 9
RECORD_SWITCH = 14
MISC_SWITCH_OUT = 1 << 13
MISC_SWITCH_OUT_PREEMPT = 1 << 14
CLOCK_MONOTONIC = 1

_FLAG_CLOSE_ON_EXEC = 8
# _IO('$', 0), _IO('$', 1), _IO('$', 5) and _IOW('$', 6, char *).
_IOCTL_ENABLE = 0x2400
_IOCTL_DISABLE = 0x2401
_IOCTL_SET_OUTPUT = 0x2405
_IOCTL_SET_FILTER = 0x40082406

# Where struct perf_event_mmap_page, the first page of a ring, keeps its u64 data_head, data_tail.
_DATA_HEAD = 1024
_DATA_TAIL = 1032
_PAGE = mmap.PAGESIZE
# More than any record of the events opened here takes.
_LARGEST_RECORD_BYTES = 512


class Attributes(ctypes.Structure):
    """The first 112 bytes of struct perf_event_attr (PERF_ATTR_SIZE_VER5, Linux 4.1).

    The kernel takes every size it has ever known.
    """

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("config", ctypes.c_uint64),
        ("sample_period", ctypes.c_uint64),
        ("sample_type", ctypes.c_uint64),
        ("read_format", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("wakeup_watermark", ctypes.c_uint32),
        ("bp_type", ctypes.c_uint32),
        ("config1", ctypes.c_uint64),
        ("config2", ctypes.c_uint64),
        ("branch_sample_type", ctypes.c_uint64),
        ("sample_regs_user", ctypes.c_uint64),
        ("sample_stack_user", ctypes.c_uint32),
        ("clockid", ctypes.c_int32),
        ("sample_regs_intr", ctypes.c_uint64),
        ("aux_watermark", ctypes.c_uint32),
        ("sample_max_stack", ctypes.c_uint16),
        ("reserved_2", ctypes.c_uint16),
    )


# Bits of ``flags``, in the order of the bit fields of struct perf_event_attr.
DISABLED = 1 << 0
INHERIT = 1 << 1
EXCLUDE_KERNEL = 1 << 5
EXCLUDE_HYPERVISOR = 1 << 6
WATERMARK = 1 << 14
SAMPLE_ID_ALL = 1 << 18
USE_CLOCKID = 1 << 25
CONTEXT_SWITCH = 1 << 26


def open_event(attributes: Attributes, tid: int, cpu: int) -> int:
    """Open an event of one thread on one CPU; return its file descriptor, closed on exec.

    Args:
        attributes: without their ``size``, which is filled in.
        tid: the thread; 0 is the calling one, -1 is every process on the CPU.
        cpu: number of the CPU.

    Raises:
        OSError: with the kernel's errno: EACCES or EPERM without permission, ENOSYS if the call
            does not exist or is filtered out, EMFILE with too few file descriptors.

    """
    number = _SYSTEM_CALL.get(platform.machine())
    if number is None or sys.platform != "linux":
        raise OSError(
            errno.ENOSYS,
            f"no number of perf_event_open is known for {sys.platform} on {platform.machine()}",
        )
    attributes.size = ctypes.sizeof(attributes)
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    descriptor = library.syscall(
        ctypes.c_long(number),
        ctypes.byref(attributes),
        ctypes.c_int(tid),
        ctypes.c_int(cpu),
        ctypes.c_int(-1),
        ctypes.c_ulong(_FLAG_CLOSE_ON_EXEC),
    )
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"perf_event_open: {os.strerror(code)}")
    return int(descriptor)


def enable(descriptor: int) -> None:
    """Enable an event and those inherited from it."""
    fcntl.ioctl(descriptor, _IOCTL_ENABLE, 0)


def disable(descriptor: int) -> None:
    """Disable an event and those inherited from it."""
    fcntl.ioctl(descriptor, _IOCTL_DISABLE, 0)


def write_into(descriptor: int, owner: int) -> None:
    """Redirect an event's output to the ring of ``owner``, an event on the same CPU."""
    fcntl.ioctl(descriptor, _IOCTL_SET_OUTPUT, owner)


def keep_only(descriptor: int, condition: str) -> None:
    """Make the kernel drop a tracepoint's records unless its fields meet a condition."""
    fcntl.ioctl(descriptor, _IOCTL_SET_FILTER, condition.encode() + b"\0")


class Ring:
    """The memory an event's records are written to, which the kernel never overwrites unread.

    Args:
        descriptor: the event's; further ones may `write_into` it.
        size_bytes: of the records; a power of two, at least a page.

    Raises:
        OSError: EPERM if the memory exceeds what the user may lock (perf_event_mlock_kb per CPU
            and RLIMIT_MEMLOCK).

    """

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        if size_bytes < _PAGE or size_bytes & (size_bytes - 1):
            raise ValueError(
                f"a ring's size must be a power of two and at least {_PAGE}, is {size_bytes}"
            )
        self.size_bytes = size_bytes
        self._memory = mmap.mmap(descriptor, _PAGE + size_bytes)

    def take(self) -> tuple[bytes, bool]:
        """Return complete unread records, and whether the ring had no room for another."""
        (head,) = struct.unpack_from("=Q", self._memory, _DATA_HEAD)
        (tail,) = struct.unpack_from("=Q", self._memory, _DATA_TAIL)
        begin, length = tail % self.size_bytes, head - tail
        first = min(length, self.size_bytes - begin)
        taken = self._memory[_PAGE + begin : _PAGE + begin + first]
        taken += self._memory[_PAGE : _PAGE + length - first]
        struct.pack_into("=Q", self._memory, _DATA_TAIL, head)
        return taken, length > self.size_bytes - _LARGEST_RECORD_BYTES

    def close(self) -> None:
        """Release the memory."""
        self._memory.close()


PLACES = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))

SCHED_SWITCH = "sched/sched_switch"
SCHED_WAKEUP = "sched/sched_wakeup"
SOFTIRQ_RAISE = "irq/softirq_raise"
# The timer's tick and other CPUs' calls are under irq_vectors on x86; Arm has its calls under ipi
# and its tick among the devices' interrupts. irq_work cannot be sampled: perf itself uses it.
_PATTERNS = (
    SCHED_SWITCH,
    SCHED_WAKEUP,
    "irq/irq_handler_entry",
    "irq/irq_handler_exit",
    "irq/softirq_entry",
    "irq/softirq_exit",
    SOFTIRQ_RAISE,
    "irq_vectors/*_entry",
    "irq_vectors/*_exit",
    "ipi/ipi_entry",
    "ipi/ipi_exit",
)
OWN_CALL = "a call of the thread"
"""Raised a soft interrupt outside of any interrupt."""

_NOT_SAMPLED = "irq_vectors/irq_work_"

_FIELD = re.compile(r"field:(?P<declared>[^;]+);\s*offset:(\d+);\s*size:(\d+);\s*signed:(\d);")
_BRACKETS = re.compile(r"\[\w*\]")
_SYMBOL = re.compile(r'\{ (\d+), "(\w+)" \}')
_SIZES = {1: "b", 2: "h", 4: "i", 8: "q"}

# struct perf_event_header: type, misc, size.
_HEADER = struct.Struct("=IHH")
# What SAMPLE_TID, SAMPLE_TIME and SAMPLE_CPU add, at the end of a switch and the start of a
# sample: pid, tid, time, cpu, reserved.
_ORIGIN = struct.Struct("=iiQII")
_LOST = struct.Struct("=QQ")
# __TASK_STOPPED and __TASK_TRACED of include/linux/sched.h, as sched_switch reports them.
_STOPPED_STATES = 0x4 | 0x8


@dataclass(frozen=True)
class Tracepoint:
    """One tracepoint.

    Attributes:
        name: with its group, such as "sched/sched_switch".
        number: what perf_event_open(2) takes as ``config``.
        fields: by name, the offset in a record and the format of `struct` of its value.
        symbols: names of the values of its one symbolic field, such as the softirqs'.

    """

    name: str
    number: int
    fields: Mapping[str, tuple[int, str]]
    symbols: Mapping[int, str]

    def value(self, raw: bytes, field: str) -> int:
        """Return a numeric field of a record."""
        offset, layout = self.fields[field]
        return int(struct.unpack_from(layout, raw, offset)[0])

    def text(self, raw: bytes, field: str) -> str:
        """Return a text field of a record, of fixed length or a __data_loc."""
        offset, layout = self.fields[field]
        if layout.endswith("s"):
            content: bytes = struct.unpack_from(layout, raw, offset)[0]
        else:
            # The upper half is the length, the lower half the offset.
            place = self.value(raw, field) & 0xFFFFFFFF
            content = raw[place & 0xFFFF : (place & 0xFFFF) + (place >> 16)]
        return content.split(b"\0")[0].decode(errors="replace")


def read_tracepoints(places: Sequence[Path] = PLACES) -> dict[str, Tracepoint]:
    """Return the tracepoints of switches, wake-ups and interrupts that this kernel has, by name.

    Args:
        places: where tracefs may be mounted.

    Raises:
        OSError: where tracefs is not mounted, or may not be read.

    """
    for place in places:
        events = place / "events"
        if (events / SCHED_SWITCH / "format").is_file():
            return {
                name: parse(name, (folder / "format").read_text())
                for pattern in _PATTERNS
                for folder in sorted(events.glob(pattern))
                if not (name := f"{folder.parent.name}/{folder.name}").startswith(_NOT_SAMPLED)
            }
    raise OSError(
        errno.ENOENT, f"tracefs is not mounted: `mount -t tracefs none {places[0]}` as root"
    )


def parse(name: str, text: str) -> Tracepoint:
    """Read a tracepoint's file ``format``."""
    number = re.search(r"^ID: (\d+)$", text, re.MULTILINE)
    assert number is not None, f"{name} has no number"
    fields = {}
    for declared, offset, size, signed in _FIELD.findall(text):
        field = _BRACKETS.sub("", declared).split()[-1]
        if declared.startswith("char ") and "[" in declared:
            layout = f"{size}s"
        else:
            letter = _SIZES.get(int(size), f"{size}s")
            layout = "=" + (letter if int(signed) else letter.upper())
        fields[field] = (int(offset), layout)
    symbols = {int(value): symbol for value, symbol in _SYMBOL.findall(text)}
    return Tracepoint(name, int(number.group(1)), fields, symbols)


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
class CpuTrace:
    """What happened to a process's threads; all times are `time.monotonic_ns`.

    Attributes:
        begin_ns: start of tracing.
        end_ns: its end.
        off_cpu: times at which threads were off the CPU, by their start.
        interrupts: in the time of the threads; None without tracepoints.
        lost: records that did not fit into the rings; above 0 the rest is incomplete.

    """

    begin_ns: int
    end_ns: int
    off_cpu: tuple[OffCpu, ...]
    interrupts: tuple[Interrupt, ...] | None
    lost: int


def decode(
    rings: Iterable[bytes],
    tracepoints: Mapping[str, Tracepoint],
    pid: int,
    tids: Collection[int],
    begin_ns: int,
    end_ns: int,
) -> CpuTrace:
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
    interrupts = None
    if tracepoints:
        samples = [one for one in records if isinstance(one, _Sample) and one.pid == pid]
        by_number = {one.number: one for one in tracepoints.values()}
        interrupts = tuple(_interrupts(samples, by_number))
    return CpuTrace(begin_ns, end_ns, tuple(off_cpu), interrupts, lost)


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


def _off_cpu(
    records: Iterable[_Switch | _Sample],
    tracepoints: Mapping[str, Tracepoint],
    pid: int,
    tids: Collection[int],
    begin_ns: int,
    end_ns: int,
) -> list[OffCpu]:
    found: list[OffCpu] = []
    # Those that are off the CPU until they are switched in; their ends are not known yet.
    away: dict[int, OffCpu] = {}
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
                if woken in unseen:
                    away[woken] = OffCpu(woken, None, None, begin_ns, end_ns, None)
                    unseen.discard(woken)
                if woken in away and away[woken].runnable_ns is None:
                    away[woken] = replace(away[woken], runnable_ns=record.when_ns)
        elif record.pid != pid:
            continue
        elif record.out:
            unseen.discard(tid)
            away[tid] = _leave(record, end_ns, switch, switched.pop(tid, None))
        else:
            if tid in unseen:
                away[tid] = OffCpu(tid, None, None, begin_ns, end_ns, None)
                unseen.discard(tid)
            # None is away if the record of its leaving was lost.
            if tid in away:
                found.append(replace(away.pop(tid), end_ns=record.when_ns, end_cpu=record.cpu))
    return sorted([*found, *away.values()], key=lambda one: one.start_ns)


def _before(record: _Sample, switch: Tracepoint, away: dict[int, OffCpu]) -> None:
    """Note who made room for a thread that is away."""
    coming = switch.value(record.raw, "next_pid")
    if coming in away:
        tid, comm = switch.value(record.raw, "prev_pid"), switch.text(record.raw, "prev_comm")
        away[coming] = replace(away[coming], before_tid=tid, before_comm=comm)


def _leave(record: _Switch, end_ns: int, switch: Tracepoint | None, raw: bytes | None) -> OffCpu:
    reason: OffCpuReason = "preempted" if record.preempted else "waited"
    next_tid = next_comm = None
    if switch is not None and raw is not None:
        if reason == "waited" and switch.value(raw, "prev_state") & _STOPPED_STATES:
            reason = "stopped"
        next_tid, next_comm = switch.value(raw, "next_pid"), switch.text(raw, "next_comm")
    return OffCpu(
        record.tid, record.cpu, None, record.when_ns, end_ns, reason,
        record.when_ns if record.preempted else None, next_tid, next_comm,
    )  # fmt: skip


def _interrupts(
    samples: Iterable[_Sample], tracepoints: Mapping[int, Tracepoint]
) -> list[Interrupt]:
    """Pair entries and exits, which nest on one CPU, and soft interrupts with what raised them."""
    found: list[Interrupt] = []
    # Of each CPU, what runs there: until it ends, it has no end.
    entered: dict[int, list[tuple[str, Interrupt]]] = {}
    raised: dict[int, dict[int, str]] = {}
    for sample in samples:
        tracepoint = tracepoints[sample.number]
        stack, pending = entered.setdefault(sample.cpu, []), raised.setdefault(sample.cpu, {})
        stem, _, edge = tracepoint.name.rpartition("_")
        if tracepoint.name == SOFTIRQ_RAISE:
            by = f"{stack[-1][1].kind} {stack[-1][1].name}" if stack else OWN_CALL
            # What is pending already is not raised by who raises it again.
            pending.setdefault(tracepoint.value(sample.raw, "vec"), by)
        elif tracepoint.name == SCHED_SWITCH:
            # Others that run from here on may run what is pending.
            pending.clear()
        elif edge == "entry":
            one = _interrupt(tracepoint, sample)
            if one.kind == "softirq":
                one = replace(one, raised_by=pending.pop(one.number, None))
            stack.append((stem, one))
        elif edge == "exit":
            # What was entered later has lost its exit.
            while stack:
                name, one = stack.pop()
                if name == stem:
                    found.append(replace(one, end_ns=sample.when_ns))
                    break
    found.sort(key=lambda one: one.start_ns)
    return found


def _interrupt(tracepoint: Tracepoint, entry: _Sample) -> Interrupt:
    """Return an interrupt that begins, as if it ended at once."""
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
    return Interrupt(entry.tid, entry.cpu, entry.when_ns, entry.when_ns, kind, number, name)
