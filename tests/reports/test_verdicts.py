"""Verdicts: the text of a failing test has the numbers behind it, the table fits and hides none."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import get_args

import pytest
from rich.cells import cell_len

from pytest_hwqueue.baselines.runs import FieldDifference
from pytest_hwqueue.baselines.sources import Unmatched
from pytest_hwqueue.gate.runs import ProcessRun
from pytest_hwqueue.gate.suite_gate import SuiteShift
from pytest_hwqueue.gate.verdict import P95, P99, THROUGHPUT, State, Verdict
from pytest_hwqueue.reports.verdict_words import SEVERITY, figure_value, mean_value
from pytest_hwqueue.reports.verdicts import changes_of, explain, render_judgement
from pytest_hwqueue.verdicts.judging import CellVerdict, Judgement
from tests.reports.conftest import cell_id, joined, judgement_of, verdict_of
from tests.reports.stored_texts import assert_as_stored

COMMAND = "pytest benchmarks -k tiny_kernel_stress"
CELL = "tiny_kernel_stress[cuda-s8-native-graph]"


def explained(
    verdict: Verdict, figure: str = "p99", differences: tuple[FieldDifference, ...] = ()
) -> str:
    judged = CellVerdict(CELL, figure, verdict, differences)
    return explain(judged, "nvidia-h200/main", COMMAND)


def regression() -> Verdict:
    return verdict_of(0.2, seed=2)


def failing() -> Verdict:
    worse = regression()
    return replace(
        worse, reason="more-failures", new=tuple(replace(run, failed=3) for run in worse.new),
        sentence="more requests fail (30 of 8030, baseline 0 of 10000)",
    )  # fmt: skip


def broken() -> Verdict:
    return replace(
        regression(), state="incomparable", reason="not-a-number", ratio=None, interval=None,
        sentence="P99 of new run 1 is nan", new=(ProcessRun(math.nan, 1000, "new"),), history=(),
    )  # fmt: skip


DIFFERENT = (
    FieldDifference("torch_version", "soft", ("2.10",), ("2.11",)),
    FieldDifference("host_name", "soft", (None,), ("a", "b")),
)
SMALL = replace(P95, name="small.p95", label="P95 of small", demoted_from="P99")
RATIO = replace(P99, name="convoy_ratio.p99", label="convoy_ratio at P99", unit="")


def test_explanations_are_as_stored(judgement: Judgement) -> None:
    other = next(each for each in judgement.verdicts if each.verdict.state == "incomparable")
    texts = {
        "a regression": explained(regression()),
        "other conditions": explained(regression(), differences=DIFFERENT),
        "more failures": explained(failing()),
        "not compared": explain(other, judgement.baseline, COMMAND),
        "without a figure": explained(broken()),
        "a lower percentile": explained(verdict_of(0.3, quantity=SMALL, n=100), "small.p99"),
        "a ratio": explained(verdict_of(0.3, quantity=RATIO, level=8.4), "convoy_ratio"),
    }
    text = "\n\n".join(f"===== {name} =====\n{shown}" for name, shown in texts.items())
    # The least digits of so small a p are the library's; the next test compares them.
    text = re.sub(r"[\d.]+e-(0[6-9]|1\d)", "tiny", text)
    assert_as_stored(__file__, "explanations.txt", text)


def test_an_explanation_has_the_verdicts_own_numbers() -> None:
    verdict = regression()
    assert verdict.state == "regression"
    text = explained(verdict)
    assert f"p = {verdict.p:.2g}" in text.split("\n")[0]
    for look in verdict.history:
        exact = "—" if look.p_exact is None else f"{look.p_exact:.2g}"
        shown = [str(look.new_runs), f"{look.ratio:.3f}", f"{look.p_t:.2g}", exact, look.decision]
        assert shown in [line.split() for line in text.split("\n")]
    mean = mean_value(verdict.baseline)
    assert mean == pytest.approx(math.prod(r.value / 1e6 for r in verdict.baseline) ** 0.1 * 1e6)


@pytest.mark.parametrize(
    ("quantity", "value", "shown"),
    [
        (P99, 5_610_000.0, "5.61 ms"),
        (P99, 41_300.0, "41.3 µs"),
        (replace(P99, name="small.p99", label="P99 of small"), 5_610_000.0, "5.61 ms"),
        (replace(P99, name="at.p99", label="P99 of at"), 5_610_000.0, "5.61 ms"),
        (RATIO, 8.41, "8.41×"),
        (THROUGHPUT, 4_168_000.0, "4.17 M per s"),
    ],
)
def test_a_figure_has_the_unit_of_its_kind(quantity: object, value: float, shown: str) -> None:
    assert isinstance(quantity, type(P99))
    assert str(figure_value(quantity, value, value)) == shown


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 160, 250])
def test_every_verdict_is_there_at_every_width(judgement: Judgement, width: int) -> None:
    lines = render_judgement(judgement, width, False)
    assert max(map(cell_len, lines.split("\n"))) <= width
    assert "…" not in lines
    if width < 40:
        return
    text = joined(lines)
    for judged in judgement.verdicts:
        verdict = judged.verdict
        if verdict.state == "no-baseline":
            continue
        assert verdict.state in text
        assert f"{len(verdict.baseline)} + {len(verdict.new)}" in text
        if verdict.state != "pass":
            assert verdict.sentence in text
        if verdict.ratio is not None:
            assert verdict.interval is not None
            low, high = (f"{100 * (end - 1):+.1f}" for end in verdict.interval)
            assert f"[{low}, {high}]" in text
            assert f"{100 * (verdict.ratio - 1):+.1f}" in text


def test_tables_of_verdicts_are_as_stored(judgement: Judgement) -> None:
    several = tuple(Unmatched(f"moe[cuda-s{n}-native-graph]", "not measured") for n in range(1, 8))
    noisy = CellVerdict(CELL, "p99", verdict_of(sd=0.08, seed=3))
    three = CellVerdict(cell_id(2), "p99", verdict_of(baseline_runs=3, sd=0.001))
    passed = [each for each in judgement.verdicts if each.verdict.state == "pass"]
    passed = [replace(each, differences=DIFFERENT[:1]) for each in passed]
    moved = judgement_of([], shift=SuiteShift(1.05, 12, 1.04, True))
    texts = {
        "160 columns": render_judgement(judgement, 160, False),
        "60 columns": render_judgement(judgement, 60, False),
        "in brief": render_judgement(replace(judgement, missing=several), 120, False, brief=True),
        "passes in brief": render_judgement(judgement_of(passed), 80, False, brief=True),
        "noise, and few runs": render_judgement(judgement_of([noisy, three]), 80, False),
        "a machine that changed": render_judgement(moved, 120, False),
        "no shift": render_judgement(judgement_of([], shift=None), 120, False),
    }
    text = "\n\n".join(f"===== {name} =====\n{shown}" for name, shown in texts.items())
    assert_as_stored(__file__, "judgements.txt", text)


def test_what_needs_a_reader_comes_first(judgement: Judgement) -> None:
    text = render_judgement(judgement, 160, False)
    order = re.findall(r"(regression|incomparable|inconclusive|improvement|pass)  +\d+ \+", text)
    assert order == sorted(order, key=SEVERITY.index)
    assert len(order) == 10
    assert set(SEVERITY) == set(get_args(State))


def test_many_passes_are_one_line_that_says_what_they_could_have_missed() -> None:
    verdict, worse = verdict_of(sd=0.01, seed=1), regression()
    assert (verdict.state, worse.state) == ("pass", "regression")
    reach = [0.06, 0.224, None, *[0.07] * 18]
    passes = [
        CellVerdict(cell_id(i), "p99", replace(verdict, detectable=each))
        for i, each in enumerate(reach, start=1)
    ]
    judged = judgement_of([*passes, CellVerdict(CELL, "p99", worse)])
    text = joined(render_judgement(judged, 80, False))
    assert (
        "21 figures passed; the least worsening that each can detect is +22.4 % or less; 1 cannot "
        "detect +20 %; 1 can detect none, having too small a baseline"
    ) in text
    assert "cuda-s21-" not in text
    assert "P99 +20.0 %" in text
    listed = render_judgement(judgement_of(passes[:20]), 120, False)
    assert "figures passed" not in listed
    assert all(cell_id(i) in listed for i in range(1, 21))


def test_the_first_figure_of_each_cell_is_its_change(judgement: Judgement) -> None:
    changes = changes_of([judgement])
    assert set(changes) == {judged.cell_id for judged in judgement.verdicts}
    first = judgement.verdicts[0]
    label, _, change = changes[first.cell_id]
    assert label == first.verdict.quantity.label
    assert first.verdict.ratio is not None
    assert change.number == f"{100 * (first.verdict.ratio - 1):+.1f}"


def test_states_are_coloured_only_if_wanted(judgement: Judgement) -> None:
    plain = render_judgement(judgement, 120, False)
    coloured = render_judgement(judgement, 120, True)
    assert "\x1b" not in plain
    assert re.search(r"\x1b\[31m[^\n]*regression", coloured)
    assert re.search(r"\x1b\[33m[^\n]*incomparable", coloured)
    assert re.search(r"\x1b\[32m[^\n]*improvement", coloured)
    bare = re.sub(r"\x1b\[[\d;]*m", "", coloured)
    assert [line.rstrip() for line in bare.split("\n")] == plain.split("\n")
