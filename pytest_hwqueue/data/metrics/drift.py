"""Means of series, of which some drift: clocks warm up, memory fragments, a neighbour grows.

A drift is not chance. Counted as dependence it outlasts every window, and no interval remains: 1 %
over 1,000 iterations removed that of their throughput. So a line that stands out of what is left
around it is told as a drift, with its size, and the interval is that of this window's mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_hwqueue.data.metrics.dependence import long_run, student_quantile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Of a slope's Student t, two-sided, over the parts of a series. A series that merely wanders slopes
# too, and its window's mean is not its mean: so lines have to stand out far. Where the series
# outlasts its window there is no other interval to lose, and less suffices; of autoregressive
# series with a correlation of 0.97 to 0.999 at most 3 % are then called drifting, and beneath white
# noise of three times their spread up to 20 % (of 1,000 samples): such a wander looks like a line.
_RATE, _RATE_OF_LONG = 0.001, 0.01
_LONG = 3.0
"""Degrees of freedom below which a series outlasts its window."""
# What is left around a line must be short itself, or the line's own error is not known.
_LEAST_FREEDOM = 6.0


@dataclass(frozen=True)
class MeanInterval:
    """How sure the mean of a series is.

    Attributes:
        half_width: of its interval, in the unit of the values.
        outlasts: whether values follow each other for so long that the window says too little.
        drift: how far the line through the values rises over them, in their unit, and then the
            interval is that of these values' own mean; of several parts, that of the part which
            rises or falls furthest. None: no drift stands out.

    """

    half_width: float
    outlasts: bool = False
    drift: float | None = None


def mean_interval(parts: Sequence[NDArray[np.float64]], confidence: float) -> MeanInterval:
    """Return the interval of a series' mean, successive values being dependent, drifting or not.

    Args:
        parts: as those of `dependence.long_run`.
        confidence: two-sided, between 0 and 1, both excluded.

    """
    n = sum(part.size for part in parts)
    whole = long_run(parts)
    half_width = student_quantile((1 + confidence) / 2, whole.freedom) * math.sqrt(
        whole.variance / n
    )
    lines = [_line(part) for part in parts]
    left = long_run([part - line for part, line in zip(parts, lines, strict=True)])
    unexplained = MeanInterval(half_width, outlasts=whole.freedom < _LONG)
    if left.freedom < _LEAST_FREEDOM:
        return unexplained
    rate = _RATE_OF_LONG if unexplained.outlasts else _RATE
    critical = student_quantile(1 - rate / 2 / len(parts), left.freedom)
    rises = []
    for line in lines:
        rise = float(line[-1] - line[0])
        # The variance of n times a mean is that of a slope times the spread of the places.
        error = math.sqrt(left.variance * 12 / line.size)
        if abs(rise) > critical * error:
            rises.append(rise)
    if not rises:
        return unexplained
    own = student_quantile((1 + confidence) / 2, left.freedom) * math.sqrt(left.variance / n)
    return MeanInterval(own, drift=max(rises, key=abs))


def _line(part: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the straight line of least squares through a part, at each of its places."""
    import numpy as np

    places = np.arange(part.size) - (part.size - 1) / 2
    spread = float(places @ places)
    slope = float(places @ (part - part.mean())) / spread if spread else 0.0
    return np.asarray(part.mean() + slope * places)
