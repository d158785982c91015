"""Judgements over made-up runs: what is compared with what, and what each verdict says."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from pytest_hwqueue.answers.session.outcome import stored_lines
from pytest_hwqueue.data.errors import BadInput
from pytest_hwqueue.data.records.cell import RunRecord
from pytest_hwqueue.judge.baselines.runs import CellBaseline, add_runs, cell_of_record
from pytest_hwqueue.judge.baselines.sources import Source, UnmatchedCell
from pytest_hwqueue.judge.figures import figure, known_names
from pytest_hwqueue.judge.judging import Judgement, Judging, compare_sources
from pytest_hwqueue.judge.stored import describe_stored
from pytest_hwqueue.judge.verdict import GateSettings
from pytest_hwqueue.judge.words import render_judgement
from tests.judge.baselines.run_with import contention, with_samples

MakeRecord = Callable[..., RunRecord]
MakeCell = Callable[..., CellBaseline]
SETTINGS = GateSettings()


@pytest.fixture(name="make_cell", scope="session")
def _make_cell(make_record: MakeRecord) -> MakeCell:
    def make_cell(
        name: str = "hetero_kernels",
        runs: Sequence[int] = range(10),
        session: str = "",
        **more: object,
    ) -> CellBaseline:
        arguments = {"n": 1000, **more}
        cells = [
            cell_of_record(make_record(name, seed, **arguments), session or f"session {seed}")
            for seed in runs
        ]
        joined = cells[0]
        for cell in cells[1:]:
            joined = add_runs(joined, cell)
        return joined

    return make_cell


def source(*cells: CellBaseline, label: str = "nvidia-h200/main") -> Source:
    return Source(label, "baseline", {cell.header.cell.id: cell for cell in cells})


def states(judgement: Judgement) -> dict[str, str]:
    return {f"{each.cell_id.partition('[')[0]} {each.figure}": each.verdict.state
            for each in judgement.verdicts}  # fmt: skip


def judged_to_the_end(judging: Judging, make_run: Callable[[str, int], CellBaseline]) -> Judgement:
    """Give the cells wanted one run each in turn, as a session does."""
    number = 1000
    while wanted := judging.wanted():
        for cell_id in wanted:
            number += 1
            judging.add(make_run(cell_id.partition("[")[0], number))
    return judging.judgement()


def test_unchanged_and_worse_cells_are_told_apart(make_cell: MakeCell) -> None:
    names = ("a", "b", "c")
    judging = Judging(source(*(make_cell(name) for name in names)), ["p99"], SETTINGS)

    def run(name: str, number: int) -> CellBaseline:
        return make_cell(name, [number], "new", scale=1.2 if name == "b" else 1.0)

    for number in (100, 101):
        for name in names:
            judging.add(run(name, number))
    assert [cell.partition("[")[0] for cell in judging.wanted()] == ["b"]
    judgement = judged_to_the_end(judging, run)
    assert states(judgement) == {"a p99": "pass", "b p99": "regression", "c p99": "pass"}
    worse = judgement.verdicts[1].verdict
    assert worse.main is not None
    assert worse.main.ratio == pytest.approx(1.2, rel=0.01)
    assert judgement.compared == 3
    assert not judgement.missing


def test_every_named_figure_is_gated(make_cell: MakeCell) -> None:
    baseline = source(make_cell("a"))
    figures = ["p95", "throughput", "small.p99", "convoy_ratio"]
    judgement = compare_sources(baseline, source(make_cell("a", (50, 51), "new", scale=2.0)),
                                figures, SETTINGS)  # fmt: skip
    by_figure = {each.figure: each.verdict for each in judgement.verdicts}
    assert list(by_figure) == figures
    ratios = {name: each.main.ratio for name, each in by_figure.items() if each.main is not None}
    assert ratios["p95"] == pytest.approx(2, rel=0.01)
    assert ratios["small.p99"] == pytest.approx(2, rel=0.01)
    assert ratios["throughput"] == pytest.approx(0.5, rel=0.01)
    # Both sides of this ratio were slowed down.
    assert by_figure["convoy_ratio"].state == "pass"
    assert judgement.compared == 4


def test_cells_are_matched_by_what_they_are(make_cell: MakeCell) -> None:
    baseline = source(make_cell("a"), make_cell("renamed"), make_cell("failing"))
    measured = source(make_cell("a", (50, 51)), make_cell("new", (50, 51)))
    crashed = UnmatchedCell(make_cell("failing").header.cell.id, "failed: it crashed")
    new = Source("new", "session", measured.cells, (crashed,))
    judgement = compare_sources(baseline, new, ["p99"], SETTINGS)
    assert states(judgement) == {"a p99": "pass", "new p99": "no-baseline"}
    assert [(each.cell_id.partition("[")[0], each.reason) for each in judgement.missing] == [
        ("failing", "failed: it crashed"),
        ("renamed", "not measured"),
    ]


@pytest.mark.parametrize(
    ("changed", "named", "allowed"),
    [
        ({"hard": {"device_name": "NVIDIA H100"}}, "device_name is NVIDIA H200", False),
        ({"hard": {"device_kind": "sim"}}, "device_kind is cuda in one and sim", False),
        ({"hard": {"driver_major": 590}}, "driver_major is 580 in one and 590", True),
        ({"soft": {"torch_version": "2.14"}}, "torch_version is 2.13.0 in one and 2.14", True),
        ({"parts": {"parameters": {"mm_dim": 1}}}, "parameter.mm_dim is 4096 in one and 1", False),
    ],
)
def test_other_conditions_are_not_compared(
    make_cell: MakeCell, changed: dict[str, object], named: str, allowed: bool
) -> None:
    baseline, new = source(make_cell("a")), source(make_cell("a", (50, 51), **changed))
    judgement = compare_sources(baseline, new, ["p99"], SETTINGS)
    (judged,) = judgement.verdicts
    assert (judged.verdict.state, judged.verdict.reason) == ("incomparable", "other-conditions")
    assert named in judged.verdict.sentence
    assert ("--hwq-allow-env" in judged.verdict.sentence) == allowed
    again = compare_sources(baseline, new, ["p99"], SETTINGS, allow_environment=True)
    assert states(again) == {"a p99": "pass" if allowed else "incomparable"}


@pytest.mark.parametrize("stored", [{}, {"launch": 1}])
def test_figures_of_another_definition_are_incomparable_and_no_regression(
    make_cell: MakeCell, stored: dict[str, int]
) -> None:
    """Twice as long by its new meaning, and allowed another environment: no false regression."""
    baseline = source(make_cell("a", definitions=stored))
    new = source(make_cell("a", (50, 51), scale=2.0, definitions={"launch": 2}))
    judgement = compare_sources(baseline, new, ["p99"], SETTINGS, allow_environment=True)
    (judged,) = judgement.verdicts
    assert (judged.verdict.state, judged.verdict.reason) == ("incomparable", "other-conditions")
    was = stored.get("launch", "not known")
    assert f"another definition: definition.launch is {was} in one" in judged.verdict.sentence
    assert "with --hwq-save in place of --hwq-compare" in judged.verdict.sentence


@pytest.mark.parametrize("where", ["baseline", "new"])
def test_fewer_streams_in_flight_than_named_are_not_judged_as_so_many(
    make_record: MakeRecord, where: str
) -> None:
    def cell(runs: Sequence[int], in_flight: float, scale: float) -> CellBaseline:
        cells = [
            cell_of_record(
                with_samples(
                    make_record("a", seed, n=1000, scale=scale), contended=contention(in_flight)
                ),
                f"session {seed}",
            )
            for seed in runs
        ]
        joined = cells[0]
        for each in cells[1:]:
            joined = add_runs(joined, each)
        return joined

    few = {"baseline": (1.3, 8.0), "new": (8.0, 7.1)}[where]
    baseline, new = source(cell(range(10), few[0], 1.0)), source(cell((50, 51), few[1], 1.0))
    judgement = compare_sources(baseline, new, ["p99", "throughput"], SETTINGS)
    latency, throughput = judgement.verdicts
    assert (latency.verdict.state, latency.verdict.reason) == ("inconclusive", "not-contended")
    assert f"in flight {min(few)} of 8 streams in runs of" in latency.verdict.sentence
    # What is no claim about contention is judged as ever, and what got worse stays so.
    assert throughput.verdict.reason != "not-contended"
    many = source(cell(range(50, 60), few[1], 2.0))
    worse = compare_sources(baseline, many, ["p99"], SETTINGS)
    assert states(worse) == {"a p99": "regression"}
    # From 90 % of them on it is a latency on so many.
    (full,) = compare_sources(
        source(cell(range(10), 8.0, 1.0)), source(cell((50, 51), 7.2, 2.0)), ["p99"], SETTINGS
    ).verdicts
    assert full.judged


def test_one_run_each_shows_the_change_that_its_samples_give_and_no_verdict(
    make_cell: MakeCell,
) -> None:
    old, new = make_cell(runs=[1]), make_cell(runs=[2], scale=1.2)
    judgement = compare_sources(source(old), source(new), ["p50", "p99", "throughput"], SETTINGS)
    # What judged nothing is not green.
    assert not judgement.judged
    p50, p99, rate = (each.verdict for each in judgement.verdicts)
    for found in (p50, p99, rate):
        assert (found.state, found.reason, found.main) == ("inconclusive", "runs-missing", None)
        assert "no verdict: 1 new run, which does not show" in found.sentence
        assert "--runs 5" in found.sentence
        assert found.by_samples is not None
    for found in (p50, p99):
        change = found.by_samples
        assert change is not None
        values = [found.new[0].value / found.baseline[0].value, change.value]
        assert values == pytest.approx([1.2, 1.2], rel=0.1)
        assert change.low < 1.2 < change.high < 1.5
    assert rate.by_samples is not None
    assert (rate.by_samples.interval, "samples of their primary" in rate.sentence) == (None, True)
    # Too few samples for a change of P99 may have one of a lower percentile.
    few = source(make_cell(runs=[1], n=340)), source(make_cell(runs=[2], scale=1.2, n=340))
    (short,) = compare_sources(*few, ["p99"], SETTINGS).verdicts
    assert short.verdict.by_samples is None
    assert re.search(r"no change: .*; P(95|90|50) \+\d.* by samples", short.verdict.sentence)
    # Of many baseline runs, the samples of none stand for all.
    (alone,) = compare_sources(source(make_cell()), source(new), ["p99"], SETTINGS).verdicts
    assert (alone.verdict.by_samples, "--runs 5" in alone.verdict.sentence) == (None, True)


def test_runs_are_cut_to_the_shortest_of_the_first_pass(make_cell: MakeCell) -> None:
    baseline = source(make_cell("a"))
    judgement = compare_sources(
        baseline, source(make_cell("a", (50, 51), n=600)), ["p99"], SETTINGS
    )
    (judged,) = judgement.verdicts
    assert {run.n for run in (*judged.verdict.baseline, *judged.verdict.new)} == {600}
    assert judged.verdict.state == "pass"


def test_too_short_for_p99_is_gated_by_what_it_is_enough_for(make_cell: MakeCell) -> None:
    baseline = source(make_cell("a", n=100))
    judgement = compare_sources(
        baseline, source(make_cell("a", (50, 51), n=100)), ["p99"], SETTINGS
    )
    (judged,) = judgement.verdicts
    assert judged.figure == "p99"
    assert judged.verdict.quantity.name == "p95"
    few = compare_sources(
        source(make_cell("a", n=20)), source(make_cell("a", (50, 51), n=20)), ["p99"], SETTINGS
    )
    assert few.verdicts[0].verdict.state == "inconclusive"
    assert few.verdicts[0].verdict.reason == "too-few-samples"


def test_a_figure_that_no_cell_has_is_refused(make_cell: MakeCell) -> None:
    with pytest.raises(BadInput, match=r"'p98'; there are p50, .*small\.p99.*convoy_ratio"):
        Judging(source(make_cell("a")), ["p98"], SETTINGS)
    with pytest.raises(ValueError, match="sentinel 'b' is no cell"):
        Judging(source(make_cell("a")), ["p99"], SETTINGS, sentinel="b")


def test_known_names_are_figures(make_cell: MakeCell) -> None:
    runs = make_cell("a").runs
    for name in known_names(runs):
        found = figure(name, runs, runs)
        assert found is not None, name
        assert found.run(runs[0]).value > 0
    assert figure("large.p99", runs, runs) is None


def test_a_quantile_of_a_pace_is_named_so(make_cell: MakeCell) -> None:
    cell = make_cell("a")
    plain, paced = (figure("p99", cell.runs, cell.runs, pace=pace) for pace in (False, True))
    assert plain is not None
    assert paced is not None
    assert (plain.quantity.label, plain.source) == ("P99", "latency")
    assert (paced.quantity.label, paced.source) == ("P99 of the pace", "pace")
    assert paced.run(cell.runs[0]) == plain.run(cell.runs[0])
    sample = replace(cell.header.sample, latency="pace_ns", primary="pace")
    header = cell.header.model_copy(update={"sample": sample})
    judging = Judging(source(replace(cell, header=header)), ["p99"], SETTINGS)
    judging.add(replace(cell, header=header))
    (verdict,) = judging.judgement().verdicts
    assert verdict.verdict.quantity.label == "P99 of the pace"


def test_a_machine_that_changed_is_said_to_have_changed(make_cell: MakeCell) -> None:
    names = ("a", "b", "sentinel")
    baseline = source(*(make_cell(name) for name in names))
    sentinel = make_cell("sentinel").header.cell.id
    new = source(*(make_cell(name, (50, 51), scale=1.1) for name in names))
    judgement = compare_sources(baseline, new, ["p99"], SETTINGS, sentinel=sentinel)
    assert judgement.count("incomparable") == 3
    assert "the machine has changed" in judgement.verdicts[0].verdict.sentence
    # A side's only run is not set aside, however short it is: the others are cut to its length.
    short = source(*map(make_cell, names[:2]), make_cell("sentinel", (0,), n=40))
    judgement = compare_sources(short, new, ["p99"], SETTINGS, sentinel=sentinel)
    assert [each.verdict.reason for each in judgement.verdicts] == ["suite-shift"] * 3
    assert judgement.verdicts[2].short == ()


@pytest.mark.parametrize(
    ("device", "noise", "state"),
    [
        ("cuda", "", "inconclusive"),
        ("sim:h200", "run=0.05", "regression"),
        ("sim:h200", "session=0.01,run=0.05", "inconclusive"),
    ],
)
def test_sessions_of_a_model_differ_only_if_they_are_made_to(
    make_cell: MakeCell, device: str, noise: str, state: str
) -> None:
    def on_device(cell: CellBaseline) -> CellBaseline:
        own = cell.header.cell.model_copy(update={"device": device})
        hard = {**cell.header.hard, "noise": noise}
        return replace(cell, header=cell.header.model_copy(update={"cell": own, "hard": hard}))

    old = on_device(make_cell(session="one"))
    new = on_device(make_cell(runs=range(50, 65), session="two", scale=1.06))
    judgement = compare_sources(source(old), source(new), ["p99"], SETTINGS)
    (judged,) = judgement.verdicts
    assert judged.verdict.state == state
    (described,) = describe_stored(source(old).cells, ["p99"], SETTINGS)
    assert described.warning == ("" if state == "regression" else ONE_SESSION)
    assert (described.detectable or 0) < 0.06 or state == "inconclusive"


ONE_SESSION = "all 10 runs come from one session: use interleaved confirmation"


def test_a_summary_of_passes_says_how_many_cannot_detect_2_percent(make_cell: MakeCell) -> None:
    old, new = make_cell(), make_cell(runs=range(50, 65))
    auto = GateSettings.of_options(min_effect=None)
    judgement = compare_sources(source(old), source(new), ["p99"], auto)
    limit = judgement.verdicts[0].verdict.limit
    assert limit.startswith("cannot detect +2.0 %: ")
    assert "1 cannot detect +2.0 % (why: -v)" in render_judgement(judgement, 200, False, brief=True)
    assert limit in render_judgement(judgement, 200, False)
    stored = describe_stored(source(old).cells, ["p99"], auto)
    assert stored[0].limit in "\n".join(stored_lines("main", stored))
    assert stored[0].limit.startswith("cannot detect +2.0 %: ")
