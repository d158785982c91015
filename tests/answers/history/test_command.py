"""hwq history and hwq bisect: what they print and write, what they refuse, and how they end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from pytest_hwqueue.answers.history.report import sparkline
from pytest_hwqueue.answers.history.series import HistoryFile
from tests.answers.stored import put
from tests.cli.conftest import ROOT, assert_schema_is_the_codes, hwq

SCHEMA = ROOT / "pytest_hwqueue/schemas/history.schema.json"


@pytest.fixture(autouse=True)
def _folder(no_settings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def commit(number: int) -> str:
    arguments = ["-c", "user.name=n", "-c", "user.email=e@example.org", "commit", "-q"]
    subprocess.run(["git", *arguments, "--allow-empty", "-m", f"commit {number}"], check=True)
    head = ["git", "rev-parse", "HEAD"]
    return subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()


def stepped(*commits: str) -> None:
    """Store a baseline that got slower by 10 % in its 21st session, and has its anchor."""
    values = np.exp(np.random.default_rng(0).normal(0, 0.02, 40))
    values[20:] *= 1.1
    sessions = [f"s{number:02}" for number in range(40)]
    put("raw", "a", values.tolist(), sessions=sessions, commits=commits or ("0" * 40,))
    assert hwq("baseline", "accept", "main", "--from", "raw", "--reason", "x").exit_code == 0


def test_a_step_is_reported_with_its_commits_and_runs_that_were_pruned_are_part_of_it() -> None:
    pytest.importorskip("otava", reason="the extra history is not installed")
    subprocess.run(["git", "init", "-q"], check=True)
    stepped(*(commit(number) for number in range(22)))
    assert hwq("baseline", "prune", "main", "--keep", "20", "--yes").exit_code == 0
    result = hwq("history", "main", "--json", "h.json", "--markdown", "h.md", columns=80)
    assert result.exit_code == 0, result.output
    assert all(len(line.rstrip()) <= 80 for line in result.output.splitlines())
    for said in (
        "\n1 of 3 series got worse; most, P99 of ",
        "worse: +",
        "1 commit between",
        "commit 20",
        "from 2026-02-21 08:00",
    ):
        assert said in result.output
    data = json.loads(Path("h.json").read_text())
    assert list(Draft202012Validator(json.loads(SCHEMA.read_text())).iter_errors(data)) == []
    by_figure = {series["figure"]: series for series in data["series"]}
    assert set(by_figure) == {"p99", "p50", "iteration_time"}
    (change,) = by_figure["p99"]["changes"]
    assert (change["index"], change["worse"]) == (20, True)
    assert [each["subject"] for each in change["commits"]] == ["commit 20"]
    assert len(by_figure["p99"]["sessions"]) == 40
    assert "1 commit between" in Path("h.md").read_text()


def test_without_otava_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    put("main", "a", [1.0] * 5)
    monkeypatch.setitem(sys.modules, "otava.analysis", None)
    result = hwq("history", "main")
    assert result.exit_code == 2
    assert "pip install 'pytest-hwqueue[history]'" in result.output


def test_the_published_schema_is_that_of_the_code() -> None:
    assert_schema_is_the_codes("history.schema.json", HistoryFile.model_json_schema())


@pytest.mark.parametrize(
    ("values", "shown"),
    [([], ""), ([1.0], "▁"), ([2.0, 2.0], "▁▁"), ([1.0, 8.0], "▁█"), ([0.0, 7.0, 3.0], "▁█▄")],
)
def test_sparkline(values: list[float], shown: str) -> None:
    assert sparkline(values) == shown
    assert len(sparkline([*values] * 40)) <= 16


@pytest.mark.parametrize(
    ("ending", "status"), [("found", 0), ("range", 1), ("not-worse", 3), ("not-confirmed", 3)]
)
def test_bisect_ends_in_one_sentence_and_goes_on_with_its_state(
    monkeypatch: pytest.MonkeyPatch, ending: Any, status: int
) -> None:
    from pytest_hwqueue.answers.versions import bisection

    subprocess.run(["git", "init", "-q", "-b", "main"], check=True)
    Path("test_mine.py").write_text("")
    empty = commit(9)
    subprocess.run(["git", "add", "test_mine.py"], check=True)
    first, *_ = [commit(number) for number in range(3)]
    result = hwq("bisect", "test_mine.py::test", empty, "main")
    assert (result.exit_code, not Path(".hwqueue").exists()) == (2, True)
    assert f"GOOD: {empty} does not have test_mine.py" in result.output
    seen = []

    def search(state: bisection.BisectState, *rest: Any) -> bisection.Finding:
        seen.append([each.subject for each in state.commits])
        rest[2](state)
        return bisection.Finding(ending=ending, sentence="It was this one.")

    monkeypatch.setattr(bisection, "bisect", search)
    for _ in range(2):
        result = hwq("bisect", "test_mine.py", first, "main")
        assert (result.exit_code, result.stdout) == (status, "It was this one.\n")
    assert seen == [["commit 1", "commit 2"]] * 2
    assert "continues after 0 comparisons" in result.output
    assert len(list(Path(".hwqueue").glob("bisect-*/bisect.json"))) == 1
    # With other settings it is another search.
    hwq("bisect", "test_mine.py", first, "main", "--pairs", "6")
    assert len(list(Path(".hwqueue").glob("bisect-*/bisect.json"))) == 2
