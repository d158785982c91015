"""NVIDIA's Multi-Process Service: our own daemon, with private pipes, only for tenants."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from pytest_hwqueue.data.errors import NotProven, translated
from pytest_hwqueue.data.records.proof import Proof
from pytest_hwqueue.parts.processes.guardian import Order, Stop
from pytest_hwqueue.parts.processes.scratch import new_scratch
from pytest_hwqueue.parts.processes.services import (
    Service,
    ServiceFailed,
    run_service,
    service_environment,
)
from pytest_hwqueue.parts.schedulers import mps_daemons
from pytest_hwqueue.parts.schedulers.declaration import SchedulerSpec
from pytest_hwqueue.parts.schedulers.inside_evidence import InsideEvidence, refuse_interceptors
from pytest_hwqueue.parts.schedulers.mps_daemons import CONTROL, PIPES, VISIBLE
from pytest_hwqueue.parts.schedulers.syntax import Scheduler, SchedulerPaths, TenantRequest

# How long the control program may take to answer.
ANSWER_S = 10

# CUDA_MPS_CLIENT_PRIORITY, NVIDIA's MPS documentation: there are these two.
_NORMAL, _BELOW_NORMAL = 0, 1


class Mps(Scheduler):
    """MPS: plain, with client priorities, or with shares of the multiprocessors."""

    # Of the control daemon, besides -f.
    daemon_options: ClassVar[tuple[str, ...]] = ()

    def __init__(self, spec: SchedulerSpec, paths: SchedulerPaths) -> None:
        super().__init__(spec, paths)
        self._by_priority = spec.declaration.name == "mps-priority"
        self._by_share = spec.declaration.name == "mps-partition"
        shares = spec.parameters if self._by_share else {}
        self._shares = {name: float(text[:-1]) / 100 for name, text in shares.items()}
        self._pipes: str | None = None
        self._daemon: Service | None = None

    def pointless(self, tenants: Sequence[TenantRequest]) -> str | None:
        """Require something to distinguish: two priority levels, or shares of known tenants."""
        if self._by_priority:
            levels = {tenant.priority > 0 for tenant in tenants}
            same = self.equal_priorities(tenants)
            if same is None and len(tenants) > 1 and len(levels) == 1:
                priorities = [tenant.priority for tenant in tenants]
                return (
                    f"{self.mode} would change nothing: MPS knows two levels, priorities above 0 "
                    f"and the others, and the tenants' {priorities} are on one"
                )
            return same
        if unknown := self.unknown([tenant.name for tenant in tenants]):
            return unknown
        if self._by_share and all(self._share(tenant) is None for tenant in tenants):
            return (
                f"{self.mode} would change nothing: no tenant has a share; give one, such as "
                f"mps-partition:{tenants[-1].name}=80%"
            )
        return None

    def missing(self, device_kind: str, tenants: Sequence[TenantRequest]) -> str | None:
        """Require the driver's program, and a GPU that no other daemon serves."""
        if shutil.which(CONTROL) is None:
            return (
                f"{self.mode}: {CONTROL} is not on PATH; it comes with NVIDIA's driver (Ubuntu: "
                "nvidia-compute-utils). In a container it must be mounted with the driver"
            )
        reason = mps_daemons.serves_our_devices(self.paths.programs)
        return reason and f"{self.mode}: {reason}"

    @contextmanager
    def services(self, folder: Path) -> Iterator[None]:
        """Run a control daemon with its own pipes, logging into ``folder``."""
        control, reason = shutil.which(CONTROL), self.missing("cuda", [])
        if control is None or reason is not None:
            raise ServiceFailed(reason)
        folder.mkdir(parents=True, exist_ok=True)
        # The daemon's user alone may enter.
        pipes = new_scratch()
        added = {PIPES: str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(folder.resolve())}
        # By UUID only: with indices the daemon would renumber the devices for its clients,
        # which then count twice.
        if mps_daemons.devices_by_uuid(os.environ) is not None:
            added[VISIBLE] = os.environ[VISIBLE]
        environment = service_environment(added, VISIBLE)
        stop = Stop(signal.SIGTERM, [control], "quit\n")
        order = Order(
            [control, "-f", *self.daemon_options], environment, stop, contending=None, folder=pipes
        )
        with run_service("the MPS daemon", folder / "mps-control.log", order) as daemon:
            self._pipes, self._daemon = str(pipes), daemon
            try:
                daemon.wait_until(self._answers, "did not answer")
                self.prepare(daemon)
                yield
            finally:
                self._pipes = self._daemon = None

    def prepare(self, daemon: Service) -> None:
        """Set up in the daemon what tenants are given; it answers already.

        Raises:
            ServiceFailed: if the daemon refuses.

        """

    def environment(self, tenant: TenantRequest) -> dict[str, str]:
        """Return the daemon's pipes, and the tenant's priority or share."""
        if self._pipes is None:
            raise RuntimeError("an MPS client's environment is known only while the daemon runs")
        variables = {PIPES: self._pipes}
        if self._by_priority:
            level = _NORMAL if tenant.priority > 0 else _BELOW_NORMAL
            variables["CUDA_MPS_CLIENT_PRIORITY"] = str(level)
        share = self._share(tenant)
        if share is not None:
            variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = f"{100 * share:g}"
        return variables

    def check(self) -> None:
        """Check that the daemon is alive."""
        if self._daemon is not None:
            self._daemon.check()

    def proof(self, pids: Mapping[str, int], inside: Mapping[str, InsideEvidence]) -> Proof:
        """Require that the daemon's servers have all tenants' processes as clients."""
        self.check()
        refuse_interceptors(self.mode, inside)
        clients = {
            client: server
            for server in self._ask("get_server_list")
            for client in self._ask(f"get_client_list {server}")
        }
        missing = {name: pid for name, pid in pids.items() if pid not in clients}
        if missing:
            raise NotProven(
                f"{self.mode}: no MPS server has these tenants among its clients: {missing}; the "
                f"daemon's list of clients is {sorted(clients)}"
            )
        servers = sorted({clients[pid] for pid in pids.values()})
        evidence = f"processes {sorted(pids.values())} are clients of MPS server {servers}"
        seen = {f"multiprocessors seen by {name}": each.multiprocessors
                for name, each in inside.items() if each.multiprocessors is not None}  # fmt: skip
        return Proof(self.mode, evidence, self.seen_priorities(inside), counts=seen)

    def _share(self, tenant: TenantRequest) -> float | None:
        return self._shares.get(tenant.name, tenant.share) if self._by_share else None

    def _answers(self) -> bool:
        try:
            self._ask("get_server_list")
        except NotProven:
            return False
        return True

    def _ask(self, question: str) -> list[int]:
        """Ask the daemon for process ids, one per line."""
        lines = self.answer(question).split()
        if not all(line.isdecimal() for line in lines):
            raise NotProven(
                f"{self.mode}: {CONTROL} answered {question!r} with status 0 and "
                f"{' '.join(lines)!r}"
            )
        return [int(line) for line in lines]

    def answer(self, question: str) -> str:
        """Pass a line on to the daemon; return its answer.

        Raises:
            NotProven: if it does not answer, or with a status that is not 0.

        """
        pipes = self._pipes or os.environ.get(PIPES)
        if pipes is None:
            raise NotProven(f"{self.mode}: this process was not started under MPS ({PIPES})")
        said = f"{self.mode}: {CONTROL} did not answer {question!r}"
        with translated(NotProven, said, OSError, subprocess.TimeoutExpired):
            answer = subprocess.run(
                [CONTROL],
                input=f"{question}\n",
                env={**os.environ, PIPES: pipes},
                capture_output=True,
                text=True,
                timeout=ANSWER_S,
                check=False,
            )
        if answer.returncode != 0:
            said = " ".join((answer.stdout + answer.stderr).split())
            raise NotProven(
                f"{self.mode}: {CONTROL} answered {question!r} with status {answer.returncode} "
                f"and {said!r}"
            )
        return answer.stdout
