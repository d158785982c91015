"""The badge: red after a regression, green only for passes, grey where nothing was judged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pytest_hwqueue.cli.main import main
from pytest_hwqueue.gate.verdict import State
from pytest_hwqueue.records.cell import RunRecord, SessionInfo, now, session_text
from pytest_hwqueue.reports.badge import Compared, badge
from pytest_hwqueue.reports.judgement_file import JudgementFile, judgement_file, judgement_text
from pytest_hwqueue.verdicts.judging import Judgement

CELL = "large_gemm_only[cuda-s4-native-graph]"


@pytest.fixture
def compared(judgement: Judgement) -> JudgementFile:
    return judgement_file(judgement, "session", 1, {})


def only(file: JudgementFile, status: int, missing: int, **counts: int) -> Compared:
    """A comparison with as many verdicts of each state."""
    named: dict[State, int] = {key.replace("_", "-"): n for key, n in counts.items()}  # type: ignore[misc]
    content = {"counts": named, "exit_status": status, "missing": file.missing[:1] * missing}
    return Compared((file.model_copy(update=content),), (CELL,))


@pytest.mark.parametrize(
    ("status", "missing", "counts", "message", "color"),
    [
        (1, 0, {"pass": 3, "regression": 1}, "1 regression", "red"),
        (0, 0, {"pass": 3}, "3 pass", "brightgreen"),
        (0, 0, {"pass": 3, "improvement": 1}, "3 pass, 1 improvement", "brightgreen"),
        (0, 0, {"pass": 3, "inconclusive": 1}, "3 pass, 1 inconclusive", "yellow"),
        (0, 2, {"pass": 3}, "3 pass, 2 missing", "yellow"),
        (1, 0, {"pass": 3, "incomparable": 1}, "3 pass, 1 incomparable", "orange"),
        (0, 0, {"no_baseline": 3}, "3 no-baseline", "lightgrey"),
        (0, 0, {"inconclusive": 2}, "2 inconclusive", "lightgrey"),
    ],
)
def test_each_outcome_has_its_colour(
    status: int,
    missing: int,
    counts: dict[str, int],
    message: str,
    color: str,
    compared: JudgementFile,
) -> None:
    shown = badge(only(compared, status, missing, **counts))
    assert shown == {
        "schemaVersion": 1, "label": "tail latency", "message": message, "color": color
    }  # fmt: skip


def test_nothing_judged_is_never_green(compared: JudgementFile) -> None:
    empty = compared.model_copy(update={"verdicts": [], "counts": {}, "exit_status": 0})
    for found, message in (
        (Compared((), (CELL,)), "not compared"),
        (Compared((empty,), (CELL,)), "nothing judged"),
        (Compared((compared,), (CELL,), finished=False), "2 regressions"),
        (Compared((), (), finished=False), "not finished"),
    ):
        assert badge(found)["message"] == message
        assert badge(found)["color"] != "brightgreen"


def test_simulated_is_called_so_and_a_failed_run_is_red(compared: JudgementFile) -> None:
    passing = only(compared, 0, 0, **{"pass": 1})
    simulated = replace(passing, cells=("a[sim:h200-s1-native-graph]",))
    assert badge(simulated)["label"] == "tail latency (simulated)"
    assert badge(replace(passing, failed=2)) | {"label": ""} == {
        "schemaVersion": 1, "label": "", "message": "2 runs failed", "color": "red"
    }  # fmt: skip


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["badge", *map(str, arguments)], prog_name="hwq")


def write_session(path: Path, judgements: list[dict[str, Any]], records: list[RunRecord]) -> None:
    info = SessionInfo(
        id="s", started=now(), finished=now(), command="pytest", version="0", settings={}
    )
    path.write_text(session_text(info, records, [], [], judgements), encoding="utf-8")


def test_it_is_made_from_a_session_or_a_comparison(
    judgement: Judgement, session_records: list[RunRecord], tmp_path: Path
) -> None:
    text = judgement_text(judgement, "session", 1, {})
    (tmp_path / "judgement.json").write_text(text, encoding="utf-8")
    write_session(tmp_path / "session.json", [json.loads(text)], session_records)
    write_session(tmp_path / "alone.json", [], session_records)
    assert json.loads(run(tmp_path / "judgement.json").output)["message"] == "2 regressions"
    assert json.loads(run(tmp_path / "session.json").output)["message"] == "2 regressions"
    done = run(tmp_path / "alone.json", "-o", tmp_path / "badge.json")
    assert done.exit_code == 0
    assert done.output == ""
    assert json.loads((tmp_path / "badge.json").read_text())["message"] == "1 run failed"


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"schema": "pytest-hwqueue/judgement/1"}'])
def test_what_is_neither_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(content, encoding="utf-8")
    done = run(path)
    assert done.exit_code == 4
    assert "is neither a session's file" in " ".join(done.output.split())
