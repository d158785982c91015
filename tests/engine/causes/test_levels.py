"""Levels: a missing right costs what needs it, with the reason, and never an error; and clocks."""

from __future__ import annotations

import shutil
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.parts.devices.clocks import ClockOffset, ClockPair, measure_offset

from .victims import need, victim

# Runs another command behind a filter of system calls, as containers do.
_FILTERED = """
import ctypes, os, platform, struct, sys
number = {"x86_64": 298, "aarch64": 241}[platform.machine()]
# struct sock_filter: load the number; if it is perf_event_open's, fail with EPERM.
refuse, allow = 0x50001, 0x7FFF0000
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, refuse), (6, 0, 0, allow)]
filters = b"".join(struct.pack("=HBBI", *step) for step in steps)
memory = ctypes.create_string_buffer(filters)
program = struct.pack("@HP", 4, ctypes.addressof(memory))
library = ctypes.CDLL(None, use_errno=True)
arguments = [ctypes.c_ulong(one) for one in (1, 0, 0, 0)]
assert library.prctl(38, *arguments) == 0  # PR_SET_NO_NEW_PRIVS
assert library.prctl(22, ctypes.c_ulong(2), program, *arguments[1:3]) == 0  # seccomp
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.parametrize(("rights", "command", "level", "refused"), [
    ("tracepoints", [], "perf", []),
    pytest.param(
        "tracepoints", ["setpriv", "--bounding-set=-all"], "perf", ["needs root or CAP_PERFMON"],
        marks=pytest.mark.skipif(shutil.which("setpriv") is None, reason="there is no setpriv"),
    ),
    ("switches", [sys.executable, "-c", _FILTERED], "rusage", ["", "filter of system calls"]),
])  # fmt: skip
def test_what_is_refused_costs_only_what_needs_it(
    rights: str, command: list[str], level: str, refused: list[str]
) -> None:
    need(rights)
    with victim("spin", "tracepoints", 0.01, ring_bytes=1 << 16, command=command) as running:
        found = running.report()
    assert (found["level"], len(found["refused"])) == (level, len(refused))
    assert ("lost" in found, bool(found.get("interrupts") is None)) == (
        level == "perf", bool(refused),
    )  # fmt: skip
    for told, part in zip(found["refused"], refused, strict=True):
        assert (told["level"], part in told["reason"], bool(told["reason"])) == ("perf", True, True)
    assert level == "perf" or found["refused"][1]["errno"] == 1


def test_the_offset_of_this_machine_holds_for_stamps_taken_between() -> None:
    before = measure_offset()
    stamps = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(200)]
    pair = ClockPair(before, measure_offset())
    slack = pair.uncertainty_ns
    for begin, realtime, end in stamps:
        assert begin - slack <= pair.to_monotonic(realtime) <= end + slack


@given(
    st.integers(-(10**18), 10**18), st.integers(-(10**6), 10**6), st.integers(0, 10**10),
    st.integers(1, 10**10), st.integers(0, 200),
)  # fmt: skip
def test_a_slewed_clock_is_interpolated(
    offset: int, change: int, at: int, lasting: int, uncertainty: int
) -> None:
    begin, at = 10**15, min(at, lasting)
    after = ClockOffset(begin + lasting, offset + change, 2 * uncertainty)
    pair = ClockPair(ClockOffset(begin, offset, uncertainty), after)
    assert pair.uncertainty_ns == 2 * uncertainty + abs(change)
    realtime = begin + at + offset + round(change * at / lasting)
    # Interpolating over the stamp itself, not over the moment, errs by a part of the change.
    assert abs(pair.to_monotonic(realtime) - (begin + at)) <= pair.uncertainty_ns + 1
