"""Levels: a missing right costs what needs it, with the reason, and never an error; and clocks."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.tracing.perf_events import ClockOffset, ClockPair, measure_offset

from .victims import need, report_of

_WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-all")
needs_setpriv = pytest.mark.skipif(
    shutil.which("setpriv") is None, reason="there is no setpriv to give rights up with"
)


def test_with_all_rights_nothing_is_refused() -> None:
    need("tracepoints")
    found = report_of([])
    assert (found["level"], found["refused"]) == ("perf", [])


@needs_setpriv
def test_without_capabilities_own_switches_remain() -> None:
    need("tracepoints")
    found = report_of([*_WITHOUT_RIGHTS])
    assert found["level"] == "perf"
    assert [one["level"] for one in found["refused"]] == ["perf"]
    assert found["refused"][0]["reason"]
    assert found["interrupts"] is None


def _without_perf(folder: Path) -> list[str]:
    """A command that runs another one behind a filter of system calls, as containers do."""
    program = folder / "filtered.py"
    program.write_text(
        textwrap.dedent(
            """
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
        ),
        encoding="utf-8",
    )
    return [sys.executable, str(program)]


def test_behind_a_filter_of_system_calls_counts_remain(tmp_path: Path) -> None:
    need("switches")
    found = report_of(_without_perf(tmp_path))
    assert found["level"] == "rusage"
    assert [one["level"] for one in found["refused"]] == ["perf", "perf"]
    assert found["refused"][1]["errno"] == 1
    assert "filter of system calls" in found["refused"][1]["reason"]


def test_the_offset_of_this_machine_holds_for_stamps_taken_between() -> None:
    before = measure_offset()
    brackets = []
    for _ in range(200):
        brackets.append((time.monotonic_ns(), time.time_ns(), time.monotonic_ns()))
    pair = ClockPair(before, measure_offset())
    slack = pair.uncertainty_ns
    for begin, realtime, end in brackets:
        assert begin - slack <= pair.to_monotonic(realtime) <= end + slack


def test_the_narrowest_bracket_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    # Three brackets 100, 10 and 50 ns wide; REALTIME is 1000 ahead.
    monotonic = iter([0, 100, 200, 210, 300, 350])
    realtime = iter([1090, 1204, 1310])
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(monotonic))
    monkeypatch.setattr(time, "time_ns", lambda: next(realtime))
    assert measure_offset(3) == ClockOffset(when_ns=205, offset_ns=999, uncertainty_ns=5)


@given(
    st.integers(-(10**18), 10**18),
    st.integers(-(10**6), 10**6),
    st.integers(0, 10**10),
    st.integers(1, 10**10),
    st.integers(0, 200),
)
def test_a_slewed_clock_is_interpolated(
    offset: int, change: int, at: int, lasting: int, uncertainty: int
) -> None:
    begin = 10**15
    pair = ClockPair(
        ClockOffset(begin, offset, uncertainty),
        ClockOffset(begin + lasting, offset + change, 2 * uncertainty),
    )
    assert pair.uncertainty_ns == 2 * uncertainty + abs(change)
    at = min(at, lasting)
    realtime = begin + at + offset + round(change * at / lasting)
    # Interpolating over the stamp itself, not over the moment, errs by a part of the change.
    assert abs(pair.to_monotonic(realtime) - (begin + at)) <= pair.uncertainty_ns + 1


def test_a_clock_that_was_not_set_needs_no_interpolation() -> None:
    pair = ClockPair(ClockOffset(100, 5000, 40), ClockOffset(900, 5000, 30))
    assert [pair.to_monotonic(stamp) for stamp in (5000, 5500, 6000)] == [0, 500, 1000]
    assert pair.uncertainty_ns == 40
