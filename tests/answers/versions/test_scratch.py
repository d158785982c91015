"""What a killed comparison leaves is removed by the next one, and a living one's is not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from pytest_hwqueue.answers.versions.scratch import scratch_folder
from tests.answers.versions.repositories import git

# Says where its folder is, and waits to be killed or told to end.
COMPARISON = """
import sys
from collections.abc import Callable
from pathlib import Path
from pytest_hwqueue.answers.versions.scratch import scratch_folder
from pytest_hwqueue.parts.processes.git import worktree

with scratch_folder(print) as folder, worktree(Path.cwd(), "HEAD", folder / "A"):
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_the_next_comparison_removes_what_a_killed_one_left(
    tmp_path: Path, temporary_files_in: Callable[[Path], None]
) -> None:
    temporary_files_in(tmp_path)
    repository = tmp_path / "repository"
    git(tmp_path, "init", "-q", str(repository))
    git(repository, "commit", "-q", "--allow-empty", "-m", "one")
    (tmp_path / "hwq-ab-of somebody else").mkdir()
    said: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", COMPARISON], cwd=repository, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        try:
            with scratch_folder(said.append):
                assert (left / "A" / ".git").exists()
            assert said == []
        finally:
            process.kill()
    assert git(repository, "worktree", "list").count("\n") == 1
    with scratch_folder(said.append) as folder:
        assert said == [f"removed {left}, which a killed comparison left"]
        assert not left.exists()
        assert git(repository, "worktree", "list").count("\n") == 0
    assert not folder.exists()
    assert (tmp_path / "hwq-ab-of somebody else").exists()
