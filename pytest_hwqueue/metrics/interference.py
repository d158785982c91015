"""Ratios of latencies measured in one run, which stay comparable across devices where ns do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_hwqueue.metrics.latency import minimum_samples, quantile_interval
from pytest_hwqueue.metrics.refused import Percentile

_QUANTILES = {"p50": 0.5, "p99": 0.99}


@dataclass(frozen=True)
class LatencyRatioResult:
    """Ratio of two latency distributions at the median and at P99, dimensionless.

    Each interval holds with ``confidence``: both sides' distribution-free intervals are taken at
    half the error (Bonferroni) and divided crosswise, so it is conservative.
    """

    description: str
    confidence: float
    n: int
    reference_n: int
    p50: Percentile = None
    p99: Percentile = None
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


def latency_ratio(
    samples_ns: Sequence[int],
    reference_ns: Sequence[int],
    description: str,
    confidence: float = 0.95,
) -> LatencyRatioResult:
    """Divide quantiles of ``samples_ns`` by those of ``reference_ns`` (both in ns, any length).

    A quantile is refused if either side has too few samples for its interval.
    """
    import numpy as np

    each = 1 - (1 - confidence) / 2
    samples, reference = np.sort(samples_ns), np.sort(reference_ns)
    values: dict[str, float] = {}
    intervals: dict[str, tuple[float, float]] = {}
    refused: dict[str, str] = {}
    for name, quantile in _QUANTILES.items():
        needed = minimum_samples(quantile, each)
        fewer = min(len(samples), len(reference))
        if fewer < needed:
            refused[name] = f"needs at least {needed} samples on both sides, has {fewer}"
            continue
        low, high = quantile_interval(samples, quantile, each)
        reference_low, reference_high = quantile_interval(reference, quantile, each)
        if reference_low <= 0:
            refused[name] = "the reference's latency is not above zero"
            continue
        values[name] = float(np.quantile(samples, quantile) / np.quantile(reference, quantile))
        intervals[name] = (float(low / reference_high), float(high / reference_low))
    return LatencyRatioResult(
        description=description,
        confidence=confidence,
        n=len(samples),
        reference_n=len(reference),
        p50=values.get("p50"),
        p99=values.get("p99"),
        intervals=intervals,
        refused=refused,
    )
