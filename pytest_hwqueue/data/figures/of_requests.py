"""A tenant's figures with their intervals, for comparison with its goals.

Intervals say how far chance within the measured windows may have moved a figure. Requests that wait
in one queue are slow together: intervals allow for it (`metrics.dependence`), or an end is missing.
How much runs differ is the gate's business.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

from pytest_hwqueue.data.metrics.dependence import (
    chi2_quantile,
    independent_samples,
    long_run,
    proportion_interval,
    student_quantile,
    worth_of_share,
)
from pytest_hwqueue.data.metrics.drift import mean_interval
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.latency import (
    ABOVE_MEDIAN,
    LEAST_BLOCK_ITERATIONS,
    LEAST_BLOCKS,
    LEAST_ITERATIONS,
    block_count,
    minimum_samples,
    shortfall,
    spread_interval,
    too_few,
    wandering,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NEVER_COMPLETED = "{} requests never completed"
_NS_PER_S = 1e9

# Percentiles at which an end of an attainment may lie: these, and from the median on shares of slow
# requests that become less by this factor, as far as there are any.
_LOW_LEVELS, _SLOWEST_HALF, _FINER = (0.05, 0.2, 0.35), 0.5, 1.6
# Enough to show dependence between counts.
_MOST_COUNTS = 100


class Session(NamedTuple):
    """Where and when windows were measured; figures may be divided only within one session.

    Attributes:
        device: the GPU's UUID; empty if it has none.
        name: of the session; empty if there is only one.

    """

    device: str = ""
    name: str = ""


ONLY_SESSION = Session()


TimesOf = Literal["latency_ns", "ttft_ns", "ttfo_ns", "tbt_ns", "wait_ns"]


@dataclass(frozen=True)
class ServedRequests:
    """The outcome of one tenant's requests in one window.

    Attributes:
        issued: requests that were due in the window, whatever their outcome.
        latency_ns: of each completed request, from its scheduled arrival; in order of arrival.
        finished_ns: when each of them was done, from the window's start.
        window_ns: length of the window.
        session: in which it was measured.
        ttft_ns: of each completed request that streamed tokens, its first one's latency.
        ttfo_ns: of each whose answer began, that of the first token of it, after any reasoning.
        tbt_ns: of each with two tokens or more, the mean time between them.
        good_ns: when each request was done that kept its bounds on both, from the window's start.
        wait_ns: of each completed request of a traced window that ran a kernel or copy, how long
            the first one waited to start.
        busy_ns: of a traced window, how long kernels and copies ran in each of its equal blocks.
        switches: likewise, how often the device went from one tenant to another.
        from_ns: of the whole window, how much had passed when the tenant came.
        rate_from_ns: when throughput begins, which counts what is done after that; above 0 where
            a number of requests ends the window (`records.tenants.rate_begins_ns`).

    """

    issued: int
    latency_ns: Sequence[int]
    finished_ns: Sequence[int]
    window_ns: int
    session: Session = ONLY_SESSION
    ttft_ns: Sequence[int] = ()
    ttfo_ns: Sequence[int] = ()
    tbt_ns: Sequence[float] = ()
    good_ns: Sequence[int] = ()
    wait_ns: Sequence[int] = ()
    busy_ns: Sequence[int] = ()
    switches: Sequence[int] = ()
    from_ns: int = 0
    rate_from_ns: int = 0

    # Each figure of throughput asks for it.
    @cached_property
    def rated_ns(self) -> list[int]:
        """When each request was done that counts for throughput, from when that begins."""
        begins_ns = self.rate_from_ns
        return [
            ended_ns - begins_ns
            for ended_ns in self.finished_ns
            if ended_ns <= self.window_ns and (ended_ns > begins_ns or not begins_ns)
        ]

    @cached_property
    def _times(self) -> dict[TimesOf, NDArray[np.float64]]:
        return {}

    def times(self, of: TimesOf) -> NDArray[np.float64]:
        """Return every issued request's time in ns, in order; infinite if not completed.

        Those are spread evenly: that they came together makes them no smaller a share.
        """
        import numpy as np

        if of not in self._times:
            times = np.asarray(getattr(self, of), np.float64)
            never = self.issued - len(self.latency_ns)
            between = np.linspace(0, times.size, never + 2)[1:-1].astype(int)
            self._times[of] = np.insert(times, between, math.inf)
            # All figures share it.
            self._times[of].flags.writeable = False
        return self._times[of]

    @property
    def rate_ns(self) -> int:
        """The time that throughput is of."""
        return self.window_ns - self.rate_from_ns


Estimator = Callable[[Sequence[ServedRequests], float], Estimate]


def percentile(quantile: float, of: TimesOf = "latency_ns") -> Estimator:
    """Return the estimator of a percentile of a latency, of a time of tokens or a wait, in ns.

    A request that failed or was not served counts as infinitely slow. The interval is that of
    `spread_interval`; with too few requests for its upper end, only the lower end remains.

    Args:
        quantile: between 0 and 1; 0.99 is P99.
        of: what is timed.

    """
    import numpy as np

    def estimate(windows: Sequence[ServedRequests], confidence: float) -> Estimate:
        times = _times(windows, of)
        ordered = np.sort(np.concatenate(times))
        n = int(ordered.size)
        needed = minimum_samples(quantile, confidence)
        if n == 0:
            return Estimate(
                low=0.0, unit="ns", refused=too_few(quantile, 0, 0, "requests", confidence)
            )
        # Between two samples, as in tables, unless one of them may be infinite.
        finite = math.isfinite(ordered[-1])
        method: Literal["linear", "inverted_cdf"] = "linear" if finite else "inverted_cdf"
        value = float(np.quantile(ordered, quantile, method=method))
        worth = independent_samples(times, quantile, confidence)
        low, high = spread_interval(ordered, quantile, confidence, worth)
        refused = ""
        if math.isinf(value):
            refused = NEVER_COMPLETED.format("so many")
        elif math.isinf(high):
            short = worth < needed
            never = NEVER_COMPLETED.format("some")
            refused = too_few(quantile, n, worth, "requests", confidence) if short else never
        return Estimate(value=value, low=low, high=high, n=n, unit="ns", refused=refused)

    return estimate


# An end a hundred times off tells nothing, and is not printed.
_MOST_EXPONENT = math.log(100)


def mean(windows: Sequence[ServedRequests], confidence: float) -> Estimate:
    """Estimate the mean latency in ns, of all requests; infinite if one never completed.

    The interval is of the mean's logarithm (delta method), since latencies are skewed and windows
    without a burst are many, with half of the degrees of freedom that `dependence.long_run` counts:
    in short windows of M/D/1 and M/M/1 queues at a load of 0.9 at most 10 % are then false, and 13
    % behind batches, of a linear interval twice as many (docs/evidence/intervals.md). Of a series
    that drifts it is that of these requests' own mean (`drift.mean_interval`).
    """
    times = _times(windows)
    n = sum(each.size for each in times)
    if n == 0:
        return Estimate(low=0.0, unit="ns", refused="there was no request")
    value = sum(float(each.sum()) for each in times) / n
    if math.isinf(value):
        # Beyond any bound, and so it is with both ends.
        return Estimate(
            value=value, low=value, n=n, unit="ns", refused=NEVER_COMPLETED.format("some")
        )
    if n < LEAST_ITERATIONS:
        return Estimate(
            value=value, low=0.0, n=n, unit="ns", refused=shortfall(LEAST_ITERATIONS, n, "requests")
        )
    whole, line = long_run(times), mean_interval(times, confidence)
    freedom = max(1.0, whole.freedom / 2)
    half_width = student_quantile((1 + confidence) / 2, freedom) * math.sqrt(whole.variance / n)
    drift = None
    if line.drift is not None:
        half_width, drift = line.half_width, line.drift / value
    if half_width >= _MOST_EXPONENT * value:
        reason = wandering("latency wanders", times[0])
        return Estimate(value=value, low=0.0, n=n, unit="ns", refused=reason)
    factor = math.exp(half_width / value)
    low, high = value / factor, value * factor
    return Estimate(value=value, low=low, high=high, n=n, unit="ns", drift=drift)


def longest(windows: Sequence[ServedRequests], _: float) -> Estimate:
    """Return the longest latency in ns of these requests; infinite if one never completed.

    It is no estimate of what further requests do: the longest of more is longer. So both ends are
    the value itself.
    """
    import numpy as np

    times = [each for each in _times(windows) if each.size]
    n = sum(each.size for each in times)
    if n == 0:
        return Estimate(low=0.0, unit="ns", refused="there was no request")
    value = max(float(each.max()) for each in times)
    lost = sum(int(np.isinf(each).sum()) for each in times)
    never = NEVER_COMPLETED.format(f"{lost} of {n}") if lost else ""
    return Estimate(value=value, low=value, high=value, n=n, unit="ns", refused=never)


def attainment(within_ns: float) -> Estimator:
    """Return the estimator of the share of issued requests completed ``within_ns``.

    The interval is Clopper and Pearson's (Biometrika 26, 1934) of as many independent requests as
    these are worth. They are worth less at a percentile that slow phases reach than at one beyond
    them, so each end holds for the worth at its own percentile, as that of a percentile does.
    """
    import numpy as np

    def estimate(windows: Sequence[ServedRequests], confidence: float) -> Estimate:
        times = _times(windows)
        issued = sum(window.issued for window in windows)
        if issued == 0:
            return Estimate(low=0.0, high=1.0, refused="there was no request")
        attained = [part <= within_ns for part in times]
        count = sum(int(part.sum()) for part in attained)
        slow = _SLOWEST_HALF / _FINER ** np.arange(math.log(issued, _FINER))
        levels = [*_LOW_LEVELS, *(1 - slow[slow * issued >= 1]), 1.0]
        at_bound = worth_of_share(attained, confidence)
        worth = [independent_samples(times, level, confidence) for level in levels[:-1]]
        low, high = 0.0, 1.0
        for index, (level, above) in enumerate(pairwise(levels)):
            # Of an end between two levels, the lesser worth.
            least = max(1, int(min([*worth[index : index + 2], at_bound])))
            # Rounded for each end, so that it never says more than its requests.
            least_low, _ = proportion_interval(count * least // issued, least, confidence)
            _, most_high = proportion_interval(-(-count * least // issued), least, confidence)
            if least_low >= level:
                low = max(low, min(least_low, above))
            if most_high <= above:
                high = min(high, max(most_high, level))
        if 2 * count < issued:
            high = min(high, ABOVE_MEDIAN)
        return Estimate(value=count / issued, low=low, high=high, n=issued)

    return estimate


def worth_at(windows: Sequence[ServedRequests], quantile: float, confidence: float) -> int:
    """Return how many independent requests tell as much about a percentile; at least 1."""
    return max(1, int(independent_samples(_times(windows), quantile, confidence)))


def throughput(windows: Sequence[ServedRequests], confidence: float) -> Estimate:
    """Estimate the requests per second that were completed inside the windows.

    Windows are cut into equal blocks of time, and the interval is that of the mean of the blocks'
    counts (`drift.mean_interval`), or, where these drift, of the windows' own mean. A count
    resolves one request: blocks of equal counts still have the standard uncertainty of such an
    indication, 1/√12 request (JCGM 100:2008, F.2.2.1), so every interval has a width. With fewer
    than 50 requests, counts are too coarse for that alone; the interval then also covers the exact
    one of a Poisson count (Garwood, Biometrika 28, 1936), so that a tenant that hardly ran is
    recognised.
    """
    import numpy as np

    rated = [window.rated_ns for window in windows]
    n = sum(map(len, rated))
    wanted = max(LEAST_BLOCKS, min(_MOST_COUNTS, n // LEAST_BLOCK_ITERATIONS))
    # Two per window at least: a spread within it must show.
    blocks = max(2, round(wanted / len(windows)))
    counts = [
        np.histogram(ended_ns, bins=blocks, range=(0, window.rate_ns))[0]
        for window, ended_ns in zip(windows, rated, strict=True)
    ]
    lengths_ns = [window.rate_ns for window in windows]
    return _rate(lengths_ns, counts, confidence, "requests", "what is completed")


def _rate(
    lengths_ns: Sequence[int], counts: Sequence[Sequence[int] | NDArray[np.int64]],
    confidence: float, unit: str, what: str,
) -> Estimate:  # fmt: skip
    """Estimate how many there are per second, by counts of each window's equal blocks.

    Args:
        lengths_ns: of the windows.
        counts: of each.
        confidence: of the interval.
        unit: what is counted, in the plural.
        what: likewise, as the subject of a sentence.

    """
    import numpy as np

    seconds = sum(lengths_ns) / _NS_PER_S
    n = sum(int(np.sum(each)) for each in counts)
    rates = [
        np.asarray(each, np.float64) * (len(each) * _NS_PER_S / length_ns)
        for length_ns, each in zip(lengths_ns, counts, strict=True)
    ]
    value, resolution = n / seconds, math.sqrt(sum(map(len, counts)) / 12) / seconds
    mean = mean_interval(rates, confidence)
    half_width = max(mean.half_width, resolution)
    unit = f"{unit}/s"
    if half_width >= value > 0 and n >= LEAST_ITERATIONS:
        reason = f"{what} varies too much with time"
        if mean.outlasts:
            reason = wandering(f"{what} wanders", np.concatenate(rates))
        return Estimate(value=value, low=0.0, n=n, unit=unit, refused=reason)
    low, high = max(0.0, value - half_width), value + half_width
    if n < LEAST_ITERATIONS:
        tail = (1 - confidence) / 2
        least = chi2_quantile(tail, 2 * n) / 2 if n else 0.0
        low = min(low, least / seconds)
        high = max(high, chi2_quantile(1 - tail, 2 * n + 2) / 2 / seconds)
    drift = None if mean.drift is None else mean.drift / value
    return Estimate(value=value, low=low, high=high, n=n, unit=unit, drift=drift)


def switches(windows: Sequence[ServedRequests], confidence: float) -> Estimate:
    """Estimate how often per second the device went from one tenant to another.

    The interval is that of `throughput`, of the counts in the traced windows' blocks.
    """
    counts = [window.switches for window in windows]
    lengths_ns = [window.window_ns for window in windows]
    return _rate(lengths_ns, counts, confidence, "switches", "how often tenants switch")


def busy(windows: Sequence[ServedRequests], confidence: float) -> Estimate:
    """Estimate the share of traced windows in which kernels or copies ran; ``n`` counts blocks.

    The interval is that of the mean of the blocks' shares (`drift.mean_interval`), within 0 and 1.
    """
    import numpy as np

    shares = [
        np.asarray(window.busy_ns, np.float64) * (len(window.busy_ns) / window.window_ns)
        for window in windows
    ]
    n = sum(each.size for each in shares)
    value = sum(map(sum, (window.busy_ns for window in windows))) / sum(
        window.window_ns for window in windows
    )
    mean = mean_interval(shares, confidence)
    low, high = max(0.0, value - mean.half_width), min(1.0, value + mean.half_width)
    drift = None if mean.drift is None or not value else mean.drift / value
    return Estimate(value=value, low=low, high=high, n=n, drift=drift)


def goodput(windows: Sequence[ServedRequests], confidence: float) -> Estimate:
    """Estimate the requests per second that were completed inside the windows within their bounds.

    Goodput as DistServe defines it (Zhong et al., OSDI 2024): a request is good if its first token
    and its mean time between tokens each keep their bound. The interval is that of `throughput`.
    """
    return throughput(
        [replace(window, finished_ns=window.good_ns) for window in windows], confidence
    )


def variation(windows: Sequence[ServedRequests], confidence: float) -> Estimate:
    """Estimate the standard deviation of completed requests' latency divided by its mean.

    The interval is Student's t on the jackknife over contiguous blocks of requests (Künsch, Annals
    of Statistics 17, 1989); unlike the others it is approximate, and heavy tails shrink it.
    """
    import numpy as np

    samples = np.asarray(list(chain.from_iterable(w.latency_ns for w in windows)), np.float64)
    n = int(samples.size)
    value = None if n < 2 or samples.mean() <= 0 else _relative_deviation(samples)
    if value is None or n < LEAST_ITERATIONS:
        reason = shortfall(LEAST_ITERATIONS, n, "requests")
        return Estimate(value=value, low=0.0, n=n, refused=reason)
    blocks = np.array_split(np.arange(n), block_count(n))
    without = np.array([_relative_deviation(np.delete(samples, block)) for block in blocks])
    count = len(blocks)
    deviation = math.sqrt((count - 1) / count * float(((without - without.mean()) ** 2).sum()))
    half_width = student_quantile((1 + confidence) / 2, count - 1) * deviation
    return Estimate(value=value, low=max(0.0, value - half_width), high=value + half_width, n=n)


def ratio(
    estimator: Estimator,
    windows: Sequence[ServedRequests],
    reference: Sequence[ServedRequests],
    confidence: float,
) -> Estimate:
    """Estimate a figure divided by a reference's, both of one session.

    For several sessions see `over_sessions.ratio`. Both intervals are taken at half the error
    (Bonferroni) and divided crosswise, as in `metrics.interference.latency_ratio`, so the result is
    conservative, even if both sides come from one run.
    """
    each = 1 - (1 - confidence) / 2
    own, other = estimator(windows, each), estimator(reference, each)
    value = None
    if own.value is not None and other.value is not None:
        value = _divided(own.value, other.value)
    low, high = _divided(own.low, other.high), _divided(own.high, other.low)
    return Estimate(
        value=value,
        low=0.0 if low is None else low,
        high=math.inf if high is None else high,
        n=min(own.n, other.n),
        refused=own.refused or (other.refused and f"the reference {other.refused}"),
    )


def _divided(value: float, by: float) -> float | None:
    """Divide, or return None if a quotient of such ends says nothing."""
    if by == 0 or (math.isinf(value) and math.isinf(by)):
        return None
    return value / by


def _times(
    windows: Sequence[ServedRequests], of: TimesOf = "latency_ns"
) -> list[NDArray[np.float64]]:
    """Return every issued request's time in ns, by window (`ServedRequests.times`)."""
    import numpy as np

    found = [window.times(of) for window in windows]
    return [each for each in found if each.size] or [np.empty(0)]


def _relative_deviation(samples: NDArray[np.float64]) -> float:
    import numpy as np

    return float(np.std(samples, ddof=1) / np.mean(samples))
