"""A proportion with its exact interval."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_hwqueue.metrics.distributions import proportion_interval
from pytest_hwqueue.metrics.latency import CONFIDENCE


@dataclass(frozen=True)
class Share:
    """A count out of ``n``, and its share.

    ``interval`` is Clopper and Pearson's (Biometrika 26, 1934), at 95 %.
    """

    number: int
    n: int
    share: float
    interval: tuple[float, float]


def share_of(number: int, n: int) -> Share:
    """Return a share with its interval; ValueError if ``n`` is 0."""
    return Share(number, n, number / n, proportion_interval(number, n, CONFIDENCE))
