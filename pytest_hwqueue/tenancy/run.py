"""One run of tenants together on a real device.

The parent holds the device's lease, starts what the scheduler needs, starts the tenants, waits
until all are warm, names a common window on the clock that all processes share (CLOCK_MONOTONIC),
watches while they serve, asks for proof while they still live, and ends them on every way out.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pytest_hwqueue.devices.fingerprint import Fingerprint
from pytest_hwqueue.devices.lease import lease
from pytest_hwqueue.errors import NotProven
from pytest_hwqueue.harness.open_loop import Window
from pytest_hwqueue.noise.names import seconds_of_a_cell
from pytest_hwqueue.noise.opening import Noise
from pytest_hwqueue.noise.running import RunningNoise, running
from pytest_hwqueue.processes.channel import Message
from pytest_hwqueue.processes.starting import ForkServer, worker_environment
from pytest_hwqueue.records.noise import NoiseRound
from pytest_hwqueue.schedulers.inside_evidence import InsideEvidence
from pytest_hwqueue.schedulers.mode import Proof, Scheduler, tenant_requests
from pytest_hwqueue.tenancy.advice import with_advice
from pytest_hwqueue.tenancy.identity import identify
from pytest_hwqueue.tenancy.process import TenantProcess
from pytest_hwqueue.tenancy.spec import Colocation
from pytest_hwqueue.tenancy.visible import one_visible
from pytest_hwqueue.workloads.registry import ahead

# Stage, how much of it is done, how much there is to do.
Progress = Callable[[str, int, int], None]
Problem = Literal["failed", "timeout", "invalid", "skipped"]

# From the word to all tenants until the window begins.
_LEAD_NS = 500_000_000
_OBSERVE_S = 0.02
_SHOW_S = 0.2
_IMPORT_MODEL = "pytest_hwqueue.workloads.tenants.weights:import_model"
_STOPPING_S = 30.0


class Ended(Exception):
    """The co-location is over before its time; the text says why."""

    def __init__(self, status: Problem, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Limits:
    """Longest times, in seconds; beyond them tenants count as hanging.

    Attributes:
        ready_s: from the start until all tenants are warm.
        finish_s: from the end of the window and its grace until all have told what they got.

    """

    ready_s: float = 300.0
    finish_s: float = 300.0


@dataclass
class Found:
    """What is known so far; a failure keeps it."""

    stage: str = "start"
    fingerprint: Fingerprint | None = None
    proof: Proof | None = None
    # The window that there was; shorter than was planned where tracing could not go on.
    window: Window | None = None
    messages: dict[str, Message] = field(default_factory=dict)
    exits: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    noise: NoiseRound | None = None


def tenant_environment(device: str) -> dict[str, str]:
    """Return the environment of tenants of a real device before a scheduler adds to it.

    Raises:
        DeviceError: if the user's setting does not make the device visible.

    """
    kind, _, index = device.partition(":")
    plain = worker_environment(os.environ)
    plain.update(one_visible(kind, int(index or 0), plain))
    return plain


def tenant_server(device: str, workloads: Iterable[str], models: Iterable[str]) -> ForkServer:
    """Start a server that forks tenants.

    Args:
        device: label of the real device that they share.
        workloads: names of those they run, imported ahead.
        models: likewise.

    """
    imported = [*ahead(workloads), *((_IMPORT_MODEL, name) for name in models)]
    return ForkServer(tenant_environment(device), imported)


class Run:
    """One run on a real device.

    Args:
        plan: who runs, and how.
        scheduler: the mode, open.
        progress: told of it.
        folder: takes what tenants and services write.
        limits: longest times.
        found: takes what becomes known.
        traced: whether each tenant also writes into the folder what was seen of it.
        beside: the noise that runs beside the window; None where noise is no question.
        server: forks the tenants that need no environment of their own.

    """

    def __init__(
        self,
        plan: Colocation,
        scheduler: Scheduler,
        progress: Progress,
        folder: Path,
        limits: Limits,
        found: Found,
        *,
        traced: bool = False,
        beside: Noise | None = None,
        server: ForkServer | None = None,
    ) -> None:
        self._plan = plan
        self._noise = beside
        self._server = server
        self._scheduler = scheduler
        self._progress = progress
        self._folder = folder
        self._limits = limits
        self._found = found
        self._trace = str(folder.absolute()) if traced else None
        self._requests = {
            request.name: request
            for request in tenant_requests((t.name, t.priority, t.share) for t in plan.tenants)
        }
        self._inbox: queue.SimpleQueue[tuple[TenantProcess, Message | None]] = queue.SimpleQueue()
        self._processes: list[TenantProcess] = []
        self._stages = dict.fromkeys(self._requests, "start")
        # A long log comes in parts.
        self._times: dict[str, dict[str, list[int]]] = {
            name: {"scheduled_ns": [], "started_ns": [], "finished_ns": []}
            for name in self._requests
        }
        self._shown = 0.0

    def run(self) -> None:
        """Measure; raise Ended, or whatever went wrong."""
        plan, scheduler, found = self._plan, self._scheduler, self._found
        found.stage = "open device"
        identity = identify(plan.device)
        found.fingerprint = identity.fingerprint
        with lease(identity.lease_key, on_wait=lambda text: self._progress(text, 0, 0)):
            found.stage = "start services"
            self._folder.mkdir(parents=True, exist_ok=True)
            with scheduler.services(self._folder):
                found.stage = "start tenants"
                with self._tenants():
                    self._measure()

    def _measure(self) -> None:
        found = self._found
        pids = {name: process.pid for process in self._processes for name in process.tenants}
        try:
            ready = self._warm_up()
            longest_ns = self._longest_ns(ready)
            with self._beside(pids, longest_ns) as noise:
                self._serve(pids, longest_ns)
                if noise is not None:
                    found.noise = noise.end_round()
        except Ended as ended:
            # A tenant may have died of what happened to a service: that is then the cause.
            self._add_cause(ended, pids)
            raise
        found.stage = "proof"
        inside = {name: InsideEvidence(**ready[name]["evidence"]) for name in self._requests}
        found.proof = self._scheduler.proof(pids, inside)
        found.stage = "stop"
        for process in self._processes:
            process.send("exit")
        for process in self._processes:
            process.finish(_STOPPING_S)
            if not process.ended_well:
                names = ", ".join(process.tenants)
                found.notes.append(f"after the measuring, {names} {process.how_it_ended()}")

    def _warm_up(self) -> Mapping[str, Message]:
        self._found.stage = "warm-up"
        return self._collect("ready", time.monotonic() + self._limits.ready_s, self._watch_warm_up)

    def _longest_ns(self, ready: Mapping[str, Message]) -> int:
        """Return how long the window is: as planned, unless a tenant's trace would not hold it."""
        planned_ns = self._plan.duration_ns
        name = min(ready, key=lambda name: ready[name]["longest_ns"])
        longest_ns: int = ready[name]["longest_ns"]
        if longest_ns >= planned_ns:
            return planned_ns
        self._found.notes.append(
            f"traced for {longest_ns / 1e9:.2g} s, not {planned_ns / 1e9:.2g} s: tenant {name} "
            "runs too many kernels for its trace"
        )
        return longest_ns

    def _beside(
        self, pids: Mapping[str, int], window_ns: int
    ) -> AbstractContextManager[RunningNoise | None]:
        """Let the noise run from where all tenants are warm to where all have served."""
        if self._noise is None:
            return nullcontext()
        self._found.stage = f"start noise {self._noise.name}"
        logs = self._folder / "noise"
        logs.mkdir()
        # Tenants of one process share its id; the window has its lead, and a grace at its end.
        processes = list(dict.fromkeys(pids.values()))
        return running(self._noise, processes, logs, seconds_of_a_cell(window_ns / 1e9))

    def _serve(self, pids: Mapping[str, int], duration_ns: int) -> None:
        self._found.stage = "measure"
        begin_ns = time.monotonic_ns() + _LEAD_NS
        window = self._found.window = Window(begin_ns, begin_ns + duration_ns)
        for process in self._processes:
            process.send("start", begin_ns=window.begin_ns, end_ns=window.end_ns)

        def watch() -> None:
            self._scheduler.check()
            self._scheduler.observe(pids)
            self._show_window(window)

        over_s = (window.end_ns + window.grace_ns) / 1e9
        self._collect("result", over_s + self._limits.finish_s, watch)

    @contextmanager
    def _tenants(self) -> Iterator[None]:
        """Start the tenants' processes; on every way out all have ended."""
        try:
            self._start()
            yield
        finally:
            for process in self._processes:
                process.kill("the co-location ended")
            for process in self._processes:
                process.close()
                for name in process.tenants:
                    self._found.exits[name] = process.how_it_ended()
                    if not process.ended_well:
                        self._found.outputs.setdefault(name, process.last_lines())

    def _start(self) -> None:
        plan = self._plan
        together = plan.placement == "threads"
        names = list(self._requests)
        asked = self._scheduler.priorities([tenant.priority for tenant in plan.tenants])
        priorities = dict(zip((tenant.name for tenant in plan.tenants), asked, strict=True))
        for members in [names] if together else [[name] for name in names]:
            log = self._folder / f"tenant-{'-'.join(members)[:100]}.log"
            process = TenantProcess(
                members, self._environment(members[0]), log, self._inbox, self._server
            )
            self._processes.append(process)
            process.send(
                "run", plan=plan.to_json(), tenants=members, stream_priorities=priorities,
                trace=self._trace,
            )  # fmt: skip

    def _environment(self, name: str) -> dict[str, str]:
        """A tenant's environment: the user's, its one device, and what the scheduler adds."""
        plain = tenant_environment(self._plan.device)
        plain.update(self._scheduler.environment(self._requests[name]))
        return plain

    def _collect(
        self, kind: str, deadline: float, idle: Callable[[], None]
    ) -> Mapping[str, Message]:
        """Wait for a message of this kind from every tenant; call ``idle`` some 50 times a second.

        Raises:
            Ended: if one fails or dies, or the deadline (time.monotonic()) passes.

        """
        found = self._found.messages if kind == "result" else {}
        while len(found) < len(self._requests):
            idle()
            try:
                process, message = self._inbox.get(timeout=_OBSERVE_S)
            except queue.Empty:
                if time.monotonic() > deadline:
                    self._time_out(set(self._requests) - set(found))
                continue
            if message is None:
                self._died(process)
            elif message["kind"] == "failed":
                self._failed(process, message)
            elif message["kind"] == "stage":
                self._stages[message["tenant"]] = message["stage"]
            elif message["kind"] == "times":
                for name, values in self._times[message["tenant"]].items():
                    values.extend(message[name])
            elif message["kind"] == kind:
                found[message["tenant"]] = {**self._times[message["tenant"]], **message}
        return found

    def _died(self, process: TenantProcess) -> None:
        names = " and ".join(process.tenants)
        if self._found.stage == "warm-up":
            self._found.stage = self._stages[process.tenants[-1]]
        how = process.how_it_ended()
        raise Ended("failed", with_advice(f"tenant {names} {how}", process.last_lines()))

    def _failed(self, process: TenantProcess, message: Message) -> None:
        self._found.stage = message["stage"]
        name = message["tenant"]
        if message["served"] is not None:
            self._found.messages[name] = {**self._times[name], **message["served"]}
        if len(process.tenants) == 1:
            # It ends by itself; the others are ended from here.
            process.how_it_ended()
        output = self._found.outputs[name] = process.last_lines()
        raise Ended("failed", with_advice(f"tenant {name}: {message['reason']}", output))

    def _time_out(self, missing: set[str]) -> None:
        for process in self._processes:
            late = missing & set(process.tenants)
            if late:
                self._found.outputs.update(dict.fromkeys(late, process.dump_stacks()))
        names = [name for name in self._requests if name in missing]
        if self._found.stage == "measure":
            late_s = self._limits.finish_s
            text = f"{' and '.join(names)} not done {late_s:g} s after the window and its grace"
        else:
            stages = [f"{name} (in {self._stages[name]})" for name in names]
            text = f"{' and '.join(stages)} not warm {self._limits.ready_s:g} s after the start"
        raise Ended("timeout", f"tenant {text}")

    def _add_cause(self, ended: Ended, pids: Mapping[str, int]) -> None:
        try:
            self._scheduler.observe(pids)
        except NotProven as cause:
            raise Ended("failed", f"{cause} ({ended})") from ended

    def _watch_warm_up(self) -> None:
        # Tenants whose server has died may wait for it for as long as they are let.
        self._scheduler.check()
        done = sum(stage == "barrier" for stage in self._stages.values())
        self._show("warm-up", done, len(self._stages))

    def _show_window(self, window: Window) -> None:
        gone_ns = min(max(0, time.monotonic_ns() - window.begin_ns), window.duration_ns)
        self._show("measure", gone_ns // 10**9, -(-window.duration_ns // 10**9))

    def _show(self, stage: str, done: int, planned: int) -> None:
        if time.monotonic() - self._shown >= _SHOW_S:
            self._shown = time.monotonic()
            self._progress(stage, done, planned)
