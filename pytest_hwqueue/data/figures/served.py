"""What a tenant's record says of its requests, as figures take it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from pytest_hwqueue.data.figures.of_requests import ONLY_SESSION, ServedRequests, Session
from pytest_hwqueue.data.records.tenants import TenantResult, TokenTimes, rate_begins_ns

# Of failed requests; a record has those of each.
_REASONS = 3


def failed_for(results: Sequence[TenantResult]) -> dict[str, int]:
    """Return how many requests failed, by the three most frequent kinds, of which one is told."""
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for failure in (each for result in results for each in result.failures):
        kind = failure.kind or failure.reason
        counts[kind] += 1
        examples.setdefault(kind, failure.reason)
    return {examples[kind]: count for kind, count in counts.most_common(_REASONS)}


def served(result: TenantResult, window_ns: int, session: Session | None = None) -> ServedRequests:
    """Return the outcome of a tenant's requests in its own time of a successful window."""
    assert result.requests is not None
    assert result.issued is not None
    failed = {failure.index for failure in result.failures}
    from_ns = result.from_ns
    finished = [
        when - from_ns
        for index, when in enumerate(result.requests.finished_ns)
        if index not in failed
    ]
    tokens = None if result.server is None else result.server.tokens
    own_ns = result.own_ns(window_ns)
    whole = ServedRequests(
        result.issued, result.latency_ns, finished, own_ns, session or ONLY_SESSION,
        from_ns=from_ns,
        rate_from_ns=rate_begins_ns(from_ns, result.until_ns, result.requests) - from_ns,
    )  # fmt: skip
    if tokens is None:
        return whole
    tbt_ns = between_tokens_ns(tokens)
    return replace(
        whole,
        ttft_ns=tokens.ttft_ns,
        ttfo_ns=[each for each in tokens.answer_ns if each is not None],
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
