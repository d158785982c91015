"""The pass that times launching calls while a launcher for each stream makes them.

The measured loop launches from one thread, stream by stream. Here each stream has a launcher of its
own, a thread of this process or of one of several; in a window all of them launch at once. Behind
each window comes one of the control, whose calls ask nothing of the driver, so that what drifts
falls on both. Few launches are ever in flight: in a full launch queue a call would wait for the
device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import Any, Protocol

from pytest_hwqueue.data.metrics.latency import LEAST_ITERATIONS
from pytest_hwqueue.data.metrics.launching import (
    CONTROL,
    LaunchedBy,
    LaunchingCalls,
    LaunchingWindow,
    explained,
    inside,
    not_the_drivers,
)
from pytest_hwqueue.engine.cell.closed_loop import garbage_collection_held
from pytest_hwqueue.engine.cell.program import Enqueue, calls_by_stream
from pytest_hwqueue.engine.cell.sample_plan import SamplePlan
from pytest_hwqueue.engine.cell.stop_rule import StopRule
from pytest_hwqueue.parts.devices.conditions import interpreter_locked
from pytest_hwqueue.parts.devices.protocol import Call, Device, StreamPool
from pytest_hwqueue.parts.workloads.workload import HELD_KERNELS

# Of a launcher in a window, in the mean: it takes many turns for all threads to have had one, and
# processes begin some 100 µs apart.
_OF_EACH: Mapping[LaunchedBy, int] = {"threads": 100, "processes": HELD_KERNELS}
# Of a model, whose threads are awake at once, and whose windows are alike.
_OF_A_MODELLED_THREAD = 10
# Kept of a window. More would tell little of windows that differ, and records hold all of them.
_MOST_KEPT = 400
# From one launcher, to know what a call takes without others.
_ALONE = 500


@dataclass(frozen=True)
class LaunchingTask:
    """What each process launches, and where.

    Attributes:
        device: its label.
        workload: name of the workload, which gets one stream.
        parameters: all of its parameters, by name.
        seed: of its inputs.
        scheduler: the mode, which each process proves.
        replayed: whether a launch is the replay of a graph.

    """

    device: str
    workload: str
    parameters: dict[str, Any]
    seed: int
    scheduler: str
    replayed: bool


@dataclass(frozen=True)
class LaunchingProgram:
    """What is launched, and by whom.

    Attributes:
        calls: one for each stream, which launches its part of an iteration.
        native: whether a call gives the interpreter's lock away while it launches.
        task: of processes, which launch in place of this one's threads; None for threads.

    """

    calls: Sequence[Call]
    native: bool
    task: LaunchingTask | None = None

    @property
    def by(self) -> LaunchedBy:
        """Who launches."""
        return "threads" if self.task is None else "processes"


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
        found = {self.contention.tag(primary): self.launches_ns, CONTROL: self.control_ns}
        return {tag: values for tag, values in found.items() if values}

    @property
    def refused(self) -> dict[str, str]:
        """Why figures are missing, by name."""
        reason = self.contention.refused
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


class Launchers(Protocol):
    """Who launch at once, each on a stream of its own."""

    @property
    def count(self) -> int:
        """How many there are."""

    def window(self, launchers: int, launches: int, control_ns: int) -> LaunchingWindow:
        """Have some of them launch at once, and return once the device is idle.

        Args:
            launchers: the first so many.
            launches: of all of them together.
            control_ns: how long a call of the control takes alone; 0 to launch.

        """


class LaunchingOfThreads:
    """Launchers that are threads of this process."""

    def __init__(self, device: Device, pool: StreamPool, calls: Sequence[Call]) -> None:
        self.count = len(calls)
        self.most_held = max(1, HELD_KERNELS // len(calls))
        self._device, self._pool, self._calls = device, pool, calls
        self._controls: dict[int, Call] = {}

    def window(self, launchers: int, launches: int, control_ns: int) -> LaunchingWindow:
        """Have the first so many threads launch at once, or make calls of the control."""
        calls = self._calls[:launchers]
        if control_ns:
            if control_ns not in self._controls:
                self._controls[control_ns] = self._device.call_of(control_ns)
            calls = [self._controls[control_ns]] * launchers
        taken = self._pool.launching_window(calls, launches, self.most_held)
        self._pool.synchronize()
        return taken


def launching_pass(
    device: Device,
    launchers: Launchers,
    program: LaunchingProgram,
    plan: LaunchingPlan,
    pause: Callable[[int], object] = lambda windows: None,
) -> LaunchingResult:
    """Time launching calls that launchers make at once, and the control's calls.

    Args:
        device: to measure.
        launchers: who launch.
        program: what is launched, and by whom.
        plan: how much is measured.
        pause: called between windows, with the number taken.

    """
    count, clock_ns = launchers.count, device.clock_ns
    modelled = device.capabilities.virtual_time
    # A launch queue belongs to a process.
    most_held = max(1, HELD_KERNELS // (1 if program.by == "processes" else count))
    launches = _of_each(device, program) * count

    def alone_ns(control_ns: int) -> int:
        alone = launchers.window(1, most_held if modelled else _ALONE, control_ns)
        return round(median(alone.latencies()))

    with garbage_collection_held():
        launch_alone_ns = alone_ns(0)
        control_alone_ns = alone_ns(launch_alone_ns)
        began_ns = clock_ns()
        # No samples: the launchers have not all run before.
        first = launchers.window(count, launches, 0)
        launchers.window(count, launches, launch_alone_ns)
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
            taken.append(launchers.window(count, launches, 0))
            controls.append(launchers.window(count, launches, launch_alone_ns))
            if stopping.simulated_too_long() or stopping.time_is_up(clock_ns()):
                break
            pause(number + 1)
    launches_ns, control_ns = _kept(taken), _kept(controls)
    share = explained(launches_ns, control_ns, control_alone_ns)
    contention = LaunchingCalls(
        launchers=count,
        by=program.by,
        windows=len(taken),
        launches=launches,
        most_held=most_held,
        windows_ns=[max(1, each.whole_ns) for each in taken],
        inside=inside(taken),
        clock_ns=device.clock_reading_ns(),
        alone_ns=launch_alone_ns,
        control_ns=control_alone_ns,
        explained=share,
        refused=not_the_drivers(
            share, program.by, native=program.native, locked=interpreter_locked()
        ),
    )
    return LaunchingResult(launches_ns, control_ns, contention, needed)


def modelled_latencies(device: Device, pool: StreamPool, program: LaunchingProgram) -> list[int]:
    """Return the latencies of one window of threads on a simulated device, in ns."""
    launchers = LaunchingOfThreads(device, pool, program.calls)
    count = launchers.count
    return launchers.window(count, _of_each(device, program) * count, 0).latencies()


def _of_each(device: Device, program: LaunchingProgram) -> int:
    """Return how many launches a window has for each launcher."""
    if device.capabilities.virtual_time:
        return max(1, min(_OF_A_MODELLED_THREAD, HELD_KERNELS // len(program.calls)))
    return _OF_EACH[program.by]


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
