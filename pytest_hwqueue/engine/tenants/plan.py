"""A plan of what to run together, as plain data: tenants, their settings, the device they share.

It is checked here for values that no tenant could run with; its reader checks a file's fields and
lines.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from pytest_hwqueue.data.errors import BadInput, DeviceError
from pytest_hwqueue.data.noise_names import NONE, noise_id
from pytest_hwqueue.data.records.fingerprint import Fingerprint
from pytest_hwqueue.data.records.kinds import capabilities_of
from pytest_hwqueue.data.records.plan import TenantPlacement
from pytest_hwqueue.data.redaction import mask, redacted, redacted_arguments
from pytest_hwqueue.engine.tenants.server_spec import ServerSpec
from pytest_hwqueue.parts.devices.kinds import open_device
from pytest_hwqueue.parts.processes.channel import ProcessEnded
from pytest_hwqueue.parts.processes.measured_process import MeasuredProcess
from pytest_hwqueue.parts.processes.starting import worker_environment
from pytest_hwqueue.parts.schedulers.syntax import TenantRequest, tenant_requests

Json = dict[str, Any]

LATER: Mapping[str, Any] = {
    "function": None, "concurrency": 1, "server": None, "start_s": 0.0,
    "requests": None,
}  # fmt: skip
"""Fields of a tenant that plans of earlier versions lack, and what they were measured with."""

LONGER_WINDOW = "give a longer duration"
FEWER_KERNELS = "give work of fewer kernels"

# Names stand in goals (`high.latency_p99_ms`) and in file names.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True)
class TenantSpec:
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
            ``lognormal: 20/s, sigma=1.0`` or ``trace: FILE``.
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

    """

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
    server: ServerSpec | None = None
    start_s: float = 0.0
    requests: int | None = None

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
        noise: background load on the CPU: ``none``, or a name or file as in ``--hwq-noise``; None
            if the plan does not involve noise.
        work_seed: of weights and inputs, which tenants that live on keep while arrivals change.

    """

    name: str
    tenants: tuple[TenantSpec, ...]
    placement: TenantPlacement = TenantPlacement.PROCESSES
    duration_s: float = 60.0
    warmup_s: float = 2.0
    seed: int = 0
    device: str = "cpu"
    scheduler: str = "native"
    goals: tuple[str, ...] = ()
    asked_ms: Mapping[str, float] = field(default_factory=dict)
    folder: str = "."
    noise: str | None = None
    work_seed: int | None = None

    def __post_init__(self) -> None:
        if not self.tenants:
            raise BadInput("tenants: there must be at least one")
        names = [tenant.name for tenant in self.tenants]
        for name in names:
            if names.count(name) > 1:
                raise BadInput(f"tenants.name: {name!r} stands there more than once")
        if self.placement == TenantPlacement.THREADS and any(
            each.server is not None for each in self.tenants
        ):
            raise BadInput("placement: a server is a process, so its tenants are in processes")
        if self.counted and any(each.server is not None for each in self.tenants):
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
        noise_part = "" if self.noise in (None, NONE) else f"-{noise_id(self.noise)}"
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

    def requests(self) -> list[TenantRequest]:
        """Return each tenant's request to the scheduler."""
        return tenant_requests((t.name, t.priority, t.share) for t in self.tenants)

    def secrets(self) -> frozenset[str]:
        """Return what must not be written or shown, as `ServerSpec.secrets` says."""
        servers = [tenant.server for tenant in self.tenants if tenant.server is not None]
        return frozenset(secret for server in servers for secret in server.secrets())

    def to_json(self) -> Json:
        """Return the plan as JSON values for records, with lists for tuples and without secrets."""
        plain: Json = json.loads(json.dumps(asdict(self)))
        secrets = self.secrets()
        for server in filter(None, (tenant["server"] for tenant in plain["tenants"])):
            server["headers"] = {name: mask(text) for name, text in server["headers"].items()}
            for name in ("url", "ready", "body"):
                server[name] = None if server[name] is None else redacted(server[name], secrets)
            server["command"] = redacted_arguments(server["command"], secrets)
        return plain


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


_OPENING_S = 180.0


@dataclass(frozen=True)
class DeviceIdentity:
    """What the lease and the record need to know about a device."""

    lease_key: str | None
    fingerprint: Fingerprint


@cache
def identify(label: str) -> DeviceIdentity:
    """Open a GPU in a separate process and identify it; once per label.

    A context in the parent would take memory, and turns, on the device that tenants share.

    Raises:
        DeviceError: if it cannot be opened, with the process's last output.

    """
    if label == "cpu":
        host = open_device(label)
        return DeviceIdentity(host.lease_key, host.fingerprint())
    with tempfile.TemporaryDirectory(prefix="hwq-") as folder:
        log = Path(folder) / "identify.log"
        environment = worker_environment(os.environ)
        process = MeasuredProcess.start(
            None, "pytest_hwqueue.engine.tenants.tenant", environment, log
        )
        try:
            return _answer(process, label)
        except ProcessEnded as ended:
            raise DeviceError(f"{label}: opening it {ended}:\n{process.last_lines(30)}") from None
        finally:
            process.kill("no longer needed")
            process.close()


def _answer(process: MeasuredProcess, label: str) -> DeviceIdentity:
    process.send("identify", device=label)
    message = process.receive(time.monotonic() + _OPENING_S)
    if message is None:
        stacks = process.dump_stacks()
        raise DeviceError(f"{label} was not open within {_OPENING_S:g} s:\n{stacks}")
    if message["kind"] == "failed":
        raise DeviceError(f"{label} cannot be opened: {message['reason']}")
    return DeviceIdentity(message["lease_key"], Fingerprint(**message["fingerprint"]))


def tenant_environment(device: str) -> dict[str, str]:
    """Return the environment of tenants on a real device, before a scheduler adds to it.

    Raises:
        DeviceError: if the user's setting does not make the device visible.

    """
    kind, _, index = device.partition(":")
    plain = worker_environment(os.environ)
    plain.update(one_visible(kind, int(index or 0), plain))
    return plain


def one_visible(kind: str, index: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that leave a process only the ``index``-th of the visible devices.

    The variable gets that device's own entry, be it a number or a UUID; without one, the index.
    ROCR_VISIBLE_DEVICES and CUDA_DEVICE_ORDER stay as they are: HIP and CUDA number the devices
    that these leave visible, in their order.

    Args:
        kind: of the device; the CPU needs no variable.
        index: among the devices that ``environment`` makes visible, from 0.
        environment: the user's.

    Raises:
        DeviceError: if the user's setting has no such entry.

    """
    names = capabilities_of(kind).visible_by
    if not names:
        return {}
    given = next((name for name in names if environment.get(name)), None)
    entry = str(index)
    if given is not None:
        entries = [part.strip() for part in environment[given].split(",")]
        if index >= len(entries) or not entries[index]:
            raise DeviceError(
                f"{kind}:{index} is not visible: {given}={environment[given]} has no entry "
                f"number {index} (the first is 0)"
            )
        entry = entries[index]
    # Where both are set they must agree: torch and HIP look at either.
    return {name: entry for name in names if name == names[0] or name in environment}
