"""What git is asked, on real repositories: its failures are no answers, and its words arrive."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_hwqueue.data.errors import HwqError
from pytest_hwqueue.parts.processes.git import (
    commit_of,
    commits_between,
    is_ancestor,
    is_changed,
    is_in,
    shallow,
    top_level,
    what_is_lacking,
    worktree,
    worktrees,
)
from tests.answers.versions.repositories import git


@pytest.fixture(name="repository")
def _repository(tmp_path: Path) -> Path:
    """Main has commits one and two; the branch, of one, has three."""
    folder = tmp_path / "repository"
    git(tmp_path, "init", "-q", "-b", "main", str(folder))
    commit(folder, "one")
    git(folder, "branch", "side")
    commit(folder, "two")
    git(folder, "checkout", "-q", "side")
    commit(folder, "three")
    git(folder, "checkout", "-q", "main")
    return folder


def commit(folder: Path, name: str) -> None:
    (folder / name).write_text(name)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", name)


ASKED: list[Callable[[Path], object]] = [
    top_level,
    commit_of,
    is_changed,
    worktrees,
    shallow,
    lambda folder: is_in(folder, "HEAD", "one"),
    lambda folder: is_ancestor(folder, "HEAD", "HEAD"),
    lambda folder: commits_between(folder, "side", "main"),
]


@pytest.mark.parametrize("asked", ASKED)
def test_a_repository_that_git_does_not_trust_is_not_none(
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: Callable[[Path], object],
) -> None:
    # As in a job's container, whose user is not the owner of the checked-out files.
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "none"))
    cure = f"(?s)dubious ownership.*git config --global --add safe.directory {repository}"
    with pytest.raises(HwqError, match=cure):
        asked(repository)


def test_no_repository_is_an_answer_and_a_lost_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    answers = [asked(tmp_path) for asked in ASKED]
    assert answers == [None, None, False, [], "", False, False, None]
    (tmp_path / ".git").write_text(f"gitdir: {tmp_path}/moved\n")
    for asked in ASKED:
        with pytest.raises(HwqError, match=r"not a git repository: .*/moved"):
            asked(tmp_path)


def test_an_unreadable_index_is_not_unchanged(repository: Path) -> None:
    (repository / ".git" / "index").write_text("damaged")
    with pytest.raises(HwqError, match=r"git status gives no answer in .*, but says: .*index"):
        is_changed(repository)


def test_a_commit_has_paths_of_the_asking_folder(repository: Path) -> None:
    (repository / "part").mkdir()
    commit(repository, "part/four")
    assert is_in(repository / "part", "HEAD", "four")
    assert is_in(repository / "part", "HEAD", ".")
    assert is_in(repository / "part", "HEAD", "../one")
    assert not is_in(repository / "part", "HEAD~1", "four")
    assert not is_in(repository, "nowhere", "one")
    assert commit_of(repository, "0" * 40) is None


@pytest.mark.parametrize("name", ["^HEAD", "HEAD..side", "side...main", "..side"])
def test_several_commits_are_not_taken_for_one(repository: Path, name: str) -> None:
    with pytest.raises(HwqError, match=f"^'{re.escape(name)}' is no single commit, .*: name one"):
        commit_of(repository, name)


@pytest.mark.parametrize(
    "name", ["-x", "--all", "--since=2020-01-01", ":one", ":/one", "HEAD:one", "HEAD^{tree}",
             "HEAD^@", "HEAD^!", "", "--", "one two", "*", "HEAD\nmain"],
)  # fmt: skip
def test_what_names_no_commit_is_none(repository: Path, name: str) -> None:
    assert commit_of(repository, name) is None


def test_a_commit_may_be_named_in_all_of_gits_ways(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    git(repository, "tag", "-a", "-m", "x", "v1")
    for name in ("HEAD", "@", "main", "v1", "v1^0", "refs/heads/main", commit[:12], "main^{/two}"):
        assert commit_of(repository, name) == commit.strip()


def test_no_hook_runs_in_a_worktree(repository: Path, tmp_path: Path) -> None:
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho nothing is installed here >&2\nexit 1\n")
    hook.chmod(0o755)
    with worktree(repository, "main~1", tmp_path / "tree") as without:
        assert without == ()
        assert (tmp_path / "tree" / "one").exists()
        assert not (tmp_path / "tree" / "two").exists()
    assert worktrees(repository) == [repository]


def test_where_a_filter_is_absent_files_are_as_the_repository_has_them(
    repository: Path, tmp_path: Path
) -> None:
    (repository / ".gitattributes").write_text("*.weights filter=large.files\n")
    commit(repository, "a.weights")
    for name, value in (
        ("process", "no-such-program"), ("clean", "no-such-program"), ("smudge", "no-such-program"),
        ("required", "true"),
    ):  # fmt: skip
        git(repository, "config", f"filter.large.files.{name}", value)
    tree = tmp_path / "tree"
    with worktree(repository, "main", tree) as without:
        assert without == ("large.files",)
        assert (tree / "a.weights").read_text() == "a.weights"
        assert not is_changed(tree)
        # Of the same size, only a look at the content tells them apart.
        (tree / "a.weights").write_text("b.weights")
        assert is_changed(tree)
    # What fails with filters and without them is refused for its first reason.
    with pytest.raises(HwqError, match="git cannot check out nowhere of"):
        worktree(repository, "nowhere", tree).__enter__()
    assert worktrees(repository) == [repository]


def test_subjects_may_be_in_any_encoding(repository: Path) -> None:
    messages = (b"caf\xe9 \x1b[31mred\n", "a\u2028b\x0cc\n".encode(), b"two\n\nlines\n")
    who = b"n <e@example.org> 1700000000 +0000"
    parent = git(repository, "rev-parse", "HEAD").encode()
    tree = git(repository, "rev-parse", "HEAD^{tree}").encode()
    for message in messages:
        # `git commit` guesses the encoding; importers do not.
        raw = b"tree %s\nparent %s\nauthor %s\ncommitter %s\n\n%s" % (
            tree, parent, who, who, message,
        )  # fmt: skip
        parent = subprocess.run(
            ["git", "hash-object", "-t", "commit", "-w", "--stdin"],
            cwd=repository, input=raw, check=True, capture_output=True,
        ).stdout.strip()  # fmt: skip
    git(repository, "update-ref", "HEAD", parent.decode())
    between = commits_between(repository, "main~3", "main")
    assert between is not None
    assert [each.subject for each in between] == [
        "caf\N{REPLACEMENT CHARACTER} \\x1b[31mred", "a\u2028b\\x0cc", "two",
    ]  # fmt: skip
    assert between[-1].commit == commit_of(repository)
    for each in between:
        str(each).encode()


def test_what_a_branch_lacks_is_counted_and_the_merge_base_named(repository: Path) -> None:
    base = (commit_of(repository, "main~1") or "")[:10]
    said = what_is_lacking(repository, "main", "side")
    assert said.startswith("1 commit of A is not in B")
    assert said.endswith(f"take the merge base, {base}, for A")
    for _ in range(2):
        git(repository, "commit", "-q", "--allow-empty", "-m", "more")
    assert what_is_lacking(repository, "main", "side").startswith("3 commits of A are not in B")
    assert what_is_lacking(repository, base, "side") == ""
    git(repository, "checkout", "-q", "--orphan", "other")
    commit(repository, "five")
    assert what_is_lacking(repository, "main", "other") == "they have no commit in common"
