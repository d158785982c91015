"""Tracepoints' formats as kernels print them, and records made up: switches, wake-ups, losses."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.metrics.attribution import off_cpu_evidence
from pytest_hwqueue.metrics.cpu_events import Interrupt, OffCpu
from pytest_hwqueue.tracing import perf_records
from pytest_hwqueue.tracing.perf_records import (
    CpuTrace,
    Tracepoint,
    decode,
    parse,
    read_tracepoints,
)

PID, TID = 40, 41
END = 10**6
FIELDS = {"pid": (4, "=i"), "vec": (8, "=I"), "irq": (8, "=i"), "vector": (8, "=i")}
POINTS = {
    name: Tracepoint(name, number, FIELDS, {3: "NET_RX"})
    for number, name in enumerate(
        (
            "sched/sched_wakeup",
            "irq/softirq_entry",
            "irq/softirq_exit",
            "irq_vectors/local_timer_entry",
            "irq_vectors/local_timer_exit",
        ),
        start=1,
    )
}
POINTS["sched/sched_switch"] = Tracepoint(
    "sched/sched_switch",
    9,
    {
        "prev_pid": (4, "=i"),
        "prev_state": (8, "=q"),
        "next_pid": (16, "=i"),
        "next_comm": (20, "16s"),
        "prev_comm": (36, "16s"),
    },
    {},
)


def record(kind: int, misc: int, body: bytes) -> bytes:
    return struct.pack("=IHH", kind, misc, 8 + len(body)) + body


def switch(when: int, *, out: bool, preempted: bool = False, tid: int = TID, cpu: int = 0) -> bytes:
    misc = out << 13 | preempted << 14
    return record(14, misc, struct.pack("=iiQII", PID, tid, when, cpu, 0))


def sample(name: str, when: int, body: bytes, *, pid: int = PID, cpu: int = 0) -> bytes:
    raw = struct.pack("=HH", POINTS[name].number, 0) + body
    raw += bytes(-(len(raw) + 4) % 8)
    origin = struct.pack("=iiQII", pid, TID if pid == PID else pid, when, cpu, 0)
    return record(9, 0, origin + struct.pack("=I", len(raw)) + raw)


def told(when: int, state: int, next_pid: int = 77, comm: bytes = b"fio") -> bytes:
    body = struct.pack("=iqi16s16s", TID, state, next_pid, comm, b"python")
    return sample("sched/sched_switch", when, body)


def edge(name: str, when: int, number: int = 3, cpu: int = 0) -> bytes:
    return sample(name, when, struct.pack("=ii", TID, number), cpu=cpu)


def decoded(*rings: bytes, tids: tuple[int, ...] = (TID,)) -> CpuTrace:
    return decode(rings, POINTS, PID, tids, 0, END)


def test_a_preemption_without_tracepoints() -> None:
    ring = switch(10, out=True, preempted=True) + switch(30, out=False, cpu=1)
    assert decoded(ring).off_cpu == (OffCpu(TID, 0, 1, 10, 30, "preempted", 10),)


def test_who_ran_instead_and_a_stop() -> None:
    ring = told(10, 256) + switch(10, out=True, preempted=True) + switch(20, out=False)
    ring += told(30, 4, 0, b"swapper/0") + switch(30, out=True) + switch(40, out=False)
    assert decoded(ring).off_cpu == (
        OffCpu(TID, 0, 0, 10, 20, "preempted", 10, 77, "fio"),
        OffCpu(TID, 0, 0, 30, 40, "stopped", None, 0, "swapper/0"),
    )


def test_a_wake_up_in_another_cpus_ring() -> None:
    ring = switch(10, out=True) + switch(40, out=False)
    woken = sample("sched/sched_wakeup", 25, struct.pack("=i", TID), pid=5, cpu=1)
    (one,) = decoded(ring, woken).off_cpu
    assert (one.reason, one.runnable_ns, one.withheld) == ("waited", 25, (25, 40))


def test_who_made_room_for_a_thread_that_was_woken_late() -> None:
    ring = switch(10, out=True) + switch(40, out=False)
    woken = sample("sched/sched_wakeup", 25, struct.pack("=i", TID), pid=5, cpu=1)
    body = struct.pack("=iqi16s16s", 77, 0, TID, b"python", b"fio")
    made_room = sample("sched/sched_switch", 39, body, pid=77)
    (one,) = decoded(ring, woken, made_room).off_cpu
    assert (one.before_tid, one.before_comm, one.next_comm) == (77, "fio", None)
    (told_of,) = off_cpu_evidence([one])
    assert told_of.what == "had no CPU when it was woken: fio ran on it"
    idle = replace(one, before_tid=0, before_comm="swapper/0")
    assert off_cpu_evidence([idle])[0].what.endswith("though its core was idle")
    # Both ends of a preemption, where others took turns between.
    both = replace(one, reason="preempted", next_tid=5, next_comm="kworker/0:1")
    assert off_cpu_evidence([both])[0].what == "gave way to kworker/0:1, then fio"


def test_threads_off_the_cpu_at_the_ends_of_the_trace() -> None:
    ring = switch(10, out=False) + switch(20, out=True)
    assert decoded(ring).off_cpu == (
        OffCpu(TID, None, 0, 0, 10, None),
        OffCpu(TID, 0, None, 20, END, "waited"),
    )
    # A thread that began meanwhile was not off the CPU before.
    assert decoded(ring, tids=()).off_cpu == (OffCpu(TID, 0, None, 20, END, "waited"),)


def test_children_and_what_lies_outside_are_left_out() -> None:
    child = record(14, 1 << 13, struct.pack("=iiQII", 99, 99, 10, 0, 0))
    late = switch(END + 1, out=True)
    assert decoded(child + late).off_cpu == ()


def test_losses_are_summed_and_leave_no_false_times() -> None:
    # Out at 10, and the switch in is lost; then out at 50.
    ring = switch(10, out=True) + record(2, 0, struct.pack("=QQiiQII", 1, 5, 0, 0, 40, 0, 0))
    ring += switch(50, out=True) + switch(60, out=False)
    found = decoded(ring, ring[:0])
    assert found.lost == 5
    assert [(one.start_ns, one.end_ns) for one in found.off_cpu] == [(50, 60)]


def test_nested_interrupts_are_paired() -> None:
    ring = edge("irq/softirq_entry", 10) + edge("irq_vectors/local_timer_entry", 20, 236)
    ring += edge("irq_vectors/local_timer_exit", 30, 236) + edge("irq/softirq_exit", 50)
    other = edge("irq_vectors/local_timer_entry", 15, 236, cpu=1)
    other += edge("irq_vectors/local_timer_exit", 18, 236, cpu=1)
    assert decoded(ring, other).interrupts == (
        Interrupt(TID, 0, 10, 50, "softirq", 3, "NET_RX"),
        Interrupt(TID, 1, 15, 18, "vector", 236, "local_timer"),
        Interrupt(TID, 0, 20, 30, "vector", 236, "local_timer"),
    )


def test_an_interrupt_without_its_other_end_is_no_interrupt() -> None:
    ring = edge("irq/softirq_exit", 5) + edge("irq/softirq_entry", 10)
    ring += edge("irq_vectors/local_timer_entry", 20) + edge("irq/softirq_exit", 50)
    assert [one.name for one in decoded(ring).interrupts or ()] == ["NET_RX"]


@given(st.lists(st.tuples(st.integers(1, 100), st.booleans(), st.integers(0, 3)), max_size=50))
def test_every_switch_is_found_whatever_cpu_it_is_on(steps: list[tuple[int, bool, int]]) -> None:
    rings = [b""] * 4
    at, cpu, expected = 0, 0, []
    for gap, preempted, next_cpu in steps:
        rings[cpu] += switch(at + gap, out=True, preempted=preempted, cpu=cpu)
        rings[next_cpu] += switch(at + 2 * gap, out=False, cpu=next_cpu)
        reason = "preempted" if preempted else "waited"
        expected.append((at + gap, at + 2 * gap, cpu, next_cpu, reason))
        at, cpu = at + 2 * gap, next_cpu
    found = decoded(*rings)
    assert [
        (one.start_ns, one.end_ns, one.cpu, one.end_cpu, one.reason) for one in found.off_cpu
    ] == expected


_COMMON = """\
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;
"""
SWITCH = f"""\
name: sched_switch
ID: 372
format:
{_COMMON}
\tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;
\tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;
\tfield:int prev_prio;\toffset:28;\tsize:4;\tsigned:1;
\tfield:long prev_state;\toffset:32;\tsize:8;\tsigned:1;
\tfield:char next_comm[16];\toffset:40;\tsize:16;\tsigned:0;
\tfield:pid_t next_pid;\toffset:56;\tsize:4;\tsigned:1;
\tfield:int next_prio;\toffset:60;\tsize:4;\tsigned:1;

print fmt: "prev_comm=%s", REC->prev_comm
"""
HANDLER = f"""\
name: irq_handler_entry
ID: 225
format:
{_COMMON}
\tfield:int irq;\toffset:8;\tsize:4;\tsigned:1;
\tfield:__data_loc char[] name;\toffset:12;\tsize:4;\tsigned:0;

print fmt: "irq=%d name=%s", REC->irq, __get_str(name)
"""
SOFTIRQ = f"""\
name: softirq_entry
ID: 223
format:
{_COMMON}
\tfield:unsigned int vec;\toffset:8;\tsize:4;\tsigned:0;

print fmt: "vec=%u [action=%s]", REC->vec, __print_symbolic(REC->vec, {{ 0, "HI" }}, {{ 9, "RCU" }})
"""


def test_numbers_and_text_of_fixed_length() -> None:
    switch = parse("sched/sched_switch", SWITCH)
    raw = struct.pack("=HBBi16siiq16sii", 372, 0, 0, 5, b"mine", 5, 120, 256, b"other\0x", -7, 100)
    assert switch.number == 372
    assert [switch.value(raw, field) for field in ("prev_pid", "prev_state", "next_pid")] == [
        5,
        256,
        -7,
    ]
    assert (switch.text(raw, "prev_comm"), switch.text(raw, "next_comm")) == ("mine", "other")


def test_text_that_stands_behind_the_record() -> None:
    handler = parse("irq/irq_handler_entry", HANDLER)
    name = b"virtio1-req.0\0"
    raw = struct.pack("=HBBiiI", 225, 0, 0, 5, 36, len(name) << 16 | 16) + name + b"\0\0"
    assert handler.value(raw, "irq") == 36
    assert handler.text(raw, "name") == "virtio1-req.0"


def test_names_of_values() -> None:
    assert parse("irq/softirq_entry", SOFTIRQ).symbols == {0: "HI", 9: "RCU"}


def test_what_perf_uses_itself_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    formats = {
        "sched/sched_switch": SWITCH,
        "irq/softirq_entry": SOFTIRQ,
        "irq_vectors/irq_work_entry": SOFTIRQ,
        "irq_vectors/local_timer_entry": SOFTIRQ,
        "irq_vectors/vector_setup": SOFTIRQ,
    }
    for name, text in formats.items():
        folder = tmp_path / "events" / name
        folder.mkdir(parents=True)
        (folder / "format").write_text(text)
    monkeypatch.setattr(perf_records, "PLACES", (tmp_path / "nowhere", tmp_path))
    assert set(read_tracepoints()) == {
        "sched/sched_switch",
        "irq/softirq_entry",
        "irq_vectors/local_timer_entry",
    }
    # Nothing is mounted.
    monkeypatch.setattr(perf_records, "PLACES", (tmp_path / "nowhere",))
    with pytest.raises(OSError, match="tracefs is not mounted: `mount -t tracefs"):
        read_tracepoints()
