"""The schema of a co-location's record: what every tenant got, request by request. No torch."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from pytest_hwqueue.data.errors import RecordError, files, within
from pytest_hwqueue.data.metrics.estimate import Estimate, PlainData
from pytest_hwqueue.data.metrics.numbers import counted
from pytest_hwqueue.data.records.counters import CpuCounters
from pytest_hwqueue.data.records.noise import Causes
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.data.records.plan import Colocation
from pytest_hwqueue.data.records.proof import Proof
from pytest_hwqueue.data.records.run import Run
from pytest_hwqueue.data.records.sealed import read_sealed, sealed
from pytest_hwqueue.data.safe_files import write_text


@dataclass(frozen=True)
class RequestLog:
    """Times of each request in ns from the window's start, in the order served."""

    __pydantic_config__: ClassVar[ConfigDict] = PlainData.model_config

    scheduled_ns: Annotated[
        list[int], Field(description="arrival; in a closed loop equal to started_ns")
    ]
    started_ns: list[int]
    finished_ns: Annotated[
        list[int], Field(description="seen by the host, after the stream was waited for")
    ]

    def add(self, scheduled_ns: int, started_ns: int, finished_ns: int) -> None:
        """Add a request's times."""
        self.scheduled_ns.append(scheduled_ns)
        self.started_ns.append(started_ns)
        self.finished_ns.append(finished_ns)


class RequestFailure(PlainData):
    """A request that raised, or was answered otherwise than expected."""

    index: int = Field(description="position in the request times, from 0")
    reason: str
    kind: str = Field(
        "", description="what failures of its kind have in common; empty if their texts are alike"
    )


class TenantThroughput(PlainData):
    """Rates of what was completed inside the window, as `completed_per_s` has them."""

    requests_per_s: float
    items_per_s: float
    unit: str = Field(description="what an item is: images, TFLOP, …")
    items_per_request: float


class GeneratorLateness(PlainData):
    """How late the load generator started ``n`` requests that were due and had nothing before them.

    Percentiles are sample values, by nearest rank: P99 of fewer than 100 requests is the largest.
    """

    p50_us: float
    p99_us: float
    max_us: float
    n: int


TokensCounted = Literal["usage", "events", "client"]
"""Who says how many tokens were streamed: the server, the number of events, another's client."""


class TokenTimes(PlainData):
    """When the tokens of each completed request came, in the order of ``latency_ns``."""

    ttft_ns: list[int] = Field(description="first token, from the scheduled arrival")
    last_ns: list[int] = Field(description="last token, likewise")
    answer_ns: list[int | None] = Field(
        description="first token of the answer, likewise: the same where no reasoning was streamed "
        "before it; null if nothing else was"
    )
    tokens: list[int] = Field(description="how many were streamed")
    counted: TokensCounted = Field(
        description="usage: the server counted the tokens of each; events: those of an answer at "
        "least are the events with a token, of which one may have several; client: a client of "
        "another project did, mostly by a tokenizer of its own"
    )
    ttft_bound_ms: float | None = Field(
        None, description="within which a good request's first token comes; null for no bound"
    )
    tbt_bound_ms: float | None = Field(None, description="likewise its mean time between tokens")


ServerOrigin = Literal["command", "url", "container"]
"""Whose server answered: only what a command started is ours, and under the scheduler."""

NOT_OURS: Mapping[ServerOrigin, str] = {
    "url": "not ours: it ran already",
    "container": "not ours: it runs in a container",
}


class ServerLoad(PlainData):
    """What was seen of a tenant's server from where its load was generated."""

    url: str
    origin: ServerOrigin | None = Field(
        None,
        description="command: started here, and proven to be all that listened there, before and "
        "after the window; url: it ran already; container: started here, with process ids or a "
        "network of its own; the mode is proven for the first alone. null: not found out",
    )
    connections: int | None = Field(
        None,
        description="opened from its first warm-up to the window's end; null where a client of "
        "another project sent the requests, which does not say",
    )
    connected: int | None = Field(
        None,
        description="of these, in the window: so many of its requests waited for one to open",
    )
    most_at_once: int = Field(description="most requests in flight")
    generator_busy: float | None = Field(
        None,
        description="share of the window in which the load generator worked, or waited for a core; "
        "null where a client of another project sent the requests",
    )
    tokens: TokenTimes | None = Field(None, description="of streamed completions; else null")


class TenantResult(PlainData):
    """What one tenant got. Of a tenant that died only how it ended is known."""

    name: str
    work: str = Field(
        "",
        description="what it ran: a model with its batch, its input's shape and numeric format, a "
        "workload or a function with parameters; empty if nobody knows",
    )
    from_ns: int = Field(
        0,
        description="when it began to serve, from the window's start; its rates are of its time "
        "from then on, and its requests' times are from the window's start all the same",
    )
    until_ns: int | None = Field(
        None,
        description="when its last request was done, with which its time ends, where the plan's "
        "`requests` or a client of another project decide how many there are; its rates begin with "
        "the end of the first; null if its time ends with the window",
    )
    issued: int | None = Field(None, description="requests scheduled in the window, or begun in it")
    completed: int | None = Field(None, description="requests that ended well, also after its end")
    failed: int | None = Field(None, description="requests that raised")
    unserved: int | None = Field(None, description="requests not begun when the grace was over")
    throughput: TenantThroughput | None = None
    latency_ns: list[int] = Field(
        default_factory=list, description="of completed requests, from the scheduled arrival"
    )
    requests: RequestLog | None = None
    failures: list[RequestFailure] = Field(default_factory=list)
    lateness: GeneratorLateness | None = Field(
        None, description="the load generator's own; null for a closed loop and where simulated"
    )
    memory_bytes: dict[str, int] = Field(default_factory=dict)
    counters: CpuCounters | None = Field(
        None,
        description="context switches, waiting for a core and interrupts of its process in the "
        "window and the half second before it; of tenants in threads, of the process they share",
    )
    server: ServerLoad | None = Field(
        None, description="of the server that did its work; null for all other tenants"
    )
    causes: Causes | None = Field(
        None, description="of its slow requests; null unless the run was traced"
    )
    exit: str = Field("", description="how its process ended; empty if it lived on")
    last_output: str = Field("", description="last lines it wrote, where something went wrong")

    def own_ns(self, window_ns: int) -> int:
        """Return how much of a window of this length is its own time."""
        return (window_ns if self.until_ns is None else self.until_ns) - self.from_ns


def rate_begins_ns(from_ns: int, until_ns: int | None, requests: RequestLog) -> int:
    """Return when a tenant's rate begins, from the window's start: when it does, mostly.

    Where a number of requests ends its time, the last ends it and the first began it, so that n
    requests span n - 1 gaps: then the rate begins when the first was done, of several that are
    served at once as many as began before. Where no request follows these, nothing else is known.

    Args:
        from_ns: when the tenant began to serve.
        until_ns: when the last counted request was done; None if its time ends with the window.
        requests: all that it served.

    """
    if until_ns is None:
        return from_ns
    ended = sorted(requests.finished_ns)
    at_once = sum(start_ns < ended[0] for start_ns in requests.started_ns)
    first_ns = ended[max(1, at_once) - 1]
    return first_ns if first_ns < ended[-1] else from_ns


def completed_per_s(
    from_ns: int, until_ns: int | None, window_ns: int, requests: RequestLog,
    completed_ns: Sequence[int],
) -> float:  # fmt: skip
    """Return how many requests a tenant completed per second of its own time.

    Args:
        from_ns: as `rate_begins_ns` takes it.
        until_ns: likewise.
        window_ns: length of the window.
        requests: all that it served.
        completed_ns: when each that did not fail was done.

    """
    begins_ns = rate_begins_ns(from_ns, until_ns, requests)
    # What ended as the rate begins is not of it.
    after_ns = begins_ns if begins_ns > from_ns else -1
    inside = sum(after_ns < ended_ns <= window_ns for ended_ns in completed_ns)
    return inside * 1e9 / ((window_ns if until_ns is None else until_ns) - begins_ns)


class TenantUse(PlainData):
    """How one tenant used the device in a traced window."""

    busy_ns: list[int] = Field(
        description="time in each block of the window in which a kernel or copy of its own ran"
    )
    waits_ns: list[int] = Field(
        description="of each completed request that ran a kernel or copy, in the order served: "
        "from when its first one was enqueued until one started"
    )


class DeviceUse(PlainData):
    """How tenants used the device in a traced window, which is cut into equal blocks of time."""

    reason: str = Field("", description="why it could not be observed; the rest is then empty")
    busy_ns: list[int] = Field(
        default_factory=list,
        description="time in each block in which a kernel or copy of any tenant ran",
    )
    switches: list[int] = Field(
        default_factory=list,
        description="kernels and copies that started in each block where the one that started "
        "before was another tenant's",
    )
    tenants: dict[str, TenantUse] = Field(default_factory=dict, description="by name")


LOOK_ERROR = 0.05
"""Of a goal: that it is called met or missed, and is not, at all looks at it together."""


class ColocationRecord(Run):
    """What happened when tenants ran together once."""

    known_by: ClassVar[str] = "plan"

    schema_version: Literal[3] = 3
    id: str
    plan: Colocation = Field(description="the whole plan")
    device: str = Field(description="label of the device, such as cuda or cuda:1")
    scheduler: str
    proof: Proof | None = Field(
        None, description="null where simulated, where no tenant was ours, and where not ok"
    )
    tenants: list[TenantResult] = Field(default_factory=list)
    placement: TenantPlacement
    duration_s: float = Field(
        description="length of the measuring window; less than the plan's if it was decided before"
    )
    look_error: float = Field(
        LOOK_ERROR,
        description="how often a goal may be called met or missed at this window's end and is not; "
        "less where it was looked at before, or ended because a look decided",
    )
    tenants_started: str = Field(
        "",
        description="when its tenants were started, UTC, ISO 8601: windows that share it were "
        "served by the same processes, and share what the priority probe saw before the first; "
        "empty where nothing was started",
    )
    elapsed_s: float = Field(
        description="length of the whole, from start to record; of tenants that live on, without "
        "their start after their first window"
    )
    simulated: bool
    traced: bool = Field(
        False, description="to find causes: a tracer ran along, so its times are no result"
    )
    device_use: DeviceUse | None = Field(None, description="of a traced window; null for others")
    mean_power_w: Estimate | None = Field(
        None,
        description="of the device in the window, by its energy counter, which all tenants share; "
        "null on the CPU and where simulated",
    )

    def tenant(self, name: str) -> TenantResult:
        """Return a tenant's result; KeyError if there is none of this name."""
        for tenant in self.tenants:
            if tenant.name == name:
                return tenant
        raise KeyError(name)


# Another machine may round the last digits another way.
_ROUNDING = 1e-9


def write_colocation(path: Path, record: ColocationRecord) -> None:
    """Write a record; RecordError if it cannot be written."""
    write_text(path, sealed(record.model_dump_json()))


def read_colocation(path: Path) -> ColocationRecord:
    """Read a record; RecordError names the file if it is damaged, truncated or foreign."""
    record, has_seal = read_sealed(path, ColocationRecord, "a co-location's record")
    if not has_seal:
        with within(str(path)):
            require_own_figures(record)
    return record


def records_in(folder: Path) -> list[tuple[Path, ColocationRecord]]:
    """Return a folder's records of co-locations, oldest first, and their files."""
    if not folder.is_dir():
        raise RecordError(f"{folder} is no folder of records")
    found = []
    for path in folder.glob("*.json"):
        try:
            found.append((path, read_colocation(path)))
        except RecordError:
            # Few are others' files: only those, and damaged records, are looked at again.
            if _is_colocation(path):
                raise
    return sorted(found, key=lambda pair: pair[1].started)


def _is_colocation(path: Path) -> bool:
    """Tell a co-location's record from a cell's, a session file and a table, by its fields."""
    with files("read", path):
        content = path.read_bytes()
    try:
        fields = json.loads(content)
    except ValueError:
        # Whoever reads a damaged one says so.
        return b'"plan":' in content
    return isinstance(fields, dict) and ColocationRecord.known_by in fields


def require_own_figures(record: ColocationRecord) -> None:
    """Refuse a record in which a tenant's figures are not those of its requests.

    Raises:
        RecordError: with the first that is not.

    """
    window_ns = round(record.duration_s * 1e9)
    for tenant in record.tenants:
        if tenant.requests is None:
            # Of one that died there are no figures either.
            continue
        for wrong in _contradictions(tenant, tenant.requests, window_ns):
            raise RecordError(
                f"tenant {tenant.name}: its figures are not its requests': {wrong}; measure again"
            )


def _contradictions(tenant: TenantResult, requests: RequestLog, window_ns: int) -> Iterator[str]:
    """Say which figures of a tenant are not those of its requests."""
    due, begun, ended = requests.scheduled_ns, requests.started_ns, requests.finished_ns
    if tenant.own_ns(window_ns) <= 0 or min(due, default=tenant.from_ns) < tenant.from_ns:
        yield f"from_ns is {tenant.from_ns}, which is after its first request, or the window's end"
        return
    if not len(due) == len(begun) == len(ended):
        yield f"{len(due)} were scheduled, {len(begun)} started and {len(ended)} finished"
        return
    last_ns = max(ended, default=0)
    if tenant.until_ns not in (None, last_ns):
        yield f"until_ns is {tenant.until_ns}, and its last request ended at {last_ns}"
        return
    failed = {failure.index for failure in tenant.failures}
    if len(failed) < len(tenant.failures) or not failed <= set(range(len(due))):
        yield f"failures name a request twice, or one that is none of the {len(due)}"
        return
    done = [index for index in range(len(due)) if index not in failed]
    counts = {
        "issued": len(due) + (tenant.unserved or 0), "completed": len(done), "failed": len(failed),
    }  # fmt: skip
    for name, count in counts.items():
        if getattr(tenant, name) != count:
            yield f"{name} is {getattr(tenant, name)}, and its requests give {count}"
    latency_ns = [ended[index] - due[index] for index in done]
    if tenant.latency_ns != latency_ns:
        yield "latency_ns is not the time from each completed request's arrival to its end"
    tokens = None if tenant.server is None else tenant.server.tokens
    for name in ("ttft_ns", "answer_ns", "last_ns", "tokens") if tokens is not None else ():
        if len(getattr(tokens, name)) != len(done):
            yield f"{name} has {len(getattr(tokens, name))} of {counted(len(done), 'request')}"
    if (rates := tenant.throughput) is not None:
        per_s = completed_per_s(
            tenant.from_ns, tenant.until_ns, window_ns, requests, [ended[index] for index in done]
        )
        expected = {"requests_per_s": per_s, "items_per_s": per_s * rates.items_per_request}
        for name, rate in expected.items():
            if not math.isclose(getattr(rates, name), rate, rel_tol=_ROUNDING):
                yield f"{name} is {getattr(rates, name)}, and its requests give {rate}"
    late = tenant.lateness
    if late is not None:
        waits = (start - when for start, when in zip(begun, due, strict=True))
        most_us = max(waits, default=0) / 1e3
        if not late.p50_us <= late.p99_us <= late.max_us <= most_us or late.n != len(due):
            yield f"lateness is {late.max_us} µs at most, and no request began later than {most_us}"
