"""Tenants' reports as results, and as cells: records, stored and gated like any other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import to_jsonable_python

from pytest_hwqueue.data.figures import of_requests as figures
from pytest_hwqueue.data.figures.served import failed_for, served
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.interference import latency_ratio
from pytest_hwqueue.data.metrics.latency import CONFIDENCE, summarise_latency
from pytest_hwqueue.data.noise_names import noise_id
from pytest_hwqueue.data.records.cell import Cell, Metrics, RunRecord, Samples
from pytest_hwqueue.data.records.definitions import definitions
from pytest_hwqueue.data.records.plan import Tenant, identity_of
from pytest_hwqueue.data.records.tenants import (
    ColocationRecord,
    RequestLog,
    TenantResult,
    TenantThroughput,
    completed_per_s,
)
from pytest_hwqueue.engine.tenants import TENANTS

if TYPE_CHECKING:
    from pytest_hwqueue.engine.tenants.open_loop import Load


# What a tenant's latency is compared with, by the name of its ratio.
References = Mapping[str, Sequence[int]]

_DESCRIPTIONS = {
    "solo": "latency with the others, divided by the tenant's alone under native",
    "native": "latency under this scheduler, over that of the same tenants under native",
}
# Of the plan's tenants: whatever else a tenant is, it is for its neighbours too.
_NOT_IDENTITY = ("faults", "name", "deadline_ms")


def tenant_records(
    record: ColocationRecord, nodeid: str, references: Mapping[str, References]
) -> list[RunRecord]:
    """Return a record for each tenant of a co-location.

    Args:
        record: the co-location's; if it is not ``ok``, the returned records have the same status.
        nodeid: pytest's name of the test.
        references: by tenant, then by ``solo`` or ``native``: latencies in ns, any length, of
            the same session.

    """
    return [
        _tenant_record(record, tenant, nodeid, references.get(tenant.name, {}))
        for tenant in record.tenants
    ]


def _tenant_record(
    record: ColocationRecord, tenant: TenantResult, nodeid: str, references: References
) -> RunRecord:
    cell = _cell(record, tenant.name)
    measured = record.status == "ok" and bool(tenant.latency_ns)
    status, reason = record.status, record.reason
    if status == "ok" and not measured:
        status, reason = "failed", f"tenant {tenant.name} completed no request"
    samples = Samples(
        host_ns=tenant.latency_ns, device_ns=[], enqueue_ns=[], pace_ns=[],
        references_ns={name: list(values) for name, values in references.items()},
    )  # fmt: skip
    # The file of timelines is the co-location's, whose figures it has.
    own = {"status": status, "reason": reason, "duration_s": record.elapsed_s, "timelines": None}
    return RunRecord(
        **{**record.head(), **own},
        cell=cell,
        cell_id=cell.id,
        nodeid=nodeid,
        family=TENANTS,
        iterations=tenant.completed or 0,
        failed_requests=None if tenant.failed is None else tenant.failed + (tenant.unserved or 0),
        failed_for=failed_for([tenant]),
        definitions=definitions("request", 1),
        samples=samples if measured else None,
        metrics=_metrics(record, tenant, references) if measured else Metrics(),
        scheduler_proof=record.proof,
        counters=tenant.counters,
    )


def _cell(record: ColocationRecord, tenant: str) -> Cell:
    plan = record.plan
    # How long counted requests take is what is measured.
    duration_s = plan.duration_s if plan.counted else record.duration_s
    parameters: dict[str, Any] = {"duration_s": duration_s, "warmup_s": plan.warmup_s}
    (own,) = (each for each in plan.tenants if each.name == tenant)
    for each in plan.tenants:
        stated = {
            name: value
            for name, value in to_jsonable_python(each).items()
            if name not in _NOT_IDENTITY
        }
        if each.server is not None:
            stated["server"] = identity_of(each.server)
        if stated["trace_sha256"] is None:
            # No trace: every cell of before has none.
            del stated["trace_sha256"]
        # Where weights are is no part of what they are.
        stated["weights"] = "seeded" if each.weights is None else "loaded"
        parameters |= {f"{each.name}.{name}": value for name, value in stated.items()}
    return Cell(
        name=f"{plan.name}.{tenant}",
        device=record.device,
        streams=own.streams,
        scheduler=record.scheduler,
        dispatch="eager",
        sync_mode="per_iteration",
        size=own.size,
        parameters=parameters,
        variant=record.placement + ("" if plan.noise is None else f"-{noise_id(plan.noise)}"),
    )


def _metrics(record: ColocationRecord, tenant: TenantResult, references: References) -> Metrics:
    return Metrics(
        latency=summarise_latency(tenant.latency_ns),
        ratios={
            name: latency_ratio(tenant.latency_ns, values, _DESCRIPTIONS[name])
            for name, values in references.items()
        },
        throughput=[_throughput(record, tenant)],
        memory_bytes=tenant.memory_bytes,
    )


def _throughput(record: ColocationRecord, tenant: TenantResult) -> Estimate:
    """Return items per second within the window, with the interval of `figures.throughput`."""
    rates = tenant.throughput
    assert rates is not None
    window = served(tenant, round(record.duration_s * 1e9))
    estimate = figures.throughput([window], CONFIDENCE)
    items = rates.items_per_s / rates.requests_per_s if rates.requests_per_s else 0.0
    in_items = estimate.scaled(items, f"{rates.unit}/s")
    return in_items.model_copy(update={"value": rates.items_per_s})


# Messages with which a tenant may die, and what to try then.
_KNOWN = (
    (
        r"invalid device ordinal",
        "two copies of the GPU's runtime may be loaded, or the device is hidden: let the "
        "scheduler use the library that torch itself loads, and make one device visible with "
        "CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES",
    ),
    (
        r"miopenStatusUnknownError",
        "MIOpen failed below the scheduler: see its reason with MIOPEN_ENABLE_LOGGING=1 and "
        "MIOPEN_LOG_LEVEL=6, and run kernels one by one with AMD_SERIALIZE_KERNEL=3",
    ),
    (
        r"undefined symbol|fail to get symbol",
        "the scheduler's library and the driver or runtime do not fit: build it against the "
        "version that torch uses, and name the real library in the scheduler's settings",
    ),
    (
        r"cannot be preloaded|wrong ELF class|cannot open shared object",
        "the loader did not take a library: look at its path, and that it is built for this "
        "architecture (file LIBRARY, ldd LIBRARY)",
    ),
    (
        r"failed to send event to server",
        "xserver is not there, or ended while the tenants ran: see its log next to this record",
    ),
    (
        r"out of memory|can't allocate memory|MemoryError",
        "all tenants share the device's memory: use a smaller batch, or fewer tenants",
    ),
    (
        r"(CUDA|HIP) error|device-side assert|illegal memory access",
        "run kernels one by one to see which fails: CUDA_LAUNCH_BLOCKING=1, or "
        "AMD_SERIALIZE_KERNEL=3 on ROCm",
    ),
)  # fmt: skip


class WorkDone(NamedTuple):
    """What one request is.

    Attributes:
        description: what runs, for people.
        items_per_request: in ``unit``.
        unit: what an item is: images, sequences, or the workload's own.

    """

    description: str = ""
    items_per_request: float = 1.0
    unit: str = "requests"


_NOT_SAID = WorkDone()


def _until_ns(tenant: Tenant, load: Load, window_ns: int) -> int | None:
    """Return when the last of a tenant's counted requests was done, if that was in the window."""
    if len(load.finished_ns) != tenant.requests or max(load.finished_ns) > window_ns:
        return None
    return max(load.finished_ns)


def delivered(
    tenant: Tenant,
    load: Load,
    window_ns: int,
    work: WorkDone = _NOT_SAID,
    **seen: Any,
) -> TenantResult:
    """Return a tenant's result.

    Args:
        tenant: who it is, when it begins to serve, and with how many requests its time ends.
        load: what came of its requests.
        window_ns: length of the window. Rates count what was completed within it.
        work: what it ran.
        seen: what else the result holds: lateness, memory, counters, server.

    """
    failed = {failure.index for failure in load.failed}
    scheduled_ns, finished_ns = load.scheduled_ns, load.finished_ns
    done = [index for index in range(len(finished_ns)) if index not in failed]
    requests = RequestLog(scheduled_ns, load.started_ns, finished_ns)
    until_ns = _until_ns(tenant, load, window_ns)
    per_s = completed_per_s(
        tenant.start_ns, until_ns, window_ns, requests, [finished_ns[index] for index in done]
    )
    return TenantResult(
        name=tenant.name,
        work=work.description,
        from_ns=tenant.start_ns,
        until_ns=until_ns,
        issued=load.issued,
        completed=load.completed,
        failed=len(load.failed),
        unserved=load.unserved,
        throughput=TenantThroughput(
            requests_per_s=per_s,
            items_per_s=per_s * work.items_per_request,
            unit=work.unit,
            items_per_request=work.items_per_request,
        ),
        latency_ns=[finished_ns[index] - scheduled_ns[index] for index in done],
        requests=requests,
        failures=[*load.failed],
        **seen,
    )


def with_advice(reason: str, output: str) -> str:
    """Return a reason with what to try, if it or the process's last output is a known message."""
    for pattern, what in _KNOWN:
        if re.search(pattern, f"{reason}\n{output}", re.IGNORECASE):
            return f"{reason}. Try: {what}"
    return reason
