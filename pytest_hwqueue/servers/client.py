"""Sends single requests to a user's server by aiohttp, and reads what comes back.

aiohttp, since httpx cannot send 1,000 requests/s in time (docs/decisions.md has figures of both).
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from pytest_hwqueue.servers.spec import ServerSpec

_POLL_S = 0.05
_ONE_POLL_S = 5.0
_SHOWN = 200


class RequestFailed(Exception):
    """A request got no answer, or the wrong one; the text says which."""


class NotReady(RuntimeError):
    """The server did not get ready, or cannot be reached; the text says how that showed."""


@dataclass(frozen=True)
class Reply:
    """When a completed request's tokens came, in ns on the clock of `time.monotonic_ns`.

    Attributes:
        first_ns: the first token.
        last_ns: the last one.
        tokens: how many: the server's own count, or else that of the events with text.

    """

    first_ns: int
    last_ns: int
    tokens: int


class Client:
    """Connections to one server; use it as an asynchronous context.

    Args:
        spec: the server and its requests.
        url: where they go.
        connections: the greatest number open at once.

    Attributes:
        url: where requests go.
        opened: connections made so far.

    """

    def __init__(self, spec: ServerSpec, url: str, connections: int) -> None:
        self.url = url
        self.opened = 0
        self._spec = spec
        self._connections = connections
        self._body = None if spec.body is None else spec.body.encode()
        self._read = {"http": _read_all, "openai": _read_tokens}[spec.protocol]

    async def __aenter__(self) -> Client:
        async def count(*_: object) -> None:
            self.opened += 1

        watch = aiohttp.TraceConfig()
        watch.on_connection_create_end.append(count)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections),
            # Every request is the same, whatever earlier answers set.
            cookie_jar=aiohttp.DummyCookieJar(),
            # By default aiohttp rounds long ones up to whole seconds.
            timeout=aiohttp.ClientTimeout(total=self._spec.timeout_s, ceil_threshold=math.inf),
            trace_configs=[watch],
            # Nor does a proxy from the environment take it elsewhere.
            trust_env=False,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def request(self) -> Reply | None:
        """Send one request and read the whole answer; return its tokens' times, if it has any.

        Raises:
            RequestFailed: on a time-out, a wrong status, a broken connection, or no token.

        """
        spec = self._spec
        try:
            async with self._session.request(
                spec.method, self.url, data=self._body, headers=spec.headers,
                allow_redirects=False,
            ) as response:  # fmt: skip
                if response.status != spec.status:
                    raise RequestFailed(
                        f"status {response.status}, not {spec.status}: {await _start_of(response)}"
                    )
                return await self._read(response)
        except asyncio.TimeoutError:
            raise RequestFailed(f"no whole answer within {spec.timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise RequestFailed(f"{type(error).__name__}: {error}") from None

    async def wait_until_ready(self) -> None:
        """Wait until the server is ready; one that runs already and states no URL must be.

        Raises:
            NotReady: if it is not within its time.

        """
        spec, url = self._spec, self._spec.ready_url(self.url)
        waits_s = spec.ready_s if spec.ours or url is not None else 0.0
        deadline = time.monotonic() + waits_s
        while (problem := await self._problem(url)) is not None:
            if time.monotonic() >= deadline:
                within = f" within {waits_s:g} s" if waits_s else ""
                raise NotReady(f"{url or self.url} was not ready{within}: {problem}")
            await asyncio.sleep(_POLL_S)

    async def _problem(self, url: str | None) -> str | None:
        """Return why the server is not ready; None if it is."""
        try:
            if url is None:
                parts = urlsplit(self.url)
                port = parts.port or {"http": 80, "https": 443}[parts.scheme]
                _, writer = await asyncio.wait_for(
                    asyncio.open_connection(parts.hostname, port), _ONE_POLL_S
                )
                writer.close()
                await writer.wait_closed()
                return None
            limit = aiohttp.ClientTimeout(total=_ONE_POLL_S)
            async with self._session.get(url, timeout=limit, allow_redirects=False) as response:
                return None if response.ok else f"it answered with status {response.status}"
        except asyncio.TimeoutError:
            return f"no answer within {_ONE_POLL_S:g} s"
        except (aiohttp.ClientError, OSError) as error:
            return f"{type(error).__name__}: {error}"


async def _start_of(response: aiohttp.ClientResponse) -> str:
    """Return the beginning of an answer's text, on one line."""
    return " ".join((await response.text(errors="replace"))[:_SHOWN].split())


async def _read_all(response: aiohttp.ClientResponse) -> None:
    await response.read()


async def _read_tokens(response: aiohttp.ClientResponse) -> Reply:
    """Read the server-sent events of a streamed completion (OpenAI's API, `stream: true`)."""
    first_ns = last_ns = events = 0
    counted: int | None = None
    async for line in response.content:
        if not line.startswith(b"data:"):
            continue
        data = line[len(b"data:") :].strip()
        if data == b"[DONE]":
            break
        now_ns = time.monotonic_ns()
        try:
            event = json.loads(data)
            if event.get("error"):
                raise RequestFailed(f"the stream ended with an error: {event['error']}")
            usage = event.get("usage")
            counted = usage["completion_tokens"] if usage else counted
            has_text = any(_text(choice) for choice in event.get("choices", ()))
        except (ValueError, AttributeError, KeyError, TypeError):
            raise RequestFailed(f"not an event of a completion: {data[:_SHOWN]!r}") from None
        if has_text:
            first_ns, last_ns, events = first_ns or now_ns, now_ns, events + 1
    if not events:
        raise RequestFailed("the answer has no token: is it streamed (`stream: true`)?")
    return Reply(first_ns, last_ns, counted or events)


def _text(choice: dict[str, Any]) -> str:
    """Return an event's new text: of a completion, or of a chat's (also its reasoning)."""
    delta = choice.get("delta") or choice
    return delta.get("text") or delta.get("content") or delta.get("reasoning_content") or ""
