"""The figures of a co-location's record, computed again from its requests and its traces."""

from __future__ import annotations

from array import array
from dataclasses import asdict
from typing import Any

from pytest_hwqueue.causes.kept import kept_tenants
from pytest_hwqueue.causes.tenant_causes import with_causes
from pytest_hwqueue.harness.open_loop import RequestLog, lateness
from pytest_hwqueue.recompute.comparison import Recomputed
from pytest_hwqueue.records.tenants import ColocationRecord, RequestTimes, TenantResult
from pytest_hwqueue.records.timelines import Kept
from pytest_hwqueue.tenancy.outcome import delivered

_OF_REQUESTS = ("issued", "completed", "failed", "latency_ns", "throughput", "lateness")


def recompute_colocation(record: ColocationRecord, kept: Kept | None, found: Recomputed) -> None:
    """Compute a co-location's figures again.

    Args:
        record: its record.
        kept: its traces; None if it has none.
        found: takes what is compared.

    Raises:
        ValueError: if what is stored cannot be computed with: it is damaged.

    """
    at_once = {each["name"]: each.get("concurrency", 1) for each in record.plan["tenants"]}
    for tenant in record.tenants:
        if tenant.requests is not None:
            duration_ns = round(record.duration_s * 1e9)
            again = _again(tenant, tenant.requests, duration_ns, at_once[tenant.name])
            for name in _OF_REQUESTS:
                figure = f"{tenant.name}.{name}"
                found.compare(figure, _field(tenant, name), _field(again, name))
    explained = [tenant.name for tenant in record.tenants if tenant.causes is not None]
    stored = None if kept is None else kept_tenants(kept)
    if stored is None:
        if explained:
            found.left_out.append(f"causes of {', '.join(explained)}: the record has no timelines")
        return
    if not explained:
        # It failed after it was traced.
        return
    without = [tenant.model_copy(update={"causes": None}) for tenant in record.tenants]
    caused = with_causes(without, stored.traces, **stored.arguments)
    for tenant, other in zip(record.tenants, caused, strict=True):
        found.compare(f"{tenant.name}.causes", _field(tenant, "causes"), _field(other, "causes"))


def _again(
    tenant: TenantResult, times: RequestTimes, duration_ns: int, concurrency: int
) -> TenantResult:
    rates = tenant.throughput
    told: dict[str, Any] = {
        **times.model_dump(),
        "failures": [each.model_dump() for each in tenant.failures],
        "unserved": tenant.unserved or 0,
        "lateness": None if tenant.lateness is None else _lateness(times, concurrency),
        "items_per_request": rates.items_per_request if rates is not None else None,
        "unit": "" if rates is None else rates.unit,
        "memory_bytes": {},
    }
    known = told["items_per_request"] is not None
    again = delivered(tenant.name, {**told, "items_per_request": told["items_per_request"] or 0.0},
                      duration_ns)  # fmt: skip
    if known or rates is None or again.throughput is None:
        return again
    # Records of earlier versions do not say how many items a request has.
    throughput = again.throughput.model_copy(
        update={"items_per_s": rates.items_per_s, "items_per_request": None}
    )
    return again.model_copy(update={"throughput": throughput})


def _lateness(times: RequestTimes, concurrency: int) -> dict[str, Any] | None:
    scheduled, started, finished = (
        array("q", each) for each in (times.scheduled_ns, times.started_ns, times.finished_ns)
    )
    late = lateness(RequestLog(False, scheduled, started, finished, concurrency=concurrency))
    return None if late is None else asdict(late)


def _field(tenant: TenantResult, name: str) -> Any:
    return tenant.model_dump(mode="json", include={name})[name]
