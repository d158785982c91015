"""What --hwq-against refuses, what its runs are told, and how it confirms a baseline's verdict."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pytest_hwqueue.gate.verdict import P99, GateSettings, State, Verdict
from pytest_hwqueue.plugin.against import Against, confirmed
from pytest_hwqueue.settings.reading import read_settings
from pytest_hwqueue.suite import plugin_name
from pytest_hwqueue.verdicts.judging import CellVerdict, Judgement


def verdict(cell: str, state: State, sentence: str = "") -> CellVerdict:
    return CellVerdict(cell, "p99", Verdict(state, "reason", sentence, P99, ratio=1.2, sd=0.01))


def test_a_regression_stands_only_where_it_is_confirmed() -> None:
    stored = Judgement(
        "h200/main",
        (verdict("a", "regression"), verdict("b", "regression"), verdict("c", "regression"),
         verdict("d", "pass", "as before")),
        (), None, 4, GateSettings(),
    )  # fmt: skip
    beside = [verdict("a", "regression", "it is"), verdict("b", "pass", "it is not"),
              verdict("d", "regression", "not asked")]  # fmt: skip
    judged = confirmed(stored, {(each.cell_id, each.figure): each for each in beside})
    found = {each.cell_id: each.verdict for each in judged.verdicts}
    assert {cell: each.state for cell, each in found.items()} == {
        "a": "regression", "b": "pass", "c": "regression", "d": "pass",
    }  # fmt: skip
    assert found["a"].sentence == (
        "P99 +20.0 % [regression] against h200/main, confirmed in one session: it is"
    )
    assert "not confirmed in one session: it is not" in found["b"].sentence
    assert found["d"].sentence == "as before"
    assert judged.baseline == "h200/main"


@pytest.mark.parametrize(
    ("repository", "says"),
    [
        (False, "where the tests are, is in no git repository"),
        (True, "'nowhere' is no commit, branch or tag"),
    ],
)
def test_a_commit_that_does_not_exist_is_refused(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, repository: bool, says: str
) -> None:
    # The test's own folder must be in no repository, whatever the temporary folder is in.
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(pytester.path.parent))
    if repository:
        subprocess.run(["git", "init", "-q", "."], check=True)
    config = pytester.parseconfig("-p", plugin_name())
    with pytest.raises(pytest.UsageError, match=f"--hwq-against: .*{says}"):
        Against(config, read_settings(config), "nowhere", GateSettings(), print)


def test_the_runs_get_the_sessions_options_and_not_its_tests(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "-q", "."], check=True)
    monkeypatch.setenv("PYTEST_ADDOPTS", "--hwq-seed=3")
    (pytester.path / "tests").mkdir()
    commit = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org", "commit", "-q"]
    subprocess.run([*commit, "--allow-empty", "-m", "one"], check=True)
    config = pytester.parseconfig(
        "-p", plugin_name(), "--lf", "--hwq-profile", "--hwq-baselines", "tests",
        f"{Path('tests').resolve()}", "tests", "-k", "tests",
    )  # fmt: skip
    against = Against(config, read_settings(config), "HEAD", GateSettings(), print)
    words = against._words()
    assert words[0] == "--hwq-seed=3"
    assert words[1:-1] == ["-p", plugin_name(), "--hwq-baselines", "tests", "-k", "tests"]
