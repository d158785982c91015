"""What runs together: tenants, where, and on what. Validated once, run, and kept in records."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field
from pydantic_core import to_jsonable_python

from pytest_hwqueue.data.errors import BadInput
from pytest_hwqueue.data.metrics.estimate import PlainData
from pytest_hwqueue.data.noise_names import noise_id
from pytest_hwqueue.data.records.placement import TenantPlacement

ServerProtocol = Literal["http", "openai"]

LONGER_WINDOW = "give a longer duration"
FEWER_KERNELS = "give work of fewer kernels"

# Names stand in goals (`high.latency_p99_ms`) and in file names.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Prompts:
    """A file of prompts and lengths of answers.

    Attributes:
        file: its name, from the scenario's folder.
        sha256: of its bytes, when the scenario was read.
        requests: how many it holds.

    """

    __pydantic_config__: ClassVar[ConfigDict] = PlainData.model_config

    file: str
    sha256: str
    requests: int


ClientFormat = Literal["aiperf", "guidellm", "vllm"]


@dataclass(frozen=True)
class ClientCommand:
    """A load generator of another project, whose requests to a server are a tenant's.

    Attributes:
        command: program and arguments. ``{url}``, ``{port}`` and ``{python}`` are the server's,
            ``{folder}`` is a new folder, ``{seconds}`` the window's length.
        records: file that it writes a record of each request to, below ``{folder}``.
        format: whose records these are.
        lead_s: it starts so long before the window; what it sends until then does not count.

    """

    __pydantic_config__: ClassVar[ConfigDict] = PlainData.model_config

    command: tuple[str, ...]
    records: str
    format: ClientFormat
    lead_s: float = 0.0


@dataclass(frozen=True)
class Server:
    """A server and its requests.

    In `url`, `command`, `ready` and the values of `headers`, `${NAME}` stands for a variable of the
    environment. It is filled in where the command is started or a request sent, and never stored.

    Attributes:
        url: where each request goes; ``{port}`` in it is the port given to the command.
        command: program and arguments; empty if the server runs already.
        socket: path of the unix socket that requests go to, from the scenario's folder; of `url`
            then host and path are sent. ``{socket}``: a new one, given to the command. None for
            TCP.
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
        prompts: what each request asks for, in place of a prompt in `body`; None for that alone.
        most_tokens: the most in an answer, whatever `prompts` says; None for no such limit.
        status: the expected one; any other is a failure.
        ttft_ms: latest first token of a good request, for goodput; None for no bound.
        tbt_ms: longest mean time between tokens of a good request, likewise.
        client: makes the requests; None for ours, which the rest says how to make.
        digests: what tells values apart that no record holds: those of variables in `command`, by
            their name, and of headers. None stands there of what is a secret by its name.

    """

    __pydantic_config__: ClassVar[ConfigDict] = PlainData.model_config

    url: str
    command: tuple[str, ...] = ()
    socket: str | None = None
    ready: str | None = None
    ready_s: float = 60.0
    timeout_s: float = 10.0
    stop_s: float = 10.0
    protocol: ServerProtocol = "http"
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: str | None = None
    prompts: Prompts | None = None
    most_tokens: int | None = None
    status: int = 200
    ttft_ms: float | None = None
    tbt_ms: float | None = None
    client: ClientCommand | None = None
    digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def ours(self) -> bool:
        """Whether it is started here, under the scheduler in use; who answers is another matter."""
        return bool(self.command)


# How long a server is waited for, and bounds of figures that no gate judges.
_NOT_IDENTITY = ("ready_s", "stop_s", "ttft_ms", "tbt_ms")


def identity_of(server: Server) -> dict[str, Any]:
    """Return what makes a server another one, as plain data."""
    stated: dict[str, Any] = to_jsonable_python(server)
    headers = {name.lower(): value for name, value in stated["headers"].items()}
    kept = {name: value for name, value in stated.items() if name not in _NOT_IDENTITY}
    return {**kept, "headers": headers}


@dataclass(frozen=True)
class Tenant:
    """One tenant: what it runs, when its requests arrive, and its claim to the device.

    Attributes:
        name: identifies it in results and goals; letters, digits and underscores.
        model: name of a model; this, ``workload``, ``function`` or ``server``.
        workload: name of a workload of the suite; a request is one iteration of it.
        function: the user's own, as ``module:attribute``; its step is one request.
        parameters: of the workload or model, over those of its size; of a function, passed to it.
        size: ``tiny``, ``small`` (workloads only), ``full``, or ``auto`` (by the kind of device).
        batch: inputs in one request, for a model.
        arrival: ``closed``, ``closed: delay=100ms``, ``constant: 20/s``, ``poisson: 20/s``,
            ``lognormal: 20/s, sigma=1.0`` or ``trace: FILE``; ``client`` where a server's client
            decides.
        priority: larger is more urgent; the scheduler in use maps it.
        share: of the device's multiprocessors, above 0 and at most 1, for schedulers that can.
        streams: number of streams, for this tenant only.
        concurrency: how many requests are served at once; of a server, connections.
        weights: folder with a model's weights; None for random weights from the seed.
        faults: planted in this tenant on purpose, as ``--hwq-fault`` takes them.
        server: the user's, which does the work; a request is one to it.
        start_s: it begins to serve so long after the window has begun.
        requests: it issues so many in a window, which ends once all such tenants have served
            theirs; None for no limit.
        deadline_ms: latency within which a request is attained, until `Colocation.asked_ms` has it.
        trace_sha256: of the file that its arrival is a trace from; None for other arrivals.

    """

    __pydantic_config__: ClassVar[ConfigDict] = PlainData.model_config

    name: str
    model: str | None = None
    workload: str | None = None
    function: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    size: str = "auto"
    batch: int | None = None
    arrival: str = "closed"
    priority: int = 0
    share: float | None = None
    streams: int = 1
    concurrency: int = 1
    weights: str | None = None
    faults: tuple[str, ...] = ()
    server: Server | None = None
    start_s: float = 0.0
    requests: int | None = None
    deadline_ms: Annotated[float | None, Field(exclude=True)] = None
    trace_sha256: str | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise BadInput(
                f"tenants.name: {self.name!r} is not valid; use letters, digits and underscores, "
                "a letter first"
            )
        where = f"tenant {self.name}"
        kinds = (self.model, self.workload, self.function, self.server)
        if sum(each is not None for each in kinds) != 1:
            raise BadInput(f"{where}: give one of model, workload, function, server")
        if self.batch is not None and self.model is None:
            raise BadInput(f"{where}: batch is a model's; a workload has parameters")
        for name in ("batch", "streams", "concurrency", "requests"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise BadInput(f"{where}: {name} is {count}; give at least 1")
        if self.share is not None and not 0 < self.share <= 1:
            raise BadInput(f"{where}: share is {self.share}; give one above 0 and at most 1")
        if not 0 <= self.start_s < math.inf:
            raise BadInput(f"{where}: start_s is {self.start_s}; give 0 or more")

    @property
    def start_ns(self) -> int:
        """When it begins to serve, in nanoseconds from the window's start."""
        return round(self.start_s * 1e9)


@dataclass(frozen=True)
class Colocation:
    """Tenants that run together, and how.

    Attributes:
        name: of the scenario.
        tenants: who runs; at least one.
        placement: a process for each tenant, or threads of one process.
        duration_s: length of the common measuring window.
        warmup_s: each tenant runs requests for at least this long before it is ready.
        seed: of arrivals; of weights and inputs too, unless ``work_seed`` is given.
        device: label, such as ``cpu``, ``cuda:1`` or ``sim:h200``.
        scheduler: text of the scheduler mode, such as ``xsched:level=1,threshold=1``.
        goals: as written in the scenario; judged elsewhere.
        asked_ms: latency that a tenant's goals or its deadline ask for, by name: how late its
            generator may be.
        folder: of the scenario: names of trace files and of functions' modules start from it.
            It is a path of this machine, and no record keeps it.
        noise: background load on the CPU: a name or file as in ``--hwq-noise``; None for none.
        work_seed: of weights and inputs, which tenants that live on keep while arrivals change.

    """

    __pydantic_config__: ClassVar[ConfigDict] = PlainData.model_config

    name: str
    tenants: tuple[Tenant, ...]
    placement: TenantPlacement = TenantPlacement.PROCESSES
    duration_s: float = 60.0
    warmup_s: float = 2.0
    seed: int = 0
    device: str = "cpu"
    scheduler: str = "native"
    goals: tuple[str, ...] = ()
    asked_ms: Mapping[str, float] = field(default_factory=dict)
    folder: Annotated[str, Field(exclude=True)] = "."
    noise: str | None = None
    work_seed: int | None = None

    def __post_init__(self) -> None:
        if not self.tenants:
            raise BadInput("tenants: there must be at least one")
        names = [tenant.name for tenant in self.tenants]
        for name in names:
            if names.count(name) > 1:
                raise BadInput(f"tenants.name: {name!r} stands there more than once")
        if self.placement == TenantPlacement.THREADS and self.servers:
            raise BadInput("placement: a server is a process, so its tenants are in processes")
        if self.counted and self.servers:
            raise BadInput("tenants.requests: a window with a server ends by time alone")
        if not (math.isfinite(self.duration_s) and self.duration_s > 0):
            raise BadInput(f"duration_s: {self.duration_s} is not above 0")
        if not (math.isfinite(self.warmup_s) and self.warmup_s >= 0):
            raise BadInput(f"warmup_s: {self.warmup_s} is below 0")
        if reason := self.too_short(self.duration_s):
            raise BadInput(reason)

    @property
    def id(self) -> str:
        """Stable and readable, such as ``high_load[cuda-processes-mps]``."""
        noise_part = "" if self.noise is None else f"-{noise_id(self.noise)}"
        return f"{self.name}[{self.device}-{self.placement}-{self.scheduler}{noise_part}]"

    @property
    def duration_ns(self) -> int:
        """Length of the window in nanoseconds."""
        return round(self.duration_s * 1e9)

    def too_short(self, window_s: float, longer: str = LONGER_WINDOW) -> str | None:
        """Return which tenant would serve nothing in a window of so many seconds, or None.

        Args:
            window_s: its length.
            longer: what would make it longer, as an order.

        """
        late = max(self.tenants, key=lambda tenant: tenant.start_s)
        return starts_too_late(late.name, late.start_s, window_s, longer)

    @property
    def all_there_ns(self) -> int:
        """When the last tenant begins to serve, in nanoseconds from the window's start."""
        return max(tenant.start_ns for tenant in self.tenants)

    @property
    def counted(self) -> dict[str, int]:
        """How many requests end the window, by tenant; empty if it ends by time alone."""
        return {each.name: each.requests for each in self.tenants if each.requests is not None}

    @property
    def seed_of_work(self) -> int:
        """The seed of weights and inputs."""
        return self.seed if self.work_seed is None else self.work_seed

    def same_tenants(self, other: Colocation) -> bool:
        """Whether the tenants of one plan can serve the other's window: all but its load agrees."""
        return self._without_load() == other._without_load()

    def _without_load(self) -> Colocation:
        return replace(
            self,
            tenants=tuple(replace(tenant, arrival="closed") for tenant in self.tenants),
            duration_s=1.0,
            seed=0,
            work_seed=self.seed_of_work,
            # Of these, only whoever judges the window needs to know.
            goals=(),
            asked_ms={},
        )

    def tenant_seed(self, name: str) -> int:
        """Return the seed of a tenant's arrivals: its own, and the same under every scheduler."""
        return int.from_bytes(sha256(f"{self.seed}/{name}".encode()).digest()[:8], "big")

    def tenant(self, name: str) -> Tenant:
        """Return the tenant of this name, which there must be."""
        return next(each for each in self.tenants if each.name == name)

    @property
    def servers(self) -> dict[str, Server]:
        """The users' servers, by tenant."""
        return {each.name: each.server for each in self.tenants if each.server is not None}


def starts_too_late(
    name: str, start_s: float, window_s: float, longer: str = LONGER_WINDOW
) -> str | None:
    """Return why a tenant would serve nothing in a window, and what to do; None if it would."""
    if start_s < window_s:
        return None
    return (
        f"tenant {name} starts {start_s:g} s after the window begins, and the window is "
        f"{window_s:g} s long: {longer}, or an earlier start"
    )
