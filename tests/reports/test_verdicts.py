"""Verdicts: the text of a failing test has the numbers behind it, the table fits and hides none."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import pytest
from rich.cells import cell_len

from pytest_hwqueue.baselines.runs import FieldDifference
from pytest_hwqueue.baselines.sources import Unmatched
from pytest_hwqueue.gate.runs import ProcessRun
from pytest_hwqueue.gate.settings import P95, P99, THROUGHPUT
from pytest_hwqueue.gate.suite_gate import SuiteShift
from pytest_hwqueue.gate.verdict import State, Verdict
from pytest_hwqueue.reports.verdict_words import SEVERITY, figure_value, mean_value
from pytest_hwqueue.reports.verdicts import changes_of, explain, render_judgement
from pytest_hwqueue.verdicts.judging import CellVerdict, Judgement

MakeVerdict = Callable[..., Verdict]
MakeJudgement = Callable[..., Judgement]

COMMAND = "pytest benchmarks -k tiny_kernel_stress"
CELL = "tiny_kernel_stress[cuda-s8-native-graph]"


def joined(text: str) -> str:
    return " ".join(text.split())


def line_with(text: str, part: str) -> str:
    return next(line for line in text.split("\n") if part in line)


def explained(
    verdict: Verdict, figure: str = "p99", differences: tuple[FieldDifference, ...] = ()
) -> str:
    judged = CellVerdict(CELL, figure, verdict, differences)
    return explain(judged, "nvidia-h200/main", COMMAND)


def test_a_regression_is_explained_in_its_first_line(make_verdict: MakeVerdict) -> None:
    verdict = make_verdict(0.2, seed=2)
    assert verdict.state == "regression"
    first = explained(verdict).split("\n")[0]
    assert first.startswith(f"{CELL}: P99 is a regression against nvidia-h200/main: 1.20× [1.17, 1")
    assert "(+20.0 %)" in first
    assert f"p = {verdict.p:.2g}" in first


def test_both_sides_have_mean_runs_samples_and_spread(make_verdict: MakeVerdict) -> None:
    verdict = make_verdict(0.2, seed=2)
    text = explained(verdict)
    old = line_with(text, "baseline  5.")
    assert re.search(r"5\.\d\d ms  10 runs from 5 sessions, 1000 samples each, sd 2\.\d %", old)
    new = line_with(text, "new  ")
    assert re.search(r"6\.\d\d ms  8 runs from 1 session, 1000 samples each, sd \d\.\d %", new)
    mean = mean_value(verdict.baseline)
    assert mean == pytest.approx(math.prod(r.value / 1e6 for r in verdict.baseline) ** 0.1 * 1e6)


def test_every_look_has_a_line(make_verdict: MakeVerdict) -> None:
    verdict = make_verdict(0.2, seed=2)
    text = explained(verdict)
    for look in verdict.history:
        exact = "—" if look.p_exact is None else f"{look.p_exact:.2g}"
        shown = [str(look.new_runs), f"{look.ratio:.3f}", f"{look.p_t:.2g}", exact, look.decision]
        assert shown in [line.split() for line in text.split("\n")]
    assert [look.decision for look in verdict.history][-1] == "convicted"


def test_what_could_be_detected_and_how_to_repeat_stand_last(make_verdict: MakeVerdict) -> None:
    verdict = make_verdict(0.2, seed=2)
    differences = (
        FieldDifference("torch_version", "soft", ("2.10",), ("2.11",)),
        FieldDifference("host_name", "soft", (None,), ("a", "b")),
    )
    lines = explained(verdict, differences=differences).split("\n")
    assert lines[-3:] == [
        verdict.line,
        "also different: torch_version 2.10 / 2.11, host_name not known / a or b",
        f"reproduce: {COMMAND}",
    ]
    assert "this cell can detect >=" in verdict.line
    assert "also different" not in explained(verdict)


def test_more_failures_are_explained_as_such(make_verdict: MakeVerdict) -> None:
    verdict = make_verdict(0.2, seed=2)
    failing = replace(
        verdict,
        reason="more-failures",
        sentence="more requests fail (30 of 8030, baseline 0 of 10000)",
        new=tuple(replace(run, failed=3) for run in verdict.new),
    )
    text = explained(failing)
    assert text.split("\n")[1] == failing.sentence
    assert "24 failed requests" in line_with(text, "new  ")
    assert "failed" not in line_with(text, "baseline  5.")


def test_a_cell_that_was_not_compared_gives_its_reason_once(judgement: Judgement) -> None:
    judged = next(each for each in judgement.verdicts if each.verdict.state == "incomparable")
    text = explain(judged, judgement.baseline, COMMAND)
    assert text.split("\n")[0] == (
        f"{judged.cell_id}: P99 cannot be compared with nvidia-h200/main: {judged.verdict.sentence}"
    )
    assert text.count("driver_major") == 1


def test_runs_without_a_figure_have_a_dash(make_verdict: MakeVerdict) -> None:
    verdict = make_verdict(0.2, seed=2)
    broken = replace(
        verdict, state="incomparable", reason="not-a-number", sentence="P99 of new run 1 is nan",
        ratio=None, interval=None, new=(ProcessRun(math.nan, 1000, "new"),), history=(),
    )  # fmt: skip
    assert re.search(r"new +— +1 run from 1 session, 1000 samples each$", explained(broken), re.M)


def test_a_lower_percentile_says_what_it_replaces(make_verdict: MakeVerdict) -> None:
    small = replace(P95, name="small.p95", label="P95 of small", demoted_from="P99")
    text = explained(make_verdict(0.3, quantity=small, n=100), "small.p99")
    assert "100 samples are too few for P99" in text
    ratio = replace(P99, name="convoy_ratio.p99", label="convoy_ratio at P99", unit="")
    text = explained(make_verdict(0.3, quantity=ratio, level=8.4), "convoy_ratio")
    assert "in place of" not in text
    assert re.search(r"baseline +8\.\d\d×", text)


@pytest.mark.parametrize(
    ("quantity", "value", "shown"),
    [
        (P99, 5_610_000.0, "5.61 ms"),
        (P99, 41_300.0, "41.3 µs"),
        (replace(P99, name="small.p99", label="P99 of small"), 5_610_000.0, "5.61 ms"),
        (replace(P99, name="at.p99", label="P99 of at"), 5_610_000.0, "5.61 ms"),
        (
            replace(P99, name="convoy_ratio.p99", label="convoy_ratio at P99", unit=""),
            8.41,
            "8.41×",
        ),
        (THROUGHPUT, 4_168_000.0, "4.17 M per s"),
    ],
)
def test_a_figure_has_the_unit_of_its_kind(quantity: object, value: float, shown: str) -> None:
    assert isinstance(quantity, type(P99))
    assert str(figure_value(quantity, value, value)) == shown


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 160, 250])
def test_no_line_is_longer_than_the_terminal(judgement: Judgement, width: int) -> None:
    text = render_judgement(judgement, width, False)
    assert max(map(cell_len, text.split("\n"))) <= width
    assert "…" not in text


@pytest.mark.parametrize("width", [40, 60, 80, 120, 160])
def test_every_verdict_is_there_at_every_width(judgement: Judgement, width: int) -> None:
    text = joined(render_judgement(judgement, width, False))
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
    assert "can detect" in text
    assert "≤ -" in text, "throughput gets worse downwards"


def test_the_heading_counts_and_the_rest_is_named(judgement: Judgement) -> None:
    text = render_judgement(judgement, 120, False)
    assert text.split("\n")[0] == (
        "Against nvidia-h200/main: 2 regressions, 2 incomparable, 1 inconclusive, 1 improvement, "
        "1 no-baseline, 4 pass, 3 missing"
    )
    assert "missing (not measured): resnet[cuda-s1-native-graph], resnet[cuda-s2-native-g" in text
    assert "missing (failed: out of memory): resnet[cuda-s4-native-graph]" in text
    assert "tests/test_mine.py::test_attention[bf16|1024-cuda-s1-native-eager]" in text
    assert "suite as a whole: +0.4 % (median of 11 figures at the first pass" in text
    assert "rate 1 % over 12 figures, min effect 5 %, tau auto" in text


def test_what_needs_a_reader_comes_first(judgement: Judgement) -> None:
    text = render_judgement(judgement, 160, False)
    order = re.findall(r"(regression|incomparable|inconclusive|improvement|pass)  +\d+ \+", text)
    assert order == sorted(order, key=SEVERITY.index)
    assert len(order) == 10
    assert set(SEVERITY) == set(get_args(State))


def test_a_reason_that_cells_share_is_said_once(judgement: Judgement) -> None:
    text = render_judgement(judgement, 160, False)
    assert text.count("driver_major is 570") == 1
    mark = line_with(text, "driver_major is 570")[0]
    assert f"] {mark}" in line_with(text, "gemm[")
    assert f"] {mark}" in line_with(text, "softmax[")


def test_a_noisy_cell_says_how_many_runs_it_needs(
    make_verdict: MakeVerdict, make_judgement: MakeJudgement
) -> None:
    verdict = make_verdict(sd=0.08, seed=3)
    assert verdict.advice.startswith("needs K = T = ")
    text = render_judgement(make_judgement([CellVerdict(CELL, "p99", verdict)]), 80, False)
    assert f"¹ {verdict.advice}" in text


def test_three_baseline_runs_are_marked(
    make_verdict: MakeVerdict, make_judgement: MakeJudgement
) -> None:
    verdict = make_verdict(baseline_runs=3, sd=0.001)
    text = render_judgement(make_judgement([CellVerdict(CELL, "p99", verdict)]), 80, False)
    assert "assumes normal run noise" in text


def test_many_passes_are_one_line_that_says_what_they_could_have_missed(
    make_verdict: MakeVerdict, make_judgement: MakeJudgement, make_cell_id: Callable[[int], str]
) -> None:
    verdict, worse = make_verdict(sd=0.01, seed=1), make_verdict(0.2, seed=2)
    assert (verdict.state, worse.state) == ("pass", "regression")
    reach = [0.06, 0.224, None, *[0.07] * 18]
    passes = [
        CellVerdict(make_cell_id(i), "p99", replace(verdict, detectable=each))
        for i, each in enumerate(reach, start=1)
    ]
    text = joined(
        render_judgement(make_judgement([*passes, CellVerdict(CELL, "p99", worse)]), 80, False)
    )
    assert (
        "21 figures passed; the least worsening that each can detect is +22.4 % or less; 1 cannot "
        "detect +20 %; 1 can detect none, having too small a baseline"
    ) in text
    assert "cuda-s21-" not in text
    assert "P99 +20.0 %" in text
    listed = render_judgement(make_judgement(passes[:20]), 120, False)
    assert "figures passed" not in listed
    assert all(make_cell_id(i) in listed for i in range(1, 21))


def test_in_brief_passes_and_what_was_not_measured_are_summed_up(
    judgement: Judgement, make_cell_id: Callable[[int], str]
) -> None:
    several = tuple(Unmatched(f"moe[cuda-s{n}-native-graph]", "not measured") for n in range(1, 8))
    text = render_judgement(replace(judgement, missing=several), 120, False, brief=True)
    assert "4 figures passed; the least worsening" in text
    assert make_cell_id(1) not in text, "a plain pass"
    for judged in judgement.verdicts:
        if judged.verdict.state not in ("pass", "no-baseline"):
            assert judged.cell_id in text
            assert judged.verdict.sentence in joined(text)
    assert "moe[cuda-s3-native-graph] and 4 more (-v)" in joined(text)
    assert "moe[cuda-s4-native-graph]" not in text
    assert "also different (values: -v): torch_version" in text
    assert "2.10" not in text


def test_in_brief_passes_alone_say_under_what_other_conditions(judgement: Judgement) -> None:
    torch = FieldDifference("torch_version", "soft", ("2.10",), ("2.11",))
    passed = [
        replace(judged, differences=(torch,))
        for judged in judgement.verdicts
        if judged.verdict.state == "pass"
    ]
    text = render_judgement(replace(judgement, verdicts=tuple(passed)), 80, False, brief=True)
    assert "also different (values: -v): torch_version" in text


def test_the_first_figure_of_each_cell_is_its_change(judgement: Judgement) -> None:
    changes = changes_of([judgement])
    assert set(changes) == {judged.cell_id for judged in judgement.verdicts}
    first = judgement.verdicts[0]
    label, _, change = changes[first.cell_id]
    assert label == first.verdict.quantity.label
    assert first.verdict.ratio is not None
    assert change.number == f"{100 * (first.verdict.ratio - 1):+.1f}"


def test_a_machine_that_changed_is_said(make_judgement: MakeJudgement) -> None:
    text = render_judgement(make_judgement([], shift=SuiteShift(1.05, 12, 1.04, True)), 160, False)
    assert text.startswith("Against nvidia-h200/main: nothing was compared")
    assert "suite as a whole: +5.0 %" in text
    assert "sentinel +4.0 %: the machine itself has changed" in text
    unshifted = render_judgement(make_judgement([], shift=None), 120, False)
    assert "suite as a whole" not in unshifted


def test_states_are_coloured_only_if_wanted(judgement: Judgement) -> None:
    plain = render_judgement(judgement, 120, False)
    coloured = render_judgement(judgement, 120, True)
    assert "\x1b" not in plain
    assert re.search(r"\x1b\[31m[^\n]*regression", coloured)
    assert re.search(r"\x1b\[33m[^\n]*incomparable", coloured)
    assert re.search(r"\x1b\[32m[^\n]*improvement", coloured)
    bare = re.sub(r"\x1b\[[\d;]*m", "", coloured)
    assert [line.rstrip() for line in bare.split("\n")] == plain.split("\n")
