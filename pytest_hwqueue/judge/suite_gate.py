"""Judges a whole suite: which cells want more runs, and all verdicts at the end.

A judged cell's verdict has its state, reason, sentence and numbers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from pytest_hwqueue.data.metrics.numbers import counted, ratio_of, rise_of
from pytest_hwqueue.judge.calibrate import (
    LEAST_RUNS,
    MOST_RUNS,
    detectable_effect,
    is_exact,
    obstacle_to,
    runs_needed,
)
from pytest_hwqueue.judge.cell_gate import CellGate, can_be_convicted
from pytest_hwqueue.judge.clocks import clocks_of, judged_in_cycles
from pytest_hwqueue.judge.effects import cell_settings, limit_of
from pytest_hwqueue.judge.look import FigureEvidence
from pytest_hwqueue.judge.runs import ProcessRun
from pytest_hwqueue.judge.sessions import unknown_sessions
from pytest_hwqueue.judge.statistics import rejected
from pytest_hwqueue.judge.verdict import (
    INTERVAL_CONFIDENCE,
    ITERATION_TIME,
    P99,
    Comparison,
    GateSettings,
    Quantity,
    State,
    Verdict,
    percent,
)


@dataclass(frozen=True)
class SuiteShift:
    """How the suite as a whole shifted in its first pass.

    A ratio above 1 is worse: 1.03 is 3 % worse, in latency or in throughput. ``of_machine`` says
    that the sentinel, which does not contain the product, moved the same way.
    """

    ratio: float
    cells: int
    sentinel_ratio: float | None
    of_machine: bool


class SuiteGate:
    """Judges the cells of one suite. Nothing depends on the order in which cells are given.

    The error rate is divided among the cells that can be convicted: those whose baseline can be
    compared and has 3 runs. That number is fixed before the first new run.

    ``allowing`` has each cell's settings, with the session effect that its verdict allows for and
    its least effect, by figure.

    Args:
        settings: of the gate.
        baselines: the baseline's runs by cell, at least one each; a cell gated for two quantities
            is two cells. Runs that have ``iteration_ns`` give their cell a companion, which is not
            a separate cell: `CellGate` says when it can convict.
        quantities: of the cells' values; P99 for cells not listed.
        sentinel: the key of a cell that does not contain the product (a fixed kernel), if any.
        sessionless: cells whose sessions cannot differ, such as a simulated device's.

    Raises:
        ValueError: if the sentinel is not among the baselines.
    """

    def __init__(
        self,
        settings: GateSettings,
        baselines: Mapping[str, Sequence[ProcessRun]],
        quantities: Mapping[str, Quantity] | None = None,
        sentinel: str | None = None,
        sessionless: Collection[str] = (),
    ) -> None:
        if sentinel is not None and not baselines.get(sentinel):
            raise ValueError(f"the sentinel cell {sentinel!r} has no baseline")
        self.settings = settings
        self._quantities = quantities or {}
        self._sentinel = sentinel
        self._family = {
            key for key, runs in baselines.items() if can_be_convicted(runs, self._quantity(key))
        }
        self.allowing = cell_settings(
            baselines,
            {key: self._quantity(key) for key in baselines},
            settings,
            self.compared,
            sessionless,
        )
        self._cells = {key: self._cell(key, runs) for key, runs in baselines.items()}
        self._open = {key for key, cell in self._cells.items() if cell.wanted}

    @property
    def compared(self) -> int:
        """How many cells share the error rate."""
        return max(1, len(self._family))

    def add(self, key: str, run: ProcessRun) -> None:
        """Take one more new run of a cell."""
        cell = self._cells[key]
        cell.add(run)
        if not cell.wanted:
            self._open.discard(key)

    def wanted(self) -> list[tuple[str, int]]:
        """Return the undecided cells, and how many runs each needs for its next judgement.

        The cells with the fewest runs come first. Run them round-robin, one run of each in turn, so
        that machine drift affects all alike; ask again when each has had its run. Nothing is wanted
        once the first pass has shown that the machine itself has changed.
        """
        waiting = [(len(self._cells[key].new), key) for key in self._open]
        first_pass = any(runs < self.settings.first_runs for runs, _ in waiting)
        if waiting and not first_pass and self._shifted():
            return []
        return [(key, self._cells[key].wanted) for _, key in sorted(waiting)]

    @property
    def convicts(self) -> bool:
        """Whether a cell is a regression whatever the others will show, alone in its suite."""
        return any(
            cell.history[-1].decision == "convicted" and conclude(cell, True).state == "regression"
            for cell in self._cells.values()
            if cell.history and not cell.refused
        )

    def suite_shift(self) -> SuiteShift | None:
        """Return the median change over the cells' first passes, or ``None`` if there are none.

        Only first passes count: later runs of flagged cells were requested because the first ones
        looked worse. The sentinel is not part of the median.
        """
        changes = {key: _first_change(cell) for key, cell in self._cells.items()}
        own = [v for key, v in changes.items() if v is not None and key != self._sentinel]
        if not own:
            return None
        shift = median(own)
        sentinel = changes[self._sentinel] if self._sentinel is not None else None
        limit = math.log1p(self.settings.suite_shift)
        return SuiteShift(
            ratio=ratio_of(shift),
            cells=len(own),
            sentinel_ratio=None if sentinel is None else ratio_of(sentinel),
            of_machine=sentinel is not None
            and min(abs(shift), abs(sentinel)) > limit
            and (shift > 0) == (sentinel > 0),
        )

    def verdicts(self) -> dict[str, Verdict]:
        """Return every cell's verdict, by sorted key.

        All compared cells are judged together, so one more run anywhere may change any of them.
        """
        p_values = {key: self._cells[key].p for key in self._family}
        found = rejected(p_values, self.settings.rate, self.compared)
        verdicts = {key: conclude(cell, key in found) for key, cell in sorted(self._cells.items())}
        shift = self._shifted()
        if not shift or shift.sentinel_ratio is None:
            return verdicts
        sentence = (
            f"the machine has changed: the suite by {percent(shift.ratio - 1)} (median of "
            f"{shift.cells} cells), the sentinel by {percent(shift.sentinel_ratio - 1)}; record a "
            "new baseline or compare old and new in one session"
        )
        return {
            key: replace(v, state="incomparable", reason="suite-shift", sentence=sentence)
            if v.main is not None
            else v
            for key, v in verdicts.items()
        }

    def _shifted(self) -> SuiteShift | None:
        shift = self.suite_shift() if self._sentinel is not None else None
        return shift if shift and shift.of_machine else None

    def _quantity(self, key: str) -> Quantity:
        return self._quantities.get(key, P99)

    def _cell(self, key: str, baseline: Sequence[ProcessRun]) -> CellGate:
        own = self.allowing[key]
        return CellGate(baseline, self._quantity(key), own.main, self.compared, own.companion)


def _first_change(cell: CellGate) -> float | None:
    """Return the logarithm of the first pass's worsening, or ``None`` without one."""
    if cell.refused or not cell.history:
        return None
    change = math.log(cell.history[0].ratio)
    return change if cell.quantity.higher_is_worse or cell.main is None else -change


NORMAL_NOISE = "assumes normal run noise"


def conclude(cell: CellGate, rejected: bool) -> Verdict:
    """Return the verdict of a cell.

    A slow-down that a lower clock explains is none of the code's: the runs are incomparable.

    Args:
        cell: with all its runs.
        rejected: whether the comparison of all cells rejects this one as changed.
    """
    found = _concluded(cell, rejected)
    # In one session and in turns, a lower clock is what a side itself has brought about.
    if found.reason not in _SLOWER or cell.settings.paired:
        return found
    clocks = clocks_of(found.baseline, found.new)
    cycles = judged_in_cycles(cell) if clocks is not None and clocks.lower else None
    if clocks is None or cycles is None:
        return found
    in_cycles = _concluded(cycles, rejected=False)
    if in_cycles.state not in ("pass", "improvement"):
        return found
    assert in_cycles.main is not None
    sentence = (
        f"slower by the device's clock alone, {clocks.new_mhz:.0f} MHz, in the baseline "
        f"{clocks.baseline_mhz:.0f} MHz: in cycles {found.quantity.label} "
        f"{percent(in_cycles.main.ratio - 1)}, in time: {found.sentence}; measure at one clock "
        "(nvidia-smi --lock-gpu-clocks, amd-smi set), or compare in one session: hwq ab"
    )
    return replace(found, state="incomparable", reason="lower-clock", sentence=sentence, by="")


_SLOWER = (
    "worse", "slower-iterations", "likely-worse", "likely-slower-iterations", "baseline-too-small",
)  # fmt: skip


def _concluded(cell: CellGate, rejected: bool) -> Verdict:
    if cell.refused:
        return cell.refused
    verdict = partial(Verdict, quantity=cell.quantity, baseline=cell.baseline, new=tuple(cell.new))
    if not cell.history:
        had, asked = len(cell.new), len(cell.new) + cell.wanted
        text = f"{cell.quantity.label} has {counted(had, 'new run')} of the {asked} that it needs"
        return verdict("inconclusive", "runs-missing", text)
    state, reason, why = _judgement(cell, rejected)
    normal = len(cell.baseline) >= LEAST_RUNS and not is_exact(len(cell.baseline), cell.settings)
    unknown = unknown_sessions(cell.baseline, cell.settings, cell.cells)
    advice, limit, main, companion = "", "", None, None
    if cell.main is not None:
        detectable, advice = _reach(cell, cell.main)
        main = _comparison(
            cell.main, cell.quantity, cell.p_worse, detectable, on_trial=cell.main_on_trial
        )
        limit = limit_of(
            detectable, main.sd, cell.baseline, cell.quantity, cell.settings, cell.cells
        )
    if cell.companion is not None:
        reached, _ = _reach(cell, cell.companion)
        companion = _comparison(cell.companion, ITERATION_TIME, cell.p_companion, reached)
    found = verdict(
        state,
        reason,
        "",
        p=cell.p,
        advice=advice,
        limit=limit,
        assumes="; ".join(filter(None, (NORMAL_NOISE if normal else "", unknown))),
        history=tuple(cell.history),
        main=main,
        companion=companion,
        by={
            "worse": cell.quantity.name,
            "slower-iterations": ITERATION_TIME.name,
            "more-failures": "failures",
        }.get(reason, ""),
    )
    said = []
    if main is not None:
        change, *ends = (percent(each - 1) for each in (main.ratio, *main.interval))
        said.append(f"{cell.quantity.label} {change} ({' to '.join(ends)})")
        if reason == "blind":
            said.append(_blindness(main, cell.settings))
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


def _comparison(
    figure: FigureEvidence, quantity: Quantity, p: float, detectable: float | None, *,
    on_trial: bool = True,
) -> Comparison:  # fmt: skip
    """Return what a figure's evidence shows."""
    sign = 1 if quantity.higher_is_worse else -1
    difference = figure.difference
    low, high = sorted(
        ratio_of(sign * end)
        for end in difference.interval(figure.settings.tau, INTERVAL_CONFIDENCE)
    )
    return Comparison(
        quantity=quantity,
        on_trial=on_trial,
        ratio=ratio_of(sign * difference.mean),
        interval=(low, high),
        p=p,
        sd=difference.sd,
        sd_is_floor=difference.sd_is_floor,
        upper=rise_of(figure.upper),
        detectable=detectable,
        set_aside=figure.aside,
    )


def _blindness(main: Comparison, settings: GateSettings) -> str:
    if main.detectable is not None:
        return f"blind below {percent(main.detectable)}"
    goal, most = f"{100 * settings.detect:+.3g} %", percent(main.upper)
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
    return "pass", "not-shown", "no slowdown found"


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
        text = (
            "no slowdown found, but these runs are too noisy or too few to rule out one of "
            f"{100 * cell.settings.detect:.3g} %"
        )
        return "inconclusive", "blind", text
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
