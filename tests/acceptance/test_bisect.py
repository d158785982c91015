"""`hwq bisect` for real: a repository, processes, a commit that does not build, what is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interleaved.repositories import TEST, git

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_slow_commit_is_named_and_a_broken_one_skipped(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / ".gitignore").write_text(".hwqueue\n__pycache__\n")
    for number in range(6):
        delay = "0.02" if number >= 4 else "0.001"
        broken = "raise ImportError('this commit is broken')\n" if number == 2 else ""
        (folder / "test_product.py").write_text(broken + TEST)
        (folder / "product.py").write_text(f"NUMBER = {number}\nDELAY_S = {delay}\n")
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", f"commit {number}")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HWQ_")}
    command = [
        sys.executable, "-m", "pytest_hwqueue", "bisect", "test_product.py", "main~5", "main",
        "--pairs", "3", "--rate", "20%", "--device", "cpu", "--iterations", "40", "--warmup", "1",
        "--isolation", "none", "--fail-on", "p50",
    ]  # fmt: skip
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {
        **kept, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", "TMPDIR": str(scratch)
    }  # fmt: skip

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )

    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    slow = git(folder, "rev-parse", "main~1")
    assert done.stdout.startswith(f"{slow[:10]} (commit 4) made P50 of test_product")
    (file,) = (folder / ".hwqueue").glob("bisect-*/bisect.json")
    comparisons = json.loads(file.read_text())["comparisons"]
    outcomes = [(each["purpose"], each["outcome"]) for each in comparisons]
    assert outcomes == [
        ("opening", "bad"), ("search", "skip"), ("search", "good"), ("search", "bad"),
        ("confirmation", "bad"),
    ]  # fmt: skip
    assert "pytest cannot collect the tests" in comparisons[1]["reason"]
    assert list(scratch.glob("hwq-ab-*")) == []
    assert git(folder, "worktree", "list", "--porcelain").count("worktree ") == 1
    assert git(folder, "status", "-s") == ""
    # The same command again knows the answer, and measures nothing.
    again = run()
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert len(json.loads(file.read_text())["comparisons"]) == 5
