"""Compares two commits of a repository for a bisection: worktrees, interleaved runs, a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_hwqueue.errors import on_one_line
from pytest_hwqueue.gate.settings import ITERATION_TIME, GateSettings
from pytest_hwqueue.interleaved.bisection import Compared, Outcome, Tracked
from pytest_hwqueue.interleaved.judge import InterleavedJudging
from pytest_hwqueue.interleaved.session import NothingMeasured, ProcessRuns, interleave
from pytest_hwqueue.interleaved.sides import Side, SideRequest, open_sides
from pytest_hwqueue.interleaved.variants import SideError, SideVariant
from pytest_hwqueue.verdicts.judging import CellVerdict, Judgement

# Simulated noise must differ between comparisons, each of which makes fewer runs than this.
_RUNS_OF_ONE = 1000


@dataclass
class CommitComparison:
    """Compares commits, each pair in worktrees of its own.

    Attributes:
        here: the current folder, in the repository.
        folder: where each comparison leaves a folder with what was measured.
        variant: how both sides are measured.
        setup: shell command to run once in each worktree; None for the running interpreter.
        figures: names of the figures of which the opening looks for a worse one.
        settings: of the gate.
        allow_environment: compare over other drivers, frameworks and clock policies.
        say: receives a line about every run.
        made: comparisons so far, whose simulated noise must not come again.
        open_sides: checks both commits out, and removes what it made.
        measuring: makes what measures a side, from a folder and the number of runs before.

    """

    here: Path
    folder: Path
    variant: SideVariant
    setup: str | None
    figures: Sequence[str]
    settings: GateSettings
    allow_environment: bool
    say: Callable[[str], None]
    made: int = 0
    open_sides: Callable[..., AbstractContextManager[tuple[Side, Side]]] = open_sides
    measuring: Callable[[Path, int], ProcessRuns] = ProcessRuns

    def __call__(self, old: str, new: str, pairs: int, tracked: Tracked | None) -> Compared:
        """Compare two commits; see `bisection.Compare`.

        Raises:
            SideError: if the old commit cannot be measured, which is GOOD, or was good before.
            NothingMeasured: likewise; or, in the opening, if either measures nothing.

        """
        requests = (
            SideRequest("A", old, self.variant),
            SideRequest("B", new, self.variant),
        )
        earlier = self.made * _RUNS_OF_ONE
        self.made += 1
        folder = self.folder / f"{self.made:03}-{new[:10]}"
        folder.mkdir(parents=True)
        try:
            with self.open_sides(requests, self.here, self.setup, folder, self.say) as sides:
                judging = self._judging(old, new, pairs, tracked, folder.name)
                measure = self.measuring(folder, earlier)
                judgement = self._measured(sides, judging, tracked, measure)
        except (SideError, NothingMeasured) as error:
            # Whose fault it is stands first. GOOD worked in the opening: if it no longer does,
            # neither would any other commit.
            if tracked is None or str(error).startswith("A"):
                raise
            reason = on_one_line(error)
            return Compared(
                old=old, new=new, outcome="skip", pairs=0, ratio=None, interval=None, reason=reason
            )
        found = judged(judgement, tracked)
        opened = None
        if tracked is None and found is not None:
            nodes = judging.nodes("new")
            opened = _tracked(found, nodes[found.cell_id])
        return _compared(old, new, judgement.settings.pairs, found, opened)

    def _judging(
        self, old: str, new: str, pairs: int, tracked: Tracked | None, session: str
    ) -> InterleavedJudging:
        settings, figures = replace(self.settings, pairs=pairs), self.figures
        if tracked is not None:
            settings = replace(settings, detect=tracked.half, min_effect=tracked.half)
            figures = [tracked.figure]
        return InterleavedJudging(
            figures, settings, (old[:10], new[:10]), session,
            allow_environment=self.allow_environment,
        )  # fmt: skip

    def _measured(
        self,
        sides: tuple[Side, Side],
        judging: InterleavedJudging,
        tracked: Tracked | None,
        measure: ProcessRuns,
    ) -> Judgement:
        only = None if tracked is None else [tracked.node]
        interrupted = True
        try:
            judgement = interleave(sides, judging, measure, self.say, only)
            interrupted = False
        finally:
            measure.describe(sides, interrupted=interrupted)
        return judgement


def judged(judgement: Judgement, tracked: Tracked | None) -> CellVerdict | None:
    """Return the verdict that counts: of what is followed, or the clearest regression in time.

    Of regressions, those of the first figure named come first, then the largest against its noise.
    None if what is followed was not measured, or, at first, nothing got worse.
    """
    if tracked is not None:
        return next((v for v in judgement.verdicts if v.cell_id == tracked.cell), None)
    figures = list(dict.fromkeys(each.figure for each in judgement.verdicts))
    worse = [
        each
        for each in judgement.verdicts
        if each.verdict.state == "regression" and _change(each) is not None
    ]
    return min(worse, key=lambda each: (figures.index(each.figure), -_clarity(each)), default=None)


def _change(judged: CellVerdict) -> tuple[float, tuple[float, float], float] | None:
    """Return ratio, interval and sd of the quantity that the verdict rests on, if it is one."""
    verdict = judged.verdict
    companion = verdict.companion
    if companion is not None and verdict.by == ITERATION_TIME.name != verdict.quantity.name:
        return companion.ratio, companion.interval, companion.sd
    if verdict.by == "failures" or None in (verdict.ratio, verdict.interval, verdict.sd):
        return None
    assert verdict.ratio is not None
    assert verdict.interval is not None
    assert verdict.sd is not None
    return verdict.ratio, verdict.interval, verdict.sd


def _clarity(judged: CellVerdict) -> float:
    change = _change(judged)
    return 0.0 if change is None else abs(math.log(change[0])) / max(change[2], 1e-9)


def _tracked(judged: CellVerdict, node: str) -> Tracked:
    change = _change(judged)
    assert change is not None
    verdict = judged.verdict
    by_companion = verdict.by == ITERATION_TIME.name
    quantity = ITERATION_TIME if by_companion else verdict.quantity
    return Tracked(
        cell=judged.cell_id,
        node=node,
        figure=quantity.name if by_companion else judged.figure,
        label=quantity.label,
        higher_is_worse=quantity.higher_is_worse,
        ratio=change[0],
    )


def _compared(
    old: str, new: str, pairs: int, found: CellVerdict | None, opened: Tracked | None
) -> Compared:
    if found is None:
        return Compared(
            old=old, new=new, outcome=None, pairs=pairs, ratio=None, interval=None,
            reason="no cell of it got worse",
        )  # fmt: skip
    verdict = found.verdict
    outcomes: dict[str, Outcome] = {
        "regression": "bad", "pass": "good", "improvement": "good", "incomparable": "skip",
    }  # fmt: skip
    change = _change(found)
    return Compared(
        old=old,
        new=new,
        outcome=outcomes.get(verdict.state),
        pairs=pairs,
        ratio=change and change[0],
        interval=change and change[1],
        reason=verdict.line,
        tracked=opened,
    )
