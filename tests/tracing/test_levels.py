"""Levels: a missing right leads to the next one, with the reason, and never to an error."""

from __future__ import annotations

import resource
import shutil
import sys
import textwrap
from pathlib import Path

import pytest

from pytest_hwqueue.tracing import levels
from pytest_hwqueue.tracing.levels import open_tracing
from pytest_hwqueue.tracing.tracepoints import NoTracepoints

from .victims import level_here, need, report_of

_WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-all")
needs_setpriv = pytest.mark.skipif(
    shutil.which("setpriv") is None, reason="there is no setpriv to give rights up with"
)


def test_with_all_rights_nothing_is_refused() -> None:
    need("perf-system")
    opened = open_tracing()
    assert opened.perf is not None
    opened.perf.close()
    assert (opened.level, opened.refused) == ("perf-system", ())


@needs_setpriv
def test_without_capabilities_own_switches_remain() -> None:
    need("perf-system")
    found = report_of([*_WITHOUT_RIGHTS])
    assert found["level"] == "perf-self"
    assert [one["level"] for one in found["refused"]] == ["perf-system"]
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
    need("perf-self")
    found = report_of(_without_perf(tmp_path))
    assert found["level"] == "rusage"
    refused = {one["level"]: one for one in found["refused"]}
    assert list(refused) == ["perf-system", "perf-self"]
    assert refused["perf-self"]["errno"] == 1
    assert "filter of system calls" in refused["perf-self"]["reason"]


def test_where_nothing_counts_there_is_no_level(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "no")

    def no_tracepoints() -> None:
        raise NoTracepoints("no tracefs here")

    class NoUsage:
        ru_nvcsw = 0

    monkeypatch.setattr(levels, "PerfTracer", refuse)
    monkeypatch.setattr(levels, "read_tracepoints", no_tracepoints)
    monkeypatch.setattr(resource, "getrusage", lambda _: NoUsage())
    opened = open_tracing()
    assert (opened.level, opened.perf) == ("none", None)
    assert [(one.level, one.errno) for one in opened.refused] == [
        ("perf-system", None),
        ("perf-self", 1),
        ("rusage", None),
    ]
    assert opened.refused[0].reason == "no tracefs here"


def test_this_machine_has_some_level() -> None:
    assert level_here()[0] in ("perf-system", "perf-self", "rusage")
