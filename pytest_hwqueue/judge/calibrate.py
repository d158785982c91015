"""What a cell can detect, and the settings that a baseline's own runs suggest."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from scipy.special import bdtri

from pytest_hwqueue.data.metrics.dependence import chi2_quantile, f_quantile, student_quantile
from pytest_hwqueue.data.metrics.numbers import counted, grouped, rise_of
from pytest_hwqueue.judge.runs import ProcessRun
from pytest_hwqueue.judge.statistics import least_p
from pytest_hwqueue.judge.verdict import GateSettings

MOST_RUNS = 60
"""Beyond this many runs a side, more runs are no answer: the noise has to be reduced."""

LEAST_RUNS = 3
"""With fewer baseline runs the gate convicts nobody."""

LEAST_RUNS_EXACT = 5
"""From this many baseline runs on, the exact test decides and nothing is assumed of the noise."""


def detectable_effect(
    sd: float,
    runs: int,
    settings: GateSettings,
    cells: int,
    *,
    last_look: int | None = None,
    session_share: float | None = None,
) -> float:
    """Return the smallest true rise detected with ``settings.power``, as a fraction.

    It is the largest that three conditions require: not being acquitted at the first pass, being
    convicted at the last look at the rate of one cell, and being seen above ``min_effect``:
    ``exp(max{(t_screen + t_power) s sqrt(1/K + 1/M), (t_alpha + t_power) sqrt(s^2 (1/K + 1/T) +
    tau^2 (1 + 1/K)), ln(1 + min_effect) + z_power s sqrt(1/K + 1/T)}) - 1``. That is the usual
    approximation of the power of t by a shifted central t; simulated power agrees with it.

    Args:
        sd: standard deviation of the logarithm of the figure between runs.
        runs: baseline runs K, with ``first_runs`` at least 2 >= 1.
        settings: of the gate.
        cells: how many cells share the error rate.
        last_look: T, if different from the settings' last look.
        session_share: of both sides, if the baseline's runs do not have a session each.
    """
    tested, above = _reach(sd, runs, settings, cells, last_look, session_share)
    return rise_of(max(tested, math.log1p(settings.min_effect) + above))


def least_effect(
    sd: float, runs: int, settings: GateSettings, cells: int, *, session_share: float | None = None
) -> float:
    """Return the largest minimum effect that does not make the gate detect less, as a fraction.

    A smaller one would find nothing more: the tests themselves hardly call such a rise. Arguments
    are those of `detectable_effect`; the settings' own ``min_effect`` does not count.
    """
    tested, above = _reach(sd, runs, settings, cells, None, session_share)
    return rise_of(tested - above)


def _reach(
    sd: float,
    runs: int,
    settings: GateSettings,
    cells: int,
    last_look: int | None,
    session_share: float | None,
) -> tuple[float, float]:
    """Return the rise that the tests detect, and how far a rise must lie above ``min_effect``.

    Both are logarithms; the arguments are those of `detectable_effect`.
    """
    last = settings.last_look if last_look is None else last_look
    share = 1 + 1 / runs if session_share is None else session_share
    first = settings.first_runs - 1 if settings.paired else runs + settings.first_runs - 2
    alpha = shares(runs, settings, cells, last_look=last)[-1] * settings.rate / cells
    screened = (
        student_quantile(1 - settings.screen, first) + student_quantile(settings.power, first)
    ) * (sd * math.sqrt(1 / runs + 1 / settings.first_runs))
    freedom: float = min(runs, last) - 1 if settings.paired else runs + last - 2
    noise = sd**2 * (1 / runs + 1 / last)
    variance = noise + settings.tau**2 * share
    freedom *= (variance / noise) ** 2
    convicted = (
        student_quantile(1 - alpha, freedom) + student_quantile(settings.power, freedom)
    ) * math.sqrt(variance)
    if settings.paired:
        convicted = max(convicted, _signs(sd, min(runs, last), alpha, settings.power))
    return max(screened, convicted), NormalDist().inv_cdf(settings.power) * math.sqrt(noise)


def _signs(sd: float, pairs: int, alpha: float, power: float) -> float:
    """Return the rise with which the signs of the pairs' differences suffice, as a logarithm.

    With few pairs they limit the sign-flip test rather than t: of its 2^P ways, ``alpha`` leaves
    ``2^j``, in which the ``j`` smallest differences may have either sign. So many falls are mostly
    not the smallest ones; half of them are (simulated power: docs/evidence/ab.md).
    """
    falls = max(0, math.floor(math.log2(alpha) + pairs)) // 2
    share = float(bdtri(falls, pairs, power))
    return NormalDist().inv_cdf(1 - share) * math.sqrt(2) * sd


def can_convict(runs: int, last_look: int, settings: GateSettings, cells: int) -> bool:
    """Return whether a cell alone in its suite can be convicted at its last look.

    That needs 3 baseline runs; from 5 on the exact test decides, whose least p is
    ``1 / C(K + T, T)``; of P pairs it is ``2 ** -P``.
    """
    if not is_exact(runs, settings):
        return runs >= LEAST_RUNS
    share = shares(runs, settings, cells, last_look=last_look)[-1]
    return affordable_tests(runs, last_look, share, settings, cells) > 0


def shares(
    runs: int, settings: GateSettings, cells: int, *, last_look: int | None = None
) -> tuple[float, ...]:
    """Return the share of the error rate spent at each look, 1 in all.

    They are the settings' weights, but what suffices for no exact test is left to the last look.
    Only numbers of runs and cells decide, so the rate holds.

    Args:
        runs: baseline runs K.
        settings: of the gate.
        cells: how many cells share the error rate.
        last_look: T, if different from the settings' last look.

    """
    exact = is_exact(runs, settings)
    early = [
        weight if exact and affordable_tests(runs, look, weight, settings, cells) else 0.0
        for look, weight in zip(settings.looks[:-1], settings.weights[:-1], strict=True)
        if last_look is None or look < last_look
    ]
    return (*early, 1 - sum(early))


def is_exact(runs: int, settings: GateSettings) -> bool:
    """Return whether the exact test decides with so many baseline runs, or with pairs."""
    return settings.paired or runs >= LEAST_RUNS_EXACT


def pairs_to_convict(settings: GateSettings, cells: int) -> int:
    """Return how many pairs can convict a cell alone in its suite, one of them being set aside.

    ``2 ** -P`` of the other pairs has to reach half of the cell's rate: two tests may share it.
    """
    return 1 + math.ceil(math.log2(2 * cells / settings.rate))


def affordable_tests(
    runs: int, new_runs: int, weight: float, settings: GateSettings, cells: int
) -> int:
    """Return among how many exact tests a look can divide its share of the rate; 0 if not even one.

    Each of them must be able to convict the cell alone in its suite. More than 3 are never asked.
    """
    floor = least_p(runs, new_runs, paired=settings.paired)
    possible = (tests for tests in (3, 2, 1) if weight)
    return next((n for n in possible if floor * n / weight <= settings.rate / cells), 0)


def runs_to_convict(settings: GateSettings, cells: int) -> int | None:
    """Return the smallest number of baseline runs with which the exact test can convict."""
    counts = range(LEAST_RUNS_EXACT, MOST_RUNS + 1)
    return next((k for k in counts if can_convict(k, settings.last_look, settings, cells)), None)


def look_to_convict(runs: int, settings: GateSettings, cells: int) -> int | None:
    """Return the shortest last look at which the exact test can convict with ``runs`` runs."""
    looks = range(settings.last_look, MOST_RUNS + 1)
    return next((look for look in looks if can_convict(runs, look, settings, cells)), None)


def obstacle_to(runs: int, settings: GateSettings, cells: int) -> str:
    """Return why no new runs could convict a cell of so many baseline runs, or an empty string."""
    if can_convict(runs, settings.last_look, settings, cells):
        return ""
    if runs < LEAST_RUNS:
        return f"{counted(runs, 'baseline run')} cannot tell: record {LEAST_RUNS_EXACT}"
    if settings.paired:
        pairs = pairs_to_convict(settings, cells)
        return f"{counted(runs, 'pair')}: too few for {counted(cells, 'figure')}, needs {pairs}"
    needed, look = runs_to_convict(settings, cells), look_to_convict(runs, settings, cells)
    ways = [f"{needed} baseline runs"] * (needed is not None)
    ways += [f"a last look at {look} new runs"] * (look is not None)
    wanted = " or ".join(ways) or "fewer cells"
    return f"{runs} baseline runs are too few for {counted(cells, 'cell')}: needs {wanted}"


def runs_needed(sd: float, goal: float, settings: GateSettings, cells: int) -> int | None:
    """Return the smallest K = T with which the exact test detects a rise of ``goal``.

    ``None`` if more than 60 a side would be needed.
    """

    def enough(runs: int) -> bool:
        return (
            can_convict(runs, runs, settings, cells)
            and detectable_effect(sd, runs, settings, cells, last_look=runs) <= goal
        )

    # More runs never detect less, so the least number is found by halving.
    counts = range(LEAST_RUNS_EXACT, MOST_RUNS)
    return LEAST_RUNS_EXACT + bisect_left(counts, True, key=enough) if enough(MOST_RUNS) else None


CONFIDENCE = 0.95
DRIFT_CORRELATION = 0.4
DRIFT_RUNS = 10
LEAST_SESSIONS = 5
_TAU_STEP = 0.001


@dataclass(frozen=True)
class CellCalibration:
    """One cell's noise; standard deviations are of the logarithm of the figure.

    ``run_sd`` is between runs of one session, ``session_sd`` between sessions (``None`` if there
    was one), each with its 95 % interval. ``detectable`` is the smallest rise that a baseline of
    this many runs detects, as a fraction; ``runs_needed`` is the K = T for the goal, ``None`` if
    over 60. ``sd_is_floor`` is whether both take the settings' ``floor`` for the noise, the runs'
    own being below it.
    """

    runs: int
    sessions: int
    run_sd: float
    run_sd_interval: tuple[float, float]
    session_sd: float | None
    session_sd_interval: tuple[float, float] | None
    detectable: float
    runs_needed: int | None
    warning: str
    sd_is_floor: bool = False


@dataclass(frozen=True)
class Calibration:
    """All cells' noise, and the session term to gate with (``None`` if unknown).

    ``tau_is_floor`` is whether that is the settings' ``floor``: the sessions' own is below it.
    """

    cells: dict[str, CellCalibration]
    tau: float | None
    tau_is_floor: bool


def calibrate(cells: Mapping[str, Sequence[ProcessRun]], settings: GateSettings) -> Calibration:
    """Estimate from runs of unchanged code how much runs and sessions vary.

    The model is ln value = cell + session + run (one-way, random effects). The estimates are the
    unbalanced analysis of variance's (Searle, Casella & McCulloch, Variance Components, 1992,
    section 3.6). The recommended tau is the root mean square of the cells' session standard
    deviations, rounded up to 0.1 %, and not below the settings' floor, under which noise is not
    believed. It is an estimate: with five sessions its upper bound is some three times as high.

    Args:
        cells: runs by cell in the order measured, of unchanged code, best in 5 sessions or more.
        settings: of the gate that will use these baselines.

    Raises:
        ValueError: if a cell has a value that is not finite and above zero, or no session of two
            runs or more.
    """
    estimates = {}
    for key, runs in sorted(cells.items()):
        if any(not (math.isfinite(run.value) and run.value > 0) for run in runs):
            raise ValueError(f"{key}: every run's value must be finite and above 0 to calibrate")
        estimates[key] = _estimate(key, runs)
    between = [max(0.0, session) for _, session, _ in estimates.values() if session is not None]
    tau, tau_is_floor = None, False
    if between:
        root = math.sqrt(math.fsum(between) / len(between))
        shown = math.ceil(round(root / _TAU_STEP, 6)) * _TAU_STEP
        tau, tau_is_floor = max(settings.floor, shown), shown < settings.floor
    used = settings if tau is None else replace(settings, tau=tau)
    found = {}
    for key, (run, session, cell) in estimates.items():
        seen = math.sqrt(run + max(0.0, session or 0.0))
        sd = max(seen, settings.floor)
        found[key] = replace(
            cell,
            detectable=detectable_effect(sd, cell.runs, used, len(cells)),
            runs_needed=runs_needed(sd, settings.detect, used, len(cells)),
            sd_is_floor=seen < sd,
        )
    return Calibration(found, tau, tau_is_floor)


def drift_alarm(runs: Sequence[ProcessRun]) -> str:
    """Return why a baseline's runs may not be independent, or an empty string.

    The reasons are one session only, and successive runs that resemble each other: a lag-1
    correlation of the logarithms above 0.4, over 10 runs or more.

    Args:
        runs: in the order measured, values finite and above zero.
    """
    advice = "use interleaved confirmation"
    if len(runs) > 1 and len({run.session for run in runs}) == 1:
        return f"all {len(runs)} runs come from one session: {advice}"
    if len(runs) < DRIFT_RUNS:
        return ""
    values = np.log([run.value for run in runs])
    centred = values - values.mean()
    scale = float(centred @ centred)
    correlation = float(centred[:-1] @ centred[1:]) / scale if scale > 0 else 0.0
    if correlation > DRIFT_CORRELATION:
        return f"successive runs correlate by {correlation:.2f}: {advice}"
    return ""


def _estimate(key: str, runs: Sequence[ProcessRun]) -> tuple[float, float | None, CellCalibration]:
    """Return the variance between a cell's runs, that between sessions, and its noise so far."""
    by_session = grouped((run.session, math.log(run.value)) for run in runs)
    groups = [np.array(values) for values in by_session.values()]
    sizes = np.array([len(group) for group in groups])
    total, number = int(sizes.sum()), len(groups)
    within = total - number
    if within < 1:
        raise ValueError(f"{key}: needs a session of two runs or more to tell runs from sessions")
    squares = math.fsum(float(((group - group.mean()) ** 2).sum()) for group in groups)
    variance = squares / within
    tails = ((1 + CONFIDENCE) / 2, (1 - CONFIDENCE) / 2)
    run_low, run_high = (math.sqrt(squares / chi2_quantile(tail, within)) for tail in tails)
    warning = drift_alarm(runs)
    if not warning and number < LEAST_SESSIONS:
        warning = (
            f"{number} sessions say little of how sessions differ: take {LEAST_SESSIONS} or more"
        )
    cell = CellCalibration(
        total, number, math.sqrt(variance), (run_low, run_high), None, None, math.nan, None, warning
    )
    if number < 2:
        return variance, None, cell
    means = np.array([group.mean() for group in groups])
    grand = float(sizes @ means) / total
    between = float(sizes @ (means - grand) ** 2) / (number - 1)
    size = (total - float((sizes**2).sum()) / total) / (number - 1)
    session = (between - variance) / size
    # Williams' interval (Biometrika 49, 1962) with the unweighted means and the harmonic mean of
    # the sizes where sessions differ in size (Thomas & Hultquist, Annals of Statistics 6, 1978).
    harmonic = number / float((1 / sizes).sum())
    spread = harmonic * float(means.var(ddof=1))
    low, high = (
        (number - 1)
        * (spread - variance * f_quantile(tail, number - 1, within))
        / (harmonic * chi2_quantile(tail, number - 1))
        for tail in tails
    )
    session_sd, *ends = (math.sqrt(max(0.0, each)) for each in (session, low, high))
    cell = replace(cell, session_sd=session_sd, session_sd_interval=(ends[0], ends[1]))
    return variance, session, cell
