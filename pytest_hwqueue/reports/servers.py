"""What the load on tenants' servers came to, in a line for each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_hwqueue.metrics.latency import CONFIDENCE

if TYPE_CHECKING:
    from pytest_hwqueue.records.tenants import ColocationRecord, TenantResult
    from pytest_hwqueue.tenancy.figures import Estimate, TimesOf

_REASONS = 3
_TIMES: dict[str, TimesOf] = {"first token": "ttft_ns", "between tokens": "tbt_ns"}


def server_lines(records: Sequence[ColocationRecord]) -> list[str]:
    """Return a line for each tenant with a server: its requests in all windows, and its tokens."""
    names = dict.fromkeys(each.name for record in records for each in record.tenants)
    return [
        _line([(record.tenant(name), record.duration_s) for record in records])
        for name in names
        if all(record.tenant(name).server is not None for record in records)
    ]


def _line(windows: Sequence[tuple[TenantResult, float]]) -> str:
    results = [result for result, _ in windows]
    servers = [each.server for each in results if each.server is not None]
    issued = sum(each.issued or 0 for each in results)
    parts = [
        f"{results[0].name}: {issued} requests to {servers[0].url}, "
        f"{sum(each.connections for each in servers)} connections opened, at most "
        f"{max(each.most_at_once for each in servers)} in flight"
    ]
    reasons = Counter(failure.reason for each in results for failure in each.failures)
    if reasons:
        said = [f"{count} × {reason}" for reason, count in reasons.most_common(_REASONS)]
        more = ", …" if len(reasons) > _REASONS else ""
        parts.append(f"{reasons.total()} failed ({', '.join(said)}{more})")
    unserved = sum(each.unserved or 0 for each in results)
    if unserved:
        parts.append(f"{unserved} found no free connection before the grace was over")
    if any(each.tokens is not None for each in servers):
        parts += _of_tokens(windows)
    return "; ".join(parts)


def _of_tokens(windows: Sequence[tuple[TenantResult, float]]) -> list[str]:
    from pytest_hwqueue.tenancy import figures
    from pytest_hwqueue.tenancy.outcome import served

    measured = [served(result, round(seconds * 1e9)) for result, seconds in windows]
    seconds = sum(each for _, each in windows)
    rate = sum(r.throughput.items_per_s * s for r, s in windows if r.throughput) / seconds
    parts = [
        f"{what} P{round(100 * quantile)} "
        + _in_ms(figures.percentile(quantile, of)(measured, CONFIDENCE))
        for what, of in _TIMES.items()
        for quantile in (0.5, 0.99)
    ]
    bounds = [each.server.tokens for each, _ in windows if each.server is not None]
    if any(each is not None and (each.ttft_bound_ms or each.tbt_bound_ms) for each in bounds):
        good = figures.goodput(measured, CONFIDENCE)
        parts.append(f"goodput {good.value:.3g}/s ({good.low:.3g} to {good.high:.3g})")
    return [*parts, f"{rate:.4g} tokens/s"]


def _in_ms(estimate: Estimate) -> str:
    if estimate.value is None:
        return f"unknown ({estimate.missing})"
    value, low, high = (
        "infinity" if math.isinf(each) else f"{each / 1e6:.4g}"
        for each in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value} ms ({CONFIDENCE:.0%} interval {low} to {high}, n = {estimate.n})"
