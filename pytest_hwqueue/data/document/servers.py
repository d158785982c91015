"""What the load on tenants' servers came to, in a line for each, and what requests failed for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_hwqueue.data.metrics.latency import CONFIDENCE
from pytest_hwqueue.data.metrics.numbers import in_unit

if TYPE_CHECKING:
    from pytest_hwqueue.data.figures.of_requests import TimesOf
    from pytest_hwqueue.data.metrics.estimate import Estimate
    from pytest_hwqueue.data.records.tenants import ColocationRecord, ServerLoad, TenantResult

_COUNTED = {
    "events": "tokens counted by events, since the server did not count each answer's",
    "client": "tokens counted by the client",
}
_TIMES: dict[str, TimesOf] = {
    "first token": "ttft_ns",
    "first of the answer": "ttfo_ns",
    "between tokens": "tbt_ns",
}


def request_lines(records: Sequence[ColocationRecord]) -> list[str]:
    """Return a line for each tenant with a server: its requests in all windows, and its tokens.

    Of other tenants, what requests failed for.
    """
    from pytest_hwqueue.data.figures.served import failed_for

    names = dict.fromkeys(each.name for record in records for each in record.tenants)
    lines = []
    for name in names:
        windows = [(record.tenant(name), record.duration_s) for record in records]
        results = [result for result, _ in windows]
        servers = [each.server for each in results if each.server is not None]
        parts = [f"{name}: {sum(each.issued or 0 for each in results)} requests"]
        if len(servers) == len(results):
            parts[0] += (
                f" to {servers[0].url}{_not_ours(servers)}, {_connected(servers, results)}at most "
                f"{max(each.most_at_once for each in servers)} in flight"
            )
        elif not any(each.failures for each in results):
            continue
        if failed := sum(each.failed or 0 for each in results):
            parts.append(failures(failed, failed_for(results)))
        if len(servers) == len(results):
            if unserved := sum(each.unserved or 0 for each in results):
                parts.append(f"{unserved} found no free connection before the grace was over")
            if any(each.tokens is not None for each in servers):
                parts += _of_tokens(windows)
        lines.append("; ".join(parts))
    return lines


def _connected(servers: Sequence[ServerLoad], results: Sequence[TenantResult]) -> str:
    """Return which share of the windows' requests had to open a connection, if anybody knows."""
    opened = [each.connections for each in servers if each.connections is not None]
    if len(opened) < len(servers):
        return ""
    connected = sum(each.connected or 0 for each in servers)
    begun = sum(len(each.requests.started_ns) for each in results if each.requests is not None)
    share = f"{100 * connected / max(1, begun):.2g} % of requests connected"
    return f"{sum(opened)} connections opened, {share}, "


def _not_ours(servers: Sequence[ServerLoad]) -> str:
    """Return that windows' server is not ours, in brackets; empty if it is."""
    from pytest_hwqueue.data.records.tenants import NOT_OURS

    origins = dict.fromkeys(each.origin for each in servers)
    said = [text for origin, text in NOT_OURS.items() if origin in origins]
    return f" ({'; '.join(said)})" if said else ""


def failures(failed: int, reasons: Mapping[str, int]) -> str:
    """Return how many requests failed, and for which reasons; tracebacks in lines of their own.

    Args:
        failed: requests.
        reasons: the most frequent ones, with the number of their requests.

    """
    said = [f"{count} × {reason}" for reason, count in reasons.items()]
    said += ["…"] * (sum(reasons.values()) < failed)
    if any("\n" in each for each in said):
        return "\n".join([f"{failed} failed:", *said])
    return f"{failed} failed ({', '.join(said)})"


def _of_tokens(windows: Sequence[tuple[TenantResult, float]]) -> list[str]:
    from pytest_hwqueue.data.figures import of_requests as figures
    from pytest_hwqueue.data.figures.served import served

    measured = [served(result, round(seconds * 1e9)) for result, seconds in windows]
    seconds = sum(each for _, each in windows)
    rate = sum(r.throughput.items_per_s * s for r, s in windows if r.throughput) / seconds
    parts = [
        f"{what} P{round(100 * quantile)} "
        + _in_ms(figures.percentile(quantile, of)(measured, CONFIDENCE))
        for what, of in _TIMES.items()
        if of != "ttfo_ns" or any(each.ttfo_ns != each.ttft_ns for each in measured)
        for quantile in (0.5, 0.99)
    ]
    bounds = [each.server.tokens for each, _ in windows if each.server is not None]
    counted = {each.counted for each in bounds if each is not None}
    parts += [said for by, said in _COUNTED.items() if by in counted]
    if any(each is not None and (each.ttft_bound_ms or each.tbt_bound_ms) for each in bounds):
        good = figures.goodput(measured, CONFIDENCE)
        parts.append(f"goodput {in_unit(good, good.unit)}")
    return [*parts, f"{rate:.4g} tokens/s"]


def _in_ms(estimate: Estimate) -> str:
    if estimate.value is None:
        return f"unknown ({estimate.refused})"
    return f"{in_unit(estimate.scaled(1e-6, 'ms'), 'ms')} (n = {estimate.n})"
