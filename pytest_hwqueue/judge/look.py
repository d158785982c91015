"""One look at a cell: old runs beside new ones, their figures and their failures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import fdtr, stdtr

from pytest_hwqueue.data.metrics.dependence import student_quantile
from pytest_hwqueue.data.metrics.numbers import ratio_of
from pytest_hwqueue.judge.calibrate import LEAST_RUNS_EXACT
from pytest_hwqueue.judge.runs import (
    SPREAD_OF_NORMAL,
    ProcessRun,
    SetAside,
    gaps_spread,
    isolated,
    isolated_pairs,
    least_spread,
    most_set_aside,
    pair_gaps,
    pairs_separation,
    separation,
)
from pytest_hwqueue.judge.statistics import (
    MeanDifference,
    compare,
    compare_pairs,
    exact_p,
    least_p,
    session_share,
)
from pytest_hwqueue.judge.verdict import GateSettings


@dataclass(frozen=True, slots=True)
class Failures:
    """How the share of failed requests compares; ``p`` is exact, ``least_p`` its floor.

    ``seen`` says that any failed, old or new, and ``apart`` how clearly all runs stand at two
    levels, blind to labels (`runs.separation`).

    Failures cluster in runs as latencies do, so runs are relabelled, not requests: Fisher's test on
    totals would count one bad run with a hundred failures as a hundred witnesses.
    """

    seen: bool
    apart: float
    rose: bool
    p: float
    least_p: float

    def acquitted(self, screen: float) -> bool:
        """Whether no rise shows; too few runs to show one do not acquit."""
        return not self.rose or (self.least_p <= screen < self.p)


def compare_failures(
    baseline: Sequence[ProcessRun], new: Sequence[ProcessRun], settings: GateSettings
) -> Failures:
    """Compare each run's share of failed requests; both sides have a run."""
    paired, floor = settings.paired, settings.floor
    x = tuple(run.failure_share for run in baseline)
    y = tuple(run.failure_share for run in new)
    rose = math.fsum(y) / len(y) > math.fsum(x) / len(x)
    return Failures(
        seen=any((*x, *y)),
        apart=pairs_separation(x, y, floor) if paired else separation((*x, *y), len(y), floor),
        rose=rose,
        p=exact_p(x, y, paired=paired) if rose else 1.0,
        least_p=least_p(len(x), len(y), paired=paired),
    )


UPPER_CONFIDENCE = 0.975
"""Of the one-sided upper limit of the change at each look. Over all looks a true change of
``detect`` then passes in 3 to 5 % of cells (tools/gate_robust.py power)."""

FUTILITY = 0.10
"""More runs are not asked for what is less likely than this to come at the last look: to see a rise
of the minimum effect (the cell is acquitted), or to exclude ``detect`` (it is blind)."""


@dataclass(frozen=True, slots=True)
class FigureEvidence:
    """What one figure shows at one look. Larger is worse, whatever the quantity.

    Attributes:
        x: logarithms of the baseline's runs that are judged, without those set aside.
        y: the same of the new runs.
        aside: the runs set aside.
        thin: whether too few runs are left to acquit.
        difference: of the means.
        p_t: of the t-test without a session term, which acquits.
        upper: one-sided 97.5 % upper limit of the mean difference, with the session term.
        futile: whether the last look is unlikely to see a rise of the minimum effect.
        hopeless: whether the last look is unlikely to exclude ``detect``, for noise.
        settings: of the gate, with the session effect that the figure is allowed.
    """

    x: tuple[float, ...]
    y: tuple[float, ...]
    aside: tuple[SetAside, ...]
    thin: bool
    difference: MeanDifference
    p_t: float
    upper: float
    futile: bool
    hopeless: bool
    settings: GateSettings

    @property
    def is_worse(self) -> bool:
        """Whether the new runs look worse by at least the minimum effect."""
        return self.difference.mean >= math.log1p(self.settings.min_effect)

    @property
    def p_above(self) -> float:
        """The p of the t-test of the figure being worse, allowing for sessions."""
        return self.difference.p_above(self.settings.tau)

    @property
    def excludes(self) -> bool:
        """Whether a worsening of the settings' ``detect`` is excluded, which is what a pass says.

        The upper limit must be below it, and must be so even if no change had been seen: new runs
        that are faster by luck cannot make up for noise in which the change could hide. Runs that
        are faster beyond luck can.
        """
        luck, settings = min(0.0, self.difference.mean), self.settings
        if self.difference.p_below(settings.tau) <= settings.warn:
            luck = 0.0
        return not self.thin and self.upper - luck < math.log1p(settings.detect)

    def settled(self, *, convicting: bool) -> bool:
        """Whether nothing suggests a worsening, nor that one is about to show.

        A new run that was set aside for being slow may be the first of many, so then only a look
        that may convict settles the cell.

        Args:
            convicting: whether this look may convict.
        """
        wary = any(run.side == "new" and run.factor > 1 for run in self.aside)
        return self.calm and (convicting or not wary)

    @property
    def calm(self) -> bool:
        """Whether nothing suggests a worsening: the t-test sees none, or more runs hardly would."""
        return self.p_t > self.settings.screen or self.futile

    @property
    def spread(self) -> float:
        """The noise of all judged runs, blind to labels; see `least_spread`."""
        if self.settings.paired:
            return max(gaps_spread(pair_gaps(self.x, self.y)), self.settings.floor)
        return max(least_spread((*self.x, *self.y)), self.settings.floor)

    def apart(self, new_runs: int) -> float:
        """Return how clearly all judged runs stand at two levels, blind to labels.

        Which of the runs set aside are new is not asked: the clearest of all cases counts.

        Args:
            new_runs: of all, with those set aside.
        """
        floor = self.settings.floor
        if self.settings.paired:
            return pairs_separation(self.x, self.y, floor)
        judged, gone = (*self.x, *self.y), len(self.aside)
        return max(separation(judged, new_runs - i, floor) for i in range(gone + 1))

    def exact(self) -> float:
        """Return the exact p of the new runs being worse."""
        paired = self.settings.paired
        return exact_p(self.x, self.y, paired=paired) if self.x and self.y else 1.0


def weigh(
    logs: Sequence[float], sessions: Sequence[str], runs: int, settings: GateSettings
) -> FigureEvidence:
    """Weigh one figure of all runs so far.

    From 5 baseline runs on, isolated runs are set aside first; smaller baselines, which normal
    theory judges, are taken as they are. Of pairs those are set aside whose runs differ by far
    more than in the others, whichever of the two is the greater one.

    Args:
        logs: shape (K + M,), the figure's logarithms, first of the baseline's runs; larger is
            worse, whatever the quantity; K >= 1, M >= 1, K + M >= 3; of pairs, K = M >= 2.
        sessions: of the runs.
        runs: K.
        settings: of the gate.
    """
    all_x, all_y = tuple(logs[:runs]), tuple(logs[runs:])
    chosen: frozenset[int] = frozenset()
    if runs >= LEAST_RUNS_EXACT and settings.paired:
        pairs = isolated_pairs(all_x, all_y)
        chosen = pairs | {runs + pair for pair in pairs}
    elif runs >= LEAST_RUNS_EXACT:
        chosen = isolated(logs, most_set_aside(runs, len(all_y)))
    old_kept = [i for i in range(runs) if i not in chosen]
    new_kept = [i for i in range(runs, len(logs)) if i not in chosen]
    thin = bool(chosen) and (len(old_kept) < LEAST_RUNS_EXACT or len(new_kept) < 2)
    x, y = tuple(logs[i] for i in old_kept), tuple(logs[i] for i in new_kept)
    # With no new run left there is still a difference to report: that of all.
    shown_x, shown_y = (x, y) if y else (all_x, all_y)
    if settings.paired:
        difference = compare_pairs(shown_x, shown_y, settings.floor)
    else:
        shares = (
            session_share([sessions[i] for i in side])
            for side in (old_kept, new_kept or range(runs, len(logs)))
        )
        difference = compare(shown_x, shown_y, settings.floor, sum(shares))
    error, freedom = difference.error(settings.tau), difference.freedom_with(settings.tau)
    centre = math.fsum((*x, *y)) / len((*x, *y))
    blamed = chosen
    if settings.paired:
        # The other run of a pair is gone, too, but not to blame.
        blamed = frozenset(
            max(i, i + runs, key=lambda run: abs(logs[run] - centre)) for i in chosen if i < runs
        )
    return FigureEvidence(
        x=x,
        y=y,
        aside=tuple(
            SetAside("baseline", i + 1, sessions[i], ratio_of(logs[i] - centre))
            if i < runs
            else SetAside("new", i - runs + 1, sessions[i], ratio_of(logs[i] - centre))
            for i in sorted(blamed)
        ),
        thin=thin,
        difference=difference,
        p_t=difference.p_above(0),
        upper=difference.mean + student_quantile(UPPER_CONFIDENCE, freedom) * error,
        futile=_futile(difference, len(y), settings),
        hopeless=_hopeless(difference, x, y, settings),
        settings=settings,
    )


def _futile(difference: MeanDifference, new_runs: int, settings: GateSettings) -> bool:
    """Whether the minimum effect is unlikely to be seen at the last look.

    Given the runs so far, the difference at the last look is t-distributed about the present one
    with variance ``s^2 (1/M - 1/T)``: its predictive distribution under a flat prior
    (Spiegelhalter, Freedman & Blackburn, Controlled Clinical Trials 7, 1986).
    """
    if new_runs < 1 or new_runs >= settings.last_look:
        return False
    # Of the spread seen, without the floor: runs that agree will not come to differ.
    error = difference.seen_sd * math.sqrt(1 / new_runs - 1 / settings.last_look)
    missing = math.log1p(settings.min_effect) - difference.mean
    if error == 0:
        return missing > 0
    return float(stdtr(difference.freedom, -missing / error)) < FUTILITY


def _hopeless(
    difference: MeanDifference,
    x: tuple[float, ...],
    y: tuple[float, ...],
    settings: GateSettings,
) -> bool:
    """Whether the last look is unlikely to exclude ``detect`` even if no change shows there.

    It could with a standard deviation of at most ``s_T``, where half the interval is ``detect``.
    The variance of the runs to come, over the present one, is F-distributed; pooled, both must stay
    below ``s_T^2``. The present one is of the runs as if they stood at two levels, so that a wild
    run, which a later look may set aside, does not count as noise.
    """
    last = max(settings.last_look, len(y))
    missing = last - len(y)
    if not missing or not x:
        return False
    freedom = difference.freedom + missing
    half = math.log1p(settings.detect) / student_quantile(UPPER_CONFIDENCE, freedom)
    most = (half**2 - settings.tau**2 * difference.session_share) / (1 / len(x) + 1 / last)
    present = max(least_spread((*x, *y)) / SPREAD_OF_NORMAL, settings.floor) ** 2
    to_come = (freedom * most / present - difference.freedom) / missing
    return float(fdtr(missing, difference.freedom, max(0.0, to_come))) < FUTILITY
