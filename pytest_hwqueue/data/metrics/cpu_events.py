"""What kept threads from running: times off the CPU, interrupts, and launches apart.

A pair of launches is two successive launches of one thread. Its gap runs from the start of the
first to the start of the second, so that every moment of a thread's run belongs to one gap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.latency import (
    above_percentiles,
    quantile_estimate,
    share_of,
    shortfall,
)
from pytest_hwqueue.data.metrics.numbers import TimeUnit, grouped
from pytest_hwqueue.data.metrics.switching import (
    MedianDifference,
    median_difference,
    without_difference,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


OffCpuReason = Literal["preempted", "stopped", "waited"]
InterruptKind = Literal["hardirq", "vector", "softirq"]


@dataclass(frozen=True, slots=True)
class OffCpu:
    """One period that a thread spent off the CPU; all times are ns on one clock.

    Attributes:
        tid: the thread.
        cpu: which CPU it left; None if it was off already when the trace began.
        end_cpu: the CPU on which it ran again; None if it did not before the trace ended.
        start_ns: when it left, or when the trace began.
        end_ns: when it ran again, or when the trace ended.
        reason: ``preempted`` (it could have continued; includes a yield), ``stopped`` (by a signal
            or a debugger), ``waited`` (it gave up the CPU; without tracepoints, also while
            stopped); None if that happened before the trace.
        runnable_ns: since when it could have run: for ``preempted`` the start, else when it was
            woken; None if that was not seen, as without tracepoints, and on some kernels when an
            idle CPU did the waking, which delays nobody.
        next_tid: the thread that ran instead, numbered as in the root namespace; 0 is none; None if
            unseen.
        next_comm: that thread's name.
        before_tid: who ran on the CPU just before it ran again, numbered likewise; None unseen.
        before_comm: that thread's name.

    """

    tid: int
    cpu: int | None
    end_cpu: int | None
    start_ns: int
    end_ns: int
    reason: OffCpuReason | None
    runnable_ns: int | None = None
    next_tid: int | None = None
    next_comm: str | None = None
    before_tid: int | None = None
    before_comm: str | None = None

    @property
    def withheld(self) -> tuple[int, int] | None:
        """The part in which the thread wanted the CPU but did not have it; None if none is known.

        All of a preemption or a stop; of a wait, the part after waking: the thread chose to wait.
        """
        if self.reason in ("preempted", "stopped"):
            return self.start_ns, self.end_ns
        if self.runnable_ns is None:
            return None
        return self.runnable_ns, self.end_ns


@dataclass(frozen=True, slots=True)
class Interrupt:
    """One interrupt that ran in a thread's time; all times are ns on one clock.

    Attributes:
        tid: the thread that was interrupted.
        cpu: on which CPU.
        start_ns: entry of the handler.
        end_ns: its exit.
        kind: ``hardirq`` (a device's), ``vector`` (the timer's tick, another CPU's call) or
            ``softirq`` (deferred work that runs before the thread goes on).
        number: of the line, the vector or the softirq.
        name: as the kernel gives it.
        raised_by: of a softirq, the interrupt that raised it in the thread's time, such as
            ``hardirq nvme0q3``, or a call of the thread; None if it was raised before the thread
            had the CPU, and of the others.

    """

    tid: int
    cpu: int
    start_ns: int
    end_ns: int
    kind: InterruptKind
    number: int
    name: str
    raised_by: str | None = None


@dataclass(frozen=True)
class InterruptTime:
    """One type of interrupt over a run.

    Attributes:
        kind: of the interrupts.
        name: of the interrupts.
        number: how many occurred.
        time_ns: their time together, without that of interrupts that interrupted them, so that
            the types add up to the time lost.
        share_of_run: that time over the run's; the run's is wall time of all threads together.
        max_ns: the longest of them, likewise; None if that is not known.
        raised_by: of softirqs, how many were raised by what; those of which that was not seen are
            missing.

    """

    kind: InterruptKind
    name: str
    number: int
    time_ns: int
    share_of_run: float
    max_ns: int | None
    raised_by: dict[str, int]

    @property
    def mean_ns(self) -> float:
        """The mean time of one."""
        return self.time_ns / self.number


def interrupt_times(interrupts: Iterable[Interrupt], run_ns: int) -> tuple[InterruptTime, ...]:
    """Sum interrupts by type, the costliest first.

    Args:
        interrupts: in any order; those of one CPU nest or follow each other.
        run_ns: the run's length times its threads, in ns.

    Raises:
        ValueError: if the run has no length.

    """
    if run_ns <= 0:
        raise ValueError(f"a run must last longer than 0 ns, is {run_ns}")
    times: dict[tuple[InterruptKind, str], list[int]] = {}
    raised: dict[tuple[InterruptKind, str], Counter[str]] = {}
    # Of each CPU, the interrupts that still run: their end, their type, and their place there.
    open_on: dict[int, list[tuple[int, list[int], int]]] = {}
    for interrupt in sorted(interrupts, key=lambda one: (one.start_ns, -one.end_ns)):
        key = (interrupt.kind, interrupt.name)
        of_type = times.setdefault(key, [])
        if interrupt.raised_by is not None:
            raised.setdefault(key, Counter())[interrupt.raised_by] += 1
        spent = interrupt.end_ns - interrupt.start_ns
        outer = open_on.setdefault(interrupt.cpu, [])
        while outer and outer[-1][0] <= interrupt.start_ns:
            outer.pop()
        if outer:
            _, outer_times, place = outer[-1]
            outer_times[place] -= spent
        outer.append((interrupt.end_ns, of_type, len(of_type)))
        of_type.append(spent)
    found = [
        InterruptTime(
            *key,
            len(each),
            sum(each),
            sum(each) / run_ns,
            max(each),
            dict(raised.get(key, Counter()).most_common()),
        )
        for key, each in times.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.time_ns, one.kind, one.name)))


LEAST_PAIRS = 20
"""Pairs with a switch below which no penalty is given: it would rest on a few chances."""

_PERCENTILES = {"p90": 0.9, "p99": 0.99}
_US = TimeUnit("us", 1e3)


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
        gaps_with_switch: P90 and P99 of the gaps with a switch, by percentile (``p90``); the median
            is the penalty's. Their intervals allow for gaps that follow each other. Empty if
            they are not known, as the next.
        gaps_without_switch: of the others.

    """

    unit: str
    with_switch: int
    without_switch: int
    penalty: MedianDifference
    lost_share: float | None
    tails: dict[str, Estimate]
    refused: dict[str, str]
    gaps_with_switch: dict[str, Estimate]
    gaps_without_switch: dict[str, Estimate]


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

    switches = grouped((one.tid, one.start_ns) for one in off_cpu)
    gaps: list[NDArray[np.float64]] = []
    switched: list[NDArray[np.bool_]] = []
    pauses = np.sort(np.asarray(pauses_ns, dtype=np.int64))
    for tid, launches in launches_ns.items():
        at = np.asarray(launches, dtype=np.int64)
        gap = np.diff(at)
        if bool((gap < 0).any()):
            raise ValueError(f"launches of thread {tid} do not ascend")
        # Switches before each launch: more of them before the next one lie in between.
        before = np.searchsorted(np.sort(np.asarray(switches.get(tid, ()), dtype=np.int64)), at)
        pair = np.diff(np.searchsorted(pauses, at)) == 0
        gaps.append(gap[pair].astype(np.float64))
        switched.append((np.diff(before) > 0)[pair])
    return _split(gaps, switched)


def _split(
    gaps_ns: Sequence[NDArray[np.float64]], inside: Sequence[NDArray[np.bool_]]
) -> LaunchPairs:
    """Split the gaps of each thread, in their order, by whether a switch was inside."""
    import numpy as np

    gaps_us = np.concatenate([np.empty(0), *gaps_ns]) / _US.ns
    switched = np.concatenate([np.empty(0, dtype=np.bool_), *inside])
    with_switch, without = gaps_us[switched], gaps_us[~switched]
    refused: dict[str, str] = {}
    penalty = median_difference(with_switch.tolist(), without.tolist())
    if with_switch.size < LEAST_PAIRS:
        reason = shortfall(LEAST_PAIRS, int(with_switch.size), "pairs with a switch")
        refused["penalty"] = reason
        penalty = without_difference(penalty, reason)
    lost_share = None
    if without.size and gaps_us.sum() > 0:
        beyond = np.maximum(with_switch - np.median(without), 0)
        lost_share = float(beyond.sum() / gaps_us.sum())
    else:
        refused["lost_share"] = shortfall(1, int(without.size), "pairs without a switch")
    tails = {}
    equal = "no gap is longer than it: its gaps are equal"
    for name, (_, above) in above_percentiles(gaps_us, "pairs", equal, refused).items():
        tails[name] = share_of(int((above & switched).sum()), int(above.sum()))
    each = [*zip(gaps_ns, inside, strict=True)]
    return LaunchPairs(
        unit="us",
        with_switch=int(with_switch.size),
        without_switch=int(without.size),
        penalty=penalty,
        lost_share=lost_share,
        tails=tails,
        refused=refused,
        gaps_with_switch=_percentiles([gaps[switch] for gaps, switch in each]),
        gaps_without_switch=_percentiles([gaps[~switch] for gaps, switch in each]),
    )


def _percentiles(gaps_ns: Sequence[NDArray[np.float64]]) -> dict[str, Estimate]:
    import numpy as np

    parts = [gaps for gaps in gaps_ns if gaps.size]
    ordered = np.sort(np.concatenate([np.empty(0), *parts]))
    return {
        name: quantile_estimate(parts, ordered, quantile, _US, "pairs")
        for name, quantile in _PERCENTILES.items()
    }
