"""What the gate says of one cell, with the numbers behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_hwqueue.gate.quantity import Quantity
from pytest_hwqueue.gate.runs import Run

State = Literal["pass", "regression", "improvement", "inconclusive", "no-baseline", "incomparable"]

Decision = Literal["acquitted", "flagged", "undecided", "convicted"]

INTERVAL_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen when a cell was judged with so many new runs.

    ``ratio`` is the geometric mean of the new runs over that of the baseline. ``p_t`` is of the
    t-test without a session term, which acquits. ``p_exact`` is of the permutation test, or
    ``None`` where it was not asked. ``p_worse`` and ``p_failures`` are what this look can convict
    with: corrected for the number of looks and of tests, 1 if it cannot.
    """

    new_runs: int
    ratio: float
    p_t: float
    p_exact: float | None
    p_worse: float
    p_failures: float
    decision: Decision


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of one cell's one quantity.

    Attributes:
        state: the verdict.
        reason: a short stable code of why.
        sentence: the same for people.
        quantity: what was compared.
        ratio: new over baseline, of the geometric means over runs; ``None`` if not compared.
        interval: of ``ratio``: the 95 % t interval over runs with the session term, not corrected
            for having looked several times.
        p: the p that took part in the comparison of all cells, 1 if acquitted.
        baseline: the baseline's runs.
        new: the new runs.
        sd: standard deviation of the figure's logarithm between runs, pooled within both sides.
        detectable: the least true worsening that this cell finds, as a fraction (0.1: latency
            times 1.1, throughput divided by 1.1); ``None`` if it can find none by itself.
        advice: the runs it would take to find a worsening of the goal; empty if it already does.
        assumes: what the verdict takes for granted beyond exchangeable runs; empty if nothing.
        history: the looks in their order.
    """

    state: State
    reason: str
    sentence: str
    quantity: Quantity
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None
    baseline: tuple[Run, ...] = ()
    new: tuple[Run, ...] = ()
    sd: float | None = None
    detectable: float | None = None
    advice: str = ""
    assumes: str = ""
    history: tuple[Look, ...] = ()

    @property
    def line(self) -> str:
        """The verdict in one line: change, state, and what the cell could have found."""
        label = self.quantity.label
        if self.ratio is None or self.sd is None:
            return f"{label} [{self.state}]: {self.sentence}"
        change = f"{label} {percent(self.ratio - 1)} [{self.state}]"
        if self.detectable is None:
            return f"{change}; {self.advice}"
        if self.quantity.higher_is_worse:
            least = f">= {percent(self.detectable)}"
        else:
            least = f"<= {percent(1 / (1 + self.detectable) - 1)}"
        found = (
            f"this cell can detect {least} "
            f"(sd {percent(self.sd).lstrip('+')}, K={len(self.baseline)})"
        )
        return "; ".join(part for part in (change, found, self.advice, self.assumes) if part)


def percent(fraction: float) -> str:
    """Return a signed fraction for people: 0.031 is ``+3.1 %``."""
    return f"{100 * fraction:+.1f} %"
