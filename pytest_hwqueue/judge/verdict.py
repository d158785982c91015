"""What the gate judges and how strictly, verdicts, and what may be compared at all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from typing import Annotated, Any, Literal

from pydantic import Field

from pytest_hwqueue.data.errors import BadInput
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.numbers import LARGEST_RATIO
from pytest_hwqueue.judge.runs import ProcessRun, SetAside

LEAST_FIRST_RUNS = 2


@dataclass(frozen=True)
class GateSettings:
    """Rates, effects and run counts of the gate; all shares are fractions (0.01 is 1 %).

    Attributes:
        rate: the share of unchanged suites that may raise an alarm.
        min_effect: no rise below this is called a regression.
        own_effects: whether each cell has a least effect of its own instead, as small as its
            baseline lets the gate find, from 1 % to ``min_effect`` (`effects`).
        detect: the rise that matters: a cell passes only if a rise of this size is excluded; if it
            cannot be detected, the verdict says how many runs it would take.
        tau: standard deviation of ln P99 between sessions, at least: 0.005 with locked clocks on
            one host, 0.01 unlocked, 0 only for interleaved runs of one session. With
            ``own_effects`` 4 sessions may show less (`sessions.LEAST_TAU`).
        session_effect: the same where the baseline cannot show it, having fewer than 4 sessions
            (`sessions`). 0 if the user vouches for ``tau``, whatever the baseline shows.
        screen: a cell passes if its t-test's p is above this and ``detect`` is excluded.
        first_runs: new runs of every cell; the first look may be at as many.
        looks: numbers of new runs at which a flagged cell is judged again.
        weights: the share of the error rate spent at each look; 0 finds no regression. Where a
            look's share is too small for any regression, the last one has it (`calibrate.shares`).
        floor: the smallest credible standard deviation of ln P99 between runs.
        warn: a rise that is no regression is a warning if the t-test's p, or the exact one, is at
            most this; a fall is more than luck if its p is.
        power: of detecting the minimum detectable effect.
        pairs: old and new runs each in the interleaved mode.
        paired: whether the i-th old and the i-th new run are a pair, measured one after the other:
            the differences of pairs are then judged, and what a pair shares cancels.
        suite_shift: a median change beyond this, shared by the sentinel, is the machine's.
    """

    rate: float = 0.01
    min_effect: float = 0.05
    own_effects: bool = False
    detect: float = 0.20
    tau: float = 0.005
    session_effect: float = 0.02
    screen: float = 0.20
    first_runs: int = LEAST_FIRST_RUNS
    looks: tuple[int, ...] = (4, 8, 15)
    weights: tuple[float, ...] = (0.25, 0.25, 0.5)
    floor: float = 0.005
    warn: float = 0.01
    power: float = 0.95
    pairs: int = 12
    paired: bool = False
    suite_shift: float = 0.025

    @staticmethod
    def of_options(
        *, tau: float | None = None, min_effect: float | None = 0.05, **fields: Any
    ) -> GateSettings:
        """Return settings with the values of options.

        Args:
            tau: None if nobody vouches for it.
            min_effect: None if each cell has its own.
            fields: other fields.
        """
        if tau is not None:
            fields |= {"tau": tau, "session_effect": 0.0}
        if min_effect is None:
            return GateSettings(own_effects=True, **fields)
        return GateSettings(min_effect=min_effect, **fields)

    def __post_init__(self) -> None:
        looks, weights = self.looks, self.weights
        effect = "above 0 and below 10 (a fraction, 0.05 is 5 %)"
        first = f"first_runs ({self.first_runs})"
        shared = min(weights, default=0) >= 0 and any(weights[-1:]) and abs(sum(weights) - 1) < 1e-9
        ascend = all(less < more for less, more in pairwise((self.first_runs - 1, *looks)))
        valid = [
            ("rate", 0 < self.rate < 1, "above 0 and below 1"),
            ("screen", 0 < self.screen < 1, "above 0 and below 1"),
            ("warn", 0 < self.warn < 1, "above 0 and below 1"),
            ("power", 0.5 < self.power < 1, "above 0.5 and below 1"),
            # What a baseline shows may be any: runs of 1 and of 1000 ms give more than 1.
            ("tau", 0 <= self.tau < math.inf, "0 or more"),
            ("session_effect", 0 <= self.session_effect < 1, "0 or more and below 1"),
            ("min_effect", 0 < self.min_effect < 10, effect),
            ("detect", 0 < self.detect < 10, effect),
            ("floor", 0 < self.floor < 10, effect),
            ("suite_shift", 0 < self.suite_shift < 10, effect),
            ("screen", self.rate <= self.screen, f"at least rate ({self.rate})"),
            ("first_runs", self.first_runs >= LEAST_FIRST_RUNS, f"{LEAST_FIRST_RUNS} or more"),
            ("pairs", self.pairs >= LEAST_FIRST_RUNS, f"{LEAST_FIRST_RUNS} or more"),
            ("looks", ascend and looks, f"ascending numbers of runs from {first}"),
            ("weights", len(weights) == len(looks), f"as many as looks ({len(looks)})"),
            ("weights", shared, "0 or more each, above 0 at the last look, and 1 in all"),
        ]
        for name, holds, what in valid:
            if not holds:
                raise BadInput(f"GateSettings.{name} must be {what}, is {getattr(self, name)!r}")

    @property
    def allows_for_sessions(self) -> bool:
        """Whether sessions may differ by more than ``tau``: nobody vouches that they do not."""
        return bool(self.tau and self.session_effect and not self.paired)

    @property
    def last_look(self) -> int:
        """The largest number of new runs that a cell gets."""
        return self.looks[-1]


_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Quantity:
    """A figure of a run that can be gated.

    ``quantile`` is ``None`` for a figure that is not a quantile. A ratio of quantiles (P99 with
    neighbours over P99 alone) has its quantile, and the lesser side's number of samples counts.
    ``unit`` is that of the values, such as ``ns`` or ``TFLOP/s``; empty for a ratio.
    ``demoted_from`` is the label of the requested quantile if runs are too short for it and a lower
    one stands in; the verdict is then never a pass and never a regression.
    """

    name: Annotated[str, Field(alias="quantity")]
    label: str
    quantile: float | None
    higher_is_worse: bool = True
    unit: str = "ns"
    demoted_from: str = ""

    @property
    def least_n(self) -> int:
        """The smallest number of samples a run needs.

        Below it even the largest sample is no upper bound of the quantile at 95 %:
        ``1 - q ** n < 0.95`` (Hahn & Meeker, Statistical Intervals, section 5.2).
        """
        if self.quantile is None:
            return 1
        needed = math.ceil(math.log(1 - _CONFIDENCE) / math.log(self.quantile))
        return needed if 1 - self.quantile**needed >= _CONFIDENCE else needed + 1


P50 = Quantity("p50", "P50", 0.5)
P90 = Quantity("p90", "P90", 0.9)
P95 = Quantity("p95", "P95", 0.95)
P99 = Quantity("p99", "P99", 0.99)
P999 = Quantity("p999", "P99.9", 0.999)
THROUGHPUT = Quantity("throughput", "throughput", None, higher_is_worse=False, unit="per s")
ITERATION_TIME = Quantity("iteration_time", "time per iteration", None)
"""The companion of every other figure: the mean time per iteration of a run, in ns. It needs no
number of samples, so there is always something to judge; see `CellGate`."""

QUANTITIES = {each.name: each for each in (P50, P90, P95, P99, P999, THROUGHPUT, ITERATION_TIME)}
"""What can be gated, by name. The largest sample is not among them: it grows with the number of
samples, and no number of them bounds it."""

_TAIL_DOWNWARDS = (P999, P99, P95, P90)


def fall_back(wanted: Quantity, n: int) -> Quantity | None:
    """Return the tail quantile to gate with ``n`` samples per run, or ``None``.

    It is the requested one if ``n`` is enough for it, else the next lower tail quantile for which
    it is, down to P90. That one has its own name, and says in ``demoted_from`` what it stands in
    for.
    """
    if n >= wanted.least_n:
        return wanted
    if wanted not in _TAIL_DOWNWARDS:
        return None
    lower = _TAIL_DOWNWARDS[_TAIL_DOWNWARDS.index(wanted) + 1 :]
    found = next((candidate for candidate in lower if n >= candidate.least_n), None)
    return found and replace(found, demoted_from=wanted.label)


State = Literal["pass", "regression", "improvement", "inconclusive", "no-baseline", "incomparable"]

OTHER_CODE = "other-code"
"""Reason of a verdict on runs of code that was not the side's: whatever was compared, the session
fails."""

Decision = Literal["acquitted", "blind", "flagged", "undecided", "convicted"]
"""Of one look. ``flagged`` asks for more runs; ``blind`` does not, as they would not show more."""

INTERVAL_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class GateLook:
    """The numbers seen when a cell was judged after so many new runs.

    ``ratio`` is the geometric mean of the new runs over that of the baseline. ``p_t`` is of the
    t-test without a session term, by which a cell passes. ``p_exact`` is of the permutation test,
    or ``None`` if it was not computed. ``p_worse`` (main figure), ``p_companion`` (time per
    iteration) and ``p_failures`` are what a regression is found by: corrected for the number of
    looks and of tests, 1 if this look cannot find one. ``upper`` is the one-sided 97.5 % upper
    limit of the worsening, as a fraction.

    The figures are the main figure's, or the companion's if the runs lack the main figure.
    """

    new_runs: int
    ratio: float
    p_t: float
    p_exact: float | None
    p_worse: float
    p_failures: float
    decision: Decision
    p_companion: float = 1.0
    upper: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the runs of both sides show of one figure.

    Attributes:
        quantity: what was compared.
        on_trial: whether it alone could be a regression (`cell_gate.CellGate`); otherwise it
            informs.
        ratio: new over baseline, of the geometric means over runs.
        interval: of ``ratio``: the 95 % t interval over runs with the session term, not corrected
            for having looked several times.
        p: of the comparison, 1 if it passed.
        sd: standard deviation of the figure's logarithm between runs, pooled within both sides.
        sd_is_floor: whether ``sd`` is the settings' ``floor``, the runs' own being below it.
        upper: one-sided 97.5 % upper limit of the worsening, as a fraction: what a pass excludes is
            a worsening of ``detect`` or more.
        detectable: the smallest true worsening that this cell detects, as a fraction (0.1: latency
            times 1.1, throughput divided by 1.1); ``None`` if it can detect none by itself.
        set_aside: isolated runs that the figure was judged without; they are among the verdict's
            runs all the same.

    """

    quantity: Quantity
    on_trial: bool
    ratio: float
    interval: tuple[float, float]
    p: float
    sd: float
    sd_is_floor: bool
    upper: float
    detectable: float | None
    set_aside: tuple[SetAside, ...]

    @property
    def words(self) -> str:
        """The change as text."""
        return f"{self.quantity.label} {percent(self.ratio - 1)} (at most {percent(self.upper)})"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one quantity of one cell.

    Attributes:
        state: the verdict.
        reason: a short stable code for the reason.
        sentence: the reason as text.
        quantity: what was compared.
        p: the p that took part in the comparison of all cells, 1 if it passed.
        baseline: the baseline's runs.
        new: the new runs.
        advice: the runs it would take to find a worsening of the goal; empty if it already does.
        limit: with ``own_effects``, what keeps the cell from detecting 2 %; empty if nothing does.
        assumes: what the verdict assumes beyond exchangeable runs; empty if nothing.
        history: the looks in their order.
        main: what the runs show of the quantity; ``None`` if not compared.
        companion: what the time per iteration shows; ``None`` if unknown.
        by: name of the quantity that got worse in a regression, which may be the companion's, or
            ``failures``; else empty.
        by_samples: the ratio of one run to one other, with the interval of both runs' own samples,
            which does not hold what runs differ by; only where that is all there is.

    States and reasons:

    * ``pass``: ``within-noise`` (nothing suggests a worsening), ``not-shown`` (no worsening of the
      minimum effect is shown). Either way a worsening of ``detect`` is excluded.
    * ``regression``: ``worse``, ``slower-iterations`` (the companion), ``more-failures``.
    * ``improvement``: ``better``.
    * ``inconclusive``: ``likely-worse``, ``likely-slower-iterations``, ``likely-more-failures``;
      ``blind`` (a worsening of ``detect`` is not excluded); ``unstable`` (set-aside runs leave too
      few); ``demoted`` (a lower quantile stands in for the requested one); ``too-few-samples``;
      ``baseline-too-small``; ``runs-missing``; ``not-contended`` (launches were timed with fewer
      streams at work than the cell names).
    * ``no-baseline``: ``no-baseline``.
    * ``incomparable``: ``not-a-number``, ``clock-too-coarse``, ``zero-figure``, ``suite-shift``,
      ``lower-clock`` (slower in time and not in cycles), ``other-code`` (a side ran code that is
      not its own).
    """

    state: State
    reason: str
    sentence: str
    quantity: Quantity
    p: float | None = None
    baseline: tuple[ProcessRun, ...] = ()
    new: Annotated[tuple[ProcessRun, ...], Field(alias="test")] = ()
    advice: str = ""
    limit: str = ""
    assumes: str = ""
    history: Annotated[tuple[GateLook, ...], Field(alias="looks")] = ()
    main: Comparison | None = None
    companion: Comparison | None = None
    by: str = ""
    by_samples: Estimate | None = None

    @property
    def set_aside_words(self) -> str:
        """The runs set aside, such as ``1 of 15 new runs 10 x slower, set aside``; or nothing."""
        runs = {"baseline": len(self.baseline), "new": len(self.new)}
        if self.history:
            runs["new"] = self.history[-1].new_runs
        parts = []
        for side, how in product(("baseline", "new"), ("slower", "faster")):
            factors = sorted(
                run.factor if run.factor > 1 else 1 / run.factor
                for run in (() if self.main is None else self.main.set_aside)
                if run.side == side and (run.factor > 1) == (how == "slower")
            )
            if factors:
                each = " and ".join(f"{f:.0f}" if f >= 9.95 else f"{f:.1f}" for f in factors)
                parts.append(f"{len(factors)} of {runs[side]} {side} runs {each} x {how}")
        return f"{', '.join(parts)}, set aside" if parts else ""

    @property
    def line(self) -> str:
        """The verdict in one line: change, state, and what the cell could detect."""
        label, main = self.quantity.label, self.main
        if main is None:
            return f"{label} [{self.state}]: {self.sentence}"
        change = f"{label} {percent(main.ratio - 1)} [{self.state}]"
        if self.state == "pass":
            most = percent(self._own(main.upper))
            change = f"{label} {percent(main.ratio - 1)}, at most {most} [pass]"
        if self.by and self.companion is not None and self.by == self.companion.quantity.name:
            change = f"{self.companion.words} [{self.state}]; {label} {percent(main.ratio - 1)}"
        rest = (self.set_aside_words, self.limit, self.advice, self.assumes)
        if main.detectable is None:
            return "; ".join(part for part in (change, *rest) if part)
        noise = f"(sd {sd_words(main.sd, main.sd_is_floor)}, K={len(self.baseline)})"
        least = self._own(main.detectable)
        if self.reason == "blind":
            found = f"blind below {percent(least)} {noise}"
            if self.companion is not None:
                found += f"; {self.companion.words}"
        else:
            sign = ">=" if self.quantity.higher_is_worse else "<="
            found = f"this cell can detect {sign} {percent(least)} {noise}"
        return "; ".join(part for part in (change, found, *rest) if part)

    @property
    def detectable(self) -> float | None:
        """The least worsening that the quantity shows; None if it shows none, or none is known."""
        return None if self.main is None else self.main.detectable

    def _own(self, worsening: float) -> float:
        """Return a worsening as a change of the figure: of throughput, 0.25 is a fall by 0.2."""
        return worsening if self.quantity.higher_is_worse else 1 / (1 + worsening) - 1


def percent(fraction: float) -> str:
    """Format a signed fraction: 0.031 is ``+3.1 %``; ``∞`` from `LARGEST_RATIO` on."""
    if fraction > 0.99 * LARGEST_RATIO:
        return "+∞ %"
    return f"{100 * fraction:+.1f} %"


def sd_words(sd: float, is_floor: bool, places: int = 1) -> str:
    """Format a standard deviation between runs: ``3.1 %``, or ``≤ 0.5 % (floor)``.

    Args:
        sd: as a fraction.
        is_floor: whether it is the least that the gate believes, and not what runs showed.
        places: decimals of one that runs showed.
    """
    return f"≤ {100 * sd:.3g} % (floor)" if is_floor else f"{100 * sd:.{places}f} %"


def is_accompanied(runs: Iterable[ProcessRun], quantity: Quantity) -> bool:
    """Return whether every run has a time per iteration to judge along with the quantity."""
    return quantity.name != ITERATION_TIME.name and all(
        run.iteration_ns is not None and math.isfinite(run.iteration_ns) and run.iteration_ns > 0
        for run in runs
    )


def refusal(
    baseline: Sequence[ProcessRun], new: Sequence[ProcessRun], quantity: Quantity
) -> Verdict | None:
    """Return the verdict that rules a comparison out, or ``None`` if it can be made.

    Args:
        baseline: its runs, at least one.
        new: the new runs so far.
        quantity: what their values are.
    """
    verdict = partial(Verdict, quantity=quantity, baseline=tuple(baseline), new=tuple(new))
    label = quantity.label
    least = min(run.n for run in (*baseline, *new))
    short = quantity.quantile is not None and least < quantity.least_n
    if short and is_accompanied((*baseline, *new), quantity):
        return None
    for side, runs in (("baseline", baseline), ("new", new)):
        for number, run in enumerate(runs, start=1):
            where = f"{label} of {side} run {number} (session {run.session})"
            if not math.isfinite(run.value) or run.value < 0:
                text = f"{where} is {run.value}: its samples are negative, infinite or not numbers"
                return verdict("incomparable", "not-a-number", text)
            if run.value == 0 and quantity.quantile is not None:
                text = f"{where} is 0: the clock is too coarse for it"
                return verdict("incomparable", "clock-too-coarse", text)
            if run.value == 0:
                return verdict("incomparable", "zero-figure", f"{where} is 0: nothing was done")
    if short:
        instead = fall_back(quantity, least)
        advice = f"gate {instead.label} instead" if instead else "take more samples"
        text = f"{label} needs {quantity.least_n} samples in every run, one has {least}: {advice}"
        return verdict("inconclusive", "too-few-samples", text)
    return None
