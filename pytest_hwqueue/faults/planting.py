"""Plants faults into a cell: its streams' priorities, its work, its measured iterations."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from pytest_hwqueue.devices.protocol import Device, Stream
from pytest_hwqueue.faults.slower import SlowedLaunches
from pytest_hwqueue.faults.specification import Fault

if TYPE_CHECKING:
    from pytest_hwqueue.harness.closed_loop import LoopPlan
    from pytest_hwqueue.harness.program import Enqueue, Program

# Far more than any machine has.
_TOO_MANY_BYTES = 2**60


@dataclass(frozen=True)
class PlantedFaults:
    """The faults of one cell; with none, nothing changes."""

    faults: tuple[Fault, ...] = ()
    seed: int = 0

    def priorities(self, asked: list[int]) -> list[int] | None:
        """Return the priorities that the streams get instead of the requested ones."""
        if self._has("inactive-scheduler"):
            return None
        if self._has("inverted-priority"):
            return [max(asked) + min(asked) - priority for priority in asked]
        return asked

    def work(self, device: Device, enqueue: Enqueue, urgency: Sequence[int]) -> Enqueue:
        """Return the iteration with slower launches, or redirected to other streams."""
        if self._has("slower") and device.model is None:
            enqueue = SlowedLaunches(device, enqueue, self._percent("slower"))
        order = list(range(len(urgency)))
        if self._has("aliased-streams"):
            order = [0] * len(urgency)
        elif self._has("hidden-inverted-priority"):
            by_urgency = sorted(order, key=lambda index: urgency[index])
            reverse = dict(zip(by_urgency, reversed(by_urgency), strict=True))
            order = [reverse[index] for index in order]
        else:
            return enqueue
        return lambda streams: enqueue([streams[index] for index in order])

    def device(self, device: Device) -> AbstractContextManager[None]:
        """Slow down a simulated device's kernels while the cell runs."""
        if device.model is None:
            return nullcontext()
        return device.model.slowed(1 + self._percent("slower") / 100)

    def measured(self, device: Device, program: Program, plan: LoopPlan) -> Program:
        """Return the program for the measured loop, with faults at its iterations.

        Iterations count from 1, including those that only lead in to the first measured one.
        """
        for fault in self.faults:
            if fault.name == "clock-dip" and device.model is not None:
                percent, start, end = fault.values
                length_ns = min(plan.max_time_ns, plan.iterations * plan.iteration_ns)
                begin_ns = device.clock_ns()
                device.model.dip_clock(
                    1 - 1 / (1 + percent / 100),
                    begin_ns + round(length_ns * start / 100),
                    begin_ns + round(length_ns * end / 100),
                )
        actions = [
            action
            for fault in self.faults
            if (action := _action(fault, device, plan, self.seed)) is not None
        ]
        if not actions:
            return program
        number = 0

        def enqueue(streams: Sequence[Stream]) -> None:
            nonlocal number
            number += 1
            program.enqueue(streams)
            for action in actions:
                action(number, streams)

        return replace(program, enqueue=enqueue)

    def _has(self, name: str) -> bool:
        return any(fault.name == name for fault in self.faults)

    def _percent(self, name: str) -> float:
        return sum(fault.values[0] for fault in self.faults if fault.name == name)


# Called behind each iteration's work with its number and the streams.
_Action = Callable[[int, Sequence[Stream]], None]


def _action(fault: Fault, device: Device, plan: LoopPlan, seed: int) -> _Action | None:
    if fault.name == "slower-tail":
        percent, share = fault.values
        chooser = random.Random(f"{seed}/slower-tail")
        return _spin(device, plan, percent, lambda: chooser.random() * 100 < share)
    at_iteration = {
        "crash": _crash, "hang": _hang, "out-of-memory": _run_out_of_memory,
        "device-error": _fail_on_stream,
    }.get(fault.name)  # fmt: skip
    if at_iteration is None:
        return None

    def act(number: int, streams: Sequence[Stream]) -> None:
        if number == fault.values[0]:
            at_iteration(device, streams)

    return act


def _spin(device: Device, plan: LoopPlan, percent: float, now: Callable[[], bool]) -> _Action:
    """Lengthen iterations by a kernel that starts once all their work has ended."""
    kernel = device.kernel_of(max(1, round(plan.iteration_ns * percent / 100)))

    def act(_: int, streams: Sequence[Stream]) -> None:
        if now():
            for stream in streams[1:]:
                streams[0].wait(stream.record())
            streams[0].launch(kernel)

    return act


def _crash(_: Device, __: Sequence[Stream]) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _hang(_: Device, __: Sequence[Stream]) -> None:
    while True:
        time.sleep(3600)


def _run_out_of_memory(device: Device, _: Sequence[Stream]) -> None:
    if not device.capabilities.runs_kernels:
        raise torch.OutOfMemoryError("planted: a simulated device has no memory to run out of")
    torch.empty(_TOO_MANY_BYTES, dtype=torch.uint8, device=device.torch_device)


def _fail_on_stream(device: Device, streams: Sequence[Stream]) -> None:
    if device.capabilities.host or not device.capabilities.runs_kernels:
        streams[0].launch(_raise_planted)
        return
    # An index out of bounds is asserted on the device itself, and stays with the process.
    values = torch.zeros(1, device=device.torch_device)
    beyond = torch.full((1,), 1 << 20, device=device.torch_device)
    streams[0].launch(lambda: values[beyond])


def _raise_planted() -> None:
    raise RuntimeError("planted: the device failed")
