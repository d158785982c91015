"""Analyses series of sessions: where they changed, between which commits, and what is wrong.

apache-otava (formerly Hunter; Fleming et al., Hunter: Using Change Point Detection to Hunt for
Performance Regressions, ICPE 2023) proposes the places: E-divisive means (Matteson & James, JASA
109, 2014) in sliding windows with a t-test. Its p is that of a place chosen beforehand among
independent sessions, although the place is the most conspicuous one and sessions resemble their
predecessors. So each candidate has to pass a permutation test that chooses its place as well, in
series whose sessions resemble each other as much as those at hand may (`resemblance`). That test's
p is what is reported, and the interval of the step is what the test does not exclude.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_hwqueue.answers.history.resemblance import (
    coloured,
    greatest_correlation,
    innovations_of,
    separations,
    without_line,
    without_step,
)
from pytest_hwqueue.answers.history.series import (
    DriftFigure,
    FoundChange,
    HistoryFile,
    ModesFigure,
    Series,
    SeriesHistory,
    changed_fields,
)
from pytest_hwqueue.data.errors import HwqError
from pytest_hwqueue.data.metrics.dependence import normal_cdf
from pytest_hwqueue.data.metrics.numbers import ratio_of, rise_of
from pytest_hwqueue.judge.calibrate import DRIFT_CORRELATION, DRIFT_RUNS, detectable_effect
from pytest_hwqueue.judge.verdict import GateSettings, percent
from pytest_hwqueue.parts.processes.git import CommitLine

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
# A step between fewer has no spread left around it.
_LEAST_STRETCH = 3
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class ChangePoint:
    """A place where a series changed.

    Attributes:
        index: of the first session after the change.
        ratio: geometric mean of the sessions after over that before, each up to the next change.
        interval: 95 %, of ``ratio``: the steps that the test would not exclude at any place, so
            that it holds although the place was chosen.
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
    tests = {place: _test(logs, places, place, rate) for place in places}
    # As in Hunter's merging: without the weakest, its neighbours stand between longer stretches.
    while tests and max(test.p for test in tests.values()) > rate:
        # Short stretches hardly show what resembles what: their order is that of independent ones.
        weakest = max(
            (place for place in tests if tests[place].p > rate),
            key=lambda place: tests[place].independent,
        )
        at = places.index(weakest)
        places.remove(weakest)
        del tests[weakest]
        for neighbour in places[max(0, at - 1) : at + 1]:
            tests[neighbour] = _test(logs, places, neighbour, rate)
    return [
        ChangePoint(place, *_change(logs, places, place, tests[place].critical), tests[place].p)
        for place in places
    ]


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


class _Test(NamedTuple):
    """Of one place: its p, that p if sessions were independent, and the critical t."""

    p: float
    independent: float
    critical: float


def _test(logs: NDArray[np.float64], places: Sequence[int], place: int, rate: float) -> _Test:
    """Return the test of a place against series without a step.

    These are, first, the stretch's sessions in any order, as if none resembled another (Good,
    Permutation, Parametric and Bootstrap Tests, 2005, section 3.2), and second, what is left around
    the step in any order (Freedman & Lane, Journal of Business and Economic Statistics 1, 1983),
    with the greatest correlation between successive sessions that the stretch leaves likely. The
    statistic of each is its largest |t| over all places, so the p holds although the place was
    picked. The greater p counts; where the first is above ``rate`` already, the second is left out.
    """
    start, end = _stretch(logs, places, place)
    stretch = logs[start:end]
    if len(stretch) < _LEAST_STRETCH or np.ptp(stretch) == 0:
        return _Test(1.0, 1.0, math.inf)
    at = place - start
    observed = _shares(stretch[np.newaxis, :])[0, at - 1]
    correlation = greatest_correlation(stretch, without_step)
    left = np.concatenate([side - side.mean() for side in (stretch[:at], stretch[at:])])
    p_values, critical = [], 0.0
    for own, following in (stretch, 0.0), (innovations_of(left, correlation), correlation):
        greatest = _shares(coloured(own[_orders(len(own))], following)).max(axis=1)
        # Sums in another order differ in their last digits.
        reached = int(np.count_nonzero(greatest >= observed * (1 - 1e-9)))
        p_values.append((reached + 1) / (_PERMUTATIONS + 1))
        share = float(np.quantile(greatest, _CONFIDENCE))
        squared = share / max(1 - share, 1e-12) * (len(stretch) - 2)
        critical = max(critical, math.sqrt(squared))
        if p_values[0] > rate:
            break
    return _Test(max(p_values), p_values[0], critical)


@lru_cache(maxsize=16)
def _orders(sessions: int) -> NDArray[np.intp]:
    """Return orders of so many sessions, shape (permutations, sessions)."""
    orders = np.tile(np.arange(sessions), (_PERMUTATIONS, 1))
    return np.asarray(np.random.default_rng(_SEED).permuted(orders, axis=1))


def _shares(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of the variance that each place explains, shape (rows, sessions - 1)."""
    total = ((rows - rows.mean(axis=1, keepdims=True)) ** 2).sum(axis=1, keepdims=True)
    # Nothing is left around a step without noise; equal sessions have no step.
    return np.asarray(separations(rows) / np.where(total > 0, total, 1))


def _change(
    logs: NDArray[np.float64], places: Sequence[int], place: int, critical: float
) -> tuple[float, tuple[float, float]]:
    """Return the ratio of a place's levels, and its interval at a critical t over all places."""
    start, end = _stretch(logs, places, place)
    sides = logs[start:place], logs[place:end]
    difference = float(sides[1].mean() - sides[0].mean())
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in sides)
    inverse = sum(1 / len(side) for side in sides)
    half = critical * math.sqrt(squares / (end - start - 2) * inverse)
    low, high = np.exp([difference - half, difference + half])
    return float(np.exp(difference)), (float(low), float(high))


# Of unimodal, or driftless, series: how many are called otherwise.
_RATE = 0.01
# Below this, a p is nothing but 0.
_LEAST_DRIFT_P = 1e-300
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

    A drift is a trend by Mann and Kendall's test at 1 % (Mann, Econometrica 13, 1945), its variance
    as much greater as sessions may resemble their predecessors (von Storch, in Analysis of Climate
    Variability, 1995), whose straight line explains the series better than its steps by Schwarz's
    criterion (Annals of Statistics 6, 1978). Its slope is Theil and Sen's (Sen, JASA 63, 1968).

    Args:
        values: one per session, above 0, oldest first.
        changes: of the series.

    """
    from scipy.stats import kendalltau, theilslopes

    logs = np.log(np.asarray(values, dtype=np.float64))
    if len(logs) < DRIFT_RUNS or np.ptp(logs) == 0:
        return None
    order = np.arange(len(logs))
    correlation = greatest_correlation(logs, without_line)
    independent = float(kendalltau(order, logs).pvalue)
    deviate = NormalDist().inv_cdf(max(independent, _LEAST_DRIFT_P) / 2)
    p = 2 * normal_cdf(deviate * math.sqrt((1 - correlation) / (1 + correlation)))
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
    the gate's limit (`calibrate.drift_alarm`), and with fewer than 10 sessions. Steps of such a
    series have to stand out further.
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
    return _shares(rows)[:, least - 1 : sessions - least]


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
    trend = drift(values, changes)
    if trend is not None:
        # What a line explains better is no step.
        changes = []
    sd = spread(values, changes) if values else None
    detects = None
    if sd is not None:
        # The gate's sd is between runs; each session counts once here, and holds both spreads.
        detects = detectable_effect(max(sd, settings.floor), _GATE_RUNS, settings, cells)
    found = [_found(series, change, commits_between, detects) for change in changes]
    level = levels(values, changes) if values else []
    total = level[-1] / level[0] if level else None
    if trend is not None:
        total = 1 + trend.whole
    history = SeriesHistory(
        **dict(series),
        sd=sd,
        gate_detects=detects,
        total_ratio=total,
        changes=found,
        accumulated=_accumulated(found, total, trend, detects, series),
        modes=modes(values, changes),
        drift=trend,
        resemblance=resemblance(values, changes) if trend is None else None,
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
    unseen = trend is not None or (
        any(change.below_gate for change in changes)
        and not any(change.worse and not change.below_gate for change in changes)
    )
    return unseen and _worsening(total, series.higher_is_worse) >= detects


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
            "than steps"
        )
    if history.resemblance is not None:
        notes.append(
            f"sessions resemble their predecessors (correlation {history.resemblance:.2f}): a "
            "step has to stand out further than among independent ones"
        )
    if history.accumulated:
        assert history.gate_detects is not None
        assert history.total_ratio is not None
        whole = history.total_ratio - 1
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
