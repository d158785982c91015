"""Estimates a machine's noise from runs of unchanged code, and what the gate can detect."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytest_hwqueue.gate.detectable import detectable_effect, runs_needed
from pytest_hwqueue.gate.runs import ProcessRun
from pytest_hwqueue.gate.settings import GateSettings
from pytest_hwqueue.metrics.distributions import chi2_quantile, f_quantile

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
    over 60.
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


@dataclass(frozen=True)
class Calibration:
    """All cells' noise, and the session term to gate with (``None`` if unknown)."""

    cells: dict[str, CellCalibration]
    tau: float | None


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
    variances = {}
    for key, runs in cells.items():
        if any(not (math.isfinite(run.value) and run.value > 0) for run in runs):
            raise ValueError(f"{key}: every run's value must be finite and above 0 to calibrate")
        variances[key] = _variances(key, runs)
    between = [max(0.0, v.session) for v in variances.values() if v.session is not None]
    tau = None
    if between:
        root = math.sqrt(math.fsum(between) / len(between))
        tau = max(settings.floor, math.ceil(round(root / _TAU_STEP, 6)) * _TAU_STEP)
    used = settings if tau is None else replace(settings, tau=tau)
    return Calibration(
        cells={
            key: _cell(runs, variances[key], used, max(1, len(cells)))
            for key, runs in sorted(cells.items())
        },
        tau=tau,
    )


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


@dataclass(frozen=True)
class _Variances:
    sessions: int
    run: float
    run_interval: tuple[float, float]
    session: float | None
    session_interval: tuple[float, float] | None


def _variances(key: str, runs: Sequence[ProcessRun]) -> _Variances:
    by_session: dict[str, list[float]] = {}
    for run in runs:
        by_session.setdefault(run.session, []).append(math.log(run.value))
    groups = [np.array(values) for values in by_session.values()]
    sizes = np.array([len(group) for group in groups])
    total, number = int(sizes.sum()), len(groups)
    within = total - number
    if within < 1:
        raise ValueError(f"{key}: needs a session of two runs or more to tell runs from sessions")
    squares = math.fsum(float(((group - group.mean()) ** 2).sum()) for group in groups)
    variance = squares / within
    tails = ((1 + CONFIDENCE) / 2, (1 - CONFIDENCE) / 2)
    run_low, run_high = (squares / chi2_quantile(tail, within) for tail in tails)
    if number < 2:
        return _Variances(number, variance, (run_low, run_high), None, None)
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
    interval = (max(0.0, low), max(0.0, high))
    return _Variances(number, variance, (run_low, run_high), session, interval)


def _cell(
    runs: Sequence[ProcessRun], variances: _Variances, settings: GateSettings, cells: int
) -> CellCalibration:
    session = variances.session
    total_sd = max(math.sqrt(variances.run + max(0.0, session or 0.0)), settings.floor)
    warning = drift_alarm(runs)
    if not warning and variances.sessions < LEAST_SESSIONS:
        warning = (
            f"{variances.sessions} sessions say little of how sessions differ: take "
            f"{LEAST_SESSIONS} or more"
        )
    interval = variances.session_interval
    return CellCalibration(
        runs=len(runs),
        sessions=variances.sessions,
        run_sd=math.sqrt(variances.run),
        run_sd_interval=_roots(variances.run_interval),
        session_sd=None if session is None else math.sqrt(max(0.0, session)),
        session_sd_interval=interval and _roots(interval),
        detectable=detectable_effect(total_sd, len(runs), settings, cells),
        runs_needed=runs_needed(total_sd, settings.detect, settings, cells),
        warning=warning,
    )


def _roots(interval: tuple[float, float]) -> tuple[float, float]:
    return math.sqrt(interval[0]), math.sqrt(interval[1])
