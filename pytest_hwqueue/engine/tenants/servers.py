"""How a user's server is reached, and what about it no record may hold."""

from __future__ import annotations

import base64
import importlib.util
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from pytest_hwqueue.data.records.plan import Colocation, Server
from pytest_hwqueue.data.redaction import (
    NOTHING,
    is_called_secret,
    known_forms,
    mask,
    redacted,
    redacted_arguments,
    secrets_among,
    secrets_in,
)
from pytest_hwqueue.engine.tenants.server_variables import (
    expand,
    expand_url,
    unset_reason,
    variables_in,
)
from pytest_hwqueue.parts.processes.process_table import Place, TcpPort, UnixSocket

PORT, PYTHON, SOCKET = "{port}", "{python}", "{socket}"
"""In a command: the chosen port (in its URL, too), pytest's own Python, and the unix socket."""

CHAT = "chat/completions"
"""How the path of a URL ends whose requests have messages in place of a prompt."""

URL, FOLDER, SECONDS = "{url}", "{folder}", "{seconds}"
"""In a client's command: where requests go, its folder, and the window's length."""

MOST_PATH_BYTES = 107
"""Of a unix socket's path: Linux' sun_path has 108, with a zero at the end."""

MISSING_AIOHTTP = (
    "tenants with a server need the package aiohttp, which is not installed: "
    "pip install 'pytest-hwqueue[server]'"
)


# Of a digest: enough to tell two values apart, 255 times of 256, and too few to find one by.
_DIGITS = 2
# What their values are, every answer says.
_PLAIN_HEADERS = frozenset(
    {
        "accept", "accept-charset", "accept-encoding", "accept-language", "cache-control",
        "connection", "content-length", "content-type", "host", "user-agent",
    }
)  # fmt: skip


def ready_url(server: Server) -> str | None:
    """Return the URL to ask whether a server is ready, where the port of its `url` is known."""
    if server.ready is None:
        return None
    ready = server.ready
    if PORT in ready:
        ready = ready.replace(PORT, str(host_and_port(expand_url(server.url))[1]))
    return urljoin(server.url, ready)


def places(server: Server) -> list[Place]:
    """Return where a server must listen, its port or socket filled in: for requests and `ready`."""
    if server.socket is not None:
        return [UnixSocket(Path(server.socket))]
    urls = map(expand_url, (server.url, ready_url(server) or server.url))
    return [TcpPort(*at) for at in dict.fromkeys(map(host_and_port, urls))]


def unset_variable(server: Server) -> str | None:
    """Return the first field whose variable is not set, and what to do; None if all are."""
    for place, text in _with_variables(server):
        for name in variables_in([text]):
            if (reason := unset_reason(name)) is not None:
                return f"{place}: {reason}"
    return None


def secrets_of(server: Server) -> frozenset[str]:
    """Return what must not be written or shown, in each form that it may have there.

    These are the values of headers (not of those that every answer has, such as Content-Type),
    of variables, and what `redaction` finds by name in URLs, body and command.
    """
    texts = [text for _, text in _with_variables(server)]
    stated = [os.environ.get(name, "") for name in variables_in(texts)]
    if unset_variable(server) is not None:
        # Nothing can be started or sent.
        return known_forms(stated)
    values: list[str] = []
    for name, value in server.headers.items():
        if name.lower() not in _PLAIN_HEADERS:
            sent = expand(value)
            # Also without its scheme, such as Bearer, and each cookie or parameter by itself.
            values += [sent, sent.partition(" ")[2], *re.findall(r'=\s*"?([^";,]+)', sent)]
    for url in (server.url, server.ready or ""):
        for secret in secrets_in(expand_url(url)):
            values += [secret, secret.partition(":")[2], *_as_header(secret)]
    values += secrets_in(server.body or "")
    for command in _commands(server):
        values += secrets_among([expand(part) for part in command])
    return known_forms([*stated, *(v for v in values if v.lower() not in NOTHING)])


def _with_variables(server: Server) -> Iterator[tuple[str, str]]:
    """Return each text in which `${NAME}` stands for a variable, and the field it is in."""
    yield "url", server.url
    yield "ready", server.ready or ""
    yield from (("command", part) for part in server.command)
    if server.client is not None:
        yield from (("client.command", part) for part in server.client.command)
    yield from ((f"headers.{name}", value) for name, value in server.headers.items())


def _commands(server: Server) -> Iterator[tuple[str, ...]]:
    yield server.command
    if server.client is not None:
        yield server.client.command


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


def secrets_of_plan(plan: Colocation) -> frozenset[str]:
    """Return what must not be written or shown, as `secrets_of` says."""
    return frozenset(secret for server in plan.servers.values() for secret in secrets_of(server))


def _digests(server: Server) -> dict[str, str]:
    """Return digests of what variables stand for, and of headers, that records do not hold.

    There are none of what may be a secret by its name, or the name of its header: that may change
    with each session, too.
    """
    headers = {
        name.lower(): value
        for name, value in server.headers.items()
        if not is_called_secret(name, value)
    }
    texts = [server.url, *(part for command in _commands(server) for part in command)]
    named = dict.fromkeys(variables_in([*texts, *headers.values()]))
    values = {name: os.environ.get(name, "") for name in named}
    found = {
        f"${{{name}}}": value
        for name, value in values.items()
        if value and not is_called_secret(name, value)
    }
    found |= {
        f"headers.{name}": value for name, value in headers.items() if not variables_in([value])
    }
    return {
        name: sha256(f"{name}={value}".encode(errors="surrogateescape")).hexdigest()[:_DIGITS]
        for name, value in found.items()
    }


def for_records(plan: Colocation) -> Colocation:
    """Return a plan as records keep it: without secrets, and paths of this machine."""
    secrets = secrets_of_plan(plan)

    def shown(text: str | None) -> str | None:
        return None if text is None else redacted(text, secrets)

    def without_secrets(server: Server) -> Server:
        return replace(
            server,
            headers={name: mask(text) for name, text in server.headers.items()},
            url=redacted(server.url, secrets),
            ready=shown(server.ready),
            body=shown(server.body),
            command=tuple(redacted_arguments(server.command, secrets)),
            client=server.client
            and replace(
                server.client, command=tuple(redacted_arguments(server.client.command, secrets))
            ),
            digests=_digests(server),
        )

    tenants = [
        replace(each, server=each.server and without_secrets(each.server), deadline_ms=None)
        for each in plan.tenants
    ]
    return replace(plan, tenants=tuple(tenants), folder=".")
