"""The pass that times launching calls while a thread for each stream makes them.

The measured loop launches from one thread, stream by stream. Here each stream has a thread of its
own; in a window all of them launch at once. Behind each window comes one of the control, whose
calls ask nothing of the driver, so that what drifts falls on both. Few launches are ever in flight:
in a full launch queue a call would wait for the device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median

from pytest_hwqueue.data.metrics.latency import LEAST_ITERATIONS
from pytest_hwqueue.data.metrics.launching import (
    CONTROL,
    INTERPRETER,
    LaunchingCalls,
    LaunchingWindow,
    explained,
    inside,
    interpreters,
)
from pytest_hwqueue.engine.cell.closed_loop import garbage_collection_held
from pytest_hwqueue.engine.cell.program import Enqueue, calls_by_stream
from pytest_hwqueue.engine.cell.sample_plan import SamplePlan
from pytest_hwqueue.engine.cell.stop_rule import StopRule
from pytest_hwqueue.parts.devices.conditions import interpreter_locked
from pytest_hwqueue.parts.devices.protocol import Call, Device, StreamPool
from pytest_hwqueue.parts.workloads.workload import HELD_KERNELS

# Of a thread in a window, in the mean: it takes many turns for all threads to have had one.
_OF_A_THREAD = 100
# Of a model, whose threads are awake at once, and whose windows are alike.
_OF_A_MODELLED_THREAD = 10
# Kept of a window. More would tell little of windows that differ, and records hold all of them.
_MOST_KEPT = 400
# From one thread, to know what a call takes without others.
_ALONE = 500


@dataclass(frozen=True)
class LaunchingProgram:
    """What is launched.

    Attributes:
        calls: one for each stream, which launches its part of an iteration.
        native: whether a call gives the interpreter's lock away while it launches.

    """

    calls: Sequence[Call]
    native: bool


@dataclass(frozen=True)
class LaunchingPlan:
    """How much is measured.

    Attributes:
        samples: of a launching call's latency, if there is time.
        stop: when the pass ends, in windows.

    """

    samples: SamplePlan
    stop: StopRule


@dataclass(frozen=True)
class LaunchingResult:
    """What a launching pass found.

    Attributes:
        launches_ns: latencies of launching calls, window after window.
        control_ns: of the control's calls, likewise.
        contention: how they were taken.
        needed_windows: that the plan's samples take; time may have left fewer.

    """

    launches_ns: list[int]
    control_ns: list[int]
    contention: LaunchingCalls
    needed_windows: int

    def tags_ns(self, primary: str) -> dict[str, list[int]]:
        """Return the latencies by tag: ``primary`` has those of the driver, if they are its."""
        name = INTERPRETER if self.contention.interpreter else primary
        found = {name: self.launches_ns, CONTROL: self.control_ns}
        return {tag: values for tag, values in found.items() if values}

    @property
    def refused(self) -> dict[str, str]:
        """Why figures are missing, by name."""
        reason = self.contention.interpreter
        return dict.fromkeys(("latency", "throughput"), reason) if reason else {}


def launching_program(
    device: Device, pool: StreamPool, enqueue: Enqueue, *, replayed: bool
) -> LaunchingProgram:
    """Return what each stream's thread launches, of an iteration that has run before.

    Args:
        device: to measure.
        pool: its streams.
        enqueue: one iteration, in which no stream waits for another.
        replayed: whether each stream's part is captured in a graph.

    """
    calls = calls_by_stream(pool, enqueue, replayed=replayed)
    return LaunchingProgram(calls, native=replayed and not device.capabilities.host)


def launching_pass(
    device: Device,
    pool: StreamPool,
    program: LaunchingProgram,
    plan: LaunchingPlan,
    pause: Callable[[int], object] = lambda windows: None,
) -> LaunchingResult:
    """Time launching calls that a thread for each stream makes, and the control's calls.

    Args:
        device: to measure.
        pool: its streams.
        program: what is launched.
        plan: how much is measured.
        pause: called between windows, with the number taken.

    """
    calls, clock_ns = program.calls, device.clock_ns
    modelled = device.capabilities.virtual_time
    most_held = max(1, HELD_KERNELS // len(calls))
    of_a_thread = min(_OF_A_MODELLED_THREAD, most_held) if modelled else _OF_A_THREAD
    launches = of_a_thread * len(calls)

    def window(calls: Sequence[Call], launches: int) -> LaunchingWindow:
        taken = pool.launching_window(calls, launches, most_held)
        pool.synchronize()
        return taken

    def alone_ns(call: Call) -> int:
        return round(median(window([call], min(_ALONE, most_held)).latencies()))

    with garbage_collection_held():
        launch_alone_ns = alone_ns(calls[0])
        control = [device.call_of(launch_alone_ns)] * len(calls)
        control_alone_ns = alone_ns(control[0])
        began_ns = clock_ns()
        # No samples: the threads have not all run before.
        first = window(calls, launches)
        window(control, launches)
        both_ns = max(1, clock_ns() - began_ns)
        # The rate needs so many, too.
        needed = max(
            LEAST_ITERATIONS,
            plan.samples.windows(min(_MOST_KEPT, first.calls), both_ns, modelled=modelled),
        )
        taken: list[LaunchingWindow] = []
        controls: list[LaunchingWindow] = []
        stopping = plan.stop.begin(device)
        for number in range(min(needed, plan.stop.fitting(both_ns))):
            taken.append(window(calls, launches))
            controls.append(window(control, launches))
            if stopping.simulated_too_long() or stopping.time_is_up(clock_ns()):
                break
            pause(number + 1)
    launches_ns, control_ns = _kept(taken), _kept(controls)
    share = explained(launches_ns, control_ns, control_alone_ns)
    contention = LaunchingCalls(
        threads=len(calls),
        windows=len(taken),
        launches=launches,
        most_held=most_held,
        windows_ns=[max(1, each.whole_ns) for each in taken],
        inside=inside(taken),
        clock_ns=device.clock_reading_ns(),
        alone_ns=launch_alone_ns,
        control_ns=control_alone_ns,
        explained=share,
        interpreter=interpreters(share, native=program.native, locked=interpreter_locked()),
    )
    return LaunchingResult(launches_ns, control_ns, contention, needed)


def _kept(windows: Sequence[LaunchingWindow]) -> list[int]:
    """Return the latencies of windows, of many in one every second, third … call."""
    kept: list[int] = []
    for each in windows:
        latencies = each.latencies()
        kept += latencies[:: max(1, ceil(len(latencies) / _MOST_KEPT))]
    return kept


def launching_plan(samples: SamplePlan, stop: StopRule) -> LaunchingPlan:
    """Return the plan of a pass that takes as many windows as samples need, and as fit."""
    return LaunchingPlan(samples, StopRule(sys.maxsize, stop.time_ns, stop.simulating_ns))
