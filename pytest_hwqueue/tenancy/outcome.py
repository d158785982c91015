"""Turns a tenant's report into its result: counts, rates and latencies. Plain functions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
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


# Of failed requests; a record has those of each.
_REASONS = 3

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


def failed_for(results: Sequence[TenantResult]) -> dict[str, int]:
    """Return how many requests failed, by the three most frequent reasons."""
    reasons = Counter(failure.reason for result in results for failure in result.failures)
    return dict(reasons.most_common(_REASONS))


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


def advice(text: str) -> str:
    """Return what to try for the first known message in ``text``; empty if none is known."""
    for pattern, what in _KNOWN:
        if re.search(pattern, text, re.IGNORECASE):
            return what
    return ""


def with_advice(reason: str, output: str) -> str:
    """Return a reason with what to try, if it or the process's last output is a known message."""
    what = advice(f"{reason}\n{output}")
    return f"{reason}. Try: {what}" if what else reason
