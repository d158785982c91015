"""Which version and commit a record is of, in any tree."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pytest_hwqueue import __version__
from pytest_hwqueue.devices.fingerprint import Fingerprint, differences
from pytest_hwqueue.records.noise import OtherCommit, Provenance, is_commit, provenance_of

SHA = "0" * 40


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with one commit."""
    git(tmp_path, "init", "--quiet")
    (tmp_path / "code.py").write_text("first", encoding="utf-8")
    git(tmp_path, "add", "code.py")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    # Its name must not stand for the commit.
    git(tmp_path, "tag", "-a", "v1", "-m", "v1")
    return tmp_path


def test_a_clean_tree(tree: Path) -> None:
    (tree / "sub").mkdir()
    for folder in (tree, tree / "sub"):
        found = provenance_of(folder)
        assert found == Provenance(__version__, git(tree, "rev-parse", "HEAD"), False, "")


def test_a_changed_file_makes_it_dirty_and_a_new_one_does_not(tree: Path) -> None:
    (tree / "new.py").write_text("new", encoding="utf-8")
    assert provenance_of(tree).git_dirty is False
    (tree / "code.py").write_text("changed", encoding="utf-8")
    assert provenance_of(tree).git_dirty is True
    assert provenance_of(tree).git_commit == git(tree, "rev-parse", "HEAD")


def test_no_repository_gives_null_with_the_reason(tmp_path: Path) -> None:
    found = provenance_of(tmp_path)
    assert (found.version, found.git_commit, found.git_dirty) == (__version__, None, None)
    assert "not a git repository" in found.unknown
    assert found.fields() == {"version": __version__, "git_commit": None, "git_dirty": None}


def test_no_git_gives_null_with_the_reason(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    found = provenance_of(tree)
    assert found.git_commit is None
    assert "git cannot be run" in found.unknown


def test_a_repository_without_commits_gives_null(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    found = provenance_of(tmp_path)
    assert found.git_commit is None
    assert found.unknown


@pytest.mark.parametrize("dirty", [False, True])
def test_a_copy_has_the_commit_that_is_stated(tmp_path: Path, dirty: bool) -> None:
    found = provenance_of(tmp_path, SHA + ("-dirty" if dirty else ""))
    assert found == Provenance(__version__, SHA, dirty, "")


def test_git_and_the_user_must_agree(tree: Path) -> None:
    commit = git(tree, "rev-parse", "HEAD")
    assert provenance_of(tree, f"{commit}-dirty").git_dirty is False
    with pytest.raises(OtherCommit, match=f"has commit {commit} checked out"):
        provenance_of(tree, SHA)


def test_a_hook_of_another_repository_does_not_matter(
    tree: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path_factory.mktemp("other")))
    assert provenance_of(tree).git_commit is not None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SHA, True),
        (f"{SHA}-dirty", True),
        ("a" * 64, True),
        ("a" * 12, False),
        (f"{SHA}-dirty-dirty", False),
        ("HEAD", False),
        ("", False),
        (SHA.replace("0", "A"), False),
    ],
)
def test_only_full_hashes_are_commits(text: str, expected: bool) -> None:
    assert is_commit(text) is expected


def test_it_is_soft_in_the_fingerprint() -> None:
    bare = Fingerprint({"device_kind": "cpu"}, {"host_name": "here"}, {"power": "no reading"})
    known = Provenance("1", SHA, True, "").stamped(bare)
    assert known.hard == bare.hard
    assert known.soft == {
        "host_name": "here", "hwqueue_version": "1", "git_commit": SHA, "git_dirty": True
    }  # fmt: skip
    unknown = Provenance("2", None, None, "not a git repository").stamped(bare)
    assert unknown.missing == {"power": "no reading", "git_commit": "not a git repository"}
    hard, soft = differences(known, unknown)
    assert hard == []
    assert [each.field for each in soft] == ["git_commit", "git_dirty", "hwqueue_version"]
