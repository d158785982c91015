"""Inner sessions of acceptance tests: their environment, their records, and their repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.answers.versions.repositories import git

ROOT = Path(__file__).parents[2]
SUITE = ROOT / "benchmarks"


def plain_environment(**more: str) -> dict[str, str]:
    """Return an environment in which none of this session's settings count, with more in it."""
    foreign = ("HWQ_", "PYTEST_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return kept | {"PYTHONPATH": str(ROOT)} | more


def records_in(file: Path) -> list[dict[str, Any]]:
    """Return the records of a session that wrote ``--hwq-json``."""
    found: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["records"]
    return found


# Of `hwq ab` and `hwq bisect`: enough for the median of an effect that is far beyond the noise of a
# busy host; at this rate 5 pairs are planned.
SHORT = (
    "--pairs", "3", "--rate", "20%", "--device", "cpu", "--iterations", "40", "--warmup", "1",
    "--isolation", "none", "--fail-on", "p50",
)  # fmt: skip


def new_repository(folder: Path) -> Path:
    """Make a repository in which records are ignored; beside it, a folder for what is temporary."""
    folder.mkdir()
    folder.with_name("scratch").mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / ".gitignore").write_text(".hwqueue\n__pycache__\ntest_new.py\n")
    return folder


def commit(folder: Path, message: str, **files: str) -> str:
    """Write Python files by name, and commit all; return the commit."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", message)
    return git(folder, "rev-parse", "HEAD")


def started(project: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start a module in a repository."""
    scratch = str(project.with_name("scratch"))
    return subprocess.Popen(
        [sys.executable, "-m", *arguments], cwd=project, text=True,
        env=plain_environment(PYTHONSAFEPATH="1", TMPDIR=scratch, **variables),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def left_behind(project: Path) -> list[str]:
    """Return what a command should have removed."""
    stays = [path.name for path in project.with_name("scratch").glob("hwq-ab-*")]
    worktrees = git(project, "worktree", "list", "--porcelain").count("worktree ")
    return stays + ["a worktree"] * (worktrees - 1) + git(project, "status", "-s").splitlines()
