"""A server of streamed completions that plays stored streams, and logs what it sent and when.

    STREAMS=FOLDER[:FOLDER ...] uvicorn --app-dir tools streaming:app

``POST /NAME/v1/chat/completions`` plays ``NAME.json`` of the first folder that has it: ``parts``
are pairs of a wait in ms and a text. With ``?every_second`` the first request and each second one
after it play ``plain.json``, so that a server whose stream fails is one that answers, too. Of each
request a line on stdout says its client's port, which a unix socket has none of, and a later one
which stream it got, when it was received and when each part was sent (ns, CLOCK_MONOTONIC).
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Sequence
from itertools import count
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

RECEIVED, ANSWERED = "received", "answered"
"""How a line of the log begins: a port follows, or JSON."""

PLAIN = "plain"
"""The stream that stands in for another in each second request."""

_numbers = count()


async def complete(request: Request) -> StreamingResponse:
    """Play the stream that the path names."""
    received_ns = time.monotonic_ns()
    await request.body()
    name = request.path_params["name"]
    if "every_second" in request.query_params and next(_numbers) % 2 == 0:
        name = PLAIN
    peer = request.client and request.client.port
    print(RECEIVED, peer, flush=True)
    return StreamingResponse(_play(name, received_ns), media_type="text/event-stream")


async def _play(name: str, received_ns: int) -> AsyncIterator[str]:
    sent_ns: list[int] = []
    try:
        for wait_ms, text in _parts(name):
            if wait_ms:
                await asyncio.sleep(wait_ms / 1e3)
            sent_ns.append(time.monotonic_ns())
            yield text
    finally:
        # Also of one whose client has gone.
        log = {"stream": name, "received": received_ns, "sent": sent_ns}
        print(ANSWERED, json.dumps(log), flush=True)


def _parts(name: str) -> Sequence[tuple[float, str]]:
    folders = map(Path, os.environ["STREAMS"].split(os.pathsep))
    file = next(path for folder in folders if (path := folder / f"{name}.json").exists())
    parts: Sequence[tuple[float, str]] = json.loads(file.read_text(encoding="utf-8"))["parts"]
    return parts


app = Starlette(routes=[Route("/{name}/v1/chat/completions", complete, methods=["POST"])])
