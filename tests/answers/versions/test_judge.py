"""An interleaved session over made-up runs: who is measured on, and what the verdicts say."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_hwqueue.answers.versions.judge import InterleavedJudging
from pytest_hwqueue.answers.versions.session import MeasuredRun, interleave
from pytest_hwqueue.answers.versions.sides import Side, detectable_by_pairs, looks, with_median
from pytest_hwqueue.data.errors import BadInput, HwqError, SideFailed
from pytest_hwqueue.data.records.cell import RunRecord
from pytest_hwqueue.judge.file import judgement_file, judgement_text
from pytest_hwqueue.judge.judging import CellVerdict, Judgement
from pytest_hwqueue.judge.verdict import GateSettings
from pytest_hwqueue.judge.words import render_judgement
from tests.answers.versions.repositories import make_side, quick_record
from tests.conftest import make_record

SETTINGS = GateSettings()
MakeRun = Callable[[str, int], list[RunRecord]]


class Session:
    """Runs an interleaved session whose runs are made up; remembers who was asked for what."""

    def __init__(self, run: MakeRun, figures: Sequence[str] = ("p99",), pairs: int = 12,
                 varied: frozenset[str] = frozenset(), tests: int = 1,
                 gate: GateSettings = SETTINGS) -> None:  # fmt: skip
        self.asked: list[tuple[str, Sequence[str] | None]] = []
        self.said: list[str] = []
        self._run = run
        collected = tuple(f"file.py::test_{test}" for test in range(tests))
        self._sides = make_side("A", collected=collected), make_side("B", collected=collected)
        self._judging = InterleavedJudging(
            figures, replace(gate, pairs=pairs), ("label A", "label B"), "one", varied=varied
        )

    def judgement(self) -> Judgement:
        return interleave(self._sides, self._judging, self._measure, self.said.append)

    def _measure(self, side: Side, number: int, nodes: Sequence[str] | None) -> MeasuredRun:
        self.asked.append((side.name, nodes))
        records = self._run(side.name, number)
        kept = [record for record in records if nodes is None or record.nodeid in nodes]
        return MeasuredRun(kept, "" if kept else f"run {number}: pytest was ended by SIGKILL")


def run_of(scale: float = 1.0, sd: float = 0.02, seed: int = 0, **changed: Any) -> MakeRun:
    """Runs of the cells a, b and c; ``scale`` and ``changed`` are of b on side B."""

    def run(name: str, number: int) -> list[RunRecord]:
        noise = np.exp(np.random.default_rng([seed, number]).normal(0, sd, 3))
        mine = [name == "B" and cell == "b" for cell in "abc"]
        return [
            quick_record(cell, 10 * number + index,
                         scale=float(noise[index]) * (scale if mine[index] else 1.0),
                         **(changed if mine[index] else {}))
            for index, cell in enumerate("abc")
        ]  # fmt: skip

    return run


def states(judgement: Judgement) -> dict[str, str]:
    return {each.cell_id.partition("[")[0]: each.verdict.state for each in judgement.verdicts}


def only(judgement: Judgement) -> CellVerdict:
    (found,) = judgement.verdicts
    return found


def test_only_what_looks_worse_gets_all_pairs() -> None:
    session = Session(run_of(scale=1.3, sd=0.003, seed=3))
    judgement = session.judgement()
    assert states(judgement) == {"a": "pass", "b": "regression", "c": "pass"}
    assert "".join(name for name, _ in session.asked) == "ABBA" * 6
    assert [nodes for _, nodes in session.asked[:4]] == [None] * 4
    assert {tuple(nodes or ()) for _, nodes in session.asked[4:]} == {("file.py::test_b",)}
    a, b, _ = (each.verdict for each in judgement.verdicts)
    assert b.main is not None
    assert b.main.ratio == pytest.approx(1.3, rel=0.05)
    assert [len(runs) for runs in (b.baseline, b.new, a.baseline, a.new)] == [12, 12, 2, 2]
    # The rate is divided among the figures of the whole suite, not among those measured on.
    assert judgement.compared == 3
    assert judgement.shift is not None
    assert judgement.shift.cells == 3


def test_an_improvement_gets_all_pairs_and_what_is_alike_the_least() -> None:
    better = Session(run_of(scale=0.7))
    assert states(better.judgement())["b"] == "improvement"
    assert len(better.asked) == 24
    alike = Session(
        lambda _, number: [
            make_record("a", 1, n=400, started=f"2026-01-01T00:00:{number:02}+00:00")
        ]
    )
    assert states(alike.judgement()) == {"a": "pass"}
    assert (len(alike.asked), alike.said[-1]) == (4, "decided after 2 of 12 pairs")
    assert [looks(pairs) for pairs in (3, 12, 18, 36)] == [
        [2, 3], [2, 4, 8, 12], [3, 6, 12, 18], [6, 12, 24, 36],
    ]  # fmt: skip


def test_unchanged_suites_hardly_ever_alarm() -> None:
    # The rate is 1 % a suite: of 40 unchanged ones, 4 alarms have a chance below 1 in 1000.
    alarms = 0
    for seed in range(40):
        judgement = Session(run_of(sd=0.05, seed=seed), pairs=6).judgement()
        alarms += judgement.count("regression") > 0
    assert alarms < 4


def without(run: MakeRun, number: int) -> MakeRun:
    return lambda name, at: [] if at == number else run(name, at)


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (run_of(status="failed", reason="died by SIGSEGV", samples=None),
         "not compared: label B: failed: died by SIGSEGV"),
        (run_of(fingerprint=None), "the record has no fingerprint"),
        (run_of(parts={"parameters": {"mm_dim": 1}}), "parameter.mm_dim is 4096 in one and 1"),
        (run_of(hard={"driver_major": 590}), "driver_major is 580 in one and 590"),
        (without(run_of(scale=1.3, sd=0.003, seed=3), 7),
         "3 of 4 runs measured it (run 7: pytest was ended by SIGKILL)"),
        (lambda name, number: [*run_of()(name, number), quick_record("b", 1)],
         "2 times in one run"),
    ],
)  # fmt: skip
def test_a_cell_that_went_wrong_once_or_differs_is_incomparable_and_no_other(
    run: MakeRun, says: str
) -> None:
    judgement = Session(run).judgement()
    assert states(judgement) == {"a": "pass", "b": "incomparable", "c": "pass"}
    (refused,) = [each.verdict for each in judgement.verdicts if each.cell_id.startswith("b[")]
    assert says in refused.sentence
    assert refused.quantity.label.upper() == "P99"


def test_what_is_varied_is_compared_and_told() -> None:
    setting = "environment.CUDA_DEVICE_MAX_CONNECTIONS"

    def run(name: str, number: int) -> list[RunRecord]:
        scheduler, value = ("native", "8") if name == "A" else ("mps", "32")
        return [
            make_record("a", number, n=400, parts={"scheduler": scheduler}, hard={setting: value})
        ]

    judged = only(Session(run, varied=frozenset({"cell.scheduler", setting})).judgement())
    assert (judged.cell_id, judged.verdict.state) == ("a[cuda-s8-native→mps-eager]", "pass")
    assert {(each.field, each.a, each.b) for each in judged.differences} == {
        ("cell.scheduler", ("native",), ("mps",)), (setting, ("8",), ("32",)),
    }  # fmt: skip


def test_how_tags_were_timed_forbids_to_compare_tags_only() -> None:
    def run(name: str, number: int) -> list[RunRecord]:
        record = make_record("a", number, n=400)
        assert record.samples is not None
        by = "events" if name == "A" else "activity"
        samples = record.samples.model_copy(update={"tags_timed_by": by})
        return [record.model_copy(update={"samples": samples})]

    judgement = Session(run, figures=("p99", "small.p99")).judgement()
    found = {each.figure: each.verdict.state for each in judgement.verdicts}
    assert found == {"p99": "pass", "small.p99": "incomparable"}


@pytest.mark.parametrize(
    ("run", "figures", "error", "says", "runs"),
    [
        (lambda name, number: [make_record(f"only{name}", number)], ("p99",), HwqError,
         r"A has onlyA\[.*; B has onlyB\[", 2),
        (lambda name, number: run_of()(name, number) if name == "A" else [], ("p99",),
         HwqError, r"B: label B measured nothing: .*SIGKILL", 2),
        (run_of(), ("p98",), BadInput, "'p98'; there are p50", 1),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_at_all_ends_the_session_at_once(
    run: MakeRun, figures: tuple[str, ...], error: type[Exception], says: str, runs: int
) -> None:
    session = Session(run, figures)
    with pytest.raises(error, match=says):
        session.judgement()
    assert len(session.asked) == runs


def test_why_nothing_was_measured_is_said_before_how_pytest_ended() -> None:
    # As where two tests of one side measure one cell, which each finds out when it begins.
    shared = "file.py::test_1 measures it, too: two tests cannot share one cell"
    failed = [
        make_record(cell, 1, status="failed", reason=shared, samples=None) for cell in "abcde"
    ]
    judging = InterleavedJudging(("p99",), GateSettings(), ("main", "."), "one")
    sides = (make_side("A", label="main", collected=("file.py::test",)), make_side("B"))
    with pytest.raises(SideFailed) as raised:
        interleave(sides, judging, lambda *_: MeasuredRun(failed, "run 1: tests failed"), print)
    said = str(raised.value)
    assert said.startswith(f"A: main measured nothing: a[cuda-s8-native-eager]: {shared}; b[")
    assert said.endswith("; 2 cells more; run 1: tests failed")
    assert said.count(shared) == 3


def test_cells_of_one_side_only_are_missing_with_what_happened_to_their_tests() -> None:
    good = run_of()
    judging = InterleavedJudging(("p99",), GateSettings(), ("A", "B"), "one")
    common = [f"file.py::test_{cell}" for cell in "abc"]
    a = make_side(
        "A", collected=(*common, "file.py::test_only A", "file.py::test_gone"),
        broken={"new.py": "ModuleNotFoundError: No module named 'new'"},
        notes=("2 commits are not in B",),
    )  # fmt: skip
    b = make_side(
        "B", collected=(*common, "file.py::test_only A", "file.py::test_later", "new.py::test")
    )
    asked: list[list[str]] = []

    def measure(side: Side, number: int, nodes: Sequence[str] | None) -> MeasuredRun:
        asked.append(list(nodes or ()))
        mine = {"A": [("only A", "file.py::test_only A"), ("gone", "file.py::test_gone")],
                "B": [("later", "file.py::test_later"), ("new", "new.py::test")]}  # fmt: skip
        own = [make_record(cell, number, nodeid=node) for cell, node in mine[side.name]]
        return MeasuredRun([*good(side.name, number), *own], "")

    only = [*common, "file.py::test_later", "new.py::test"]
    judgement = interleave((a, b), judging, measure, print, only, lost=True)
    assert [(each.cell_id.partition("[")[0], each.reason) for each in judgement.missing] == [
        ("gone", "B has no such test"), ("later", "A has no such test"),
        ("new", "new.py does not import in A: ModuleNotFoundError: No module named 'new'"),
        ("only A", "measured by A only"),
    ]  # fmt: skip
    assert judgement.notes == a.notes
    # What the new side has lost is measured once, and only where all tests are.
    assert asked[0] == [*common, "file.py::test_gone"]
    assert asked[3] == common
    with pytest.raises(
        HwqError, match=r"label A has none of .*: new\.py does not import in A: Mod"
    ):
        interleave((a, b), judging, measure, print, ["new.py::test"])


def test_a_noisy_tail_is_no_pass_and_the_median_convicts() -> None:
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
    blind = only(Session(lambda _, number: run("A", number), figures=["p99"]).judgement()).verdict
    assert (blind.state, blind.reason) == ("inconclusive", "blind")
    assert "blind below +" in blind.sentence
    assert "P50 of the same runs sees" in blind.advice
    # All pairs were spent before that was said.
    assert len(blind.new) == 12
    assert with_median(["p95"]) == ("p95",)


def slower(count: Callable[[str, int], int]) -> MakeRun:
    """Runs of a cell, 1.2 times slower on B, with so many samples."""
    return lambda name, number: [
        make_record("a", number, n=count(name, number), scale=1.2 if name == "B" else 1.0)
    ]


def test_runs_that_end_by_time_are_compared_at_the_least_n_and_a_short_one_takes_its_pair() -> None:
    by_time = only(
        Session(
            slower(lambda name, number: (400 if name == "A" else 330) + 7 * (number % 5))
        ).judgement()
    ).verdict
    assert by_time.state == "regression"
    assert {each.n for each in (*by_time.baseline, *by_time.new)} == {330}
    judged = only(Session(slower(lambda _, number: 150 if number == 3 else 400)).judgement())
    assert judged.verdict.state == "regression"
    assert [(each.side, each.number) for each in judged.short] == [("new", 2)]
    assert (len(judged.verdict.baseline), len(judged.verdict.new)) == (11, 11)


def drifting(scale: float, cells: int = 1, wild: int = 0) -> MakeRun:
    """Runs that differ by 1 % within a pair, and pairs that differ by 5 %."""

    def run(name: str, number: int) -> list[RunRecord]:
        drift = np.random.default_rng([5, (number - 1) // 2]).normal(0, 0.05)
        factor = float(np.exp(drift + np.random.default_rng([6, number]).normal(0, 0.01)))
        factor *= (scale if name == "B" else 1.0) * (10 if number == wild else 1)
        return [
            quick_record(str(cell), 0, scale=factor,
                         started=f"2026-01-01T00:00:{number:02}+00:00")
            for cell in range(cells)
        ]  # fmt: skip

    return run


@pytest.mark.parametrize("wild", [0, 9, 12])
def test_drift_between_pairs_hides_nothing(wild: int) -> None:
    worse = only(Session(drifting(1.08, wild=wild)).judgement()).verdict
    assert worse.state == "regression"
    assert worse.main is not None
    assert worse.main.sd == pytest.approx(0.01, abs=0.005)
    # Run 9 is A of the fifth pair, run 12 is A of the sixth, in the order ABBA.
    aside = [(run.side, run.number) for run in worse.main.set_aside]
    assert aside == ([("baseline", (wild + 1) // 2)] if wild else [])
    assert only(Session(drifting(1.0, wild=wild)).judgement()).verdict.state == "pass"


def test_more_pairs_are_planned_where_those_asked_for_could_convict_nothing() -> None:
    session = Session(drifting(1.2, cells=12), pairs=7, tests=4)
    assert set(states(session.judgement()).values()) == {"regression"}
    assert len(session.asked) == 26
    planned = [text for text in session.said if "planned" in text]
    assert planned == [
        "up to 11 pairs are planned: 7 cannot show a regression in one cell of 4",
        # That a test measures three of them shows in the first pair.
        "up to 13 pairs are planned: 11 cannot show a regression in one cell of 12",
    ]
    assert session.said.index(planned[0]) == 0
    settings = GateSettings()
    assert detectable_by_pairs(0.03, 13, settings, 100) is None
    assert detectable_by_pairs(0.03, 16, settings, 100) == pytest.approx(0.090, abs=0.002)
    assert detectable_by_pairs(0.03, 36, settings, 100) == pytest.approx(0.062, abs=0.002)


def test_pairs_find_2_percent_where_each_cell_has_its_own_least_effect() -> None:
    auto = GateSettings.of_options(min_effect=None)
    assert states(Session(run_of(1.02, 0.003)).judgement())["b"] == "pass"
    judgement = Session(run_of(1.02, 0.003), gate=auto).judgement()
    assert states(judgement) == {"a": "pass", "b": "regression", "c": "pass"}
    found = {each.cell_id[0]: each.verdict for each in judgement.verdicts}
    assert 0.015 < (found["b"].detectable or 0) < 0.02
    assert found["b"].limit == ""
    noisy = Session(run_of(1.0, 0.01, seed=1), gate=auto).judgement()
    limits = [
        each.verdict.limit for each in noisy.verdicts if (each.verdict.detectable or 0) > 0.02
    ]
    assert limits
    assert all(
        re.fullmatch(r"cannot detect \+2\.0 %: sd [\d.]+ %, P=12", limit) for limit in limits
    )
    # A sd below the floor is none that runs have shown.
    assert "(sd ≤ 0.5 % (floor), K=" in found["a"].line


@settings(max_examples=40)
@given(
    figures=st.integers(1, 500),
    pairs=st.integers(2, 20),
    at=st.integers(0, 39),
    outlier=st.floats(1, 1e6),
)
@example(figures=100, pairs=2, at=0, outlier=1.58)
@example(figures=1, pairs=2, at=3, outlier=1e6)
def test_no_outlier_is_too_much_to_be_told(
    figures: int, pairs: int, at: int, outlier: float
) -> None:
    """Of two pairs one difference is known; t's tail of one degree of freedom has no end."""

    def run(name: str, number: int) -> list[RunRecord]:
        slow = (name == "B", number) == (bool(at % 2), at // 2)
        scale = 1 + 0.001 * (number % 3)
        return [quick_record("a", number, scale=scale * (outlier if slow else 1))]

    gate = GateSettings(pairs=pairs)
    judging = InterleavedJudging(("p99",), gate, ("A", "B"), "one", among=figures)
    sides = make_side("A", collected=("t",)), make_side("B", collected=("t",))

    def measured(side: Side, number: int, nodes: Sequence[str] | None) -> MeasuredRun:
        return MeasuredRun(run(side.name, number), "")

    judgement = interleave(sides, judging, measured, lambda _: None)
    content = judgement_file(judgement, "B", 0, {})
    assert "verdicts" in judgement_text(content)
    assert "a" in render_judgement(judgement, 80, False)
    only(judgement)
