"""Which test a cell is of: its place in the repository, and tests that would share a cell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_hwqueue.options.suite import plugin_name
from tests.acceptance.inner import plain_environment
from tests.conftest import slow

if TYPE_CHECKING:
    from tests.conftest import RunInProcess, Sessions

FAST = ("--hwq-iterations=10", "--hwq-max-time=2", "--hwq-warmup=2", "--hwq-device=cpu")

MINE = """
class TestAttention:
    class TestSmall:
        def test_mine(self, hwq):
            hwq.measure(lambda: None, streams=1)

    class TestLarge:
        def test_mine(self, hwq):
            hwq.measure(lambda: None, streams=1)
"""


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=n", "-c", "user.email=a@b.c")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def measured(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "s.json").read_text())["records"]
    return found


@pytest.mark.parametrize("start", [".", "tests", "tests/unit"])
@pytest.mark.parametrize("repository", [True, False], ids=["git", "no-git"])
def test_a_cell_holds_its_path_and_classes_wherever_pytest_starts(
    start: str, repository: bool, pytester: pytest.Pytester, run_in_process: RunInProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    here = pytester.path
    for folder in ("tests/unit", "tests/slow"):
        (here / folder).mkdir(parents=True)
        (here / folder / "test_same.py").write_text(MINE)
    # Equal file names need one of pytest's other import modes.
    (here / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    if repository:
        git(here, "init", "-q")
        (here / "pytest.ini").rename(here / "tests/pytest.ini")
    monkeypatch.chdir(here / start)
    result = run_in_process(
        *FAST, f"--hwq-json={here}/s.json", "-c", str(next(here.rglob("pytest.ini"))),
        str(here / "tests"),
    )  # fmt: skip
    result.assert_outcomes(passed=4)
    names = {record["cell"].partition("[")[0] for record in measured(here)}
    assert names == {
        f"tests/{folder}/test_same.py::TestAttention::{size}::test_mine"
        for folder in ("unit", "slow")
        for size in ("TestSmall", "TestLarge")
    }


TWICE = """
def test_twice(hwq):
    for n in (1, 2):
        hwq.measure(lambda: None, streams=1)
"""
EXAMPLES = """
from hypothesis import HealthCheck, given, settings, strategies
@settings(max_examples=3, suppress_health_check=list(HealthCheck), deadline=None, database=None)
@given(n=strategies.integers())
def test_twice(hwq, n):
    hwq.measure(lambda: n, streams=1)
"""


@pytest.mark.parametrize(
    ("options", "how"),
    [
        ("", "loop"), ("--hwq-isolation=none", "loop"),
        ("--hwq-save=mine --hwq-runs=2", "examples"),
        ("--hwq-compare=mine --hwq-save=mine", "loop"),
        slow("", "examples"), slow("--hwq-isolation=none", "examples"),
        # Each process of xdist imports torch; one in which tests meet stands below.
        slow("-n2", "loop"), slow("-n2", "examples"),
        slow("--hwq-save=mine --hwq-runs=2", "loop"),
        slow("--hwq-compare=mine --hwq-save=mine", "examples"),
    ],
)  # fmt: skip
def test_what_one_test_measures_again_has_no_figure(
    options: str, how: str, sessions: Sessions, tmp_path: Path
) -> None:
    (tmp_path / "test_mine.py").write_text({"loop": TWICE, "examples": EXAMPLES}[how])
    result = sessions.result(tmp_path, *FAST, "--hwq-json=s.json", *options.split())
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*is not measured: it is measured 2 times in one run: give *"])
    statuses = [record["status"] for record in measured(tmp_path)]
    assert statuses == ["ok", "failed"]
    # What was measured the first time is nobody's run.
    assert not list(tmp_path.rglob("*.jsonl"))
    said = result.stdout.str()
    assert ("examples of Hypothesis" in said) == (how == "examples")


SAME_WORKLOAD = """
def test_one(hwq):
    hwq.run("tiny_kernel_stress")
def test_other(hwq):
    hwq.run("tiny_kernel_stress")
"""


@pytest.mark.parametrize("mode", [(), ("--hwq-isolation=none",)], ids=["plain", "none"])
def test_two_tests_do_not_measure_one_cell(
    mode: tuple[str, ...], sessions: Sessions, tmp_path: Path
) -> None:
    (tmp_path / "test_mine.py").write_text(SAME_WORKLOAD)
    result = sessions.result(tmp_path, *FAST, "--hwq-streams=1", *mode)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*is not measured: test_mine.py::test_one* measures it, too: *"])


def test_processes_of_xdist_do_not_either(sessions: Sessions, tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(SAME_WORKLOAD)
    result = sessions.result(tmp_path, *FAST, "--hwq-streams=1", "-n2", "--dist=each")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*measures it, too: two tests cannot share one cell*"])


@pytest.mark.parametrize("mode", [(), ("--hwq-save=mine",), ("-n2",), ("--hwq-isolation=none",)])
def test_tests_of_one_name_are_refused_before_anything_is_measured(
    mode: tuple[str, ...], sessions: Sessions, tmp_path: Path
) -> None:
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        git(tmp_path / folder, "init", "-q")
        (tmp_path / folder / "test_mine.py").write_text(MINE)
    result = sessions.result(tmp_path, *FAST, "--import-mode=importlib", *mode)
    assert result.ret != pytest.ExitCode.OK
    said = result.stdout.str() + result.stderr.str()
    assert "test_mine.py::TestAttention::TestSmall::test_mine: two tests cannot share" in said
    assert f"{tmp_path}/one/test_mine.py" in said
    assert not list(tmp_path.rglob("*.json"))


def share_a_name(folder: Path) -> None:
    """Have tests of two repositories, inside of one that has them in two commits, share a name."""
    git(folder, "init", "-q")
    for name in ("one", "other"):
        (folder / name).mkdir()
        (folder / name / "test_mine.py").write_text(MINE)
    git(folder, "add", ".")
    for number in range(2):
        git(folder, "commit", "-q", "--allow-empty", "-m", f"{number}")
    for name in ("one", "other"):
        git(folder / name, "init", "-q")


def test_they_are_refused_before_another_commit_is_measured(
    sessions: Sessions, tmp_path: Path
) -> None:
    share_a_name(tmp_path)
    options = ("--import-mode=importlib", "--hwq-against=HEAD~1", "--hwq-pairs=3")
    result = sessions.result(tmp_path, *FAST, *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "test_mine: two tests cannot share one cell" in result.stderr.str()
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.slow
def test_they_are_refused_on_each_rank(tmp_path: Path) -> None:
    share_a_name(tmp_path)
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m")
    done = subprocess.run(
        [sys.executable, "-m", *launcher, "pytest", "-p", plugin_name(), *FAST,
         "--import-mode=importlib"],
        cwd=tmp_path, env=plain_environment(), capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip
    assert done.returncode != 0
    said = done.stdout + done.stderr
    # Torchrun may end the second before it has said so.
    assert "test_mine: two tests cannot share one cell" in said
    assert not list(tmp_path.rglob("*.json"))


def test_scenarios_of_one_name_are_refused(sessions: Sessions, tmp_path: Path) -> None:
    file = (Path(__file__).parents[2] / "examples/capacity_threads.hwq.yaml").read_text()
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.hwq.yaml").write_text(file)
    result = sessions.result(tmp_path, "one", "other", "--hwq-device=sim:h200")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "two tests cannot share one cell" in result.stdout.str() + result.stderr.str()


def test_a_folder_whose_name_is_no_text_is_one_like_any_other(
    sessions: Sessions, tmp_path: Path
) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / "test_mine.py").write_text(
        "def test_mine(hwq):\n    hwq.measure(lambda: None, streams=1)\n"
        "def test_bad(hwq):\n    hwq.measure(lambda: 1 / 0, streams=1)\n"
    )
    result = sessions.result(
        tmp_path, f"{folder.name}/test_mine.py", *FAST, "--hwq-json=s.json", "--hwq-markdown=m.md",
        f"--hwq-dir={folder}/records",
        # pytest's own cache holds no such name, and its header is in the stream's encoding.
        "-p", "no:cacheprovider", PYTHONIOENCODING="utf-8:backslashreplace",
    )  # fmt: skip
    result.assert_outcomes(passed=1, failed=1)
    assert [each["status"] for each in measured(tmp_path)] == ["ok", "failed"]
    assert r"caf\udce9/test_mine.py" in (tmp_path / "m.md").read_text()
