"""A tenant that is a user's server: its processes, and the load on it."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_hwqueue.devices.kinds import kind_of
from pytest_hwqueue.errors import HwqError, translated
from pytest_hwqueue.harness.attempt import Found
from pytest_hwqueue.harness.open_loop import RequestLog, StoppedServing, Window
from pytest_hwqueue.processes.channel import Message
from pytest_hwqueue.schedulers.inside_evidence import InsideEvidence
from pytest_hwqueue.schedulers.syntax import Proof, Scheduler
from pytest_hwqueue.servers.generator import Client, Load, Reply, RequestFailed, generate
from pytest_hwqueue.servers.running import RunningServer, run_server
from pytest_hwqueue.servers.spec import ServerSpec
from pytest_hwqueue.tenancy.spec import Colocation, TenantSpec, tenant_environment
from pytest_hwqueue.tenancy.window import WindowPlan, times_in_parts, without_times

if TYPE_CHECKING:
    from pytest_hwqueue.tenancy.tenant import Link


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


_AHEAD_NS = 5_000_000
_LEAST_WARM_UP_NS = 100_000_000


def serve_by_server(plan: Colocation, spec: TenantSpec, url: str, link: Link) -> None:
    """Live the tenant's life: wait for the server, warm it up, load it in the window, report.

    Raises:
        HwqError: if it is not ready in time, or its first request fails.
        StoppedServing: if 10,000 requests failed in a row.

    """
    assert spec.server is not None
    asyncio.run(_live(plan, spec, spec.server, url, link))


async def _live(
    plan: Colocation, spec: TenantSpec, server: ServerSpec, url: str, link: Link
) -> None:
    window = WindowPlan(plan, spec)
    async with Client(server, url, spec.concurrency) as client:
        link.enter("wait for the server")
        await client.wait_until_ready()
        link.send("set up")
        # Elsewhere, so that the connections are looked after meanwhile.
        await asyncio.to_thread(link.wait_for, "warm up")
        link.enter("warm-up")
        with translated(HwqError, f"the first request to {url} failed", RequestFailed):
            await client.request()
        begin_ns = time.monotonic_ns() + _AHEAD_NS
        warm_up = Window(begin_ns, begin_ns + max(round(plan.warmup_s * 1e9), _LEAST_WARM_UP_NS))
        await generate(client.request, None, warm_up, spec.concurrency)
        # For good: this process lives for one window only.
        gc.collect()
        gc.freeze()
        gc.disable()
        link.enter("barrier")
        link.send("ready", evidence=None, longest_ns=plan.duration_ns)
        start = await asyncio.to_thread(link.wait_for, "start")
        link.stage = "measure"
        begin_ns, end_ns = start["begin_ns"], start["end_ns"]
        try:
            load = await generate(
                client.request,
                window.due(end_ns - begin_ns),
                Window(begin_ns, end_ns),
                spec.concurrency,
            )
        except StoppedServing as stopped:
            link.served = _served(Load(stopped.log, (), 0), client, server, begin_ns, link)
            raise
        link.send("result", **_served(load, client, server, begin_ns, link))
        # Evidence is taken from living processes: nobody leaves before all has been seen.
        await asyncio.to_thread(link.wait_for, "exit")
        link.stage = "stop"


def _served(load: Load, client: Client, server: ServerSpec, begin_ns: int, link: Link) -> Message:
    for part in times_in_parts(load.log):
        link.send("times", **part)
    tokens = _tokens(load.log, load.replies, begin_ns, server)
    counts = tokens["tokens"] if tokens is not None else []
    return {
        **without_times(load.log),
        "work": f"{server.protocol} server",
        "items_per_request": sum(counts) / len(counts) if counts else 1.0,
        "unit": "requests" if tokens is None else "tokens",
        "memory_bytes": {},
        "counters": None,
        "server": {
            "url": client.url,
            "connections": client.opened,
            "most_at_once": load.most_at_once,
            "tokens": tokens,
        },
    }


def _tokens(
    log: RequestLog, replies: Sequence[Reply | None], begin_ns: int, server: ServerSpec
) -> Message | None:
    """Return the times of completed requests' tokens as plain data; None if there are none."""
    answered = [
        (reply, scheduled)
        for reply, scheduled in zip(replies, log.scheduled_ns, strict=False)
        if reply is not None
    ]
    if not answered:
        return None
    return {
        "ttft_ns": [reply.first_ns - begin_ns - scheduled for reply, scheduled in answered],
        "last_ns": [reply.last_ns - begin_ns - scheduled for reply, scheduled in answered],
        "tokens": [reply.tokens for reply, _ in answered],
        "ttft_bound_ms": server.ttft_ms,
        "tbt_bound_ms": server.tbt_ms,
    }
