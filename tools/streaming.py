"""A server of streamed completions that plays stored streams, and logs what it sent and when.

    STREAMS=FOLDER[:FOLDER ...] uvicorn --app-dir tools streaming:app

``POST /NAME/v1/chat/completions`` plays ``NAME.json`` of the first folder that has it: ``parts``
are pairs of a wait in ms and a text. With ``?every_second`` the first request and each second one
after it play ``plain.json``, so that a server whose stream fails is one that answers, too. Of each
request a line on stdout says which stream it gets, when it was received (ns, CLOCK_MONOTONIC) and
its client's port, which a unix socket has none of, and a later one when each part was sent and how
many tokens they held.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

RECEIVED, ANSWERED = "received", "answered"
"""How a line of the log begins: JSON follows."""

PLAIN = "plain"
"""The stream that stands in for another in each second request."""

_numbers = count()


async def complete(request: Request) -> StreamingResponse:
    """Play the stream that the path names."""
    received_ns = time.monotonic_ns()
    await request.body()
    name, number = request.path_params["name"], next(_numbers)
    if "every_second" in request.query_params and number % 2 == 0:
        name = PLAIN
    port = request.client and request.client.port
    _log(RECEIVED, number=number, stream=name, received=received_ns, port=port)
    return StreamingResponse(_play(name, number), media_type="text/event-stream")


def _log(what: str, **said: object) -> None:
    print(what, json.dumps(said), flush=True)


async def _play(name: str, number: int) -> AsyncIterator[str]:
    sent_ns: list[int] = []
    try:
        for wait_ms, text in _parts(name):
            if wait_ms:
                await asyncio.sleep(wait_ms / 1e3)
            sent_ns.append(time.monotonic_ns())
            yield text
    finally:
        # Also of one whose client has gone.
        _log(ANSWERED, number=number, sent=sent_ns, tokens=_tokens(name, len(sent_ns)))


@cache
def _tokens(name: str, sent: int) -> int:
    return tokens_in("".join(text for _, text in _parts(name)[:sent]))


def tokens_in(said: str) -> int:
    """Return the tokens in a text of events: its last count, or the events with any if more.

    Reasoning that is counted and not streamed is none.
    """
    said = said.replace("\r\n", "\n")
    events, counted, hidden = 0, 0.0, 0.0
    for event in said.split("\n\n"):
        lines = event.split("\n")
        data = "\n".join(line[5:].strip() for line in lines if line.startswith("data:"))
        try:
            read = json.loads(data)
        except ValueError:
            continue
        if not isinstance(read, dict):
            continue
        events += _has_text(read.get("choices"))
        counted = _number(read, "usage", "completion_tokens") or counted
        details = ("usage", "completion_tokens_details", "reasoning_tokens")
        hidden = _number(read, *details) or hidden
    if '"reasoning' in said.replace('"reasoning_tokens"', ""):
        hidden = 0
    return max(events, int(counted - hidden))


def _number(value: Any, *names: str) -> float:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, int | float) else 0


_GENERATED = (
    "delta", "content", "text", "refusal", "reasoning", "reasoning_content", "tool_calls",
    "function", "arguments", "name", "audio", "transcript",
)  # fmt: skip


def _has_text(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_text(value.get(name)) for name in _GENERATED)
    if isinstance(value, list):
        return any(map(_has_text, value))
    return isinstance(value, str) and value != ""


@cache
def _parts(name: str) -> Sequence[tuple[float, str]]:
    folders = map(Path, os.environ["STREAMS"].split(os.pathsep))
    file = next(path for folder in folders if (path := folder / f"{name}.json").exists())
    parts: Sequence[tuple[float, str]] = json.loads(file.read_text(encoding="utf-8"))["parts"]
    return parts


app = Starlette(routes=[Route("/{name}/v1/chat/completions", complete, methods=["POST"])])
