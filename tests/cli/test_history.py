"""hwq history and hwq bisect: what they print and write, what they refuse, and how they end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from pytest_hwqueue.baselines.runs import CellBaseline, cell_of_record
from pytest_hwqueue.baselines.store import Store
from pytest_hwqueue.history.series import json_schema
from pytest_hwqueue.records.cell import RunRecord
from pytest_hwqueue.reports.history import sparkline
from tests.baselines.run_with import with_p99
from tests.cli.conftest import ROOT, assert_schema_is_the_codes, hwq

MakeRecord = Callable[..., RunRecord]
SCHEMA = ROOT / "pytest_hwqueue/schemas/history.schema.json"
CELL = "a[cuda-s8-native-eager]"


@pytest.fixture(autouse=True)
def _folder(no_settings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def commit(number: int) -> str:
    arguments = ["-c", "user.name=n", "-c", "user.email=e@example.org", "commit", "-q"]
    subprocess.run(["git", *arguments, "--allow-empty", "-m", f"commit {number}"], check=True)
    head = ["git", "rev-parse", "HEAD"]
    return subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(name="store")
def _store(make_record: MakeRecord, tmp_path: Path) -> Callable[..., None]:
    """Stores a baseline, main, of a cell: a session for each value, with its commit."""

    def store(values: Sequence[float], commits: Sequence[str] = ("0" * 40,)) -> None:
        plain = cell_of_record(make_record("a", 1, n=1000), "s")
        runs = tuple(
            replace(
                with_p99(plain.runs[0], round(1e7 * value)), session=f"s{number:02}",
                commit=commits[min(number, len(commits) - 1)],
                when=f"2026-{1 + number // 28:02}-{number % 28 + 1:02}T08:00:00+00:00",
            )
            for number, value in enumerate(values)
        )  # fmt: skip
        cell = CellBaseline(plain.header, runs)
        Store(tmp_path / "baselines").accept("main", plain.device, {CELL: cell}, "first")

    return store


def stepped(step: float = 0.1, seed: int = 0) -> np.ndarray:
    values = np.exp(np.random.default_rng(seed).normal(0, 0.02, 40))
    values[20:] *= 1 + step
    return np.asarray(values)


def test_a_step_is_reported_with_its_commits(store: Callable[..., None], tmp_path: Path) -> None:
    pytest.importorskip("otava", reason="the extra history is not installed")
    subprocess.run(["git", "init", "-q"], check=True)
    store(stepped(), [commit(number) for number in range(22)])
    result = hwq("history", "main", "--json", "h.json", "--markdown", "h.md", columns=80)
    assert result.exit_code == 0, result.output
    assert all(len(line.rstrip()) <= 80 for line in result.output.splitlines())
    for said in ("worse: +", "1 commit between", "commit 20", "from 2026-01-21 08:00"):
        assert said in result.output
    data = json.loads((tmp_path / "h.json").read_text())
    assert list(Draft202012Validator(json.loads(SCHEMA.read_text())).iter_errors(data)) == []
    by_figure = {series["figure"]: series for series in data["series"]}
    assert set(by_figure) == {"p99", "p50", "iteration_time"}
    (change,) = by_figure["p99"]["changes"]
    assert (change["index"], change["worse"]) == (20, True)
    assert [each["subject"] for each in change["commits"]] == ["commit 20"]
    assert len(by_figure["p99"]["sessions"]) == 40
    assert "1 commit between" in (tmp_path / "h.md").read_text()


def test_runs_that_the_baseline_moved_away_from_are_part_of_it(
    store: Callable[..., None], tmp_path: Path
) -> None:
    pytest.importorskip("otava", reason="the extra history is not installed")
    store(stepped())
    assert hwq("baseline", "prune", "main", "--keep", "20", "--yes").exit_code == 0
    assert hwq("history", "main", "--json", "h.json", "--figure", "p99").exit_code == 0
    (series,) = json.loads((tmp_path / "h.json").read_text())["series"]
    assert len(series["sessions"]) == 40


def test_moves_are_still_told_by_the_command_of_baselines(store: Callable[..., None]) -> None:
    store(stepped())
    result = hwq("baseline", "history", "main", columns=200)
    assert result.exit_code == 0
    assert "moved 1 time" in result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nothing",), "is neither a baseline nor a file nor a folder"),
        (("main", "--cell", "b"), "--cell: no cell is 'b'"),
        (("main", "--figure", "p98"), "--figure: no cell has a figure 'p98'; there are p50"),
        (("main", "--rate", "50%"), "--rate: '50%' is not valid; give a share above 0 and below"),
        (("main", "--rate", "0.01%"), "--rate: 0.01% is below 0.02%"),
        (("main", "--repository", "nowhere"), "--repository"),
    ],
)
def test_wrong_usage_of_history(
    store: Callable[..., None], arguments: tuple[str, ...], says: str
) -> None:
    store([1.0])
    result = hwq("history", *arguments)
    assert (result.exit_code, says in result.output) == (2, True), result.output


def test_without_otava_the_extra_is_named(
    store: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    store(stepped())
    monkeypatch.setitem(sys.modules, "otava.analysis", None)
    result = hwq("history", "main")
    assert result.exit_code == 2
    assert "pip install 'pytest-hwqueue[history]'" in result.output


def test_the_published_schema_is_that_of_the_code() -> None:
    assert_schema_is_the_codes("history.schema.json", json_schema())


@pytest.mark.parametrize(
    ("values", "shown"),
    [([], ""), ([1.0], "▁"), ([2.0, 2.0], "▁▁"), ([1.0, 8.0], "▁█"), ([0.0, 7.0, 3.0], "▁█▄")],
)
def test_sparkline(values: list[float], shown: str) -> None:
    assert sparkline(values) == shown
    assert len(sparkline([*values] * 40)) <= 16


# --- bisect ----------------------------------------------------------------------------------


@pytest.fixture(name="repository")
def _repository() -> None:
    subprocess.run(["git", "init", "-q", "-b", "main"], check=True)
    Path("test_mine.py").write_text("")
    for number in range(3):
        commit(number)
        subprocess.run(["git", "tag", f"v{number}"], check=True)


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("test_mine.py", "v0"), "Missing argument 'BAD'"),
        (("nothing", "v0", "v2"), "'nothing' is neither a workload (see `hwq list`) nor a test"),
        (("test_mine.py", "v9", "v2"), "GOOD: 'v9' is no commit, branch or tag"),
        (("test_mine.py", "v0", "-v"), "No such option"),
        (("test_mine.py", "v2", "v0"), "GOOD: v2 is no ancestor of v0"),
        (("test_mine.py", "v1", "v1"), "GOOD and BAD are the same commit"),
        (("test_mine.py", "v0", "v2", "--pairs", "2"), "2 is not in the range x>=3"),
    ],
)
def test_wrong_usage_of_bisect_is_refused_before_anything_is_measured(
    arguments: tuple[str, ...], says: str
) -> None:
    result = hwq("bisect", *arguments)
    assert (result.exit_code, says in result.output) == (2, True), result.output
    assert not Path(".hwqueue").exists()


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize(
    ("ending", "status"), [("found", 0), ("range", 1), ("not-worse", 3), ("not-confirmed", 3)]
)
def test_bisect_ends_in_one_sentence_and_goes_on_with_its_state(
    monkeypatch: pytest.MonkeyPatch, ending: Any, status: int
) -> None:
    from pytest_hwqueue.interleaved import bisection

    seen = []

    def search(state: bisection.BisectState, *rest: Any) -> bisection.Finding:
        seen.append([each.subject for each in state.commits])
        rest[2](state)
        return bisection.Finding(ending=ending, sentence="It was this one.")

    monkeypatch.setattr(bisection, "bisect", search)
    for _ in range(2):
        result = hwq("bisect", "test_mine.py", "v0", "main")
        assert (result.exit_code, result.stdout) == (status, "It was this one.\n")
    assert seen == [["commit 1", "commit 2"]] * 2
    assert "continues after 0 comparisons" in result.output
    assert len(list(Path(".hwqueue").glob("bisect-*/bisect.json"))) == 1
    # With other settings it is another search.
    hwq("bisect", "test_mine.py", "v0", "main", "--pairs", "6")
    assert len(list(Path(".hwqueue").glob("bisect-*/bisect.json"))) == 2
