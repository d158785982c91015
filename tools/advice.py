"""How many samples suffice, and how often the window that an undecided goal names decides it.

    python -m tools.advice [--runs 800] [--seed 0] [--processes 2]

Prints two Markdown tables. First: of independent series of n samples, the share whose percentile
has an interval with both ends. Second: of P99 goals whose true share of slow requests is drawn
between 0.05 and 10 %, how many a window of 60 s at 20/s leaves undecided, and how many of these a
new window of the length that is then named decides; and of goals that no request misses, how many
the window that is named before anything is measured decides.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from multiprocessing import Pool
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_hwqueue.data.figures.of_requests import ServedRequests
from pytest_hwqueue.data.metrics.dependence import independent_samples
from pytest_hwqueue.data.metrics.latency import CONFIDENCE, spread_interval
from pytest_hwqueue.engine.scenarios.deciding import planned_window
from pytest_hwqueue.engine.scenarios.goals import GoalResult, evaluate, parse_goal
from tools.coverage import autoregressive, queue

Values = NDArray[np.float64]
_RATE_PER_S = 20
_WINDOW_S = 60
_MS = 1e6
_LONG = 2_000_000
_CHUNK = 50
_SAMPLES = {
    0.5: (6, 8), 0.9: (200, 250), 0.95: (300, 350), 0.99: (368, 500, 1000), 0.999: (3688, 5500),
}  # fmt: skip
# Latencies in ms.
SERIES: dict[str, Callable[[int, np.random.Generator], Values]] = {
    "independent": lambda n, generator: generator.lognormal(0, 0.5, n) * 5,
    "M/D/1 0.3": lambda n, generator: queue(n, 0.3, generator, "M/D/1")[1] * 5,
    "M/D/1 0.5": lambda n, generator: queue(n, 0.5, generator, "M/D/1")[1] * 5,
    "M/D/1 0.7": lambda n, generator: queue(n, 0.7, generator, "M/D/1")[1] * 5,
    "M/M/1 0.5": lambda n, generator: queue(n, 0.5, generator, "M/M/1")[1] * 5,
    "AR(1) 0.5": lambda n, generator: autoregressive(n, 0.5, generator),
    "AR(1) 0.9": lambda n, generator: autoregressive(n, 0.9, generator),
}


class Counts(NamedTuple):
    """Of some goals, how many were open after 60 s, then decided, and met in a planned window."""

    goals: int = 0
    open: int = 0
    advised: int = 0
    decided: int = 0
    planned: int = 0

    def plus(self, other: Counts) -> Counts:
        """Return the sums."""
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))


def _window(name: str, seconds: float, generator: np.random.Generator) -> ServedRequests:
    n = max(1, round(seconds * _RATE_PER_S))
    latency = np.round(SERIES[name](n, generator) * _MS).astype(np.int64)
    finished = np.arange(n) * (10**9 // _RATE_PER_S) + latency
    return ServedRequests(n, latency.tolist(), np.sort(finished).tolist(), int(seconds * 1e9))


def _judged(bound_ms: float, window: ServedRequests) -> GoalResult:
    return evaluate(parse_goal(f"high.p99 < {bound_ms:.6f} ms"), [window])


def _advice(task: tuple[str, int, Values]) -> tuple[str, Counts]:
    """Return a chunk's counts."""
    name, seed, shares = task
    generator = np.random.default_rng(seed)
    found = Counts()
    for _ in range(_CHUNK):
        slow = float(np.exp(generator.uniform(math.log(0.0005), math.log(0.1))))
        bound_ms = float(np.interp(1 - slow, np.linspace(0, 1, shares.size), shares))
        first = _judged(bound_ms, _window(name, _WINDOW_S, generator))
        found = found.plus(Counts(goals=1, open=first.verdict == "undecided"))
        if first.verdict == "undecided" and first.decided_by_s is not None:
            longer = _judged(bound_ms, _window(name, first.decided_by_s, generator))
            found = found.plus(Counts(advised=1, decided=longer.verdict != "undecided"))
        never = parse_goal("high.p99 < 1000 s")
        plan = planned_window(never, _RATE_PER_S, CONFIDENCE)
        assert plan is not None
        met = evaluate(never, [_window(name, plan.none_s, generator)]).verdict == "met"
        found = found.plus(Counts(planned=met))
    return name, found


def _has_both_ends(values: Values, quantile: float) -> bool:
    worth = independent_samples([values], quantile, CONFIDENCE)
    low, high = spread_interval(np.sort(values), quantile, CONFIDENCE, worth)
    return low > 0 and math.isfinite(high)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=800)
    parser.add_argument("--seed", type=int, default=0, help="the first of those used")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args(arguments)
    generator = np.random.default_rng(given.seed + 1)
    print("| percentile | samples | both ends in % |\n|---|---:|---:|")
    for quantile, sizes in _SAMPLES.items():
        for n in sizes:
            both = [
                _has_both_ends(generator.exponential(size=n), quantile) for _ in range(given.runs)
            ]
            print(f"| P{100 * quantile:g} | {n} | {100 * np.mean(both):.1f} |")
    at = np.linspace(0, 1, 10_001)
    shares = {
        name: np.quantile(make(_LONG, np.random.default_rng(1)), at)
        for name, make in SERIES.items()
    }
    seeds = range(given.seed, given.seed + given.runs // _CHUNK)
    tasks = [(name, seed, shares[name]) for name in SERIES for seed in seeds]
    found = dict.fromkeys(SERIES, Counts())
    with Pool(given.processes) as pool:
        for name, counts in pool.imap_unordered(_advice, tasks):
            found[name] = found[name].plus(counts)
    print("\n| requests | goals | open after 60 s | decided by the named window, % | planned, % |")
    print("|---|---:|---:|---:|---:|")
    for name, counts in found.items():
        decided = 100 * counts.decided / max(1, counts.advised)
        planned = 100 * counts.planned / counts.goals
        print(f"| {name} | {counts.goals} | {counts.open} | {decided:.1f} | {planned:.1f} |")


if __name__ == "__main__":
    main()
