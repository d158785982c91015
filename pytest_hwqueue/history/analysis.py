"""Analyses series of sessions: where they changed, between which commits, and what is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict

from pytest_hwqueue.gate.calibrate import detectable_effect
from pytest_hwqueue.gate.settings import GateSettings
from pytest_hwqueue.gate.verdict import percent
from pytest_hwqueue.history.change_points import (
    ChangePoint,
    drift,
    find_change_points,
    levels,
    modes,
    resemblance,
    spread,
)
from pytest_hwqueue.history.series import (
    CommitLine,
    DriftFigure,
    FoundChange,
    HistoryFile,
    ModesFigure,
    Series,
    SeriesHistory,
    SessionFigure,
    changed_fields,
)

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
        OtavaMissing: if apache-otava is not installed.

    """
    cells = len({(each.cell_id, each.wanted) for each in series})
    sessions = {session.id for each in series for session in each.sessions}
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
    two, trend = modes(values, changes), drift(values, changes)
    alike = resemblance(values, changes)
    history = SeriesHistory(
        cell=series.cell_id,
        workload=series.workload,
        figure=series.wanted,
        quantity=series.quantity.name,
        label=series.quantity.label,
        unit=series.quantity.unit,
        higher_is_worse=series.quantity.higher_is_worse,
        simulated=series.simulated,
        machine=series.machine,
        machine_fields=series.machine_fields,
        sessions=[
            SessionFigure(
                session=each.id, when=each.when, runs=each.runs, commits=list(each.commits),
                value=each.value,
            )
            for each in series.sessions
        ],
        refused=series.refused,
        sd=sd,
        gate_detects=detects,
        total_ratio=total,
        changes=found,
        accumulated=_accumulated(
            found, total, None if trend is None else trend.whole, detects, series
        ),
        modes=two and ModesFigure(**asdict(two)),
        drift=trend and DriftFigure(**asdict(trend)),
        resemblance=alike,
        notes=[],
    )  # fmt: skip
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
    worsening = _worsening(change.ratio, series.quantity.higher_is_worse)
    worse = worsening > 0
    return FoundChange(
        index=change.index,
        session=new.id,
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
    drifted: float | None,
    detects: float | None,
    series: Series,
) -> bool:
    if total is None or detects is None:
        return False
    gone = total if drifted is None else 1 + drifted
    unseen = drifted is not None or (
        any(change.below_gate for change in changes)
        and not any(change.worse and not change.below_gate for change in changes)
    )
    return unseen and _worsening(gone, series.quantity.higher_is_worse) >= detects


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
    change = detects if history.higher_is_worse else math.expm1(-math.log1p(detects))
    return f"{percent(change)} with {_GATE_RUNS} runs"
