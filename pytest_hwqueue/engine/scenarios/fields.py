"""Fields of a scenario file."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urljoin, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from pytest_hwqueue.data.errors import nearest, shortened, within
from pytest_hwqueue.data.noise_names import NOISES, NONE, noise_file
from pytest_hwqueue.data.records.plan import (
    ClientCommand,
    ClientFormat,
    Prompts,
    Server,
    ServerProtocol,
)
from pytest_hwqueue.data.redaction import REDACTED, REFERENCE, redacted
from pytest_hwqueue.engine.noise.neighbours import described
from pytest_hwqueue.engine.scenarios.goals import RESERVED, Goal, parse_goal
from pytest_hwqueue.engine.tenants.arrivals import CLIENT, at_peak, parse_arrival
from pytest_hwqueue.engine.tenants.prompts import read_prompts
from pytest_hwqueue.engine.tenants.servers import CHAT, FOLDER, MOST_PATH_BYTES, PORT, SOCKET
from pytest_hwqueue.parts.schedulers.syntax import parse_entry
from pytest_hwqueue.parts.workloads.own_function import PATTERN, find
from pytest_hwqueue.parts.workloads.registry import WORKLOADS
from pytest_hwqueue.parts.workloads.tenants.shapes import MODELS, TORCHVISION, find_model

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_NAME = r"[A-Za-z][A-Za-z0-9_]*"
_DURATION = rf"({_NUMBER})\s*(ms|s|m|h)"
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
# Nothing is measured for longer: what asks for more has a wrong unit.
_LONGEST_S = 366 * 24 * 3600.0
_SHARE = rf"({_NUMBER})\s*%"


def _text(value: object, what: str) -> str:
    # YAML reads 1:30 as 90, and on as true: what is shown is not always what was written.
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text; give {what}")
    return value.strip()


def _read_name(value: object) -> str:
    what = "letters, digits and underscores, a letter first"
    name = _text(value, what)
    if re.fullmatch(_NAME, name) is None:
        raise ValueError(f"{name!r} is no name; give {what}")
    return name


def _read_unreserved_name(value: object) -> str:
    name = _read_name(value)
    if name in RESERVED:
        raise ValueError(f"{name!r} means something else in goals; choose another name")
    return name


def read_seconds(value: object) -> float:
    """Read a duration such as 180s; ValueError says what is wrong with it."""
    what = "a duration above 0 with its unit, such as 180s, 3m or 500ms"
    text = _text(value, what)
    found = re.fullmatch(_DURATION, text)
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if not 0 < seconds <= _LONGEST_S:
        raise ValueError(f"{shortened(text)!r} is no duration; give {what}, of at most a year")
    return seconds


def _read_share(value: object) -> float:
    what = "a share above 0 and up to 100%, such as 75%"
    text = _text(value, what)
    found = re.fullmatch(_SHARE, text)
    share = float(found[1]) / 100 if found else 0.0
    if not 0 < share <= 1:
        raise ValueError(f"{text!r} is no share; give {what}")
    return share


def _read_arrival(value: object, info: ValidationInfo) -> str:
    text = _text(value, "closed, or a rate such as constant: 20/s")
    assert info.context is not None
    if text == CLIENT:
        raise ValueError("client is what a tenant with server.client has: leave arrival out")
    arrival = at_peak(text, 1.0)
    with within(remedy="a rate may also be a share, such as 20% of peak"):
        parse_arrival(arrival, info.context["folder"])
    return text


def _read_prompts(value: object, info: ValidationInfo) -> Prompts:
    name = _text(value, "the name of a file, such as prompts.jsonl")
    assert info.context is not None
    prompts, _ = read_prompts(name, info.context["folder"])
    return prompts


def _read_scheduler(value: object) -> str:
    text = _text(value, "a scheduler mode, such as native")
    # Unquoted, YAML takes what is behind a comma for the next mode.
    hint = 'quote a mode that has commas: "xsched:level=1,threshold=1"' if "=" in text else ""
    with within(remedy=hint):
        parse_entry(text)
    return text


def expanded(entries: Iterable[str]) -> tuple[str, ...]:
    """Return the modes that scheduler entries stand for."""
    return tuple(str(mode) for entry in entries for mode in parse_entry(entry))


def _read_noise(value: object, info: ValidationInfo) -> str | None:
    name = _text(value, "a noise, such as cpu")
    assert info.context is not None
    if name in NOISES:
        return None if name == NONE else name
    if not name.endswith((".yaml", ".yml")):
        near = nearest(name, NOISES)
        raise ValueError(f"there is no noise {name!r}; {near}, or give a description's file")
    described(noise_file(name, info.context["folder"]), ())
    return name


def _read_socket(value: object, info: ValidationInfo) -> str:
    text = _text(value, "the path of a unix socket, such as server.sock")
    if text == SOCKET:
        return text
    if not text or "\0" in text:
        raise ValueError(f"{text!r} is no path; give that of a unix socket, such as server.sock")
    if REFERENCE.search(text):
        raise ValueError(f"{text!r} names a variable, which is not filled in here; give the path")
    assert info.context is not None
    path = Path(os.path.normpath(info.context["folder"].absolute() / text))
    if (length := len(os.fsencode(path))) > MOST_PATH_BYTES:
        raise ValueError(
            f"{shortened(str(path))!r} has {length} bytes, and a unix socket's path at most "
            f"{MOST_PATH_BYTES}; give a shorter one, or leave it out and write {SOCKET} into the "
            "command"
        )
    if path.exists() and not path.is_socket():
        raise ValueError(f"{str(path)!r} is no socket; remove it, or give another path")
    return text


def _read_function(value: object, info: ValidationInfo) -> str:
    text = _text(value, "a function, such as my_module:make_step")
    assert info.context is not None
    find(text, info.context["folder"])
    return text


def _read_goal(value: object) -> Goal:
    return parse_goal(_text(value, "a goal, such as high.latency_p99_ms < 10"))


def _known(what: str, names: Mapping[str, object]) -> AfterValidator:
    def check(name: str) -> str:
        if name not in names:
            raise ValueError(f"there is no {what} {name!r}; {nearest(name, names)}")
        return name

    return AfterValidator(check)


def _read_model(name: str) -> str:
    if name.startswith(TORCHVISION):
        find_model(name)
        return name
    if name not in MODELS:
        near = nearest(name, [*MODELS, f"{TORCHVISION}resnet18"])
        raise ValueError(f"there is no model {name!r}; {near}")
    return name


def _written(pattern: str, *examples: str) -> WithJsonSchema:
    schema = {"type": "string", "pattern": pattern}
    return WithJsonSchema({**schema, "examples": list(examples)} if examples else schema)


Name = Annotated[str, BeforeValidator(_read_name), _written(f"^{_NAME}$")]
NameInGoals = Annotated[str, BeforeValidator(_read_unreserved_name), _written(f"^{_NAME}$")]
Seconds = Annotated[
    float, BeforeValidator(read_seconds), _written(f"^{_DURATION}$", "180s", "3m", "500ms")
]
ShareField = Annotated[float, BeforeValidator(_read_share), _written(f"^{_SHARE}$", "75%")]
ArrivalText = Annotated[
    str,
    BeforeValidator(_read_arrival),
    _written(
        "^(closed|(closed|constant|poisson|lognormal|trace)\\s*:.+)$",
        "closed", "closed: delay=100ms", "constant: 20/s", "poisson: 20% of peak",
        "lognormal: 20/s, sigma=1.0", "trace: arrivals.txt",
    ),
]  # fmt: skip
NoiseName = Annotated[
    str | None, BeforeValidator(_read_noise), _written(".", *NOISES.built_in, "my_neighbour.yaml")
]
SchedulerField = Annotated[
    str, BeforeValidator(_read_scheduler), _written(".", "native", "xsched:level=1,threshold=1|2|4")
]
FunctionName = Annotated[
    str, BeforeValidator(_read_function), _written(f"^{PATTERN}$", "my_module:make_step")
]
GoalText = Annotated[
    Goal,
    BeforeValidator(_read_goal),
    _written(
        rf"^{_NAME}\.{_NAME}\s*[<>]=?\s*{_NUMBER}",
        "high.latency_p99_ms < 10", "high.attainment >= 99%", "low.throughput >= 80% of native",
        "high.p99 <= 1.3 x solo", "device.busy > 85%",
    ),
]  # fmt: skip
SocketPath = Annotated[
    str, BeforeValidator(_read_socket), _written(".", "server.sock", "/run/server.sock")
]
PromptsFile = Annotated[
    Prompts, BeforeValidator(_read_prompts), _written(".", "prompts.jsonl", "sharegpt.json")
]
ModelName = Annotated[str, AfterValidator(_read_model)]
WorkloadField = Annotated[str, _known("workload", WORKLOADS)]


_HOST = f"http://127.0.0.1:{PORT}"
_HOST_OF_SOCKET = "http://localhost"
_COMPLETIONS = "/v1/completions"
_OF_OPENAI = ("model", "prompt", "prompts", "max_tokens", "ttft_ms", "tbt_ms")
_SENT = "POST"


def _is_url(url: str, reference: str = "") -> bool:
    """Whether a URL, or what is referred to from there, is one of HTTP's or HTTPS'."""
    base, place = (REFERENCE.sub("1", each.replace(PORT, "1")) for each in (url, reference))
    try:
        parts = urlsplit(urljoin(base, place))
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _shown_url(url: str) -> str:
    """Return a URL that is not valid without user, password and query, wherever these end."""
    before, _, place = url.rpartition("@")
    place = redacted(place.partition("?")[0])
    return f"{REDACTED}@{place}" if before else place


def _words(command: str | Sequence[str]) -> list[str]:
    """Return program and arguments; ValueError if they cannot be told apart."""
    return shlex.split(command) if isinstance(command, str) else list(command)


class ClientFields(BaseModel):
    """A load generator of another project that sends the tenant's requests."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    command: str | Annotated[tuple[str, ...], Field(min_length=1, strict=False)] = Field(
        description="starts it, in the scenario file's folder; {url}, {port} and "
        "{python} as for the server, {folder} is a new folder for what it writes, {seconds} the "
        "window's length",
        examples=["aiperf profile --url {url} --output-artifact-dir {folder}"],
    )
    format: ClientFormat = Field(description="whose records of requests it writes")
    records: str | None = Field(
        None,
        description="file below {folder} that it writes them to; by default profile_export.jsonl "
        "for aiperf, benchmarks.json for guidellm, result.json for vllm",
    )
    lead: Seconds = Field(
        0.0,
        description="it starts so long before the window; what it sends until then does not count",
    )

    def client(self) -> ClientCommand:
        """Return the client as a plan has it."""
        records = self.records or _CLIENTS_RECORDS[self.format]
        return ClientCommand(tuple(self.words()), records, self.format, self.lead)

    def words(self) -> list[str]:
        """Return program and arguments; ValueError if they cannot be told apart."""
        return _words(self.command)


_CLIENTS_RECORDS: Mapping[ClientFormat, str] = {
    "aiperf": "profile_export.jsonl", "guidellm": "benchmarks.json", "vllm": "result.json",
}  # fmt: skip
# What only our own requests have.
_OF_REQUESTS = (
    "method", "headers", "body", "status", "model", "prompt", "prompts", "max_tokens",
)  # fmt: skip


class ServerFields(BaseModel):
    """A server that does the tenant's work: started here, or running already."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    command: str | Annotated[tuple[str, ...], Field(min_length=1, strict=False)] | None = Field(
        None,
        description="starts it, in the scenario file's folder and under the scheduler; {port} is a "
        "free port, {socket} the socket, {python} pytest's Python. Without it the server runs "
        "already, at url or socket, and is not ours: no scheduler is proven for it",
        examples=["{python} serve.py --port {port}"],
    )
    url: str | None = Field(
        None,
        description="where requests go; by default http://127.0.0.1:{port}/ with a command, for "
        "openai http://127.0.0.1:{port}/v1/completions; with a socket on localhost",
    )
    socket: SocketPath | None = Field(
        None,
        description="unix socket that requests go to, from the scenario file's folder; url is then "
        "their host and path. By default a new one, if the command has {socket}; else TCP",
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
    headers: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="of each request. In their values, and in url, ready, command and "
        "client.command, ${NAME} is a variable of the environment, and stored as such; $${NAME} is "
        "that text",
        examples=[{"Authorization": "Bearer ${TOKEN}"}],
    )
    body: str | dict[str, Any] | list[Any] | None = Field(
        None,
        description="text; or a table or list, sent as JSON. For openai a table of further fields "
        "of the request",
    )
    prompts: PromptsFile | None = Field(
        None,
        description="for openai: file of prompts and lengths of answers, in place of prompt: JSON "
        "lines of prompt and max_tokens, ShareGPT's conversations, or Mooncake's trace; drawn by "
        "the seed, or in its order where arrival is a trace of the same file",
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
    client: ClientFields | None = Field(
        None,
        description="sends the requests, in place of ours; for openai, whose tokens its records "
        "tell",
    )

    @model_validator(mode="after")
    def _fit_together(self) -> ServerFields:
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def server(self) -> Server:
        """Return the server as a plan has it."""
        headers, body = dict(self.headers), self.body
        if self.protocol == "openai" and self.client is None:
            body = self._completion()
        if body is not None and not isinstance(body, str):
            body = json.dumps(body)
            if "content-type" not in map(str.lower, headers):
                headers["Content-Type"] = "application/json"
        return Server(
            url=self._url(),
            command=tuple(self._command()),
            socket=self._socket(),
            ready=self.ready,
            ready_s=self.ready_timeout,
            timeout_s=self.timeout,
            stop_s=self.stop_timeout,
            protocol=self.protocol,
            method=self.method or ("GET" if body is None else _SENT),
            headers=headers,
            body=body,
            prompts=self.prompts,
            most_tokens=self.max_tokens if self.prompts is not None else None,
            status=self.status,
            ttft_ms=self.ttft_ms,
            tbt_ms=self.tbt_ms,
            client=None if self.client is None else self.client.client(),
        )

    def _command(self) -> list[str]:
        return _words(self.command or ())

    def _socket(self) -> str | None:
        takes_one = any(SOCKET in part for part in self._command())
        return self.socket or (SOCKET if takes_one else None)

    def _url(self) -> str:
        host = _HOST if self._socket() is None else _HOST_OF_SOCKET
        return self.url or host + (_COMPLETIONS if self.protocol == "openai" else "/")

    def _completion(self) -> dict[str, Any]:
        """Return the request of a streamed completion; a chat's has messages."""
        fields: dict[str, Any] = {"stream": True}
        if self.model is not None:
            fields["model"] = self.model
        if self.max_tokens is not None and self.prompts is None:
            fields["max_tokens"] = self.max_tokens
        if self.prompt is not None and self._url().endswith(CHAT):
            fields["messages"] = [{"role": "user", "content": self.prompt}]
        elif self.prompt is not None:
            fields["prompt"] = self.prompt
        assert isinstance(self.body, (dict, type(None)))
        return fields | (self.body or {})

    def _problems(self) -> Iterator[str]:
        if self.command is None and self.url is None and self.socket is None:
            yield "give a command that starts the server, or the url or socket of one that runs"
        try:
            command = self._command()
        except ValueError as error:
            yield f"the command cannot be split into arguments: {error}"
            return
        if self.command is not None and not command:
            yield "the command is empty"
        yield from self._problems_of_socket(command)
        url = self._url()
        if self.command is None and PORT in url:
            yield f"url: {PORT} is the port that a command gets, and there is no command"
        if self.command is not None and PORT in url and not any(PORT in each for each in command):
            yield f"the command does not take the port: put {PORT} into it, or give the url"
        ready = self.ready or ""
        if PORT in ready and PORT not in url:
            yield f"ready: {PORT} is the port of the url, which does not have it"
        if not _is_url(url):
            yield f"url: {_shown_url(url)!r} is not valid; give one such as http://127.0.0.1:8000/v1/completions"
        elif not _is_url(url, ready):
            shown = _shown_url(ready)
            yield f"ready: {shown!r} is not valid; give a path such as /health, or a URL"
        yield from self._problems_of_protocol()

    def _problems_of_socket(self, command: Sequence[str]) -> Iterator[str]:
        if self._socket() is None:
            return
        if self.socket == SOCKET and not any(SOCKET in each for each in command):
            yield f"socket: {SOCKET} is what a command gets: put it into that, or give a path"
        if not self._url().startswith("http://") or PORT in self._url():
            example = f"{_HOST_OF_SOCKET}{_COMPLETIONS}"
            yield f"url: with a socket, give one of HTTP without {PORT}, such as {example}"
        if urlsplit(self.ready or "").netloc:
            yield "ready: with a socket, give a path such as /health: it is asked there, too"

    def _problems_of_client(self, client: ClientFields) -> Iterator[str]:
        if self.protocol != "openai":
            yield "client: give protocol: openai, whose tokens its records tell"
        if given := [name for name in _OF_REQUESTS if name in self.model_fields_set]:
            yield f"{given[0]} is of our own requests, and the client makes these: tell it instead"
        try:
            words = client.words()
        except ValueError as error:
            yield f"client.command cannot be split into arguments: {error}"
            return
        if not any(FOLDER in word for word in words):
            yield f"client.command does not take the folder: let it write its records to {FOLDER}"
        if Path(client.records or "").is_absolute() or ".." in Path(client.records or "").parts:
            yield f"client.records: give a file below {FOLDER}"
        if self._socket() is not None:
            yield "client: a client of another project is not led to a unix socket; use a port"

    def _problems_of_protocol(self) -> Iterator[str]:
        given = [name for name in _OF_OPENAI if getattr(self, name) is not None]
        if self.protocol == "http" and given:
            yield f"{given[0]} is for protocol: openai"
        if self.protocol == "openai" and not isinstance(self.body, (dict, type(None))):
            yield "body: for openai, give a table of further fields of the request"
        if self.client is not None:
            yield from self._problems_of_client(self.client)
        elif self.prompts is not None:
            of_prompts = ("prompt", "messages", "max_tokens")
            given = [name for name in of_prompts if name in (self.body or {})]
            if self.prompt is not None or given:
                yield f"{given[0] if given else 'prompt'} is what each line of prompts has"
        elif self.protocol == "openai" and self.prompt is None and self.body is None:
            yield "openai: give a prompt or prompts, or the request's fields as body"
