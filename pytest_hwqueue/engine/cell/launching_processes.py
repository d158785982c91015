"""Processes that launch at once, each from one thread on one stream: none shares an interpreter.

The process that measures a cell starts them, and tells them when each window begins, by the clock
that all processes of a machine have in common (time.perf_counter is CLOCK_MONOTONIC on Linux).
Their windows are then put together.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from pytest_hwqueue.data.errors import HwqError
from pytest_hwqueue.data.metrics.launching import LaunchingWindow
from pytest_hwqueue.engine.cell.closed_loop import garbage_collection_held
from pytest_hwqueue.engine.cell.launching_pass import LaunchingTask, launching_program
from pytest_hwqueue.parts.devices.kinds import open_device
from pytest_hwqueue.parts.devices.protocol import Call
from pytest_hwqueue.parts.processes.channel import Channel, Message, ProcessEnded
from pytest_hwqueue.parts.processes.measured_process import MeasuredProcess
from pytest_hwqueue.parts.processes.scratch import scratch_folder
from pytest_hwqueue.parts.processes.starting import ForkServer, Main, worker_environment
from pytest_hwqueue.parts.schedulers.syntax import open_scheduler, prove_cell
from pytest_hwqueue.parts.workloads.registry import ahead, workload_class
from pytest_hwqueue.parts.workloads.workload import Setup, valid_parameters

_MAIN: Main = "pytest_hwqueue.engine.cell.launching_processes"
# For as many as 64 to import torch and open a device on few cores, and for a window.
_READY_S, _WINDOW_S, _ENDING_S = 240.0, 60.0, 30.0
# From telling the processes of a window to its begin: all must have been told by then.
_AHEAD_NS = 5_000_000


class LaunchingProcesses:
    """One process for each launcher; ended by the ``with`` statement."""

    def __init__(self, task: LaunchingTask, count: int) -> None:
        self.count = count
        self._task = task
        self._processes: list[MeasuredProcess] = []
        self._ended = ExitStack()

    def __enter__(self) -> LaunchingProcesses:
        with ExitStack() as entered:
            folder = Path(entered.enter_context(scratch_folder()))
            environment = worker_environment(os.environ)
            # It imports once for all of them.
            server = ForkServer(environment, ahead([self._task.workload]))
            entered.callback(server.close)
            # All at once: 64 that take a second each to leave the device would take a minute.
            entered.callback(_end, self._processes)
            for number in range(self.count):
                log = folder / f"launching-{number}.log"
                process = MeasuredProcess.start(server, _MAIN, environment, log)
                self._processes.append(process)
                process.send("begin", **asdict(self._task))
            for process in self._processes:
                _answer(process, "ready", _READY_S)
            self._ended = entered.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.close()

    def window(self, launchers: int, launches: int, control_ns: int) -> LaunchingWindow:
        """Have so many processes launch at once; each makes its share of the launches.

        Args:
            launchers: the first so many.
            launches: of all of them together.
            control_ns: how long a call of the control takes; 0 to launch.

        Raises:
            HwqError: if a process ended, or failed; the text says how.

        """
        chosen = self._processes[:launchers]
        asked = {
            "begin_ns": time.perf_counter_ns() + _AHEAD_NS,
            "launches": launches // launchers,
            "control_ns": control_ns,
        }
        for process in chosen:
            process.send("window", **asked)
        taken = [_answer(process, "window", _WINDOW_S) for process in chosen]
        return LaunchingWindow(
            [each["begun_ns"] for each in taken], [each["returned_ns"] for each in taken]
        )


def _answer(process: MeasuredProcess, kind: str, within_s: float) -> Message:
    try:
        message = process.receive(time.monotonic() + within_s)
    except ProcessEnded as ended:
        lines = process.last_lines()
        raise HwqError(
            f"a process that launches ended: {ended}; its last output:\n{lines}"
        ) from None
    if message is None:
        raise HwqError(f"a process that launches did not answer within {within_s:g} s")
    if message["kind"] != kind:
        raise HwqError(f"a process that launches failed: {message.get('reason')}")
    return message


def _end(processes: Sequence[MeasuredProcess]) -> None:
    MeasuredProcess.finish_all(processes, _ENDING_S)
    for process in processes:
        process.close()


def main() -> None:
    """Launch as the measuring process asks; the arguments are the descriptors of the two pipes."""
    # The terminal's Ctrl-C goes to pytest, which ends all processes itself.
    os.setpgrp()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    channel = Channel.from_process(int(sys.argv[-2]), int(sys.argv[-1]))
    try:
        begin = channel.receive()
        assert begin is not None
        begin.pop("kind")
        try:
            _serve(channel, LaunchingTask(**begin))
        except ProcessEnded:
            raise
        except Exception as error:
            channel.send("failed", reason=f"{type(error).__name__}: {error}")
            raise
    except ProcessEnded:
        sys.exit("the measuring process has gone")


def _serve(channel: Channel, task: LaunchingTask) -> None:
    device, found = open_device(task.device), workload_class(task.workload)
    workload = found(valid_parameters(found.name, found.parameter_model, task.parameters))
    with device.open_streams(1) as pool:
        workload.setup(Setup(device, 1, task.seed))
        for _ in range(2):
            workload.iterate(pool.streams)
            pool.synchronize()
        program = launching_program(device, pool, workload.iterate, replayed=task.replayed)
        prove_cell(open_scheduler(task.scheduler), pool, [0], replayed=task.replayed)
        call = program.calls[0]

        def window(control: Call | None, launches: int, begin_ns: int) -> LaunchingWindow:
            device.sleep_until_ns(begin_ns)
            taken = pool.launching_window([control or call], launches, launches)
            pool.synchronize()
            return taken

        with garbage_collection_held():
            channel.send("ready")
            _answer_windows(channel, window, device.call_of)


def _answer_windows(
    channel: Channel,
    window: Callable[[Call | None, int, int], LaunchingWindow],
    call_of: Callable[[int], Call],
) -> None:
    controls: dict[int, Call] = {}
    while (asked := channel.receive()) is not None and asked["kind"] != "exit":
        duration_ns = asked["control_ns"]
        if duration_ns and duration_ns not in controls:
            controls[duration_ns] = call_of(duration_ns)
        taken = window(controls.get(duration_ns), asked["launches"], asked["begin_ns"])
        channel.send(
            "window", begun_ns=_listed(taken.begun_ns), returned_ns=_listed(taken.returned_ns)
        )


def _listed(of_threads: Sequence[Sequence[int]]) -> list[int]:
    (only,) = of_threads
    return list(only)
