"""Sides in real repositories: what a name means, what is refused, and that nothing stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_hwqueue import suite
from pytest_hwqueue.interleaved import sides as module
from pytest_hwqueue.interleaved.bisection import commit_of, is_changed, worktree
from pytest_hwqueue.interleaved.sides import Side, SideRequest, is_same, open_sides
from pytest_hwqueue.interleaved.variants import SideError, SideVariant, set_up, side_environment
from tests.interleaved.repositories import git


@pytest.fixture(name="repository")
def _repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two commits, tagged one and two; only the second has test_new.py."""
    # Where the worktrees are made, so that a test sees what stays.
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    monkeypatch.setattr(module, "_collect", lambda side, logs: [])
    folder = tmp_path / "repository"
    (folder / "part").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / "part" / "test_old.py").write_text("def test(): pass\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    git(folder, "tag", "one")
    (folder / "part" / "test_new.py").write_text("def test(): pass\n")
    (folder / "new").mkdir()
    (folder / "new" / "file").touch()
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "two")
    git(folder, "tag", "two")
    return folder


def requests(a: str | None, b: str | None, *words: str) -> tuple[SideRequest, SideRequest]:
    return (
        SideRequest("A", a, SideVariant(words=words)),
        SideRequest("B", b, SideVariant(words=words)),
    )


def left_behind(repository: Path) -> list[str]:
    stays = [str(path) for path in (repository.parent / "scratch").iterdir()]
    worktrees = git(repository, "worktree", "list", "--porcelain").count("worktree ")
    return stays + ["a worktree"] * (worktrees - 1)


def test_a_commit_gets_a_worktree_and_a_path_is_taken_as_it_is(repository: Path) -> None:
    (repository / "part" / "test_old.py").write_text("def test(): assert 1\n")
    said: list[str] = []
    with open_sides(requests("one", ".", "part/test_old.py"), repository, None,
                    repository.parent, said.append) as (a, b):  # fmt: skip
        assert a.folder != repository
        assert (a.folder / "part" / "test_old.py").read_text() == "def test(): pass\n"
        assert not (a.folder / "part" / "test_new.py").exists()
        assert b.folder == repository
        assert (a.commit, b.commit) == (git(repository, "rev-parse", "one"),
                                        git(repository, "rev-parse", "two"))  # fmt: skip
        assert (a.changed, b.changed) == (False, True)
        assert a.tests == b.tests == ("part/test_old.py",)
        assert a.environment["PYTHONPATH"].split(os.pathsep)[0] == str(a.folder)
        assert a.root == a.folder
        assert not is_same(a, b)
    assert left_behind(repository) == []
    assert any("checking out one" in text for text in said)


def test_in_a_folder_of_the_repository_the_side_is_the_same_folder(repository: Path) -> None:
    with open_sides(requests("one", "two", "test_old.py"), repository / "part", None,
                    repository.parent, lambda _: None) as (a, b):  # fmt: skip
        assert a.folder.name == b.folder.name == "part"
        assert a.folder != b.folder
        assert not is_same(a, b)
    with (
        pytest.raises(SideError, match="has no folder new"),
        open_sides(requests("one", "two"), repository / "new", None, repository.parent,
                   lambda _: None),
    ):  # fmt: skip
        pass
    assert left_behind(repository) == []


def test_one_commit_twice_is_a_a(repository: Path) -> None:
    with open_sides(requests("two", "main", "part/test_new.py"), repository, None,
                    repository.parent, lambda _: None) as (a, b):  # fmt: skip
        assert is_same(a, b)


def test_without_tests_the_suite_is_measured(repository: Path) -> None:
    with open_sides(requests(None, None, "-k", "part"), repository, None, repository.parent,
                    lambda _: None) as (a, _):  # fmt: skip
        assert a.tests == (str(suite.suite_path()),)
        assert a.command[-2:] == ("-k", "part")
        command = a.pytest_command(["--hwq-runs=1"], ["benchmarks/test_x.py::test[1]"])
        assert command[-1] == str(suite.suite_path().parent / "benchmarks/test_x.py::test[1]")
        # Whatever the environment or an ini file says, a run neither stores nor compares.
        assert {"--hwq-save=", "--hwq-compare="} <= set(command)


@pytest.mark.parametrize(
    ("a", "words", "says"),
    [
        ("nowhere", (), "'nowhere' is neither a commit, branch or tag of the repository"),
        ("./nowhere", (), "'./nowhere' is neither"),
        ("one", ("{repository}/part/test_old.py",), "is the same file for every side"),
    ],
)
def test_what_is_no_side_is_refused(
    repository: Path, a: str, words: tuple[str, ...], says: str
) -> None:
    given = tuple(word.format(repository=repository) for word in words)
    with (
        pytest.raises(SideError, match=says),
        open_sides(requests(a, ".", *given), repository, None, repository.parent, lambda _: None),
    ):
        pass
    assert left_behind(repository) == []


def test_outside_of_a_repository_a_name_is_a_folder_or_nothing(tmp_path: Path) -> None:
    with (
        pytest.raises(SideError, match=r"'main' is no folder, and .* is in no git repository"),
        open_sides(requests("main", "."), tmp_path, None, tmp_path, lambda _: None),
    ):
        pass


@pytest.mark.parametrize("error", [KeyboardInterrupt(2), RuntimeError("broken")])
def test_whatever_ends_it_nothing_stays(repository: Path, error: BaseException) -> None:
    def measure() -> None:
        with open_sides(requests("one", "two", "part/test_old.py"), repository, None,
                        repository.parent, lambda _: None) as (a, _):  # fmt: skip
            (a.folder / "made by a run").touch()
            raise error

    with pytest.raises(type(error)):
        measure()
    assert left_behind(repository) == []


def test_a_worktree_that_somebody_has_removed_is_no_obstacle(repository: Path) -> None:
    tree = repository.parent / "tree"
    with worktree(repository, "one", tree):
        subprocess.run(["rm", "-r", str(tree)], check=True)
    assert left_behind(repository) == []


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
    python = set_up("A", tmp_path, venv, SideVariant(), setup, log)
    assert (tmp_path / "python").read_text() == str(venv)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "pytest.py").write_text("mine = True\n")
    environment = side_environment(SideVariant(), tmp_path, venv)
    script = "import click, pytest, pytest_hwqueue; print(pytest.mine)"
    done = subprocess.run(
        [python, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "True\n", done.stderr
    with pytest.raises(SideError, match=r"--setup ended with status 3 in .*:\nno compiler"):
        set_up("A", tmp_path, tmp_path / "other", SideVariant(), "echo no compiler; exit 3", log)


def test_a_sides_variables_and_source_folder(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    variant = SideVariant(environment={"PYTHONPATH": "/theirs", "X": "1"})
    environment = side_environment(variant, tmp_path, None)
    paths = environment["PYTHONPATH"].split(os.pathsep)
    assert paths[:3] == [str(tmp_path), str(tmp_path / "src"), "/theirs"]
    assert environment["X"] == "1"


def test_a_side_in_words() -> None:
    request = SideRequest("B", "main", SideVariant(), "--scheduler native")
    side = Side(
        name="B", label=request.label, folder=Path(), commit="a" * 40, changed=True,
        variant=SideVariant(), environment={}, command=(sys.executable,), root=Path(), tests=(),
    )  # fmt: skip
    assert side.describe() == (
        "B: main --scheduler native (commit aaaaaaaaaa, with uncommitted changes)"
    )
