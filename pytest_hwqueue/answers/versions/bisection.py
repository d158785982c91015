"""Bisection over commits, by git and by verdicts.

Each commit in the middle is compared with GOOD, interleaved, until one is left; that one is then
compared with its parent in a fresh comparison. The search may err at every step, and its errors add
up; the confirmation does not depend on how the commit was found, so the probability that a commit
is named which did not make the figure worse is at most the error rate of that one comparison.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from pytest_hwqueue.data.errors import within
from pytest_hwqueue.data.metrics.estimate import PlainData
from pytest_hwqueue.data.metrics.numbers import counted, duration, rise_of
from pytest_hwqueue.data.records.sealed import read_model
from pytest_hwqueue.data.safe_files import write_text
from pytest_hwqueue.judge.verdict import percent
from pytest_hwqueue.parts.processes.git import CommitLine

SCHEMA: Final = "pytest-hwqueue/bisect/1"
STATE_FILE: Final = "bisect.json"

Outcome = Literal["good", "bad", "skip"]
Purpose = Literal["opening", "search", "confirmation"]
Ending = Literal["found", "range", "not-worse", "not-confirmed"]
# An undecided comparison is made once more with this many times the pairs.
_MORE_PAIRS = 2


class TrackedFigure(PlainData):
    """What is followed through the commits."""

    cell: str = Field(description="the cell's id")
    node: str = Field(description="the test that measures it")
    figure: str
    label: str = Field(description="of the figure, for people")
    higher_is_worse: bool
    ratio: float = Field(description="BAD over GOOD")

    @property
    def half(self) -> float:
        """Half of the worsening, in the logarithm, as a fraction: what tells good from bad."""
        return rise_of(abs(math.log(self.ratio)) / 2)


class ComparedCommits(PlainData):
    """One comparison of a commit with an older one, or why there was none."""

    old: str
    new: str
    outcome: Outcome | None = Field(description="of the new commit; null: not decided")
    pairs: int = Field(description="runs of each side at most; 0: not measured")
    ratio: float | None = Field(description="new over old")
    interval: tuple[float, float] | None = Field(description="95 %, of the ratio")
    reason: str = Field(description="the verdict, or why there is none, as text")
    tracked: TrackedFigure | None = Field(None, description="what got worse, found by the opening")
    purpose: Purpose = Field(
        "search", description="opening: GOOD with BAD; confirmation: with the commit before"
    )


class BisectState(PlainData):
    """All that a bisection knows; written after every comparison."""

    schema_: Literal["pytest-hwqueue/bisect/1"] = Field(SCHEMA, alias="schema")
    name: str = Field(description="workload or test")
    good: str
    commits: list[CommitLine] = Field(description="after GOOD, oldest first; the last is BAD")
    rate: float = Field(description="error rate of a comparison")
    comparisons: list[ComparedCommits] = Field(default_factory=list)

    @property
    def opening(self) -> ComparedCommits | None:
        """The comparison of GOOD with BAD, once made."""
        return self.comparisons[0] if self.comparisons else None

    def outcomes(self) -> dict[int, Outcome]:
        """Return the outcomes of the commits compared with GOOD, by place in the list."""
        places = {each.commit: place for place, each in enumerate(self.commits)}
        found: dict[int, Outcome] = {}
        for compared in self.comparisons:
            if compared.purpose != "confirmation" and compared.outcome is not None:
                found[places[compared.new]] = compared.outcome
        return found


class Finding(PlainData):
    """How a bisection ended: one readable sentence."""

    ending: Ending
    sentence: str


# Compares two commits: (old, new, pairs, what is followed: None at first).
Compare = Callable[[str, str, int, "TrackedFigure | None"], ComparedCommits]


def bracket(count: int, outcomes: Mapping[int, Outcome]) -> tuple[int, int]:
    """Return the places of the last good and the first bad commit; -1 is GOOD itself.

    Args:
        count: commits after GOOD, of which the last is BAD.
        outcomes: by place.

    """
    bad = min((place for place, each in outcomes.items() if each == "bad"), default=count - 1)
    good = max(
        (place for place, each in outcomes.items() if each == "good" and place < bad), default=-1
    )
    return good, bad


def next_place(count: int, outcomes: Mapping[int, Outcome]) -> int | None:
    """Return the place to compare next: the untried one nearest to the middle, or None.

    With nothing skipped the search takes ceil(log2(count)) steps.
    """
    good, bad = bracket(count, outcomes)
    untried = [place for place in range(good + 1, bad) if place not in outcomes]
    return min(untried, key=lambda place: abs(2 * place - (good + bad)), default=None)


def bisect(
    state: BisectState,
    compare: Compare,
    pairs: int,
    save: Callable[[BisectState], None],
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> Finding:
    """Search on from where a state left off, to the end.

    Args:
        state: new, or read from the file of an interrupted search.
        compare: compares two commits.
        pairs: runs of each side; twice as many where these do not decide.
        save: keeps the state; called after every comparison.
        say: receives a line about every comparison, and how long the others will take.
        clock: returns seconds.

    """

    def step(old: str, new: str, purpose: Purpose, what: str) -> ComparedCommits:
        nonlocal state
        began = clock()
        tracked = state.opening.tracked if state.opening else None
        # Of the confirmation there is one, whose error rate is that of one comparison.
        most = max([pairs, *(each.pairs for each in state.comparisons)])
        compared = compare(old, new, most if purpose == "confirmation" else pairs, tracked)
        if compared.outcome is None and purpose == "search":
            say(f"{what}: not decided in {counted(pairs, 'pair')} ({compared.reason})")
            compared = compare(old, new, _MORE_PAIRS * pairs, tracked)
        changed: dict[str, object] = {"purpose": purpose}
        if compared.outcome is None and purpose == "search":
            changed |= {"outcome": "skip", "reason": f"not decided: {compared.reason}"}
        compared = compared.model_copy(update=changed)
        state = state.model_copy(update={"comparisons": [*state.comparisons, compared]})
        save(state)
        say(f"{what}: {compared.outcome or 'not decided'}: {compared.reason}")
        took = clock() - began
        if purpose != "confirmation" and (left := _left(state)):
            say(
                f"that took {duration(took)}; {counted(left, 'comparison')} more, if each takes as "
                f"long, {duration(left * took)}"
            )
        return compared

    count = len(state.commits)
    if state.opening is None:
        step(state.good, state.commits[-1].commit, "opening", "BAD against GOOD")
    opening = state.opening
    assert opening is not None
    if opening.tracked is None:
        return Finding(
            ending="not-worse",
            sentence=f"BAD is not shown to be worse than GOOD, so there is nothing to search: "
            f"{opening.reason}",
        )
    while (place := next_place(count, state.outcomes())) is not None:
        good, bad = bracket(count, state.outcomes())
        left = f"{counted(bad - good, 'commit')} left"
        step(state.good, state.commits[place].commit, "search", f"{state.commits[place]}, {left}")
    good, bad = bracket(count, state.outcomes())
    parent = state.good if good < 0 else state.commits[good].commit
    known = state.comparisons[-1]
    if known.purpose != "confirmation":
        what = "confirmation against the commit before"
        known = step(parent, state.commits[bad].commit, "confirmation", what)
    return _finding(state, state.commits[good + 1 : bad + 1], opening.tracked, known)


def _left(state: BisectState) -> int:
    """Return how many comparisons are left with nothing skipped, the confirmation among them."""
    if state.opening is None or state.opening.tracked is None:
        return 0
    good, bad = bracket(len(state.commits), state.outcomes())
    return math.ceil(math.log2(bad - good)) + 1


def read_state(path: Path) -> BisectState:
    """Read the state of an earlier search.

    Raises:
        RecordError: if it cannot be read, or is damaged.

    """
    with within(remedy="remove its folder to start again"):
        return read_model(path, BisectState, "the state of a bisection")


def write_state(path: Path, state: BisectState) -> None:
    """Write a state atomically.

    Raises:
        RecordError: if it cannot be written.

    """
    write_text(path, state.model_dump_json(by_alias=True, indent=1) + "\n")


def _finding(
    state: BisectState,
    suspects: Sequence[CommitLine],
    tracked: TrackedFigure,
    confirmed: ComparedCommits,
) -> Finding:
    what = f"{tracked.label} of {tracked.cell}"
    change = "" if confirmed.ratio is None else f" by {percent(confirmed.ratio - 1)}"
    if confirmed.interval is not None:
        low, high = (f"{100 * (end - 1):+.1f}" for end in confirmed.interval)
        change += f" [{low}, {high}]"
    outcomes = state.outcomes()
    skipped = sum(outcome == "skip" for outcome in outcomes.values())
    effort = (
        f"{len(outcomes) - skipped} of {counted(len(state.commits), 'commit')} decided"
        f"{f', {skipped} skipped' if skipped else ''}, {percent(tracked.ratio - 1)} in all"
    )
    if confirmed.outcome != "bad":
        return Finding(
            ending="not-confirmed",
            sentence=f"The search ended at {suspects[-1]}, but a fresh comparison with the commit "
            f"before did not confirm that it made {what} worse ({confirmed.reason}): start again "
            "with more --pairs.",
        )
    wrong = (
        f"if {'it did not' if len(suspects) == 1 else 'none did'}, a comparison such as the last "
        f"one would say so in at most {100 * state.rate:.3g} % of cases"
    )
    if len(suspects) == 1:
        return Finding(
            ending="found",
            sentence=f"{suspects[0]} made {what} worse{change} ({effort}); {wrong}.",
        )
    return Finding(
        ending="range",
        sentence=f"One of {len(suspects)} commits, {suspects[0]} to {suspects[-1]}, made {what} "
        f"worse{change} ({effort}): those between could not be judged; {wrong}.",
    )
