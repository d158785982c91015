"""The sequential judgement of one cell's one quantity: screened, re-run, convicted or acquitted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_hwqueue.gate.comparable import refusal
from pytest_hwqueue.gate.detectable import LEAST_RUNS, LEAST_RUNS_EXACT
from pytest_hwqueue.gate.exact import permutation_floor, permutation_p, sign_flip_p
from pytest_hwqueue.gate.quantity import Quantity
from pytest_hwqueue.gate.runs import Run
from pytest_hwqueue.gate.settings import GateSettings
from pytest_hwqueue.gate.student import Difference, compare, compare_pairs, session_share
from pytest_hwqueue.gate.verdict import Decision, Look, Verdict


@dataclass(frozen=True, slots=True)
class Stage:
    """A number of new runs at which a cell is judged, and the share of the rate spent there."""

    new_runs: int
    weight: float


@dataclass(frozen=True, slots=True)
class Failures:
    """How the share of failed requests compares; ``p`` is exact, ``least_p`` its floor.

    Failures cluster in runs as latencies do, so runs are relabelled and not requests: Fisher's
    test on totals would take one bad run of a hundred failures for a hundred witnesses.
    """

    seen: bool
    rose: bool
    p: float
    least_p: float

    def acquitted(self, screen: float) -> bool:
        """Whether there is no sign of a rise; too few runs to show one are no acquittal."""
        return not self.rose or (self.least_p <= screen < self.p)


class CellGate:
    """Judges one cell: add new runs as long as it wants some, then ask for the verdict.

    A conviction needs a small exact p at one of the looks, among which the error rate is divided
    (Bonferroni); everything else only acquits. So the rate holds for exchangeable runs whatever
    their distribution. Where requests failed, latency and failures share the look's rate by
    halves: whether any failed does not depend on which runs are called new.

    Args:
        baseline: the baseline's runs, in any order.
        quantity: what their values are.
        settings: of the gate.
        cells: among how many cells the error rate is divided.
        paired: whether the i-th new run was made beside the i-th baseline run: then pairs are
            compared, and swapped within instead of relabelled.
    """

    def __init__(
        self,
        baseline: Sequence[Run],
        quantity: Quantity,
        settings: GateSettings,
        cells: int,
        paired: bool = False,
    ) -> None:
        self.baseline = tuple(baseline)
        self.quantity = quantity
        self.settings = settings
        self.cells = cells
        self.new: list[Run] = []
        self.history: list[Look] = []
        self.difference: Difference | None = None
        self.failures: Failures | None = None
        self.improved = False
        self.refused: Verdict | None = refusal(self.baseline, (), quantity)
        self._stages = _stages(settings)
        self._paired = paired
        self._sign = 1.0 if quantity.higher_is_worse else -1.0

    @property
    def wanted(self) -> int:
        """How many more new runs to the next judgement; 0 if the cell is decided."""
        if self.refused or self.decided:
            return 0
        return self._stages[len(self.history)].new_runs - len(self.new)

    @property
    def decided(self) -> bool:
        """Whether the cell has been acquitted, convicted, or judged for the last time."""
        if not self.history:
            return False
        last = len(self.history) == len(self._stages)
        return last or self.history[-1].decision in ("acquitted", "convicted")

    def add(self, run: Run) -> None:
        """Take one more new run. A run that is not wanted is left out: stopping is part of the
        rate, and one process run may serve several quantities of which another wants more."""
        if not self.wanted:
            return
        self.new.append(run)
        self.refused = refusal(self.baseline, self.new, self.quantity)
        if not self.refused and len(self.new) == self._stages[len(self.history)].new_runs:
            self._judge(self._stages[len(self.history)])

    @property
    def p_worse(self) -> float:
        """The p of the figure being worse: the least of the looks, 1 if it no longer looks so."""
        if not self.history or self.difference is None:
            return 1.0
        if not self.is_worse or self.history[-1].p_t > self.settings.screen:
            return 1.0
        return min(look.p_worse for look in self.history)

    @property
    def p_failures(self) -> float:
        """The p of more requests failing, likewise."""
        if self.failures is None or self.failures.acquitted(self.settings.screen):
            return 1.0
        return min(look.p_failures for look in self.history)

    @property
    def p(self) -> float:
        """The cell's p among all cells; 1 for a cell that is refused."""
        return 1.0 if self.refused else min(self.p_worse, self.p_failures)

    @property
    def is_worse(self) -> bool:
        """Whether the latest look saw a worsening of at least the least effect."""
        return self.difference is not None and self.difference.mean >= math.log1p(
            self.settings.min_effect
        )

    @property
    def tests(self) -> int:
        """Among how many tests a look's share of the rate is divided."""
        return 2 if self.failures is not None and self.failures.seen else 1

    def _judge(self, stage: Stage) -> None:
        settings = self.settings
        # Larger is worse from here on, whatever the quantity.
        x = [self._sign * math.log(run.value) for run in self.baseline]
        y = [self._sign * math.log(run.value) for run in self.new]
        difference = self.difference = self._compare(x, y)
        failures = self.failures = _compare_failures(self.baseline, self.new)
        p_t = difference.p_above(0)
        p_exact: float | None = None
        p_worse = p_failures = 1.0
        if stage.weight and self.is_worse and p_t <= settings.screen:
            if len(x) >= LEAST_RUNS_EXACT:
                p_exact = sign_flip_p(x, y) if self._paired else permutation_p(x, y)
            p_worse = self._share(self._worse(difference, p_exact), stage)
        if stage.weight and failures.rose and len(x) >= LEAST_RUNS:
            p_failures = self._share(failures.p, stage)
        decision: Decision
        if p_t > settings.screen and failures.acquitted(settings.screen):
            decision = "acquitted"
            self.improved = self._improved(difference)
        elif min(p_worse, p_failures) <= settings.rate / self.cells:
            decision = "convicted"
        else:
            decision = "undecided" if stage == self._stages[-1] else "flagged"
        ratio = math.exp(self._sign * difference.mean)
        look = Look(len(y), ratio, p_t, p_exact, p_worse, p_failures, decision)
        self.history.append(look)

    def _compare(self, x: Sequence[float], y: Sequence[float]) -> Difference:
        if self._paired:
            return compare_pairs(x, y, self.settings.floor)
        share = math.fsum(
            session_share([run.session for run in side]) for side in (self.baseline, self.new)
        )
        return compare(x, y, self.settings.floor, share)

    def _worse(self, difference: Difference, p_exact: float | None) -> float:
        """Return the p that may convict at this look, before it is shared out."""
        if p_exact is not None:
            tau = self.settings.tau
            return max(p_exact, difference.p_above(tau)) if tau else p_exact
        # With 3 or 4 baseline runs the exact test's floor is too high; normal theory decides,
        # once, at the last look. With fewer nothing does.
        last = len(self.history) + 1 == len(self._stages)
        if last and len(self.baseline) >= LEAST_RUNS:
            return difference.p_above(self.settings.tau)
        return 1.0

    def _share(self, p: float, stage: Stage) -> float:
        return min(1.0, p * self.tests / stage.weight)

    def _improved(self, difference: Difference) -> bool:
        return (
            not self.history
            and len(self.baseline) >= LEAST_RUNS
            and difference.mean <= -math.log1p(self.settings.min_effect)
            and difference.p_below(self.settings.tau) <= self.settings.rate / self.cells
        )


def _stages(settings: GateSettings) -> tuple[Stage, ...]:
    looks = [Stage(*look) for look in zip(settings.looks, settings.weights, strict=True)]
    if looks[0].new_runs == settings.first_runs:
        return tuple(looks)
    return (Stage(settings.first_runs, 0.0), *looks)


def can_be_convicted(baseline: Sequence[Run], quantity: Quantity) -> bool:
    """Return whether a baseline allows a conviction at all, whatever the new runs are."""
    return len(baseline) >= LEAST_RUNS and refusal(baseline, (), quantity) is None


def _compare_failures(baseline: Sequence[Run], new: Sequence[Run]) -> Failures:
    least_p = permutation_floor(len(baseline), len(new))
    if not any(run.failed for run in (*baseline, *new)):
        return Failures(seen=False, rose=False, p=1.0, least_p=least_p)
    x = [run.failure_share for run in baseline]
    y = [run.failure_share for run in new]
    rose = math.fsum(y) / len(y) > math.fsum(x) / len(x)
    p = permutation_p(x, y) if rose else 1.0
    return Failures(seen=True, rose=rose, p=p, least_p=least_p)
