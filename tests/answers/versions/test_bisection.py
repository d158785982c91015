"""A bisection over real commits: which one it names, what it skips, and how it goes on."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.answers.versions.bisection import (
    SCHEMA,
    BisectState,
    Finding,
    Outcome,
    TrackedFigure,
    bisect,
    bracket,
    next_place,
    read_state,
    write_state,
)
from pytest_hwqueue.answers.versions.session import CommitComparison, MeasuredRun
from pytest_hwqueue.answers.versions.sides import Side, SideRequest
from pytest_hwqueue.answers.versions.variants import SideVariant
from pytest_hwqueue.data.errors import HwqError, RecordError, SideFailed
from pytest_hwqueue.data.records.cell import RunRecord
from pytest_hwqueue.judge.verdict import GateSettings
from pytest_hwqueue.parts.processes.git import commit_of, commits_between, is_ancestor
from tests.answers.versions.repositories import make_side, quick_record

COMMITS = 64


@pytest.fixture(scope="module", name="repository")
def _repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of 65 commits; the file ``number`` says which one is checked out."""
    folder, stream = tmp_path_factory.mktemp("repository"), ["feature done\n"]
    for number in range(COMMITS + 1):
        message, content = f"commit {number}", str(number)
        stream.append(
            f"commit refs/heads/main\ncommitter n <e@example.org> {1700000000 + number} +0000\n"
            f"data {len(message)}\n{message}\n"
            f"M 644 inline number\ndata {len(content)}\n{content}\n"
        )
    subprocess.run(["git", "init", "-q", "-b", "main", folder], check=True)
    subprocess.run(
        ["git", "fast-import", "--quiet"], cwd=folder, input="".join([*stream, "done\n"]),
        text=True, check=True,
    )  # fmt: skip
    return folder


def new_state(repository: Path) -> BisectState:
    good = commit_of(repository, f"main~{COMMITS}")
    between = commits_between(repository, good or "", "main", first_parent=True)
    assert good is not None
    assert between is not None
    return BisectState(schema=SCHEMA, name="b", good=good, commits=between, rate=0.01)


class Toy:
    """Compares commits whose runs are made up: from ``slow`` on, 10 % slower.

    Worktrees, judging and search are the real ones' but for the processes that measure.
    """

    def __init__(
        self, repository: Path, folder: Path, slow: int, *, seed: int = 0,
        broken: Sequence[int] = (), failing: Sequence[int] = (), pairs: int = 12,
        keep_pairs: bool = False,
    ) -> None:  # fmt: skip
        self.start = new_state(repository)
        self.file = folder / "bisect.json"
        self.runs = 0
        self.said: list[str] = []
        # A minute passes between two looks at it.
        self._clock = count(0, 60)
        self._numbers = {self.start.good: 0} | {
            each.commit: place for place, each in enumerate(self.start.commits, start=1)
        }
        self._slow, self._broken, self._failing, self._pairs = slow, broken, failing, pairs
        self._noise, self._seeds = np.random.default_rng(seed), count()
        self._compare = CommitComparison(
            repository, folder, SideVariant(), "", ("p99", "p50"), GateSettings(pairs=pairs),
            False, lambda _: None, keep_pairs, open_sides=self._sides,
            measuring=lambda *_: cast("Any", self),
        )  # fmt: skip

    def fail_with(self, opened: Callable[..., AbstractContextManager[tuple[Side, Side]]]) -> None:
        """Let what opens the sides of each comparison be another function."""
        self._compare.open_sides = opened

    def run(self, state: BisectState | None = None) -> Finding:
        return bisect(
            state or self.start, self._compare, self._pairs,
            lambda state: write_state(self.file, state), self.said.append, self._clock.__next__,
        )  # fmt: skip

    @property
    def state(self) -> BisectState:
        return read_state(self.file)

    @contextmanager
    def _sides(
        self, requests: tuple[SideRequest, SideRequest], *_: object
    ) -> Iterator[tuple[Side, Side]]:
        for request in requests:
            if self._numbers[request.place or ""] in self._broken:
                raise SideFailed(request.name, "--setup ended with status 125 in a folder")
        a, b = (
            make_side(request.name, label=request.label, commit=request.place,
                      variant=request.variant,
                      collected=("file.py::test_b", "file.py::test_c"))
            for request in requests
        )  # fmt: skip
        yield a, b

    def __call__(self, side: Side, number: int, nodes: Sequence[str] | None) -> MeasuredRun:
        self.runs += 1
        return MeasuredRun(list(self._records(self._numbers[side.commit or ""], nodes)), "")

    def described(self, sides: Sequence[Side]) -> AbstractContextManager[None]:
        return nullcontext()

    def _records(self, number: int, nodes: Sequence[str] | None) -> Iterator[RunRecord]:
        failing: dict[str, Any] = {"status": "failed", "reason": "Boom", "samples": None}
        for cell in "bc":
            if nodes is None or f"file.py::test_{cell}" in nodes:
                slower = 1.1 if cell == "b" and number >= self._slow else 1.0
                yield quick_record(
                    cell, next(self._seeds),
                    scale=math.exp(self._noise.normal(0, 0.02)) * slower,
                    **(failing if number in self._failing else {}),
                )  # fmt: skip


def named(finding: Finding) -> str:
    return finding.sentence.partition("(")[2].partition(")")[0]


PLACES = (1, 2, 3, 5, 8, 13, 16, 17, 21, 27, 31, 32, 33, 40, 47, 48, 55, 62, 63, 64)


@pytest.mark.parametrize(
    "place", [pytest.param(each, marks=[] if each in (1, 33, 64) else pytest.mark.slow)
              for each in PLACES],
)  # fmt: skip
def test_a_slowdown_of_10_percent_is_found_wherever_it_is(
    repository: Path, tmp_path: Path, place: int
) -> None:
    toy = Toy(repository, tmp_path, place, seed=place, pairs=6)
    finding = toy.run()
    assert (finding.ending, named(finding)) == ("found", f"commit {place}")
    # The opening, log2(64) steps, and the confirmation.
    assert len(toy.state.comparisons) <= 8


def test_the_sentence_names_commit_figure_size_and_error_rate(
    repository: Path, tmp_path: Path
) -> None:
    toy = Toy(repository, tmp_path, 20)
    sentence = toy.run().sentence
    before, slow = (toy.start.commits[place].commit for place in (18, 19))
    assert sentence.startswith(
        f"{slow[:10]} (commit 20) made P99 of b[cuda-s8-native-eager] worse by"
    )
    assert "say so in at most 1 % of cases." in sentence
    opening, *_, confirmation = toy.state.comparisons
    assert opening.tracked is not None
    assert opening.tracked.half == pytest.approx(0.049, abs=0.015)
    assert (confirmation.purpose, confirmation.old) == ("confirmation", before)


@pytest.mark.parametrize(
    ("slow", "broken", "failing", "ending", "says", "skipped"),
    [
        (COMMITS + 1, (), (), "not-worse", (), []),
        (
            40,
            (32, 33),
            (31,),
            "found",
            ("(commit 40)", "3 skipped"),
            ["--setup ended with", "Boom", "--setup"],
        ),
        (40, (38, 39), (40,), "range", ("One of 4 commits", "(commit 38)", "(commit 41)"), None),
    ],
)
def test_what_cannot_be_judged_is_skipped_or_leaves_a_range(
    repository: Path, tmp_path: Path, slow: int, broken: tuple[int, ...],
    failing: tuple[int, ...], ending: str, says: tuple[str, ...], skipped: list[str] | None,
) -> None:  # fmt: skip
    toy = Toy(repository, tmp_path, slow, broken=broken, failing=failing)
    finding = toy.run()
    assert finding.ending == ending
    assert [each for each in says if each not in finding.sentence] == []
    assert ending != "not-worse" or len(toy.state.comparisons) == 1
    reasons = [each.reason for each in toy.state.comparisons if each.outcome == "skip"]
    for reason, begins in zip(reasons, skipped or (), strict=skipped is not None):
        assert begins in reason


def test_an_interrupted_search_goes_on_where_it_was(repository: Path, tmp_path: Path) -> None:
    whole = Toy(repository, tmp_path / "whole", 23, pairs=6)
    wanted, made = whole.run(), whole.state.comparisons
    assert len(made) == 8

    def cut(after: int) -> BisectState:
        return whole.state.model_copy(update={"comparisons": made[:after]})

    for after in (1, 4, 7, 8):
        again = Toy(repository, tmp_path / f"again{after}", 23, seed=1, pairs=6)
        assert named(again.run(cut(after))) == named(wanted)
        assert again.runs < whole.runs
    # What was ended measures nothing, and says the same.
    assert (again.runs, again.run(cut(8))) == (0, wanted)
    # GOOD that breaks later ends the search.
    with pytest.raises(HwqError, match="A: --setup"):
        Toy(repository, tmp_path / "broken", 23, broken=(0,)).run(cut(1))
    # A search that was led astray, one good commit being called bad, is not confirmed.
    led = [
        each.model_copy(update={"outcome": "bad"}) if each.purpose == "search" else each
        for each in made[:3]
    ]
    astray = Toy(repository, tmp_path / "led", 40)
    finding = astray.run(whole.state.model_copy(update={"comparisons": led}))
    assert finding.ending == "not-confirmed"


def test_pairs_that_were_asked_for_are_kept_or_refused_before_a_run(
    repository: Path, tmp_path: Path
) -> None:
    kept = Toy(repository, tmp_path / "kept", 23, pairs=6, keep_pairs=True)
    said = "--pairs: 6 cannot show a regression at a rate of 1 % among 4 figures; 11 can"
    with pytest.raises(HwqError, match=re.escape(said)):
        kept.run()
    assert kept.runs == 0
    enough = Toy(repository, tmp_path / "enough", 23, pairs=11, keep_pairs=True)
    assert named(enough.run()) == "commit 23"
    assert {each.pairs for each in enough.state.comparisons} == {11}


def test_how_long_the_rest_takes_is_said_after_each_comparison(
    repository: Path, tmp_path: Path
) -> None:
    toy = Toy(repository, tmp_path, 23)
    toy.run()
    estimates = [each for each in toy.said if each.startswith("that took")]
    assert estimates[0] == "that took 1 min; 7 comparisons more, if each takes as long, 7 min"
    assert estimates[-1] == "that took 1 min; 1 comparison more, if each takes as long, 1 min"
    assert len(estimates) == len(toy.state.comparisons) - 1 == 7


def test_ends_that_cannot_be_measured_are_called_as_the_user_did(
    repository: Path, tmp_path: Path
) -> None:
    for number, name in ((0, "GOOD"), (COMMITS, "BAD")):
        with pytest.raises(HwqError, match=f"^{name}: --setup ended"):
            Toy(repository, tmp_path / name, 23, broken=(number,)).run()
    with pytest.raises(HwqError, match=r"^GOOD: [0-9a-f]{40} measured nothing: b\[.*\]: Boom"):
        Toy(repository, tmp_path / "nothing", 23, failing=(0,)).run()


@pytest.mark.parametrize("name", ["AB", "A", "B", ""])
def test_whose_fault_an_error_is_does_not_depend_on_its_words(
    name: str, repository: Path, tmp_path: Path
) -> None:
    said = "A: All disks are full"
    toy = Toy(repository, tmp_path, 23)
    toy.run()
    opening = toy.state.model_copy(update={"comparisons": toy.state.comparisons[:1]})
    # The texts of GOOD's errors, and of others, may begin alike.
    error = SideFailed(name, said) if name else HwqError(said)

    def failing(*_: object) -> AbstractContextManager[tuple[Side, Side]]:
        raise error

    again = Toy(repository, tmp_path / "again", 23)
    again.fail_with(failing)
    if "A" in name:
        with pytest.raises(SideFailed, match=said):
            again.run(opening)
        return
    again.run(opening)
    assert {each.outcome for each in again.state.comparisons[1:]} == {"skip"}


def test_a_damaged_state_and_what_is_no_ancestor_are_refused(
    repository: Path, tmp_path: Path
) -> None:
    file = tmp_path / "bisect.json"
    file.write_text("{}")
    with pytest.raises(RecordError, match="remove its folder to start again"):
        read_state(file)
    assert is_ancestor(repository, "main~3", "main")
    assert not is_ancestor(repository, "main", "main~3")
    assert commits_between(repository, "nowhere", "main") is None


@given(st.integers(1, 300), st.data())
def test_the_search_ends_at_the_first_bad_commit_in_log2_steps_or_round_it(
    commits: int, data: st.DataObject
) -> None:
    first_bad = data.draw(st.integers(0, commits - 1))
    skipped = data.draw(st.just(set()) | st.sets(st.integers(0, commits - 1), max_size=60))
    outcomes: dict[int, Outcome] = {commits - 1: "bad"}
    while (place := next_place(commits, outcomes)) is not None:
        assert place not in outcomes
        outcomes[place] = "skip" if place in skipped else "bad" if place >= first_bad else "good"
    good, bad = bracket(commits, outcomes)
    assert good < first_bad <= bad
    # Whatever is skipped, the bad commit is among what is left.
    assert {outcomes[place] for place in range(good + 1, bad)} <= {"skip"}
    if not skipped:
        assert (good, bad) == (first_bad - 1, first_bad)
        assert len(outcomes) - 1 <= math.ceil(math.log2(commits))


def test_half_of_the_worsening_parts_good_from_bad_whatever_the_least_effect(
    tmp_path: Path,
) -> None:
    compare = CommitComparison(
        tmp_path, tmp_path, SideVariant(), "", ("p99",),
        GateSettings.of_options(min_effect=None), False, lambda _: None,
    )  # fmt: skip
    tracked = TrackedFigure(
        cell="a", node="t", figure="p99", label="P99", higher_is_worse=True, ratio=1.21
    )
    judged = [compare._judging("g", "b", 12, each, "s").settings for each in (None, tracked)]
    assert [(each.min_effect, each.own_effects) for each in judged] == [
        (0.05, True),
        (pytest.approx(0.1), False),
    ]
