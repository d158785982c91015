"""Tests that crash, hang, close descriptors or leave processes: each costs itself only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from pytest_hwqueue.devices.lease import lease
from pytest_hwqueue.suite import plugin_name
from tests.acceptance.test_measuring import SUITE

if TYPE_CHECKING:
    from tests.conftest import RunInProcess, Sessions


@pytest.fixture(autouse=True)
def _package_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SUITE.parent))
    for name in os.environ:
        if name.startswith(("HWQ_", "PYTEST_XDIST_")):
            monkeypatch.delenv(name)


def arguments(*more: str) -> list[str]:
    """Arguments of an inner session on a simulated device."""
    device = (
        "--hwq-device=sim:h200",
        "--hwq-streams=1",
        "--hwq-iterations=20",
        "--hwq-json=s.json",
    )
    return ["-p", plugin_name(), *device, *more]


def records(pytester: pytest.Pytester) -> list[dict[str, Any]]:
    """Records in a session's JSON."""
    found: list[dict[str, Any]] = json.loads((pytester.path / "s.json").read_text())["records"]
    return found


def test_what_fails_after_a_cell_was_measured_is_not_the_cell(
    pytester: pytest.Pytester, sessions: Sessions
) -> None:
    pytester.makepyfile(
        """
        import os, signal, time
        import pytest

        def test_crash(hwq):
            hwq.measure(lambda: None)
            os.kill(os.getpid(), signal.SIGSEGV)

        def test_hang(hwq):
            hwq.measure(lambda: None)
            time.sleep(3600)

        @pytest.fixture
        def stuck():
            yield
            time.sleep(3600)

        def test_stuck_teardown(hwq, stuck):
            hwq.measure(lambda: None)

        def test_after(hwq):
            hwq.measure(lambda: None)
        """
    )
    result = sessions.result(
        pytester.path,
        *arguments("--hwq-timeout=3", "--hwq-save=norm", "--hwq-runs=1", "--hwq-baselines=b"),
    )
    result.assert_outcomes(passed=2, failed=2, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_stuck_teardown*",
            "not finished within 3 s (--hwq-timeout), in stage teardown: test_stuck_teardown*",
            "the worker process died by SIGSEGV in the test's own code: test_crash*",
            "*3 s (--hwq-timeout), in stage the test's own code: test_hang*",
        ]
    )
    found = records(pytester)
    # A simulated device needs no lease.
    assert not list(Path(sessions.environment["TMPDIR"]).rglob("sim*.lock"))
    tests = ["test_crash", "test_hang", "test_stuck_teardown", "test_after"]
    assert [record["cell"].split("::")[1].partition("[")[0] for record in found] == tests
    assert {record["status"] for record in found} == {"ok"}
    assert len(list((pytester.path / "b").rglob("*.jsonl"))) == 4


def test_descriptors_that_a_test_has_not_opened_are_its_own_loss(
    pytester: pytest.Pytester, sessions: Sessions
) -> None:
    pytester.makepyfile(
        """
        import os

        def write_to(descriptors):
            for descriptor in descriptors:
                try:
                    os.write(descriptor, b"from a test\\n")
                except OSError:
                    pass

        def test_writes_to_low_ones(hwq):
            hwq.measure(lambda: None)
            write_to(range(3, 40))

        def test_writes_to_all(hwq):
            hwq.measure(lambda: None)
            write_to(each for each in map(int, os.listdir("/proc/self/fd")) if each > 2)

        def test_closes_the_standard_streams(hwq):
            hwq.measure(lambda: None)
            os.closerange(0, 3)

        def test_closes_all(hwq):
            hwq.measure(lambda: None)
            os.closerange(0, 5000)

        def test_after(hwq):
            hwq.measure(lambda: None)
        """
    )
    result = sessions.result(pytester.path, *arguments("-v"))
    result.assert_outcomes(passed=3, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*::test_writes_to_low_ones* PASSED*",
            "*::test_writes_to_all* FAILED*",
            "*::test_closes_the_standard_streams* PASSED*",
            "*::test_closes_all* FAILED*",
            "*::test_after* PASSED*",
            "*something in it writes to descriptors that it has not opened: *from a test*",
        ]
    )
    assert [record["status"] for record in records(pytester)] == ["ok"] * 5


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--hwq-save=good-name", "--hwq-save=good-name cannot be followed here: each run needs a "),
        ("--hwq-timeout=5", "--hwq-timeout=5 cannot be followed here: a cell is ended with its "),
    ],
)
def test_what_needs_a_process_is_refused_without_one(
    pytester: pytest.Pytester, run_in_process: RunInProcess, more: str, said: str
) -> None:
    pytester.makepyfile("def test_it(hwq): hwq.measure(lambda: None)")
    result = run_in_process(*arguments(more)[2:])
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{said}*"])


def test_a_session_without_processes_says_that_it_has_no_time_limit(
    pytester: pytest.Pytester, run_in_process: RunInProcess
) -> None:
    pytester.makepyfile("def test_it(hwq): hwq.measure(lambda: None)")
    result = run_in_process(*arguments()[2:])
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["hwqueue: no time limit (--hwq-timeout): with *"])


def test_much_output_is_shortened(pytester: pytest.Pytester, sessions: Sessions) -> None:
    pytester.makepyfile(
        """
        def test_prints(hwq):
            hwq.measure(lambda: None)
            print("first line")
            for _ in range(50):
                print("x" * 999_999)
            print("last line")
            assert not "failed on purpose"
        """
    )
    result = sessions.result(pytester.path, *arguments("--hwq-timeout=20", "-rN"))
    result.assert_outcomes(failed=1)
    output = result.stdout.str()
    assert "--hwq-timeout" not in output
    assert "first line" in output
    assert "last line" in output
    assert "[pytest-hwqueue left out 49000021 characters of output here]" in output
    assert len(output) < 3_000_000


def test_a_killed_session_leaves_nothing_whatever_its_tests_do(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import ctypes, os, subprocess
        from pathlib import Path

        def test_holds_the_interpreter(hwq):
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            Path("part").write_text(f"{os.getpid()} {child.pid}")
            Path("part").rename("started")
            hwq.measure(lambda: ctypes.PyDLL(None).sleep(600))
        """
    )
    session = subprocess.Popen(
        [sys.executable, "-m", "pytest", *arguments()], cwd=pytester.path, stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while not (pytester.path / "started").exists():
        assert session.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    left = [psutil.Process(int(pid)) for pid in (pytester.path / "started").read_text().split()]
    session.kill()
    session.wait()
    _, alive = psutil.wait_procs(left, timeout=30)
    assert alive == []


def test_waiting_for_another_session_is_said_and_ends(
    pytester: pytest.Pytester, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", sessions.environment["TMPDIR"])
    pytester.makepyfile(
        """
        def test_first(hwq):
            hwq.measure(lambda: None)

        def test_second(hwq):
            hwq.measure(lambda: None)
        """
    )
    with lease("cpu"):
        result = sessions.result(
            pytester.path, *arguments("--hwq-device=cpu", "--hwq-lease-timeout=0.5")
        )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            f"hwqueue: waiting for cpu: process {os.getpid()} of user *, since *, is measuring*",
            "E *LeaseError: cpu was not free within 0.5 s: *",
        ]
    )
    # Waited for once.
    assert result.stdout.str().count("hwqueue: waiting") == 1


def test_a_session_file_that_cannot_be_written_fails_the_session(
    pytester: pytest.Pytester, run_in_process: RunInProcess
) -> None:
    pytester.makepyfile(
        """
        from pathlib import Path

        def test_it(hwq):
            hwq.measure(lambda: None)
            file = next(Path(".hwqueue").glob("*/session.json"))
            file.unlink()
            file.mkdir()
        """
    )
    result = run_in_process(*arguments()[2:])
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["hwqueue: cannot write *session.json*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
