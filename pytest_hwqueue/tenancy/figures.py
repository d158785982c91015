"""A tenant's figures with their intervals, for comparison with its goals.

Intervals say how far chance within the measured windows may have moved a figure. They assume
independent requests (for throughput and variation, independent blocks of requests). How much runs
differ is the gate's business.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Literal, NamedTuple

from pytest_hwqueue.metrics.distributions import (
    binomial_cdf,
    binomial_sf,
    chi2_quantile,
    proportion_interval,
    student_quantile,
)
from pytest_hwqueue.metrics.latency import (
    independent_samples,
    minimum_samples,
    quantile_interval,
    shortfall,
)
from pytest_hwqueue.metrics.throughput import LEAST_BLOCKS, LEAST_ITERATIONS, block_count

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NS_PER_S = 1e9

# Requests that wait in one queue are slow together. How much they are alike is read from the
# slowest tenth: there are enough of them, and rarer ones come in shorter bursts.
_ALIKE_ABOVE = 0.9
_BLOCKS_ALIKE = 40


class Session(NamedTuple):
    """Where and when windows were measured; figures may be divided only within one session.

    Attributes:
        device: the GPU's UUID; empty if it has none.
        name: of the session; empty if there is only one.

    """

    device: str = ""
    name: str = ""


ONLY_SESSION = Session()


@dataclass(frozen=True)
class Served:
    """The outcome of one tenant's requests in one window.

    Attributes:
        issued: requests that were due in the window, whatever their outcome.
        latency_ns: of each completed request, from its scheduled arrival; in order of arrival.
        finished_ns: when each of them was done, from the window's start.
        window_ns: length of the window.
        session: in which it was measured.
        ttft_ns: of each completed request that streamed tokens, its first one's latency.
        tbt_ns: of each with two tokens or more, the mean time between them.
        good_ns: when each request was done that kept its bounds on both, from the window's start.

    """

    issued: int
    latency_ns: Sequence[int]
    finished_ns: Sequence[int]
    window_ns: int
    session: Session = ONLY_SESSION
    ttft_ns: Sequence[int] = ()
    tbt_ns: Sequence[float] = ()
    good_ns: Sequence[int] = ()


@dataclass(frozen=True)
class Estimate:
    """A figure and its interval.

    Attributes:
        value: None if there is nothing to compute it from.
        low: lower end of the interval, 0 if there is none.
        high: upper end, infinite if there is none.
        n: number of requests that it rests on.
        missing: why an end of the interval is missing; empty if none is.
        sessions: number of sessions that it rests on.

    """

    value: float | None
    low: float
    high: float
    n: int
    missing: str = ""
    sessions: int = 1


TimesOf = Literal["latency_ns", "ttft_ns", "tbt_ns"]
Estimator = Callable[[Sequence[Served], float], Estimate]


def percentile(
    quantile: float, of: TimesOf = "latency_ns", *, correlated: bool = False
) -> Estimator:
    """Return the estimator of a percentile of a latency, or of a time of tokens, in ns.

    A request that failed or was not served counts as infinitely slow. The interval is that of
    `quantile_interval`; with too few requests for its upper end, only the lower end remains.

    Args:
        quantile: between 0 and 1; 0.99 is P99.
        correlated: do not take requests for independent: they count as `effective_requests`.

    """
    import numpy as np

    def estimate(windows: Sequence[Served], confidence: float) -> Estimate:
        ordered = _latencies(windows, of)
        n = int(ordered.size)
        if n == 0:
            return Estimate(None, 0.0, math.inf, 0, shortfall(1, 0, "requests"))
        # Between two samples, as in tables, unless one of them may be infinite.
        finite = math.isfinite(ordered[-1])
        method: Literal["linear", "inverted_cdf"] = "linear" if finite else "inverted_cdf"
        value = float(np.quantile(ordered, quantile, method=method))
        needed = minimum_samples(quantile, confidence)
        worth = effective_requests(windows, of) if correlated else n
        if worth == n >= needed:
            return Estimate(value, *quantile_interval(ordered, quantile, confidence), n)
        low, high = _open_interval(ordered, quantile, confidence, worth)
        what = "independent requests" if correlated else "requests"
        return Estimate(
            value, low, high, n, shortfall(needed, worth, what) if worth < needed else ""
        )

    return estimate


def attainment(within_ns: float, *, correlated: bool = False) -> Estimator:
    """Return the estimator of the share of issued requests completed ``within_ns``.

    The interval is Clopper and Pearson's (Biometrika 26, 1934), exact for independent requests;
    ``correlated`` ones count as `effective_requests`, as Korn and Graubard put them into it.
    """

    def estimate(windows: Sequence[Served], confidence: float) -> Estimate:
        issued = sum(window.issued for window in windows)
        if issued == 0:
            return Estimate(None, 0.0, 1.0, 0, shortfall(1, 0, "requests"))
        attained = sum(latency <= within_ns for window in windows for latency in window.latency_ns)
        worth = effective_requests(windows) if correlated else issued
        # Rounded down for each end, so that it never says more than its requests.
        low, _ = proportion_interval(attained * worth // issued, worth, confidence)
        _, high = proportion_interval(-(-attained * worth // issued), worth, confidence)
        return Estimate(attained / issued, low, high, issued)

    return estimate


def throughput(windows: Sequence[Served], confidence: float) -> Estimate:
    """Estimate the requests per second that were completed inside the windows.

    Windows are cut into equal blocks of time, and Student's t is applied to the blocks' counts
    (batch means, as in `metrics.throughput`). A count resolves one request: blocks of equal counts
    still have the standard uncertainty of such an indication, 1/√12 request (JCGM 100:2008,
    F.2.2.1), so every interval has a width. With fewer than 50 requests, counts are too coarse for
    that alone; the interval then also covers the exact one of a Poisson count (Garwood, Biometrika
    28, 1936), so that a tenant that hardly ran is recognised.
    """
    import numpy as np

    seconds = sum(window.window_ns for window in windows) / _NS_PER_S
    n = sum(finished <= window.window_ns for window in windows for finished in window.finished_ns)
    wanted = block_count(n) if n >= LEAST_ITERATIONS else LEAST_BLOCKS
    # Two per window at least: a spread within it must show.
    blocks = max(2, round(wanted / len(windows)))
    rates = np.concatenate([_block_rates(window, blocks) for window in windows])
    value = n / seconds
    resolution = rates.size / seconds / math.sqrt(12)
    spread = max(float(np.std(rates, ddof=1)), resolution) / math.sqrt(rates.size)
    half_width = student_quantile((1 + confidence) / 2, int(rates.size) - 1) * spread
    low, high = max(0.0, value - half_width), value + half_width
    if n < LEAST_ITERATIONS:
        tail = (1 - confidence) / 2
        least = chi2_quantile(tail, 2 * n) / 2 if n else 0.0
        low = min(low, least / seconds)
        high = max(high, chi2_quantile(1 - tail, 2 * n + 2) / 2 / seconds)
    return Estimate(value, low, high, n)


def goodput(windows: Sequence[Served], confidence: float) -> Estimate:
    """Estimate the requests per second that were completed inside the windows within their bounds.

    Goodput as DistServe defines it (Zhong et al., OSDI 2024): a request is good if its first token
    and its mean time between tokens each keep their bound. The interval is that of `throughput`.
    """
    return throughput(
        [replace(window, finished_ns=window.good_ns) for window in windows], confidence
    )


def variation(windows: Sequence[Served], confidence: float) -> Estimate:
    """Estimate the standard deviation of completed requests' latency divided by its mean.

    The interval is Student's t on the jackknife over contiguous blocks of requests (Künsch, Annals
    of Statistics 17, 1989); unlike the others it is approximate, and heavy tails shrink it.
    """
    import numpy as np

    samples = np.asarray(list(chain.from_iterable(w.latency_ns for w in windows)), np.float64)
    n = int(samples.size)
    value = None if n < 2 or samples.mean() <= 0 else _relative_deviation(samples)
    if value is None or n < LEAST_ITERATIONS:
        return Estimate(value, 0.0, math.inf, n, shortfall(LEAST_ITERATIONS, n, "requests"))
    blocks = np.array_split(np.arange(n), block_count(n))
    without = np.array([_relative_deviation(np.delete(samples, block)) for block in blocks])
    count = len(blocks)
    deviation = math.sqrt((count - 1) / count * float(((without - without.mean()) ** 2).sum()))
    half_width = student_quantile((1 + confidence) / 2, count - 1) * deviation
    return Estimate(value, max(0.0, value - half_width), value + half_width, n)


def ratio(
    estimator: Estimator,
    windows: Sequence[Served],
    reference: Sequence[Served],
    confidence: float,
) -> Estimate:
    """Estimate a figure divided by a reference's, both of one session.

    For several sessions see `sessions.ratio`. Both intervals are taken at half the error
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
        value,
        0.0 if low is None else low,
        math.inf if high is None else high,
        min(own.n, other.n),
        own.missing or (other.missing and f"the reference {other.missing}"),
    )


def _divided(value: float, by: float) -> float | None:
    """Divide, or return None if a quotient of such ends says nothing."""
    if by == 0 or (math.isinf(value) and math.isinf(by)):
        return None
    return value / by


def effective_requests(windows: Sequence[Served], of: TimesOf = "latency_ns") -> int:
    """Return how many independent requests, or times of tokens, those of windows are worth.

    It is `independent_samples` of 40 blocks of successive times, at the slowest tenth, where
    requests that were never completed belong.
    """
    import numpy as np

    in_order = [np.asarray(getattr(w, of), np.float64) for w in windows]
    # Beyond every other, and finite, so that quantiles exist.
    never = max((float(each.max()) for each in in_order if each.size), default=0.0) + 1.0
    samples = np.concatenate(
        [
            np.append(each, np.full(window.issued - len(window.latency_ns), never))
            for each, window in zip(in_order, windows, strict=True)
        ]
    )
    block = max(1, samples.size // _BLOCKS_ALIKE)
    return max(1, min(samples.size, int(independent_samples(samples, _ALIKE_ABOVE, block))))


def _latencies(windows: Sequence[Served], of: TimesOf = "latency_ns") -> NDArray[np.float64]:
    """Return every issued request's time in ns, ascending; infinite if never completed."""
    import numpy as np

    times = chain.from_iterable(getattr(window, of) for window in windows)
    completed = np.asarray(list(times), np.float64)
    never = sum(window.issued - len(window.latency_ns) for window in windows)
    return np.sort(np.concatenate([completed, np.full(never, math.inf)]))


def _open_interval(
    ordered: NDArray[np.float64], quantile: float, confidence: float, worth: int
) -> tuple[float, float]:
    """Return the ends possible with few samples: as `quantile_interval`, or 0 and infinity.

    The ranks are those of ``worth`` independent samples, spread over all (Woodruff, JASA 47, 1952).
    """
    import numpy as np

    n, tail = int(ordered.size), (1 - confidence) / 2
    ranks = np.arange(1, worth + 1)
    # The greatest rank of which too few, and the least of which too many, lie below by chance.
    below = ranks[binomial_cdf(ranks - 1, worth, quantile) <= tail]
    above = ranks[binomial_sf(ranks - 1, worth, quantile) <= tail]
    low = float(ordered[max(1, int(below[-1]) * n // worth) - 1]) if below.size else 0.0
    high = float(ordered[-(-int(above[0]) * n // worth) - 1]) if above.size else math.inf
    return low, high


def _block_rates(window: Served, blocks: int) -> NDArray[np.float64]:
    """Return the requests per second completed in each of a window's blocks."""
    import numpy as np

    counts, _ = np.histogram(window.finished_ns, bins=blocks, range=(0, window.window_ns))
    return counts * (blocks * _NS_PER_S / window.window_ns)


def _relative_deviation(samples: NDArray[np.float64]) -> float:
    import numpy as np

    return float(np.std(samples, ddof=1) / np.mean(samples))
