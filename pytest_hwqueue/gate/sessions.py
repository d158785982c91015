"""How much sessions of unchanged code differ, as far as a baseline's own runs show it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist, fmean, median

from pytest_hwqueue.gate.calibrate import shares
from pytest_hwqueue.gate.runs import SHARE, ProcessRun, isolated
from pytest_hwqueue.gate.statistics import session_share
from pytest_hwqueue.gate.verdict import ITERATION_TIME, GateSettings, Quantity, percent
from pytest_hwqueue.metrics.dependence import chi2_quantile

LEAST_SESSIONS = 4
"""With fewer sessions their spread is not estimated: the settings' ``session_effect`` applies."""

CONFIDENCE = 0.9
"""Of the upper bound of the spread that all cells show: one-sided."""

SURE = 0.99
"""Of that of one cell. It is seldom the lower one, but spares quiet cells among noisy ones."""


@dataclass(frozen=True, slots=True)
class _Sessions:
    """One cell's sessions: their means, about the mean of them, and the variance of runs in them.

    ``noise`` is what runs add to the variance of a session's mean; None if no session has two runs.
    """

    deviations: Mapping[str, float]
    noise: float | None

    @property
    def most(self) -> float:
        """What its sessions differ by at most, as a standard deviation, by this cell alone."""
        freedom = len(self.deviations) - 1
        between = math.fsum(value**2 for value in self.deviations.values()) / freedom
        return math.sqrt(max(0.0, between * _upper(freedom, SURE) - (self.noise or 0.0)))


def with_session_effect(
    baselines: Mapping[str, Sequence[ProcessRun]],
    quantities: Mapping[str, Quantity],
    settings: GateSettings,
) -> dict[str, GateSettings]:
    """Return each cell's settings, in which ``tau`` is the session effect to allow for.

    Cells with 4 sessions or more have the upper bound of what the sessions of all such cells show
    of their quantity or of the time per iteration, whichever is more, or what a cell's own sessions
    show for sure if that is less; all others have ``settings.session_effect``. Nobody has less than
    ``settings.tau``, which counts alone if the user vouches for it.

    Args:
        baselines: runs by cell.
        quantities: of each cell.
        settings: of the gate.
    """
    if not settings.allows_for_sessions:
        return dict.fromkeys(baselines, settings)
    seen: dict[str, dict[str, _Sessions]] = {}
    for key, runs in baselines.items():
        times = [(run.iteration_ns or math.nan, run.session) for run in runs]
        both = {ITERATION_TIME.name: times}
        both[quantities[key].name] = [(run.value, run.session) for run in runs]
        for name, values in both.items():
            if sessions := _sessions(values):
                seen.setdefault(name, {})[key] = sessions
    chosen: dict[str, float] = {}
    for cells in seen.values():
        all_cells = _session_sd(list(cells.values()), settings.session_effect)
        for key, cell in cells.items():
            found = min(all_cells, cell.most)
            chosen[key] = max(found, settings.tau, chosen.get(key, 0.0))
    stated = max(settings.tau, settings.session_effect)
    made = {tau: replace(settings, tau=tau) for tau in {stated, *chosen.values()}}
    return {key: made[chosen.get(key, stated)] for key in baselines}


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
        f"{percent(math.expm1(most))[1:]} may be the session's"
    )


def _session_sd(cells: Sequence[_Sessions], stated: float) -> float:
    """Return an upper bound of the standard deviation between sessions, of ln figure.

    A session moves all cells alike, or each in its own way. What they share is the median over
    cells of a session's mean, and has as few degrees of freedom as there are sessions. What is
    left is each cell's own, and all cells together show it: the variance of a cell's session means
    less that of the runs in them (one-way analysis of variance), of which the median over cells
    counts, so that one wild cell is not every cell's noise. Each part is multiplied by the upper
    bound of a variance with its degrees of freedom; a median has 2/pi of those of a mean.

    Where no session has two runs, runs and sessions cannot be told apart: a cell's own part is then
    what both amount to, at most ``stated``.
    """
    number = len(cells)
    by_session: dict[str, list[float]] = {}
    for cell in cells:
        for session, deviation in cell.deviations.items():
            by_session.setdefault(session, []).append(deviation)
    common = {session: median(values) for session, values in by_session.items()}
    freedom = len(common) - 1
    noise = median(cell.noise or 0.0 for cell in cells)
    shared = math.fsum(value**2 for value in common.values()) / freedom * _upper(freedom)
    variance = max(0.0, shared - noise / number)
    if number > 1:
        variance += max(0.0, median(_own(cell, common, number, stated) for cell in cells))
    elif cells[0].noise is None:
        variance = min(variance, stated**2)
    return math.sqrt(variance)


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


def _sessions(values: Sequence[tuple[float, str]]) -> _Sessions | None:
    """Return a cell's sessions without isolated runs; None if they are fewer than 4.

    Args:
        values: of each run, with its session.
    """
    sound = [each for each in values if math.isfinite(each[0]) and each[0] > 0]
    logs = [math.log(value) for value, _ in sound]
    wild = isolated(logs, max(1, len(logs) // SHARE)) if len(logs) > LEAST_SESSIONS else ()
    by_session: dict[str, list[float]] = {}
    for i, (_, session) in enumerate(sound):
        if i not in wild:
            by_session.setdefault(session, []).append(logs[i])
    if len(by_session) < LEAST_SESSIONS:
        return None
    means = {session: fmean(values) for session, values in by_session.items()}
    centre = fmean(means.values())
    within = len(sound) - len(wild) - len(means)
    noise = None
    if within:
        squares = math.fsum((v - means[key]) ** 2 for key, own in by_session.items() for v in own)
        noise = (
            squares
            / within
            / _middle(within)
            * fmean(1 / len(values) for values in by_session.values())
        )
    return _Sessions({key: mean - centre for key, mean in means.items()}, noise)
