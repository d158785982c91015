"""A plan of what to run together: tenants and their shared settings, as plain data.

A plan crosses processes as JSON. It is checked here for values that no tenant could run with; a
file's fields and lines are checked by its reader.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any, Literal

from pytest_hwqueue.noise.names import NONE, noise_id
from pytest_hwqueue.schedulers.mode import TenantRequest, tenant_requests
from pytest_hwqueue.servers.spec import ServerSpec, server_from_json

TenantPlacement = Literal["processes", "threads"]
Json = dict[str, Any]

LATER: Mapping[str, Any] = {"function": None, "concurrency": 1, "server": None}
"""Fields of a tenant that plans of earlier versions lack, and what they were measured with."""

# Names stand in goals (`high.latency_p99_ms`) and in file names.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class BadPlan(ValueError):
    """A plan was refused; the text names the field, its value and what is valid."""


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
        arrival: ``closed``, ``constant: 20/s``, ``poisson: 20/s``, ``lognormal: 20/s, sigma=1.0``
            or ``trace: FILE``.
        priority: larger is more urgent; the scheduler in use maps it.
        share: of the device's multiprocessors, above 0 and at most 1, for schedulers that can.
        streams: number of streams, for this tenant only.
        concurrency: how many requests are served at once; of a server, connections.
        weights: folder with a model's weights; None for random weights from the seed.
        faults: planted in this tenant on purpose, as ``--hwq-fault`` takes them.
        server: the user's, which does the work; a request is one to it.

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

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise BadPlan(
                f"tenants.name: {self.name!r} is not valid; use letters, digits and underscores, "
                "a letter first"
            )
        where = f"tenant {self.name}"
        kinds = (self.model, self.workload, self.function, self.server)
        if sum(each is not None for each in kinds) != 1:
            raise BadPlan(f"{where}: give one of model, workload, function, server")
        if self.batch is not None and self.model is None:
            raise BadPlan(f"{where}: batch is a model's; a workload has parameters")
        if self.batch is not None and self.batch < 1:
            raise BadPlan(f"{where}: batch is {self.batch}; give at least 1")
        if self.streams < 1:
            raise BadPlan(f"{where}: streams is {self.streams}; give at least 1")
        if self.concurrency < 1:
            raise BadPlan(f"{where}: concurrency is {self.concurrency}; give at least 1")
        if self.share is not None and not 0 < self.share <= 1:
            raise BadPlan(f"{where}: share is {self.share}; give one above 0 and at most 1")


@dataclass(frozen=True)
class Colocation:
    """Tenants that run together, and how.

    Attributes:
        name: of the scenario.
        tenants: who runs; at least one.
        placement: a process for each tenant, or threads of one process.
        duration_s: length of the common measuring window.
        warmup_s: each tenant runs requests for at least this long before it is ready.
        seed: of weights, inputs and arrivals.
        device: label, such as ``cpu``, ``cuda:1`` or ``sim:h200``.
        scheduler: text of the scheduler mode, such as ``xsched:level=1,threshold=1``.
        goals: as written in the scenario; judged elsewhere.
        folder: of the scenario: names of trace files and of functions' modules start from it.
        noise: background load on the CPU: ``none``, or a name or file as in ``--hwq-noise``; None
            if the plan does not involve noise.

    """

    name: str
    tenants: tuple[TenantSpec, ...]
    placement: TenantPlacement = "processes"
    duration_s: float = 60.0
    warmup_s: float = 2.0
    seed: int = 0
    device: str = "cpu"
    scheduler: str = "native"
    goals: tuple[str, ...] = ()
    folder: str = "."
    noise: str | None = None

    def __post_init__(self) -> None:
        if not self.tenants:
            raise BadPlan("tenants: there must be at least one")
        names = [tenant.name for tenant in self.tenants]
        for name in names:
            if names.count(name) > 1:
                raise BadPlan(f"tenants.name: {name!r} stands there more than once")
        if self.placement not in ("processes", "threads"):
            raise BadPlan(f"placement: {self.placement!r} is neither processes nor threads")
        if self.placement == "threads" and any(each.server is not None for each in self.tenants):
            raise BadPlan("placement: a server is a process, so its tenants are in processes")
        if not (math.isfinite(self.duration_s) and self.duration_s > 0):
            raise BadPlan(f"duration_s: {self.duration_s} is not above 0")
        if not (math.isfinite(self.warmup_s) and self.warmup_s >= 0):
            raise BadPlan(f"warmup_s: {self.warmup_s} is below 0")

    @property
    def id(self) -> str:
        """Stable and readable, such as ``high_load[cuda-processes-mps]``."""
        noise_part = "" if self.noise in (None, NONE) else f"-{noise_id(self.noise)}"
        return f"{self.name}[{self.device}-{self.placement}-{self.scheduler}{noise_part}]"

    @property
    def duration_ns(self) -> int:
        """Length of the window in nanoseconds."""
        return round(self.duration_s * 1e9)

    def tenant_seed(self, name: str) -> int:
        """Return the seed of a tenant's arrivals: its own, and the same under every scheduler."""
        return int.from_bytes(sha256(f"{self.seed}/{name}".encode()).digest()[:8], "big")

    def requests(self) -> list[TenantRequest]:
        """Return each tenant's request to the scheduler."""
        return tenant_requests((t.name, t.priority, t.share) for t in self.tenants)

    def to_json(self) -> Json:
        """Return the plan as JSON values, with lists for tuples; `plan_from_json` reads it back."""
        plain: Json = json.loads(json.dumps(asdict(self)))
        return plain


def plan_from_json(data: Mapping[str, Any]) -> Colocation:
    """Read the result of `Colocation.to_json`, also after a round trip through JSON.

    Raises:
        BadPlan: if it is not a valid plan.

    """
    try:
        tenants = tuple(
            TenantSpec(
                **{
                    **tenant,
                    "faults": tuple(tenant.get("faults", ())),
                    "server": (given := tenant.get("server")) and server_from_json(given),
                }
            )
            for tenant in data["tenants"]
        )
        return Colocation(
            **{**data, "tenants": tenants, "goals": tuple(data.get("goals", ()))},
        )
    except (TypeError, KeyError) as error:
        raise BadPlan(f"not a plan of a co-location: {error}") from None
