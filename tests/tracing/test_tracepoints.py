"""Tracepoints' formats, as kernels print them, and where they are read."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from pytest_hwqueue.tracing import tracepoints
from pytest_hwqueue.tracing.tracepoints import NoTracepoints, parse, read_tracepoints

from .victims import need

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


def test_a_format_without_a_number_is_refused() -> None:
    with pytest.raises(NoTracepoints, match="irq/softirq_entry has no number"):
        parse("irq/softirq_entry", "name: x\n")


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
    monkeypatch.setattr(tracepoints, "PLACES", (tmp_path / "nowhere", tmp_path))
    assert set(read_tracepoints()) == {
        "sched/sched_switch",
        "irq/softirq_entry",
        "irq_vectors/local_timer_entry",
    }


def test_without_a_mount_and_without_the_tool_there_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracepoints, "PLACES", (tmp_path,))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoTracepoints, match="tracefs is not mounted"):
        read_tracepoints()


@pytest.mark.skipif(shutil.which("unshare") is None, reason="there is no unshare")
def test_reading_leaves_no_mount_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("perf-system")
    before = Path("/proc/self/mounts").read_text()
    usual = read_tracepoints()
    # A place where tracefs is certainly not mounted yet.
    monkeypatch.setattr(tracepoints, "PLACES", (tmp_path,))
    assert read_tracepoints() == usual
    assert Path("/proc/self/mounts").read_text() == before
    assert list(tmp_path.iterdir()) == []
