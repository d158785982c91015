"""A session that judged or stored nothing is not green (docs/evidence/hard-to-break.md)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.answers.versions.repositories import git

if TYPE_CHECKING:
    from tests.conftest import Sessions

# Ways in which a test that is selected measures nothing, and passes or is skipped.
NOTHING = """
import pytest

@pytest.fixture
def no_data():
    pytest.skip("no data")

@pytest.mark.skip
def test_marked(hwq): hwq.measure(lambda: None)

@pytest.mark.xfail(run=False)
def test_not_run(hwq): hwq.measure(lambda: None)

def test_skips(hwq): pytest.skip("no data")

def test_fixture_skips(no_data, hwq): hwq.measure(lambda: None)

def test_measures_nothing(hwq): pass
"""
MEASURED = "def test_mine(hwq, hwq_device): hwq.measure(hwq_device.kernel_of(200_000), streams=1)\n"
SIMULATED = (
    "--hwq-device=sim:h200", "--hwq-iterations=20", "--hwq-warmup=1", "--hwq-fail-on=p50", "-p",
    "no:cacheprovider",
)  # fmt: skip


@pytest.mark.parametrize("asked", ["compare=main", "save=new", "against=HEAD"])
def test_a_session_whose_tests_measure_nothing_is_not_green(
    sessions: Sessions, tmp_path: Path, asked: str
) -> None:
    (tmp_path / "test_mine.py").write_text(MEASURED)
    if asked.startswith("compare"):
        stored = sessions.result(tmp_path, *SIMULATED, "--hwq-save=main", "--hwq-runs=2")
        stored.assert_outcomes(passed=1)
    (tmp_path / "test_mine.py").write_text(NOTHING)
    if asked.startswith("against"):
        git(tmp_path, "init", "-q")
        git(tmp_path, "add", "test_mine.py")
        git(tmp_path, "commit", "-q", "-m", "one")
    result = sessions.result(tmp_path, *SIMULATED, f"--hwq-{asked}")
    result.assert_outcomes(failed=1, skipped=3, xfailed=1, passed=1)
    word = "stores" if asked.startswith("save") else "judges"
    result.stdout.fnmatch_lines([f"*--hwq-{asked} {word} no cell*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
