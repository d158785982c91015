"""One process run's figure: the unit of replication in every verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ProcessRun:
    """The figure of one process run.

    ``value`` is the gated figure in its own unit (a latency, a throughput or a ratio). The value
    may be non-finite or not above zero: the gate then refuses to compare it and says why. ``n``
    counts the samples behind the value, and ``failed`` the requests that failed; ``session`` names
    the session in which the run was made (one host, one boot, one day). ``iteration_ns`` is the
    run's mean time per iteration, in nanoseconds: the figure that is judged where ``value`` cannot
    be (`quantity.ITERATION_TIME`); ``None`` if it is not known.
    """

    value: float
    n: int
    session: str
    failed: int = 0
    iteration_ns: float | None = None

    def __post_init__(self) -> None:
        for field, count in (("n", self.n), ("failed", self.failed)):
            if count < 0:
                raise ValueError(f"Run.{field} must not be negative, is {count}")

    @property
    def failure_share(self) -> float:
        """The share of the run's requests that failed."""
        return self.failed / (self.n + self.failed) if self.failed else 0.0


def figure_of(samples_ns: Sequence[float] | NDArray[np.float64], quantile: float, n: int) -> float:
    """Return a quantile of a run's first ``n`` samples, in nanoseconds.

    It is the sample quantile of type 7, numpy's ``linear`` (Hyndman & Fan, The American
    Statistician 50, 1996). Its bias depends on the number of samples, so all runs of a
    comparison are cut to the least n among them. One sample that is negative, infinite or not a
    number makes the figure ``nan``, which the gate refuses to compare.

    Args:
        samples_ns: at least ``n`` latencies in nanoseconds, in the order measured.
        quantile: between 0 and 1, both excluded; 0.99 is P99.
        n: how many of the first samples count.

    Raises:
        ValueError: if ``n`` is not between 1 and the number of samples, or ``quantile`` not
            between 0 and 1.
    """
    if not 0 < quantile < 1:
        raise ValueError(f"quantile must be between 0 and 1, both excluded, is {quantile}")
    if not 1 <= n <= len(samples_ns):
        raise ValueError(f"n must be between 1 and the {len(samples_ns)} samples, is {n}")
    samples = np.asarray(samples_ns[:n], dtype=np.float64)
    if not bool(np.isfinite(samples).all()) or bool((samples < 0).any()):
        return math.nan
    return float(np.quantile(samples, quantile, method="linear"))
