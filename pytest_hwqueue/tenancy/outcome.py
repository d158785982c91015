"""Turns a tenant's report into its result: counts, rates and latencies. Plain functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_hwqueue.processes.channel import Message
from pytest_hwqueue.records.tenants import (
    GeneratorLateness,
    RequestFailure,
    RequestTimes,
    ServerLoad,
    TenantResult,
    TenantThroughput,
    TokenTimes,
)
from pytest_hwqueue.tracing.cpu_counters import CpuCounters

if TYPE_CHECKING:
    from pytest_hwqueue.tenancy.figures import Served, Session


def delivered(name: str, told: Message, duration_ns: int) -> TenantResult:
    """Return a tenant's result from its own message.

    Args:
        name: of the tenant.
        told: joined results of `window.times_in_parts` and `window.without_times`, with
            ``items_per_request``, ``unit`` and ``memory_bytes``; also ``work``, ``counters``
            and ``server`` if there are any.
        duration_ns: length of the window. Rates count what was completed within it.

    """
    failures = [RequestFailure.model_validate(failure) for failure in told["failures"]]
    failed = {failure.index for failure in failures}
    times = RequestTimes(
        scheduled_ns=told["scheduled_ns"],
        started_ns=told["started_ns"],
        finished_ns=told["finished_ns"],
    )
    done = [index for index in range(len(times.finished_ns)) if index not in failed]
    inside = sum(times.finished_ns[index] <= duration_ns for index in done)
    per_s = inside * 1e9 / duration_ns
    return TenantResult(
        name=name,
        work=told.get("work", ""),
        issued=len(times.scheduled_ns) + told["unserved"],
        completed=len(done),
        failed=len(failures),
        unserved=told["unserved"],
        throughput=TenantThroughput(
            requests_per_s=per_s,
            items_per_s=per_s * told["items_per_request"],
            unit=told["unit"],
            items_per_request=told["items_per_request"],
        ),
        latency_ns=[times.finished_ns[index] - times.scheduled_ns[index] for index in done],
        requests=times,
        failures=failures,
        lateness=told["lateness"] and GeneratorLateness.model_validate(told["lateness"]),
        memory_bytes=told["memory_bytes"],
        server=told.get("server") and ServerLoad.model_validate(told["server"]),
        counters=told.get("counters") and CpuCounters.model_validate(told["counters"]),
    )


def served(result: TenantResult, window_ns: int, session: Session | None = None) -> Served:
    """Return the outcome of a tenant's requests in a successful window."""
    from pytest_hwqueue.tenancy.figures import ONLY_SESSION, Served

    assert result.requests is not None
    assert result.issued is not None
    failed = {failure.index for failure in result.failures}
    finished = [
        when for index, when in enumerate(result.requests.finished_ns) if index not in failed
    ]
    tokens = None if result.server is None else result.server.tokens
    if tokens is None:
        return Served(
            result.issued, result.latency_ns, finished, window_ns, session or ONLY_SESSION
        )
    tbt_ns = between_tokens_ns(tokens)
    return Served(
        result.issued,
        result.latency_ns,
        finished,
        window_ns,
        session or ONLY_SESSION,
        ttft_ns=tokens.ttft_ns,
        tbt_ns=[between_ns for between_ns in tbt_ns if between_ns is not None],
        good_ns=[
            when
            for when, first_ns, between_ns in zip(finished, tokens.ttft_ns, tbt_ns, strict=True)
            if _within(first_ns, tokens.ttft_bound_ms) and _within(between_ns, tokens.tbt_bound_ms)
        ],
    )


def between_tokens_ns(tokens: TokenTimes) -> list[float | None]:
    """Return each request's mean time between tokens; None for one of a single token."""
    return [
        (last_ns - first_ns) / (count - 1) if count > 1 else None
        for first_ns, last_ns, count in zip(
            tokens.ttft_ns, tokens.last_ns, tokens.tokens, strict=True
        )
    ]


def _within(time_ns: float | None, bound_ms: float | None) -> bool:
    return time_ns is None or bound_ms is None or time_ns <= bound_ms * 1e6
