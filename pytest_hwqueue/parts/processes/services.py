"""Starts the services that a scheduler mode needs, watches them, and stops each in its own way."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pytest_hwqueue.data.errors import HwqError, NotProven
from pytest_hwqueue.parts.processes.channel import ending
from pytest_hwqueue.parts.processes.guardian import Order
from pytest_hwqueue.parts.processes.process_table import Place, listeners
from pytest_hwqueue.parts.processes.reaper import last_lines
from pytest_hwqueue.parts.processes.starting import start_guarded

_READY_S = 20.0
_POLL_S = 0.01
_LAST_LINES = 15

# A service must never become a client of a scheduler, nor take up another one's settings.
_NOT_FOR_SERVICES = ("XSCHED_", "CUXTRA_", "CUDA_MPS_")


class ServiceFailed(NotProven):
    """A service could not be started, is blocked by another, or ended by itself."""


def free_port() -> int:
    """Return a port of the loopback address that was free just now.

    Another program may take it before a service does: see `Service.require_listening`.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
        self._patience_s = order.stop.patience_s
        try:
            self._process = start_guarded(order, log, environment)
        except HwqError:
            raise ServiceFailed(f"{name} could not be started: {self.last_lines()}") from None
        self.guardian_pid, self.pid = self._process.parent_pid, self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status once it has ended, negative for a signal that ended it."""
        return self._process.poll()

    def check(self, within_s: float = 0) -> None:
        """Raise ServiceFailed if the service has ended, or ends ``within_s`` seconds."""
        with suppress(subprocess.TimeoutExpired):
            how = ending(self._process.wait(within_s))
            raise ServiceFailed(
                f"{self.name} (process {self.pid}) {how} while it was needed; its last "
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

    def refuse_strangers(self, at: Place) -> None:
        """Raise NotProven if others than this service's processes listen at a place."""
        self._listening(at)

    def require_listening(self, at: Place) -> None:
        """Raise NotProven unless this service's processes listen at a place, and no others."""
        if not self._listening(at):
            raise NotProven(
                f"{self.name}: none of its processes listens on {at}; its output is in {self.log}"
            )

    def _listening(self, at: Place) -> frozenset[int]:
        found = listeners(at, self.guardian_pid)
        if found.others:
            also = " too" if found.own else ""
            raise NotProven(
                f"{self.name}: on {at} listens {', '.join(found.others)}{also}, which it has not "
                "started"
            )
        return found.own

    def last_lines(self) -> str:
        """The last lines of the service's output."""
        return last_lines(self.log, _LAST_LINES) or "(nothing)"

    def stop(self) -> None:
        """Stop the service and wait until it has ended."""
        # The guardian loses its patience first, three times at most.
        self._process.stop(4 * max(_READY_S, self._patience_s))


@contextmanager
def run_service(
    name: str, log: Path, order: Order, *, watched_in: Mapping[str, str] | None = None
) -> Iterator[Service]:
    """Run a service for the length of the ``with`` block; it also ends when this process dies.

    Args:
        name: what messages call it.
        log: file for its stdout and stderr.
        order: what to run, in an environment that `service_environment` makes.
        watched_in: environment of the process that watches it; None for its own.

    Raises:
        ServiceFailed: if it cannot be started.

    """
    log.parent.mkdir(parents=True, exist_ok=True)
    service = Service(name, log, order.environment if watched_in is None else watched_in, order)
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
