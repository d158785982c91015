"""A tenant process: set up, warm up, wait at the barrier, serve in the common window, stop.

It imports nothing heavy before it has its own process group. Commands and reports are lines of JSON
on two pipes; its output goes to its log.
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
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from pytest_hwqueue.processes.channel import Channel, ChannelClosed, Message
from pytest_hwqueue.tenancy.spec import Colocation, TenantSpec, plan_from_json

if TYPE_CHECKING:
    from pytest_hwqueue.causes.tenant_tracer import Traces
    from pytest_hwqueue.schedulers.priority_probe import ProbeClient

# Fewer say nothing about how long a request takes.
_LEAST_WARM_UP = 3

_SETTING_UP = threading.Lock()


class Link:
    """One tenant's line to the parent."""

    def __init__(self, name: str, channel: Channel) -> None:
        self.commands: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.stage = "start"
        # What was served before a failure, which the record of the failure keeps.
        self.served: Message | None = None
        self._name = name
        self._channel = channel

    def enter(self, stage: str) -> None:
        """Report the stage that the tenant has entered."""
        self.stage = stage
        self.send("stage", stage=stage)

    def send(self, kind: str, **content: object) -> None:
        """Send a message in the tenant's name."""
        self._channel.send(kind, tenant=self._name, **content)

    def wait_for(self, kind: str) -> Message:
        """Wait for a command."""
        message = self.commands.get()
        assert message["kind"] == kind, message
        return message

    def wait_for_start(self, client: ProbeClient) -> Message:
        """Wait for the window's start; take part in the priority probe until then."""
        from pytest_hwqueue.schedulers.priority_probe import answer

        while (message := self.commands.get())["kind"] == "probe":
            try:
                answered = answer(client, message["step"], message["argument"])
            # Such as too little memory: then the effect is not proven, and tenants still run.
            except RuntimeError as error:
                self.send("probed", failed=f"{type(error).__name__}: {error}")
            else:
                self.send("probed", answer=answered, failed="")
        assert message["kind"] == "start", message
        return message


def main() -> None:
    """Follow the parent's commands; the arguments are the descriptors of the two pipes."""
    # A group of its own: the terminal's Ctrl-C goes to pytest, which ends the tenants itself.
    os.setpgrp()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    channel = Channel.from_process(int(sys.argv[-2]), int(sys.argv[-1]))
    try:
        start = channel.receive()
        assert start is not None
        status = _identify(channel, start) if start["kind"] == "identify" else _run(channel, start)
    except ChannelClosed:
        sys.exit("the parent has gone")
    sys.stdout.flush()
    sys.exit(status)


def _run(channel: Channel, start: Message) -> int:
    plan = plan_from_json(start["plan"])
    links = {name: Link(name, channel) for name in start["tenants"]}
    listener = threading.Thread(target=_listen, args=(channel, links), daemon=True)
    listener.start()
    here = [spec for spec in plan.tenants if spec.name in links]
    traces = None
    if start["trace"] is not None:
        from pytest_hwqueue.causes.tenant_tracer import Traces

        traces = Traces(Path(start["trace"]), len(plan.tenants), len(here))
    lives = [
        _life(plan, spec, start["stream_priorities"][spec.name], links[spec.name], traces)
        for spec in here
    ]
    if len(lives) == 1:
        return 0 if lives[0]() else 1
    from pytest_hwqueue.tenancy.threads import run_together

    return 0 if run_together(lives) else 1


def _listen(channel: Channel, links: dict[str, Link]) -> None:
    while True:
        try:
            message = channel.receive()
        except ChannelClosed:
            # The parent has gone without saying so: leave nothing behind, whatever runs now.
            os.killpg(os.getpgrp(), signal.SIGKILL)
        else:
            assert message is not None
            for name, link in links.items():
                if message.get("to", name) == name:
                    link.commands.put(message)
            if message["kind"] == "exit":
                return


def _identify(channel: Channel, start: Message) -> int:
    """Open a device and identify it, so that the parent need not open it."""
    from pytest_hwqueue.devices.discover import open_device

    try:
        device = open_device(start["device"])
        channel.send(
            "identity", lease_key=device.lease_key, fingerprint=asdict(device.fingerprint())
        )
    except Exception as error:  # every cause is the parent's to report
        traceback.print_exc()
        channel.send("failed", tenant="", stage="open device", reason=_reason(error))
        return 1
    return 0


def _life(
    plan: Colocation, spec: TenantSpec, stream_priority: int, link: Link, traces: Traces | None
) -> Callable[[], bool]:
    """Return a function that runs a tenant from set-up to stop and returns its success."""

    def run() -> bool:
        try:
            _serve(plan, spec, stream_priority, link, traces)
        except ChannelClosed:
            raise
        except Exception as error:  # every cause becomes a record
            traceback.print_exc()
            link.send("failed", stage=link.stage, reason=_reason(error), served=link.served)
            return False
        return True

    return run


def _serve(
    plan: Colocation, spec: TenantSpec, stream_priority: int, link: Link, traces: Traces | None
) -> None:
    import torch

    from pytest_hwqueue.devices.discover import open_device
    from pytest_hwqueue.harness.open_loop import RequestLog, StoppedServing
    from pytest_hwqueue.schedulers.inside_evidence import gather
    from pytest_hwqueue.schedulers.priority_probe import StreamClient
    from pytest_hwqueue.tenancy.window import WindowPlan, times_in_parts, without_times
    from pytest_hwqueue.tenancy.work import needs_gradients, open_work
    from pytest_hwqueue.tracing.cpu_counters import CpuCounters, CpuCounting

    # One after the other where tenants are threads: torch has one seed for the whole process.
    with _SETTING_UP:
        link.enter("open device")
        # A tenant sees one device, whatever its number in the session.
        device = open_device(plan.device.partition(":")[0])
        priorities = [stream_priority] * spec.streams
        pool = device.open_streams(spec.streams, priorities, gradients=needs_gradients(spec))
    with pool:
        with _SETTING_UP:
            link.enter("set-up")
            torch.manual_seed(plan.seed)
            work = open_work(spec, device, pool, plan.seed)
            pool.synchronize()
        link.enter("warm-up")
        times_ns: list[int] = []
        began_ns = device.clock_ns()
        while device.clock_ns() - began_ns < plan.warmup_s * 1e9 or len(times_ns) < _LEAST_WARM_UP:
            before_ns = device.clock_ns()
            work.request()
            times_ns.append(device.clock_ns() - before_ns)
            _refuse_endless(plan, times_ns)
        link.enter("check")
        work.check()
        window = WindowPlan(plan, spec)
        longest_ns, tracer = plan.duration_ns, None
        if traces is not None:
            tracer = traces.tracer(spec.name, device, pool, gradients=needs_gradients(spec))
            most = tracer.most_requests(work.request)
            longest_ns = window.longest_ns(most, max(1, min(times_ns)))
        work.plant(window.faults, device, plan.seed, round(median(times_ns)))
        # For good: this process lives for one window only. What is frozen is not looked at when
        # serving collects once more.
        gc.collect()
        gc.freeze()
        gc.disable()
        log: RequestLog | None = None
        counters: CpuCounters | None = None

        def serve(request: Callable[[], None]) -> None:
            nonlocal log, counters
            link.enter("barrier")
            link.send("ready", evidence=asdict(gather(pool)), longest_ns=longest_ns)
            start = link.wait_for_start(StreamClient(device, pool))
            link.stage = "measure"
            counting = CpuCounting(lambda: pool.launched)
            counting.opened()
            log = window.serve(device, request, start["begin_ns"], start["end_ns"])
            counting.closed()
            counters = counting.counters(len(log.started_ns))

        def served(log: RequestLog) -> Message:
            for part in times_in_parts(log):
                link.send("times", **part)
            return {
                **without_times(log),
                "items_per_request": work.items_per_request,
                "unit": work.unit,
                "memory_bytes": device.memory_bytes(),
                "counters": counters and counters.model_dump(mode="json"),
            }

        try:
            if tracer is None:
                serve(work.request)
            else:
                tracer.serve(work.request, serve)
        except StoppedServing as stopped:
            link.served = served(stopped.log)
            raise
        assert log is not None
        link.send("result", **served(log))
        # Evidence is taken from living processes: nobody leaves before all has been seen.
        link.wait_for("exit")
        link.stage = "stop"


def _refuse_endless(plan: Colocation, times_ns: list[int]) -> None:
    """Raise if requests outlast the window and its grace, before a long, useless warm-up.

    The first request does not count: it may compile and allocate.
    """
    from pytest_hwqueue.errors import InvalidMeasurement
    from pytest_hwqueue.harness.open_loop import Window

    window = Window(0, plan.duration_ns)
    if len(times_ns) > 1 and times_ns[-1] > window.duration_ns + window.grace_ns:
        raise InvalidMeasurement(
            f"a request took {times_ns[-1] / 1e9:.3g} s in warm-up, and the window is "
            f"{window.duration_ns / 1e9:.3g} s long: give a longer duration, or a smaller size"
        )


def _reason(error: Exception) -> str:
    from pytest_hwqueue.harness.failures import describe_failure
    from pytest_hwqueue.harness.open_loop import StoppedServing

    return describe_failure(error, StoppedServing).reason
