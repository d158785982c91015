"""Throughput of a series of iterations, with an interval that autocorrelation does not shrink."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_hwqueue.metrics.dependence import mean_half_width
from pytest_hwqueue.metrics.latency import CONFIDENCE, shortfall

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_BLOCKS = 20
LEAST_BLOCKS = 10
LEAST_BLOCK_ITERATIONS = 5
LEAST_ITERATIONS = LEAST_BLOCKS * LEAST_BLOCK_ITERATIONS
"""The number of iterations below which no interval of a throughput is given."""

_NS_PER_S = 1e9


@dataclass(frozen=True)
class Throughput:
    """Work done per second over ``n`` iterations; ``interval`` is ``None`` only if refused."""

    unit: str
    value: float
    interval: tuple[float, float] | None
    n: int
    confidence: float
    refused: dict[str, str]


def block_count(iterations: int) -> int:
    """Return how many blocks ``contiguous_blocks`` makes of a series of iterations."""
    return min(MOST_BLOCKS, iterations // LEAST_BLOCK_ITERATIONS)


def contiguous_blocks(
    iteration_ns: Sequence[float],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Cut a series of iterations into contiguous blocks for batch means or a block bootstrap.

    There are as many blocks as leave each at least 5 iterations, and at most 20: with 10 to 30
    batches more only add degrees of freedom that hardly narrow the interval, while fewer and
    longer ones are closer to independent (Schmeiser, Operations Research 30, 1982). No iteration
    is dropped: blocks differ in length by at most one.

    Args:
        iteration_ns: shape (n,), the iterations' durations in nanoseconds, in the order measured.

    Returns:
        Two arrays of shape (blocks,): the blocks' total durations in nanoseconds, and their
        numbers of iterations.

    Raises:
        ValueError: with fewer than 50 iterations (10 blocks), or a duration that is not finite
            and above zero.
    """
    import numpy as np

    durations = _durations(iteration_ns)
    if durations.size < LEAST_ITERATIONS:
        raise ValueError(shortfall(LEAST_ITERATIONS, int(durations.size), "iterations"))
    blocks = np.array_split(durations, block_count(int(durations.size)))
    totals = np.array([block.sum() for block in blocks], dtype=np.float64)
    sizes = np.array([block.size for block in blocks], dtype=np.float64)
    return totals, sizes


def throughput(work_per_iteration: float, iteration_ns: Sequence[float], unit: str) -> Throughput:
    """Return the work per second of a series of iterations.

    The value is the total work divided by the total time. The interval is that of the mean
    duration (`dependence.mean_half_width`), taken on a logarithmic scale: durations are skewed.

    Args:
        work_per_iteration: finite and above zero, counted in what ``unit`` counts.
        iteration_ns: shape (n,), the iterations' durations in nanoseconds, in the order measured.
        unit: work per second, for example "kernels/s"; names the result's unit.

    Raises:
        ValueError: if there is no iteration, or the work or a duration is not finite and above
            zero.
    """
    if not (math.isfinite(work_per_iteration) and work_per_iteration > 0):
        raise ValueError(f"work per iteration must be finite and above 0, is {work_per_iteration}")
    durations = _durations(iteration_ns)
    n = int(durations.size)
    mean_ns = math.fsum(durations.tolist()) / n
    work_ns = float(work_per_iteration) * _NS_PER_S
    interval: tuple[float, float] | None = None
    refused: dict[str, str] = {}
    if n < LEAST_ITERATIONS:
        refused["interval"] = shortfall(LEAST_ITERATIONS, n, "iterations")
    else:
        relative = _half_width(durations) / mean_ns
        if relative < 1:
            interval = (
                work_ns / mean_ns * math.exp(-relative),
                work_ns / mean_ns * math.exp(relative),
            )
        else:
            refused["interval"] = "durations vary so much that the interval of their mean reaches 0"
    return Throughput(
        unit=unit,
        value=work_ns / mean_ns,
        interval=interval,
        n=n,
        confidence=CONFIDENCE,
        refused=refused,
    )


def _durations(iteration_ns: Sequence[float]) -> NDArray[np.float64]:
    import numpy as np

    durations = np.asarray(iteration_ns, dtype=np.float64)
    if durations.ndim != 1 or durations.size == 0:
        raise ValueError("needs at least one iteration, in one dimension")
    if not bool(np.isfinite(durations).all()) or bool((durations <= 0).any()):
        raise ValueError("iteration durations must be finite and above 0 ns")
    return durations


def _half_width(durations: NDArray[np.float64]) -> float:
    """Return half the width (ns) of the interval of the mean duration.

    Durations come from a clock of nanoseconds: equal ones still have the standard uncertainty of
    such an indication, 1/√12 ns (JCGM 100:2008, F.2.2.1).
    """
    return max(mean_half_width([durations], CONFIDENCE), 1 / math.sqrt(12 * durations.size))
