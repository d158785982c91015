"""Noise on the durations of kernels: seeded, and only where it is asked for."""

from __future__ import annotations

import random
from dataclasses import dataclass

_NS_PER_HOUR = 3_600_000_000_000


@dataclass(frozen=True)
class Noise:
    """What makes kernels slower or faster than the model says; every amplitude defaults to none.

    Draws are sums of uniform numbers: their bits are the same on every machine, which those of
    normal ones (through the C library's logarithm) are not.

    Attributes:
        seed: the same seed gives the same noise.
        session: amplitude of one factor for everything that a process measures.
        run_to_run: amplitude of one factor for each pool of streams.
        drift_per_hour: how much slower kernels get in an hour of virtual time.
        burst_slowdown: how much slower kernels are within a burst.
        burst_every_ns: there is one burst in each such interval.
        burst_ns: length of a burst.

    """

    seed: int
    session: float = 0.0
    run_to_run: float = 0.0
    drift_per_hour: float = 0.0
    burst_slowdown: float = 0.0
    burst_every_ns: int = 1_000_000_000
    burst_ns: int = 10_000_000

    def __post_init__(self) -> None:
        """Refuse what is no noise model.

        Raises:
            ValueError: naming the field.

        """
        for name in ("session", "run_to_run"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 0 and below 1")
        if self.burst_slowdown < 0 or self.drift_per_hour <= -1:
            raise ValueError("burst_slowdown must not be negative, drift_per_hour above -1")
        if not 0 < self.burst_ns <= self.burst_every_ns:
            raise ValueError("burst_ns must be above 0 and at most burst_every_ns")

    def factor(self, run: int, now_ns: int) -> float:
        """Factor on the duration of a kernel launched at ``now_ns`` in the ``run``-th pool."""
        factor = 1 + self.session * self._draw("session", 0)
        factor *= 1 + self.run_to_run * self._draw("run", run)
        factor *= 1 + self.drift_per_hour * now_ns / _NS_PER_HOUR
        if self.burst_slowdown:
            interval, offset_ns = divmod(now_ns, self.burst_every_ns)
            place = (1 + self._draw("burst", interval)) / 2
            begins_ns = int(place * (self.burst_every_ns - self.burst_ns))
            if begins_ns <= offset_ns < begins_ns + self.burst_ns:
                factor *= 1 + self.burst_slowdown
        return factor

    def _draw(self, kind: str, index: int) -> float:
        """Return a number in [-1, 1], most often near 0."""
        # Seeding by text goes through SHA-512: equal in all Python versions and processes.
        source = random.Random(f"{self.seed}/{kind}/{index}")
        return source.random() + source.random() - 1
