"""Sides in real repositories: what a name means, what is refused, and that nothing stays."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from pytest_hwqueue.answers.versions import sides as module
from pytest_hwqueue.answers.versions.imports import Tree
from pytest_hwqueue.answers.versions.sides import Side, SideRequest, is_same, open_sides
from pytest_hwqueue.answers.versions.variants import SideVariant, set_up, side_environment
from pytest_hwqueue.data.errors import HwqError
from pytest_hwqueue.options import suite
from pytest_hwqueue.parts.processes.git import commit_of, is_changed, worktree
from tests.answers.versions.repositories import git, make_side


@pytest.fixture(name="repository")
def _repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temporary_files_in: Callable[[Path], None]
) -> Path:
    """Two commits, tagged one and two; only the second has test_new.py and the folder new."""
    # Where the worktrees are made, so that a test sees what stays.
    (tmp_path / "scratch").mkdir()
    temporary_files_in(tmp_path / "scratch")
    monkeypatch.setattr(module, "_collected", lambda side, logs: side)
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for tag, files in (("one", ["part/test_old.py"]), ("two", ["part/test_new.py", "new/file"])):
        for file in files:
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_text("def test(): pass\n")
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", tag)
        git(folder, "tag", tag)
    return folder


SAID: list[str] = []


@contextmanager
def opened(folder: Path, a: str | None, b: str | None, *words: str) -> Iterator[tuple[Side, Side]]:
    """Open two sides that are given these words, from a folder; afterwards, nothing stays."""
    try:
        with opened_from(folder, a, b, *words) as sides:
            yield sides
    finally:
        assert_nothing_stays(folder)


def opened_from(
    folder: Path, a: str | None, b: str | None, *words: str
) -> AbstractContextManager[tuple[Side, Side]]:
    SAID.clear()
    variant = SideVariant(words=words)
    requests = SideRequest("A", a, variant), SideRequest("B", b, variant)
    return open_sides(requests, folder, "", folder.parent, SAID.append)


def trees(folder: Path, a: Path, b: Path) -> list[Tree]:
    """Return both sides' trees, from a folder."""
    with opened_from(folder, str(a), str(b)) as sides:
        return [side.tree for side in sides if side.tree is not None]


def assert_nothing_stays(folder: Path) -> None:
    repository = folder if (folder / ".git").exists() else folder.parent
    if (repository / ".git").exists():
        assert list((repository.parent / "scratch").iterdir()) == []
        assert git(repository, "worktree", "list", "--porcelain").count("worktree ") == 1


def test_a_commit_gets_a_worktree_and_a_path_is_taken_as_it_is(repository: Path) -> None:
    (repository / "part" / "test_old.py").write_text("def test(): assert 1\n")
    with opened(repository, "one", ".", "part/test_old.py") as (a, b):
        assert (a.folder / "part" / "test_old.py").read_text() == "def test(): pass\n"
        assert not (a.folder / "part" / "test_new.py").exists()
        assert (a.root, b.folder) == (a.folder, repository)
        assert [a.commit, b.commit] == [git(repository, "rev-parse", tag) for tag in ("one", "two")]
        assert (a.changed, b.changed) == (False, True)
        assert a.tests == b.tests == ("part/test_old.py",)
        assert a.environment["PYTHONPATH"].split(os.pathsep)[1] == str(a.folder)
        assert not is_same(a, b)
    assert any("checking out one" in text for text in SAID)
    git(repository, "checkout", "-q", ".")
    with opened(repository, "two", "main", "part/test_new.py") as (a, b):
        assert is_same(a, b)
    # In a folder of the repository the side is the same folder.
    with opened(repository / "part", "one", "two", "test_old.py") as (a, b):
        assert a.folder.name == b.folder.name == "part"
        assert a.folder != b.folder
        assert not is_same(a, b)


def test_no_code_may_come_from_another_tree_of_the_repository(repository: Path) -> None:
    other = repository.parent / "a worktree"
    with worktree(repository, "one", other):
        tree = trees(repository / "part", repository / "part", other / "part")[0]
        assert (tree.own, tree.working) == (str(repository), str(repository))
        assert {str(other), str(repository)} == set(tree.others)
    # What two folders of one checkout have in common is no other code.
    part, new = repository / "part", repository / "new"
    a, b = trees(new, part, new)
    assert [tree[:3] for tree in (a, b)] == [
        (str(own), str(new), (str(part), str(new))) for own in (part, new)
    ]
    outside = repository.parent / "outside"
    outside.mkdir()
    assert trees(outside, outside, repository)[0].working == str(outside)


def test_filters_left_out_and_commits_lacking_are_said(repository: Path) -> None:
    (repository / ".gitattributes").write_text("*.weights filter=lfs\n")
    (repository / "a.weights").write_text("pointer")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "three")
    git(repository, "config", "filter.lfs.process", "no-such-program")
    git(repository, "config", "filter.lfs.required", "true")
    with opened(repository, "main", None, "part/test_old.py") as (a, b):
        assert (a.changed, b.changed) == (False, False)
    assert any("A: git could not run all its filters (lfs)" in text for text in SAID)
    assert (a.notes, b.notes) == ((next(text for text in SAID if "filters" in text),), ())
    assert not any("merge base" in text for text in SAID)
    git(repository, "config", "--remove-section", "filter.lfs")
    git(repository, "checkout", "-q", "-b", "side", "one")
    with opened(repository, "main", ".", "part/test_old.py") as (a, _):
        pass
    base = git(repository, "rev-parse", "one")[:10]
    (note,) = a.notes
    assert note.startswith("A is main, B is .: 2 commits of A are not in B")
    assert base in note
    assert note in SAID
    # Of two commits, the later one may be meant to come first.
    with opened(repository, "main", "one", "part/test_old.py"):
        assert not any("not in B" in text for text in SAID)


def test_without_tests_the_suite_is_measured(repository: Path) -> None:
    with opened(repository, None, None, "-k", "part") as (a, _):
        assert a.tests == (str(suite.suite_path()),)
        assert a.command[-2:] == ("-k", "part")
        command = a.pytest_command(["--hwq-runs=1"], ["benchmarks/test_x.py::test[1]"])
        assert command[-1] == str(suite.suite_path().parent / "benchmarks/test_x.py::test[1]")
        # Whatever the environment or an ini file says, a run neither stores nor compares.
        assert {"--hwq-save=", "--hwq-compare="} <= set(command)


@pytest.mark.parametrize(
    ("folder", "a", "words", "says"),
    [
        (".", "nowhere", (), "'nowhere' is neither a commit, branch or tag of the repository"),
        (".", "./nowhere", (), "'./nowhere' is neither"),
        (".", "one", ("{repository}/part/test_old.py",), "is the same file for every side"),
        ("new", "one", (), "has no folder new"),
        ("..", "main", (), r"'main' is no folder, and .* is in no git repository"),
    ],
)
def test_what_is_no_side_is_refused(
    repository: Path, folder: str, a: str, words: tuple[str, ...], says: str
) -> None:
    given = tuple(word.format(repository=repository) for word in words)
    here = (repository / folder).resolve()
    with pytest.raises(HwqError, match=says), opened(here, a, ".", *given):
        pass


@pytest.mark.parametrize("error", [KeyboardInterrupt(2), RuntimeError("broken")])
def test_whatever_ends_it_nothing_stays(repository: Path, error: BaseException) -> None:
    def measure() -> None:
        with opened(repository, "one", "two", "part/test_old.py") as (a, _):
            (a.folder / "made by a run").touch()
            raise error

    with pytest.raises(type(error)):
        measure()
    # Nor if somebody has removed the worktree.
    with worktree(repository, "one", repository.parent / "tree"):
        shutil.rmtree(repository.parent / "tree")
    assert_nothing_stays(repository)


def test_git_is_asked_in_the_folder_also_inside_of_a_hook(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere/.git")
    assert commit_of(repository, "one") is not None
    assert not is_changed(repository)


@pytest.mark.slow
def test_its_own_virtual_environment_comes_before_the_callers_packages(tmp_path: Path) -> None:
    log, venv = tmp_path / "log", tmp_path / "venv"
    setup = "python -c \"import sys, pathlib; pathlib.Path('python').write_text(sys.prefix)\""
    environment = side_environment(SideVariant(), tmp_path, venv)
    python = set_up(tmp_path, venv, environment, setup, log)
    assert (tmp_path / "python").read_text() == str(venv)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "pytest.py").write_text("mine = True\n")
    done = subprocess.run(
        [python, "-c", "import click, pytest, pytest_hwqueue; print(pytest.mine)"],
        env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.stdout == "True\n", done.stderr
    failing = "echo no compiler, token=s3cr3t; exit 3"
    with pytest.raises(HwqError, match=r"--setup ended with status 3 in .*:\nno comp") as failed:
        set_up(tmp_path, tmp_path / "other", environment, failing, log)
    assert "s3cr3t" not in str(failed.value)


def test_a_sides_variables_source_folder_and_words(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    variant = SideVariant(environment={"PYTHONPATH": "/theirs", "X": "1"})
    environment = side_environment(variant, tmp_path, None)
    paths = environment["PYTHONPATH"].split(os.pathsep)
    assert paths[1:4] == [str(tmp_path), str(tmp_path / "src"), "/theirs"]
    assert environment["X"] == "1"
    label = SideRequest("B", "main", SideVariant(), "--scheduler native").label
    assert make_side("B", label=label, commit="a" * 40, changed=True).describe() == (
        "B: main --scheduler native (commit aaaaaaaaaa, with uncommitted changes)"
    )
