"""Time that interrupts took from measured threads, by type."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_hwqueue.metrics.cpu_events import Interrupt, InterruptKind


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

    """

    kind: InterruptKind
    name: str
    number: int
    time_ns: int
    share_of_run: float


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
    numbers: dict[tuple[InterruptKind, str], int] = {}
    times: dict[tuple[InterruptKind, str], int] = {}
    open_on: dict[int, list[Interrupt]] = {}
    for interrupt in sorted(interrupts, key=lambda one: (one.start_ns, -one.end_ns)):
        key = (interrupt.kind, interrupt.name)
        spent = interrupt.end_ns - interrupt.start_ns
        numbers[key] = numbers.get(key, 0) + 1
        times[key] = times.get(key, 0) + spent
        outer = open_on.setdefault(interrupt.cpu, [])
        while outer and outer[-1].end_ns <= interrupt.start_ns:
            outer.pop()
        if outer:
            times[outer[-1].kind, outer[-1].name] -= spent
        outer.append(interrupt)
    return tuple(
        sorted(
            (
                InterruptTime(kind, name, numbers[kind, name], spent, spent / run_ns)
                for (kind, name), spent in times.items()
            ),
            key=lambda one: (-one.time_ns, one.kind, one.name),
        )
    )
