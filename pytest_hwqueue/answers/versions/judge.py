"""Judges an interleaved session: looks that can only acquit, then one look at all pairs.

The differences of pairs are judged, an old and a new run measured one after the other, so what
drifts from pair to pair cancels. The rate holds for the suite as a whole although only cells that
are not acquitted get all pairs: a conviction is an exact p over all of a cell's pairs, divided
among all figures of the first look, and the looks before can only take convictions away. They
acquit where the change that matters is excluded; what cannot exclude it is measured in all pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Literal

from pytest_hwqueue.answers.versions.sides import (
    Pair,
    SideRuns,
    acquitted_early,
    by_pairs,
    match,
    reach,
)
from pytest_hwqueue.data.errors import BadInput
from pytest_hwqueue.data.metrics.numbers import counted, ratio_of
from pytest_hwqueue.data.records.cell import RunRecord
from pytest_hwqueue.judge.baselines.runs import (
    CellBaseline,
    FieldDifference,
    condition_differences,
    soft_differences,
)
from pytest_hwqueue.judge.baselines.sources import UnmatchedCell
from pytest_hwqueue.judge.calibrate import pairs_to_convict
from pytest_hwqueue.judge.cell_gate import CellGate, can_be_convicted
from pytest_hwqueue.judge.effects import limit_of_pairs, of_pairs
from pytest_hwqueue.judge.figures import (
    GatedFigure,
    PreparedFigure,
    prepare,
    require_known,
    seen_by_others,
)
from pytest_hwqueue.judge.judging import CellVerdict, Judgement, judged_once
from pytest_hwqueue.judge.statistics import rejected
from pytest_hwqueue.judge.suite_gate import SuiteShift, conclude
from pytest_hwqueue.judge.verdict import (
    LEAST_FIRST_RUNS,
    OTHER_CODE,
    GateSettings,
    Quantity,
    Verdict,
)

ABSide = Literal["old", "new"]
_OTHER: dict[ABSide, ABSide] = {"old": "new", "new": "old"}
# Says of a test's node id why it was not run, or nothing if it was.
WhyAbsent = Callable[[str], str]
# Simulated noise has a seed of its own in each run, and the commits are the comparison's sides.
_DIFFERS_ALWAYS = ("noise_seed", "git_commit", "git_dirty")


# A figure of a pair of cells, by its name.
_Figure = tuple[Pair, str]


class InterleavedJudging:
    """One comparison of two sides, fed with their runs as they arrive.

    Args:
        figures: names of the figures to gate; see `figures.figure`.
        settings: of the gate; ``pairs`` of runs are judged, or as many as `plan` adds.
        labels: of the old side and the new, for people.
        session: name of the session.
        varied: conditions that the user varies between the sides; see `varied_fields`.
        allow_environment: compare over other drivers, frameworks and clock policies.
        among: at least how many figures share the error rate, where the cells were picked from
            a larger suite because they looked worse.
        keep_pairs: refuse to plan more pairs than the settings have.

    Attributes:
        compared: how many figures share the error rate; known after the first look.

    """

    def __init__(
        self,
        figures: Sequence[str],
        settings: GateSettings,
        labels: tuple[str, str],
        session: str,
        *,
        varied: frozenset[str] = frozenset(),
        allow_environment: bool = False,
        among: int = 1,
        keep_pairs: bool = False,
    ) -> None:
        self._keep_pairs = keep_pairs
        self._figures = tuple(dict.fromkeys(figures))
        self.settings = by_pairs(settings, settings.pairs)
        self._labels = dict(zip(("old", "new"), labels, strict=True))
        self._varied = varied
        self._allow_environment = allow_environment
        self.compared = among
        self._sides: dict[str, SideRuns] = {"old": SideRuns(session), "new": SideRuns(session)}
        self._problems: dict[str, str] = {}
        self._pairs: list[Pair] = []
        self._unmatched: list[UnmatchedCell] = []
        self._shift: SuiteShift | None = None
        # Figures at their latest look, those that are still open, and why those were lost.
        self._judged: dict[_Figure, tuple[PreparedFigure, Verdict]] = {}
        self._open: list[_Figure] = []
        self._lost: dict[_Figure, str] = {}

    def add(
        self, side: ABSide, records: Sequence[RunRecord], problem: str = "", other_code: str = ""
    ) -> None:
        """Take one process run of a side.

        Args:
            side: whose.
            records: its measurements.
            problem: how it ended, if not normally.
            other_code: which code it measured in place of the side's; empty if the side's.

        Raises:
            BadInput: if no cell has a figure to be gated.

        """
        self._sides[side].add(records, other_code)
        if problem:
            self._problems.setdefault(side, problem)
        runs = [cell.runs[0] for cell in self._sides[side].runs.values()]
        require_known(self._figures, runs, self._labels[side])

    def all_other_code(self) -> bool:
        """Return whether every cell of a side was measured of other code than the side's."""
        return any(
            side.other_code and side.other_code == side.cells.keys()
            for side in self._sides.values()
        )

    def measured(self, side: ABSide) -> list[str]:
        """Return the ids of the cells measured successfully so far."""
        return sorted(self._sides[side].runs)

    def nodes(self, side: ABSide) -> dict[str, str]:
        """Return the test that measures each cell started so far, by cell id."""
        return dict(self._sides[side].nodes)

    def matched(self) -> int:
        """Return how many cells both sides have so far, including failed ones."""
        return len(self._match()[0])

    def plan(self, cells: int) -> int:
        """Return how many pairs to measure, of so many cells: those asked for, or as many as can
        convict.

        To be called before the first run, and again when the number of cells is known.

        Raises:
            BadInput: if these are more than there may be.

        """
        figures = max(self.compared, cells * len(self._figures))
        needed = pairs_to_convict(self.settings, figures)
        if self._keep_pairs and needed > self.settings.pairs:
            raise BadInput(
                f"--pairs: {self.settings.pairs} cannot show a regression at a rate of "
                f"{100 * self.settings.rate:.3g} % among {counted(figures, 'figure')}; {needed} can"
            )
        pairs = max(self.settings.pairs, needed)
        self.settings = by_pairs(self.settings, pairs)
        return pairs

    def look(self, pairs: int) -> dict[ABSide, list[str]]:
        """Judge by this many pairs; return the node ids of the tests to measure further.

        Those are the cells that are not acquitted, and those that look better by at least the least
        effect: an improvement, too, is decided only by all pairs. Call it at each of `looks`.

        Args:
            pairs: number of runs per side of every cell still measured.

        """
        first = not self._judged
        if first:
            self._pairs, self._unmatched = self._match()
            self._open = [(pair, name) for pair in self._pairs for name in self._figures]
        prepared: dict[_Figure, PreparedFigure] = {}
        for pair, name in self._open:
            obstacle = self._obstacle(pair, pairs)
            if obstacle is not None:
                self._lost[pair, name] = obstacle
                continue
            sides = self._runs(pair)
            old, new = (runs.runs[:pairs] for runs in sides)
            found = prepare(name, old, new, pace=sides[1].header.has_pace, paired=True)
            if found is not None and not self._blocking(pair, found.figure):
                prepared[pair, name] = found
        verdicts = self._judge(prepared, max(self.compared, len(prepared) if first else 0))
        self._judged |= {key: (prepared[key], verdict) for key, verdict in verdicts.items()}
        if first:
            self._count(verdicts.values())
        # What has lost runs, or cannot be compared, is measured no further.
        self._open = [
            key for key, each in verdicts.items() if self._looks_different(prepared[key], each)
        ]
        nodes: dict[ABSide, dict[str, None]] = {"old": {}, "new": {}}
        for pair, _ in self._open:
            for side, cell_id in _both(pair):
                nodes[side][self._sides[side].nodes[cell_id]] = None
        return {side: list(listed) for side, listed in nodes.items()}

    def _count(self, verdicts: Collection[Verdict]) -> None:
        """Note how many figures the first look has compared, and how they shifted together."""
        found = sum(each.history != () or each.reason == "runs-missing" for each in verdicts)
        self.compared = max(self.compared, found)
        changes = [
            math.log(each.main.ratio) * (1 if each.quantity.higher_is_worse else -1)
            for each in verdicts
            if each.main is not None
        ]
        if changes:
            self._shift = SuiteShift(ratio_of(median(changes)), len(changes), None, False)

    def judgement(self, why_absent: Mapping[ABSide, WhyAbsent] | None = None) -> Judgement:
        """Return the judgement on the runs; every `look` must have been called.

        Args:
            why_absent: says of each side why a test of the other side was not run on it.

        """
        verdicts = []
        for pair in sorted(self._pairs, key=lambda pair: pair.label):
            for name in self._figures:
                verdict = self._verdict(pair, name)
                if verdict is not None:
                    verdicts.append(verdict)
        return Judgement(
            self._labels["old"], tuple(verdicts), self._missing(why_absent or {}), self._shift,
            self.compared, self.settings, {},
        )  # fmt: skip

    def _missing(self, why_absent: Mapping[ABSide, WhyAbsent]) -> tuple[UnmatchedCell, ...]:
        """Return the cells without a counterpart, with the reason if their test has none either."""
        missing = []
        for each in self._unmatched:
            reason = each.reason
            for side, why in why_absent.items():
                node = self._sides[_OTHER[side]].nodes.get(each.cell_id)
                if node is not None and each.cell_id not in self._sides[side].cells:
                    reason = why(node) or reason
            missing.append(replace(each, reason=reason))
        return tuple(missing)

    def _match(self) -> tuple[list[Pair], list[UnmatchedCell]]:
        return match(self._sides["old"].cells, self._sides["new"].cells, self._varied)

    def _runs(self, pair: Pair) -> tuple[CellBaseline, CellBaseline]:
        return self._sides["old"].runs[pair.old], self._sides["new"].runs[pair.new]

    def _judge(
        self, prepared: Mapping[_Figure, PreparedFigure], compared: int
    ) -> dict[_Figure, Verdict]:
        """Judge figures at one look, by all their prepared runs."""
        cells = {}
        for key, each in prepared.items():
            runs = max(LEAST_FIRST_RUNS, len(each.new))
            main, companion = (
                judged_once(self._own(each, figure, compared), runs)
                for figure in ("value", "iteration_ns")
            )
            cell = CellGate(each.baseline, each.figure.quantity, main, max(1, compared), companion)
            for run in each.new:
                cell.add(run)
            cells[key] = cell
        p_values = {
            key: cell.p
            for key, cell in cells.items()
            if can_be_convicted(cell.baseline, cell.quantity)
        }
        found = rejected(p_values, self.settings.rate, max(1, compared))
        return {key: conclude(cell, key in found) for key, cell in cells.items()}

    def _own(
        self, prepared: PreparedFigure, figure: Literal["value", "iteration_ns"], compared: int
    ) -> GateSettings:
        """Return the settings for a figure of a pair of cells, with its least effect."""
        x, y = (
            [getattr(run, figure) or math.nan for run in side]
            for side in (prepared.baseline, prepared.new)
        )
        return of_pairs(x, y, self.settings, max(1, compared))

    def _looks_different(self, prepared: PreparedFigure, verdict: Verdict) -> bool:
        if not verdict.history:
            return verdict.reason == "runs-missing"
        if not acquitted_early(verdict, self.settings.detect):
            return True
        if verdict.main is None:
            return False
        ratio = verdict.main.ratio
        better = ratio if verdict.quantity.higher_is_worse else 1 / ratio
        screened = verdict.history[-1].p_t >= 1 - self.settings.screen
        return screened and better <= 1 / (
            1 + self._own(prepared, "value", self.compared).min_effect
        )

    def _obstacle(self, pair: Pair, count: int) -> str | None:
        """Return why a pair of cells lacks ``count`` runs on both sides, or None."""
        said = []
        for side, cell_id in _both(pair):
            runs = self._sides[side]
            had = len(runs.runs[cell_id].runs) if cell_id in runs.runs else 0
            reason = runs.failures.get(cell_id)
            if reason is None and had < count:
                reason = f"{had} of {count} runs measured it"
                reason += f" ({self._problems[side]})" if side in self._problems else ""
            if reason is not None:
                said.append(f"{self._labels[side]}: {reason}")
        return "; ".join(said) or None

    def _verdict(self, pair: Pair, name: str) -> CellVerdict | None:
        lost = self._lost.get((pair, name))
        if (pair, name) in self._judged and lost is None:
            prepared, verdict = self._judged[pair, name]
            return CellVerdict(
                pair.label, name, self._with_reach(pair, name, verdict), self._reported(pair),
                prepared.short, prepared.remark,
            )  # fmt: skip
        cells = [
            self._sides[side].runs[cell_id]
            for side, cell_id in _both(pair)
            if cell_id in self._sides[side].runs
        ]
        runs = [run for cell in cells for run in cell.runs]
        found = prepare(name, (), runs, pace=cells[0].header.has_pace) if runs else None
        if runs and found is None:
            return None
        quantity = Quantity(name, name, None) if found is None else found.figure.quantity
        if lost is not None:
            other = any(cell_id in self._sides[side].other_code for side, cell_id in _both(pair))
            text, reason = f"not compared: {lost}", OTHER_CODE if other else "failed"
        else:
            assert found is not None
            listed = "; ".join(map(str, self._blocking(pair, found.figure)))
            text = f"the sides are not the same benchmark under the same conditions: {listed}"
            reason = "other-conditions"
        verdict = Verdict("incomparable", reason, text, quantity)
        return CellVerdict(pair.label, name, verdict, self._reported(pair))

    def _blocking(self, pair: Pair, gated: GatedFigure) -> list[FieldDifference]:
        """Return the differing conditions that rule out comparing this figure."""
        return [
            each
            for each in self._conditions(pair)
            if not self._is_varied(each.field)
            and not (each.kind == "environment" and self._allow_environment)
            # How tags were timed says nothing of a latency or throughput.
            and not (each.field == "sample.tags" and gated.kind not in ("tag", "ratio"))
        ]

    def _conditions(self, pair: Pair) -> tuple[FieldDifference, ...]:
        old, new = self._runs(pair)
        return condition_differences(old.header, new.header)

    def _is_varied(self, name: str) -> bool:
        return name in self._varied or (
            name.startswith("parameter.") and "parameter.*" in self._varied
        )

    def _reported(self, pair: Pair) -> tuple[FieldDifference, ...]:
        """Return the differences besides the code: what the user varies, then soft fields."""
        if not all(cell_id in self._sides[side].runs for side, cell_id in _both(pair)):
            return ()
        soft = soft_differences(*self._runs(pair))
        return (
            *(each for each in self._conditions(pair) if self._is_varied(each.field)),
            *(each for each in soft if each.field not in _DIFFERS_ALWAYS),
        )

    def _with_reach(self, pair: Pair, name: str, verdict: Verdict) -> Verdict:
        """Return the verdict with what this design, with its acquitting looks, can detect."""
        main = verdict.main
        if main is None:
            return verdict
        compared = self.compared
        settings = self._own(self._judged[pair, name][0], "value", compared)
        detectable, more = reach(main.sd, settings, compared)
        advice = [more]
        if verdict.reason == "blind":
            old, new = (runs.runs for runs in self._runs(pair))
            advice.append(seen_by_others(name, old, new, settings, compared))
        return replace(
            verdict,
            main=replace(main, detectable=detectable),
            limit=limit_of_pairs(detectable, main.sd, verdict.quantity, settings),
            advice="; ".join(filter(None, advice)),
        )


def _both(pair: Pair) -> tuple[tuple[ABSide, str], ...]:
    """Return each side with its id of the cell."""
    return ("old", pair.old), ("new", pair.new)
