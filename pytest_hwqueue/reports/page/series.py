"""Samples as curves: in the order taken, and by the share that took at least as long."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_DRAWN = 6000
"""Samples that one chart draws of all runs together; a browser draws more too slowly."""

_LEAST_OF_A_RUN = 200
_POINTS = 240
_SPARK_WIDTH, _SPARK_HEIGHT, _SPARK_POINTS = 120, 28, 100


def in_order(samples_ns: Sequence[int], runs: int) -> dict[str, Any]:
    """Return a run's samples in the order taken: ``at`` (from 0; None for all) and ``ns``.

    Of more than `MOST_DRAWN` in all, the least and the greatest of each stretch are kept.

    Args:
        samples_ns: shape (n,).
        runs: how many runs share the chart.

    """
    most = max(_LEAST_OF_A_RUN, MOST_DRAWN // max(1, runs))
    at = _extremes(samples_ns, most)
    kept = [int(samples_ns[each]) for each in at]
    return {"at": at if len(at) < len(samples_ns) else None, "ns": kept, "n": len(samples_ns)}


def survival(samples_ns: Sequence[float], failed: int = 0) -> dict[str, Any]:
    """Return a complementary distribution: ``ns`` ascending, and how many took ``as_long`` of n.

    Requests that never completed count among those that took longer. Every point is a sample; of
    many samples those are kept whose shares are evenly spaced on a logarithmic axis.

    Args:
        samples_ns: shape (n,), at least one, in any order.
        failed: requests without a latency.

    """
    import numpy as np

    ordered = np.sort(np.asarray(samples_ns, dtype=np.float64))
    n = ordered.size
    # Ranks from the slowest, 1, to the fastest, n.
    ranks = np.unique(np.rint(np.geomspace(1, n, _POINTS)).astype(np.int64))[::-1]
    return {
        "ns": [round(each) for each in ordered[n - ranks].tolist()],
        "as_long": (ranks + failed).tolist(),
        "n": n + failed,
    }


def spark(samples_ns: Sequence[int]) -> str:
    """Return the path of an SVG of 120 by 28: samples in order, least below, greatest on top."""
    at = _extremes(samples_ns, _SPARK_POINTS)
    if not at:
        return ""
    values = [samples_ns[each] for each in at]
    low, high = min(values), max(values)
    last = max(1, len(samples_ns) - 1)
    scale = (_SPARK_HEIGHT - 4) / (high - low) if high > low else 0.0
    middle = 0.0 if high > low else _SPARK_HEIGHT / 2 - 2
    points = (
        f"{_SPARK_WIDTH * index / last:.1f} {_SPARK_HEIGHT - 2 - middle - (ns - low) * scale:.1f}"
        for index, ns in zip(at, values, strict=True)
    )
    return f"M{'L'.join(points)}"


def _extremes(samples: Sequence[int], most: int) -> list[int]:
    """Return the indices of at most ``most`` samples: each stretch's least and greatest."""
    import numpy as np

    n = len(samples)
    if n <= most:
        return list(range(n))
    values: NDArray[np.int64] = np.asarray(samples, dtype=np.int64)
    edges = np.linspace(0, n, most // 2 + 1).astype(int)
    kept = {
        int(first + chosen)
        for first, end in pairwise(edges)
        for chosen in (values[first:end].argmin(), values[first:end].argmax())
    }
    return sorted(kept)
