"""How throughput grows with the number of streams, and where it saturates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from pytest_hwqueue.data.metrics.estimate import Estimate, PlainData
from pytest_hwqueue.data.metrics.latency import (
    CONFIDENCE,
    LEAST_ITERATIONS,
    block_estimate,
    contiguous_blocks,
    shortfall,
    throughput,
)
from pytest_hwqueue.data.metrics.numbers import counted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RESAMPLES = 4000
SATURATED_SHARE = 0.95
"""A count of streams saturates the device if it reaches this share of the greatest throughput."""

MOST_EFFICIENCY = 1.5
"""Streams cannot do more than the same number of single ones; caches and clocks get this much."""

_NS_PER_S = 1e9

_READINGS = {
    "weak": (
        "Weak scaling: each stream brings its own work, and all share one device. An efficiency "
        "of base count / streams means that throughput stayed where it was: the device was "
        "already full, and nothing was lost."
    ),
    "strong": (
        "Strong scaling: the same work is split over the streams. Speedup is how much sooner it "
        "is done; an efficiency of base count / streams means that splitting gained nothing."
    ),
    "mixed": (
        "Work per iteration neither grows in proportion to the streams nor stays the same: "
        "compare throughput; efficiency mixes the effect of the streams with that of the work."
    ),
    None: "One count of streams says nothing about scaling.",
}


@dataclass(frozen=True)
class ScalingPoint:
    """Measurements at one number of streams.

    Attributes:
        streams: number of streams, at least 1.
        work_per_iteration: of all the streams together.
        iteration_ns: shape (n,), durations in nanoseconds, in the order measured.
    """

    streams: int
    work_per_iteration: float
    iteration_ns: Sequence[int]


class ScaledPoint(PlainData):
    """One number of streams compared with the lowest."""

    streams: int
    throughput: Estimate = Field(description="with its own interval, by batch means")
    speedup: Estimate = Field(
        description="throughput divided by that at the least count, which compared with itself is "
        "exactly 1; refused if it tells too little"
    )
    efficiency: Estimate = Field(description="speedup / (streams / least count)")


class Scaling(PlainData):
    """Scaling over numbers of streams, in ascending order of ``points``."""

    unit: str = Field(description="of the throughputs")
    kind: Literal["weak", "strong", "mixed"] | None = Field(
        description="weak if work grows in proportion to the streams, strong if it stays the "
        "same, else mixed; null with one point"
    )
    points: list[ScaledPoint] = Field(description="one for each count measured")
    base_streams: int = Field(description="the least count, which the others are compared with")
    saturation_streams: int | None = Field(
        description="the least count whose throughput is at least 95 % of the greatest"
    )
    saturation_range: tuple[int, int] | None = Field(
        description="counts between which it lies in 95 % of the bootstrap resamples"
    )
    confidence: float = Field(description="of the range")
    seed: int = Field(
        description="of the bootstrap; the same seed and samples give the same intervals"
    )
    reading: str = Field(description="how to read the table, in words")
    refused: dict[str, str] = Field(
        description='the reason for each field that is null, and "efficiency against one stream" '
        "if one stream was not measured"
    )


def scaling(points: Sequence[ScalingPoint], unit: str, seed: int = 0) -> Scaling:
    """Compare throughput across numbers of streams, and find the number that saturates the device.

    In strong scaling (Amdahl, 1967) the same work is split, and an efficiency below 1 is lost.
    In weak scaling (Gustafson, Comm. ACM 31, 1988) every stream brings its own work. Gustafson's
    processors come with the work; streams share one device, so once it is full, throughput stays
    and efficiency falls as 1 / n. That is perfect saturation, not a loss, and it bends at the
    second count however many streams the device could have taken. So saturation is read from
    throughput and never from efficiency.

    Intervals resample contiguous blocks of iterations (Carlstein, Annals of Statistics 14, 1986),
    4000 times with a seeded generator; the percentiles taken are widened as Student's t asks for
    so few blocks (Hesterberg, The American Statistician 69, 2015, "expanded percentile").

    Args:
        points: at least one, each with its own count of streams, in any order.
        unit: of work per second, for example "kernels/s".
        seed: of the bootstrap.

    Raises:
        ValueError: if there is no point, a count appears twice or is below 1, or the work or a
            duration is not finite and above zero.
    """
    import numpy as np

    ordered = sorted(points, key=lambda point: point.streams)
    counts = [point.streams for point in ordered]
    if not counts or counts[0] < 1:
        raise ValueError("needs at least one point, each of at least 1 stream")
    if len(set(counts)) < len(counts):
        raise ValueError(f"each count of streams must appear once, have {counts}")
    generator = np.random.default_rng(seed)
    rates = [throughput(point.work_per_iteration, point.iteration_ns, unit) for point in ordered]
    resampled = [_resample_rates(point, generator) for point in ordered]
    refused: dict[str, str] = {}
    if counts[0] != 1:
        refused["efficiency against one stream"] = (
            f"one stream was not measured: speedup and efficiency are against {counts[0]}"
        )
    saturation: int | None = None
    saturation_range: tuple[int, int] | None = None
    reason = _saturation_refused(ordered)
    if reason is None:
        saturation, saturation_range = _saturation(counts, rates, resampled)
        if saturation_range[0] == counts[-1]:
            saturation, saturation_range = None, None
            reason = f"not saturated within the counts measured, up to {counts[-1]} streams"
    if reason is not None:
        refused |= {"saturation_streams": reason, "saturation_range": reason}
    kind = _kind(ordered)
    if kind is None:
        refused["kind"] = shortfall(2, len(counts), "counts of streams")
    return Scaling(
        unit=unit,
        kind=kind,
        points=[
            _compare(counts[index], counts[0], (rates[index], rates[0]), (sample, resampled[0]))
            for index, sample in enumerate(resampled)
        ],
        base_streams=counts[0],
        saturation_streams=saturation,
        saturation_range=saturation_range,
        confidence=CONFIDENCE,
        seed=seed,
        reading=_READINGS[kind],
        refused=refused,
    )


def _kind(ordered: Sequence[ScalingPoint]) -> Literal["weak", "strong", "mixed"] | None:
    if len(ordered) < 2:
        return None
    base = ordered[0]
    growth = [point.work_per_iteration / base.work_per_iteration for point in ordered]
    if all(
        math.isclose(factor, point.streams / base.streams)
        for factor, point in zip(growth, ordered, strict=True)
    ):
        return "weak"
    return "strong" if all(math.isclose(factor, 1) for factor in growth) else "mixed"


def _resample_rates(
    point: ScalingPoint, generator: np.random.Generator
) -> NDArray[np.float64] | None:
    """Return the rates of ``RESAMPLES`` resamples of blocks, or None with too few iterations."""
    if len(point.iteration_ns) < LEAST_ITERATIONS:
        return None
    totals, sizes = contiguous_blocks(point.iteration_ns)
    picks = generator.integers(totals.size, size=(RESAMPLES, totals.size))
    iterations = sizes[picks].sum(axis=1)
    durations = totals[picks].sum(axis=1)
    rates: NDArray[np.float64] = point.work_per_iteration * _NS_PER_S * iterations / durations
    return rates


def _compare(
    streams: int,
    base_streams: int,
    rates: tuple[Estimate, Estimate],
    resampled: tuple[NDArray[np.float64] | None, NDArray[np.float64] | None],
) -> ScaledPoint:
    """Compare a count (first of each pair) with the least count (second)."""
    fewest = min(rate.n for rate in rates)
    both = None if resampled[0] is None or resampled[1] is None else resampled[0] / resampled[1]
    noun = "iterations here and at the least count"
    speedup = block_estimate(rates[0] / rates[1], both, fewest, noun)
    share = base_streams / streams
    speedup = speedup.informative(most=MOST_EFFICIENCY / share, unit="×")
    return ScaledPoint(
        streams=streams, throughput=rates[0], speedup=speedup, efficiency=speedup.scaled(share, "")
    )


def _saturation_refused(ordered: Sequence[ScalingPoint]) -> str | None:
    if len(ordered) < 2:
        return shortfall(2, len(ordered), "counts of streams")
    fewest = min(ordered, key=lambda point: len(point.iteration_ns))
    if len(fewest.iteration_ns) < LEAST_ITERATIONS:
        reason = shortfall(LEAST_ITERATIONS, len(fewest.iteration_ns), "iterations at each count")
        return f"{reason} at {counted(fewest.streams, 'stream')}"
    return None


def _saturation(
    counts: Sequence[int],
    rates: Sequence[Estimate],
    resampled: Sequence[NDArray[np.float64] | None],
) -> tuple[int, tuple[int, int]]:
    """Return the saturating count, and its range in 95 % of the resamples."""
    import numpy as np

    measured = np.array([[float(rate) for rate in rates]])
    samples = np.stack([sample for sample in resampled if sample is not None], axis=1)
    tail = (1 - CONFIDENCE) / 2
    # Whole counts only: an end between two counts would be a count that nobody measured.
    low, high = np.quantile(_first_saturated(samples), [tail, 1 - tail], method="inverted_cdf")
    return counts[int(_first_saturated(measured)[0])], (counts[int(low)], counts[int(high)])


def _first_saturated(rates: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return per row the first column that reaches the saturated share of the row's greatest."""
    import numpy as np

    threshold = SATURATED_SHARE * rates.max(axis=1, keepdims=True)
    first: NDArray[np.intp] = np.argmax(rates >= threshold, axis=1)
    return first
