"""Tracepoints' formats as kernels print them, and records made up: switches, wake-ups, losses."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.metrics.attribution import off_cpu_evidence
from pytest_hwqueue.data.metrics.cpu_events import Interrupt, OffCpu
from pytest_hwqueue.engine.causes.perf_records import CpuTrace, decode, parse, read_tracepoints

PID, TID, FIO = 40, 41, 77
END = 10**6
# Declaration, offset, size and sign of each field; the first four are common to all.
_COMMON = (
    "unsigned short common_type 0 2 0, unsigned char common_flags 2 1 0, "
    "unsigned char common_preempt_count 3 1 0, int common_pid 4 4 1"
)
_SWITCH = (
    "char prev_comm[16] 8 16 0, pid_t prev_pid 24 4 1, int prev_prio 28 4 1, long prev_state 32 8 "
    "1, char next_comm[16] 40 16 0, pid_t next_pid 56 4 1, int next_prio 60 4 1"
)
_FIELDS = {
    "sched/sched_switch": _SWITCH,
    "sched/sched_wakeup": "char comm[16] 8 16 0, pid_t pid 24 4 1",
    "irq/softirq_entry": "unsigned int vec 8 4 0",
    "irq/softirq_exit": "unsigned int vec 8 4 0",
    "irq/irq_handler_entry": "int irq 8 4 1, __data_loc char[] name 12 4 0",
    "irq/irq_handler_exit": "int irq 8 4 1, int ret 12 4 1",
    "irq_vectors/local_timer_entry": "int vector 8 4 1",
    "irq_vectors/local_timer_exit": "int vector 8 4 1",
    "irq/softirq_raise": "unsigned int vec 8 4 0",
}


def printed(name: str, number: int, fields: str) -> str:
    lines = [f"name: {name.partition('/')[2]}", f"ID: {number}", "format:"]
    for field in f"{_COMMON}, {fields}".split(", "):
        declared, offset, size, signed = field.rsplit(" ", 3)
        lines.append(f"\tfield:{declared};\toffset:{offset};\tsize:{size};\tsigned:{signed};")
    symbols = '__print_symbolic(REC->vec, { 0, "HI" }, { 3, "NET_RX" })'
    return "\n".join([*lines, "", f'print fmt: "vec=%u [action=%s]", REC->vec, {symbols}', ""])


_FORMATS = {name: printed(name, 300 + at, of) for at, (name, of) in enumerate(_FIELDS.items())}
POINTS = {name: parse(name, text) for name, text in _FORMATS.items()}


def record(kind: int, misc: int, body: bytes) -> bytes:
    return struct.pack("=IHH", kind, misc, 8 + len(body)) + body


def out(when: int, *, preempted: bool = False, pid: int = PID, cpu: int = 0) -> bytes:
    body = struct.pack("=iiQII", pid, TID if pid == PID else pid, when, cpu, 0)
    return record(14, 1 << 13 | preempted << 14, body)


def back(when: int, cpu: int = 0) -> bytes:
    return record(14, 0, struct.pack("=iiQII", PID, TID, when, cpu, 0))


def sample(name: str, when: int, body: bytes, *, pid: int = PID, cpu: int = 0) -> bytes:
    raw = struct.pack("=HBBi", POINTS[name].number, 0, 0, pid) + body
    raw += bytes(-(len(raw) + 4) % 8)
    origin = struct.pack("=iiQII", pid, TID if pid == PID else pid, when, cpu, 0)
    return record(9, 0, origin + struct.pack("=I", len(raw)) + raw)


def told(when: int, state: int, tid: int = TID, after: int = FIO, **sampled: int) -> bytes:
    """A switch from one thread to another, as a tracepoint tells of it."""
    comms = {TID: b"python", FIO: b"fio\0x", 0: b"swapper/0"}
    body = struct.pack("=16siiq16sii", comms[tid], tid, 120, state, comms[after], after, -100)
    return sample("sched/sched_switch", when, body, **sampled)


def edge(name: str, when: int, body: bytes = struct.pack("=I", 3), cpu: int = 0) -> bytes:
    return sample(name, when, body, cpu=cpu)


def decoded(*rings: bytes, tids: tuple[int, ...] = (TID,)) -> CpuTrace:
    return decode(rings, POINTS, PID, tids, 0, END)


WAITS = out(10) + back(40)
WOKEN = sample("sched/sched_wakeup", 25, struct.pack("=16si", b"python", TID), pid=5, cpu=1)
LOST = record(2, 0, struct.pack("=QQiiQII", 1, 5, 0, 0, 40, 0, 0))
WOKEN_LATE = OffCpu(TID, 0, 0, 10, 40, "waited", 25, None, None, FIO, "fio")
BEFORE, AFTER = OffCpu(TID, None, 0, 0, 10, None), OffCpu(TID, 0, None, 20, END, "waited")


@pytest.mark.parametrize(("rings", "tids", "off_cpu"), [
    ([out(10, preempted=True) + back(30, 1)], [TID], [OffCpu(TID, 0, 1, 10, 30, "preempted", 10)]),
    ([told(10, 256) + out(10, preempted=True) + back(20) + told(30, 4, after=0) + out(30)
      + back(40)], [TID], [OffCpu(TID, 0, 0, 10, 20, "preempted", 10, FIO, "fio"),
                           OffCpu(TID, 0, 0, 30, 40, "stopped", None, 0, "swapper/0")]),
    # In another CPU's ring than the switches around it; and who made room for it.
    ([WAITS, WOKEN], [TID], [OffCpu(TID, 0, 0, 10, 40, "waited", 25)]),
    ([WAITS, WOKEN, told(39, 0, FIO, TID, pid=FIO)], [TID], [WOKEN_LATE]),
    # At the ends of the trace; a thread that began meanwhile was not off the CPU before.
    ([back(10) + out(20)], [TID], [BEFORE, AFTER]),
    ([back(10) + out(20)], [], [AFTER]),
    # Children's, and what lies outside.
    ([out(10, pid=99) + out(END + 1)], [TID], []),
    # What was switched in at a lost record has no end.
    ([out(10) + LOST + out(50) + back(60), b""], [TID], [OffCpu(TID, 0, 0, 50, 60, "waited")]),
])  # fmt: skip
def test_switches_become_times_off_the_cpu(
    rings: list[bytes], tids: list[int], off_cpu: list[OffCpu]
) -> None:
    found = decoded(*rings, tids=tuple(tids))
    assert found.off_cpu == tuple(off_cpu)
    assert found.lost == 5 * any(LOST in ring for ring in rings)


@pytest.mark.parametrize(("changed", "what"), [
    ({}, "had no CPU when it was woken: fio ran on it"),
    ({"before_tid": 0}, "had no CPU when it was woken, though its core was idle"),
    # Both ends of a preemption, where others took turns between.
    ({"reason": "preempted", "next_tid": 5, "next_comm": "kworker"},
     "gave way to kworker, then fio"),
])  # fmt: skip
def test_who_kept_a_thread_from_its_cpu_is_told_in_words(
    changed: dict[str, Any], what: str
) -> None:
    late = replace(WOKEN_LATE, **changed)
    (told_of,) = off_cpu_evidence([late])
    assert (told_of.what, (told_of.start_ns, told_of.end_ns)) == (what, late.withheld)


def test_interrupts_are_paired_by_cpu_and_one_without_its_other_end_is_none() -> None:
    timer, name = struct.pack("=i", 236), b"virtio1-req.0\0"
    ring = edge("irq/softirq_exit", 5) + edge("irq/softirq_entry", 10)
    ring += edge("irq_vectors/local_timer_entry", 20, timer)
    ring += edge("irq_vectors/local_timer_exit", 30, timer)
    ring += edge("irq_vectors/local_timer_entry", 40, timer) + edge("irq/softirq_exit", 50)
    handler = struct.pack("=iI", 36, len(name) << 16 | 16) + name
    other = edge("irq/irq_handler_entry", 15, handler, cpu=1)
    other += edge("irq/irq_handler_exit", 18, struct.pack("=ii", 36, 1), cpu=1)
    assert decoded(ring, other).interrupts == (
        Interrupt(TID, 0, 10, 50, "softirq", 3, "NET_RX"),
        Interrupt(TID, 1, 15, 18, "hardirq", 36, "virtio1-req.0"),
        Interrupt(TID, 0, 20, 30, "vector", 236, "local_timer"),
    )


RAISE, ENTRY, EXIT = "irq/softirq_raise", "irq/softirq_entry", "irq/softirq_exit"


def test_a_soft_interrupt_names_what_raised_it_as_far_as_that_was_seen() -> None:
    name = b"eth0-rx\0"
    handler = struct.pack("=iI", 36, len(name) << 16 | 16) + name
    device = edge("irq/irq_handler_entry", 10, handler) + edge(RAISE, 12)
    device += edge(RAISE, 13) + edge("irq/irq_handler_exit", 15, struct.pack("=ii", 36, 1))
    device += edge(ENTRY, 16) + edge(EXIT, 20)
    own = edge(RAISE, 30) + edge(ENTRY, 31) + edge(EXIT, 35)
    # Another raised it while the thread was away; on another CPU it is another's.
    away = edge(RAISE, 40) + told(41, 1) + out(41) + back(50) + edge(ENTRY, 51) + edge(EXIT, 55)
    other = edge(ENTRY, 32, cpu=1) + edge(EXIT, 34, cpu=1)
    found = decoded(device + own + away, other).interrupts
    assert found is not None
    assert [(one.start_ns, one.kind, one.raised_by) for one in found] == [
        (10, "hardirq", None), (16, "softirq", "hardirq eth0-rx"),
        (31, "softirq", "a call of the thread"), (32, "softirq", None), (51, "softirq", None),
    ]  # fmt: skip


@given(st.lists(st.tuples(st.integers(1, 100), st.booleans(), st.integers(0, 3)), max_size=50))
def test_every_switch_is_found_whatever_cpu_it_is_on(steps: list[tuple[int, bool, int]]) -> None:
    rings = [b""] * 4
    at, cpu, expected = 0, 0, []
    for gap, preempted, next_cpu in steps:
        rings[cpu] += out(at + gap, preempted=preempted, cpu=cpu)
        rings[next_cpu] += back(at + 2 * gap, next_cpu)
        reason = "preempted" if preempted else "waited"
        expected.append((at + gap, at + 2 * gap, cpu, next_cpu, reason))
        at, cpu = at + 2 * gap, next_cpu
    assert expected == [
        (one.start_ns, one.end_ns, one.cpu, one.end_cpu, one.reason)
        for one in decoded(*rings).off_cpu
    ]


def test_what_perf_uses_itself_is_left_out(tmp_path: Path) -> None:
    unused = ("irq_vectors/irq_work_entry", "irq_vectors/vector_setup", "sched/sched_fork")
    for name in (*_FORMATS, *unused):
        folder = tmp_path / "events" / name
        folder.mkdir(parents=True)
        (folder / "format").write_text(_FORMATS.get(name, _FORMATS["sched/sched_wakeup"]))
    assert read_tracepoints((tmp_path / "nowhere", tmp_path)) == POINTS
    # Nothing is mounted.
    with pytest.raises(OSError, match="tracefs is not mounted: `mount -t tracefs"):
        read_tracepoints((tmp_path / "nowhere",))
