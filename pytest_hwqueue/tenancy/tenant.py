"""A tenant process: set up, warm up, wait at the barrier, serve in the common window, stop.

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
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from pytest_hwqueue.errors import NotProven, OwnCodeFailed, speaks_for_itself
from pytest_hwqueue.processes.channel import Channel, Message, ProcessEnded
from pytest_hwqueue.processes.unwatched import stop_coverage
from pytest_hwqueue.tenancy.spec import TenantSpec

if TYPE_CHECKING:
    from pytest_hwqueue.causes.tenant_tracer import Traces
    from pytest_hwqueue.harness.open_loop import RequestLog, Window
    from pytest_hwqueue.records.tenants import TenantResult
    from pytest_hwqueue.schedulers.priority_probe import ProbeClient
    from pytest_hwqueue.tenancy.calls import Ready, Start

_SETTING_UP = threading.Lock()
# Python lets a thread keep the interpreter for 5 ms while others wait. That would be an urgent
# tenant's latency, and its generator's lateness, by no doing of the device or its scheduler.
_SWITCH_INTERVAL_S = 1e-4


class Link:
    """One tenant's line to the parent."""

    def __init__(self, name: str, channel: Channel) -> None:
        from pytest_hwqueue.processes.remote import remote
        from pytest_hwqueue.tenancy.calls import TenantCalls

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

    def wait_for(self, kind: str) -> Message:
        """Wait for a command; return its content."""
        command = self.commands.get()
        assert command["kind"] == kind, command
        return {name: value for name, value in command.items() if name != "kind"}

    def wait_for_window(self, ready: Ready) -> Window:
        """Tell that the tenant is warm; wait for the word to all tenants."""
        from pytest_hwqueue.harness.open_loop import Window

        self.enter("barrier")
        self.parent.ready(self._name, ready)
        window = Window(**self.wait_for("start"))
        self.stage = "measure"
        return window

    def wait_for_warm_up(self, client: ProbeClient | None = None) -> None:
        """Tell that all is set up; take part in the priority probe until all may warm up."""
        from pytest_hwqueue.processes.remote import answer_to
        from pytest_hwqueue.schedulers.priority_probe import ProbeClient

        self.parent.set_up(self._name)
        while (command := self.commands.get())["kind"] == "call":
            assert client is not None, "a server takes no part in it"
            try:
                answer = answer_to(command, ProbeClient, client)
            # Such as too little memory: then the effect is not proven, and tenants still run.
            except RuntimeError as error:
                text = f"tenant {self._name}: {type(error).__name__}: {error}"
                answer = {"error": NotProven.__name__, "text": text}
            self._channel.send("answer", **(answer or {}))
        assert command["kind"] == "warm up", command

    def finish(self, result: TenantResult) -> None:
        """Tell the window's result; return once the tenant may leave."""
        self.parent.served(self._name, result)
        # Evidence is taken from living processes: nobody leaves before all has been seen.
        self.wait_for("exit")
        self.stage = "stop"


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

    from pytest_hwqueue.tenancy.calls import Start

    start = TypeAdapter(Start).validate_python(given)
    plan = start.plan
    links = {name: Link(name, channel) for name in start.tenants}
    listener = threading.Thread(target=_listen, args=(channel, links), daemon=True)
    listener.start()
    here = [spec for spec in plan.tenants if spec.name in links]
    traces = None
    if start.trace is not None:
        from pytest_hwqueue.causes.tenant_tracer import Traces

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
    from pytest_hwqueue.devices.kinds import open_device

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


def _live(start: Start, spec: TenantSpec, link: Link, traces: Traces | None) -> bool:
    """Run a tenant from set-up to stop; return its success."""
    if len(start.tenants) > 1:
        threading.current_thread().name = f"hwq-tenant-{start.tenants.index(spec.name)}"
    try:
        if spec.server is not None:
            from pytest_hwqueue.tenancy.server_tenant import serve_by_server

            serve_by_server(start.plan, spec, start.urls[spec.name], link)
        else:
            _serve(start, spec, link, traces)
    except ProcessEnded:
        raise
    except Exception as error:  # every cause becomes a record
        # The user's own code has its traceback in the reason, and a server its own output.
        if not (speaks_for_itself(error) or isinstance(error, OwnCodeFailed)):
            traceback.print_exc()
        link.parent.failed(spec.name, link.stage, _reason(error), link.served)
        return False
    return True


def _serve(start: Start, spec: TenantSpec, link: Link, traces: Traces | None) -> None:
    import torch

    from pytest_hwqueue.devices.compute_units import open_pool
    from pytest_hwqueue.devices.kinds import open_device
    from pytest_hwqueue.harness.open_loop import StoppedServing, lateness
    from pytest_hwqueue.schedulers.inside_evidence import gather, with_groups
    from pytest_hwqueue.schedulers.priority_probe import ProbeClient
    from pytest_hwqueue.tenancy.calls import Ready
    from pytest_hwqueue.tenancy.cells import delivered
    from pytest_hwqueue.tenancy.looks import ShownTimes
    from pytest_hwqueue.tenancy.window import WindowPlan, needs_gradients, open_work, warm_up
    from pytest_hwqueue.tracing.cpu_counters import CpuCounters, CpuCounting

    plan = start.plan
    # One after the other where tenants are threads: torch has one seed for the whole process.
    with _SETTING_UP:
        link.enter("open device")
        # A tenant sees one device, whatever its number in the session.
        device = open_device(plan.device.partition(":")[0])
        priorities = [start.stream_priorities[spec.name]] * (spec.streams * spec.concurrency)
        partition = start.partitions[spec.name]
        partitions = None if partition is None else [partition] * len(priorities)
        gradients = needs_gradients(spec)
        device.reset_memory()
        pool = open_pool(device, priorities, partitions, gradients=gradients)
    with pool:
        with _SETTING_UP:
            link.enter("set-up")
            torch.manual_seed(plan.seed)
            works = open_work(spec, device, pool, plan.seed, Path(plan.folder))
            pool.synchronize()
        requests = [work.request for work in works]
        if len(works) > 1:
            sys.setswitchinterval(_SWITCH_INTERVAL_S)

        def begin_thread() -> None:
            # For the thread's life; the pool has done so for this one.
            torch.inference_mode(not gradients).__enter__()

        link.wait_for_warm_up(ProbeClient(device, pool))
        link.enter("warm-up")
        times_ns = warm_up(plan, device, requests, begin_thread)
        link.enter("check")
        for work in works:
            work.check()
        evidence = gather(pool)
        if partitions is not None:
            evidence = with_groups(evidence, pool, partitions, replayed=False)
        # One after the other: reading switches one of torch's settings and back.
        with _SETTING_UP:
            fingerprint = device.fingerprint()
        window = WindowPlan(plan, spec)
        longest_ns, tracer = plan.duration_ns, None
        if traces is not None:
            tracer = traces.tracer(spec.name, device, pool, gradients=gradients)
            most = tracer.most_requests(requests[0])
            longest_ns = window.longest_ns(most, max(1, min(times_ns)))
        for work in works:
            work.slow_down(spec.faults, device, round(median(times_ns)))
        # For good: this process lives for one window only. What is frozen is not looked at when
        # serving collects once more.
        gc.collect()
        gc.freeze()
        gc.disable()
        log: RequestLog | None = None
        counters: CpuCounters | None = None
        common: Window | None = None

        def serve(requests: Sequence[Callable[[], None]]) -> None:
            nonlocal common, log, counters
            shown = [ShownTimes() for _ in requests] if start.looked_at else []
            common = link.wait_for_window(
                Ready(evidence, longest_ns, [each.descriptor for each in shown], fingerprint)
            )
            counting = CpuCounting(lambda: pool.launched)
            counting.opened()
            log = window.serve(
                device, requests, common, begin_thread, link.ended, [each.show for each in shown]
            )
            counting.closed()
            counters = counting.counters(len(log.started_ns))

        def served(log: RequestLog) -> TenantResult:
            assert common is not None
            return delivered(
                spec.name, log, common.duration_ns, works[0].what,
                lateness=lateness(log), memory_bytes=device.memory_bytes(), counters=counters,
            )  # fmt: skip

        try:
            if tracer is None:
                serve(requests)
            else:
                # One at a time: several were refused.
                tracer.serve(requests[0], lambda request: serve([request]))
        except StoppedServing as stopped:
            link.served = served(stopped.log)
            raise
        assert log is not None
        link.finish(served(log))


def _reason(error: Exception) -> str:
    from pytest_hwqueue.harness.attempt import describe_failure
    from pytest_hwqueue.harness.open_loop import StoppedServing

    if speaks_for_itself(error) or isinstance(error, StoppedServing):
        # As it is, with its lines: such a text says where and what to do.
        return str(error)
    return describe_failure(error).reason
