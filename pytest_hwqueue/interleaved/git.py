"""The git commands a side needs: resolve a name, list commits, check a worktree out."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pytest_hwqueue.processes.groups import undisturbed
from pytest_hwqueue.records.provenance import OF_A_HOOK


class GitError(RuntimeError):
    """A git command failed; the text says which, where, and what git wrote."""


def commit_of(folder: Path, name: str = "HEAD") -> str | None:
    """Return the commit that a name refers to in a folder's repository, or None."""
    done = _git(folder, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    return done.stdout.strip() or None if done.returncode == 0 else None


def top_level(folder: Path) -> Path | None:
    """Return the top folder of a folder's repository, or None."""
    done = _git(folder, "rev-parse", "--show-toplevel")
    return Path(done.stdout.strip()) if done.returncode == 0 else None


def is_changed(folder: Path) -> bool:
    """Whether tracked files differ from the checked-out commit."""
    return bool(_git(folder, "status", "--porcelain", "--untracked-files=no").stdout.strip())


@dataclass(frozen=True)
class Commit:
    """A commit: its full hash and the first line of its message."""

    hash: str
    subject: str


def is_ancestor(folder: Path, old: str, new: str) -> bool:
    """Whether one commit is another's ancestor, or the same."""
    return _git(folder, "merge-base", "--is-ancestor", old, new).returncode == 0


def commits_between(
    folder: Path, old: str, new: str, *, first_parent: bool = False
) -> list[Commit] | None:
    """Return the commits that ``new`` has and ``old`` has not, oldest first.

    Args:
        folder: in the repository.
        old: a commit.
        new: a commit.
        first_parent: of a merge, only the merge itself.

    Returns:
        None if the repository does not know both, or there is none.

    """
    parents = ["--first-parent"] if first_parent else []
    done = _git(folder, "log", "--reverse", "--format=%H %s", *parents, f"{old}..{new}", "--")
    if done.returncode != 0:
        return None
    lines = (line.partition(" ") for line in done.stdout.splitlines())
    return [Commit(commit, subject) for commit, _, subject in lines]


@contextmanager
def worktree(repository: Path, commit: str, folder: Path) -> Iterator[None]:
    """Check a commit out into a new folder for the length of the ``with`` block.

    Raises:
        GitError: if it cannot be checked out.

    """
    try:
        done = _git(repository, "worktree", "add", "--detach", "--quiet", str(folder), commit)
        if done.returncode != 0:
            raise GitError(
                f"git cannot check out {commit[:12]} of {repository}: {done.stderr.strip()}"
            )
        yield
    finally:
        with undisturbed():
            _git(repository, "worktree", "remove", "--force", str(folder))
            # After an interrupted `add`, git may not take the folder for a worktree yet.
            shutil.rmtree(folder, ignore_errors=True)
            _git(repository, "worktree", "prune")


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in OF_A_HOOK}
    try:
        return subprocess.run(
            ["git", *arguments], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except OSError as error:
        raise GitError(f"cannot run git in {folder}: {error.strerror or error}") from error
