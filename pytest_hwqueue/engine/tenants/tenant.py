"""A tenant process: set up; for each window warm up, wait at the barrier and serve; stop.

It imports nothing heavy before it has its own process group. It gets commands and makes `calls`
through two pipes; its output goes to its log.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from pytest_hwqueue.data.errors import (
    InvalidMeasurement,
    NotProven,
    OwnCodeFailed,
    speaks_for_itself,
)
from pytest_hwqueue.data.records.plan import Tenant
from pytest_hwqueue.parts.processes.channel import Channel, Message, ProcessEnded
from pytest_hwqueue.parts.processes.unwatched import stop_coverage

if TYPE_CHECKING:
    from pytest_hwqueue.data.records.counters import CpuCounters
    from pytest_hwqueue.data.records.tenants import TenantResult
    from pytest_hwqueue.engine.causes.tenant_tracer import TenantTracer, Traces
    from pytest_hwqueue.engine.cell.attempt import Problem
    from pytest_hwqueue.engine.tenants.looks import ShownTimes
    from pytest_hwqueue.engine.tenants.open_loop import Demand, Load, Window
    from pytest_hwqueue.engine.tenants.tenant_calls import NextWindow, Ready, Start
    from pytest_hwqueue.parts.schedulers.priority_probe import ProbeClient

_SETTING_UP = threading.Lock()
# Python lets a thread keep the interpreter for 5 ms while others wait. That would be an urgent
# tenant's latency, and its generator's lateness, by no doing of the device or its scheduler.
_SWITCH_INTERVAL_S = 1e-4


class Link:
    """One tenant's line to the parent."""

    def __init__(self, name: str, channel: Channel) -> None:
        from pytest_hwqueue.engine.tenants.tenant_calls import TenantCalls
        from pytest_hwqueue.parts.processes.remote import remote

        self.commands: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.parent = remote(TenantCalls, channel.send)
        self.stage = "start"
        # What was served before a failure, which the record of the failure keeps.
        self.served: TenantResult | None = None
        # Set once a look has decided.
        self.ended = threading.Event()
        self._name = name
        self._channel = channel

    def enter(self, stage: str) -> None:
        """Tell the stage that the tenant has entered."""
        self.stage = stage
        self.parent.entered(self._name, stage)

    def wait_for_window(self, ready: Ready) -> Window:
        """Tell that the tenant is warm; wait for the word to all tenants."""
        from pytest_hwqueue.engine.tenants.open_loop import Window

        self.enter("barrier")
        self.parent.ready(self._name, ready)
        command = self.commands.get()
        assert command["kind"] == "start", command
        window = Window(command["begin_ns"], command["end_ns"])
        self.stage = "measure"
        return window

    def next_window(self, client: ProbeClient | None = None) -> NextWindow | None:
        """Take part in the priority probe until all may warm up; return what for.

        None once the tenant may leave: evidence is taken from living processes, so nobody does
        before all has been seen.
        """
        from pydantic import TypeAdapter

        from pytest_hwqueue.engine.tenants.tenant_calls import NextWindow
        from pytest_hwqueue.parts.processes.remote import answer_to
        from pytest_hwqueue.parts.schedulers.priority_probe import ProbeClient

        while (command := self.commands.get())["kind"] == "call":
            assert client is not None, "a server takes no part in it"
            try:
                answer = answer_to(command, ProbeClient, client)
            # Such as too little memory: then the effect is not proven, and tenants still run.
            except RuntimeError as error:
                text = f"tenant {self._name}: {type(error).__name__}: {error}"
                answer = {"error": NotProven.__name__, "text": text}
            self._channel.send("answer", **(answer or {}))
        if command["kind"] == "exit":
            self.stage = "stop"
            return None
        assert command["kind"] == "warm up", command
        # What a look at the last window decided was heard before this command.
        self.ended.clear()
        self.served = None
        self.enter("warm-up")
        return TypeAdapter(NextWindow).validate_python(command["window"])

    def set_up(self) -> None:
        """Tell that all is set up."""
        self.parent.set_up(self._name)

    def finish(self, result: TenantResult) -> None:
        """Tell the window's result."""
        self.stage = "proof"
        self.parent.served(self._name, result)


def main() -> None:
    """Follow the parent's commands; the arguments are the descriptors of the two pipes."""
    # A group of its own: the terminal's Ctrl-C goes to pytest, which ends the tenants itself.
    os.setpgrp()
    stop_coverage()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    channel = Channel.from_process(int(sys.argv[-2]), int(sys.argv[-1]))
    try:
        command = channel.receive()
        assert command is not None
        if command["kind"] == "identify":
            status = _identify(channel, command["device"])
        else:
            status = _run(channel, command["start"])
    except ProcessEnded:
        sys.exit("the parent has gone")
    sys.stdout.flush()
    sys.exit(status)


def _run(channel: Channel, given: Any) -> int:
    from pydantic import TypeAdapter

    from pytest_hwqueue.engine.tenants.tenant_calls import Start

    start = TypeAdapter(Start).validate_python(given)
    plan = start.plan
    links = {name: Link(name, channel) for name in start.tenants}
    listener = threading.Thread(target=_listen, args=(channel, links), daemon=True)
    listener.start()
    here = [spec for spec in plan.tenants if spec.name in links]
    traces = None
    if start.trace is not None:
        from pytest_hwqueue.engine.causes.tenant_tracer import Traces

        traces = Traces(start.trace, len(plan.tenants), len(here))
    if len(here) == 1:
        return 0 if _live(start, here[0], links[here[0].name], traces) else 1
    # Each in a thread of this process. One that ends early has told so: then the parent ends all.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    with ThreadPoolExecutor(len(here)) as threads:
        lives = [threads.submit(_live, start, spec, links[spec.name], traces) for spec in here]
        return 0 if all(life.result() for life in lives) else 1


def _listen(channel: Channel, links: dict[str, Link]) -> None:
    while True:
        try:
            message = channel.receive()
        except ProcessEnded:
            # The parent has gone without saying so: leave nothing behind, whatever runs now.
            os.killpg(os.getpgrp(), signal.SIGKILL)
        else:
            assert message is not None
            for name, link in links.items():
                if message["kind"] == "end":
                    link.ended.set()
                elif message.get("to", name) == name:
                    link.commands.put(message)
            if message["kind"] == "exit":
                return


def _identify(channel: Channel, label: str) -> int:
    """Open a device and identify it, so that the parent need not open it."""
    from pytest_hwqueue.parts.devices.kinds import open_device

    try:
        device = open_device(label)
        channel.send(
            "identity", lease_key=device.lease_key, fingerprint=asdict(device.fingerprint())
        )
    except Exception as error:  # every cause is the parent's to report
        traceback.print_exc()
        channel.send("failed", reason=_reason(error))
        return 1
    return 0


def _live(start: Start, spec: Tenant, link: Link, traces: Traces | None) -> bool:
    """Run a tenant from set-up to stop; return its success."""
    if len(start.tenants) > 1:
        threading.current_thread().name = f"hwq-tenant-{start.tenants.index(spec.name)}"
    try:
        if spec.server is not None:
            from pytest_hwqueue.engine.tenants.server_tenant import serve_by_server

            serve_by_server(spec, start.servers[spec.name], link)
        else:
            _Life(start, spec, link, traces).live()
    except ProcessEnded:
        raise
    except Exception as error:  # every cause becomes a record
        # The user's own code has its traceback in the reason, and a server its own output.
        if not (speaks_for_itself(error) or isinstance(error, OwnCodeFailed)):
            traceback.print_exc()
        status: Problem = "invalid" if isinstance(error, InvalidMeasurement) else "failed"
        link.parent.failed(spec.name, link.stage, status, _reason(error), link.served)
        return False
    return True


@dataclass
class _Life:
    """A tenant's, from its device to its last window.

    Attributes:
        start: what its process is to run.
        spec: the tenant.
        link: to the parent.
        traces: those of this process; None to trace nothing. Only a first window is traced.

    """

    start: Start
    spec: Tenant
    link: Link
    traces: Traces | None
    _shown: list[ShownTimes] = field(default_factory=list)
    _is_first: bool = True

    def live(self) -> None:
        """Set up, and serve one window after the other until the tenant may leave."""
        from pytest_hwqueue.parts.schedulers.priority_probe import ProbeClient

        # One after the other where tenants are threads: torch has one seed for the whole process.
        with _SETTING_UP:
            self._open_device()
        with self._pool:
            with _SETTING_UP:
                self._set_up()
            if len(self._works) > 1:
                sys.setswitchinterval(_SWITCH_INTERVAL_S)
            self.link.set_up()
            client = ProbeClient(self._device, self._pool)
            while (window := self.link.next_window(client)) is not None:
                self._serve_window(window)

    def _open_device(self) -> None:
        from pytest_hwqueue.engine.tenants.tenant_window import needs_gradients
        from pytest_hwqueue.parts.devices.compute_units import open_pool
        from pytest_hwqueue.parts.devices.kinds import open_device

        start, spec = self.start, self.spec
        self.link.enter("open device")
        # A tenant sees one device, whatever its number in the session.
        self._device = open_device(start.plan.device.partition(":")[0])
        priorities = [start.stream_priorities[spec.name]] * (spec.streams * spec.concurrency)
        partition = start.partitions[spec.name]
        self._partitions = None if partition is None else [partition] * len(priorities)
        self._gradients = needs_gradients(spec)
        self._device.reset_memory()
        self._pool = open_pool(
            self._device, priorities, self._partitions, gradients=self._gradients
        )

    def _set_up(self) -> None:
        import torch

        from pytest_hwqueue.engine.tenants.tenant_window import open_work

        plan = self.start.plan
        self.link.enter("set-up")
        torch.manual_seed(plan.seed_of_work)
        self._works = open_work(
            self.spec, self._device, self._pool, plan.seed_of_work, Path(plan.folder)
        )
        self._pool.synchronize()

    def _serve_window(self, asked: NextWindow) -> None:
        """Warm up, wait for the window, serve its requests, and tell the result."""
        from pytest_hwqueue.engine.tenants.looks import ShownTimes
        from pytest_hwqueue.engine.tenants.open_loop import StoppedServing
        from pytest_hwqueue.engine.tenants.tenant_window import demand_of, warm_up

        plan, requests = asked.plan, [work.request for work in self._works]
        times_ns = warm_up(plan, self._device, requests, self._begin_thread)
        if self._is_first:
            self.link.enter("check")
            for work in self._works:
                work.check()
        demand = demand_of(plan, self.spec.name)
        longest_ns = plan.duration_ns
        tracer: TenantTracer | None = None
        if self.traces is not None:
            tracer = self.traces.tracer(
                self.spec.name, self._device, self._pool, gradients=self._gradients
            )
            most = tracer.most_requests(requests[0])
            longest_ns = demand.longest_ns(longest_ns, most, max(1, min(times_ns)))
        # Nobody looks at the last window any more.
        for each in self._shown:
            each.close()
        self._shown = [ShownTimes() for _ in requests] if asked.looked_at else []
        shown = [each.descriptor for each in self._shown]
        ready = replace(self._seen(), longest_ns=longest_ns, shown=shown)
        if self._is_first:
            for work in self._works:
                work.slow_down(self.spec.faults, self._device, round(median(times_ns)))
        self._is_first = False
        # Off for good: windows are what this process lives for. What is frozen is not looked at
        # when serving collects once more; what died of the last window's is found before.
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            if tracer is None:
                self._serve(demand, ready, requests)
            else:
                # One at a time: several were refused.
                tracer.serve(requests[0], lambda request: self._serve(demand, ready, [request]))
        except StoppedServing as stopped:
            self.link.served = self._result(stopped.load, None)
            raise
        # Nothing of this window runs in the next one.
        self._pool.synchronize()
        self.link.finish(self._result(self._load, self._counters))

    def _begin_thread(self) -> None:
        # For the thread's life; the pool has done so for this one.
        import torch

        torch.inference_mode(not self._gradients).__enter__()

    def _seen(self) -> Ready:
        """Return the evidence, and what the process and its device are."""
        from pytest_hwqueue.engine.tenants.tenant_calls import Ready
        from pytest_hwqueue.parts.schedulers.inside_evidence import gather, with_groups

        evidence = gather(self._pool)
        if self._partitions is not None:
            evidence = with_groups(evidence, self._pool, self._partitions, replayed=False)
        # One after the other: reading switches one of torch's settings and back.
        with _SETTING_UP:
            return Ready(evidence, 0, fingerprint=self._device.fingerprint())

    def _serve(self, demand: Demand, ready: Ready, requests: Sequence[Callable[[], None]]) -> None:
        from pytest_hwqueue.engine.tenants.open_loop import Onlooker, serve
        from pytest_hwqueue.parts.devices.cpu_counters import CpuCounting

        self._common = self.link.wait_for_window(ready)
        counting = CpuCounting(lambda: self._pool.launched)
        counting.opened()
        within = demand.within(self._common.duration_ns)
        self._load = serve(
            self._device, requests, within, self._common, begin_thread=self._begin_thread,
            onlooker=Onlooker(self.link.ended, [each.show for each in self._shown]),
        )  # fmt: skip
        counting.closed()
        self._counters = counting.counters(len(self._load.started_ns))

    def _result(self, load: Load, counters: CpuCounters | None) -> TenantResult:
        from pytest_hwqueue.engine.tenants.open_loop import lateness
        from pytest_hwqueue.engine.tenants.tenant_cells import delivered

        return delivered(
            self.spec, load, self._common.duration_ns, self._works[0].what,
            lateness=lateness(load), memory_bytes=self._device.memory_bytes(), counters=counters,
        )  # fmt: skip


def _reason(error: Exception) -> str:
    from pytest_hwqueue.engine.cell.attempt import describe_failure
    from pytest_hwqueue.engine.tenants.open_loop import StoppedServing

    if speaks_for_itself(error) or isinstance(error, StoppedServing):
        # As it is, with its lines: such a text says where and what to do.
        return str(error)
    return describe_failure(error).reason
