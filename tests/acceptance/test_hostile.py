"""Tests that crash, hang, close descriptors or leave processes: each costs itself only."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from pytest_hwqueue.parts.devices.lease import lease
from tests.acceptance.inner import plain_environment, records_in
from tests.conftest import PYTEST

if TYPE_CHECKING:
    from tests.conftest import RunInProcess, Sessions

ARGUMENTS = ("--hwq-device=sim:h200", "--hwq-streams=1", "--hwq-iterations=20")
TEST = "def test_it(hwq):\n    hwq.measure(lambda: None)\n"
HOSTILE = """
import os, signal, time
import pytest

@pytest.fixture(autouse=True)
def _measured(hwq):
    hwq.measure(lambda: None)

@pytest.fixture
def stuck():
    yield
    time.sleep(3600)

def write_to(descriptors):
    for descriptor in descriptors:
        try:
            os.write(descriptor, b"from a test\\n")
        except OSError:
            pass

def test_crash(hwq):
    os.kill(os.getpid(), signal.SIGSEGV)

def test_hang(hwq):
    time.sleep(3600)

def test_stuck_teardown(hwq, stuck):
    pass

def test_writes_to_low_ones(hwq):
    write_to(range(3, 40))

def test_writes_to_all(hwq):
    write_to(each for each in map(int, os.listdir("/proc/self/fd")) if each > 2)

def test_closes_the_standard_streams(hwq):
    os.closerange(0, 3)

def test_closes_all(hwq):
    os.closerange(0, 5000)

def test_prints(hwq):
    print("first line")
    for _ in range(4):
        print("x" * 999_999)
    print("last line")
    assert not "failed on purpose"

def test_after(hwq):
    pass
"""
TESTS = [line.split()[1].partition("(")[0] for line in HOSTILE.splitlines() if "def test_" in line]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def hostile(folder: Path, sessions: Sessions) -> pytest.RunResult:
    """A session in which all of these tests come one after the other."""
    (folder / "test_hostile.py").write_text(HOSTILE)
    return sessions.result(
        folder, *ARGUMENTS, "-v", "-rN", "--hwq-json=s.json", "--hwq-timeout=2",
        "--hwq-save=norm", "--hwq-runs=1", "--hwq-baselines=b",
    )  # fmt: skip


def test_what_fails_after_a_cell_was_measured_is_not_the_cell(
    folder: Path, hostile: pytest.RunResult, sessions: Sessions
) -> None:
    hostile.assert_outcomes(passed=4, failed=5, errors=1)
    hostile.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_stuck_teardown*",
            "not finished within 2 s (--hwq-timeout), in stage teardown: test_stuck_teardown*",
            "the worker process died by SIGSEGV in the test's own code: test_crash*",
            "*2 s (--hwq-timeout), in stage the test's own code: test_hang*",
        ]
    )
    found = records_in(folder / "s.json")
    # A simulated device needs no lease.
    assert not list(Path(sessions.environment["TMPDIR"]).rglob("sim*.lock"))
    assert [each["cell"].split("::")[1].partition("[")[0] for each in found] == TESTS
    assert {each["status"] for each in found} == {"ok"}
    assert len(list((folder / "b").rglob("*.jsonl"))) == len(TESTS)


def test_descriptors_that_a_test_has_not_opened_are_its_own_loss(hostile: pytest.RunResult) -> None:
    hostile.stdout.fnmatch_lines(
        [
            "*::test_writes_to_low_ones* PASSED*",
            "*::test_writes_to_all* FAILED*",
            "*::test_closes_the_standard_streams* PASSED*",
            "*::test_closes_all* FAILED*",
            "*::test_after* PASSED*",
            "*something in it writes to descriptors that it has not opened: *from a test*",
        ]
    )


def test_much_output_is_shortened(hostile: pytest.RunResult) -> None:
    output = hostile.stdout.str()
    _, failed, told = output.partition("_ test_prints")
    assert failed
    assert "--hwq-timeout" not in told
    assert "first line" in told
    assert "last line" in told
    assert "[pytest-hwqueue left out 3000021 characters of output here]" in told
    assert len(output) < 3_000_000


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--hwq-save=good-name", "--hwq-save=good-name cannot be followed here: each run needs a "),
        ("--hwq-cache=cold --hwq-sync-mode=none", "--hwq-cache=cold cannot be followed here: iter"),
        ("--hwq-timeout=5", "--hwq-timeout=5 cannot be followed here: a cell is ended with its "),
    ],
)
def test_what_needs_a_process_is_refused_without_one(
    pytester: pytest.Pytester, run_in_process: RunInProcess, more: str, said: str
) -> None:
    pytester.makepyfile(TEST)
    result = run_in_process(*ARGUMENTS, *more.split())
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{said}*"])


def test_a_session_without_processes_says_that_it_has_no_time_limit(
    pytester: pytest.Pytester, run_in_process: RunInProcess
) -> None:
    pytester.makepyfile(TEST)
    result = run_in_process(*ARGUMENTS)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["hwqueue: no time limit (--hwq-timeout): with *"])


def test_a_session_file_that_cannot_be_written_fails_the_session(
    pytester: pytest.Pytester, run_in_process: RunInProcess
) -> None:
    blocks = (
        "    from pathlib import Path\n"
        "    file = next(Path('.hwqueue').glob('*/session.json'))\n"
        "    file.unlink()\n"
        "    file.mkdir()\n"
    )
    pytester.makepyfile(TEST + blocks)
    result = run_in_process(*ARGUMENTS)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["hwqueue: cannot write *session.json*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_killed_session_leaves_nothing_whatever_its_tests_do(tmp_path: Path) -> None:
    (tmp_path / "test_holds_the_interpreter.py").write_text(
        "import ctypes, os, subprocess\n"
        "from pathlib import Path\n"
        "def test_it(hwq):\n"
        "    child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "    Path('part').write_text(f'{os.getpid()} {child.pid}')\n"
        "    Path('part').rename('started')\n"
        "    hwq.measure(lambda: ctypes.PyDLL(None).sleep(600))\n"
    )
    session = subprocess.Popen(
        [*PYTEST, *ARGUMENTS], cwd=tmp_path, env=plain_environment(), stdout=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (tmp_path / "started").exists():
        assert session.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    left = [psutil.Process(int(pid)) for pid in (tmp_path / "started").read_text().split()]
    session.kill()
    session.wait()
    assert psutil.wait_procs(left, timeout=30)[1] == []


def test_waiting_for_another_session_is_said_and_ends(
    tmp_path: Path, sessions: Sessions, temporary_files_in: Callable[[Path], None]
) -> None:
    temporary_files_in(Path(sessions.environment["TMPDIR"]))
    (tmp_path / "test_it.py").write_text(TEST + TEST.replace("test_it", "test_second"))
    with lease("cpu"):
        result = sessions.result(
            tmp_path, *ARGUMENTS, "--hwq-device=cpu", "--hwq-lease-timeout=0.5"
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
