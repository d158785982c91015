"""Judges one cell sequentially: screened, re-run, convicted or acquitted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from pytest_hwqueue.data.metrics.numbers import ratio_of, rise_of
from pytest_hwqueue.judge.calibrate import (
    LEAST_RUNS,
    affordable_tests,
    detectable_effect,
    is_exact,
    shares,
)
from pytest_hwqueue.judge.look import Failures, FigureEvidence, compare_failures, weigh
from pytest_hwqueue.judge.runs import ProcessRun
from pytest_hwqueue.judge.verdict import (
    ITERATION_TIME,
    Decision,
    GateLook,
    GateSettings,
    Quantity,
    Verdict,
    is_accompanied,
    refusal,
)


class Stage(NamedTuple):
    """A number of new runs at which a cell is judged, and the error rate's share spent there."""

    new_runs: int
    weight: float


class CellGate:
    """Judges one cell: add new runs as long as it wants more, then ask for the verdict.

    A conviction needs a small exact p at one of the looks, among which the error rate is divided
    (Bonferroni); everything else only acquits. So the rate holds for exchangeable runs whatever
    their distribution.

    The **main** figure is the quantity of the runs' values. Its **companion** is the time per
    iteration, known if every run has ``iteration_ns``. Both are on trial: an iteration can get far
    longer while the latency judged in it stays. The companion alone is if the main figure is a
    stand-in (``settings.demoted_from``) or a run has too few samples for it; without a companion,
    nothing can convict then.

    A noisy companion does not keep a cell from passing if its main figure can see what matters. It
    has to exclude ``settings.detect`` itself only where it is alone, or where the main figure is
    too noisy to detect that, its noise being that of all runs, split in two
    (`runs.least_spread`). That does not look at labels, so it does not affect the rate.

    A look's share of the rate is divided equally among the tests that can convict: the figures on
    trial and, where any request failed, old or new, the share of failures. If the runs are so few
    that none could convict with its part, only as many as can do, those in which the runs most
    clearly stand at two levels (`runs.separation`), again without looking at labels; of
    equally clear ones the main figure, then its companion. The others still keep a cell that looks
    worse from passing.

    Args:
        baseline: the baseline's runs, in any order.
        quantity: what their values are.
        settings: of the gate, with the session effect that the main figure is allowed.
        cells: number of cells that share the error rate.
        companion_settings: the same for the companion; as the main figure's if None.
    """

    def __init__(
        self,
        baseline: Sequence[ProcessRun],
        quantity: Quantity,
        settings: GateSettings,
        cells: int,
        companion_settings: GateSettings | None = None,
    ) -> None:
        self.baseline = tuple(baseline)
        self.quantity = quantity
        self.settings = settings
        self.companion_settings = companion_settings or settings
        self.cells = cells
        self.new: list[ProcessRun] = []
        self.history: list[GateLook] = []
        self.main: FigureEvidence | None = None
        self.companion: FigureEvidence | None = None
        self.failures: Failures | None = None
        self.main_on_trial = True
        # Whether it must exclude what matters, because the main figure cannot.
        self.companion_stands_in = False
        self.improved = False
        # Those on trial that the rate suffices for.
        self.convicting: frozenset[str] = frozenset()
        self._stages = _stages(len(self.baseline), settings, cells)
        self.refused: Verdict | None = refusal(self.baseline, self.new, self.quantity)

    @property
    def wanted(self) -> int:
        """How many more new runs the next judgement needs; 0 if the cell is decided."""
        if self.refused or self.decided:
            return 0
        return self._stages[len(self.history)].new_runs - len(self.new)

    @property
    def decided(self) -> bool:
        """Whether the cell has been acquitted, convicted, or judged for the last time."""
        return bool(self.history) and self.history[-1].decision != "flagged"

    def add(self, run: ProcessRun) -> None:
        """Take one more new run; ignore it if unwanted.

        When to stop is part of the error rate, and one process run may serve several quantities
        that want different numbers of runs.
        """
        if not self.wanted:
            return
        self.new.append(run)
        self.refused = refusal(self.baseline, self.new, self.quantity)
        if not self.refused and len(self.new) == self._stages[len(self.history)].new_runs:
            self._judge(self._stages[len(self.history)])

    @property
    def p_worse(self) -> float:
        """The p of the main figure being worse: the smallest of all looks, 1 if it no longer is."""
        return self._standing(self.main, "p_worse")

    @property
    def p_companion(self) -> float:
        """The p of the companion being worse, likewise."""
        return self._standing(self.companion, "p_companion")

    @property
    def p_failures(self) -> float:
        """The p of more requests failing, likewise."""
        if self.failures is None or self.failures.acquitted(self.settings.screen):
            return 1.0
        return min(look.p_failures for look in self.history)

    @property
    def p(self) -> float:
        """The cell's p among all cells; 1 for a cell that is refused."""
        return 1.0 if self.refused else min(self.p_worse, self.p_companion, self.p_failures)

    @property
    def tests(self) -> int:
        """How many tests share a look's part of the error rate."""
        return max(1, len(self.convicting))

    @property
    def short(self) -> bool:
        """Whether a run has too few samples for the main figure."""
        least = min(run.n for run in (*self.baseline, *self.new))
        return self.quantity.quantile is not None and least < self.quantity.least_n

    @property
    def witnesses(self) -> list[FigureEvidence]:
        """The figures that must exclude what matters before the cell passes."""
        asked = (self.main, self.main_on_trial), (self.companion, self.companion_stands_in)
        return [figure for figure, needed in asked if needed and figure is not None]

    def _standing(self, evidence: FigureEvidence | None, seen: str) -> float:
        if evidence is None or evidence.p_t > self.settings.screen or not evidence.is_worse:
            return 1.0
        least: float = min(getattr(look, seen) for look in self.history)
        return least

    def _judge(self, stage: Stage) -> None:
        settings = self.settings
        runs = (*self.baseline, *self.new)
        self.main = self._weigh([run.value for run in runs], self.quantity, settings)
        self.companion = None
        if is_accompanied(runs, self.quantity):
            times = [run.iteration_ns or 0.0 for run in runs]
            self.companion = self._weigh(times, ITERATION_TIME, self.companion_settings)
        failures = self.failures = compare_failures(self.baseline, self.new, settings)
        # Not if it stands in for another figure, or a run has too few samples for it.
        on_trial = not (self.quantity.demoted_from or self.short) and self.main is not None
        self.main_on_trial = on_trial
        self.companion_stands_in = self.companion is not None and not (on_trial and self._reaches())
        self.convicting = chosen = self._chosen(stage)
        p_worse, p_exact = self._convicting(self.main if "main" in chosen else None, stage)
        p_companion, _ = self._convicting(self.companion if "companion" in chosen else None, stage)
        p_failures = 1.0
        enough = stage.weight and len(self.baseline) >= LEAST_RUNS
        if enough and failures.rose and "failures" in chosen:
            p_failures = self._share(failures.p, stage)
        decision: Decision
        settled = self._settled(stage)
        if settled and all(figure.excludes for figure in self.witnesses):
            decision = "acquitted"
            self.improved = self._improved()
        elif settled and self._hopeless():
            decision = "blind"
        elif min(p_worse, p_companion, p_failures) <= settings.rate / self.cells:
            decision = "convicted"
        else:
            decision = "undecided" if stage == self._stages[-1] else "flagged"
        leading = self.main or self.companion
        assert leading is not None  # a cell without either figure is refused
        sign = 1.0 if self.quantity.higher_is_worse or not self.main else -1.0
        look = GateLook(
            new_runs=len(self.new),
            ratio=ratio_of(sign * leading.difference.mean),
            p_t=leading.p_t,
            p_exact=p_exact,
            p_worse=p_worse,
            p_failures=p_failures,
            decision=decision,
            p_companion=p_companion,
            upper=rise_of(leading.upper),
        )
        self.history.append(look)

    def _weigh(
        self, values: Sequence[float], quantity: Quantity, settings: GateSettings
    ) -> FigureEvidence | None:
        """Weigh one figure; None if a run lacks it (a short run may)."""
        if not all(math.isfinite(value) and value > 0 for value in values):
            return None
        sign = 1.0 if quantity.higher_is_worse else -1.0
        logs = [sign * math.log(value) for value in values]
        sessions = [run.session for run in (*self.baseline, *self.new)]
        return weigh(logs, sessions, len(self.baseline), settings)

    def _reaches(self) -> bool:
        """Whether the main figure detects what matters, by the noise of all runs split in two."""
        assert self.main is not None
        reach = detectable_effect(self.main.spread, len(self.baseline), self.settings, self.cells)
        return reach <= self.settings.detect

    def _chosen(self, stage: Stage) -> frozenset[str]:
        """Choose which tests this look's share of the rate is divided among."""
        runs, new_runs = len(self.baseline), len(self.new)
        apart = {}
        if self.main_on_trial and self.main:
            apart["main"] = self.main.apart(new_runs)
        if self.companion:
            apart["companion"] = self.companion.apart(new_runs)
        figures = len(apart)
        if self.failures and self.failures.seen:
            apart["failures"] = self.failures.apart
        most = affordable_tests(runs, new_runs, stage.weight, self.settings, self.cells)
        if not is_exact(runs, self.settings) and most <= figures:
            # Figures are judged by a t-test, which has no least p; failures are not.
            return frozenset(list(apart)[: figures or 1])
        return frozenset(sorted(apart, key=lambda name: -apart[name])[: max(1, most)])

    def _convicting(
        self, figure: FigureEvidence | None, stage: Stage
    ) -> tuple[float, float | None]:
        """Return the p that this look can convict with, and the exact p if it was computed."""
        settings, runs = self.settings, len(self.baseline)
        if figure is None or not stage.weight:
            return 1.0, None
        if not figure.is_worse or figure.p_t > settings.screen:
            return 1.0, None
        if not is_exact(runs, settings):
            # With 3 or 4 runs the exact test's floor is too high: the t-test decides, once.
            decides = runs >= LEAST_RUNS and stage == self._stages[-1]
            return self._share(figure.p_above if decides else 1.0, stage), None
        p_exact = figure.exact()
        p = max(p_exact, figure.p_above) if figure.settings.tau else p_exact
        return self._share(p, stage), p_exact

    def _share(self, p: float, stage: Stage) -> float:
        return min(1.0, p * self.tests / stage.weight)

    def _settled(self, stage: Stage) -> bool:
        assert self.failures is not None
        if self.companion and not self.companion.calm:
            return False
        return self.failures.acquitted(self.settings.screen) and all(
            figure.settled(convicting=stage.weight > 0) for figure in self.witnesses
        )

    def _hopeless(self) -> bool:
        """Whether more runs are unlikely to show that nothing got worse; not after the first pass.

        Two runs tell too little of how far the new ones differ.
        """
        return len(self.new) > self.settings.first_runs and any(
            figure.hopeless for figure in self.witnesses
        )

    def _improved(self) -> bool:
        settings = self.settings
        if self.history or self.main is None or not self.main_on_trial:
            return False
        difference = self.main.difference
        return (
            len(self.baseline) >= LEAST_RUNS
            and difference.mean <= -math.log1p(settings.min_effect)
            and difference.p_below(settings.tau) <= settings.rate / self.cells
        )


def _stages(runs: int, settings: GateSettings, cells: int) -> tuple[Stage, ...]:
    spent = shares(runs, settings, cells)
    looks = [Stage(*look) for look in zip(settings.looks, spent, strict=True)]
    if looks[0].new_runs == settings.first_runs:
        return tuple(looks)
    return (Stage(settings.first_runs, 0.0), *looks)


def can_be_convicted(baseline: Sequence[ProcessRun], quantity: Quantity) -> bool:
    """Return whether any new runs could be convicted against this baseline."""
    demoted = quantity.demoted_from and not is_accompanied(baseline, quantity)
    if len(baseline) < LEAST_RUNS or demoted:
        return False
    return refusal(baseline, (), quantity) is None
