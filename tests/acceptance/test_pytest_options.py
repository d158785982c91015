"""Options and functions of pytest mean in a measuring test what they mean in any other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Sessions

TESTS = """
import logging, sys
import pytest

@pytest.fixture
def shared():
    print("in set-up")
    yield
    print("in teardown")

def test_writes(hwq, hwq_device, shared):
    print("to output")
    print("to errors", file=sys.stderr)
    logging.getLogger("mine").info("to the log")
    hwq.measure(hwq_device.kernel_of(200_000), streams=1)

def test_debugs(hwq):
    breakpoint()

def test_fails(hwq):
    print("before", "it failed")
    assert False
"""
EXITS = """
import pytest

def test_exits(hwq, hwq_device):
    hwq.measure(hwq_device.kernel_of(200_000), streams=1)
    pytest.exit("that is enough", 7)

def test_is_not_reached(hwq, hwq_device):
    hwq.measure(hwq_device.kernel_of(200_000), streams=1)
"""


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    (tmp_path / "test_mine.py").write_text(TESTS)
    (tmp_path / "test_exits.py").write_text(EXITS)
    return tmp_path


def run(sessions: Sessions, folder: Path, *arguments: str) -> tuple[int, str, str]:
    done = sessions.run(
        folder, "-p", "no:cacheprovider", "--hwq-device=sim:h200", "--hwq-iterations=20",
        "--hwq-warmup=1", *arguments,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_output_fixtures_and_log_are_shown_as_they_are_asked_for(
    sessions: Sessions, folder: Path
) -> None:
    status, output, errors = run(
        sessions, folder, "-s", "--setup-show", "--log-cli-level=INFO", "test_mine.py",
        "-k", "writes or fails",
    )  # fmt: skip
    assert status == 1
    shown = ["SETUP    F shared", "in set-up", "live log call", "mine:test_mine.py:14 to the log",
             "to output", "TEARDOWN F shared", "in teardown", "before it failed"]  # fmt: skip
    places = [output.find(each) for each in shown]
    assert -1 not in places, output
    assert places[0] < places[2] < places[3] < places[5]
    assert places[1] < places[4] < places[6]
    assert errors.count("to errors") == 1
    # Each once: the parts of a test bring those before them, and a failure shows what was captured.
    assert [output.count(each) for each in shown] == [1] * len(shown)
    assert "Captured stdout" not in output


def test_without_these_options_nothing_is_shown_of_what_passes(
    sessions: Sessions, folder: Path
) -> None:
    _, output, errors = run(sessions, folder, "test_mine.py", "-k", "writes or fails")
    assert "to output" not in output + errors
    assert "SETUP" not in output
    assert output.count("before it failed") == 1
    assert "Captured stdout call" in output


def test_a_plan_of_fixtures_measures_nothing(sessions: Sessions, folder: Path) -> None:
    status, output, _ = run(sessions, folder, "--setup-plan", "test_mine.py")
    assert status == 0, output
    assert output.count("SETUP    F hwq ") == 3
    assert not list(folder.glob(".hwqueue/*/test_mine*.json"))


@pytest.mark.parametrize("runs", [(), ("--hwq-runs=2",)])
def test_exit_ends_the_session_with_its_status(
    sessions: Sessions, folder: Path, runs: tuple[str, ...]
) -> None:
    status, output, _ = run(sessions, folder, "test_exits.py", *runs)
    assert status == 7, output
    assert "Exit: that is enough" in output
    # What was measured before is kept, and nothing more was measured.
    (record,) = folder.glob(".hwqueue/*/test_exits*.json")
    assert "test_exits_" in record.name


def test_the_first_failure_stops_where_cells_run_several_times_and_names_the_debugger(
    sessions: Sessions, folder: Path
) -> None:
    status, output, _ = run(sessions, folder, "-x", "--hwq-runs=2", "test_mine.py")
    assert status == 1
    assert "1 failed, 1 passed" in output
    said = "a debugger cannot ask here, as the test is measured in a process of its own: give"
    assert f"{said} --hwq-isolation=none, --pdb or --trace" in output
    assert "test_mine.py:18" in output
    # Neither the second run nor the third test has begun.
    assert len(list(folder.glob(".hwqueue/*/test_mine*.json"))) == 1
    assert "before it failed" not in output
