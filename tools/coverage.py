"""How often intervals of 95 % hold the truth where samples follow each other.

    python -m tools.coverage [--runs 400] [--n 400,1000,3000,10000] [--series NAME ...]

Prints a Markdown table: for each series and n, the share of all runs in which an interval was given
and missed the true value, and in brackets the share in which none was given. The truth of queues is
that of a series of 4 million. A queue is empty when its window begins.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from pytest_hwqueue.metrics.estimate import Estimate
from pytest_hwqueue.metrics.latency import CONFIDENCE, summarise_latency, throughput
from pytest_hwqueue.tenancy import figures
from pytest_hwqueue.tenancy.figures import Served

Values = NDArray[np.float64]
# Arrival and latency, in services, of n requests.
Generated = tuple[Values, Values]
Generate = Callable[[int, np.random.Generator], Generated]
_BATCH = 8
_SCALE = 1e6
_LONG = 4_000_000


def queue(n: int, load: float, generator: np.random.Generator, kind: str) -> Generated:
    """Return arrivals and latencies of one server's queue: M/D/1, M/M/1, or batches of 8."""
    services = generator.exponential(1, n) if kind == "M/M/1" else np.ones(n)
    gaps = generator.exponential(1 / load, n)
    if kind == "batches":
        gaps = np.where(np.arange(n) % _BATCH == 0, gaps * _BATCH, 0.0)
    # Lindley's recursion: the walk above its least value so far.
    walk = np.cumsum(np.concatenate([[0.0], services[:-1] - gaps[1:]]))
    return np.cumsum(gaps), walk - np.minimum.accumulate(walk) + services


def autoregressive(n: int, correlation: float, generator: np.random.Generator) -> Values:
    """Return a stationary Gaussian AR(1) series of mean 20 and standard deviation 1."""
    noise = generator.standard_normal(n) * math.sqrt(1 - correlation**2)
    noise[0] = generator.standard_normal()
    return np.asarray(lfilter([1], [1, -correlation], noise)) + 20


def _closed(values: Callable[[int, np.random.Generator], Values]) -> Generate:
    def generate(n: int, generator: np.random.Generator) -> Generated:
        latency = values(n, generator)
        return np.cumsum(latency) - latency, latency

    return generate


def _repeated(n: int, generator: np.random.Generator) -> Values:
    return np.repeat(generator.gamma(4, 1, -(-n // 50)), 50)[:n]


def _bimodal(n: int, generator: np.random.Generator) -> Values:
    return np.where(
        generator.random(n) < 0.03, generator.normal(50, 2, n), generator.normal(5, 0.2, n)
    )


def _series() -> dict[str, tuple[Generate, int]]:
    """Return what generates each series, and the samples of one iteration."""

    def queued(kind: str, load: float) -> Generate:
        return lambda n, generator: queue(n, load, generator, kind)

    def following(correlation: float) -> Callable[[int, np.random.Generator], Values]:
        return lambda n, generator: autoregressive(n, correlation, generator)

    kinds, loads = ("M/D/1", "M/M/1", "batches"), (0.3, 0.5, 0.7, 0.8, 0.9)
    found = {f"{kind} {load}": (queued(kind, load), 1) for kind in kinds for load in loads}
    for correlation in (0.0, 0.5, 0.9):
        found[f"AR(1) {correlation}"] = _closed(following(correlation)), 1
    found["bimodal"] = _closed(_bimodal), 1
    found["ties"] = _closed(lambda n, generator: np.ceil(generator.gamma(2, 1, n))), 1
    found["20 x 50"] = _closed(_repeated), 50
    return found


def _served(generated: Generated) -> Served:
    arrival, latency = (np.round(each * _SCALE).astype(np.int64) for each in generated)
    window_ns = int(arrival[-1]) + 1
    return Served(latency.size, latency.tolist(), np.sort(arrival + latency).tolist(), window_ns)


class _Truth(NamedTuple):
    """True figures of a series, and the P95 (ns) that attainments are held against."""

    figures: dict[str, float]
    bound_ns: float


def _truth(generate: Generate) -> _Truth:
    latency_ns = generate(_LONG, np.random.default_rng(1))[1] * _SCALE
    gaps_ns = np.diff(generate(_LONG, np.random.default_rng(2))[0]) * _SCALE
    levels = {"P50": 0.5, "P95": 0.95, "P99": 0.99}
    found = {name: float(np.quantile(latency_ns, level)) for name, level in levels.items()}
    bound_ns = found["P95"]
    found["attainment"] = float(np.mean(latency_ns <= bound_ns))
    found["mean"] = float(latency_ns.mean())
    found["throughput"] = 1e9 / float(np.mean(gaps_ns))
    return _Truth(found, bound_ns)


def _row(generate: Generate, block: int, truth: _Truth, n: int, runs: int) -> str:
    """Return the shares of all figures of runs of n requests, as cells of a table."""
    generator = np.random.default_rng(7)
    missed = dict.fromkeys(truth.figures, 0)
    without = dict.fromkeys(missed, 0)

    def count(figure: str, interval: tuple[float, float] | None) -> None:
        without[figure] += interval is None
        missed[figure] += (
            interval is not None and not interval[0] <= truth.figures[figure] <= interval[1]
        )

    for _ in range(runs):
        generated = generate(n, generator)
        latency = generated[1] * _SCALE
        summary = summarise_latency(np.round(latency).tolist(), block)
        for percentile in ("P50", "P95", "P99"):
            found = getattr(summary, percentile.lower()).interval
            count(percentile, found and (found[0] * 1e6, found[1] * 1e6))
        rates = throughput(1, latency.tolist(), "/s").interval
        count("mean", rates and (1e9 / rates[1], 1e9 / rates[0]))
        window = _served(generated)
        count("attainment", _ends(figures.attainment(truth.bound_ns)([window], CONFIDENCE)))
        count("throughput", _ends(figures.throughput([window], CONFIDENCE)))
    cells = [
        f"{100 * missed[figure] / runs:.1f} ({100 * without[figure] / runs:.0f})"
        for figure in missed
    ]
    return " | ".join(cells)


def _ends(estimate: Estimate) -> tuple[float, float]:
    return estimate.low, estimate.high


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--n", default="400,1000,3000,10000")
    parser.add_argument("--series", nargs="*", default=list(_series()))
    given = parser.parse_args(arguments)
    print("| series | n | P50 | P95 | P99 | attainment | mean | throughput |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    series = _series()
    for name in given.series:
        generate, block = series[name]
        truth = _truth(generate)
        for n in map(int, given.n.split(",")):
            print(f"| {name} | {n} | {_row(generate, block, truth, n, given.runs)} |", flush=True)


if __name__ == "__main__":
    main()
