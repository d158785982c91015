"""Analyses series of sessions: where they changed, between which commits, and what is wrong.

apache-otava (formerly Hunter; Fleming et al., Hunter: Using Change Point Detection to Hunt for
Performance Regressions, ICPE 2023) proposes the places: E-divisive means (Matteson & James, JASA
109, 2014) in sliding windows with a t-test. Its p is that of a place chosen beforehand, although
the place is chosen as the most conspicuous one: at its default of 0.001, 4 of 100 flat histories of
60 sessions have a change point. So each candidate has to pass a permutation test that chooses its
place as well, and that test's p is what is reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pytest_hwqueue.errors import HwqError
from pytest_hwqueue.gate.calibrate import DRIFT_CORRELATION, DRIFT_RUNS, detectable_effect
from pytest_hwqueue.gate.verdict import GateSettings, percent
from pytest_hwqueue.history.series import (
    DriftFigure,
    FoundChange,
    HistoryFile,
    ModesFigure,
    Series,
    SeriesHistory,
    changed_fields,
)
from pytest_hwqueue.metrics.dependence import student_quantile
from pytest_hwqueue.metrics.numbers import ratio_of, rise_of
from pytest_hwqueue.processes.git import CommitLine

LEAST_SESSIONS = 10
"""With fewer sessions no change can be found at 1 %, however large: of the arrangements of nine
sessions, more than 1 % put the same values on one side of a place."""

# Generous, as the permutation test decides: otava's first pass then takes 0.1.
_PROPOSING_P = 0.01
_WINDOW = 50
_PERMUTATIONS = 4999
LEAST_P = 1 / (_PERMUTATIONS + 1)
"""The least p, and so the least rate that means anything."""

_SEED = 0
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class ChangePoint:
    """A place where a series changed.

    Attributes:
        index: of the first session after the change.
        ratio: geometric mean of the sessions after over that before, each up to the next change.
        interval: 95 %, of ``ratio``: Welch's t interval, not corrected for the choice of the place.
        p: of the permutation test; `1 - p` is the confidence that there is a change.

    """

    index: int
    ratio: float
    interval: tuple[float, float]
    p: float


def find_change_points(
    values: Sequence[float] | NDArray[np.float64], rate: float
) -> list[ChangePoint]:
    """Return a series' change points in order.

    Args:
        values: one figure per session, finite and above 0, oldest first.
        rate: share of flat series that may have a change point.

    Raises:
        HwqError: if apache-otava is not installed.
        ValueError: if a value is not finite and above 0.

    """
    logs = np.log(np.asarray(values, dtype=np.float64))
    if not np.all(np.isfinite(logs)):
        raise ValueError("every session's value must be finite and above 0 to find changes")
    places = _proposed(logs)
    p_values = {place: _p(logs, places, place) for place in places}
    # As in Hunter's merging: without the weakest, its neighbours stand between longer stretches.
    while p_values and max(p_values.values()) > rate:
        weakest = max(p_values, key=lambda place: p_values[place])
        at = places.index(weakest)
        places.remove(weakest)
        del p_values[weakest]
        for neighbour in places[max(0, at - 1) : at + 1]:
            p_values[neighbour] = _p(logs, places, neighbour)
    return [ChangePoint(place, *_change(logs, places, place), p_values[place]) for place in places]


def levels(
    values: Sequence[float] | NDArray[np.float64], changes: Sequence[ChangePoint]
) -> list[float]:
    """Return the geometric mean of each stretch between change points, oldest first."""
    return [float(np.exp(stretch.mean())) for stretch in _stretches(values, changes)]


def _proposed(logs: NDArray[np.float64]) -> list[int]:
    """Return apache-otava's change points."""
    try:
        # Only NumPy and SciPy are imported with this module, none of otava's data bases.
        from otava.analysis import compute_change_points
    except ModuleNotFoundError as error:
        raise HwqError(
            "change points are found by apache-otava, which is not installed "
            f"({error.name} is missing): pip install 'pytest-hwqueue[history]', or, to keep your "
            "NumPy and SciPy, pip install --no-deps apache-otava"
        ) from error
    # A t-test between constant stretches divides by zero; its p is then 0, or not a number.
    with np.errstate(all="ignore"):
        found, _ = compute_change_points(
            logs.tolist(), window_len=_WINDOW, max_pvalue=_PROPOSING_P, min_magnitude=0.0
        )
    return sorted({int(point.index) for point in found})


def _stretch(logs: NDArray[np.float64], places: Sequence[int], place: int) -> tuple[int, int]:
    """Return where the stretches on both sides of a place begin and end."""
    before = max((other for other in places if other < place), default=0)
    after = min((other for other in places if other > place), default=len(logs))
    return before, after


def _p(logs: NDArray[np.float64], places: Sequence[int], place: int) -> float:
    """Return the p of a place against sessions in any order.

    The statistic of a permuted stretch is its largest |t| over all places, so the p holds although
    the place was picked (Good, Permutation, Parametric and Bootstrap Tests, 2005, section 3.2).
    """
    start, end = _stretch(logs, places, place)
    stretch = logs[start:end]
    if np.ptp(stretch) == 0:
        return 1.0
    observed = _separations(stretch[np.newaxis, :])[0, place - start - 1]
    generator = np.random.default_rng(_SEED)
    permuted = generator.permuted(np.tile(stretch, (_PERMUTATIONS, 1)), axis=1)
    greatest = _separations(permuted).max(axis=1)
    # Sums in another order differ in their last digits.
    reached = int(np.count_nonzero(greatest >= observed * (1 - 1e-9)))
    return (reached + 1) / (_PERMUTATIONS + 1)


def _separations(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the variance between both sides of each place, shape (rows, sessions - 1).

    With the total fixed, as it is between permutations, it grows with |t|.
    """
    length = rows.shape[1]
    counts = np.arange(1, length)
    left = np.cumsum(rows - rows.mean(axis=1, keepdims=True), axis=1)[:, :-1]
    separations: NDArray[np.float64] = left**2 * length / (counts * (length - counts))
    return separations


def _change(
    logs: NDArray[np.float64], places: Sequence[int], place: int
) -> tuple[float, tuple[float, float]]:
    start, end = _stretch(logs, places, place)
    sides = logs[start:place], logs[place:end]
    difference = float(sides[1].mean() - sides[0].mean())
    if min(map(len, sides)) < 2:
        # One session has no spread of its own: that of the other side stands for both.
        longer = max(sides, key=len)
        variance, freedom = float(longer.var(ddof=1)) * (1 + 1 / len(longer)), len(longer) - 1.0
    else:
        parts = [float(side.var(ddof=1)) / len(side) for side in sides]
        variance = sum(parts)
        weights = sum(part**2 / (len(side) - 1) for part, side in zip(parts, sides, strict=True))
        freedom = variance**2 / weights if weights > 0 else 1.0
    half = student_quantile((1 + _CONFIDENCE) / 2, freedom) * variance**0.5
    low, high = np.exp([difference - half, difference + half])
    return float(np.exp(difference)), (float(low), float(high))


# Of unimodal, or driftless, series: how many are called otherwise.
_RATE = 0.01
_DRAWS = 20_000
# A mode is more than an outlier: at least a fifth of the sessions, and at least 3.
_LEAST_SHARE = 0.2
_LEAST_MEMBERS = 3


def modes(values: Sequence[float], changes: Sequence[ChangePoint]) -> ModesFigure | None:
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
    return ModesFigure(ratio=ratio_of(distance), slower_share=1 - faster / len(residuals))


def drift(values: Sequence[float], changes: Sequence[ChangePoint]) -> DriftFigure | None:
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
    whole = rise_of(slope * (len(logs) - 1))
    return DriftFigure(per_session=rise_of(slope), whole=whole, p=p)


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


def _stretches(
    values: Sequence[float] | NDArray[np.float64], changes: Sequence[ChangePoint]
) -> list[NDArray[np.float64]]:
    """Return the logarithms of the values between change points."""
    logs = np.log(np.asarray(values, dtype=np.float64))
    return np.split(logs, [change.index for change in changes])


def _residuals(values: Sequence[float], changes: Sequence[ChangePoint]) -> NDArray[np.float64]:
    return np.concatenate([each - each.mean() for each in _stretches(values, changes)])


def _least(sessions: int) -> int:
    return max(_LEAST_MEMBERS, math.ceil(_LEAST_SHARE * sessions))


def _explained(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the shares explained by each division, shape (rows, divisions); rows are sorted."""
    sessions = rows.shape[1]
    least = _least(sessions)
    total = ((rows - rows.mean(axis=1, keepdims=True)) ** 2).sum(axis=1, keepdims=True)
    shares: NDArray[np.float64] = _separations(rows) / total
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


RATE = 0.01
_GATE_RUNS = 10

CommitsBetween = Callable[[str, str], "list[CommitLine] | None"]


def analyse(
    series: Sequence[Series],
    sources: Sequence[str],
    commits_between: CommitsBetween,
    settings: GateSettings,
    *,
    rate: float = RATE,
    pool_machines: bool = False,
) -> HistoryFile:
    """Find what happened in every series.

    Args:
        series: see `series.arrange`.
        sources: labels of where the runs are from.
        commits_between: returns the commits of ``(old, new]``, or None if they are not known.
        settings: of the gate that watches these cells.
        rate: share of flat series that may have a change point.
        pool_machines: as the series were arranged; for the file.

    Raises:
        HwqError: if apache-otava is not installed.

    """
    cells = len({(each.cell, each.figure) for each in series})
    sessions = {session.session for each in series for session in each.sessions}
    return HistoryFile(
        schema="pytest-hwqueue/history/1",
        sources=list(sources),
        rate=rate,
        pool_machines=pool_machines,
        sessions=len(sessions),
        series=[_analysed(each, commits_between, settings, rate, cells) for each in series],
    )


def _analysed(
    series: Series,
    commits_between: CommitsBetween,
    settings: GateSettings,
    rate: float,
    cells: int,
) -> SeriesHistory:
    values = series.values
    changes = find_change_points(values, rate) if values else []
    sd = spread(values, changes) if values else None
    detects = None
    if sd is not None:
        # The gate's sd is between runs; each session counts once here, and holds both spreads.
        detects = detectable_effect(max(sd, settings.floor), _GATE_RUNS, settings, cells)
    found = [_found(series, change, commits_between, detects) for change in changes]
    level = levels(values, changes) if values else []
    total = level[-1] / level[0] if level else None
    trend = drift(values, changes)
    history = SeriesHistory(
        **dict(series),
        sd=sd,
        gate_detects=detects,
        total_ratio=total,
        changes=found,
        accumulated=_accumulated(found, total, trend, detects, series),
        modes=modes(values, changes),
        drift=trend,
        resemblance=resemblance(values, changes),
        notes=[],
    )
    return history.model_copy(update={"notes": _notes(history)})


def _found(
    series: Series, change: ChangePoint, commits_between: CommitsBetween, detects: float | None
) -> FoundChange:
    old, new = series.sessions[change.index - 1], series.sessions[change.index]
    # Of several commits in a session, the change is after the first one's and up to the last one's.
    commits = [each.commits[end] if each.commits else None for each, end in ((old, 0), (new, -1))]
    between = None
    if commits[0] is not None and commits[1] is not None:
        plain = [commit.removesuffix("-dirty") for commit in commits if commit is not None]
        between = [] if plain[0] == plain[1] else commits_between(plain[0], plain[1])
    worsening = _worsening(change.ratio, series.higher_is_worse)
    worse = worsening > 0
    return FoundChange(
        index=change.index,
        session=new.session,
        when=new.when,
        ratio=change.ratio,
        interval=change.interval,
        confidence=1 - change.p,
        worse=worse,
        below_gate=worsening < detects if worse and detects is not None else None,
        old_commit=commits[0],
        new_commit=commits[1],
        commits=between,
        also_changed=changed_fields(old, new),
    )


def _worsening(ratio: float, higher_is_worse: bool) -> float:
    """Return a change as the gate's fraction: latency times 1.1, or throughput over 1.1, is 0.1."""
    return (ratio if higher_is_worse else 1 / ratio) - 1


def _accumulated(
    changes: Sequence[FoundChange],
    total: float | None,
    trend: DriftFigure | None,
    detects: float | None,
    series: Series,
) -> bool:
    if total is None or detects is None:
        return False
    gone = total if trend is None else 1 + trend.whole
    unseen = trend is not None or (
        any(change.below_gate for change in changes)
        and not any(change.worse and not change.below_gate for change in changes)
    )
    return unseen and _worsening(gone, series.higher_is_worse) >= detects


def _notes(history: SeriesHistory) -> list[str]:
    """Return what a reader of the series should know, as sentences without a full stop."""
    notes = []
    count = len(history.sessions)
    if count > 1 and len({session.value for session in history.sessions}) == 1:
        notes.append("every session has the same figure to the digit")
    if history.modes is not None:
        notes.append(
            f"bimodal: {100 * history.modes.slower_share:.0f} % of the sessions are "
            f"{percent(history.modes.ratio - 1)} above the others, in no order; a mean is "
            "that of neither"
        )
    if history.drift is not None:
        notes.append(
            f"drifting: {percent(history.drift.whole)} over {count} sessions "
            f"({100 * history.drift.per_session:+.2f} % a session); a line explains it better "
            "than the steps found"
        )
    if history.resemblance is not None:
        notes.append(
            f"sessions resemble their predecessors (correlation {history.resemblance:.2f}): "
            "change points are less certain than they say"
        )
    if history.accumulated:
        assert history.gate_detects is not None
        assert history.total_ratio is not None
        whole = history.total_ratio - 1 if history.drift is None else history.drift.whole
        notes.append(
            f"adds up to {percent(whole)}, which the gate could not see step by step: it "
            f"detects {_found_by_gate(history)}"
        )
    if history.refused:
        notes.append(f"{history.refused} sessions left out: too short, or without a figure above 0")
    return notes


def _found_by_gate(history: SeriesHistory) -> str:
    detects = history.gate_detects or 0.0
    change = detects if history.higher_is_worse else rise_of(-math.log1p(detects))
    return f"{percent(change)} with {_GATE_RUNS} runs"
