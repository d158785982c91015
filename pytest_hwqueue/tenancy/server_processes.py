"""The servers of a plan's tenants: started, watched, proven and ended by the parent.

What sends them requests is `server_tenant`, which alone needs the extra ``server``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from pytest_hwqueue.devices.kinds import kind_of
from pytest_hwqueue.harness.attempt import Found
from pytest_hwqueue.schedulers.inside_evidence import InsideEvidence
from pytest_hwqueue.schedulers.syntax import Proof, Scheduler
from pytest_hwqueue.servers.running import RunningServer, run_server
from pytest_hwqueue.tenancy.spec import Colocation, tenant_environment


class ServerProcesses:
    """The servers of a plan's tenants, if it has any.

    Attributes:
        urls: where the requests of each tenant with a server go; known while they run.

    """

    def __init__(self, plan: Colocation, scheduler: Scheduler, found: Found) -> None:
        """Prepare to start the servers.

        Args:
            plan: who runs, and how.
            scheduler: the opened mode.
            found: receives notes.

        """
        self._plan = plan
        self._scheduler = scheduler
        self._found = found
        self._specs = {each.name: each.server for each in plan.tenants if each.server is not None}
        self._running: dict[str, RunningServer] = {}
        self.urls: dict[str, str] = {}

    @contextmanager
    def running(self, folder: Path) -> Iterator[None]:
        """Run the servers for the ``with`` block, with their output in ``folder``.

        Raises:
            RunEnded: if one cannot be started.

        """
        requests = {request.name: request for request in self._plan.requests()}
        try:
            with ExitStack() as stack:
                for name, spec in self._specs.items():
                    self.urls[name] = spec.url
                    if spec.ours:
                        server = stack.enter_context(
                            run_server(
                                name,
                                spec,
                                tenant_environment(self._plan.device),
                                self._scheduler.environment(requests[name]),
                                Path(self._plan.folder),
                                folder / f"server-{name[:100]}.log",
                            )
                        )
                        self._running[name] = server
                        self.urls[name] = server.url
                yield
        finally:
            self._found.notes += filter(None, (each.stopped() for each in self._running.values()))

    @property
    def pids(self) -> dict[str, int]:
        """The process of each command that was started here, by tenant."""
        return {name: server.pid for name, server in self._running.items()}

    def check(self) -> None:
        """Raise RunEnded if a server that was started here has ended."""
        for server in self._running.values():
            server.check()

    def last_lines(self, name: str) -> str:
        """Return the last lines that a tenant's server wrote; empty if it was not started here."""
        return self._running[name].last_lines() if name in self._running else ""

    def workers(self) -> dict[str, dict[int, InsideEvidence]]:
        """Return the processes that do each server's work, by tenant.

        Raises:
            NotProven: if one has none.

        """
        kind = kind_of(self._plan.device)
        return {name: server.workers(kind) for name, server in self._running.items()}

    def proof(self, pids: Mapping[str, int], inside: Mapping[str, InsideEvidence]) -> Proof:
        """Prove that the mode is active in all tenants, and in all processes of their servers.

        Args:
            pids: process id of each tenant without a server, by name.
            inside: what each of these observed inside its own process.

        Raises:
            NotProven: if it is not.

        """
        workers = self.workers()
        first = {name: next(iter(found)) for name, found in workers.items()}
        seen = {name: found[first[name]] for name, found in workers.items()}
        said = []
        if pids or first:
            proof = self._scheduler.proof({**pids, **first}, {**inside, **seen})
        else:
            proof = Proof(self._scheduler.mode, "nothing here was started by us", ())
        for name, found in workers.items():
            for pid, evidence in found.items():
                if pid != first[name]:
                    self._scheduler.proof({name: pid}, {name: evidence})
            said.append(f"server of {name}: seen in processes {sorted(found)}")
        said += [
            f"server of {name}: not ours, it ran already at {spec.url}, and under which scheduler "
            "is not known"
            for name, spec in self._specs.items()
            if not spec.ours
        ]
        return replace(proof, evidence="; ".join([proof.evidence, *said]))
