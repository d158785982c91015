"""Verdicts: the text of a failing test has the numbers behind it, the table fits and hides none."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import get_args

import pytest
from jsonschema import Draft202012Validator
from rich.cells import cell_len

from pytest_hwqueue.answers.session.outcome import render_markdown
from pytest_hwqueue.judge import words as verdicts
from pytest_hwqueue.judge.baselines.runs import FieldDifference
from pytest_hwqueue.judge.baselines.sources import UnmatchedCell
from pytest_hwqueue.judge.file import json_schema, judgement_file, judgement_text
from pytest_hwqueue.judge.file import judgement_of as stored_judgement
from pytest_hwqueue.judge.judging import CellVerdict, Judgement
from pytest_hwqueue.judge.runs import ProcessRun
from pytest_hwqueue.judge.suite_gate import SuiteShift
from pytest_hwqueue.judge.verdict import ITERATION_TIME, P95, P99, State
from tests.answers.conftest import cell_id, judgement_of, verdict_of
from tests.stored_texts import assert_as_stored

COMMAND = "pytest benchmarks -k tiny_kernel_stress"
CELL = "tiny_kernel_stress[cuda-s8-native-graph]"
DIFFERENT = (
    FieldDifference("torch_version", "soft", ("2.10",), ("2.11",)),
    FieldDifference("host_name", "soft", (None,), ("a", "b")),
)
SMALL = replace(P95, name="small.p95", label="P95 of small", demoted_from="P99")
RATIO = replace(P99, name="convoy_ratio.p99", label="convoy_ratio at P99", unit="")
WORSE = verdict_of(0.2, seed=2)
MORE_FAILURES = replace(
    WORSE, reason="more-failures", new=tuple(replace(run, failed=3) for run in WORSE.new),
    sentence="more requests fail (30 of 8030, baseline 0 of 10000)",
)  # fmt: skip
BROKEN = replace(
    WORSE, state="incomparable", reason="not-a-number", main=None, history=(),
    sentence="P99 of new run 1 is nan", new=(ProcessRun(math.nan, 1000, "new"),),
)  # fmt: skip


def assert_texts_are_stored(name: str, texts: dict[str, str]) -> None:
    shown = "\n\n".join(f"===== {name} =====\n{text}" for name, text in texts.items())
    # The least digits of so small a p are the library's; the next test compares them.
    assert_as_stored(__file__, name, re.sub(r"[\d.]+e-(0[6-9]|1\d)", "tiny", shown))


def test_explanations_are_as_stored(judgement: Judgement) -> None:
    other = next(each for each in judgement.verdicts if each.verdict.state == "incomparable")
    judged = {
        "a regression": CellVerdict(CELL, "p99", WORSE),
        "other conditions": CellVerdict(CELL, "p99", WORSE, DIFFERENT),
        "more failures": CellVerdict(CELL, "p99", MORE_FAILURES),
        "not compared": other,
        "without a figure": CellVerdict(CELL, "p99", BROKEN),
        "a lower percentile": CellVerdict(
            CELL, "small.p99", verdict_of(0.3, quantity=SMALL, n=100)
        ),
        "a ratio": CellVerdict(CELL, "convoy_ratio", verdict_of(0.3, quantity=RATIO, level=8.4)),
    }
    texts = {
        name: verdicts.explain(each, judgement.baseline, COMMAND) for name, each in judged.items()
    }
    assert_texts_are_stored("explanations.txt", texts)


def test_an_explanation_has_its_p_and_figures_have_the_units_of_their_size() -> None:
    verdict = WORSE
    text = verdicts.explain(CellVerdict(CELL, "p99", verdict), "nvidia-h200/main", COMMAND)
    assert text.count(f"p = {verdict.p:.2g}") == 1
    mean = verdicts.mean_value(verdict.baseline)
    assert mean == pytest.approx(math.prod(r.value / 1e6 for r in verdict.baseline) ** 0.1 * 1e6)
    assert str(verdicts.figure_value(P99, 41_300.0, 41_300.0)) == "41.3 µs"
    named = replace(P99, name="at.p99", label="P99 of at")
    assert str(verdicts.figure_value(named, 5_610_000.0, 5_610_000.0)) == "5.61 ms"


def test_an_sd_that_is_the_floor_is_none_that_runs_have_shown() -> None:
    quiet = verdict_of(0.3, sd=0.001)
    judged = CellVerdict(CELL, "p99", quiet)
    text = verdicts.explain(judged, "nvidia-h200/main", COMMAND)
    assert "sd of P99 between runs ≤ 0.5 % (floor), this cell can detect ≥" in text
    noisy = verdicts.explain(CellVerdict(CELL, "p99", WORSE), "nvidia-h200/main", COMMAND)
    assert "floor" not in noisy
    content = json.loads(judgement_text(judgement_file(judgement_of([judged]), "new", 0, {})))
    assert (content["verdicts"][0]["sd"], content["verdicts"][0]["sd_is_floor"]) == (0.005, True)


def test_a_run_without_a_figure_is_null_in_json() -> None:
    text = judgement_text(
        judgement_file(judgement_of([CellVerdict(CELL, "p99", BROKEN)]), "new", 0, {})
    )
    content = json.loads(text)
    Draft202012Validator(json_schema()).validate(content)
    (verdict,) = content["verdicts"]
    assert verdict["test"] == [asdict(BROKEN.new[0]) | {"value": None}]
    assert verdict["baseline"] == [asdict(run) for run in BROKEN.baseline]


def test_what_a_file_has_of_verdicts_is_read_and_written_alike(judgement: Judgement) -> None:
    assert WORSE.main is not None
    both = replace(WORSE, companion=replace(WORSE.main, quantity=ITERATION_TIME))
    judged = (*judgement.verdicts, CellVerdict(CELL, "p99", both))
    written = judgement_file(replace(judgement, verdicts=judged), "new", 1, {})
    Draft202012Validator(json_schema()).validate(written)
    (companion,) = filter(None, (each["companion"] for each in written["verdicts"]))
    assert (companion["quantity"], companion["ratio"]) == ("iteration_time", WORSE.main.ratio)
    assert {each["ratio"] is None for each in written["verdicts"]} == {True, False}
    read = stored_judgement(json.loads(judgement_text(written)), Path("session.json"))
    assert judgement_file(read, "new", 1, {}) == written


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 160, 250])
def test_no_line_of_a_judgement_is_wider_than_its_terminal(
    judgement: Judgement, width: int
) -> None:
    lines = verdicts.render_judgement(judgement, width, False)
    assert max(map(cell_len, lines.split("\n"))) <= width
    assert "…" not in lines


def test_tables_of_verdicts_are_as_stored(judgement: Judgement) -> None:
    several = tuple(
        UnmatchedCell(f"moe[cuda-s{n}-native-graph]", "not measured") for n in range(1, 8)
    )
    noisy = CellVerdict(CELL, "p99", verdict_of(sd=0.08, seed=3))
    three = CellVerdict(cell_id(2), "p99", verdict_of(baseline_runs=3, sd=0.001))
    passed = [each for each in judgement.verdicts if each.verdict.state == "pass"]
    passed = [replace(each, differences=DIFFERENT[:1]) for each in passed]
    moved = judgement_of([], shift=SuiteShift(1.05, 12, 1.04, True))
    fine = verdict_of(sd=0.01, seed=1)
    assert fine.main is not None
    # Many passes are one line that says what they could have missed.
    many = [
        CellVerdict(cell_id(i), "p99", replace(fine, main=replace(fine.main, detectable=each)))
        for i, each in enumerate([0.06, 0.224, None, *[0.07] * 18], start=1)
    ]
    worse = judgement_of([*many, CellVerdict(CELL, "p99", WORSE)])
    texts = {
        "160 columns": verdicts.render_judgement(judgement, 160, False),
        "60 columns": verdicts.render_judgement(judgement, 60, False),
        "in brief": verdicts.render_judgement(
            replace(judgement, missing=several), 120, False, brief=True
        ),
        "passes in brief": verdicts.render_judgement(judgement_of(passed), 80, False, brief=True),
        "noise, and few runs": verdicts.render_judgement(judgement_of([noisy, three]), 80, False),
        "a machine that changed": verdicts.render_judgement(moved, 120, False),
        "no shift": verdicts.render_judgement(judgement_of([], shift=None), 120, False),
        "21 passes": verdicts.render_judgement(worse, 80, False),
        "20 passes": verdicts.render_judgement(judgement_of(many[:20]), 80, False),
    }
    assert_texts_are_stored("judgements.txt", texts)


def test_notes_of_a_comparison_stand_under_its_heading_in_every_form(judgement: Judgement) -> None:
    note = "A is main, B is this version: 2 commits of A are not in B"
    noted = replace(judgement, notes=(note,))
    for text in (verdicts.render_judgement(noted, 160, False), render_markdown([noted], [])):
        assert text.index("Against") < text.index(note) < text.index("regression ")
    written = judgement_file(noted, "new", 1, {})
    # The page and later reports read it from there.
    assert stored_judgement(written, Path("session.json")).notes == (note,)


def test_what_needs_a_reader_comes_first_in_its_colour(judgement: Judgement) -> None:
    plain = verdicts.render_judgement(judgement, 160, False)
    order = re.findall(r"(regression|incomparable|inconclusive|improvement|pass)  +\d+ \+", plain)
    assert order == sorted(order, key=verdicts.SEVERITY.index)
    assert (len(order), set(verdicts.SEVERITY)) == (10, set(get_args(State)))
    coloured = verdicts.render_judgement(judgement, 160, True)
    for colour, state in ((31, "regression"), (33, "incomparable"), (32, "improvement")):
        assert re.search(rf"\x1b\[{colour}m[^\n]*{state}", coloured)


def test_the_first_figure_of_each_cell_is_its_change(judgement: Judgement) -> None:
    changes = verdicts.changes_of([judgement])
    assert set(changes) == {judged.cell_id for judged in judgement.verdicts}
    first = judgement.verdicts[0]
    label, _, change = changes[first.cell_id]
    assert first.verdict.main is not None
    number = f"{100 * (first.verdict.main.ratio - 1):+.1f}"
    assert (label, change.number) == (first.verdict.quantity.label, number)
