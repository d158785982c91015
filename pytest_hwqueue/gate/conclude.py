"""From a judged cell to its verdict: state, reason, sentence and numbers."""

from __future__ import annotations

import math

from pytest_hwqueue.gate.cell_gate import CellGate
from pytest_hwqueue.gate.detectable import (
    LEAST_RUNS,
    LEAST_RUNS_EXACT,
    MOST_RUNS,
    can_convict,
    detectable_effect,
    look_to_convict,
    runs_needed,
    runs_to_convict,
)
from pytest_hwqueue.gate.student import Difference
from pytest_hwqueue.gate.verdict import INTERVAL_CONFIDENCE, State, Verdict, percent

NORMAL_NOISE = "assumes normal run noise"


def conclude(cell: CellGate, rejected: bool) -> Verdict:
    """Return the verdict of a cell.

    Args:
        cell: with all the runs it is going to get.
        rejected: whether the comparison of all cells rejects that this one is unchanged.
    """
    if cell.refused:
        return cell.refused
    difference = cell.difference
    if difference is None:
        had, asked = len(cell.new), len(cell.new) + cell.wanted
        return Verdict(
            "inconclusive",
            "runs-missing",
            f"{cell.quantity.label} has {had} new runs of the {asked} of the first pass",
            cell.quantity,
            baseline=cell.baseline,
            new=tuple(cell.new),
        )
    state, reason, why = _judgement(cell, difference, rejected)
    sign = 1 if cell.quantity.higher_is_worse else -1
    ends = difference.interval(cell.settings.tau, INTERVAL_CONFIDENCE)
    low, high = sorted(math.exp(sign * end) for end in ends)
    ratio = math.exp(sign * difference.mean)
    judged = cell.history[-1].new_runs
    sentence = (
        f"{why}: {cell.quantity.label} {percent(ratio - 1)} ({percent(low - 1)} to "
        f"{percent(high - 1)}), p = {cell.p:.2g}, {len(cell.baseline)} baseline and {judged} "
        "new runs"
    )
    detectable, advice = _reach(cell, difference)
    return Verdict(
        state,
        reason,
        sentence,
        cell.quantity,
        ratio=ratio,
        interval=(low, high),
        p=cell.p,
        baseline=cell.baseline,
        new=tuple(cell.new),
        sd=difference.sd,
        detectable=detectable,
        advice=advice,
        assumes=NORMAL_NOISE if LEAST_RUNS <= len(cell.baseline) < LEAST_RUNS_EXACT else "",
        history=tuple(cell.history),
    )


def _judgement(cell: CellGate, difference: Difference, rejected: bool) -> tuple[State, str, str]:
    """Return the state, the reason and its words."""
    settings, label = cell.settings, cell.quantity.label
    if rejected:
        if cell.p_worse <= cell.p_failures:
            return "regression", "worse", f"{label} is worse"
        return "regression", "more-failures", f"more requests fail ({_failure_shares(cell)})"
    if cell.improved:
        return "improvement", "better", f"{label} is better"
    latest = cell.history[-1]
    if latest.decision == "acquitted":
        return "pass", "within-noise", "no worse than runs differ"
    if cell.wanted:
        return (
            "inconclusive",
            "runs-missing",
            f"looks worse, and {cell.wanted} more new runs are needed to judge",
        )
    # One wild run can blunt the t-test while the exact test still sees that all are slower.
    p_exact = 1.0 if latest.p_exact is None else latest.p_exact
    if cell.is_worse and min(latest.p_t, p_exact) <= settings.warn:
        obstacle = _obstacle(cell)
        if obstacle:
            return "inconclusive", "baseline-too-small", f"looks worse, but {obstacle}"
        return "inconclusive", "likely-worse", "looks worse, but not beyond doubt"
    failures = cell.failures
    if failures and failures.rose and failures.p <= max(settings.warn, failures.least_p):
        words = f"more requests fail ({_failure_shares(cell)}), but not beyond doubt"
        return "inconclusive", "likely-more-failures", words
    return "pass", "not-shown", "no worsening is shown"


def _obstacle(cell: CellGate) -> str:
    """Return why this cell could not have been convicted whatever its runs, or nothing."""
    runs, last, settings = len(cell.baseline), cell.settings.last_look, cell.settings
    # A cell in which requests failed has half of the rate for its latency.
    cells = cell.cells * cell.tests
    if can_convict(runs, last, settings, cells):
        return ""
    if runs < LEAST_RUNS:
        return f"{runs} baseline run{'s' * (runs > 1)} cannot tell: record {LEAST_RUNS_EXACT}"
    needed, look = runs_to_convict(settings, cells), look_to_convict(runs, settings, cells)
    ways = [f"{needed} baseline runs"] * (needed is not None)
    ways += [f"a last look at {look} new runs"] * (look is not None)
    wanted = " or ".join(ways) or "fewer cells"
    return f"{runs} baseline runs are too few for {cell.cells} cells: needs {wanted}"


def _failure_shares(cell: CellGate) -> str:
    shares = []
    for runs in (cell.baseline, cell.new):
        failed = sum(run.failed for run in runs)
        shares.append(f"{failed} of {failed + sum(run.n for run in runs)}")
    return f"{shares[1]}, baseline {shares[0]}"


def _reach(cell: CellGate, difference: Difference) -> tuple[float | None, str]:
    """Return the least worsening that the cell finds, and what it takes to find the goal."""
    obstacle = _obstacle(cell)
    if obstacle:
        return None, obstacle
    settings, runs = cell.settings, len(cell.baseline)
    detectable = detectable_effect(
        difference.sd, runs, settings, cell.cells, session_share=difference.session_share
    )
    if detectable <= settings.detect:
        return detectable, ""
    needed = runs_needed(difference.sd, settings.detect, settings, cell.cells)
    how_many = needed if needed is not None else f"more than {MOST_RUNS}"
    goal = f"{100 * settings.detect:+.3g} %"
    return detectable, f"needs K = T = {how_many} runs for {goal}"
