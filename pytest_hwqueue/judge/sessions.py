"""How much sessions of unchanged code differ, as far as a baseline's own runs show it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist, fmean, median, stdev

from pytest_hwqueue.data.metrics.dependence import chi2_quantile
from pytest_hwqueue.data.metrics.numbers import grouped, rise_of
from pytest_hwqueue.judge.calibrate import shares
from pytest_hwqueue.judge.runs import SHARE, ProcessRun, isolated
from pytest_hwqueue.judge.statistics import session_share
from pytest_hwqueue.judge.verdict import ITERATION_TIME, GateSettings, Quantity, percent

LEAST_SESSIONS = 4
"""With fewer sessions their spread is not estimated: the settings' ``session_effect`` applies."""

CONFIDENCE = 0.9
"""Of the upper bound of the spread that all cells show: one-sided."""

LEAST_TAU = 0.0025
"""Where cells have least effects of their own, however little their sessions differ. With it +2 %
is found at an sd of 0.5 % between runs; those of an H200's quietest cells differ by 0.02 to 0.13 %.
"""

PROPORTION = 0.6
"""Of the standard deviation of a cell's runs: what its sessions may differ by where that is not
seen, if it is more than the settings' session effect. Sixteen cells of an H200 showed 0.64."""

SURE = 0.99
"""Of that of one cell. It is seldom the lower one, but spares quiet cells among noisy ones."""

ODD = 0.5
"""Of a cell's sessions differing by no more than those of all cells, one-sided: beyond it they are
taken to. Of 160 suites of 100 quiet cells, 9 of which have sessions that differ by 1 %, 12 failed
at 0.75 and 5 at 0.5 (10 or 20 runs of five sessions)."""


@dataclass(frozen=True, slots=True)
class _Sessions:
    """One cell's sessions: their means, about the mean of them, and the variance of runs in them.

    ``run_variance`` is of the runs in a session, None if no session has two; ``inverse_runs`` times
    that is what they add to the variance of a session's mean.
    """

    deviations: Mapping[str, float]
    run_variance: float | None
    inverse_runs: float

    @property
    def noise(self) -> float | None:
        """What runs add to the variance of a session's mean."""
        return None if self.run_variance is None else self.run_variance * self.inverse_runs

    @property
    def variance(self) -> float:
        """The variance of the sessions' means."""
        squares = math.fsum(value**2 for value in self.deviations.values())
        return squares / (len(self.deviations) - 1)

    @property
    def most(self) -> float:
        """What its sessions differ by at most, as a standard deviation, by this cell alone."""
        sure = self.variance * _upper(len(self.deviations) - 1, SURE)
        return math.sqrt(max(0.0, sure - (self.noise or 0.0)))

    def exceeds(self, sd: float) -> bool:
        """Whether its sessions differ by more than ``sd`` and its runs explain; see `ODD`."""
        freedom = len(self.deviations) - 1
        expected = sd**2 + (self.noise or 0.0)
        return self.variance > expected * chi2_quantile(ODD, freedom) / freedom


@dataclass(frozen=True, slots=True)
class Allowing:
    """A cell's settings, in which ``tau`` is the session effect to allow for, by figure."""

    main: GateSettings
    companion: GateSettings


def with_session_effect(
    baselines: Mapping[str, Sequence[ProcessRun]],
    quantities: Mapping[str, Quantity],
    settings: GateSettings,
    sessionless: Collection[str] = (),
) -> dict[str, Allowing]:
    """Return each cell's settings, with the session effect to allow its figures for.

    Cells with 4 sessions or more have the upper bound of what the sessions of all such cells show
    of the quantity, or of the time per iteration, or what a cell's own sessions show for sure if
    that is less; with least effects of cells' own, the latter also where a cell's sessions differ
    by more than those of all cells explain. All others have
    ``settings.session_effect``, or 0.6 of the standard deviation of their runs if that is more.
    Nobody has less than ``settings.tau``, or than `LEAST_TAU` with least effects of cells' own;
    ``settings.tau`` counts alone if the user vouches for it. Cells of a device that is only a model
    have no session effect.

    Args:
        baselines: runs by cell.
        quantities: of each cell.
        settings: of the gate.
        sessionless: cells whose sessions cannot differ.
    """
    if not settings.allows_for_sessions:
        return dict.fromkeys(baselines, Allowing(settings, settings))
    if sessionless:
        alike = replace(settings, tau=0.0)
        others = {key: runs for key, runs in baselines.items() if key not in sessionless}
        found = with_session_effect(others, quantities, settings)
        return {key: found.get(key, Allowing(alike, alike)) for key in baselines}
    least = LEAST_TAU if settings.own_effects else settings.tau
    seen: dict[str, dict[str, _Sessions]] = {}
    allowed: dict[tuple[str, str], float] = {}
    for key, runs in baselines.items():
        times = [(run.iteration_ns or math.nan, run.session) for run in runs]
        both = {ITERATION_TIME.name: times}
        both[quantities[key].name] = [(run.value, run.session) for run in runs]
        for name, values in both.items():
            logs, sessions = sound_logs(values)
            if len(set(sessions)) >= LEAST_SESSIONS:
                seen.setdefault(name, {})[key] = _sessions(logs, sessions)
                continue
            spread = stdev(logs) if len(logs) > 1 else 0.0
            allowed[name, key] = max(settings.tau, settings.session_effect, PROPORTION * spread)
    for name, cells in seen.items():
        known = _SessionEffect.of(list(cells.values()), settings.session_effect)
        for key, cell in cells.items():
            shown = known.sd(cell)
            # A least effect of 5 % covers a cell whose sessions differ more; a lower one does not.
            if settings.own_effects and cell.exceeds(max(least, shown)):
                shown = math.inf
            allowed[name, key] = max(least, min(shown, cell.most))

    return {
        key: Allowing(
            replace(settings, tau=allowed[quantities[key].name, key]),
            replace(settings, tau=allowed[ITERATION_TIME.name, key]),
        )
        for key in baselines
    }


def unknown_sessions(runs: Sequence[ProcessRun], settings: GateSettings, cells: int) -> str:
    """Say what a baseline of too few sessions cannot tell, or return an empty string.

    Args:
        runs: the baseline's.
        settings: of the cell, with the session effect that is allowed for.
        cells: how many share the error rate.
    """
    sessions = [run.session for run in runs]
    number = len(set(sessions))
    stated = settings.allows_for_sessions and settings.tau >= settings.session_effect
    if number >= LEAST_SESSIONS or not stated:
        return ""
    alpha = shares(len(runs), settings, cells)[-1] * settings.rate / cells
    share = 1 + session_share(sessions)
    most = NormalDist().inv_cdf(1 - alpha) * settings.tau * math.sqrt(share)
    return (
        f"the baseline is of {number} session{'s' * (number > 1)}: differences below "
        f"{percent(rise_of(most))[1:]} may be the session's"
    )


@dataclass(frozen=True, slots=True)
class _SessionEffect:
    """What the sessions of all cells differ by at most, of ln figure.

    A session moves all cells alike, or each in its own way. What they share is the median over
    cells of a session's mean, and has as few degrees of freedom as there are sessions. What is
    left is each cell's own, and all cells together show it: the variance of a cell's session means
    less that of the runs in them (one-way analysis of variance), of which the median over cells
    counts, so that one wild cell is not every cell's noise. Each part is multiplied by the upper
    bound of a variance with its degrees of freedom; a median has 2/pi of those of a mean.

    Cells differ: where runs do by much, sessions do (docs/decisions.md, "Sessions differ in
    proportion to runs"). So a cell's own part is the median as such, or in proportion to the
    variance of its runs as all but the quietest cells show it, whichever is more.

    Where no session has two runs, runs and sessions cannot be told apart: a cell's own part is then
    what both amount to, at most what the settings state, or in proportion to both.

    Attributes:
        shared: variance that all cells share.
        own: variance of each cell's own part.
        relative: the same over the variance of a cell's runs.
        relative_to_both: over the variance of its sessions, where no session has two runs.
    """

    shared: float
    own: float
    relative: float
    relative_to_both: float

    @classmethod
    def of(cls, cells: Sequence[_Sessions], stated: float) -> _SessionEffect:
        """Return what some cells show, ``stated`` being the settings' session effect."""
        number = len(cells)
        by_session = grouped(each for cell in cells for each in cell.deviations.items())
        common = {session: median(values) for session, values in by_session.items()}
        freedom = len(common) - 1
        noise = median(cell.noise or 0.0 for cell in cells)
        sure = math.fsum(value**2 for value in common.values()) / freedom * _upper(freedom)
        shared = max(0.0, sure - noise / number)
        if number == 1:
            (cell,) = cells
            if cell.run_variance is None:
                shared = min(shared, max(stated**2, PROPORTION**2 * cell.variance))
            # All that its sessions differ by is shared, and nothing is left.
            return cls(shared, 0.0, 0.0, 0.0)
        own = median(_own(cell, common, number, stated) for cell in cells)
        known = [(cell.run_variance, cell) for cell in cells if cell.run_variance]
        relative = 0.0
        if len(known) > 1:
            least = median(of_runs for of_runs, _ in known) / 2
            noisy = [each for each in known if each[0] >= least]
            # Of two cells one alone may count, and differs from what it shares with the other.
            count = max(2, len(noisy))
            relative = median(
                _own(cell, common, count, stated) / of_runs for of_runs, cell in noisy
            )
        return cls(shared, max(0.0, own), max(0.0, relative), PROPORTION**2)

    def sd(self, cell: _Sessions) -> float:
        """Return the standard deviation between sessions to allow a cell."""
        if cell.run_variance is None:
            relative = self.relative_to_both * cell.variance
        else:
            relative = self.relative * cell.run_variance
        return math.sqrt(self.shared + max(self.own, relative))


def _own(cell: _Sessions, common: Mapping[str, float], cells: int, stated: float) -> float:
    """Return the upper bound of the variance of a cell's own session effect; may be negative."""
    freedom = len(cell.deviations) - 1
    squares = math.fsum((value - common[key]) ** 2 for key, value in cell.deviations.items())
    between = squares / freedom / _middle(freedom) * cells / (cells - 1)
    bound = between * _upper(2 / math.pi * freedom * (cells - 1))
    return min(bound, stated**2) if cell.noise is None else bound - cell.noise


@lru_cache(maxsize=1024)
def _upper(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Return the upper bound of a variance over its estimate."""
    return freedom / chi2_quantile(1 - confidence, freedom)


def _middle(freedom: int) -> float:
    """Return the median of an estimated variance over the true one.

    Wilson and Hilferty's (PNAS 17, 1931).
    """
    return (1 - 2 / (9 * freedom)) ** 3


def sound_logs(values: Sequence[tuple[float, str]]) -> tuple[list[float], list[str]]:
    """Return the logarithms of runs' figures, with their sessions, without isolated runs."""
    sound = [each for each in values if math.isfinite(each[0]) and each[0] > 0]
    logs = [math.log(value) for value, _ in sound]
    wild = isolated(logs, max(1, len(logs) // SHARE)) if len(logs) > LEAST_SESSIONS else ()
    kept = [i for i in range(len(logs)) if i not in wild]
    return [logs[i] for i in kept], [sound[i][1] for i in kept]


def _sessions(logs: Sequence[float], sessions: Sequence[str]) -> _Sessions:
    """Return a cell's sessions, at least two, of the runs' logarithms."""
    by_session = grouped(zip(sessions, logs, strict=True))
    means = {session: fmean(values) for session, values in by_session.items()}
    centre = fmean(means.values())
    within = len(logs) - len(means)
    run_variance = None
    if within:
        squares = math.fsum((v - means[key]) ** 2 for key, own in by_session.items() for v in own)
        run_variance = squares / within / _middle(within)
    inverse_runs = fmean(1 / len(values) for values in by_session.values())
    deviations = {key: mean - centre for key, mean in means.items()}
    return _Sessions(deviations, run_variance, inverse_runs)
