"""Events that take the CPU from a thread: times off the CPU, and interrupts in its time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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

    """

    tid: int
    cpu: int
    start_ns: int
    end_ns: int
    kind: InterruptKind
    number: int
    name: str
