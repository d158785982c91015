"""Starts the services that a scheduler mode needs, watches them, and stops each in its own way."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pytest_hwqueue.errors import NotProven
from pytest_hwqueue.processes.guardian import Order
from pytest_hwqueue.processes.reaper import last_lines
from pytest_hwqueue.processes.starting import python_command

_PATIENCE_S = 10
_READY_S = 20.0
_POLL_S = 0.01
_LAST_LINES = 15

# A service must never become a client of a scheduler, nor take up another one's settings.
_NOT_FOR_SERVICES = ("XSCHED_", "CUXTRA_", "CUDA_MPS_")


class ServiceFailed(NotProven):
    """A service could not be started, is blocked by another, or ended by itself."""


def free_port() -> int:
    """Return a port of the loopback address that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Stop:
    """How a service is stopped: by a signal, or by a line of text to another command.

    It also gets the signal if the process that watches it is killed.

    Attributes:
        signal: asks it to end.
        command: asks it instead, if given.
        text: the line of text for the command.
        patience_s: after which it is killed.

    """

    signal: signal.Signals
    command: Sequence[str] = ()
    text: str = ""
    patience_s: float = _PATIENCE_S


class Contending(NamedTuple):
    """How to run a service that must contend with this process for the machine.

    It gets its own process group but not its own session, since the kernel's autogroups would then
    schedule it separately. Once it has ended, its remaining processes are killed.

    Attributes:
        limit_s: ends it after this many seconds in any case; None for no limit.
        folder: created before it starts, and removed with its contents once all has ended.

    """

    limit_s: float | None = None
    folder: Path | None = None


class Service:
    """A running service.

    Attributes:
        log: its output.
        pid: its process id.
        guardian_pid: that of its parent, from which all that it has started descends.

    """

    def __init__(self, name: str, log: Path, environment: Mapping[str, str], order: Order) -> None:
        self.name = name
        self.log = log
        self._patience_s = order.patience_s
        with open(log, "wb") as file:
            self._guardian = subprocess.Popen(
                python_command("pytest_hwqueue.processes.guardian", json.dumps(order), alone=True),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=environment,
                start_new_session=not order.contending,
            )
        assert self._guardian.stdout is not None
        answer = self._guardian.stdout.readline().decode().strip()
        pids = answer.split()
        if not all(pid.isdecimal() for pid in pids) or len(pids) != 2:
            self.stop()
            raise ServiceFailed(f"{name} could not be started: {answer or self.last_lines()}")
        self.guardian_pid, self.pid = map(int, pids)

    @property
    def status(self) -> int | None:
        """The exit status once it has ended: 128 plus the number of a signal that ended it."""
        return self._guardian.poll()

    def check(self, within_s: float = 0) -> None:
        """Raise ServiceFailed if the service has ended, or ends ``within_s`` seconds."""
        if self._is_alone(within_s) or self._guardian.poll() is not None:
            status = self._guardian.wait()
            raise ServiceFailed(
                f"{self.name} (process {self.pid}) {_how(status)} while it was needed; its last "
                f"lines in {self.log}:\n{self.last_lines()}"
            )

    def wait_until(self, is_ready: Callable[[], bool], what: str) -> None:
        """Wait until ``is_ready``; ServiceFailed if the service ends, or is not within 20 s."""
        deadline = time.monotonic() + _READY_S
        while not is_ready():
            self.check()
            if time.monotonic() > deadline:
                raise ServiceFailed(
                    f"{self.name} (process {self.pid}) runs, but {what} within {_READY_S:.0f} s; "
                    f"its last lines in {self.log}:\n{self.last_lines()}"
                )
            time.sleep(_POLL_S)

    def last_lines(self) -> str:
        """The last lines of the service's output."""
        return last_lines(self.log, _LAST_LINES) or "(nothing)"

    def stop(self) -> None:
        """Stop the service and wait until it has ended."""
        assert self._guardian.stdin is not None
        self._guardian.stdin.close()
        # The guardian loses its patience first, three times at most.
        limit_s = 4 * max(_PATIENCE_S, self._patience_s)
        self._is_alone(limit_s)
        self._guardian.wait(limit_s)
        if self._guardian.stdout is not None:
            self._guardian.stdout.close()

    def _is_alone(self, within_s: float) -> bool:
        """Whether its parent has ended, or does within seconds."""
        # Not the process that was started, the parent's own, which first ends what that has left.
        assert self._guardian.stdout is not None
        end = select.poll()
        end.register(self._guardian.stdout, 0)
        return bool(end.poll(within_s * 1000))


@contextmanager
def run_service(
    name: str,
    command: Sequence[str],
    log: Path,
    stop: Stop,
    environment: Mapping[str, str],
    contending: Contending | None = None,
    *,
    added: Mapping[str, str] | None = None,
    within: Path | None = None,
) -> Iterator[Service]:
    """Run a service for the length of the ``with`` block; it also ends when this process dies.

    Args:
        name: what messages call it.
        command: program and arguments.
        log: file for its stdout and stderr.
        stop: how it is stopped.
        environment: its whole environment, as `service_environment` makes it.
        contending: for a service that must contend with this process; None for one that stays out
            of its way.
        added: variables for the service alone, and not for the process that watches it.
        within: folder in which it runs; None for this process's.

    Raises:
        ServiceFailed: if it cannot be started.

    """
    log.parent.mkdir(parents=True, exist_ok=True)
    limit_s, folder = (None, None) if contending is None else contending
    order = Order(
        command=[*command],
        added={**(added or {})},
        within=None if within is None else str(within),
        stop_signal=int(stop.signal),
        stop_command=[*stop.command],
        stop_input=stop.text,
        patience_s=stop.patience_s,
        contending=contending is not None,
        limit_s=limit_s,
        folder=None if folder is None else str(folder),
    )
    service = Service(name, log, environment, order)
    try:
        yield service
    finally:
        service.stop()


def service_environment(added: Mapping[str, str], *without: str) -> dict[str, str]:
    """Return this process's environment and ``added``.

    It omits the variables of schedulers, preloads, and those named in ``without``.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_NOT_FOR_SERVICES) and name not in ("LD_PRELOAD", *without)
    }
    return {**kept, **added}


def prepended(variable: str, folders: Sequence[Path | str]) -> str:
    """Return folders followed by the current value of a variable such as LD_LIBRARY_PATH."""
    held = os.environ.get(variable, "")
    return os.pathsep.join([*map(str, folders), *([held] if held else [])])


def _how(status: int) -> str:
    if status > 128 and status - 128 in set(signal.Signals):
        return f"died by {signal.Signals(status - 128).name}"
    return f"ended with status {status}"
