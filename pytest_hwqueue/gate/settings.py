"""What the gate judges, and how strictly."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

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
        screen: a cell is acquitted if its t-test's p is above this and ``detect`` is excluded.
        first_runs: new runs of every cell; the first look may be at as many.
        looks: numbers of new runs at which a flagged cell is judged again.
        weights: the share of the error rate spent at each look; 0 may only acquit.
        floor: the smallest credible standard deviation of ln P99 between runs.
        warn: a rise that is not convicted is a warning if the t-test's p, or the exact one, is at
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
    weights: tuple[float, ...] = (0.0, 0.25, 0.75)
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
        raise ValueError(f"GateSettings.{field} must be {what}, is {value!r}")


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

    name: str
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
