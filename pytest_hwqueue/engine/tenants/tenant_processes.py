"""The processes of tenants: starts them, follows them until all have reported, ends them."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pydantic_core import to_jsonable_python

from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.data.records.plan import FEWER_KERNELS, LONGER_WINDOW, Colocation
from pytest_hwqueue.data.records.proof import Proof
from pytest_hwqueue.data.records.tenants import LOOK_ERROR, DeviceUse, TenantResult
from pytest_hwqueue.engine.cell.attempt import Problem, RunDraft, RunEnded
from pytest_hwqueue.engine.tenants.identified import tenant_environment
from pytest_hwqueue.engine.tenants.server_processes import ServerProcesses
from pytest_hwqueue.engine.tenants.tenant_calls import Ready, Start, TenantCalls
from pytest_hwqueue.engine.tenants.tenant_cells import with_advice
from pytest_hwqueue.parts.processes.channel import Message, ProcessEnded
from pytest_hwqueue.parts.processes.measured_process import MeasuredProcess
from pytest_hwqueue.parts.processes.remote import answer_to, remote
from pytest_hwqueue.parts.processes.starting import ForkServer
from pytest_hwqueue.parts.schedulers.priority_probe import ProbeClient
from pytest_hwqueue.parts.schedulers.syntax import Scheduler, tenant_requests
from pytest_hwqueue.parts.workloads.registry import ahead

_OBSERVE_S = 0.02
_IMPORT_MODEL = "pytest_hwqueue.parts.workloads.tenants.models:import_model"
_STOPPING_S = 30.0
_LAST_LINES = 30

# Who live in one process: one tenant, or several as threads.
Members = tuple[str, ...]


@dataclass(frozen=True)
class Limits:
    """Time limits in seconds, beyond which tenants count as hanging.

    Attributes:
        ready_s: from the start until all tenants are warm.
        finish_s: from the end of the window and its grace until all have reported.

    """

    ready_s: float = 300.0
    finish_s: float = 300.0


@dataclass
class ColocationDraft(RunDraft):
    """What is known about the tenants so far.

    Attributes:
        duration_s: length of the window; shorter than planned if tracing could not continue, a
            look decided, or all requests that were counted were served.
        look_error: of the look at its end.
        mean_power_w: of the device in the window; None if nobody counts its energy.

    """

    duration_s: float = 0.0
    look_error: float = LOOK_ERROR
    proof: Proof | None = None
    tenants: list[TenantResult] = field(default_factory=list)
    device_use: DeviceUse | None = None
    mean_power_w: Estimate | None = None

    def counted(
        self, plan: Colocation, served_ns: int | None, results: Mapping[str, TenantResult]
    ) -> None:
        """Take over when tenants that count their requests had served all, and so the window ended.

        Args:
            plan: who counts how many.
            served_ns: when, from the window's start; None if it ended by time.
            results: what each tenant has got.

        Raises:
            RunEnded: if a tenant had not begun by then.

        """
        if served_ns is not None:
            self.duration_s = served_ns / 1e9
            if reason := plan.too_short(self.duration_s, "give more requests"):
                raise RunEnded("invalid", f"all requests were served too soon: {reason}")
            return
        for name, requests in plan.counted.items():
            if results[name].until_ns is None:
                done = results[name].issued
                cut = self.duration_s < plan.duration_s
                self.notes.append(
                    f"tenant {name}: {done} of {requests} requests until the window ended after "
                    f"{self.duration_s:g} s: {FEWER_KERNELS if cut else LONGER_WINDOW}"
                )


def tenant_server(device: str, workloads: Iterable[str], models: Iterable[str]) -> ForkServer:
    """Start a server that forks tenants.

    Args:
        device: label of the real device that they share.
        workloads: names of the workloads to import ahead.
        models: names of the models to import ahead.

    """
    imported = [*ahead(workloads), *((_IMPORT_MODEL, name) for name in models)]
    return ForkServer(tenant_environment(device), imported)


class TenantProcesses(TenantCalls):
    """The processes of a plan's tenants.

    Attributes:
        are_set_up: names of the tenants that are.
        are_ready: what those tell that are warm for the current window, by name.
        results: of those whose current window is over, by name.

    """

    def __init__(
        self,
        plan: Colocation,
        scheduler: Scheduler,
        limits: Limits,
        draft: ColocationDraft,
        servers: ServerProcesses,
    ) -> None:
        """Prepare to follow the tenants.

        Args:
            plan: who runs, and how.
            scheduler: the opened mode.
            limits: time limits.
            draft: receives what becomes known.
            servers: those of tenants whose processes only generate load.

        """
        self._plan = plan
        self._servers = servers
        self._scheduler = scheduler
        self._limits = limits
        self._draft = draft
        self._requests = {request.name: request for request in tenant_requests(plan.tenants)}
        self._inbox: queue.SimpleQueue[tuple[Members, Message | None]] = queue.SimpleQueue()
        self._processes: dict[Members, MeasuredProcess] = {}
        self._stages = dict.fromkeys(self._requests, "start")
        self._answers: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.are_set_up: set[str] = set()
        self.are_ready: dict[str, Ready] = {}
        self.results: dict[str, TenantResult] = {}
        self._exits: dict[str, str] = {}
        self._outputs: dict[str, str] = {}

    @property
    def pids(self) -> dict[str, int]:
        """The process id of each tenant; tenants in threads share one."""
        return {name: process.pid for members, process in self._processes.items()
                for name in members}  # fmt: skip

    @contextmanager
    def running(
        self, folder: Path, trace: Path | None, server: ForkServer | None
    ) -> Iterator[None]:
        """Start the tenants for the ``with`` block; afterwards all have ended, with known results.

        Args:
            folder: for their output.
            trace: folder for each tenant's trace; None to trace nothing.
            server: forks those that need no special environment.

        """
        plan, scheduler = self._plan, self._scheduler
        urgency = [tenant.priority for tenant in plan.tenants]
        priorities = dict(zip(self._requests, scheduler.priorities(urgency), strict=True))
        partitions = {
            name: scheduler.partition(request, request.priority)
            for name, request in self._requests.items()
        }
        together = plan.placement == TenantPlacement.THREADS
        each = [(name,) for name in self._requests]
        try:
            for members in [tuple(self._requests)] if together else each:
                process = self._processes[members] = MeasuredProcess.start(
                    server,
                    "pytest_hwqueue.engine.tenants.tenant",
                    self._environment(members[0]),
                    folder / f"tenant-{'-'.join(members)[:100]}.log",
                )
                process.deliver_to(self._inbox, members)
                start = Start(plan, members, priorities, partitions, self._servers.reached, trace)
                _send(process, "run", start=to_jsonable_python(start))
            yield
        finally:
            for process in self._processes.values():
                process.kill("the co-location ended")
            for members, process in self._processes.items():
                process.close()
                for name in members:
                    self._exits[name] = process.how_it_ended()
                    if not process.ended_well:
                        self._outputs.setdefault(name, self._last_lines(name, process))
            self._draft.tenants = self.outcome()

    def begin(self, plan: Colocation, draft: ColocationDraft) -> None:
        """Begin another window, whose load may differ; what becomes known is of it from now on."""
        self._plan, self._draft = plan, draft
        self.are_ready.clear()
        self.results.clear()

    def outcome(self) -> list[TenantResult]:
        """Return what each tenant has got in the current window, and how those that ended did."""
        return [self._result(tenant.name) for tenant in self._plan.tenants]

    def send(self, kind: str, **content: object) -> None:
        """Send a command to all tenants."""
        for process in self._processes.values():
            _send(process, kind, **content)

    def stop(self) -> None:
        """Ask all tenants to exit; end those that do not, and note it."""
        self.send("exit")
        for members, process in self._processes.items():
            process.finish(_STOPPING_S)
            if not process.ended_well:
                names = ", ".join(members)
                ended = process.how_it_ended()
                self._draft.notes.append(f"after the measuring, {names} {ended}")

    def client(self, name: str, within_s: float, idle: Callable[[], None]) -> ProbeClient:
        """Return a tenant that is set up, for the priority probe.

        Its methods raise NotProven if it cannot do a step, and RunEnded as `wait_for` does.

        Args:
            name: of the tenant.
            within_s: time for each step.
            idle: as `wait_for` calls it.

        """
        members = self._members(name)

        def answer() -> Message:
            deadline = time.monotonic() + within_s
            while self._answers.empty():
                self._next(deadline, idle, {name})
            return self._answers.get()

        return remote(ProbeClient, partial(_send, self._processes[members], to=name), answer)

    def wait_for(self, reported: Container[str], deadline: float, idle: Callable[[], None]) -> None:
        """Wait until all tenants have reported; call ``idle`` some 50 times a second.

        Args:
            reported: `are_set_up`, `are_ready` or `results`.
            deadline: of time.monotonic().
            idle: called meanwhile.

        Raises:
            RunEnded: if a tenant fails or dies, or the deadline passes.

        """
        while missing := {name for name in self._requests if name not in reported}:
            self._next(deadline, idle, missing)

    def _next(self, deadline: float, idle: Callable[[], None], awaited: Set[str]) -> None:
        idle()
        try:
            members, message = self._inbox.get(timeout=_OBSERVE_S)
        except queue.Empty:
            if time.monotonic() > deadline:
                self._time_out(awaited)
            return
        if message is None:
            self._died(members)
        elif message["kind"] == "answer":
            self._answers.put(message)
        else:
            answer_to(message, TenantCalls, self)

    def entered(self, tenant: str, stage: str) -> None:
        """Note where a tenant is, should it get no further."""
        self._stages[tenant] = stage

    def set_up(self, tenant: str) -> None:
        """Note that a tenant is set up."""
        self.are_set_up.add(tenant)

    def ready(self, tenant: str, ready: Ready) -> None:
        """Note that a tenant is warm."""
        self.are_ready[tenant] = ready

    def served(self, tenant: str, result: TenantResult) -> None:
        """Take a tenant's result."""
        self.results[tenant] = result

    def _members(self, name: str) -> Members:
        return next(members for members in self._processes if name in members)

    def _result(self, name: str) -> TenantResult:
        result = self.results.get(name, TenantResult(name=name))
        origin = {"origin": self._servers.origins.get(name)}
        return result.model_copy(
            update={
                "server": result.server and result.server.model_copy(update=origin),
                "exit": self._exits.get(name, ""),
                "last_output": self._outputs.get(name, ""),
            }
        )

    def _environment(self, name: str) -> dict[str, str]:
        """Return a tenant's environment: the user's, its one device, the scheduler's additions.

        These are for whoever works on the device: not for a generator of load, but for its server.
        """
        plain = tenant_environment(self._plan.device)
        if name not in self._plan.servers:
            plain.update(self._scheduler.environment(self._requests[name]))
        return plain

    def _died(self, members: Members) -> None:
        process = self._processes[members]
        if self._draft.stage == "warm-up":
            self._draft.stage = self._stages[members[-1]]
        how = f"tenant {' and '.join(members)} {process.how_it_ended()}"
        raise RunEnded("failed", with_advice(how, process.last_lines(_LAST_LINES)))

    def failed(
        self, tenant: str, stage: str, status: Problem, reason: str, served: TenantResult | None
    ) -> None:
        """End the run, and keep what the tenant has served."""
        members = self._members(tenant)
        process = self._processes[members]
        self._draft.stage = stage
        if served is not None:
            self.results[tenant] = served
        if len(members) == 1:
            # It ends by itself; the others are ended from here.
            process.how_it_ended()
        output = self._outputs[tenant] = self._last_lines(tenant, process)
        raise RunEnded(status, with_advice(f"tenant {tenant}: {reason}", output))

    def _last_lines(self, name: str, process: MeasuredProcess) -> str:
        """Return what a tenant wrote last: its server, where it has one."""
        if name in self._plan.servers:
            return self._servers.last_lines(name)
        return process.last_lines(_LAST_LINES)

    def _time_out(self, missing: Set[str]) -> None:
        for members, process in self._processes.items():
            late = missing & set(members)
            if late:
                self._outputs.update(dict.fromkeys(late, process.dump_stacks()))
        names = [name for name in self._requests if name in missing]
        if self._draft.stage == "measure":
            late_s = self._limits.finish_s
            text = f"{' and '.join(names)} not done {late_s:g} s after the window and its grace"
        elif self._draft.stage == "priority probe":
            text = f"{' and '.join(names)} did not answer the priority probe"
        else:
            stages = [f"{name} (in {self._stages[name]})" for name in names]
            text = f"{' and '.join(stages)} not warm {self._limits.ready_s:g} s after the start"
        raise RunEnded("timeout", f"tenant {text}")


def _send(process: MeasuredProcess, kind: str, **content: object) -> None:
    # A process that has gone cannot be reached; the inbox says so.
    with suppress(ProcessEnded):
        process.send(kind, **content)
