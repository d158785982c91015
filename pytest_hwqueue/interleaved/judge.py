"""The verdicts of an interleaved session: a first pass that acquits, then all pairs at one look.

The rate holds for the suite as a whole although only cells that look different get all pairs: a
conviction is an exact p over all of a cell's runs, divided among all figures of the first pass,
and the first pass can only take convictions away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from pytest_hwqueue.baselines.diff import Unmatched
from pytest_hwqueue.baselines.record import RunRecord
from pytest_hwqueue.baselines.runs import (
    FieldDifference,
    condition_differences,
    soft_differences,
)
from pytest_hwqueue.gate.detectable import MOST_RUNS, can_convict, detectable_effect
from pytest_hwqueue.gate.interleaved import judge_interleaved
from pytest_hwqueue.gate.quantity import Quantity
from pytest_hwqueue.gate.runs import Run
from pytest_hwqueue.gate.settings import LEAST_FIRST_RUNS, GateSettings
from pytest_hwqueue.gate.suite_gate import SuiteShift
from pytest_hwqueue.gate.verdict import Verdict
from pytest_hwqueue.interleaved.cells import Pair, SideRuns, match
from pytest_hwqueue.metrics.distributions import student_quantile
from pytest_hwqueue.verdicts.figures import Figure, figure, known_names
from pytest_hwqueue.verdicts.judging import CellVerdict, Judgement, UnknownFigure

SideName = Literal["old", "new"]

# Simulated noise has a seed of its own in each run.
_DIFFERS_ALWAYS = "noise_seed"


def first_pairs(pairs: int) -> int:
    """Return how many pairs of all cells come first: a sixth of them, and at least 2."""
    return max(LEAST_FIRST_RUNS, pairs // 6)


@dataclass(frozen=True)
class _Gated:
    """One figure of one pair of cells that can be compared."""

    pair: Pair
    name: str
    figure: Figure


class InterleavedJudging:
    """One comparison of two sides, fed with their runs as they come.

    Args:
        figures: names of the figures to gate; see `figures.figure`.
        settings: of the gate; ``pairs`` runs of each side are judged.
        labels: of the old side and the new, for people.
        session: name of the session.
        varied: conditions in which the user has the sides differ; see `varied_fields`.
        allow_environment: compare over other drivers, frameworks and clock policies.
        among: figures among which the error rate is divided at least, where the cells were
            picked from a greater suite because they looked worse.

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
    ) -> None:
        self._figures = tuple(dict.fromkeys(figures))
        pairs = settings.pairs
        self._settings = replace(
            settings, first_runs=pairs, looks=(pairs,), weights=(1.0,), tau=0.0
        )
        self._labels = dict(zip(("old", "new"), labels, strict=True))
        self._varied = varied
        self._allow_environment = allow_environment
        self._among = among
        self._sides: dict[str, SideRuns] = {"old": SideRuns(session), "new": SideRuns(session)}
        self._problems: dict[str, str] = {}
        self._pairs: list[Pair] = []
        self._unmatched: list[Unmatched] = []
        self._gated: dict[str, _Gated] = {}
        self._first: dict[str, Verdict] = {}

    def add(self, side: SideName, records: Sequence[RunRecord], problem: str = "") -> None:
        """Take one process run of a side.

        Args:
            side: whose.
            records: what it measured.
            problem: how it ended, if not by itself.

        Raises:
            UnknownFigure: if no cell has a figure of a name that is to be gated.

        """
        self._sides[side].add(records)
        if problem:
            self._problems.setdefault(side, problem)
        runs = [cell.runs[0] for cell in self._sides[side].runs.values()]
        known = known_names(runs)
        for name in self._figures:
            if runs and name not in known:
                raise UnknownFigure(
                    f"no cell of {self._labels[side]} has a figure {name!r}; there are "
                    f"{', '.join(known)}"
                )

    def measured(self, side: SideName) -> list[str]:
        """Return ids of the cells that went well so far."""
        return sorted(self._sides[side].runs)

    def matched(self) -> int:
        """Return how many cells both sides have so far, failed ones among them."""
        return len(self._match()[0])

    def flagged(self) -> dict[SideName, list[str]]:
        """Judge the first pass; return the tests that both sides are to measure on, by node id.

        Those are the cells that look worse, as the gate screens them, or better by at least the
        least effect: an improvement, too, is only told by all pairs.
        """
        self._pairs, self._unmatched = self._match()
        first = first_pairs(self._settings.pairs)
        for pair in self._pairs:
            if self._obstacle(pair, first) is None:
                for name in self._figures:
                    self._gate(pair, name)
        once = replace(self._settings, pairs=first)
        runs = {key: self._runs(each, first) for key, each in self._gated.items()}
        quantities = {key: each.figure.quantity for key, each in self._gated.items()}
        self._first = judge_interleaved(runs, once, max(1, len(runs)), quantities)
        nodes: dict[SideName, list[str]] = {"old": [], "new": []}
        for key in self._open():
            pair = self._gated[key].pair
            nodes["old"].append(self._sides["old"].nodes[pair.old])
            nodes["new"].append(self._sides["new"].nodes[pair.new])
        return {side: list(dict.fromkeys(listed)) for side, listed in nodes.items()}

    @property
    def compared(self) -> int:
        """Among how many figures the error rate is divided."""
        found = sum(verdict.ratio is not None for verdict in self._first.values())
        return max(self._among, found)

    def judgement(self) -> Judgement:
        """Return what the runs amount to; `flagged` must have been asked, and all pairs run."""
        still_open = [key for key in self._open() if self._late_obstacle(key) is None]
        quantities = {key: self._gated[key].figure.quantity for key in still_open}
        runs = {key: self._runs(self._gated[key], self._settings.pairs) for key in still_open}
        final = judge_interleaved(runs, self._settings, self.compared, quantities)
        verdicts = []
        for pair in sorted(self._pairs, key=lambda pair: pair.label):
            for name in self._figures:
                verdict = self._verdict(pair, name, final)
                if verdict is not None:
                    verdicts.append(CellVerdict(pair.label, name, verdict, self._reported(pair)))
        return Judgement(
            self._labels["old"], tuple(verdicts), tuple(self._unmatched), self._shift(),
            self.compared, self._settings,
        )  # fmt: skip

    def _match(self) -> tuple[list[Pair], list[Unmatched]]:
        return match(self._sides["old"].cells, self._sides["new"].cells, self._varied)

    def _gate(self, pair: Pair, name: str) -> None:
        first = first_pairs(self._settings.pairs)
        old, new = (
            cell.runs[:first]
            for cell in (self._sides["old"].runs[pair.old], self._sides["new"].runs[pair.new])
        )
        gated = figure(name, old, new)
        if gated is None or self._blocking(pair, gated):
            return
        self._gated[_key(pair, name)] = _Gated(pair, name, gated)

    def _runs(self, gated: _Gated, count: int) -> tuple[list[Run], list[Run]]:
        old = self._sides["old"].runs[gated.pair.old].runs[:count]
        new = self._sides["new"].runs[gated.pair.new].runs[:count]
        return [gated.figure.run(run) for run in old], [gated.figure.run(run) for run in new]

    def _open(self) -> list[str]:
        """Return the figures that the first pass does not decide."""
        return [key for key, verdict in self._first.items() if self._looks_different(verdict)]

    def _looks_different(self, verdict: Verdict) -> bool:
        if verdict.ratio is None or not verdict.history:
            return False
        if verdict.history[-1].decision != "acquitted":
            return True
        better = verdict.ratio if verdict.quantity.higher_is_worse else 1 / verdict.ratio
        screened = verdict.history[-1].p_t >= 1 - self._settings.screen
        return screened and better <= 1 / (1 + self._settings.min_effect)

    def _obstacle(self, pair: Pair, count: int) -> str | None:
        """Say why a pair of cells does not have ``count`` runs on both sides; None if it has."""
        said = []
        for side, cell_id in (("old", pair.old), ("new", pair.new)):
            runs = self._sides[side]
            had = len(runs.runs[cell_id].runs) if cell_id in runs.runs else 0
            reason = runs.failures.get(cell_id)
            if reason is None and had < count:
                reason = f"{had} of {count} runs measured it"
                reason += f" ({self._problems[side]})" if side in self._problems else ""
            if reason is not None:
                said.append(f"{self._labels[side]}: {reason}")
        return "; ".join(said) or None

    def _late_obstacle(self, key: str) -> str | None:
        return self._obstacle(self._gated[key].pair, self._settings.pairs)

    def _verdict(self, pair: Pair, name: str, final: dict[str, Verdict]) -> Verdict | None:
        key = _key(pair, name)
        if key in final:
            return self._with_reach(final[key])
        open_to_the_end = key in self._first and self._looks_different(self._first[key])
        count = self._settings.pairs if open_to_the_end else first_pairs(self._settings.pairs)
        obstacle = self._obstacle(pair, count)
        if key in self._first and obstacle is None:
            return self._with_reach(self._first[key])
        runs = [
            run
            for side, cell_id in (("old", pair.old), ("new", pair.new))
            if cell_id in self._sides[side].runs
            for run in self._sides[side].runs[cell_id].runs
        ]
        found = figure(name, runs, runs) if runs else None
        if runs and found is None:
            return None
        quantity = Quantity(name, name, None) if found is None else found.quantity
        if obstacle is not None:
            return Verdict("incomparable", "failed", f"not compared: {obstacle}", quantity)
        assert found is not None
        listed = "; ".join(map(str, self._blocking(pair, found)))
        text = f"the sides are not the same benchmark under the same conditions: {listed}"
        return Verdict("incomparable", "other-conditions", text, quantity)

    def _blocking(self, pair: Pair, gated: Figure) -> list[FieldDifference]:
        """Return the conditions that differ and forbid to compare this figure."""
        return [
            each
            for each in self._conditions(pair)
            if not self._is_varied(each.field)
            and not (each.kind == "environment" and self._allow_environment)
            # How tags were timed says nothing of a latency or throughput.
            and not (each.field == "sample.tags" and gated.kind not in ("tag", "ratio"))
        ]

    def _conditions(self, pair: Pair) -> tuple[FieldDifference, ...]:
        old, new = self._sides["old"].runs[pair.old], self._sides["new"].runs[pair.new]
        return condition_differences(old.header, new.header)

    def _is_varied(self, name: str) -> bool:
        return name in self._varied or (
            name.startswith("parameter.") and "parameter.*" in self._varied
        )

    def _reported(self, pair: Pair) -> tuple[FieldDifference, ...]:
        """Return what differs beside the code: what the user varies, then soft fields."""
        if not (pair.old in self._sides["old"].runs and pair.new in self._sides["new"].runs):
            return ()
        old, new = self._sides["old"].runs[pair.old], self._sides["new"].runs[pair.new]
        soft = soft_differences(old, new)
        return (
            *(each for each in self._conditions(pair) if self._is_varied(each.field)),
            *(each for each in soft if each.field != _DIFFERS_ALWAYS),
        )

    def _with_reach(self, verdict: Verdict) -> Verdict:
        """Say what this design could have found, the first pass with it."""
        if verdict.sd is None:
            return verdict
        settings, compared = self._settings, self.compared
        detectable = detectable_by_pairs(verdict.sd, settings.pairs, settings, compared)
        advice = ""
        if detectable is None or detectable > settings.detect:
            enough = (
                pairs
                for pairs in range(settings.pairs + 1, MOST_RUNS + 1)
                if (found := detectable_by_pairs(verdict.sd or 0, pairs, settings, compared))
                and found <= settings.detect
            )
            needed = next(enough, None)
            how_many = f"more than {MOST_RUNS}" if needed is None else str(needed)
            advice = f"needs {how_many} pairs for {100 * settings.detect:+.3g} %"
        return replace(verdict, detectable=detectable, advice=advice)

    def _shift(self) -> SuiteShift | None:
        changes = [
            math.log(verdict.ratio) * (1 if verdict.quantity.higher_is_worse else -1)
            for verdict in self._first.values()
            if verdict.ratio is not None
        ]
        if not changes:
            return None
        return SuiteShift(math.exp(median(changes)), len(changes), None, False)


def detectable_by_pairs(
    sd: float, pairs: int, settings: GateSettings, compared: int
) -> float | None:
    """Return the least true worsening found with ``settings.power``, as a fraction.

    It is the larger of what the first pass and the one look at the end ask for; see
    `detectable_effect` for both. None if no cell could be convicted alone.

    Args:
        sd: standard deviation of the figure's logarithm between runs.
        pairs: runs of each side.
        settings: of the gate.
        compared: figures among which the error rate is divided.

    """
    once = replace(settings, pairs=pairs, first_runs=pairs, looks=(pairs,), weights=(1.0,), tau=0.0)
    if not can_convict(pairs, pairs, once, compared):
        return None
    first = first_pairs(pairs)
    freedom = 2 * first - 2
    quantiles = student_quantile(1 - settings.screen, freedom) + student_quantile(
        settings.power, freedom
    )
    screened = math.expm1(quantiles * sd * math.sqrt(2 / first))
    return max(screened, detectable_effect(sd, pairs, once, compared))


def _key(pair: Pair, name: str) -> str:
    return f"{pair.label}\n{name}"
