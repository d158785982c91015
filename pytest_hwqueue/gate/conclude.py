"""Turns a judged cell into its verdict: state, reason, sentence and numbers."""

from __future__ import annotations

import math
from dataclasses import replace

from pytest_hwqueue.gate.calibrate import (
    LEAST_RUNS,
    LEAST_RUNS_EXACT,
    MOST_RUNS,
    can_convict,
    detectable_effect,
    is_exact,
    look_to_convict,
    pairs_to_convict,
    runs_needed,
    runs_to_convict,
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
from pytest_hwqueue.metrics.numbers import counted

NORMAL_NOISE = "assumes normal run noise"


def conclude(cell: CellGate, rejected: bool) -> Verdict:
    """Return the verdict of a cell.

    Args:
        cell: with all its runs.
        rejected: whether the comparison of all cells rejects this one as changed.
    """
    if cell.refused:
        return cell.refused
    if not cell.history:
        had, asked = len(cell.new), len(cell.new) + cell.wanted
        return Verdict(
            "inconclusive",
            "runs-missing",
            f"{cell.quantity.label} has {had} new runs of the {asked} of the first pass",
            cell.quantity,
            baseline=cell.baseline,
            new=tuple(cell.new),
        )
    companion = _companion(cell)
    state, reason, why = _judgement(cell, rejected)
    by = _BY.get(reason, "") if rejected else ""
    judged = cell.history[-1].new_runs
    normal = len(cell.baseline) >= LEAST_RUNS and not is_exact(len(cell.baseline), cell.settings)
    unknown = unknown_sessions(cell.baseline, cell.settings, cell.cells)
    assumes = "; ".join(filter(None, (NORMAL_NOISE if normal else "", unknown)))
    verdict = Verdict(
        state,
        reason,
        "",
        cell.quantity,
        p=cell.p,
        baseline=cell.baseline,
        new=tuple(cell.new),
        assumes=assumes,
        history=tuple(cell.history),
        companion=companion,
        by=cell.quantity.name if by == "main" else by,
    )
    said = []
    main = cell.main
    if main is not None:
        difference = main.difference
        ratio, (low, high) = _ratio(main, cell.quantity)
        detectable, advice = _reach(cell, main)
        verdict = replace(
            verdict,
            ratio=ratio,
            interval=(low, high),
            sd=difference.sd,
            detectable=detectable,
            advice=advice,
            upper=math.expm1(main.upper),
            set_aside=main.aside,
        )
        change, ends = percent(ratio - 1), f"{percent(low - 1)} to {percent(high - 1)}"
        said.append(f"{cell.quantity.label} {change} ({ends})")
        if reason == "blind":
            said.append(_blindness(verdict, cell.settings))
    # The companion is shown where it decides, or could say more than the main figure.
    shown = reason in _TOLD_WITH_COMPANION or not cell.main_on_trial or cell.companion_stands_in
    if companion is not None and shown:
        said.append(companion.words)
    said.append(f"p = {cell.p:.2g}")
    said.append(f"{len(cell.baseline)} baseline and {judged} new runs")
    if verdict.set_aside_words:
        said.append(verdict.set_aside_words)
    return replace(verdict, sentence=f"{why}: {', '.join(said)}")


_TOLD_WITH_COMPANION = (
    "blind", "unstable", "demoted", "too-few-samples", "slower-iterations",
    "likely-slower-iterations",
)  # fmt: skip
_BY = {"worse": "main", "slower-iterations": ITERATION_TIME.name, "more-failures": "failures"}


def _ratio(figure: FigureEvidence, quantity: Quantity) -> tuple[float, tuple[float, float]]:
    """Return new over baseline in the figure's own direction, with its interval."""
    sign = 1 if quantity.higher_is_worse else -1
    difference = figure.difference
    ends = difference.interval(figure.settings.tau, INTERVAL_CONFIDENCE)
    low, high = sorted(math.exp(sign * end) for end in ends)
    return math.exp(sign * difference.mean), (low, high)


def _companion(cell: CellGate) -> Companion | None:
    evidence = cell.companion
    if evidence is None:
        return None
    ratio, interval = _ratio(evidence, ITERATION_TIME)
    detectable, _ = _reach(cell, evidence)
    return Companion(
        ITERATION_TIME,
        cell.companion_on_trial,
        ratio,
        interval,
        cell.p_companion,
        evidence.difference.sd,
        math.expm1(evidence.upper),
        detectable,
        evidence.aside,
    )


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
            return (
                "inconclusive",
                "runs-missing",
                f"not decided yet, {cell.wanted} more new runs are needed to judge",
            )
        suspicion = _suspicion(cell)
        if suspicion:
            return suspicion
    shortcoming = _shortcoming(cell)
    if shortcoming:
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
        obstacle = _obstacle(cell)
        if obstacle:
            return "inconclusive", "baseline-too-small", f"looks worse, but {obstacle}"
        return "inconclusive", "likely-worse", "looks worse, but not beyond doubt"
    other = cell.companion if cell.companion_on_trial else None
    if other is not None and other.is_worse and other.p_t <= settings.warn:
        words = _obstacle(cell) or "not beyond doubt"
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


def _obstacle(cell: CellGate) -> str:
    """Return why no runs could have convicted this cell, or an empty string."""
    runs, last, settings = len(cell.baseline), cell.settings.last_look, cell.settings
    cells = cell.cells
    if can_convict(runs, last, settings, cells):
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


def _failure_shares(cell: CellGate) -> str:
    shares = []
    for runs in (cell.baseline, cell.new):
        failed = sum(run.failed for run in runs)
        shares.append(f"{failed} of {failed + sum(run.n for run in runs)}")
    return f"{shares[1]}, baseline {shares[0]}"


def _reach(cell: CellGate, figure: FigureEvidence) -> tuple[float | None, str]:
    """Return the smallest worsening the cell detects, and the runs that the goal takes."""
    obstacle = _obstacle(cell)
    if obstacle:
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
