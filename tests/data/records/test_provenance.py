"""Which version and commit a record is of, in any tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_hwqueue import __version__
from pytest_hwqueue.data.errors import BadInput
from pytest_hwqueue.data.records.fingerprint import Fingerprint, differences
from pytest_hwqueue.data.records.provenance import Provenance
from pytest_hwqueue.parts.processes.git import git as asked_git
from pytest_hwqueue.parts.processes.git import is_commit, provenance_of
from tests.answers.versions.repositories import git

SHA = "0" * 40


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


def test_only_a_change_of_what_git_tracks_makes_a_tree_dirty(
    tree: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = git(tree, "rev-parse", "HEAD")
    (tree / "sub").mkdir()
    (tree / "new.py").write_text("new", encoding="utf-8")
    for folder in (tree, tree / "sub"):
        assert provenance_of(folder) == Provenance(__version__, commit, False, "")
    # Git and the user must agree.
    assert provenance_of(tree, f"{commit}-dirty").git_dirty is False
    with pytest.raises(BadInput, match=f"has commit {commit} checked out"):
        provenance_of(tree, SHA)
    (tree / "code.py").write_text("changed", encoding="utf-8")
    assert provenance_of(tree) == Provenance(__version__, commit, True, "")
    # A hook of another repository does not matter, and without git nothing is known.
    monkeypatch.setenv("GIT_DIR", str(tmp_path_factory.mktemp("other")))
    assert provenance_of(tree).git_commit == commit
    # Nor does any other variable that names a repository; settings by variables hold.
    for name in ("GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_INDEX_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    for name, text in (("COUNT", "1"), ("KEY_0", "core.hooksPath"), ("VALUE_0", "given")):
        monkeypatch.setenv(f"GIT_CONFIG_{name}", text)
    assert provenance_of(tree).git_commit == commit
    assert asked_git(tree, "config", "core.hooksPath").output == "given\n"
    monkeypatch.setenv("PATH", "/nonexistent")
    found = provenance_of(tree)
    assert found.git_commit is None
    assert "git cannot be run" in found.unknown


def test_no_commit_gives_null_with_the_reason(tmp_path: Path) -> None:
    found = provenance_of(tmp_path)
    assert found.fields() == {"version": __version__, "git_commit": None, "git_dirty": None}
    assert "not a git repository" in found.unknown
    for dirty in (False, True):
        stated = provenance_of(tmp_path, SHA + "-dirty" * dirty)
        assert stated == Provenance(__version__, SHA, dirty, "")
    git(tmp_path, "init", "--quiet")
    found = provenance_of(tmp_path)
    assert found.git_commit is None
    assert found.unknown


def test_only_full_hashes_are_commits() -> None:
    assert all(map(is_commit, (SHA, f"{SHA}-dirty", "a" * 64)))
    others = ("a" * 12, f"{SHA}-dirty-dirty", "HEAD", "", "A" * 40)
    assert not any(map(is_commit, others))


def test_it_is_soft_in_the_fingerprint() -> None:
    bare = Fingerprint({"device_kind": "cpu"}, {"host_name": "here"}, {"power": "no reading"})
    known = Provenance("1", SHA, True, "").stamped(bare)
    assert known.soft == {
        "host_name": "here", "hwqueue_version": "1", "git_commit": SHA, "git_dirty": True
    }  # fmt: skip
    unknown = Provenance("2", None, None, "not a git repository").stamped(bare)
    assert unknown.missing == {"power": "no reading", "git_commit": "not a git repository"}
    hard, soft = differences(known, unknown)
    assert (known.hard, hard) == (bare.hard, [])
    assert [each.field for each in soft] == ["git_commit", "git_dirty", "hwqueue_version"]
