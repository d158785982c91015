"""Figures made comparable: one n for all runs, short runs set aside, lower quantiles by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.answers.session.outcome import render_markdown
from pytest_hwqueue.data.errors import RecordError
from pytest_hwqueue.data.records.cell import RunRecord
from pytest_hwqueue.judge.baselines.runs import CellBaseline, add_runs, cell_of_record
from pytest_hwqueue.judge.baselines.sources import Source
from pytest_hwqueue.judge.figures import prepare, set_aside_short, usual_length
from pytest_hwqueue.judge.file import judgement_file, judgement_of
from pytest_hwqueue.judge.judging import Judgement, Judging, compare_sources, planned_samples
from pytest_hwqueue.judge.verdict import GateSettings
from pytest_hwqueue.judge.words import properties_of, render_judgement

MakeRecord = Callable[..., RunRecord]
MakeRuns = Callable[..., CellBaseline]


@pytest.fixture(name="make_runs", scope="session")
def _make_runs(make_record: MakeRecord) -> MakeRuns:
    """Runs of one cell with as many samples as listed; ``scale`` slows them down."""

    def make_runs(lengths: Sequence[int], first: int = 0, scale: float = 1.0) -> CellBaseline:
        cells = [
            cell_of_record(
                make_record("a", first + index, n=n, scale=scale), f"session {first + index}"
            )
            for index, n in enumerate(lengths)
        ]
        joined = cells[0]
        for cell in cells[1:]:
            joined = add_runs(joined, cell)
        return joined

    return make_runs


def source(cell: CellBaseline, label: str = "h200/main") -> Source:
    return Source(label, "baseline", {cell.header.cell.id: cell})


def judged(baseline: CellBaseline, new: CellBaseline) -> Judgement:
    return compare_sources(source(baseline), source(new), ["p99"], GateSettings())


def test_all_runs_are_cut_in_order_to_the_least_and_recomputed(make_runs: MakeRuns) -> None:
    old, new = make_runs([1000, 900, 1000]), make_runs([700, 640], first=50)
    prepared = prepare("p99", old.runs, new.runs)
    assert prepared is not None
    assert {run.n for run in (*prepared.baseline, *prepared.new)} == {640}
    expected = np.quantile(old.runs[0].samples_ns()[:640], 0.99)
    assert prepared.baseline[0].value == pytest.approx(expected)
    assert prepared.baseline[0].value != old.runs[0].p99_ns
    # The time per iteration is the whole run's.
    assert prepared.baseline[0].iteration_ns == old.runs[0].iteration_ns


def test_runs_that_differ_in_n_are_never_incomparable(make_runs: MakeRuns) -> None:
    lengths = [286, 256, 300, 271, 262, 290, 281, 259, 266, 275]
    (verdict,) = judged(make_runs(lengths), make_runs([240, 310], first=50)).verdicts
    assert verdict.verdict.state == "inconclusive"
    assert verdict.verdict.reason == "demoted"
    assert verdict.verdict.quantity.name == "p95"
    (long,) = judged(make_runs([4 * n for n in lengths]), make_runs([960, 1240], 50)).verdicts
    assert long.verdict.state == "pass"


def test_a_demoted_figure_has_its_own_name_everywhere(make_runs: MakeRuns) -> None:
    judgement = judged(make_runs([290] * 10), make_runs([290, 290], first=50))
    (verdict,) = judgement.verdicts
    names = dict(properties_of(verdict))
    cell = verdict.cell_id
    assert names[f"{cell}.p95.verdict"] == "inconclusive"
    assert not [name for name in names if ".p99" in name]
    assert "P95" in render_judgement(judgement, 160, colour=False)
    (written,) = judgement_file(judgement, "new", 0, {})["verdicts"]
    assert (written["quantity"], written["demoted_from"]) == ("p95", "P99")


def test_one_short_run_is_set_aside_and_named(make_runs: MakeRuns) -> None:
    lengths = [1000] * 9 + [290]
    worse = make_runs([1000] * 8, first=50, scale=1.64)
    judgement = judged(make_runs(lengths), worse)
    (verdict,) = judgement.verdicts
    assert verdict.verdict.state == "regression"
    assert verdict.verdict.quantity.name == "p99"
    assert len(verdict.verdict.baseline) == 9
    (short,) = verdict.short
    assert (short.side, short.number, short.n, short.usual) == ("baseline", 10, 290, 1000)
    words = "baseline run 10 (session session 9) has 290 samples of the usual 1000, set aside"
    names = dict(properties_of(verdict))
    assert words in names.values()
    assert not [name for name in names if name.endswith(".by") or names[name] == ""]
    for text in (
        " ".join(render_judgement(judgement, 120, colour=False).split()),
        render_markdown([judgement], []),
    ):
        assert words in text
    written = judgement_file(judgement, "new", 0, {})
    assert written["verdicts"][0]["short"] == [asdict(short)]
    assert judgement_of(json.loads(json.dumps(written)), Path("session.json")) == judgement
    del written["verdicts"][0]["sentence"]
    with pytest.raises(RecordError, match=r"session\.json is damaged: .*sentence"):
        judgement_of(written, Path("session.json"))


def test_a_short_new_run_is_replaced(make_runs: MakeRuns) -> None:
    judging = Judging(source(make_runs([1000] * 10)), ["p99"], GateSettings())
    judging.add(make_runs([1000, 120], first=50))
    assert judging.wanted()
    judging.add(make_runs([1000], first=60))
    (verdict,) = judging.judgement().verdicts
    assert verdict.verdict.state == "pass"
    assert [run.side for run in verdict.short] == ["new"]


def test_runs_that_are_all_short_convict_by_their_time_per_iteration(make_runs: MakeRuns) -> None:
    judging = Judging(source(make_runs([1000] * 10)), ["p99"], GateSettings())
    for number in range(8):
        judging.add(make_runs([21], first=50 + number, scale=150.0))
    (verdict,) = judging.judgement().verdicts
    assert (verdict.verdict.state, verdict.verdict.by) == ("regression", "iteration_time")
    assert not verdict.short
    names = dict(properties_of(verdict))
    assert names[f"{verdict.cell_id}.p99.by"] == "iteration_time"
    assert names[f"{verdict.cell_id}.iteration_time.ratio"] == pytest.approx(150, rel=0.05)


def test_what_a_baseline_plans(make_runs: MakeRuns) -> None:
    baseline = source(make_runs([1000, 980, 1000, 290, 1000]))
    assert list(planned_samples(baseline).values()) == [1000]


@given(st.integers(3, 100), st.integers(2, 40), st.integers(1, 499))
def test_short_runs_are_few_and_never_all_new_ones(runs: int, new_runs: int, n: int) -> None:
    def aside(old: list[int], new: list[int]) -> list[tuple[str, int]]:
        found = set_aside_short([("s", count) for count in old], [("s", count) for count in new])
        return [(run.side, run.number) for run in found]

    assert aside([1000] * runs, [n] * new_runs) == []
    assert aside([1000] * 10, [1000, 400]) == [("new", 2)]
    assert aside([1000] * 9 + [290], [1000] * 2) == [("baseline", 10)]
    assert aside([1000] * 10, [1000, 500]) == aside([1000] * 10, []) == []


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=30), st.integers(0, 30))
def test_setting_aside_looks_at_no_labels(counts: list[int], split: int) -> None:
    named = [(f"run {index}", count) for index, count in enumerate(counts)]
    split = min(split, len(named))
    aside = set_aside_short(named[:split], named[split:])
    for run in aside:
        side = named[:split] if run.side == "baseline" else named[split:]
        assert side[run.number - 1] == (run.session, run.n)
        assert run.n < run.usual
    assert min(counts) <= usual_length(counts) <= max(counts)
    # The same sizes of the sides, other runs in them: the same runs go.
    swapped = [*named[split:], *named[:split]]
    again = set_aside_short(swapped[: len(named) - split], swapped[len(named) - split :])
    assert {run.session for run in again} == {run.session for run in aside}
