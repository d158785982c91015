"""An interleaved session over made-up runs: who is measured on, and what the verdicts say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from pytest_hwqueue.gate.verdict import GateSettings
from pytest_hwqueue.interleaved.judge import InterleavedJudging
from pytest_hwqueue.interleaved.session import Measured, NothingMeasured, interleave
from pytest_hwqueue.interleaved.sides import Side, detectable_by_pairs, looks, with_median
from pytest_hwqueue.interleaved.variants import SideVariant
from pytest_hwqueue.records.cell import RunRecord
from pytest_hwqueue.verdicts.judging import Judgement, UnknownFigure

MakeRecord = Callable[..., RunRecord]
MakeRun = Callable[[str, int], list[RunRecord]]


def side(name: str, tests: int = 1) -> Side:
    return Side(
        name=name, label=f"label {name}", folder=Path(), commit=None, changed=False,
        variant=SideVariant(), environment={}, command=(), root=Path(), tests=(),
        collected=tuple(f"file.py::test_{test}" for test in range(tests)),
    )  # fmt: skip


class Session:
    """Runs an interleaved session whose runs are made up; remembers who was asked for what."""

    def __init__(self, run: MakeRun, figures: Sequence[str] = ("p99",), pairs: int = 12,
                 varied: frozenset[str] = frozenset(), tests: int = 1) -> None:  # fmt: skip
        self.asked: list[tuple[str, Sequence[str] | None]] = []
        self.said: list[str] = []
        self._run = run
        self._tests = tests
        self._judging = InterleavedJudging(
            figures, GateSettings(pairs=pairs), ("label A", "label B"), "one", varied=varied
        )

    def judgement(self) -> Judgement:
        return interleave(
            (side("A", self._tests), side("B", self._tests)),
            self._judging,
            self._measure,
            self.said.append,
        )

    def _measure(self, side: Side, number: int, nodes: Sequence[str] | None) -> Measured:
        self.asked.append((side.name, nodes))
        records = self._run(side.name, number)
        kept = [record for record in records if nodes is None or record.nodeid in nodes]
        return Measured(kept, "" if kept else f"run {number}: pytest was ended by SIGKILL", 0)


@pytest.fixture(name="run_of", scope="session")
def _run_of(make_record: MakeRecord) -> Callable[..., MakeRun]:
    """Runs of the cells a, b and c; ``scale`` and ``changed`` are of b on side B."""

    def run_of(scale: float = 1.0, sd: float = 0.02, seed: int = 0, **changed: object) -> MakeRun:
        def run(name: str, number: int) -> list[RunRecord]:
            noise = np.random.default_rng([seed, number]).normal(0, sd, 3)
            records = []
            for index, cell in enumerate("abc"):
                mine = cell == "b" and name == "B"
                factor = float(np.exp(noise[index])) * (scale if mine else 1.0)
                records.append(
                    make_record(cell, 10 * number + index, n=400, scale=factor,
                                nodeid=f"file.py::test_{cell}", **(changed if mine else {}))
                )  # fmt: skip
            return records

        return run

    return run_of


def states(judgement: Judgement) -> dict[str, str]:
    return {each.cell_id.partition("[")[0]: each.verdict.state for each in judgement.verdicts}


def test_only_what_looks_worse_gets_all_pairs(run_of: Callable[..., MakeRun]) -> None:
    session = Session(run_of(scale=1.3, sd=0.003, seed=3))
    judgement = session.judgement()
    assert states(judgement) == {"a": "pass", "b": "regression", "c": "pass"}
    assert "".join(name for name, _ in session.asked) == "ABBA" * 6
    assert [nodes for _, nodes in session.asked[:4]] == [None] * 4
    assert {tuple(nodes or ()) for _, nodes in session.asked[4:]} == {("file.py::test_b",)}
    by_cell = {each.cell_id[0]: each.verdict for each in judgement.verdicts}
    assert by_cell["b"].ratio == pytest.approx(1.3, rel=0.05)
    assert (len(by_cell["b"].baseline), len(by_cell["b"].new)) == (12, 12)
    assert (len(by_cell["a"].baseline), len(by_cell["a"].new)) == (2, 2)
    # The rate is divided among the figures of the whole suite, not among those measured on.
    assert judgement.compared == 3
    assert judgement.shift is not None
    assert judgement.shift.cells == 3


def test_what_does_not_look_different_is_not_measured_on(make_record: MakeRecord) -> None:
    def run(name: str, number: int) -> list[RunRecord]:
        started = f"2026-01-01T00:00:{number:02}+00:00"
        return [make_record(cell, 1, n=400, started=started) for cell in "ab"]

    session = Session(run)
    assert states(session.judgement()) == {"a": "pass", "b": "pass"}
    assert len(session.asked) == 4
    assert session.said[-1] == "decided after 2 of 12 pairs"


def test_an_improvement_gets_all_pairs_and_is_told(run_of: Callable[..., MakeRun]) -> None:
    session = Session(run_of(scale=0.7))
    judgement = session.judgement()
    assert states(judgement)["b"] == "improvement"
    assert len(session.asked) == 24


def test_unchanged_suites_hardly_ever_alarm(run_of: Callable[..., MakeRun]) -> None:
    # The rate is 1 % a suite: of 40 unchanged ones, 4 alarms have a chance below 1 in 1000.
    alarms = 0
    for seed in range(40):
        judgement = Session(run_of(sd=0.05, seed=seed), pairs=6).judgement()
        alarms += judgement.count("regression") > 0
    assert alarms < 4


def test_a_cell_that_fails_on_one_side_is_incomparable(
    run_of: Callable[..., MakeRun], make_record: MakeRecord
) -> None:
    good = run_of()

    def run(name: str, number: int) -> list[RunRecord]:
        records = good(name, number)
        if name == "B":
            records[1] = make_record("b", number, nodeid="file.py::test_b", status="failed",
                                     reason="died by SIGSEGV", samples=None)  # fmt: skip
        return records

    judgement = Session(run).judgement()
    (failed,) = [each for each in judgement.verdicts if each.verdict.state == "incomparable"]
    assert failed.cell_id.startswith("b[")
    assert failed.verdict.sentence == "not compared: label B: failed: died by SIGSEGV"
    assert failed.verdict.quantity.label == "P99"


def test_a_cell_lost_in_a_later_run_is_incomparable(run_of: Callable[..., MakeRun]) -> None:
    good = run_of(scale=1.3, sd=0.003, seed=3)
    session = Session(lambda name, number: [] if number == 7 else good(name, number))
    judgement = session.judgement()
    (failed,) = [each for each in judgement.verdicts if each.verdict.state == "incomparable"]
    assert "3 of 4 runs measured it (run 7: pytest was ended by SIGKILL)" in (
        failed.verdict.sentence
    )


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"parts": {"parameters": {"mm_dim": 1}}}, "parameter.mm_dim is 4096 in one and 1"),
        ({"hard": {"driver_major": 590}}, "driver_major is 580 in one and 590"),
    ],
)
def test_what_differs_without_being_varied_is_incomparable(
    run_of: Callable[..., MakeRun], changed: dict[str, object], says: str
) -> None:
    judgement = Session(run_of(**changed)).judgement()
    (refused,) = [each for each in judgement.verdicts if each.verdict.state == "incomparable"]
    assert refused.cell_id.startswith("b[")
    assert refused.verdict.reason == "other-conditions"
    assert says in refused.verdict.sentence
    assert judgement.compared == 2


def test_what_is_varied_is_compared_and_told(make_record: MakeRecord) -> None:
    def run(name: str, number: int) -> list[RunRecord]:
        scheduler = "native" if name == "A" else "mps"
        setting = "8" if name == "A" else "32"
        return [
            make_record("a", number, n=400, parts={"scheduler": scheduler},
                        hard={"environment.CUDA_DEVICE_MAX_CONNECTIONS": setting})
        ]  # fmt: skip

    varied = frozenset({"cell.scheduler", "environment.CUDA_DEVICE_MAX_CONNECTIONS"})
    (judged,) = Session(run, varied=varied).judgement().verdicts
    assert judged.cell_id == "a[cuda-s8-native→mps-eager]"
    assert judged.verdict.state == "pass"
    assert {(each.field, each.a, each.b) for each in judged.differences} == {
        ("cell.scheduler", ("native",), ("mps",)),
        ("environment.CUDA_DEVICE_MAX_CONNECTIONS", ("8",), ("32",)),
    }


def test_how_tags_were_timed_forbids_to_compare_tags_only(
    run_of: Callable[..., MakeRun], make_record: MakeRecord
) -> None:
    def run(name: str, number: int) -> list[RunRecord]:
        record = make_record("a", number, n=400)
        assert record.samples is not None
        by = "events" if name == "A" else "activity"
        samples = record.samples.model_copy(update={"tags_timed_by": by})
        return [record.model_copy(update={"samples": samples})]

    judgement = Session(run, figures=("p99", "small.p99")).judgement()
    found = {each.figure: each.verdict.state for each in judgement.verdicts}
    assert found == {"p99": "pass", "small.p99": "incomparable"}


def test_cells_of_one_side_only_are_missing(
    run_of: Callable[..., MakeRun], make_record: MakeRecord
) -> None:
    good = run_of()

    def run(name: str, number: int) -> list[RunRecord]:
        return [*good(name, number), make_record(f"only {name}", number)]

    judgement = Session(run).judgement()
    assert [(each.cell_id.partition("[")[0], each.reason) for each in judgement.missing] == [
        ("only A", "measured by A only"), ("only B", "measured by B only"),
    ]  # fmt: skip


def test_nothing_in_common_ends_after_the_first_pair(make_record: MakeRecord) -> None:
    session = Session(lambda name, number: [make_record(f"only{name}", number)])
    with pytest.raises(NothingMeasured, match=r"A has onlyA\[.*; B has onlyB\["):
        session.judgement()
    assert len(session.asked) == 2


def test_a_side_that_measures_nothing_ends_the_session(run_of: Callable[..., MakeRun]) -> None:
    good = run_of()
    session = Session(lambda name, number: good(name, number) if name == "A" else [])
    with pytest.raises(NothingMeasured, match=r"B \(label B\) measured nothing: .*SIGKILL"):
        session.judgement()


def test_a_figure_that_no_cell_has_ends_the_session(run_of: Callable[..., MakeRun]) -> None:
    session = Session(run_of(), figures=("p98",))
    with pytest.raises(UnknownFigure, match="'p98'; there are p50"):
        session.judgement()
    assert len(session.asked) == 1


def test_the_first_pass_grows_with_the_pairs() -> None:
    assert [looks(pairs) for pairs in (3, 12, 18, 36)] == [
        [2, 3], [2, 4, 8, 12], [3, 6, 12, 18], [6, 12, 24, 36],
    ]  # fmt: skip
    settings = GateSettings()
    assert detectable_by_pairs(0.03, 13, settings, 100) is None
    assert detectable_by_pairs(0.03, 16, settings, 100) == pytest.approx(0.090, abs=0.002)
    assert detectable_by_pairs(0.03, 36, settings, 100) == pytest.approx(0.062, abs=0.002)


def test_a_noisy_tail_is_no_pass_and_the_median_convicts(make_record: MakeRecord) -> None:
    def run(name: str, number: int) -> list[RunRecord]:
        generator = np.random.default_rng(number)
        record = make_record("a", number, n=400, scale=1.2 if name == "B" else 1.0)
        assert record.samples is not None
        # Every run has a tail of its own: pauses of the host.
        pauses = generator.random(400) < 0.02
        stretched = np.where(pauses, generator.lognormal(2, 0.8), 1.0)
        latency_ns = np.rint(np.asarray(record.samples.host_ns) * stretched).astype(int).tolist()
        samples = record.samples.model_copy(update={"host_ns": latency_ns})
        return [record.model_copy(update={"samples": samples})]

    changed = Session(run, figures=with_median(["p99"])).judgement()
    found = {each.figure: each.verdict for each in changed.verdicts}
    assert found["p50"].state == "regression"
    assert found["p99"].state != "pass"
    assert len(found["p99"].new) == 12
    same = Session(lambda _, number: run("A", number), figures=["p99"]).judgement()
    (blind,) = same.verdicts
    assert (blind.verdict.state, blind.verdict.reason) == ("inconclusive", "blind")
    assert "blind below +" in blind.verdict.sentence
    assert "P50 of the same runs sees" in blind.verdict.advice
    # All pairs were spent before that was said.
    assert len(blind.verdict.new) == 12
    assert with_median(["p95"]) == ("p95",)


def test_runs_that_end_by_time_are_compared_at_the_least_n(make_record: MakeRecord) -> None:
    def run(name: str, number: int) -> list[RunRecord]:
        n = 400 + 13 * (number % 5) if name == "A" else 330 + 7 * (number % 5)
        return [make_record("a", number, n=n, scale=1.2 if name == "B" else 1.0)]

    (judged,) = Session(run).judgement().verdicts
    assert judged.verdict.state == "regression"
    counts = {each.n for each in (*judged.verdict.baseline, *judged.verdict.new)}
    assert counts == {min(330 + 7 * (number % 5) for number in range(24))}


def drifting(
    make_record: MakeRecord, scale: float, cells: int = 1, wild: int = 0
) -> Callable[[str, int], list[RunRecord]]:
    """Runs that differ by 1 % within a pair, and pairs that differ by 5 %."""

    def run(name: str, number: int) -> list[RunRecord]:
        pair = (number - 1) // 2
        drift = np.random.default_rng([5, pair]).normal(0, 0.05)
        factor = float(np.exp(drift + np.random.default_rng([6, number]).normal(0, 0.01)))
        factor *= (scale if name == "B" else 1.0) * (10 if number == wild else 1)
        return [
            make_record(f"cell{cell}", 0, n=400, scale=factor, nodeid=f"file.py::test_{cell}",
                        started=f"2026-01-01T00:00:{number:02}+00:00")
            for cell in range(cells)
        ]  # fmt: skip

    return run


@pytest.mark.parametrize("wild", [0, 9, 12])
def test_drift_between_pairs_hides_nothing(make_record: MakeRecord, wild: int) -> None:
    (judged,) = Session(drifting(make_record, 1.08, wild=wild)).judgement().verdicts
    assert judged.verdict.state == "regression"
    assert judged.verdict.sd == pytest.approx(0.01, abs=0.005)
    aside = [(run.side, run.number) for run in judged.verdict.set_aside]
    # Run 9 is A of the fifth pair, run 12 is A of the sixth, in the order ABBA.
    assert aside == ([("baseline", (wild + 1) // 2)] if wild else [])
    (same,) = Session(drifting(make_record, 1.0, wild=wild)).judgement().verdicts
    assert same.verdict.state == "pass"


def test_more_pairs_are_planned_where_those_asked_for_could_convict_nothing(
    make_record: MakeRecord,
) -> None:
    session = Session(drifting(make_record, 1.2, cells=12), pairs=7, tests=4)
    judgement = session.judgement()
    assert {each.verdict.state for each in judgement.verdicts} == {"regression"}
    assert len(session.asked) == 26
    planned = [text for text in session.said if "planned" in text]
    assert planned == [
        "up to 11 pairs are planned: 7 cannot convict one cell of 4",
        # That a test measures three of them shows in the first pair.
        "up to 13 pairs are planned: 11 cannot convict one cell of 12",
    ]
    assert session.said.index(planned[0]) == 0


def test_a_short_run_takes_its_pair_along(make_record: MakeRecord) -> None:
    def run(name: str, number: int) -> list[RunRecord]:
        n = 150 if number == 3 else 400
        return [make_record("a", number, n=n, scale=1.2 if name == "B" else 1.0)]

    (judged,) = Session(run).judgement().verdicts
    assert judged.verdict.state == "regression"
    assert [(each.side, each.number) for each in judged.short] == [("new", 2)]
    assert (len(judged.verdict.baseline), len(judged.verdict.new)) == (11, 11)
