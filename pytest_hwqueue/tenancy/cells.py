"""Tenants as cells: each tenant's result becomes a record, stored and gated like any other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_hwqueue.metrics.interference import LatencyRatioResult, latency_ratio
from pytest_hwqueue.metrics.latency import CONFIDENCE, summarise_latency
from pytest_hwqueue.metrics.throughput import Throughput
from pytest_hwqueue.noise.names import NONE, noise_id
from pytest_hwqueue.records.cell import Cell, Metrics, RunRecord, Samples, SchedulerProof
from pytest_hwqueue.records.tenants import ColocationRecord, TenantResult
from pytest_hwqueue.tenancy import TENANTS, figures
from pytest_hwqueue.tenancy.outcome import failed_for, served
from pytest_hwqueue.tenancy.spec import LATER

# What a tenant's latency is compared with, by the name of its ratio.
References = Mapping[str, Sequence[int]]

_DESCRIPTIONS = {
    "solo": "latency with the others, divided by the tenant's alone under native",
    "native": "latency under this scheduler, over that of the same tenants under native",
}
# Of the plan's tenants: whatever else a tenant is, it is for its neighbours too.
_NOT_IDENTITY = ("faults", "name")
# What both records say of a run, in the same words.
_IN_BOTH = (
    "run", "stage", "started", "fingerprint", "noise", "notes", "faults", "seed", "command",
    "version", "git_commit", "git_dirty",
)  # fmt: skip


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
    proof = record.proof and SchedulerProof.model_validate(record.proof, from_attributes=True)
    return RunRecord(
        **{name: getattr(record, name) for name in _IN_BOTH},
        cell=cell,
        cell_id=cell.id,
        nodeid=nodeid,
        family=TENANTS,
        status=status,
        reason=reason,
        duration_s=record.elapsed_s,
        iterations=tenant.completed or 0,
        failed_requests=None if tenant.failed is None else tenant.failed + (tenant.unserved or 0),
        failed_for=failed_for([tenant]),
        samples=samples if measured else None,
        metrics=_metrics(record, tenant, references) if measured else Metrics(),
        scheduler_proof=proof,
        counters=tenant.counters,
    )


def _cell(record: ColocationRecord, tenant: str) -> Cell:
    plan = record.plan
    parameters: dict[str, Any] = {"duration_s": record.duration_s, "warmup_s": plan["warmup_s"]}
    own = next(each for each in plan["tenants"] if each["name"] == tenant)
    for each in plan["tenants"]:
        fields = {
            name: value
            for name, value in each.items()
            # Stored cells keep their identity: a later field counts where it says something new.
            if name not in _NOT_IDENTITY and not (name in LATER and value == LATER[name])
        }
        # Where weights are is no part of what they are.
        fields["weights"] = "seeded" if each["weights"] is None else "loaded"
        parameters |= {f"{each['name']}.{name}": value for name, value in fields.items()}
    noise = plan.get("noise")
    return Cell(
        name=f"{plan['name']}.{tenant}",
        device=record.device,
        streams=own["streams"],
        scheduler=record.scheduler,
        dispatch="eager",
        sync_mode="per_iteration",
        size=own["size"],
        parameters=parameters,
        variant=record.placement + ("" if noise in (None, NONE) else f"-{noise_id(noise)}"),
    )


def _metrics(record: ColocationRecord, tenant: TenantResult, references: References) -> Metrics:
    ratios: dict[str, LatencyRatioResult] = {}
    for name, values in references.items():
        ratios[name] = latency_ratio(tenant.latency_ns, values, _DESCRIPTIONS[name])
    return Metrics(
        latency=summarise_latency(tenant.latency_ns),
        ratios=ratios,
        throughput=[_throughput(record, tenant)],
        memory_bytes=tenant.memory_bytes,
    )


def _throughput(record: ColocationRecord, tenant: TenantResult) -> Throughput:
    """Return items per second within the window, with the interval of `figures.throughput`."""
    rates = tenant.throughput
    assert rates is not None
    window = served(tenant, round(record.duration_s * 1e9))
    estimate = figures.throughput([window], CONFIDENCE)
    known = math.isfinite(estimate.high)
    items = rates.items_per_s / rates.requests_per_s if rates.requests_per_s else 0.0
    return Throughput(
        unit=f"{rates.unit}/s",
        value=rates.items_per_s,
        interval=(items * estimate.low, items * estimate.high) if known else None,
        n=estimate.n,
        confidence=CONFIDENCE,
        refused={} if known else {"interval": estimate.missing},
    )
