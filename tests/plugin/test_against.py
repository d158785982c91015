"""What --hwq-against refuses, what its runs are told, and how it confirms a baseline's verdict."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_hwqueue.judge.judging import CellVerdict, Judgement
from pytest_hwqueue.judge.verdict import P99, Comparison, GateSettings, State, Verdict
from pytest_hwqueue.options.suite import plugin_name
from pytest_hwqueue.parts.processes.git import commit_of, shallow
from pytest_hwqueue.plugin.against import Against, confirmed
from pytest_hwqueue.plugin.reading import read_settings
from tests.answers.versions.repositories import git


def verdict(cell: str, state: State, sentence: str = "") -> CellVerdict:
    main = Comparison(P99, True, 1.2, (1.1, 1.3), 0.001, 0.01, False, 0.3, 0.1, ())
    return CellVerdict(cell, "p99", Verdict(state, "reason", sentence, P99, main=main))


def test_a_regression_stands_only_where_it_is_confirmed() -> None:
    stored = Judgement(
        "h200/main",
        (*(verdict(cell, "regression") for cell in "abc"), verdict("d", "pass", "as before")),
        (), None, 4, GateSettings(), {},
    )  # fmt: skip
    beside = [verdict("a", "regression", "it is"), verdict("b", "pass", "it is not"),
              verdict("d", "regression", "not asked")]  # fmt: skip
    interleaved = Judgement(
        "main", tuple(beside), (), None, 4, GateSettings(), {}, notes=("2 commits are not in B",)
    )
    judged = confirmed(stored, interleaved)
    a, b, c, d = (each.verdict for each in judged.verdicts)
    assert [each.state for each in (a, b, c, d)] == ["regression", "pass", "regression", "pass"]
    assert a.sentence == (
        "P99 +20.0 % [regression] against h200/main, confirmed in one session: it is"
    )
    assert "not confirmed in one session: it is not" in b.sentence
    assert (d.sentence, judged.baseline) == ("as before", "h200/main")
    assert judged.notes == interleaved.notes


def test_a_commit_must_exist_and_its_runs_get_the_sessions_options_and_not_its_tests(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The test's own folder must be in no repository, whatever the temporary folder is in.
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(pytester.path.parent))
    monkeypatch.setenv("PYTEST_ADDOPTS", "--hwq-seed=3")
    (pytester.path / "tests").mkdir()
    config = pytester.parseconfig(
        "-p", plugin_name(), "--lf", "--hwq-profile", "--hwq-baselines", "tests",
        f"{Path('tests').resolve()}", "tests", "-k", "tests",
    )  # fmt: skip

    def against(commit: str) -> Against:
        return Against(config, read_settings(config), commit, GateSettings(), print)

    with pytest.raises(pytest.UsageError, match=r"--hwq-against: .*is in no git repository"):
        against("nowhere")
    git(pytester.path, "init", "-q", ".")
    with monkeypatch.context() as patched:
        # As in a job's container: git's words are passed on, and name the cure.
        patched.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
        patched.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        with pytest.raises(pytest.UsageError, match=r"(?s)--hwq-against: .*--add safe\.directory"):
            against("HEAD")
    git(pytester.path, "commit", "-q", "--allow-empty", "-m", "one")
    with pytest.raises(pytest.UsageError, match="'nowhere' is no commit, branch or tag"):
        against("nowhere")
    refused = r"--hwq-against: HEAD does not have tests, tests; name tests that both versions have"
    with pytest.raises(pytest.UsageError, match=refused):
        against("HEAD")
    (pytester.path / "tests" / "test_one.py").write_text("def test_one(): pass\n")
    git(pytester.path, "add", "tests")
    git(pytester.path, "commit", "-q", "-m", "two")
    assert against("HEAD")._words()[:-1] == (
        ["--hwq-seed=3", "-p", plugin_name(), "--hwq-baselines", "tests", "-k", "tests"]
    )


def test_where_a_commit_is_missing_a_shallow_clone_is_named(tmp_path: Path) -> None:
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    git(tmp_path, "init", "-q", str(origin))
    for message in ("one", "two"):
        git(origin, "commit", "-q", "--allow-empty", "-m", message)
    git(tmp_path, "clone", "-q", "--depth=1", origin.as_uri(), str(clone))
    assert commit_of(clone, "HEAD^1") is None
    assert "`fetch-depth: 0`" in shallow(clone)
    git(clone, "fetch", "-q", "--unshallow")
    assert commit_of(clone, "HEAD^1") == commit_of(origin, "HEAD^1")
    assert (shallow(clone), shallow(origin), shallow(tmp_path)) == ("", "", "")
