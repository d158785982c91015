"""A bisection over real commits: which one it names, what it skips, and how it goes on."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.errors import RecordError
from pytest_hwqueue.gate.verdict import GateSettings
from pytest_hwqueue.interleaved.bisection import (
    SCHEMA,
    BisectState,
    Listed,
    Outcome,
    bisect,
    bracket,
    commit_of,
    commits_between,
    is_ancestor,
    next_place,
    read_state,
    write_state,
)
from pytest_hwqueue.interleaved.session import CommitComparison, Measured
from pytest_hwqueue.interleaved.sides import Side, SideRequest
from pytest_hwqueue.interleaved.variants import SideError, SideVariant
from pytest_hwqueue.records.cell import RunRecord

MakeRecord = Callable[..., RunRecord]
COMMITS = 64


@pytest.fixture(scope="module", name="repository")
def _repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("repository"))


def make_repository(folder: Path) -> Path:
    """Make a repository of 65 commits; the file ``number`` says which one is checked out."""
    stream = ["feature done\n"]
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
    assert good is not None
    between = commits_between(repository, good, "main", first_parent=True)
    assert between is not None
    commits = [Listed(commit=each.hash, subject=each.subject) for each in between]
    return BisectState(schema=SCHEMA, name="b", good=good, commits=commits, rate=0.01)


class Toy:
    """Compares commits whose runs are made up: from ``slow`` on, times ``times``.

    Worktrees, judging and search are the real ones' but for the processes that measure.
    """

    def __init__(
        self, repository: Path, folder: Path, make_record: MakeRecord, slow: int, *,
        times: float = 1.1, sd: float = 0.02, seed: int = 0, broken: Sequence[int] = (),
        failing: Sequence[int] = (), pairs: int = 12,
    ) -> None:  # fmt: skip
        self.repository = repository
        self.file = folder / "bisect.json"
        self.said: list[str] = []
        self.runs = 0
        self._numbers = {
            each.commit: place for place, each in enumerate(new_state(repository).commits, start=1)
        }
        self._slow, self._times, self._sd = slow, times, sd
        self._broken, self._failing, self._pairs = broken, failing, pairs
        self._make_record = make_record
        self._noise = np.random.default_rng(seed)
        self._seeds = count()
        self._compare = CommitComparison(
            repository, folder, SideVariant(), None, ("p99", "p50"), GateSettings(pairs=pairs),
            False, self.said.append, open_sides=self._sides, measuring=self._measuring,
        )  # fmt: skip

    def run(self, state: BisectState | None = None) -> Any:
        return bisect(
            state or new_state(self.repository), self._compare, self._pairs,
            lambda state: write_state(self.file, state), self.said.append,
        )  # fmt: skip

    @contextmanager
    def _sides(
        self, requests: tuple[SideRequest, SideRequest], *_: object
    ) -> Iterator[tuple[Side, Side]]:
        sides = []
        for request in requests:
            assert request.place is not None
            if self._numbers.get(request.place) in self._broken:
                raise SideError(f"{request.name}: --setup ended with status 125 in a folder")
            sides.append(
                Side(
                    name=request.name, label=request.label, folder=Path(), commit=request.place,
                    changed=False, variant=request.variant, environment={}, command=(),
                    root=Path(), tests=(), collected=("file.py::test_b", "file.py::test_c"),
                )
            )  # fmt: skip
        yield sides[0], sides[1]

    def _measuring(self, folder: Path, earlier: int) -> Any:
        toy = self

        class Runs:
            def __call__(self, side: Side, number: int, nodes: Sequence[str] | None) -> Measured:
                toy.runs += 1
                return Measured(toy.records(side, nodes), "", 0)

            def describe(self, sides: Sequence[Side], *, interrupted: bool) -> None:
                folder.joinpath("ab.json").write_text("{}")

        return Runs()

    def records(self, side: Side, nodes: Sequence[str] | None) -> list[RunRecord]:
        number = self._numbers.get(str(side.commit), 0)
        found = []
        for cell in "bc":
            if nodes is not None and f"file.py::test_{cell}" not in nodes:
                continue
            factor = math.exp(self._noise.normal(0, self._sd))
            factor *= self._times if cell == "b" and number >= self._slow else 1.0
            failing = {"status": "failed", "reason": "Boom", "samples": None}
            found.append(
                self._make_record(
                    cell, next(self._seeds), n=400, scale=factor, nodeid=f"file.py::test_{cell}",
                    **(failing if number in self._failing else {}),
                )
            )  # fmt: skip
        return found


def named(sentence: str) -> str:
    return sentence.partition("(")[2].partition(")")[0]


PLACES = (1, 2, 3, 5, 8, 13, 16, 17, 21, 27, 31, 32, 33, 40, 47, 48, 55, 62, 63, 64)


@pytest.mark.parametrize(
    "place", [pytest.param(each, marks=[] if each in (1, 33, 64) else pytest.mark.slow)
              for each in PLACES],
)  # fmt: skip
def test_a_slowdown_of_10_percent_is_found_wherever_it_is(
    repository: Path, tmp_path: Path, make_record: MakeRecord, place: int
) -> None:
    toy = Toy(repository, tmp_path, make_record, place, seed=place, pairs=6)
    finding = toy.run()
    assert (finding.ending, named(finding.sentence)) == ("found", f"commit {place}")
    # The opening, log2(64) steps, and the confirmation.
    assert len(read_state(toy.file).comparisons) <= 8


def test_the_sentence_names_commit_figure_size_and_error_rate(
    repository: Path, tmp_path: Path, make_record: MakeRecord
) -> None:
    toy = Toy(repository, tmp_path, make_record, 20)
    sentence = toy.run().sentence
    commit = new_state(repository).commits[19].commit[:10]
    assert sentence.startswith(f"{commit} (commit 20) made P99 of b[cuda-s8-native-eager] worse by")
    assert "say so in at most 1 % of cases." in sentence
    (opening, *_, confirmation) = read_state(toy.file).comparisons
    assert opening.tracked is not None
    assert opening.tracked.half == pytest.approx(0.049, abs=0.015)
    assert confirmation.purpose == "confirmation"
    assert confirmation.old == new_state(repository).commits[18].commit


def test_nothing_worse_is_said_and_not_searched(
    repository: Path, tmp_path: Path, make_record: MakeRecord
) -> None:
    toy = Toy(repository, tmp_path, make_record, COMMITS + 1)
    finding = toy.run()
    assert finding.ending == "not-worse"
    assert len(read_state(toy.file).comparisons) == 1


def test_what_does_not_build_or_fails_is_skipped(
    repository: Path, tmp_path: Path, make_record: MakeRecord
) -> None:
    toy = Toy(repository, tmp_path, make_record, 40, broken=(32, 33), failing=(31,))
    finding = toy.run()
    assert (finding.ending, named(finding.sentence)) == ("found", "commit 40")
    skipped = [each for each in read_state(toy.file).comparisons if each.outcome == "skip"]
    assert "--setup ended with status 125" in skipped[0].reason
    assert finding.sentence.count(f"{len(skipped)} skipped") == 1


def test_neighbours_that_cannot_be_judged_leave_a_range(
    repository: Path, tmp_path: Path, make_record: MakeRecord
) -> None:
    toy = Toy(repository, tmp_path, make_record, 40, broken=(38, 39), failing=(40,))
    finding = toy.run()
    assert finding.ending == "range"
    assert "One of 4 commits" in finding.sentence
    assert "(commit 38)" in finding.sentence
    assert "(commit 41)" in finding.sentence


def test_good_that_breaks_later_ends_the_search(
    repository: Path, tmp_path: Path, make_record: MakeRecord
) -> None:
    toy = Toy(repository, tmp_path, make_record, 40, broken=(0,))
    opened = Toy(repository, tmp_path / "opened", make_record, 40)
    opened.run()
    state = read_state(opened.file)
    begun = state.model_copy(update={"comparisons": state.comparisons[:1]})
    toy._numbers[state.good] = 0
    with pytest.raises(SideError, match="A: --setup"):
        toy.run(begun)


@pytest.mark.parametrize("after", [1, 4, 7, 8])
def test_an_interrupted_search_goes_on_where_it_was(
    repository: Path, tmp_path: Path, make_record: MakeRecord, after: int
) -> None:
    whole = Toy(repository, tmp_path / "whole", make_record, 23, pairs=6)
    wanted = whole.run()
    state = read_state(whole.file)
    assert len(state.comparisons) == 8
    cut = state.model_copy(update={"comparisons": state.comparisons[:after]})
    again = Toy(repository, tmp_path / "again", make_record, 23, seed=1, pairs=6)
    finding = again.run(cut)
    assert named(finding.sentence) == named(wanted.sentence)
    assert again.runs < whole.runs
    if after == 8:
        assert (again.runs, finding) == (0, wanted)


def test_what_the_confirmation_contradicts_is_not_named(
    repository: Path, tmp_path: Path, make_record: MakeRecord
) -> None:
    toy = Toy(repository, tmp_path / "right", make_record, 23)
    toy.run()
    state = read_state(toy.file)
    # A search that was led astray: one good commit was called bad.
    led = [
        each.model_copy(update={"outcome": "bad"}) if each.purpose == "search" else each
        for each in state.comparisons[:3]
    ]
    finding = Toy(repository, tmp_path / "led", make_record, 40).run(
        state.model_copy(update={"comparisons": led})
    )
    assert finding.ending == "not-confirmed"


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "bisect.json"
    file.write_text("{}")
    with pytest.raises(RecordError, match="remove its folder to start again"):
        read_state(file)


def test_only_an_ancestor_can_be_good(repository: Path) -> None:
    assert is_ancestor(repository, "main~3", "main")
    assert not is_ancestor(repository, "main", "main~3")
    assert commits_between(repository, "nowhere", "main") is None


@given(st.integers(1, 300), st.data())
def test_the_search_ends_at_the_first_bad_commit_in_log2_steps(
    commits: int, data: st.DataObject
) -> None:
    first_bad = data.draw(st.integers(0, commits - 1))
    outcomes: dict[int, Outcome] = {commits - 1: "bad"}
    steps = 0
    while (place := next_place(commits, outcomes)) is not None:
        outcomes[place] = "bad" if place >= first_bad else "good"
        steps += 1
    assert bracket(commits, outcomes) == (first_bad - 1, first_bad)
    assert steps <= math.ceil(math.log2(commits))


@given(st.integers(1, 60), st.data())
def test_whatever_is_skipped_the_bad_commit_is_among_what_is_left(
    commits: int, data: st.DataObject
) -> None:
    first_bad = data.draw(st.integers(0, commits - 1))
    skipped = data.draw(st.sets(st.integers(0, commits - 1)))
    outcomes: dict[int, Outcome] = {commits - 1: "bad"}
    while (place := next_place(commits, outcomes)) is not None:
        assert place not in outcomes
        outcomes[place] = "skip" if place in skipped else "bad" if place >= first_bad else "good"
    good, bad = bracket(commits, outcomes)
    assert good < first_bad <= bad
    between: Mapping[int, Outcome] = {place: outcomes[place] for place in range(good + 1, bad)}
    assert set(between.values()) <= {"skip"}
