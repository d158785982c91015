"""A user's server as plain data: how it is started and reached, and what one request to it is."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urljoin, urlsplit

ServerProtocol = Literal["http", "openai"]

PORT, PYTHON = "{port}", "{python}"
"""In a command or its URL: the chosen port, and pytest's own Python."""

MISSING_AIOHTTP = (
    "tenants with a server need the package aiohttp, which is not installed: "
    "pip install 'pytest-hwqueue[server]'"
)


@dataclass(frozen=True)
class ServerSpec:
    """A server and its requests.

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
    headers: Mapping[str, str] = field(default_factory=dict)
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
        _, port = host_and_port(url)
        return urljoin(url, self.ready.replace(PORT, str(port)))


def host_and_port(url: str) -> tuple[str, int]:
    """Return where requests to a valid URL of HTTP or HTTPS go."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or {"http": 80, "https": 443}[parts.scheme]


def missing_client() -> str | None:
    """Return which package to install if the HTTP client is missing, or None."""
    return MISSING_AIOHTTP if importlib.util.find_spec("aiohttp") is None else None
