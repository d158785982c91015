"""The servers of a plan's tenants: started, watched, proven and ended by the parent.

What sends them requests is `server_tenant`, which alone needs the extra ``server``.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from pytest_hwqueue.data.errors import NotProven, translated
from pytest_hwqueue.data.records.kinds import capabilities_of, kind_of
from pytest_hwqueue.data.records.plan import Colocation, Server
from pytest_hwqueue.data.records.proof import Proof
from pytest_hwqueue.data.records.tenants import NOT_OURS, ServerOrigin
from pytest_hwqueue.data.redaction import redacted, redacted_command, remove_known
from pytest_hwqueue.engine.cell.attempt import RunDraft, RunEnded
from pytest_hwqueue.engine.tenants.identified import tenant_environment
from pytest_hwqueue.engine.tenants.server_variables import expand
from pytest_hwqueue.engine.tenants.servers import (
    MOST_PATH_BYTES,
    PORT,
    PYTHON,
    SOCKET,
    places,
    secrets_of_plan,
)
from pytest_hwqueue.parts.processes.guardian import Order, Stop
from pytest_hwqueue.parts.processes.process_table import Place, is_contained, processes_under
from pytest_hwqueue.parts.processes.scratch import new_scratch
from pytest_hwqueue.parts.processes.services import Service, ServiceFailed, free_port, run_service
from pytest_hwqueue.parts.schedulers.inside_evidence import InsideEvidence, gather_outside
from pytest_hwqueue.parts.schedulers.syntax import Scheduler, tenant_requests

_KILLED = -signal.SIGKILL

_CURE = (
    "write {} for a {} one, and give a server that runs already, or that a daemon such as Docker's "
    "starts, by its {} alone"
)
_CURE_OF_PORT = _CURE.format(f"{PORT} into the command and its url", "free", "url")
_CURE_OF_SOCKET = _CURE.format(f"{SOCKET} into the command", "new", "socket")


class ServerProcesses:
    """The servers of a plan's tenants, if it has any.

    Attributes:
        reached: each tenant's server, its port and socket filled in; known while they run.
        origins: whose server answered each of them, as far as it is known.

    """

    def __init__(self, plan: Colocation, scheduler: Scheduler, draft: RunDraft) -> None:
        """Prepare to start the servers.

        Args:
            plan: who runs, and how.
            scheduler: the opened mode.
            draft: receives notes.

        """
        self._plan = plan
        self._scheduler = scheduler
        self._draft = draft
        self._specs = plan.servers
        self._services: dict[str, Service] = {}
        # Of those with a new unix socket.
        self._folders: dict[str, Path] = {}
        self.reached: dict[str, Server] = {}
        self.origins: dict[str, ServerOrigin] = {
            name: "url" for name, spec in self._specs.items() if not spec.ours
        }

    def begin(self, plan: Colocation, draft: RunDraft) -> None:
        """Begin another window of the same tenants; notes are of it from now on."""
        self._plan, self._draft = plan, draft

    @contextmanager
    def running(self, folder: Path) -> Iterator[None]:
        """Run the servers for the ``with`` block, with their output in ``folder``.

        When they have ended, secrets are removed from it, and from that of other processes there.
        Until then the folder is this user's alone: a filter that the output went through would be
        another process to wait for, in the window too.

        Raises:
            RunEnded: if one cannot be started.

        """
        secrets = secrets_of_plan(self._plan)
        before = self._close_to_others(folder) if secrets else None
        try:
            with ExitStack() as stack:
                for name, spec in self._specs.items():
                    self._reach(name, spec)
                    if spec.ours:
                        self._start(name, self.reached[name], folder, stack)
                yield
        finally:
            self._draft.notes += [
                f"the server of tenant {name} did not end within {self._specs[name].stop_s:g} s of "
                "SIGTERM, and was killed"
                for name, service in self._services.items()
                if service.status == _KILLED
            ]
            if self._remove_secrets(folder, secrets) and before is not None:
                folder.chmod(before)

    def _close_to_others(self, folder: Path) -> int | None:
        """Let no other user into a folder; return its mode before, None if it is as it was."""
        before = stat.S_IMODE(folder.stat().st_mode)
        try:
            folder.chmod(before & stat.S_IRWXU)
        except OSError as error:
            self._draft.notes.append(
                f"who may read {folder} could read secrets of servers in its logs while they ran, "
                f"since it could not be closed to others ({error.strerror or error})"
            )
            return None
        return before

    def _remove_secrets(self, folder: Path, secrets: Collection[str]) -> bool:
        """Remove secrets from the output; return whether none is left."""
        removed = True
        for log in sorted(folder.glob("*.log")):
            try:
                remove_known(log, secrets)
            except OSError as error:
                removed = False
                self._draft.notes.append(
                    f"{log.name} may hold secrets of servers, since it cannot be rewritten "
                    f"({error.strerror or error}): remove it"
                )
        return removed

    def _reach(self, name: str, spec: Server) -> None:
        """Fill in a server's port and socket: new ones, where its command takes them."""
        path = spec.socket
        if path == SOCKET:
            # Of its own, which no other user gets into, and where none is left over.
            self._folders[name] = new_scratch()
            path = str(self._folders[name] / "socket")
            if len(os.fsencode(path)) > MOST_PATH_BYTES:
                raise RunEnded(
                    "failed",
                    f"the server of tenant {name}: {path} is longer than the {MOST_PATH_BYTES} "
                    "bytes of a unix socket's path: set TMPDIR to a shorter folder",
                )
        elif path is not None:
            path = os.path.normpath(Path(self._plan.folder).absolute() / path)
        filled = {PORT: str(free_port()) if spec.ours else PORT, SOCKET: path or SOCKET}
        command = spec.command
        for place, value in filled.items():
            command = tuple(part.replace(place, value) for part in command)
        url = spec.url.replace(PORT, filled[PORT])
        self.reached[name] = replace(spec, url=url, socket=path, command=command)

    def _start(self, name: str, spec: Server, folder: Path, stack: ExitStack) -> None:
        command = [part.replace(PYTHON, sys.executable) for part in spec.command]
        (request,) = (each for each in tenant_requests(self._plan.tenants) if each.name == name)
        # What the mode adds is for the server alone, not for what watches it.
        environment = tenant_environment(self._plan.device)
        order = Order(
            [expand(part) for part in command],
            {**environment, **self._scheduler.environment(request)},
            Stop(signal.SIGTERM, patience_s=spec.stop_s),
            within=Path(self._plan.folder),
            folder=self._folders.get(name),
        )
        log = folder / f"server-{name[:100]}.log"
        service = run_service(f"the server of tenant {name}", log, order, watched_in=environment)
        try:
            self._services[name] = stack.enter_context(service)
        except ServiceFailed as failed:
            shown = redacted_command(command)
            raise RunEnded("failed", f"{failed} (its command: {shown})") from None

    def check(self) -> None:
        """Raise RunEnded if a server that was started here has ended."""
        for service in self._services.values():
            try:
                service.check()
            except ServiceFailed as failed:
                raise RunEnded("failed", str(failed)) from None

    def refuse_strangers(self) -> None:
        """Raise NotProven if requests to a server that was started here reach another program."""
        self._look_at_places(Service.refuse_strangers)

    def require_listening(self) -> None:
        """Raise NotProven unless all that was started here listens where its requests go, alone."""
        self._look_at_places(Service.require_listening)

    def _look_at_places(self, look: Callable[[Service, Place], None]) -> None:
        for name, service in self._services.items():
            server = self.reached[name]
            try:
                for place in places(server):
                    look(service, place)
            except NotProven as error:
                cure = _CURE_OF_PORT if server.socket is None else _CURE_OF_SOCKET
                raise NotProven(f"{error}; {cure}") from None

    def last_lines(self, name: str) -> str:
        """Return the last lines that a tenant's server wrote; empty if it was not started here."""
        return self._services[name].last_lines() if name in self._services else ""

    def workers(self) -> dict[str, dict[int, InsideEvidence]]:
        """Return the processes that do each server's work, by tenant, as seen from outside.

        They are those of its process tree, including orphans and new sessions, that have the
        device's driver mapped; on the CPU, all of the tree.

        Raises:
            NotProven: if one has none, or they may not be looked at.

        """
        kind = kind_of(self._plan.device)
        driver = capabilities_of(kind).driver_library
        workers: dict[str, dict[int, InsideEvidence]] = {}
        for name, service in self._services.items():
            found = workers[name] = {}
            tree = processes_under(service.guardian_pid)
            for pid in tree:
                said = f"the server of tenant {name}: process {pid} may not be looked at"
                with translated(NotProven, said, PermissionError):
                    evidence = gather_outside(pid, service.log)
                if evidence is not None and (not driver or evidence.mapped(driver)):
                    found[pid] = evidence
            if not found:
                raise NotProven(
                    f"the server of tenant {name}: none of its {len(tree)} processes has {driver} "
                    f"mapped, so that none works on {kind}"
                )
        return workers

    def proof(self, pids: Mapping[str, int], inside: Mapping[str, InsideEvidence]) -> Proof | None:
        """Prove that the mode is active in all tenants, and in all processes of their servers.

        Servers that are not ours are left out, and `origins` and a note say which.

        Args:
            pids: process id of each tenant without a server, by name.
            inside: what each of these observed inside its own process.

        Returns:
            the proof; None if nothing here is ours.

        Raises:
            NotProven: if it is not, or if others answer for a server that was started here.

        """
        self.require_listening()
        workers = self.workers()
        for name, found in workers.items():
            self.origins[name] = "container" if any(map(is_contained, found)) else "command"
        for name, origin in self.origins.items():
            if origin in NOT_OURS:
                self._draft.notes.append(
                    f"the server of tenant {name} is {NOT_OURS[origin]}, so under which scheduler "
                    f"is not known ({redacted(self.reached[name].url)})"
                )
        workers = {name: found for name, found in workers.items() if self._is_ours(name)}
        first = {name: next(iter(found)) for name, found in workers.items()}
        seen = {name: found[first[name]] for name, found in workers.items()}
        if not (pids or first):
            if self._scheduler.spec.declaration.needs_environment:
                raise NotProven(f"{self._scheduler.mode} changed nothing: no tenant is ours")
            return None
        proof = self._scheduler.proof({**pids, **first}, {**inside, **seen})
        said = [proof.evidence]
        for name, found in workers.items():
            for pid, evidence in found.items():
                if pid != first[name]:
                    self._scheduler.proof({name: pid}, {name: evidence})
            said.append(f"server of {name}: seen in processes {sorted(found)}")
        return replace(proof, evidence="; ".join(said))

    def _is_ours(self, name: str) -> bool:
        return self.origins[name] not in NOT_OURS
