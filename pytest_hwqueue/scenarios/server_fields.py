"""The field ``server`` of a tenant: the user's own server, and what one request to it is."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pytest_hwqueue.scenarios.fields import Seconds
from pytest_hwqueue.servers.spec import PORT, ServerProtocol, ServerSpec

_HOST = f"http://127.0.0.1:{PORT}"
_COMPLETIONS, _CHAT = "/v1/completions", "chat/completions"
_OF_OPENAI = ("model", "prompt", "max_tokens", "ttft_ms", "tbt_ms")
_SENT = "POST"


class Server(BaseModel):
    """A server that does the tenant's work: started here, or running already."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    command: str | Annotated[tuple[str, ...], Field(min_length=1, strict=False)] | None = Field(
        None,
        description="starts it, in the scenario file's folder and under the scheduler; {port} is a "
        "free port, {python} pytest's Python. Without it the server runs already, at url",
        examples=["{python} serve.py --port {port}"],
    )
    url: str | None = Field(
        None,
        description="where requests go; by default http://127.0.0.1:{port}/ with a command, for "
        "openai http://127.0.0.1:{port}/v1/completions",
    )
    ready: str | None = Field(
        None,
        description="URL, or path such as /health, that answers 2xx once the server is ready; by "
        "default it is ready when it accepts connections",
    )
    ready_timeout: Seconds = Field(60.0, description="within which it must be ready")
    timeout: Seconds = Field(10.0, description="a request that takes longer has failed")
    stop_timeout: Seconds = Field(10.0, description="after SIGTERM, when it is killed")
    protocol: ServerProtocol = Field(
        "http", description="http, or openai: streamed completions, whose tokens are timed"
    )
    method: str | None = Field(
        None, pattern="^[A-Z]+$", description="by default GET, with a body POST"
    )
    headers: dict[str, str] = Field(default_factory=dict)
    body: str | dict[str, Any] | list[Any] | None = Field(
        None,
        description="text; or a table or list, sent as JSON. For openai a table of further fields "
        "of the request",
    )
    status: int = Field(200, ge=100, le=599, description="the expected one; others are failures")
    model: str | None = Field(None, description="for openai: its name for the server")
    prompt: str | None = Field(
        None, description="for openai: the text to complete, or what a chat's user says"
    )
    max_tokens: int | None = Field(None, ge=1, description="for openai: the most in an answer")
    ttft_ms: float | None = Field(
        None, gt=0, description="for openai: a good request's first token comes within it"
    )
    tbt_ms: float | None = Field(
        None, gt=0, description="for openai: a good request's mean time between tokens is within it"
    )

    @model_validator(mode="after")
    def _fit_together(self) -> Server:
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def spec(self) -> ServerSpec:
        """Return it as a plan has it."""
        headers, body = dict(self.headers), self.body
        if self.protocol == "openai":
            body = self._completion()
        if body is not None and not isinstance(body, str):
            body = json.dumps(body)
            if "content-type" not in map(str.lower, headers):
                headers["Content-Type"] = "application/json"
        return ServerSpec(
            url=self._url(),
            command=tuple(self._command()),
            ready=self.ready,
            ready_s=self.ready_timeout,
            timeout_s=self.timeout,
            stop_s=self.stop_timeout,
            protocol=self.protocol,
            method=self.method or ("GET" if body is None else _SENT),
            headers=headers,
            body=body,
            status=self.status,
            ttft_ms=self.ttft_ms,
            tbt_ms=self.tbt_ms,
        )

    def _command(self) -> list[str]:
        if isinstance(self.command, str):
            return shlex.split(self.command)
        return list(self.command or ())

    def _url(self) -> str:
        return self.url or _HOST + (_COMPLETIONS if self.protocol == "openai" else "/")

    def _completion(self) -> dict[str, Any]:
        """Return the request of a streamed completion; a chat's has messages."""
        fields: dict[str, Any] = {"stream": True}
        if self.model is not None:
            fields["model"] = self.model
        if self.max_tokens is not None:
            fields["max_tokens"] = self.max_tokens
        if self.prompt is not None and self._url().endswith(_CHAT):
            fields["messages"] = [{"role": "user", "content": self.prompt}]
        elif self.prompt is not None:
            fields["prompt"] = self.prompt
        assert isinstance(self.body, (dict, type(None)))
        return fields | (self.body or {})

    def _problems(self) -> Iterator[str]:
        if self.command is None and self.url is None:
            yield "give a command that starts the server, the url of one that runs, or both"
        try:
            command = self._command()
        except ValueError as error:
            yield f"the command {self.command!r} cannot be split into arguments: {error}"
            return
        if self.command is not None and not command:
            yield "the command is empty"
        url = self._url()
        if self.command is None and PORT in url:
            yield f"url: {PORT} is the port that a command gets, and there is no command"
        if self.command is not None and PORT in url and not any(PORT in each for each in command):
            yield f"the command does not take the port: put {PORT} into it, or give the url"
        try:
            parts = urlsplit(url.replace(PORT, "1"))
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            yield f"url: {url!r} is not valid; give one such as http://127.0.0.1:8000/v1/completions"
        given = [name for name in _OF_OPENAI if getattr(self, name) is not None]
        if self.protocol == "http" and given:
            yield f"{given[0]} is for protocol: openai"
        if self.protocol == "openai" and not isinstance(self.body, (dict, type(None))):
            yield "body: for openai, give a table of further fields of the request"
        if self.protocol == "openai" and self.prompt is None and self.body is None:
            yield "openai: give a prompt, or the request's fields as body"
