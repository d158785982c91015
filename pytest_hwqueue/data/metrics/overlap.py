"""How much ran at once: kernels of a timeline, and communication that computation hid."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from pydantic import Field

from pytest_hwqueue.data.metrics.estimate import Estimate, PlainData
from pytest_hwqueue.data.metrics.latency import LEAST_ITERATIONS, block_count, block_estimate
from pytest_hwqueue.data.metrics.timeline import Span, Timeline, length, union

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    _Array = NDArray[np.float64]

RESAMPLES = 2000
LEAST_EFFICIENCY, MOST_EFFICIENCY = -1.25, 1.25
"""What may be hidden is between all and none; running together may cost as much again.

The rest is allowed for passes that differ. Beyond, the shorter work is too short to be seen.
"""

# Samples looked at together: a bound on memory.
_AT_ONCE = 4_000_000
_NS_PER_MS = 1e6


class OverlapEfficiency(PlainData):
    """The share of the shorter work that the longer one hid."""

    efficiency: Estimate = Field(
        description="1 if both together took as long as the longer alone, 0 if as long as one "
        "after the other; below 0 where running together costs more than it hides; refused also "
        "where it would tell too little"
    )
    compute_ms: Estimate = Field(description="median time of computation alone")
    comms_ms: Estimate = Field(description="median time of communication alone")
    both_ms: Estimate = Field(description="median time of both together")


class Bandwidth(PlainData):
    """One rank's communication bandwidths in GB/s (10⁹ bytes), as nccl-tests defines them."""

    algorithm: Estimate = Field(description="size of the arrays over the median time")
    bus: Estimate = Field(description="what each rank had at least to send and to receive")


def overlap_efficiency(
    compute_ns: Sequence[int], comms_ns: Sequence[int], both_ns: Sequence[int], *, seed: int = 0
) -> OverlapEfficiency:
    """Return (compute + comms - both) / min(compute, comms) of the medians of three series.

    The fixed cost of an iteration (launching, waiting for its end) is in all three times, so it
    counts as hidden: the shorter work must be long compared with it. For the form that needs one
    pass only see `summarise_timeline`.

    Intervals resample contiguous blocks of each series, as `scaling` does: 2000 times with a
    seeded generator (Carlstein, Annals of Statistics 14, 1986), at percentiles widened as
    Student's t asks for so few blocks (Hesterberg, The American Statistician 69, 2015). Combining
    the three medians' distribution-free intervals needs fewer iterations, but takes the worst of
    three times at once: in simulations of 400 iterations it was nearly twice as wide if these
    were independent, and held less often (73 % against 84 %) if each resembled the one before
    (correlation 0.9).

    Args:
        compute_ns: durations in ns of iterations that compute alone, in the order measured.
        comms_ns: the same of iterations that communicate alone.
        both_ns: the same of iterations that do both.
        seed: of the resampling; the same seed and samples give the same intervals.

    Raises:
        ValueError: if a duration is not finite and above zero.

    """
    import numpy as np

    generator = np.random.default_rng(seed)
    series = {"compute": compute_ns, "comms": comms_ns, "both": both_ns}
    medians = {name: _medians(samples, generator) for name, samples in series.items()}
    n = {name: len(samples) for name, samples in series.items()}
    fewest = min(n, key=n.__getitem__)
    # The first of each is the series' own median, the others are those of its resamples.
    shortest = min(map(len, medians.values()))
    compute, comms, both = (of_series[:shortest] for of_series in medians.values())
    shares = (compute + comms - both) / np.minimum(compute, comms)
    efficiency = _estimate(shares, n[fewest], fewest, "")
    # With an interval its width says whether a cost above the shorter work was seen.
    least = LEAST_EFFICIENCY if efficiency.interval is None else -math.inf
    efficiency = efficiency.informative(least=least, most=MOST_EFFICIENCY)
    times = {
        f"{name}_ms": _estimate(of_series / _NS_PER_MS, n[name], name, "ms")
        for name, of_series in medians.items()
    }
    return OverlapEfficiency(efficiency=efficiency, **times)


def bandwidth(
    comms_ns: Sequence[int], array_bytes: int, bus_factor: float, *, seed: int = 0
) -> Bandwidth:
    """Return algorithm and bus bandwidth at the median time of communication alone.

    Algorithm bandwidth is size over time; bus bandwidth is that times a factor of the collective
    and the number of ranks (nccl-tests, doc/PERFORMANCE.md). Intervals as `overlap_efficiency`'s.

    Args:
        comms_ns: durations in ns, in the order measured.
        array_bytes: size of the arrays of one iteration, as nccl-tests count it.
        bus_factor: bus bandwidth over algorithm bandwidth; 0 for one rank.
        seed: of the resampling.

    Raises:
        ValueError: if a duration is not finite and above zero.

    """
    import numpy as np

    n = len(comms_ns)
    medians = _medians(comms_ns, np.random.default_rng(seed))
    # Bytes per ns are GB/s.
    algorithm = _estimate(array_bytes / medians, n, "comms", "GB/s")
    bus = algorithm.without_value("with one rank nothing crosses a bus")
    if bus_factor > 0:
        bus = algorithm.scaled(bus_factor, "GB/s")
    return Bandwidth(algorithm=algorithm, bus=bus)


def _medians(samples_ns: Sequence[int], generator: np.random.Generator) -> _Array:
    """Return the median in ns and, of a series long enough, those of its resamples behind it."""
    import numpy as np

    samples = np.asarray(samples_ns, dtype=np.float64)
    if not bool((np.isfinite(samples) & (samples > 0)).all()):
        raise ValueError("durations must be finite and above 0 ns")
    if samples.size < LEAST_ITERATIONS:
        return np.median(samples, keepdims=True) if samples.size else samples
    blocks = block_count(samples.size)
    sizes = [part.size for part in np.array_split(samples, blocks)]
    order = np.argsort(samples)
    of_block, ordered = np.repeat(np.arange(blocks), sizes)[order], samples[order]
    drawn = generator.multinomial(blocks, np.full(blocks, 1 / blocks), size=RESAMPLES)
    resampled = []
    for times in np.array_split(drawn, -(-RESAMPLES * samples.size // _AT_ONCE)):
        # A sample stands in a resample as often as its block was drawn.
        up_to = np.cumsum(times[:, of_block], axis=1)
        total = up_to[:, -1:]
        lower = ordered[(up_to < (total + 1) // 2).sum(axis=1)]
        upper = ordered[(up_to < total // 2 + 1).sum(axis=1)]
        resampled.append((lower + upper) / 2)
    return np.concatenate([[np.median(samples)], *resampled])


def _estimate(values: _Array, n: int, series: str, unit: str) -> Estimate:
    """Return the first value with an interval from the others, the resamples.

    Args:
        values: in ``unit``; empty if nothing was measured.
        n: iterations behind them.
        series: whose iterations they are, for the reason.
        unit: as printed.

    """
    if n == 0:
        return Estimate(unit=unit, refused=f"nothing was measured of {series}")
    return block_estimate(float(values[0]), values[1:], n, f"iterations of {series}", unit)


class TimelineSummary(PlainData):
    """How busy a timeline's streams were, and how much of that time they shared.

    Busy times are those under contention: a kernel that shares the device with others runs
    longer than it would alone, and its whole stay counts.
    """

    kernels: int
    streams_used: int = Field(description="that ran at least one kernel")
    busy_ms: list[float] = Field(
        description="per stream the time during which it ran at least one kernel"
    )
    span_ms: float = Field(description="from the first start to the last end")
    in_flight_mean: Estimate = Field(
        description="kernels running at once, averaged over the time in which any runs"
    )
    in_flight_max: int = Field(
        description="most kernels running at once; one that starts as another ends does not "
        "overlap it"
    )
    overlap_efficiency: Estimate = Field(
        description="hidden share of the time that could have been hidden, in [0, 1]"
    )
    elsewhere: int = Field(
        0,
        description="kernels that ran on streams of a library's own, and count for the stream that "
        "launched them",
    )


def summarise_timeline(timeline: Timeline) -> TimelineSummary:
    """Summarise a timeline of at least one kernel.

    Overlap efficiency is ``(sum of busy times - busy time of the device) / (sum of busy times -
    greatest busy time)``: 0 if the streams ran one after the other, 1 if all of them ran while
    the busiest one did. The device's busy time is the union of all kernels, so time at which
    nothing runs counts neither way. For two streams it is ``(T_compute + T_comms - T_both) /
    min(T_compute, T_comms)`` with both times and the union taken from the same pass. The form
    that compares three passes (each alone, then both) differs from it where the two slow each
    other down or leave gaps: it is lower, and below zero where running together costs more
    than it hides.

    Raises:
        ValueError: if the timeline has no kernel.
    """
    kernels = timeline.kernels
    if not kernels:
        raise ValueError("a timeline without kernels has nothing to summarise")
    by_stream: list[list[Span]] = [[] for _ in range(timeline.streams)]
    for kernel in kernels:
        by_stream[kernel.stream].append((kernel.start_ns, kernel.end_ns))
    busy = [length(union(intervals)) for intervals in by_stream]
    device_busy = length(union((kernel.start_ns, kernel.end_ns) for kernel in kernels))
    in_flight = Estimate(n=len(kernels), refused="no kernel ran for as long as the clock can tell")
    if device_busy:
        mean = sum(kernel.end_ns - kernel.start_ns for kernel in kernels) / device_busy
        in_flight = Estimate(value=mean, n=len(kernels))
    busy_streams = sum(time > 0 for time in busy)
    reason = f"needs at least 2 busy streams, has {busy_streams}"
    overlap = Estimate(n=len(kernels), refused=reason)
    if busy_streams >= 2:
        share = (sum(busy) - device_busy) / (sum(busy) - max(busy))
        overlap = Estimate(value=share, n=len(kernels))
    span = max(kernel.end_ns for kernel in kernels) - min(kernel.start_ns for kernel in kernels)
    return TimelineSummary(
        kernels=len(kernels),
        streams_used=sum(bool(intervals) for intervals in by_stream),
        busy_ms=[time / _NS_PER_MS for time in busy],
        span_ms=span / _NS_PER_MS,
        in_flight_mean=in_flight,
        in_flight_max=most_at_once((each.start_ns, each.end_ns) for each in kernels),
        overlap_efficiency=overlap,
        elsewhere=timeline.elsewhere,
    )


def most_at_once(spans: Iterable[tuple[int, int]]) -> int:
    """Return the most of these half-open intervals [start, end) that overlap; at least one."""
    # At one instant ends (-1) sort before starts (+1): back to back is not together.
    changes = sorted(change for start, end in spans for change in ((start, 1), (end, -1)))
    return max(accumulate(change for _, change in changes))
