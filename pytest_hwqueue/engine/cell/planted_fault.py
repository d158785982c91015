"""How strong a planted fault must be for what is judged to become slower by as much as asked for.

A spin behind a launch is absorbed where streams wait for a full front end or for each other's
blocks, and its own launch is much of a short burst: with a spin of 10 % of each launch's time,
bursts of tiny kernels on an H200 took 52 to 72 % longer. So the fault is weighed on the judged
figure itself, in passes before the measured one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pytest_hwqueue.data.metrics.latency import LatencySummary, percentile
from pytest_hwqueue.engine.cell.closed_loop import Plan, measure
from pytest_hwqueue.engine.cell.contended_pass import (
    ContendedPlan,
    ContendedProgram,
    contended_pass,
)
from pytest_hwqueue.engine.cell.program import Program
from pytest_hwqueue.engine.cell.sample_plan import SamplePlan
from pytest_hwqueue.engine.cell.stop_rule import StopRule
from pytest_hwqueue.parts.devices.protocol import Device, StreamPool

# Of the judged figure: what is asked for is met, if it is met so nearly.
_NEAR = 0.01
_MOST_TRIALS = 12
# From one trial to the next while nothing is known above: a spin may have to outlast the work of
# all other streams before it is seen.
_STEP = 4.0
# Whatever is not felt then is felt by nothing: a launch of 60 µs would spin for 25 ms.
_STRONGEST = 4.0**6
_ITERATIONS = 15
# For a P99 of a trial.
_SAMPLES = 300
_MOST_NS = 500_000_000
_NS_PER_MS = 1e6


@dataclass(frozen=True)
class PlantedFault:
    """A fault, weighed.

    Attributes:
        strength: of the fault as such; 1 is the share of each launch's time that was asked for.
        effect: on the judged figure, as a share of it.

    """

    strength: float
    effect: float


@dataclass(frozen=True)
class CellFault:
    """A fault that a cell has.

    Attributes:
        asked: its effect, a share.
        plain_ns: what the cell is judged by without it, of a short pass; None if whole iterations
            were weighed in its place.

    """

    asked: float
    plain_ns: Sequence[float] | None

    def words(self, measured: LatencySummary | None) -> str:
        """Return what it did to the figures of the measured pass, for the record's notes."""
        if self.plain_ns is None:
            return f"planted to be {self.asked:+.0%} of whole iterations"
        effects = []
        for name, quantile in (("p50", 0.5), ("p99", 0.99)):
            value = None if measured is None else getattr(measured, name).value
            if value is not None:
                plain = percentile(self.plain_ns, quantile) / _NS_PER_MS
                effects.append(f"{name.upper()} {value / plain - 1:+.1%}")
        did = ", ".join(effects) or "too few samples to say"
        return f"planted to be {self.asked:+.0%}: {did}, against a short pass without it"


def weighed(effect_of: Callable[[float], float], asked: float) -> PlantedFault:
    """Return the strength of a fault whose effect is as asked for, as nearly as 12 trials find it.

    Args:
        effect_of: measures the effect of a strength, a share; it grows with it, apart from noise.
        asked: the effect, a share above 0.

    """
    below = PlantedFault(0.0, 0.0)
    # Those above, the nearest last.
    above: list[PlantedFault] = []
    strength = 1.0
    for _ in range(_MOST_TRIALS):
        tried = PlantedFault(strength, effect_of(strength))
        if abs(tried.effect - asked) <= _NEAR:
            return tried
        if tried.effect < asked:
            below = tried
        else:
            above.append(tried)
        if not above and strength >= _STRONGEST:
            break
        strength = strength * _STEP if not above else _between(below, above, asked)
    # A fault that is felt: one that is not would let a gate pass that was to fail.
    return above[-1] if above else below


def _between(below: PlantedFault, above: Sequence[PlantedFault], asked: float) -> float:
    """Return a strength between the nearest two of either side.

    It is on the line through the last two above, where the effect has set in; else in the middle.
    """
    low, high = below.strength, above[-1].strength
    if len(above) > 1 and above[-2].effect > above[-1].effect:
        slope = (above[-2].effect - above[-1].effect) / (above[-2].strength - high)
        found = high - (above[-1].effect - asked) / slope
        if low < found < high:
            return found
    return (low + high) / 2


def launches_ns(
    device: Device, pool: StreamPool, program: ContendedProgram, plan: Plan
) -> list[int]:
    """Return the latencies of judged launches of a short contended pass, in ns."""
    # A model's windows are alike.
    most = 1 if device.capabilities.virtual_time else sys.maxsize
    stop = StopRule(most, _MOST_NS, plan.stop.wall_ns)
    short = ContendedPlan(SamplePlan(_SAMPLES), stop, plan.rank_sync, plan.flush)
    return contended_pass(device, pool, program, short).latencies_ns


def iterations_ns(
    device: Device, pool: StreamPool, program: Program, plan: Plan, judged: str | None
) -> list[int]:
    """Return what few iterations took, in ns.

    Args:
        device: to measure.
        pool: its streams.
        program: one iteration.
        plan: of the cell.
        judged: the tag that is judged; None for whole iterations.

    """
    few = replace(plan, stop=replace(plan.stop.within(4 * _MOST_NS), turns=_ITERATIONS))
    result = measure(device, pool, program, few, lambda done: None)
    return result.tags_ns[judged] if judged else result.host_ns or result.pace_ns
