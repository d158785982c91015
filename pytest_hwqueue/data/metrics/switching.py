"""Queue-switch overhead: the device's cost of continuing with another queue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from pytest_hwqueue.data.metrics.estimate import Estimate, PlainData
from pytest_hwqueue.data.metrics.latency import (
    CONFIDENCE,
    minimum_samples,
    percentile,
    quantile_interval,
    shortfall,
    too_few,
)
from pytest_hwqueue.data.metrics.timeline import Kernel, Timeline

THREADS = "the CPU's streams are threads: each takes its own next launch, and nothing switches"
"""Why differences of the CPU's delays are refused: they are time of the interpreter."""

# Single kernels do start before the one before them has ended (1 to 3 of 763 on an H200, whose
# launches can allow that); more of them mean that the timeline is wrong.
_MOST_NEGATIVE = 0.05
_QUANTILES = {"median": 0.5, "p95": 0.95}
_NS_PER_US = 1e3
_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class ReadyDelay:
    """How long one kernel waited for the device with all its dependencies met.

    Attributes:
        kernel: index into ``Timeline.kernels``.
        delay_ns: from ready to start; negative if it was recorded as starting before it was ready.
        after_same_stream: whether the kernel started just before this one was on the same stream;
            None for the very first kernel.
    """

    kernel: int
    delay_ns: int
    after_same_stream: bool | None


class DelaySummary(PlainData):
    """One side of a comparison of delays, in µs; each interval holds by itself."""

    n: int = Field(description="number of delays")
    negative: int = Field(
        description="how many of them are below zero; a side with more than 5 % of them is refused"
    )
    median: Estimate
    p95: Estimate


class MedianDifference(PlainData):
    """The difference of two medians, ``first`` minus ``second``, with its interval.

    It is distribution-free: each median's order-statistic interval at 97.5 %, the ends subtracted
    crosswise. Both hold at once with at least 95 % (Bonferroni), so the interval is conservative.
    It takes the delays of a side for independent; those of one run are alike in ways that another
    run's are not, so it speaks for this run only.
    """

    first: DelaySummary
    second: DelaySummary
    difference: Estimate


class QueueSwitch(PlainData):
    """Queue-switch overhead of work on many streams; delays and spread are in ``unit``, "us"."""

    unit: str = "us"
    streams: int = Field(description="that ran a kernel in the run on many")
    overhead: MedianDifference = Field(
        description="delays on many streams (first) less those on one stream (second)"
    )
    other_stream_before: MedianDifference = Field(
        description="within the run on many streams, delays of kernels started just after one of "
        "another stream (first), less those just after one of the same stream (second)"
    )
    first_start_spread: float | None = Field(
        description="from the first to the last of the streams' first held starts"
    )
    start_rate_per_s: float | None = Field(
        description="held kernels that the device started per second"
    )
    late_enqueued: int = Field(
        description="kernels of the run on many streams that were left out because they were "
        "enqueued after the release"
    )
    late_enqueued_on_one: int = Field(description="the same of the run on one stream")
    refused: dict[str, str] = Field(description="the reason for each field that is null")
    unknown_ready: int = Field(
        0,
        description="held kernels of the run on many streams that were left out because they wait "
        "for a launch that ran nothing on the device, such as a function on the host",
    )
    unknown_ready_on_one: int = Field(0, description="the same of the run on one stream")


def ready_delays(timeline: Timeline) -> list[ReadyDelay]:
    """Return each held kernel's wait from ready to start, in order of start.

    A kernel is ready once all of these are past: it was enqueued; the gate opened
    (``released_ns``); its predecessor in the stream, by start, ended; the last kernel of each
    launch in ``waits_for`` ended. Kernels enqueued after the release are left out, because their
    delay measures how fast the host enqueues, but they count as predecessors of others; so are
    those that wait for a launch without kernels: when they were ready cannot be known. If
    nothing was held (``released_ns`` is None), every kernel is used.
    """
    kernels = timeline.kernels
    launch_end: dict[int, int] = {}
    for kernel in kernels:
        launch_end[kernel.launch] = max(kernel.end_ns, launch_end.get(kernel.launch, kernel.end_ns))
    by_start = sorted(
        range(len(kernels)),
        key=lambda index: (kernels[index].start_ns, kernels[index].end_ns, kernels[index].launch),
    )
    delays: list[ReadyDelay] = []
    stream_end: dict[int, int] = {}
    started_before: Kernel | None = None
    for index in by_start:
        kernel = kernels[index]
        waits_for_known = all(launch in launch_end for launch in kernel.waits_for)
        if waits_for_known and _is_held(kernel, timeline.released_ns):
            past = [kernel.enqueued_ns, *(launch_end[launch] for launch in kernel.waits_for)]
            if timeline.released_ns is not None:
                past.append(timeline.released_ns)
            if kernel.stream in stream_end:
                past.append(stream_end[kernel.stream])
            same = None if started_before is None else started_before.stream == kernel.stream
            delays.append(ReadyDelay(index, kernel.start_ns - max(past), same))
        stream_end[kernel.stream] = kernel.end_ns
        started_before = kernel
    return delays


def median_difference(first: Sequence[float], second: Sequence[float]) -> MedianDifference:
    """Compare the medians of two sets of delays by the method of ``MedianDifference``.

    A median needs 6 delays, and the difference 7 on each side, because each side's interval must
    then hold at 97.5 %.

    Args:
        first: shape (n,), in µs, in any order; may be empty.
        second: shape (m,), in µs, in any order; may be empty.

    Raises:
        ValueError: if a delay is not finite.
    """
    if not all(math.isfinite(delay) for side in (first, second) for delay in side):
        raise ValueError("delays must be finite numbers")
    sides = (sorted(first), sorted(second))
    each = 1 - (1 - CONFIDENCE) / 2
    needed = minimum_samples(0.5, each)
    fewest = min(len(side) for side in sides)
    reason = "the smaller side " + shortfall(needed, fewest, "delays")
    difference = Estimate(n=fewest, unit="us", refused=reason)
    if fewest >= needed:
        (low, high), (other_low, other_high) = (
            quantile_interval(side, 0.5, each) for side in sides
        )
        value = percentile(sides[0], 0.5) - percentile(sides[1], 0.5)
        ends = {"low": low - other_high, "high": high - other_low}
        difference = Estimate(value=value, **ends, n=fewest, unit="us")
    return MedianDifference(
        first=_summarise_side(sides[0]), second=_summarise_side(sides[1]), difference=difference
    )


def queue_switch(many: Timeline, one: Timeline) -> QueueSwitch:
    """Measure the cost of serving several streams, against the same kernels on one.

    The overhead is the difference of the median delays from ready to start. The split inside
    the run on many streams (was another stream's kernel started just before?) needs no second
    run, but one side of it stays empty where streams take turns. The spread of first starts
    leaves out streams whose first held kernel waits for another launch: they do not start on
    the release.

    Args:
        many: the pass on several streams.
        one: the same kernels, all on one stream, from the same process.

    Raises:
        ValueError: if ``one`` ran on more than one stream.
    """
    if len({kernel.stream for kernel in one.kernels}) > 1:
        raise ValueError("the timeline to compare with must have all its kernels on one stream")
    delays, held = ready_delays(many), _held(many)
    delays_on_one, held_on_one = ready_delays(one), _held(one)
    overhead = _compared(delays, delays_on_one)
    reason = _incomparable(many, one)
    if reason is not None:
        overhead = without_difference(overhead, reason)
    refused: dict[str, str] = {}
    return QueueSwitch(
        streams=len({kernel.stream for kernel in many.kernels}),
        overhead=overhead,
        other_stream_before=_compared(
            [delay for delay in delays if delay.after_same_stream is False],
            [delay for delay in delays if delay.after_same_stream is True],
        ),
        first_start_spread=_first_start_spread(many, refused),
        start_rate_per_s=_start_rate_per_s(many, refused),
        late_enqueued=len(many.kernels) - len(held),
        late_enqueued_on_one=len(one.kernels) - len(held_on_one),
        refused=refused,
        unknown_ready=len(held) - len(delays),
        unknown_ready_on_one=len(held_on_one) - len(delays_on_one),
    )


def without_switch(found: QueueSwitch, reason: str) -> QueueSwitch:
    """Refuse both differences where nothing switched between queues; the delays are kept."""
    return found.model_copy(
        update={
            "overhead": without_difference(found.overhead, reason),
            "other_stream_before": without_difference(found.other_stream_before, reason),
        }
    )


def _compared(first: Sequence[ReadyDelay], second: Sequence[ReadyDelay]) -> MedianDifference:
    found = median_difference(_in_us(first), _in_us(second))
    for side in (found.first, found.second):
        # Too many kernels started before they were ready.
        if side.negative > _MOST_NEGATIVE * side.n:
            found = without_difference(found, side.median.refused)
    return found


def without_difference(found: MedianDifference, reason: str) -> MedianDifference:
    """Refuse a comparison's difference for a reason; both sides are kept."""
    return found.model_copy(update={"difference": found.difference.without_value(reason)})


def _incomparable(many: Timeline, one: Timeline) -> str | None:
    """Return why two runs' delays do not show the cost of switching, or None."""
    if len({kernel.stream for kernel in many.kernels}) < 2:
        return "the run on many streams used fewer than 2: no queue was switched"
    if (many.released_ns is None) != (one.released_ns is None):
        return "one run's work was held until all of it was enqueued and the other's was not"
    if {kernel.name for kernel in many.kernels} != {kernel.name for kernel in one.kernels}:
        return "the two runs did not run the same kernels"
    return None


def _in_us(delays: Sequence[ReadyDelay]) -> list[float]:
    return [delay.delay_ns / _NS_PER_US for delay in delays]


def _is_held(kernel: Kernel, released_ns: int | None) -> bool:
    """Return whether a kernel's delay is the device's, not the host's; without a gate all count."""
    return released_ns is None or kernel.enqueued_ns <= released_ns


def _summarise_side(ordered: list[float]) -> DelaySummary:
    """Summarise a side; refuse its quantiles if too many kernels started before they were ready."""
    n, negative = len(ordered), sum(delay < 0 for delay in ordered)
    figures = {}
    for name, quantile in _QUANTILES.items():
        needed = minimum_samples(quantile, CONFIDENCE)
        refused = too_few(quantile, n, noun="delays")
        if negative > _MOST_NEGATIVE * n:
            refused = (
                f"{negative} of {n} kernels started before they were ready: the clocks or the "
                "dependencies of the timeline are wrong"
            )
        elif n >= needed:
            low, high = quantile_interval(ordered, quantile, CONFIDENCE)
            value = percentile(ordered, quantile)
            figures[name] = Estimate(value=value, low=low, high=high, n=n, unit="us")
            continue
        figures[name] = Estimate(n=n, unit="us", refused=refused)
    return DelaySummary(n=n, negative=negative, **figures)


def _held(timeline: Timeline) -> list[Kernel]:
    return [one for one in timeline.kernels if _is_held(one, timeline.released_ns)]


def _gated(timeline: Timeline, name: str, refused: dict[str, str]) -> list[Kernel]:
    """Return the kernels that the gate held; if there are none, note that in ``refused``."""
    gated = [] if timeline.released_ns is None else _held(timeline)
    if not gated:
        refused[name] = "no kernel was held until all the work was enqueued"
    return gated


def _first_start_spread(timeline: Timeline, refused: dict[str, str]) -> float | None:
    first: dict[int, Kernel] = {}
    held = _gated(timeline, "first_start_spread", refused)
    for kernel in sorted(held, key=lambda kernel: kernel.start_ns):
        first.setdefault(kernel.stream, kernel)
    starts = [kernel.start_ns for kernel in first.values() if not kernel.waits_for]
    if len(starts) >= 2:
        return (max(starts) - min(starts)) / _NS_PER_US
    if held:
        refused["first_start_spread"] = (
            f"needs at least 2 streams that start on the release, has {len(starts)}"
        )
    return None


def _start_rate_per_s(timeline: Timeline, refused: dict[str, str]) -> float | None:
    held = _gated(timeline, "start_rate_per_s", refused)
    if not held:
        return None
    starts = [kernel.start_ns for kernel in held]
    duration_ns = max(starts) - min(starts)
    if duration_ns == 0:
        refused["start_rate_per_s"] = "needs at least 2 kernels that start at different times"
        return None
    return (len(starts) - 1) * _NS_PER_S / duration_ns
