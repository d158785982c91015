"""A user's server as plain data: how it is started and reached, and what one request to it is."""

from __future__ import annotations

import base64
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote, urljoin, urlsplit

from pytest_hwqueue.data.redaction import NOTHING, known_forms, secrets_among, secrets_in
from pytest_hwqueue.engine.tenants.server_variables import (
    expand,
    expand_url,
    unset_reason,
    variables_in,
)

ServerProtocol = Literal["http", "openai"]

PORT, PYTHON = "{port}", "{python}"
"""In a command or its URL: the chosen port, and pytest's own Python."""

MISSING_AIOHTTP = (
    "tenants with a server need the package aiohttp, which is not installed: "
    "pip install 'pytest-hwqueue[server]'"
)


# What their values are, every answer says.
_PLAIN_HEADERS = frozenset(
    {
        "accept", "accept-charset", "accept-encoding", "accept-language", "cache-control",
        "connection", "content-length", "content-type", "host", "user-agent",
    }
)  # fmt: skip


@dataclass(frozen=True)
class ServerSpec:
    """A server and its requests.

    In `url`, `command`, `ready` and the values of `headers`, `${NAME}` stands for a variable of the
    environment. It is filled in where the command is started or a request sent, and never stored.

    Attributes:
        url: where each request goes; ``{port}`` in it is the port given to the command.
        command: program and arguments; empty if the server runs already.
        ready: URL, or a path on that of the requests, that answers 2xx once the server is ready; if
            None, a server that is started is ready when it accepts connections. ``{port}`` as in
            ``url``.
        ready_s: longest time until it is ready.
        timeout_s: a request that takes longer has failed; counted from when it is sent.
        stop_s: from SIGTERM until it is killed.
        protocol: ``http``, or ``openai``: the answer is a stream of tokens (server-sent events).
        method: of each request.
        headers: of each request.
        body: of each request; None for none.
        status: the expected one; any other is a failure.
        ttft_ms: latest first token of a good request, for goodput; None for no bound.
        tbt_ms: longest mean time between tokens of a good request, likewise.

    """

    url: str
    command: tuple[str, ...] = ()
    ready: str | None = None
    ready_s: float = 60.0
    timeout_s: float = 10.0
    stop_s: float = 10.0
    protocol: ServerProtocol = "http"
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: str | None = None
    status: int = 200
    ttft_ms: float | None = None
    tbt_ms: float | None = None

    @property
    def ours(self) -> bool:
        """Whether it is started here, under the scheduler in use; who answers is another matter."""
        return bool(self.command)

    def ready_url(self, url: str) -> str | None:
        """Return the URL to ask whether it is ready, given that of the requests."""
        if self.ready is None:
            return None
        ready = self.ready
        if PORT in ready:
            ready = ready.replace(PORT, str(host_and_port(expand_url(url))[1]))
        return urljoin(url, ready)

    def unset_variable(self) -> str | None:
        """Return the first field whose variable is not set, and what to do; None if all are."""
        for place, text in self._with_variables():
            for name in variables_in([text]):
                if (reason := unset_reason(name)) is not None:
                    return f"{place}: {reason}"
        return None

    def secrets(self) -> frozenset[str]:
        """Return what must not be written or shown, in each form that it may have there.

        These are the values of headers (not of those that every answer has, such as Content-Type),
        of variables, and what `redaction` finds by name in URLs, body and command.
        """
        texts = [text for _, text in self._with_variables()]
        stated = [os.environ.get(name, "") for name in variables_in(texts)]
        if self.unset_variable() is not None:
            # Nothing can be started or sent.
            return known_forms(stated)
        values: list[str] = []
        for name, value in self.headers.items():
            if name.lower() not in _PLAIN_HEADERS:
                sent = expand(value)
                # Also without its scheme, such as Bearer, and each cookie or parameter by itself.
                values += [sent, sent.partition(" ")[2], *re.findall(r'=\s*"?([^";,]+)', sent)]
        for url in (self.url, self.ready or ""):
            for secret in secrets_in(expand_url(url)):
                values += [secret, secret.partition(":")[2], *_as_header(secret)]
        values += secrets_in(self.body or "")
        values += secrets_among([expand(part) for part in self.command])
        return known_forms([*stated, *(v for v in values if v.lower() not in NOTHING)])

    def _with_variables(self) -> Iterator[tuple[str, str]]:
        """Return each text in which `${NAME}` stands for a variable, and the field it is in."""
        yield "url", self.url
        yield "ready", self.ready or ""
        yield from (("command", part) for part in self.command)
        yield from ((f"headers.{name}", value) for name, value in self.headers.items())


def _as_header(user: str) -> Iterator[str]:
    """Return how a URL's user and password are sent as a header: aiohttp takes Latin-1."""
    name, _, password = unquote(user).partition(":")
    for encoding in ("latin-1", "utf-8"):
        with suppress(UnicodeEncodeError):
            yield base64.b64encode(f"{name}:{password}".encode(encoding)).decode()


def host_and_port(url: str) -> tuple[str, int]:
    """Return where requests to a valid URL of HTTP or HTTPS go, its variables filled in."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or {"http": 80, "https": 443}[parts.scheme]


def missing_client() -> str | None:
    """Return which package to install if the HTTP client is missing, or None."""
    return MISSING_AIOHTTP if importlib.util.find_spec("aiohttp") is None else None
