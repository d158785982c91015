"""Judges one cell sequentially: screened, re-run, convicted or acquitted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_hwqueue.gate.comparable import refusal
from pytest_hwqueue.gate.detectable import LEAST_RUNS, LEAST_RUNS_EXACT, detectable_effect
from pytest_hwqueue.gate.exact import permutation_floor, permutation_p
from pytest_hwqueue.gate.look import FigureEvidence, Figures, convicting_p, weigh
from pytest_hwqueue.gate.quantity import ITERATION_TIME, Quantity
from pytest_hwqueue.gate.runs import ProcessRun
from pytest_hwqueue.gate.settings import GateSettings
from pytest_hwqueue.gate.verdict import Decision, Look, Verdict


@dataclass(frozen=True, slots=True)
class Stage:
    """A number of new runs at which a cell is judged, and the error rate's share spent there."""

    new_runs: int
    weight: float


@dataclass(frozen=True, slots=True)
class Failures:
    """How the share of failed requests compares; ``p`` is exact, ``least_p`` its floor.

    Failures cluster in runs as latencies do, so runs are relabelled, not requests: Fisher's test on
    totals would count one bad run with a hundred failures as a hundred witnesses.
    """

    seen: bool
    rose: bool
    p: float
    least_p: float

    def acquitted(self, screen: float) -> bool:
        """Whether no rise shows; too few runs to show one do not acquit."""
        return not self.rose or (self.least_p <= screen < self.p)


class CellGate:
    """Judges one cell: add new runs as long as it wants more, then ask for the verdict.

    A conviction needs a small exact p at one of the looks, among which the error rate is divided
    (Bonferroni); everything else only acquits. So the rate holds for exchangeable runs whatever
    their distribution.

    The **main** figure is the quantity of the runs' values. Its **companion** is the time per
    iteration, known if every run has ``iteration_ns``. Each look decides anew which of them can
    convict, without looking at labels, so the choice does not affect the rate:

    * the main figure alone, as a rule;
    * both, if the main figure is too noisy to detect ``settings.detect``, its noise being that of
      all runs, split in two (`set_aside.least_spread`); and if the companion's own runs, old and
      new together, lie further apart than ``settings.detect``: an iteration can get far longer
      while the latency judged in it stays. A companion that is merely noisy then does not keep a
      cell from passing if its main figure can see what matters;
    * the companion alone, if the main figure is a stand-in (``quantity.demoted_from``) or a run has
      too few samples for it. Without a companion, nothing can convict then.

    A look's share of the rate is divided equally among the tests that can convict: the figures on
    trial and, where any request failed, old or new, the share of failures.

    Args:
        baseline: the baseline's runs, in any order.
        quantity: what their values are.
        settings: of the gate.
        cells: number of cells that share the error rate.
    """

    def __init__(
        self,
        baseline: Sequence[ProcessRun],
        quantity: Quantity,
        settings: GateSettings,
        cells: int,
    ) -> None:
        self.baseline = tuple(baseline)
        self.quantity = quantity
        self.settings = settings
        self.cells = cells
        self.new: list[ProcessRun] = []
        self.history: list[Look] = []
        self.main: FigureEvidence | None = None
        self.companion: FigureEvidence | None = None
        self.failures: Failures | None = None
        self.main_on_trial = True
        self.companion_on_trial = False
        # Whether it must exclude what matters, because the main figure cannot.
        self.companion_stands_in = False
        self.improved = False
        self._stages = _stages(settings)
        self.refused: Verdict | None = self._refusal()

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
        self.refused = self._refusal()
        if not self.refused and len(self.new) == self._stages[len(self.history)].new_runs:
            self._judge(self._stages[len(self.history)])

    @property
    def p_worse(self) -> float:
        """The p of the main figure being worse: the smallest of all looks, 1 if it no longer is."""
        return self._standing(self.main, [look.p_worse for look in self.history])

    @property
    def p_companion(self) -> float:
        """The p of the companion being worse, likewise."""
        return self._standing(self.companion, [look.p_companion for look in self.history])

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
        failed = self.failures is not None and self.failures.seen
        return max(1, self.main_on_trial + self.companion_on_trial + failed)

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

    def _refusal(self) -> Verdict | None:
        accompanied = is_accompanied((*self.baseline, *self.new), self.quantity)
        return refusal(self.baseline, self.new, self.quantity, accompanied=accompanied)

    def _standing(self, evidence: FigureEvidence | None, seen: Sequence[float]) -> float:
        if evidence is None or not seen or evidence.p_t > self.settings.screen:
            return 1.0
        return min(seen) if evidence.is_worse(self.settings) else 1.0

    def _judge(self, stage: Stage) -> None:
        settings = self.settings
        self.main = self._weigh([run.value for run in (*self.baseline, *self.new)], self.quantity)
        self.companion = None
        if is_accompanied((*self.baseline, *self.new), self.quantity):
            times = [run.iteration_ns or 0.0 for run in (*self.baseline, *self.new)]
            self.companion = self._weigh(times, ITERATION_TIME)
        failures = self.failures = _compare_failures(self.baseline, self.new)
        self._put_on_trial()
        p_worse, p_exact = self._convicting(self.main if self.main_on_trial else None, stage)
        p_companion, _ = self._convicting(
            self.companion if self.companion_on_trial else None, stage
        )
        p_failures = 1.0
        if stage.weight and failures.rose and len(self.baseline) >= LEAST_RUNS:
            p_failures = self._share(failures.p, stage)
        decision: Decision
        settled = self._settled(stage)
        if settled and all(figure.excludes(settings) for figure in self.witnesses):
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
        sign = self._sign if self.main else 1.0
        look = Look(
            new_runs=len(self.new),
            ratio=math.exp(sign * leading.difference.mean),
            p_t=leading.p_t,
            p_exact=p_exact,
            p_worse=p_worse,
            p_failures=p_failures,
            decision=decision,
            p_companion=p_companion,
            upper=math.expm1(leading.upper),
        )
        self.history.append(look)

    @property
    def _sign(self) -> float:
        return 1.0 if self.quantity.higher_is_worse else -1.0

    def _weigh(self, values: Sequence[float], quantity: Quantity) -> FigureEvidence | None:
        """Weigh one figure; None if a run lacks it (a short run may)."""
        if not all(math.isfinite(value) and value > 0 for value in values):
            return None
        sign = 1.0 if quantity.higher_is_worse else -1.0
        logs = tuple(sign * math.log(value) for value in values)
        runs = len(self.baseline)
        figures = Figures(
            logs[:runs],
            logs[runs:],
            tuple(run.session for run in self.baseline),
            tuple(run.session for run in self.new),
        )
        return weigh(figures, self.settings)

    def _put_on_trial(self) -> None:
        main = self.main
        if self.quantity.demoted_from or self.short or main is None:
            self.main_on_trial, self.companion_on_trial = False, self.companion is not None
            self.companion_stands_in = self.companion_on_trial
            return
        self.main_on_trial, self.companion_on_trial = True, False
        self.companion_stands_in = False
        if self.companion is not None:
            spread = main.spread(self.settings.floor)
            reach = detectable_effect(spread, len(self.baseline), self.settings, self.cells)
            far_apart = self.companion.range >= math.log1p(self.settings.detect)
            self.companion_stands_in = reach > self.settings.detect
            self.companion_on_trial = self.companion_stands_in or far_apart

    def _convicting(
        self, figure: FigureEvidence | None, stage: Stage
    ) -> tuple[float, float | None]:
        """Return the p that this look can convict with, and the exact p if it was computed."""
        settings, runs = self.settings, len(self.baseline)
        if figure is None or not stage.weight:
            return 1.0, None
        if not figure.is_worse(settings) or figure.p_t > settings.screen:
            return 1.0, None
        if runs < LEAST_RUNS_EXACT:
            last = stage == self._stages[-1]
            return self._share(convicting_p(figure, settings, runs, last=last), stage), None
        p_exact = figure.exact()
        p = max(p_exact, figure.difference.p_above(settings.tau)) if settings.tau else p_exact
        return self._share(p, stage), p_exact

    def _share(self, p: float, stage: Stage) -> float:
        return min(1.0, p * self.tests / stage.weight)

    def _settled(self, stage: Stage) -> bool:
        assert self.failures is not None
        if self.companion_on_trial and self.companion and not self.companion.calm(self.settings):
            return False
        return self.failures.acquitted(self.settings.screen) and all(
            figure.settled(self.settings, convicting=stage.weight > 0) for figure in self.witnesses
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


def _stages(settings: GateSettings) -> tuple[Stage, ...]:
    looks = [Stage(*look) for look in zip(settings.looks, settings.weights, strict=True)]
    if looks[0].new_runs == settings.first_runs:
        return tuple(looks)
    return (Stage(settings.first_runs, 0.0), *looks)


def is_accompanied(runs: Sequence[ProcessRun], quantity: Quantity) -> bool:
    """Return whether every run has a time per iteration to judge along with the quantity."""
    return quantity.name != ITERATION_TIME.name and all(
        run.iteration_ns is not None and math.isfinite(run.iteration_ns) and run.iteration_ns > 0
        for run in runs
    )


def can_be_convicted(baseline: Sequence[ProcessRun], quantity: Quantity) -> bool:
    """Return whether any new runs could be convicted against this baseline."""
    accompanied = is_accompanied(baseline, quantity)
    if len(baseline) < LEAST_RUNS or (quantity.demoted_from and not accompanied):
        return False
    return refusal(baseline, (), quantity, accompanied=accompanied) is None


def _compare_failures(baseline: Sequence[ProcessRun], new: Sequence[ProcessRun]) -> Failures:
    least_p = permutation_floor(len(baseline), len(new))
    if not any(run.failed for run in (*baseline, *new)):
        return Failures(seen=False, rose=False, p=1.0, least_p=least_p)
    x = [run.failure_share for run in baseline]
    y = [run.failure_share for run in new]
    rose = math.fsum(y) / len(y) > math.fsum(x) / len(x)
    p = permutation_p(x, y) if rose else 1.0
    return Failures(seen=True, rose=rose, p=p, least_p=least_p)
