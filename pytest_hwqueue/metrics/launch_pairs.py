"""Measures what context switches cost: gaps between launches with and without a switch inside.

A pair is two successive launches of one thread. Its gap runs from the start of the first to the
start of the second, so that every moment of a thread's run belongs to one gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_hwqueue.metrics.cpu_events import OffCpu
from pytest_hwqueue.metrics.latency import minimum_samples, shortfall
from pytest_hwqueue.metrics.shares import Share, share_of
from pytest_hwqueue.metrics.switching import MedianDifference, median_difference

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LEAST_PAIRS = 20
"""Pairs with a switch below which no penalty is given: it would rest on a few chances."""

_NS_PER_US = 1e3
_TAILS = {"p95": 0.95, "p99": 0.99}


@dataclass(frozen=True)
class LaunchPairs:
    """The launch pairs of a run, split by whether their thread was switched out in between.

    Attributes:
        unit: of the gaps and the penalty, "us".
        with_switch: number of pairs with a switch inside.
        without_switch: number of the others.
        penalty: median gap with a switch (first) less the median without (second).
        lost_share: time of gaps with a switch beyond the median gap without, divided by all gaps;
            None if there is no gap without a switch to compare with.
        tails: for P95 and P99, which share of the gaps above it has a switch inside.
        refused: the reason for each field, or tail, that is missing.

    """

    unit: str
    with_switch: int
    without_switch: int
    penalty: MedianDifference
    lost_share: float | None
    tails: dict[str, Share]
    refused: dict[str, str]


def launch_pairs(
    launches_ns: Mapping[int, Sequence[int]],
    off_cpu: Iterable[OffCpu],
    pauses_ns: Sequence[int] = (),
) -> LaunchPairs:
    """Split launch pairs by context switches of the launching thread, whatever the reason.

    Args:
        launches_ns: by thread, when each launch began, in ascending order.
        off_cpu: when threads were off the CPU, on the same clock, in any order.
        pauses_ns: moments within pauses of the run: launches on both sides of one are not a pair.

    Raises:
        ValueError: if a thread's launches do not ascend.

    """
    import numpy as np

    switches: dict[int, list[int]] = {}
    for one in off_cpu:
        switches.setdefault(one.tid, []).append(one.start_ns)
    gaps, switched = [np.empty(0)], [np.empty(0, dtype=np.bool_)]
    pauses = np.sort(np.asarray(pauses_ns, dtype=np.int64))
    for tid, launches in launches_ns.items():
        at = np.asarray(launches, dtype=np.int64)
        gap = np.diff(at)
        if bool((gap < 0).any()):
            raise ValueError(f"launches of thread {tid} do not ascend")
        # Switches before each launch: more of them before the next one lie in between.
        before = np.searchsorted(np.sort(np.asarray(switches.get(tid, ()), dtype=np.int64)), at)
        pair = np.diff(np.searchsorted(pauses, at)) == 0
        gaps.append(gap[pair] / _NS_PER_US)
        switched.append((np.diff(before) > 0)[pair])
    return _split(np.concatenate(gaps), np.concatenate(switched))


def _split(gaps_us: NDArray[np.float64], switched: NDArray[np.bool_]) -> LaunchPairs:
    import numpy as np

    with_switch, without = gaps_us[switched], gaps_us[~switched]
    refused: dict[str, str] = {}
    penalty = median_difference(with_switch.tolist(), without.tolist(), "us")
    if with_switch.size < LEAST_PAIRS:
        reason = shortfall(LEAST_PAIRS, int(with_switch.size), "pairs with a switch")
        refused["penalty"] = reason
        penalty = MedianDifference(
            penalty.unit, penalty.confidence, penalty.first, penalty.second, None, None,
            {"difference": reason, "interval": reason},
        )  # fmt: skip
    lost_share = None
    if without.size and gaps_us.sum() > 0:
        beyond = np.maximum(with_switch - np.median(without), 0)
        lost_share = float(beyond.sum() / gaps_us.sum())
    else:
        refused["lost_share"] = shortfall(1, int(without.size), "pairs without a switch")
    tails: dict[str, Share] = {}
    for name, quantile in _TAILS.items():
        needed = minimum_samples(quantile)
        if gaps_us.size < needed:
            refused[name] = shortfall(needed, int(gaps_us.size), "pairs")
            continue
        above = gaps_us > np.quantile(gaps_us, quantile)
        if above.any():
            tails[name] = share_of(int((above & switched).sum()), int(above.sum()))
        else:
            refused[name] = "no gap is longer than it: its gaps are equal"
    return LaunchPairs(
        unit="us",
        with_switch=int(with_switch.size),
        without_switch=int(without.size),
        penalty=penalty,
        lost_share=lost_share,
        tails=tails,
        refused=refused,
    )
