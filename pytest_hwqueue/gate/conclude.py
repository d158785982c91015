"""Turns a judged cell into its verdict: state, reason, sentence and numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

from pytest_hwqueue.gate.calibrate import (
    LEAST_RUNS,
    MOST_RUNS,
    detectable_effect,
    is_exact,
    obstacle_to,
    runs_needed,
)
from pytest_hwqueue.gate.cell_gate import CellGate
from pytest_hwqueue.gate.look import FigureEvidence
from pytest_hwqueue.gate.sessions import unknown_sessions
from pytest_hwqueue.gate.verdict import (
    INTERVAL_CONFIDENCE,
    ITERATION_TIME,
    Companion,
    GateSettings,
    Quantity,
    State,
    Verdict,
    percent,
)

NORMAL_NOISE = "assumes normal run noise"


def conclude(cell: CellGate, rejected: bool) -> Verdict:
    """Return the verdict of a cell.

    Args:
        cell: with all its runs.
        rejected: whether the comparison of all cells rejects this one as changed.
    """
    if cell.refused:
        return cell.refused
    verdict = partial(Verdict, quantity=cell.quantity, baseline=cell.baseline, new=tuple(cell.new))
    if not cell.history:
        had, asked = len(cell.new), len(cell.new) + cell.wanted
        text = f"{cell.quantity.label} has {had} new runs of the {asked} of the first pass"
        return verdict("inconclusive", "runs-missing", text)
    state, reason, why = _judgement(cell, rejected)
    normal = len(cell.baseline) >= LEAST_RUNS and not is_exact(len(cell.baseline), cell.settings)
    unknown = unknown_sessions(cell.baseline, cell.settings, cell.cells)
    figures: dict[str, Any] = {}
    advice, companion = "", None
    if cell.main is not None:
        figures, advice = _figures(cell, cell.main, cell.quantity)
    if cell.companion is not None:
        others, _ = _figures(cell, cell.companion, ITERATION_TIME)
        companion = Companion(ITERATION_TIME, on_trial=True, p=cell.p_companion, **others)
    found = verdict(
        state,
        reason,
        "",
        p=cell.p,
        advice=advice,
        assumes="; ".join(filter(None, (NORMAL_NOISE if normal else "", unknown))),
        history=tuple(cell.history),
        companion=companion,
        by={
            "worse": cell.quantity.name,
            "slower-iterations": ITERATION_TIME.name,
            "more-failures": "failures",
        }.get(reason, ""),
        **figures,
    )
    said = []
    if found.ratio is not None and found.interval is not None:
        change, *ends = (percent(each - 1) for each in (found.ratio, *found.interval))
        said.append(f"{cell.quantity.label} {change} ({' to '.join(ends)})")
        if reason == "blind":
            said.append(_blindness(found, cell.settings))
    # The companion is shown where it decides, or could say more than the main figure.
    shown = reason in _TOLD_WITH_COMPANION or not cell.main_on_trial or cell.companion_stands_in
    if companion is not None and shown:
        said.append(companion.words)
    judged = f"{len(cell.baseline)} baseline and {cell.history[-1].new_runs} new runs"
    said += [f"p = {cell.p:.2g}", judged, *filter(None, [found.set_aside_words])]
    return replace(found, sentence=f"{why}: {', '.join(said)}")


_TOLD_WITH_COMPANION = (
    "blind", "unstable", "demoted", "too-few-samples", "slower-iterations",
    "likely-slower-iterations",
)  # fmt: skip


def _figures(
    cell: CellGate, figure: FigureEvidence, quantity: Quantity
) -> tuple[dict[str, Any], str]:
    """Return what a verdict says of a figure, by field, and the runs that the goal takes."""
    sign = 1 if quantity.higher_is_worse else -1
    difference = figure.difference
    ends = difference.interval(figure.settings.tau, INTERVAL_CONFIDENCE)
    detectable, advice = _reach(cell, figure)
    return {
        "ratio": math.exp(sign * difference.mean),
        "interval": tuple(sorted(math.exp(sign * end) for end in ends)),
        "sd": difference.sd,
        "detectable": detectable,
        "upper": math.expm1(figure.upper),
        "set_aside": figure.aside,
    }, advice


def _blindness(verdict: Verdict, settings: GateSettings) -> str:
    if verdict.detectable is not None:
        return f"blind below {percent(verdict.detectable)}"
    goal, most = f"{100 * settings.detect:+.3g} %", percent(verdict.upper or 0.0)
    return f"{goal} is not excluded (at most {most})"


def _judgement(cell: CellGate, rejected: bool) -> tuple[State, str, str]:
    """Return the state, the reason and its words."""
    label = cell.quantity.label
    if rejected:
        return _conviction(cell)
    latest = cell.history[-1]
    if cell.improved:
        return "improvement", "better", f"{label} is better"
    if latest.decision != "acquitted":
        if cell.wanted:
            text = f"not decided yet, {cell.wanted} more new runs are needed to judge"
            return "inconclusive", "runs-missing", text
        if suspicion := _suspicion(cell):
            return suspicion
    if shortcoming := _shortcoming(cell):
        return shortcoming
    if latest.p_t > cell.settings.screen:
        return "pass", "within-noise", "no worse than runs differ"
    return "pass", "not-shown", "no worsening is shown"


def _conviction(cell: CellGate) -> tuple[State, str, str]:
    if cell.p_failures < min(cell.p_worse, cell.p_companion):
        return "regression", "more-failures", f"more requests fail ({_failure_shares(cell)})"
    if cell.p_companion < cell.p_worse:
        return "regression", "slower-iterations", f"{ITERATION_TIME.label} is worse"
    return "regression", "worse", f"{cell.quantity.label} is worse"


def _suspicion(cell: CellGate) -> tuple[State, str, str] | None:
    """Return what looks worse in a cell that had all its runs and was not convicted."""
    settings = cell.settings
    # One wild run can blunt the t-test while the exact test still sees that all are slower.
    exact = cell.history[-1].p_exact
    main, least_p = cell.main, 1.0 if exact is None else exact
    if main is not None and main.is_worse and min(main.p_t, least_p) <= settings.warn:
        if not cell.main_on_trial:
            return "inconclusive", *_standing_in(cell, "looks worse, but ")
        if obstacle := obstacle_to(len(cell.baseline), cell.settings, cell.cells):
            return "inconclusive", "baseline-too-small", f"looks worse, but {obstacle}"
        return "inconclusive", "likely-worse", "looks worse, but not beyond doubt"
    other = cell.companion
    if other is not None and other.is_worse and other.p_t <= settings.warn:
        words = obstacle_to(len(cell.baseline), cell.settings, cell.cells) or "not beyond doubt"
        words = f"{ITERATION_TIME.label} looks worse, but {words}"
        return "inconclusive", "likely-slower-iterations", words
    failures = cell.failures
    if failures and failures.rose and failures.p <= max(settings.warn, failures.least_p):
        words = f"more requests fail ({_failure_shares(cell)}), but not beyond doubt"
        return "inconclusive", "likely-more-failures", words
    return None


def _shortcoming(cell: CellGate) -> tuple[State, str, str] | None:
    """Return why a cell that shows no worsening still cannot pass."""
    main = cell.main
    if not cell.main_on_trial or main is None:
        return "inconclusive", *_standing_in(cell, "")
    if main.thin:
        return "inconclusive", "unstable", "isolated runs leave too few to tell"
    if not all(figure.excludes for figure in cell.witnesses):
        return "inconclusive", "blind", "no worsening is shown, but the cell could not see it"
    return None


def _standing_in(cell: CellGate, worse: str) -> tuple[str, str]:
    """Return reason and sentence if the requested figure has too few samples."""
    quantity = cell.quantity
    n = min(run.n for run in (*cell.baseline, *cell.new))
    if quantity.demoted_from:
        return "demoted", f"{worse}{n} samples are too few for {quantity.demoted_from}"
    return "too-few-samples", f"{worse}{quantity.label} needs {quantity.least_n} samples, has {n}"


def _failure_shares(cell: CellGate) -> str:
    shares = []
    for runs in (cell.baseline, cell.new):
        failed = sum(run.failed for run in runs)
        shares.append(f"{failed} of {failed + sum(run.n for run in runs)}")
    return f"{shares[1]}, baseline {shares[0]}"


def _reach(cell: CellGate, figure: FigureEvidence) -> tuple[float | None, str]:
    """Return the smallest worsening the cell detects, and the runs that the goal takes."""
    if obstacle := obstacle_to(len(cell.baseline), cell.settings, cell.cells):
        return None, obstacle
    difference, settings, runs = figure.difference, figure.settings, len(cell.baseline)
    detectable = detectable_effect(
        difference.sd, runs, settings, cell.cells, session_share=difference.session_share
    )
    if detectable <= settings.detect:
        return detectable, ""
    needed = runs_needed(difference.sd, settings.detect, settings, cell.cells)
    how_many = needed if needed is not None else f"more than {MOST_RUNS}"
    goal = f"{100 * settings.detect:+.3g} %"
    return detectable, f"needs K = T = {how_many} runs for {goal}"
