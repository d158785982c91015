"""What causes are found in, as it is kept next to a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter

from pytest_hwqueue.causes.trace_file import Trace, columns_of
from pytest_hwqueue.metrics.attribution import Request
from pytest_hwqueue.metrics.delay_evidence import Cause, DeviceWork, Evidence
from pytest_hwqueue.records.timelines import Kept

_CELL = "causes"
_TENANTS = "causes of tenants"
_NOT_SEEN = TypeAdapter(dict[Cause, str])
_EVIDENCE = TypeAdapter(list[Evidence])


@dataclass(frozen=True)
class CellCauses:
    """The arguments with which `explain` finds the causes of a cell's slow requests."""

    requests: list[Request]
    trace: Trace
    work: list[DeviceWork]
    not_seen: dict[Cause, str]
    evidence: list[Evidence]


@dataclass(frozen=True)
class TenantsCauses:
    """The traces in which `with_causes` finds causes, and its other arguments by name."""

    traces: dict[str, Trace]
    arguments: dict[str, Any]


def keep_cell(kept: Kept, causes: CellCauses) -> None:
    """Keep what the causes of a cell's slow requests are found in."""
    kept.about[_CELL] = {
        "trace": _without_work(causes.trace),
        "not_seen": dict(causes.not_seen),
        "evidence": [asdict(one) for one in causes.evidence],
    }
    kept.add_requests(_CELL, causes.requests)
    kept.add_work(_CELL, causes.work)


def kept_cell(kept: Kept) -> CellCauses | None:
    """Return what the causes of a cell's slow requests are found in; None if it is not kept.

    Raises:
        ValueError: if it is damaged.

    """
    about = kept.about.get(_CELL)
    if about is None:
        return None
    try:
        trace = Trace.model_validate(about["trace"])
        not_seen = _NOT_SEEN.validate_python(about["not_seen"])
        evidence = _EVIDENCE.validate_python(about["evidence"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"what its causes are found in is damaged: {error}") from error
    work = kept.work(_CELL, trace.owner)
    return CellCauses(kept.requests(_CELL), trace, work, not_seen, evidence)


def keep_tenants(kept: Kept, traces: Mapping[str, Trace], arguments: Mapping[str, Any]) -> None:
    """Keep what the causes of tenants' slow requests are found in.

    Args:
        kept: takes it.
        traces: of each tenant.
        arguments: the other ones of `with_causes`, by name, as JSON can hold them.

    """
    kept.about[_TENANTS] = {
        "arguments": dict(arguments),
        "traces": {name: _without_work(trace) for name, trace in traces.items()},
    }
    for name, trace in traces.items():
        kept.add_work(_of_tenant(name), trace.device_work())


def kept_tenants(kept: Kept) -> TenantsCauses | None:
    """Return what the causes of tenants' slow requests are found in; None if it is not kept.

    Raises:
        ValueError: if it is damaged.

    """
    about = kept.about.get(_TENANTS)
    if about is None:
        return None
    try:
        traces = {}
        for name, stored in about["traces"].items():
            trace = Trace.model_validate(stored)
            work = columns_of(kept.work(_of_tenant(name), trace.owner))
            traces[name] = trace.model_copy(update={"work": work})
        return TenantsCauses(traces, dict(about["arguments"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"what its causes are found in is damaged: {error}") from error


def _of_tenant(name: str) -> str:
    return f"tenant {name}"


def _without_work(trace: Trace) -> dict[str, Any]:
    return trace.model_dump(mode="json", exclude={"work"})
