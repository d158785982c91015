"""What the gate judges and how strictly, verdicts, and what may be compared at all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from pytest_hwqueue.errors import BadInput
from pytest_hwqueue.gate.runs import ProcessRun, SetAside

LEAST_FIRST_RUNS = 2


@dataclass(frozen=True)
class GateSettings:
    """Rates, effects and run counts of the gate; all shares are fractions (0.01 is 1 %).

    Attributes:
        rate: the share of unchanged suites that may raise an alarm.
        min_effect: no rise below this is called a regression.
        detect: the rise that matters: a cell passes only if a rise of this size is excluded; if it
            cannot be detected, the verdict says how many runs it would take.
        tau: standard deviation of ln P99 between sessions, at least: 0.005 with locked clocks on
            one host, 0.01 unlocked, 0 only for interleaved runs of one session.
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
    def of_options(*, tau: float | None = None, **fields: Any) -> GateSettings:
        """Return settings with the values of options; ``tau`` is None if nobody vouches for it."""
        if tau is not None:
            fields |= {"tau": tau, "session_effect": 0.0}
        return GateSettings(**fields)

    def __post_init__(self) -> None:
        for name in ("rate", "screen", "warn"):
            value = getattr(self, name)
            _require(0 < value < 1, name, "above 0 and below 1", value)
        _require(0.5 < self.power < 1, "power", "above 0.5 and below 1", self.power)
        for name in ("tau", "session_effect"):
            value = getattr(self, name)
            _require(0 <= value < 1, name, "0 or more and below 1", value)
        for name in ("min_effect", "detect", "floor", "suite_shift"):
            value = getattr(self, name)
            _require(0 < value < 10, name, "above 0 and below 10 (a fraction, 0.05 is 5 %)", value)
        _require(self.rate <= self.screen, "screen", f"at least rate ({self.rate})", self.screen)
        _require(
            self.first_runs >= LEAST_FIRST_RUNS,
            "first_runs",
            f"{LEAST_FIRST_RUNS} or more",
            self.first_runs,
        )
        _require(self.pairs >= LEAST_FIRST_RUNS, "pairs", "2 or more", self.pairs)
        ascending = all(a < b for a, b in zip(self.looks, self.looks[1:], strict=False))
        _require(
            bool(self.looks) and self.looks[0] >= self.first_runs and ascending,
            "looks",
            f"ascending numbers of runs from first_runs ({self.first_runs})",
            self.looks,
        )
        _require(
            len(self.weights) == len(self.looks),
            "weights",
            f"as many as looks ({len(self.looks)})",
            self.weights,
        )
        _require(
            all(weight >= 0 for weight in self.weights)
            and self.weights[-1] > 0
            and abs(sum(self.weights) - 1) < 1e-9,
            "weights",
            "0 or more each, above 0 at the last look, and 1 in all",
            self.weights,
        )

    @property
    def allows_for_sessions(self) -> bool:
        """Whether sessions may differ by more than ``tau``: nobody vouches that they do not."""
        return bool(self.tau and self.session_effect and not self.paired)

    @property
    def last_look(self) -> int:
        """The largest number of new runs that a cell gets."""
        return self.looks[-1]


def _require(holds: bool, field: str, what: str, value: object) -> None:
    if not holds:
        raise BadInput(f"GateSettings.{field} must be {what}, is {value!r}")


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

_KNOWN = {
    quantity.name: quantity for quantity in (P50, P90, P95, P99, P999, THROUGHPUT, ITERATION_TIME)
}
_TAIL_DOWNWARDS = (P999, P99, P95, P90)


def quantity(name: str) -> Quantity:
    """Return the gated quantity with that name.

    The largest sample is not among them: it grows with the number of samples, and no number of them
    bounds it.

    Raises:
        ValueError: if there is none of that name.
    """
    if name not in _KNOWN:
        raise ValueError(f"no gated quantity is named {name!r}; known are {', '.join(_KNOWN)}")
    return _KNOWN[name]


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

Decision = Literal["acquitted", "blind", "flagged", "undecided", "convicted"]
"""Of one look. ``flagged`` asks for more runs; ``blind`` does not, as they would not show more."""

INTERVAL_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Look:
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
class Companion:
    """What the time per iteration shows, next to the main figure.

    ``on_trial`` is whether it alone could be a regression (`cell_gate.CellGate`); otherwise it
    informs. The other fields are those of `Verdict`.
    """

    quantity: Quantity
    on_trial: bool
    ratio: float
    interval: tuple[float, float]
    p: float
    sd: float
    upper: float
    detectable: float | None
    set_aside: tuple[SetAside, ...]

    @property
    def words(self) -> str:
        """The companion's change as text."""
        return f"{self.quantity.label} {percent(self.ratio - 1)} (at most {percent(self.upper)})"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one quantity of one cell.

    Attributes:
        state: the verdict.
        reason: a short stable code for the reason.
        sentence: the reason as text.
        quantity: what was compared.
        ratio: new over baseline, of the geometric means over runs; ``None`` if not compared.
        interval: of ``ratio``: the 95 % t interval over runs with the session term, not corrected
            for having looked several times.
        p: the p that took part in the comparison of all cells, 1 if it passed.
        baseline: the baseline's runs.
        new: the new runs.
        sd: standard deviation of the figure's logarithm between runs, pooled within both sides.
        detectable: the smallest true worsening that this cell detects, as a fraction (0.1: latency
            times 1.1, throughput divided by 1.1); ``None`` if it can detect none by itself.
        advice: the runs it would take to find a worsening of the goal; empty if it already does.
        assumes: what the verdict assumes beyond exchangeable runs; empty if nothing.
        history: the looks in their order.
        upper: one-sided 97.5 % upper limit of the worsening, as a fraction: what a pass excludes is
            a worsening of ``detect`` or more. ``None`` if not compared.
        set_aside: isolated runs that the figure was judged without; they are in ``baseline`` and
            ``new`` all the same.
        companion: what the time per iteration shows; ``None`` if unknown.
        by: name of the quantity that got worse in a regression, which may be the companion's, or
            ``failures``; else empty.

    States and reasons:

    * ``pass``: ``within-noise`` (nothing suggests a worsening), ``not-shown`` (no worsening of the
      minimum effect is shown). Either way a worsening of ``detect`` is excluded.
    * ``regression``: ``worse``, ``slower-iterations`` (the companion), ``more-failures``.
    * ``improvement``: ``better``.
    * ``inconclusive``: ``likely-worse``, ``likely-slower-iterations``, ``likely-more-failures``;
      ``blind`` (a worsening of ``detect`` is not excluded); ``unstable`` (set-aside runs leave too
      few); ``demoted`` (a lower quantile stands in for the requested one); ``too-few-samples``;
      ``baseline-too-small``; ``runs-missing``.
    * ``no-baseline``: ``no-baseline``.
    * ``incomparable``: ``not-a-number``, ``clock-too-coarse``, ``zero-figure``, ``suite-shift``.
    """

    state: State
    reason: str
    sentence: str
    quantity: Quantity
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None
    baseline: tuple[ProcessRun, ...] = ()
    new: Annotated[tuple[ProcessRun, ...], Field(alias="test")] = ()
    sd: float | None = None
    detectable: float | None = None
    advice: str = ""
    assumes: str = ""
    history: Annotated[tuple[Look, ...], Field(alias="looks")] = ()
    upper: float | None = None
    set_aside: tuple[SetAside, ...] = ()
    companion: Companion | None = None
    by: str = ""

    @property
    def set_aside_words(self) -> str:
        """The runs set aside, such as ``1 of 15 new runs 10 x slower, set aside``; or nothing."""
        runs = {"baseline": len(self.baseline), "new": len(self.new)}
        if self.history:
            runs["new"] = self.history[-1].new_runs
        return set_aside_words(self.set_aside, runs)

    @property
    def line(self) -> str:
        """The verdict in one line: change, state, and what the cell could detect."""
        label = self.quantity.label
        if self.ratio is None or self.sd is None:
            return f"{label} [{self.state}]: {self.sentence}"
        change = f"{label} {percent(self.ratio - 1)} [{self.state}]"
        if self.state == "pass" and self.upper is not None:
            change = f"{label} {percent(self.ratio - 1)}, at most {self._most} [pass]"
        if self.by and self.companion is not None and self.by == self.companion.quantity.name:
            change = f"{self.companion.words} [{self.state}]; {label} {percent(self.ratio - 1)}"
        rest = (self.set_aside_words, self.advice, self.assumes)
        if self.detectable is None:
            return "; ".join(part for part in (change, *rest) if part)
        noise = f"(sd {percent(self.sd).lstrip('+')}, K={len(self.baseline)})"
        least = self.detectable if self.quantity.higher_is_worse else self._fall
        if self.reason == "blind":
            found = f"blind below {percent(least)} {noise}"
            if self.companion is not None:
                found += f"; {self.companion.words}"
        else:
            sign = ">=" if self.quantity.higher_is_worse else "<="
            found = f"this cell can detect {sign} {percent(least)} {noise}"
        return "; ".join(part for part in (change, found, *rest) if part)

    @property
    def _most(self) -> str:
        """The largest change not excluded, in the figure's own direction."""
        upper = self.upper or 0.0
        return percent(upper if self.quantity.higher_is_worse else 1 / (1 + upper) - 1)

    @property
    def _fall(self) -> float:
        """The detectable worsening of a figure of which less is worse: 0.25 is a fall by 0.2."""
        return 1 / (1 + (self.detectable or 0.0)) - 1


def set_aside_words(aside: Sequence[SetAside], runs: Mapping[str, int]) -> str:
    """Return text naming the runs set aside; empty if there are none.

    Args:
        aside: the runs.
        runs: how many runs there are, by ``baseline`` and ``new``.
    """
    parts = []
    for side in ("baseline", "new"):
        for slower in (True, False):
            factors = [run.factor for run in aside if run.side == side]
            factors = [f if slower else 1 / f for f in factors if (f > 1) == slower]
            if factors:
                each = " and ".join(_times(factor) for factor in sorted(factors))
                how = "slower" if slower else "faster"
                parts.append(f"{len(factors)} of {runs[side]} {side} runs {each} x {how}")
    return f"{', '.join(parts)}, set aside" if parts else ""


def _times(factor: float) -> str:
    return f"{factor:.0f}" if factor >= 9.95 else f"{factor:.1f}"


def percent(fraction: float) -> str:
    """Format a signed fraction: 0.031 is ``+3.1 %``."""
    return f"{100 * fraction:+.1f} %"


def refusal(
    baseline: Sequence[ProcessRun],
    new: Sequence[ProcessRun],
    quantity: Quantity,
    *,
    accompanied: bool = False,
) -> Verdict | None:
    """Return the verdict that rules a comparison out, or ``None`` if it can be made.

    Args:
        baseline: its runs.
        new: the new runs so far.
        quantity: what their values are.
        accompanied: whether the runs' time per iteration can be judged where they have too few
            samples for the quantity.
    """
    if not baseline:
        return Verdict(
            "no-baseline",
            "no-baseline",
            f"{quantity.label} has no baseline yet: store these runs to have one",
            quantity,
            new=tuple(new),
        )
    counts = [run.n for run in (*baseline, *new)]
    short = quantity.quantile is not None and min(counts) < quantity.least_n
    if short and accompanied:
        return None
    for side, runs in (("baseline", baseline), ("new", new)):
        for number, run in enumerate(runs, start=1):
            where = f"{quantity.label} of {side} run {number} (session {run.session})"
            if not math.isfinite(run.value) or run.value < 0:
                return _refuse(
                    "not-a-number",
                    f"{where} is {run.value}: its samples are negative, infinite or not numbers",
                    quantity,
                    baseline,
                    new,
                )
            if run.value == 0:
                clock = quantity.quantile is not None
                why = "the clock is too coarse for it" if clock else "nothing was done"
                code = "clock-too-coarse" if clock else "zero-figure"
                return _refuse(code, f"{where} is 0: {why}", quantity, baseline, new)
    if short:
        instead = fall_back(quantity, min(counts))
        advice = f"gate {instead.label} instead" if instead else "take more samples"
        return Verdict(
            "inconclusive",
            "too-few-samples",
            f"{quantity.label} needs {quantity.least_n} samples in every run, one has "
            f"{min(counts)}: {advice}",
            quantity,
            baseline=tuple(baseline),
            new=tuple(new),
        )
    return None


def _refuse(
    reason: str,
    sentence: str,
    quantity: Quantity,
    baseline: Sequence[ProcessRun],
    new: Sequence[ProcessRun],
) -> Verdict:
    return Verdict(
        "incomparable", reason, sentence, quantity, baseline=tuple(baseline), new=tuple(new)
    )
