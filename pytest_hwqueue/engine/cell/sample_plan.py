"""How many samples of its primary latency a run of a cell takes.

The number is planned before the first sample, from what an iteration or a window takes: a pass that
a clock ended would have fewer samples the slower the code is. Where more samples cost little, a run
takes them: launches of one window, iterations on one machine resemble each other, and P99 has an
interval only if what was taken is worth enough independent samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from pytest_hwqueue.data.metrics.latency import sufficient_samples

USUAL = 1000
"""Samples of a run, unless another number is asked for: ten of them lie above P99."""

# Windows are independent of each other, and the launches of one are not: intervals need windows.
_LEAST_WINDOWS = 50
# Of a model they are alike, and simulating them takes long.
_LEAST_MODELLED = 20
FEW = 440
"""Samples at least, of launches in windows and of tags beside: P99 has a value from 368 on, and a
ratio's from 437.

Between runs that of 400 varies about as little as that of 1,000 (docs/evidence/gate.md, "Many short
runs").
"""

_ENOUGH_WINDOWS = sufficient_samples(0.99)
# They are stored: 2 bytes each.
_MOST_SAMPLES = 20_000
# Iterations that follow each other are worth a quarter of as many, or more.
_ENOUGH_SAMPLES = 4000
# For what is not needed for a figure. On an H200 twice the time gave one interval more in 16 cells:
# where 50 windows are too few, clocks wander, and 900 of 1.1 ms are worth 22 at the median.
_BUDGET_NS = 1_000_000_000


@dataclass(frozen=True)
class SamplePlan:
    """How many samples of its primary latency a run takes.

    Attributes:
        asked: as many, by the user or since a baseline's runs have them; None for as many as the
            figures need.
        exact: whether as many windows as these samples need are enough.
        only_run: whether P99 has no interval but that of this run's own samples. Several runs give
            it one (`metrics.between_runs`), and each may be short.

    """

    asked: int | None = None
    exact: bool = False
    only_run: bool = False

    @property
    def least(self) -> int:
        """As many samples, as far as the measuring time allows."""
        return self.asked or USUAL

    def iterations(self, iterations: int, iteration_ns: int, *, modelled: bool = False) -> int:
        """Return how many iterations are measured.

        Args:
            iterations: that have the least number of samples.
            iteration_ns: what one takes.
            modelled: whether a model says what they take.

        """
        if self.asked is not None or modelled or not self.only_run:
            return iterations
        fitting = _BUDGET_NS // max(1, iteration_ns)
        return max(iterations, min(fitting, iterations * _ENOUGH_SAMPLES // USUAL))

    def windows(self, launches: int, window_ns: int, *, modelled: bool = False) -> int:
        """Return how many windows of launches are timed.

        Args:
            launches: judged ones of a window, at least 1.
            window_ns: what one takes.
            modelled: whether a model says what they take.

        """
        affordable = _BUDGET_NS // max(1, window_ns)
        some = min(_LEAST_MODELLED if modelled else _LEAST_WINDOWS, affordable)
        usual = ceil(self.least / launches)
        if self.exact:
            return usual
        if self.asked is not None or modelled:
            return max(usual, some)
        least = max(ceil(FEW / launches), some)
        wanted = usual
        if self.only_run:
            wanted = min(_ENOUGH_WINDOWS, ceil(_MOST_SAMPLES / launches))
        return max(least, min(wanted, affordable))

    @property
    def half(self) -> SamplePlan:
        """Of a reference, before and after what is held against it."""
        asked = FEW if self.asked is None else self.asked
        return replace(self, asked=max(1, asked // 2), only_run=False)
