"""Searches a mode's parameters for a scenario's goals, and confirms the best in fresh windows.

The search proposes (optuna's TPE sampler: Bergstra et al., NeurIPS 24, 2011) and scores each
proposal by one window, under the same arrivals for all. The best of many windows looks better than
it is, so its own window proves nothing: the winner and native are measured anew, in turn, under
other arrivals, and only those windows decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_hwqueue.capacity.judge import margin_of
from pytest_hwqueue.errors import BadOption, BadScheduler
from pytest_hwqueue.harness.turns import turns
from pytest_hwqueue.scenarios.file import Scenario, Tenant
from pytest_hwqueue.scenarios.goals import CONFIDENCE, NATIVE, GoalResult
from pytest_hwqueue.scenarios.planned_runs import Case, own_run
from pytest_hwqueue.schedulers.declaration import SchedulerSpec, Tunable
from pytest_hwqueue.schedulers.syntax import parse_scheduler
from pytest_hwqueue.tenancy import figures
from pytest_hwqueue.tenancy import sessions as over_sessions
from pytest_hwqueue.tenancy.figures import Estimate
from pytest_hwqueue.which.runs import MeasureToFile, WhichRuns

if TYPE_CHECKING:
    import optuna

INSTALL = "hwq tune needs optuna, which is not installed: pip install 'pytest-hwqueue[tune]'"
# A thousand times its bound, and infinite, are as bad.
_FAR = math.log(1000)
# Proposals repeat, and some are not valid: so many are asked for before a search gives up.
_ASKED_PER_TRIAL = 20


@dataclass(frozen=True)
class Trial:
    """One proposal and what its window showed.

    Attributes:
        scheduler: the mode with its parameters.
        score: throughput kept by the others, as a share of native's, if all goals' figures keep
            their bounds; else minus how far the worst is beyond its own, as a logarithm. None if
            the window failed.
        goals: by that window alone.
        reason: why it failed.

    """

    scheduler: str
    score: float | None
    goals: list[GoalResult] = field(default_factory=list)
    reason: str = ""


@dataclass(frozen=True)
class Confirmation:
    """The winner beside native in fresh windows.

    Attributes:
        won: whether it was shown to be better than native.
        reason: why, or why not.
        goals: of the winner.
        native_goals: of native.
        kept: throughput of each other tenant as a share of native's.

    """

    won: bool
    reason: str
    goals: list[GoalResult] = field(default_factory=list)
    native_goals: list[GoalResult] = field(default_factory=list)
    kept: Mapping[str, Estimate] = field(default_factory=dict)


def space_of(mode: SchedulerSpec, tenants: Sequence[Tenant]) -> dict[str, Tunable]:
    """Return the parameters to search, by name: the tunable ones that the mode's text leaves open.

    Raises:
        BadOption: if there are none.

    """
    declared = mode.declaration
    space = {
        each.name: each.tunable
        for each in declared.parameters
        if each.tunable is not None and each.name not in mode.parameters
    }
    if declared.per_tenant is not None and (tunable := declared.per_tenant.tunable) is not None:
        most = max(tenant.priority for tenant in tenants)
        names = [
            each.name for each in tenants if (each.priority == most) == (tunable.of == "urgent")
        ]
        space |= {name: tunable for name in names if name not in mode.parameters}
    if not space:
        raise BadOption("--scheduler", str(mode), "it leaves no parameter to search")
    return space


def others(tenants: Sequence[Tenant]) -> list[str]:
    """Return the tenants whose throughput is kept: the less urgent, else all."""
    most = max(tenant.priority for tenant in tenants)
    return [each.name for each in tenants if each.priority < most] or [t.name for t in tenants]


class Tuner:
    """Searches and confirms on one scenario's case."""

    def __init__(self, scenario: Scenario, case: Case, measure: MeasureToFile) -> None:
        """Prepare; the case's scheduler is the mode with what is fixed of its parameters."""
        self._scenario, self._case, self._measure = scenario, case, measure
        self._mode = parse_scheduler(case.scheduler)
        self._tenants = scenario.tenants_of(case.variant)
        self._runs = WhichRuns(scenario, measure)
        self.space = space_of(self._mode, self._tenants)

    def search(
        self, trials: int, seed: int, tried: Callable[[Trial], bool] = lambda _: True
    ) -> list[Trial]:
        """Measure up to so many distinct proposals, in order; ``tried`` says whether to go on.

        Raises:
            ModuleNotFoundError: if optuna is not installed; the text says how to get it.

        """
        try:
            import optuna
        except ModuleNotFoundError:
            raise ModuleNotFoundError(INSTALL) from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=max(4, trials // 3))
        # Near the best the sampler repeats itself; a random proposal then leads it on.
        elsewhere = optuna.samplers.RandomSampler(seed=seed)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        found: dict[str, Trial] = {}
        for _ in range(_ASKED_PER_TRIAL * trials):
            asked = study.ask()
            text = self._proposed(asked)
            if text is None or text in found:
                study.tell(asked, state=optuna.trial.TrialState.FAIL)
                study.sampler = elsewhere
                continue
            study.sampler = sampler
            trial = found[text] = self._try(text)
            if trial.score is None:
                study.tell(asked, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(asked, trial.score)
            if not tried(trial) or len(found) == trials:
                break
        return list(found.values())

    def confirm(self, scheduler: str, windows: int) -> Confirmation:
        """Measure a winner and native in turn, in so many fresh windows each, and compare."""
        # The search had the arrivals of the first window.
        fresh = WhichRuns(
            self._scenario,
            lambda run, peaks, share, number: self._measure(run, peaks, share, number + 1),
        )
        cases = [replace(self._case, scheduler=each) for each in (NATIVE, scheduler)]
        for number, case in turns(cases, windows):
            fresh.measure_window(case, number)
        native, winner = cases
        for case in cases:
            bad = _bad(fresh, self._scenario, case)
            if bad:
                return Confirmation(False, f"{case.scheduler}: {bad}")
        kept = {
            name: over_sessions.ratio(
                figures.throughput,
                fresh.windows(own_run(self._scenario, winner), name),
                fresh.windows(own_run(self._scenario, native), name),
                CONFIDENCE,
            )
            for name in others(self._tenants)
        }
        return compared(fresh.judge(winner), fresh.judge(native), kept)

    def _proposed(self, trial: optuna.Trial) -> str | None:
        """Return a proposal's text; None if the mode refuses it."""
        values = {
            name: f"{trial.suggest_int(name, of.least, of.most, step=of.step, log=of.log)}{of.unit}"
            for name, of in self.space.items()
        }
        pairs = ",".join(f"{n}={v}" for n, v in {**self._mode.parameters, **values}.items())
        try:
            return str(parse_scheduler(f"{self._mode.declaration.name}:{pairs}"))
        except BadScheduler:
            # Parameters may exclude each other, such as a batch above the threshold.
            return None

    def _try(self, scheduler: str) -> Trial:
        case = replace(self._case, scheduler=scheduler)
        native = replace(self._case, scheduler=NATIVE)
        for each in (native, case):
            self._runs.measure_window(each, 1)
            bad = _bad(self._runs, self._scenario, each)
            if bad:
                return Trial(scheduler, None, reason=f"{each.scheduler}: {bad}")
        goals = self._runs.judge(case)
        beyond = max((m for goal in goals if (m := margin_of(goal, _FAR)) is not None), default=0.0)
        if beyond > 0:
            return Trial(scheduler, -beyond, goals)
        rates = [self._rates(each) for each in (case, native)]
        kept = [own / reference for own, reference in zip(*rates, strict=True) if reference > 0]
        return Trial(scheduler, min(kept, default=0.0), goals)

    def _rates(self, case: Case) -> list[float]:
        (record,) = self._runs.records(own_run(self._scenario, case))
        throughputs = [record.tenant(name).throughput for name in others(self._tenants)]
        return [0.0 if each is None else each.requests_per_s for each in throughputs]


def _bad(runs: WhichRuns, scenario: Scenario, case: Case) -> str:
    records = runs.found(own_run(scenario, case))
    return next((f"{r.status}: {r.reason}" for r in records if r.status != "ok"), "")


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """Return the trial of the highest score, the first of equal ones; None if all failed."""
    good = [trial for trial in trials if trial.score is not None]
    return max(good, key=lambda trial: trial.score or 0.0, default=None)


def compared(
    goals: list[GoalResult], native: list[GoalResult], kept: Mapping[str, Estimate]
) -> Confirmation:
    """Return whether a winner is better than native, by fresh windows alone.

    It must be shown to meet all goals, where native is shown to miss one; or, if native misses
    none, to leave every other tenant more throughput than native does.
    """

    def said(won: bool, reason: str) -> Confirmation:
        return Confirmation(won, reason, goals, native, kept)

    lacking = [goal.goal for goal in goals if goal.verdict != "met"]
    if lacking:
        return said(False, f"it was not shown to meet {', '.join(lacking)}")
    missed = [goal.goal for goal in native if goal.verdict == "missed"]
    if missed:
        return said(True, f"it meets all goals, and native misses {', '.join(missed)}")
    if kept and all(estimate.low > 1 for estimate in kept.values()):
        return said(True, f"it leaves more throughput to {', '.join(kept)} than native does")
    return said(False, "it was not shown to be better than native, which misses no goal")
