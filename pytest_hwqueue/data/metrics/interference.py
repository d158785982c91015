"""What tenants cost each other, and what priority changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from pytest_hwqueue.data.metrics.dependence import independent_samples, student_quantile
from pytest_hwqueue.data.metrics.estimate import Estimate, PlainData
from pytest_hwqueue.data.metrics.latency import (
    minimum_samples,
    percentile,
    spread_interval,
    too_few,
)
from pytest_hwqueue.data.metrics.numbers import times

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_QUANTILES = {"p50": 0.5, "p99": 0.99}


class LatencyRatioResult(PlainData):
    """Ratio of two latency distributions at the median and at P99, dimensionless.

    Both sides' distribution-free intervals are taken at half the error (Bonferroni) and divided
    crosswise, so those of the ratios are conservative.
    """

    description: str
    n: int
    reference_n: int
    p50: Estimate
    p99: Estimate


def latency_ratio(
    samples_ns: Sequence[int],
    reference_ns: Sequence[int],
    description: str,
    block: int = 1,
    confidence: float = 0.95,
) -> LatencyRatioResult:
    """Divide quantiles of ``samples_ns`` by those of ``reference_ns``.

    A quantile is refused if either side has too few samples, and its interval if too few of either
    are independent (`dependence.independent_samples`).

    Args:
        samples_ns: in ns, of any length, in the order taken.
        reference_ns: likewise.
        description: of the ratio.
        block: successive samples of one iteration; not of the reference.
        confidence: of each interval.

    """
    ratios = {
        name: quantile_ratio(samples_ns, reference_ns, quantile, (block, 1), confidence)
        for name, quantile in _QUANTILES.items()
    }
    return LatencyRatioResult(
        description=description, n=len(samples_ns), reference_n=len(reference_ns), **ratios
    )


def quantile_ratio(
    samples_ns: Sequence[float] | NDArray[np.float64],
    reference_ns: Sequence[float] | NDArray[np.float64],
    quantile: float,
    blocks: tuple[int, int] = (1, 1),
    confidence: float = 0.95,
) -> Estimate:
    """Divide a quantile of samples by that of others; as `latency_ratio`.

    Both sides' intervals are taken at half the error (Bonferroni) and divided crosswise.

    Args:
        samples_ns: shape (n,), in the order taken.
        reference_ns: likewise.
        quantile: between 0 and 1, both excluded.
        blocks: successive samples of one iteration, on each side.
        confidence: of the interval.

    """
    import numpy as np

    each = 1 - (1 - confidence) / 2
    sides = [np.asarray(side, np.float64) for side in (samples_ns, reference_ns)]
    samples, reference = map(np.sort, sides)
    fewer = min(len(samples), len(reference))
    refused = Estimate(n=fewer)
    needed = minimum_samples(quantile, each)
    if fewer < needed:
        few = too_few(quantile, fewer, confidence=each)
        return refused.without_value(f"the smaller side {few}")
    if reference[0] <= 0:
        return refused.without_value("the reference's latency is not above zero")
    worth = [
        independent_samples([side], quantile, each, block)
        for side, block in zip(sides, blocks, strict=True)
    ]
    low, high = spread_interval(samples, quantile, each, worth[0], blocks[0])
    reference_low, reference_high = spread_interval(reference, quantile, each, worth[1], blocks[1])
    reason = ""
    if math.isinf(high + reference_high):
        side = worth.index(min(worth))
        of = "the reference " if side else ""
        reason = of + too_few(quantile, len(sides[side]), worth[side], confidence=each)
    return Estimate(
        value=percentile(samples, quantile) / percentile(reference, quantile),
        low=low / reference_high,
        high=math.inf if reason else high / reference_low,
        n=fewer,
        refused=reason,
    )


CONFIDENCE = 0.99
"""Of the ratio's interval: a mode without effect is called proven in at most 1 of 200 probes."""
PROVING = 0.8
"""An effect is proven if the whole interval is below it: a margin of 20 % to no effect."""
LEAST_ROUNDS = 6
# Below it the load holds small kernels up too little for an order to show.
_LEAST_HELD_UP = 2.0

EffectVerdict = Literal["proven", "not seen", "undecided"]


class PriorityEffect(PlainData):
    """What a probe before the window showed about priorities.

    In each round one tenant keeps the device busy with long kernels while another launches small
    kernels, one after the other; then they swap roles. Without priorities both take the same time.
    """

    verdict: EffectVerdict = Field(
        description="proven if the ratio's interval is below 0.8, not seen if it is above, "
        "otherwise undecided"
    )
    reason: str = Field("", description="why it is not proven")
    urgent: str = Field(description="name of the most urgent tenant")
    other: str = Field(description="name of the least urgent one")
    ratio: float | None = Field(
        None,
        description="geometric mean over rounds of the small kernels' latency in the urgent "
        "tenant, under the other one's load, to that of the other tenant, under the urgent "
        "one's load; below 1 if priorities have an effect",
    )
    interval: tuple[float, float] | None = Field(None, description="of the ratio, at 99 %")
    requests: int = Field(0, description="small kernels of each side in each round")
    urgent_ns: list[int] = Field(
        default_factory=list, description="mean latency of the urgent tenant's, each round"
    )
    other_ns: list[int] = Field(
        default_factory=list, description="mean latency of the other tenant's, each round"
    )
    alone_ns: int | None = Field(None, description="mean latency with nothing else on the device")
    load_ns: int | None = Field(None, description="length of one kernel of the load")

    @property
    def effective(self) -> bool | None:
        """Whether there is an effect; None if unknown."""
        return {"proven": True, "not seen": False}.get(self.verdict)

    @property
    def described(self) -> str:
        """The figures of a proven effect, or why it is not proven."""
        if self.verdict != "proven" or self.ratio is None:
            return self.reason
        ratio = times(self.ratio, self.interval)
        return (
            f"{self.urgent}'s small kernels took {ratio} what {self.other}'s did, each beside the "
            "other's load"
        )


def priority_effect(
    names: tuple[str, str],
    urgent_ns: Sequence[int],
    other_ns: Sequence[int],
    *,
    alone_ns: int,
    load_ns: int,
    requests: int,
) -> PriorityEffect:
    """Judge the rounds of a probe.

    The interval is Student's t over rounds, of the ratio's logarithm.

    Args:
        names: of the most urgent tenant, and of the least urgent one.
        urgent_ns: mean latency of the urgent tenant's small kernels, one value per round.
        other_ns: likewise of the other tenant's, in the same rounds.
        alone_ns: mean latency with nothing else on the device.
        load_ns: length of one kernel of the load.
        requests: number of small kernels per side and round.

    """
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    verdict: EffectVerdict = "undecided"
    rounds = len(urgent_ns)
    if rounds < LEAST_ROUNDS:
        reason = f"the load outlasted the small kernels in {rounds} rounds; {LEAST_ROUNDS} needed"
    else:
        logs = [math.log(u / o) for u, o in zip(urgent_ns, other_ns, strict=True)]
        half = student_quantile((1 + CONFIDENCE) / 2, rounds - 1) * stdev(logs) / math.sqrt(rounds)
        ratio = math.exp(fmean(logs))
        interval = (math.exp(fmean(logs) - half), math.exp(fmean(logs) + half))
        verdict, reason = _verdict(interval, max(fmean(urgent_ns), fmean(other_ns)) / alone_ns)
    return PriorityEffect(
        verdict=verdict, reason=reason, urgent=names[0], other=names[1], ratio=ratio,
        interval=interval,
        requests=requests, urgent_ns=list(urgent_ns), other_ns=list(other_ns), alone_ns=alone_ns,
        load_ns=load_ns,
    )  # fmt: skip


def _verdict(interval: tuple[float, float], held_up: float) -> tuple[EffectVerdict, str]:
    low, high = interval
    if high < PROVING:
        return "proven", ""
    if held_up < _LEAST_HELD_UP:
        return "undecided", (
            f"beside the load small kernels took {held_up:.3g}× what they take alone: too little "
            "for an order to show"
        )
    between = f"urgent small kernels took {low:.3g}× to {high:.3g}× what others took"
    if low > PROVING:
        return "not seen", f"{between}; an effect is below {PROVING:g}×"
    return "undecided", f"{between}; all of it must be below {PROVING:g}×"
