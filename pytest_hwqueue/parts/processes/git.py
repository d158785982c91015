"""Git: the one way to ask it, and what is asked.

What git cannot answer is an error with git's own words, which often name the cure (a repository of
another user, say), and never taken for one of the answers.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pytest_hwqueue.data.errors import BadInput, HwqError, files, on_one_line, printable, shortened
from pytest_hwqueue.data.metrics.estimate import PlainData
from pytest_hwqueue.data.metrics.numbers import counted
from pytest_hwqueue.data.records.provenance import Provenance
from pytest_hwqueue.parts.processes.reaper import undisturbed

_DIGITS = 10
# Of SHA-1 or SHA-256.
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
# Of a folder that is in no repository; a damaged link to one is said without the bracket.
_NO_REPOSITORY = "not a git repository (or any "
# git's status where it does not know an option.
_USAGE = 129


class CommitLine(PlainData):
    """A commit, and the first line of its message."""

    commit: str
    subject: str

    def __str__(self) -> str:
        """Return the abbreviated hash, with the subject."""
        return f"{self.commit[:_DIGITS]} ({self.subject})"


class Answer(NamedTuple):
    """What git printed, and its exit status."""

    status: int
    output: str
    words: str

    @property
    def text(self) -> str:
        """The output without line breaks around it."""
        return self.output.strip("\r\n")


def git(folder: Path, *arguments: str) -> Answer:
    """Run git in a folder; OSError if it cannot be run there.

    Bytes that are no UTF-8 (of paths, of messages in another encoding) come as Python has paths.
    """
    environment = dict(os.environ)
    if any(name.startswith("GIT_") for name in environment):
        for name in _of_one_repository():
            environment.pop(name, None)
    # Refreshing the index must not take its lock from who works in the tree.
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        capture_output=True, check=False,
    )  # fmt: skip
    words = done.stderr.decode(errors="replace").strip()
    return Answer(done.returncode, os.fsdecode(done.stdout), words)


def commit_of(folder: Path, name: str = "HEAD") -> str | None:
    """Return the commit that a name refers to in a folder's repository.

    Returns:
        None if it names none, or the folder is in no repository.

    Raises:
        HwqError: if it names several, or all but some.

    """
    # No branch or tag begins so, and git would take some for options.
    if name.startswith("-"):
        return None
    found = _object(folder, f"{name}^{{commit}}")
    if found is not None and not _HASH.fullmatch(found):
        # What begins with ^, or has .. in it; --verify lets both pass.
        raise HwqError(
            f"{shortened(name)!r} is no single commit, but a set of them: name one commit, branch "
            "or tag"
        )
    return found


def is_in(folder: Path, commit: str, path: str) -> bool:
    """Whether a commit has a path, which is relative to a folder of the repository."""
    return _object(folder, f"{commit}:./{path}") is not None


def shallow(folder: Path) -> str:
    """Return what to add where a commit is not found: that the clone is shallow, or nothing."""
    answer = _asked(folder, "rev-parse", "--is-shallow-repository")
    if answer is None or answer.text != "true":
        return ""
    return (
        "; the clone is shallow, so most commits are missing: fetch them with `git fetch "
        "--unshallow`, or in GitHub Actions give actions/checkout `fetch-depth: 0`"
    )


def top_level(folder: Path) -> Path | None:
    """Return the top folder of a folder's repository; None if it is in none."""
    answer = _asked(folder, "rev-parse", "--show-toplevel")
    return None if answer is None else Path(answer.text)


def worktrees(folder: Path) -> list[Path]:
    """Return all folders in which a folder's repository is checked out; none without one."""
    answer = _asked(folder, "worktree", "list", "--porcelain", "-z", also=(_USAGE,))
    if answer is not None and answer.status == _USAGE:
        # Without -z, which is of git 2.36, only a name with a line break would be cut.
        answer = _asked(folder, "worktree", "list", "--porcelain")
    fields = [] if answer is None else answer.output.replace("\0", "\n").split("\n")
    return [Path(each.partition(" ")[2]) for each in fields if each.startswith("worktree ")]


def is_changed(folder: Path) -> bool:
    """Whether tracked files differ from the checked-out commit; in no repository, none is tracked.

    Where a filter's program is absent, files are compared as the repository has them.
    """
    ask = ("status", "--porcelain", "--untracked-files=no")
    try:
        answer = _asked(folder, *ask)
    except HwqError:
        if not (without := _filters(folder)):
            raise
        answer = _asked(folder, *_switched_off(without), *ask)
    return answer is not None and bool(answer.text)


def is_ancestor(folder: Path, old: str, new: str) -> bool:
    """Whether one commit is another's ancestor, or the same."""
    answer = _asked(folder, "merge-base", "--is-ancestor", old, new, also=(1,))
    return answer is not None and answer.status == 0


def commits_between(
    folder: Path, old: str, new: str, *, first_parent: bool = False
) -> list[CommitLine] | None:
    """Return the commits that ``new`` has and ``old`` has not, oldest first.

    Args:
        folder: in the repository.
        old: a commit.
        new: a commit.
        first_parent: of a merge, only the merge itself.

    Returns:
        None if the repository does not know both, or there is none.

    """
    if any(commit_of(folder, each) is None for each in (old, new)):
        return None
    parents = ["--first-parent"] if first_parent else []
    answer = _asked(folder, "log", "--reverse", "-z", "--format=%H %s", *parents, f"{old}..{new}",
                    "--")  # fmt: skip
    lines = [] if answer is None else [each.partition(" ") for each in answer.output.split("\0")]
    return [
        CommitLine(commit=commit, subject=printable(_readable(subject)))
        for commit, _, subject in lines
        if commit
    ]


def what_is_lacking(folder: Path, old: str, new: str) -> str:
    """Say how many commits of ``old`` are not in ``new``, and name the merge base.

    Returns:
        an empty text if none is.

    """
    if is_ancestor(folder, old, new):
        return ""
    answer = _asked(folder, "rev-list", "--count", f"{new}..{old}", "--")
    base = _asked(folder, "merge-base", old, new, also=(1,))
    if answer is None or base is None or base.status == 1:
        return f"they have no commit in common{shallow(folder)}"
    return (
        f"{counted(int(answer.text), 'commit')} of A {'is' if answer.text == '1' else 'are'} not "
        f"in B, so what they changed is compared, too; to leave it out, take the merge base, "
        f"{base.text[:_DIGITS]}, for A"
    )


@contextmanager
def worktree(repository: Path, commit: str, folder: Path) -> Iterator[tuple[str, ...]]:
    """Check a commit out into a new folder for the length of the ``with`` block.

    No hooks run: a failing one would refuse a complete tree. Where a filter's program is absent
    (git-lfs, say) files are checked out as the repository has them.

    Yields:
        the names of the filters that were left out.

    Raises:
        HwqError: if it cannot be checked out.

    """
    add = ("worktree", "add", "--detach", "--quiet", str(folder), commit)
    unhooked = ("-c", "core.hooksPath=/dev/null")
    without: tuple[str, ...] = ()
    try:
        with files("run git in", repository):
            done = git(repository, *unhooked, *add)
            if done.status != 0 and (without := _filters(repository)):
                _remove(repository, folder)
                again = git(repository, *unhooked, *_switched_off(without), *add)
                done = again if again.status == 0 else done
        if done.status != 0:
            raise HwqError(f"git cannot check out {commit[:12]} of {repository}: {done.words}")
        yield without
    finally:
        with undisturbed():
            _remove(repository, folder)


def remove_worktree(folder: Path) -> None:
    """Remove a folder that has some repository checked out, and that repository's note of it."""
    with files("run git in", folder):
        found = git(folder, "rev-parse", "--path-format=absolute", "--git-common-dir")
    if found.status == 0:
        _remove(Path(found.text), folder)


def _remove(repository: Path, folder: Path) -> None:
    with files("run git in", repository):
        git(repository, "worktree", "remove", "--force", str(folder))
        # After an interrupted `add`, git may not take the folder for a worktree yet.
        shutil.rmtree(folder, ignore_errors=True)
        git(repository, "worktree", "prune")


def _object(folder: Path, name: str) -> str | None:
    """Return the hash of what a name refers to, or None."""
    answer = _asked(folder, "rev-parse", "--verify", "--quiet", name, also=(1,))
    return None if answer is None else answer.text or None


def _filters(folder: Path) -> tuple[str, ...]:
    """Return the names of all filters of files' content that git is set to run."""
    answer = _asked(folder, "config", "-z", "--name-only", "--get-regexp", r"^filter\.", also=(1,))
    names = [] if answer is None else answer.output.split("\0")
    # The part in the middle may have dots.
    return tuple(dict.fromkeys(name.split(".", 1)[1].rpartition(".")[0] for name in names if name))


def _switched_off(filters: Sequence[str]) -> list[str]:
    settings = ("process=", "smudge=", "clean=", "required=false")
    return [
        word for each in filters for text in settings for word in ("-c", f"filter.{each}.{text}")
    ]


def _asked(folder: Path, *arguments: str, also: Sequence[int] = ()) -> Answer | None:
    """Ask git something.

    Args:
        folder: where.
        arguments: of git.
        also: statuses besides 0 that are answers.

    Returns:
        None if the folder is in no repository.

    Raises:
        HwqError: if git gives no answer; with its words.

    """
    with files("run git in", folder):
        answer = git(folder, *arguments)
    if answer.status == 0 or answer.status in also:
        return answer
    if _NO_REPOSITORY in answer.words:
        return None
    what = next(each for each in arguments if not each.startswith("-") and "=" not in each)
    raise HwqError(
        f"git {what} gives no answer in {folder}, but says: "
        f"{printable(answer.words) or f'nothing (status {answer.status})'}"
    )


@cache
def _of_one_repository() -> frozenset[str]:
    """Return the variables that name a repository, as a hook is run with: git itself lists them.

    They would name the hook's wherever git is asked. Settings given by variables (whose folders are
    safe, say) name none.
    """
    asked = subprocess.run(
        ["git", "rev-parse", "--local-env-vars"], stdin=subprocess.DEVNULL, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    return frozenset(n for n in asked.stdout.split() if not n.startswith("GIT_CONFIG"))


def _readable(text: str) -> str:
    """Return text in which what is no UTF-8 is marked as such."""
    return os.fsencode(text).decode(errors="replace")


_DIRTY = "-dirty"


_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


def is_commit(text: str) -> bool:
    """Whether a text is a commit's full hash, with ``-dirty`` behind it or not."""
    return _COMMIT.fullmatch(text.removesuffix(_DIRTY)) is not None


def provenance_of(folder: Path, stated: str = "") -> Provenance:
    """Ask git for the commit of the tree that ``folder`` is in; untracked files do not count.

    Args:
        folder: in the tree under test.
        stated: by the user, where git does not know: a commit's full hash, with ``-dirty`` behind
            it if tracked files were changed.

    Raises:
        BadInput: if git knows, and it is not the commit stated.

    """
    described, reason = _describe(folder)
    if described is None:
        if not stated:
            return Provenance(unknown=reason)
        described = stated
    commit = described.removesuffix(_DIRTY)
    if stated and commit != stated.removesuffix(_DIRTY):
        raise BadInput(f"{folder} has commit {commit} checked out: leave it out, git is asked")
    return Provenance(git_commit=commit, git_dirty=described.endswith(_DIRTY), unknown="")


def _describe(folder: Path) -> tuple[str | None, str]:
    """Return the commit, marked if it is dirty; or None, and what git says instead."""
    try:
        done = git(folder, "describe", "--always", "--dirty", "--abbrev=64", "--exclude=*")
    except OSError as error:
        return None, f"git cannot be run: {error.strerror or error}"
    if done.status == 0 and is_commit(done.text):
        return done.text, ""
    return None, on_one_line(done.words) or "git describes no commit"
