"""Whether sessions vary as the gate assumes: in two modes, drifting, or like their predecessors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pytest_hwqueue.gate.calibrate import DRIFT_CORRELATION, DRIFT_RUNS
from pytest_hwqueue.history.change_points import ChangePoint

# Of unimodal, or driftless, series: how many are called otherwise.
_RATE = 0.01
_DRAWS = 20_000
_SEED = 0
# A mode is more than an outlier: at least a fifth of the sessions, and at least 3.
_LEAST_SHARE = 0.2
_LEAST_MEMBERS = 3


@dataclass(frozen=True)
class Modes:
    """Two groups of sessions that take turns in no order that a change point explains.

    Attributes:
        ratio: of the slower group's geometric mean to the faster one's, within a level.
        slower_share: of the sessions, those in the slower group.

    """

    ratio: float
    slower_share: float


@dataclass(frozen=True)
class Drift:
    """A trend that steps do not explain.

    Attributes:
        per_session: change from one session to the next, as a fraction (Theil-Sen).
        whole: the same over the whole series, as a fraction.
        p: of Mann and Kendall's test.

    """

    per_session: float
    whole: float
    p: float


def modes(values: Sequence[float], changes: Sequence[ChangePoint]) -> Modes | None:
    """Return the two modes of a series, or None if one normal distribution explains it.

    The test is Engelman and Hartigan's (Percentage Points of a Test for Clusters, JASA 64, 1969):
    the share of the variance that the best division into two groups explains, against its
    distribution in normal samples of as many sessions, at 1 %. It looks at what is left of each
    session once the level between its change points is taken away, so that a step is not
    two modes; a group below a fifth of the sessions is taken for outliers.

    Args:
        values: one per session, above 0, oldest first.
        changes: of the series.

    """
    residuals = np.sort(_residuals(values, changes))
    if len(residuals) < DRIFT_RUNS or np.ptp(residuals) == 0:
        return None
    shares = _explained(residuals[np.newaxis, :])[0]
    if shares.max() <= _critical(len(residuals)):
        return None
    faster = int(shares.argmax()) + _least(len(residuals))
    distance = residuals[faster:].mean() - residuals[:faster].mean()
    return Modes(math.exp(distance), 1 - faster / len(residuals))


def drift(values: Sequence[float], changes: Sequence[ChangePoint]) -> Drift | None:
    """Return a series' drift, or None if it has none or its steps explain it.

    A drift is a trend by Mann and Kendall's test at 1 % (Mann, Econometrica 13, 1945), whose
    straight line explains the series better than its steps by Schwarz's criterion (Annals of
    Statistics 6, 1978). Its slope is Theil and Sen's (Sen, JASA 63, 1968).

    Args:
        values: one per session, above 0, oldest first.
        changes: of the series.

    """
    from scipy.stats import kendalltau, theilslopes

    logs = np.log(np.asarray(values, dtype=np.float64))
    if len(logs) < DRIFT_RUNS or np.ptp(logs) == 0:
        return None
    order = np.arange(len(logs))
    p = float(kendalltau(order, logs).pvalue)
    line = np.polyval(np.polyfit(order, logs, 1), order)
    # A step costs two parameters: its level and its place.
    steps = _schwarz(_residuals(values, changes), 1 + 2 * len(changes))
    if p > _RATE or _schwarz(logs - line, 2) >= steps:
        return None
    slope = float(theilslopes(logs, order)[0])
    return Drift(math.expm1(slope), math.expm1(slope * (len(logs) - 1)), p)


def resemblance(values: Sequence[float], changes: Sequence[ChangePoint]) -> float | None:
    """Return how much sessions resemble their predecessors if that is more than the gate allows.

    It is the lag-1 correlation of what is left of the sessions without their levels; None up to
    the gate's limit (`calibrate.drift_alarm`), and with fewer than 10 sessions. Permutations
    assume that there is none: change points of such a series are less certain than they say.
    """
    residuals = _residuals(values, changes)
    scale = float(residuals @ residuals)
    if len(residuals) < DRIFT_RUNS or scale == 0:
        return None
    correlation = float(residuals[:-1] @ residuals[1:]) / scale
    return correlation if correlation > DRIFT_CORRELATION else None


def spread(values: Sequence[float], changes: Sequence[ChangePoint]) -> float | None:
    """Return the standard deviation between sessions of one level, of the logarithm, or None."""
    residuals = _residuals(values, changes)
    freedom = len(residuals) - 1 - len(changes)
    return math.sqrt(float(residuals @ residuals) / freedom) if freedom > 0 else None


def _residuals(values: Sequence[float], changes: Sequence[ChangePoint]) -> NDArray[np.float64]:
    logs = np.log(np.asarray(values, dtype=np.float64))
    stretches = np.split(logs, [change.index for change in changes])
    return np.concatenate([stretch - stretch.mean() for stretch in stretches])


def _least(sessions: int) -> int:
    return max(_LEAST_MEMBERS, math.ceil(_LEAST_SHARE * sessions))


def _explained(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the shares explained by each division, shape (rows, divisions); rows are sorted."""
    sessions = rows.shape[1]
    least = _least(sessions)
    counts = np.arange(1, sessions)
    centred = rows - rows.mean(axis=1, keepdims=True)
    left = np.cumsum(centred, axis=1)[:, :-1]
    between = left**2 * sessions / (counts * (sessions - counts))
    shares: NDArray[np.float64] = between / (centred**2).sum(axis=1, keepdims=True)
    return shares[:, least - 1 : sessions - least]


@lru_cache
def _critical(sessions: int) -> float:
    draws = np.random.default_rng(_SEED).normal(size=(_DRAWS, sessions))
    return float(np.quantile(_explained(np.sort(draws, axis=1)).max(axis=1), 1 - _RATE))


def _schwarz(residuals: NDArray[np.float64], parameters: int) -> float:
    sessions = len(residuals)
    # Steps may explain everything; nothing is measured better than to the rounding of a double.
    variance = max(float(residuals @ residuals) / sessions, 1e-30)
    return sessions * math.log(variance) + parameters * math.log(sessions)
