"""The line that says what the load on a server came to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from pytest_hwqueue.data.document.servers import request_lines
from pytest_hwqueue.data.figures.served import served
from pytest_hwqueue.data.records.plan import Server, Tenant
from pytest_hwqueue.data.records.tenants import (
    ColocationRecord,
    RequestFailure,
    ServerLoad,
    ServerOrigin,
    TenantResult,
    TokenTimes,
)
from pytest_hwqueue.engine.scenarios.goals import evaluate, parse_goal
from pytest_hwqueue.engine.tenants.open_loop import Load
from pytest_hwqueue.engine.tenants.tenant_cells import WorkDone, delivered

MS, S = 1_000_000, 1_000_000_000


def result(n: int = 1000, failed: int = 0) -> TenantResult:
    """Return a tenant's: every 10 ms a request of 10 tokens, the first after 5 ms, 2 ms apart."""
    due = [index * 10 * MS for index in range(n)]
    good = n - failed
    begun = [50 * MS if index % 4 == 0 else 5 * MS for index in range(good)]
    finished = [each + 25 * MS for each in due]
    failures = [RequestFailure(index=index, reason="status 500") for index in range(good, n)]
    load = Load([*due], [*due], finished, failed=failures)
    tokens = TokenTimes(
        # Every fourth is slow to begin, and every fifth slow to go on.
        ttft_ns=begun,
        last_ns=[at + (72 if i % 5 == 0 else 18) * MS for i, at in enumerate(begun)],
        answer_ns=[None] * good, tokens=[10] * good, counted="usage",
        ttft_bound_ms=20, tbt_bound_ms=4,
    )  # fmt: skip
    server = ServerLoad(
        url="http://127.0.0.1:1/", connections=3, connected=1, most_at_once=2, tokens=tokens
    )
    return delivered(
        Tenant("chat", server=Server("http://h/")),
        load,
        10 * S,
        WorkDone("", 10.0, "tokens"),
        server=server,
    )


def line(*results: TenantResult) -> str:
    records = [SimpleNamespace(tenants=[each], tenant=lambda _, each=each: each, duration_s=10.0)
               for each in results]  # fmt: skip
    (said,) = request_lines(cast("list[ColocationRecord]", records))
    return said


def test_it_says_requests_connections_tokens_and_goodput() -> None:
    said = line(result())
    assert said.startswith(
        "chat: 1000 requests to http://127.0.0.1:1/, 3 connections opened, 0.1 % of requests "
        "connected, at most 2 in flight; "
        "first token P50 5.00 ms [5.00, 5.00] (n = 1000); first token P99 50.0 ms"
    )
    assert "between tokens P50 2.00 ms" in said
    # 60 % of 100 requests/s are good: neither a fourth nor a fifth. The last two end too late.
    assert "goodput 59.8 requests/s [" in said
    assert said.endswith("998 tokens/s")
    # Windows are added up and failures grouped.
    said = line(result(failed=3), result())
    assert "2000 requests" in said
    assert "6 connections opened, 0.1 % of requests connected, at most 2 in flight; " in said
    assert "; 3 failed (3 × status 500)" in said


@pytest.mark.parametrize(
    ("origin", "label"),
    [("command", ""), ("url", " (not ours: it ran already)"),
     ("container", " (not ours: it runs in a container)")],
)  # fmt: skip
def test_one_that_is_not_ours_is_labelled(origin: ServerOrigin, label: str) -> None:
    tenant = result()
    assert tenant.server is not None
    server = tenant.server.model_copy(update={"origin": origin})
    said = line(tenant.model_copy(update={"server": server}), tenant)
    assert f"requests to http://127.0.0.1:1/{label}, 6 connections" in said


@pytest.mark.parametrize(("goal", "failed", "verdict"), [
    ("chat.ttft_p50 < 6 ms", 0, "met"),
    ("chat.ttft_p99_ms < 20", 0, "missed"),
    ("chat.tbt_p50 <= 2 ms", 0, "met"),
    ("chat.tbt_p95 < 4 ms", 0, "missed"),
    ("chat.goodput > 50/s", 0, "met"),
    ("chat.goodput > 70/s", 0, "missed"),
    # A failed request has no first token and is not good.
    ("chat.ttft_p99 < 1 s", 20, "missed"),
])  # fmt: skip
def test_goals_on_tokens_are_judged(goal: str, failed: int, verdict: str) -> None:
    window = served(result(failed=failed), 10 * S)
    assert evaluate(parse_goal(goal), [window]).verdict == verdict
    assert len(window.good_ns) == (588 if failed else 600)
