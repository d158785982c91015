"""The badge: red after a regression, green only for passes, grey where nothing was judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pytest_hwqueue.cli.main import main
from pytest_hwqueue.records.cell import RunRecord, SessionInfo, now, session_text
from pytest_hwqueue.reports.judgement_file import (
    SCHEMA,
    Compared,
    JudgedFile,
    badge,
    judgement_file,
    judgement_text,
)
from pytest_hwqueue.verdicts.judging import Judgement

CELL = "large_gemm_only[cuda-s4-native-graph]"
SIMULATED = {"cells": ("a[sim:h200-s1-native-graph]",)}


@pytest.mark.parametrize(("status", "missing", "counts", "more", "message", "color"), [
    (1, 0, {"pass": 3, "regression": 1}, {}, "1 regression", "red"),
    (0, 0, {"pass": 3}, {}, "3 pass", "brightgreen"),
    (0, 0, {"pass": 3}, SIMULATED, "3 pass", "brightgreen"),
    (0, 0, {"pass": 3, "improvement": 1}, {}, "3 pass, 1 improvement", "brightgreen"),
    (0, 0, {"pass": 3, "inconclusive": 1}, {}, "3 pass, 1 inconclusive", "yellow"),
    (0, 2, {"pass": 3}, {}, "3 pass, 2 missing", "yellow"),
    (1, 0, {"pass": 3, "incomparable": 1}, {}, "3 pass, 1 incomparable", "orange"),
    (0, 0, {"no-baseline": 3}, {}, "3 no-baseline", "lightgrey"),
    (0, 0, {"inconclusive": 2}, {}, "2 inconclusive", "lightgrey"),
    (0, 0, {"pass": 1}, {"failed": 2}, "2 runs failed", "red"),
    (1, 0, {"regression": 2}, {"finished": False}, "2 regressions", "red"),
    (0, 0, {}, {}, "nothing judged", "lightgrey"),
    (0, 0, {}, {"judgements": ()}, "not compared", "lightgrey"),
    (0, 0, {}, {"judgements": (), "finished": False}, "not finished", "lightgrey"),
])  # fmt: skip
def test_each_outcome_has_its_colour_and_what_judged_nothing_is_never_green(
    status: int, missing: int, counts: dict[str, int], more: dict[str, Any], message: str,
    color: str,
) -> None:  # fmt: skip
    verdicts = [{"cell": CELL}] * len(counts)
    file = JudgedFile(
        schema=SCHEMA, exit_status=status, counts=counts, missing=[{}] * missing, verdicts=verdicts
    )
    label = "tail latency (simulated)" if more is SIMULATED else "tail latency"
    assert badge(Compared(**{"judgements": (file,), "cells": (CELL,), **more})) == {
        "schemaVersion": 1, "label": label, "message": message, "color": color
    }  # fmt: skip


def session(records: list[RunRecord], *judgements: dict[str, Any]) -> str:
    info = SessionInfo(
        id="s", started=now(), finished=now(), command="pytest", version="0", settings={}
    )
    return session_text(info, records, [], [], list(judgements))


def test_it_is_made_from_a_session_or_a_comparison_and_nothing_else(
    judgement: Judgement, session_records: list[RunRecord], tmp_path: Path
) -> None:
    text = judgement_text(judgement_file(judgement, "session", 1, {}))
    other = "is neither a session's file"
    files = [
        (text, 0, "2 regressions"),
        (session(session_records, json.loads(text)), 0, "2 regressions"),
        (session(session_records), 0, "1 run failed"),
        *(
            (each, 4, other)
            for each in ("", "{}", "[]", '{"schema": "pytest-hwqueue/judgement/1"}')
        ),
    ]
    path, written = tmp_path / "made.json", tmp_path / "badge.json"
    for content, status, says in files:
        path.write_text(content, encoding="utf-8")
        done = CliRunner().invoke(main, ["badge", str(path)], prog_name="hwq")
        assert done.exit_code == status
        assert says in " ".join(done.output.split())
        into = CliRunner().invoke(main, ["badge", str(path), "-o", str(written)], prog_name="hwq")
        assert into.exit_code == status
        assert status or (into.output, written.read_text()) == ("", done.output)
