"""Servers that are started for a run: their processes, from the start until nothing is left."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from pytest_hwqueue.devices.kinds import capabilities_of
from pytest_hwqueue.errors import NotProven
from pytest_hwqueue.harness.attempt import RunEnded
from pytest_hwqueue.processes.services import (
    Contending,
    Service,
    ServiceFailed,
    Stop,
    free_port,
    run_service,
)
from pytest_hwqueue.schedulers.inside_evidence import InsideEvidence, gather_outside
from pytest_hwqueue.servers.spec import PORT, PYTHON, ServerSpec

_KILLED = 128 + signal.SIGKILL


class RunningServer:
    """A server that was started here.

    Attributes:
        tenant: its name.
        url: where its requests go.

    """

    def __init__(self, tenant: str, spec: ServerSpec, url: str, service: Service) -> None:
        self.tenant = tenant
        self.url = url
        self._spec = spec
        self._service = service

    @property
    def pid(self) -> int:
        """The process of its command."""
        return self._service.pid

    def check(self) -> None:
        """Raise RunEnded if its command has ended."""
        try:
            self._service.check()
        except ServiceFailed as failed:
            raise RunEnded("failed", str(failed)) from None

    def last_lines(self) -> str:
        """The last lines of its output."""
        return self._service.last_lines()

    def workers(self, device_kind: str) -> dict[int, InsideEvidence]:
        """Return the processes that do its work, with what can be seen of each from outside.

        They are those of its process tree, including orphans and new sessions, that have the
        device's driver mapped; on the CPU, all of the tree.

        Raises:
            NotProven: if there is none.

        """
        driver = capabilities_of(device_kind).driver_library
        found: dict[int, InsideEvidence] = {}
        tree = psutil.Process(self._service.guardian_pid).children(recursive=True)
        for process in tree:
            evidence = gather_outside(process.pid, self._service.log)
            if evidence is not None and (not driver or evidence.mapped(driver)):
                found[process.pid] = evidence
        if not found:
            raise NotProven(
                f"the server of tenant {self.tenant}: none of its {len(tree)} processes has "
                f"{driver} mapped, so that none works on {device_kind}"
            )
        return found

    def stopped(self) -> str:
        """Return what is worth a note about how it ended; empty if it ended when asked to."""
        if self._service.status != _KILLED:
            return ""
        return (
            f"the server of tenant {self.tenant} did not end within {self._spec.stop_s:g} s of "
            "SIGTERM, and was killed"
        )


@contextmanager
def run_server(
    tenant: str,
    spec: ServerSpec,
    environment: Mapping[str, str],
    added: Mapping[str, str],
    folder: Path,
    log: Path,
) -> Iterator[RunningServer]:
    """Run a server for the ``with`` block; afterwards all its processes have ended.

    Args:
        tenant: its name.
        spec: with a command.
        environment: of any tenant on the device.
        added: by the scheduler; for the server alone, not for what watches it.
        folder: in which the command runs.
        log: for its output.

    Raises:
        RunEnded: if it cannot be started.

    """
    port = str(free_port())
    command = [part.replace(PORT, port).replace(PYTHON, sys.executable) for part in spec.command]
    stop = Stop(signal.SIGTERM, patience_s=spec.stop_s)
    name = f"the server of tenant {tenant}"
    with ExitStack() as stack:
        try:
            service = stack.enter_context(
                run_service(
                    name, command, log, stop, environment, Contending(),
                    added=added, within=folder,
                )
            )  # fmt: skip
        except ServiceFailed as failed:
            raise RunEnded("failed", f"{failed} (its command: {' '.join(command)})") from None
        yield RunningServer(tenant, spec, spec.url.replace(PORT, port), service)
