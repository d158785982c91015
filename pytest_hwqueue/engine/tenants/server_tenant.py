"""A tenant that is a user's server: the load on it. It needs the extra ``server``."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from pytest_hwqueue.data.errors import HwqError, within
from pytest_hwqueue.data.records.plan import ClientCommand, Colocation, Prompts, Server, Tenant
from pytest_hwqueue.data.records.tenants import ServerLoad, TenantResult, TokenTimes
from pytest_hwqueue.data.redaction import redacted
from pytest_hwqueue.engine.tenants.arrivals import parse_arrival
from pytest_hwqueue.engine.tenants.external_client import running_client
from pytest_hwqueue.engine.tenants.open_loop import GREEDY, Load, StoppedServing, Window, lateness
from pytest_hwqueue.engine.tenants.prompts import PromptRequest, drawn, read_prompts
from pytest_hwqueue.engine.tenants.server_load import (
    Client,
    allow_files,
    generate,
    refuse_impossible,
)
from pytest_hwqueue.engine.tenants.servers import secrets_of
from pytest_hwqueue.engine.tenants.tenant_calls import Ready
from pytest_hwqueue.engine.tenants.tenant_cells import WorkDone, delivered
from pytest_hwqueue.engine.tenants.tenant_window import demand_of

if TYPE_CHECKING:
    from pytest_hwqueue.engine.tenants.tenant import Link


_AHEAD_NS = 5_000_000
_LEAST_WARM_UP_NS = 100_000_000


def serve_by_server(spec: Tenant, server: Server, link: Link) -> None:
    """Live the tenant's life: wait for the server; for each window warm it up, load it, report.

    Args:
        spec: the tenant.
        server: its server, with port and socket filled in.
        link: to the parent.

    Raises:
        HwqError: if it is not ready in time, or its first request fails.
        StoppedServing: if 10,000 requests failed in a row.

    """
    asyncio.run(_live(spec, server, link))


async def _live(spec: Tenant, server: Server, link: Link) -> None:
    allow_files(spec.concurrency)
    async with Client(server, spec.concurrency) as client:
        link.enter("wait for the server")
        await client.wait_until_ready()
        link.set_up()
        # Elsewhere, so that the connections are looked after meanwhile.
        prompts: _Prompts | None = None
        while (asked := await asyncio.to_thread(link.next_window)) is not None:
            if server.prompts is not None and prompts is None:
                prompts = _Prompts(asked.plan, server.prompts)
            await _serve(asked.plan, spec, client, server, link, prompts)


async def _serve(
    plan: Colocation, spec: Tenant, client: Client, server: Server, link: Link,
    prompts: _Prompts | None,
) -> None:  # fmt: skip
    if server.client is not None:
        link.finish(await _by_client(plan, spec, server, server.client, link))
        return
    demand = demand_of(plan, spec.name)
    if prompts is not None:
        client.ask(prompts.of_window(plan, spec.name))
    with within(f"the first request to {redacted(server.url)} failed"):
        await client.first_request()
    begin_ns = time.monotonic_ns() + _AHEAD_NS
    warm_up = Window(begin_ns, begin_ns + max(round(plan.warmup_s * 1e9), _LEAST_WARM_UP_NS))
    warm = await generate(client.request, GREEDY, warm_up, spec.concurrency)
    refuse_impossible(warm, warm_up, demand, plan.duration_s)
    # Off for good: windows are what this process lives for.
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.disable()
    if prompts is not None:
        # The window's own begin with it, whatever the warm-up took.
        client.ask(prompts.of_window(plan, spec.name))
    common = await asyncio.to_thread(link.wait_for_window, Ready(None, plan.duration_ns))
    asked = demand.within(common.duration_ns)
    opened = client.opened
    try:
        load = await generate(client.request, asked, common, spec.concurrency)
    except StoppedServing as stopped:
        link.served = _served(spec, stopped.load, client, server, common, opened)
        raise
    link.finish(_served(spec, load, client, server, common, opened))


class _Prompts:
    """What the requests to a server ask for, read once; each window's plan decides in which order.

    Raises:
        HwqError: if the file is not the one that the scenario was checked with.

    """

    def __init__(self, plan: Colocation, planned: Prompts) -> None:
        self._file = Path(plan.folder) / planned.file
        found, self._requests = read_prompts(planned.file, Path(plan.folder))
        if found != planned:
            raise HwqError(f"{self._file} has changed since the scenario was read: run it again")

    def of_window(self, plan: Colocation, name: str) -> Iterator[PromptRequest]:
        """Return those of a window, of which the first is its first request's."""
        arrival = parse_arrival(plan.tenant(name).arrival, Path(plan.folder))
        in_order = arrival.file is not None and arrival.file.resolve() == self._file.resolve()
        return drawn(self._requests, plan.tenant_seed(name), in_order=in_order)


async def _by_client(
    plan: Colocation, spec: Tenant, server: Server, client: ClientCommand, link: Link
) -> TenantResult:
    """Serve a window whose requests a client of another project sends; return what it recorded."""
    ready, common = Ready(None, plan.duration_ns), None
    if not client.lead_s:
        common = await asyncio.to_thread(link.wait_for_window, ready)
        # All are told ahead of it, and what is sent until then does not count.
        await asyncio.sleep(max(0.0, (common.begin_ns - time.monotonic_ns()) / 1e9))
    with running_client(server, client, plan.duration_s, Path(plan.folder)) as running:
        if common is None:
            await asyncio.to_thread(running.lead)
            common = await asyncio.to_thread(link.wait_for_window, ready)
        load = await asyncio.to_thread(running.load, common)
    work, seen = _seen(load, server, common)
    # Its time begins with its first request and ends with its last: it starts up, and may end.
    own = replace(spec, start_s=load.scheduled_ns[0] / 1e9, requests=len(load.finished_ns))
    return delivered(own, load, common.duration_ns, work, server=seen)


def _served(
    spec: Tenant,
    load: Load,
    client: Client,
    server: Server,
    window: Window,
    opened_before: int,
) -> TenantResult:
    work, seen = _seen(load, server, window)
    connections = {"connections": client.opened, "connected": client.opened - opened_before}
    return delivered(
        spec,
        load,
        window.duration_ns,
        work,
        lateness=lateness(load),
        server=seen.model_copy(update=connections),
    )


def _seen(load: Load, server: Server, window: Window) -> tuple[WorkDone, ServerLoad]:
    """Return what one request is, and what was seen of the server but for its connections."""
    tokens = _tokens(load, window.begin_ns, server)
    work = WorkDone(f"{server.protocol} server")
    if tokens is not None:
        work = work._replace(items_per_request=fmean(tokens.tokens), unit="tokens")
    seen = ServerLoad(
        url=redacted(server.url, secrets_of(server)),
        most_at_once=load.most_at_once,
        generator_busy=load.busy,
        tokens=tokens,
    )
    return work, seen


def _tokens(load: Load, begin_ns: int, server: Server) -> TokenTimes | None:
    """Return the times of completed requests' tokens; None if there are none."""
    answered = [
        (reply, scheduled)
        for reply, scheduled in zip(load.replies, load.scheduled_ns, strict=True)
        if reply is not None
    ]
    if not answered:
        return None
    return TokenTimes(
        ttft_ns=[reply.first_ns - begin_ns - scheduled for reply, scheduled in answered],
        answer_ns=[
            None if reply.answer_ns is None else reply.answer_ns - begin_ns - scheduled
            for reply, scheduled in answered
        ],
        last_ns=[reply.last_ns - begin_ns - scheduled for reply, scheduled in answered],
        tokens=[reply.tokens for reply, _ in answered],
        counted=next((r.counted for r, _ in answered if r.counted != "usage"), "usage"),
        ttft_bound_ms=server.ttft_ms,
        tbt_bound_ms=server.tbt_ms,
    )
