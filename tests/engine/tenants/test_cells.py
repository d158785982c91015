"""Tenants as cells: their figures, their identity, and what a gate sees of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_hwqueue.data.records.cell import RunRecord
from pytest_hwqueue.data.records.fingerprint import Fingerprint
from pytest_hwqueue.data.records.plan import Colocation, Server, Tenant
from pytest_hwqueue.data.records.tenants import (
    ColocationRecord,
    RequestFailure,
    RequestLog,
    TenantResult,
    TenantThroughput,
)
from pytest_hwqueue.engine.tenants.servers import for_records
from pytest_hwqueue.engine.tenants.tenant_cells import tenant_records
from pytest_hwqueue.judge.baselines.runs import cell_of_record
from pytest_hwqueue.judge.figures import figure

MS = 1_000_000
PLAN = Colocation(
    "mix",
    (
        Tenant("high", model="resnet18", batch=1, arrival="constant: 50/s", priority=1),
        Tenant("low", model="resnet50", batch=64),
    ),
    duration_s=20.0,
    device="cuda",
    scheduler="mps",
)


def served(name: str, latency_ms: float, per_s: int, *, failed: int = 0) -> TenantResult:
    n = 20 * per_s
    scheduled = [index * 1_000_000_000 // per_s for index in range(n)]
    latency = round(latency_ms * MS)
    return TenantResult(
        name=name, issued=n + 2, completed=n - failed, failed=failed, unserved=2,
        throughput=TenantThroughput(
            requests_per_s=per_s, items_per_s=8 * per_s, unit="items", items_per_request=8
        ),
        latency_ns=[latency] * (n - failed),
        requests=RequestLog(
            scheduled_ns=scheduled, started_ns=scheduled,
            finished_ns=[each + latency for each in scheduled],
        ),
        failures=[RequestFailure(index=index, reason="no memory") for index in range(failed)],
    )  # fmt: skip


def record(asked: Colocation, *tenants: TenantResult, **changed: Any) -> ColocationRecord:
    fields: dict[str, Any] = {
        "id": asked.id, "plan": asked, "status": "ok", "device": asked.device,
        "scheduler": asked.scheduler, "tenants": list(tenants), "seed": asked.seed,
        "placement": asked.placement, "duration_s": asked.duration_s, "elapsed_s": 30.0,
        "started": "2026-01-01T00:00:00.000+00:00", "command": "pytest mix.hwq.yaml",
        "simulated": False, "fingerprint": Fingerprint({"device_name": "NVIDIA H200"}, {}),
    }  # fmt: skip
    return ColocationRecord(**{**fields, **changed})


def high_and_low(**changed: Any) -> list[RunRecord]:
    references = {"high": {"solo": [2 * MS] * 500, "native": [8 * MS] * 500}}
    together = record(PLAN, served("high", 4, 50), served("low", 100, 10, failed=3), **changed)
    return tenant_records(together, "mix.hwq.yaml::mps", references)


def test_latency_rates_and_ratios_are_those_of_the_tenant() -> None:
    high, low = high_and_low()
    assert high.cell_id == "mix.high[cuda-s1-mps-eager-processes]"
    assert low.cell_id == "mix.low[cuda-s1-mps-eager-processes]"
    latency = high.metrics.latency
    assert latency is not None
    assert (latency.p50.value, latency.p99.value, latency.n) == (4.0, 4.0, 1000)
    assert high.metrics.ratios["solo"].p99.value == pytest.approx(2.0)
    assert high.metrics.ratios["native"].p50.value == pytest.approx(0.5)
    assert low.metrics.ratios == {}
    (rate,) = high.metrics.throughput
    assert (rate.unit, rate.value) == ("items/s", 400.0)
    assert rate.interval is not None
    assert rate.interval[0] <= 400 <= rate.interval[1]


def test_the_gate_reads_the_same_figures() -> None:
    high, low = (cell_of_record(each, "session").runs[0] for each in high_and_low())
    for name, value in (("p99", 4.0 * MS), ("solo", 2.0), ("native.p50", 0.5)):
        found = figure(name, [high], [high])
        assert found is not None
        assert found.run(high).value == pytest.approx(value)
    assert figure("solo", [low], [low]) is None
    # Of a run's requests, those that raised and those never served are lost alike.
    assert (high.failed, low.failed) == (2, 5)


def test_a_neighbour_is_part_of_what_a_tenant_is() -> None:
    plan = replace(PLAN, tenants=(PLAN.tenants[0], replace(PLAN.tenants[1], batch=128)))
    high, _ = high_and_low()
    other, _ = high_and_low(plan=plan)
    assert high.cell_id == other.cell_id
    differing = {
        name for name, value in high.cell.parameters.items() if other.cell.parameters[name] != value
    }
    assert differing == {"low.batch"}


def test_what_went_wrong_is_no_measurement() -> None:
    dead = high_and_low(status="failed", reason="tenant low died by SIGKILL", stage="measure")
    for each in dead:
        assert (each.status, each.stage, each.samples) == ("failed", "measure", None)
        assert each.reason == "tenant low died by SIGKILL"
    silent = record(PLAN, served("high", 4, 50), TenantResult(name="low", issued=0, completed=0))
    high, low = tenant_records(silent, "node", {})
    assert (high.status, low.status) == ("ok", "failed")
    assert low.reason == "tenant low completed no request"


SERVER = Server(
    "http://127.0.0.1:{port}/v1/completions", ("serve", "--slow", "${SERVICE_MS}"),
    headers={"X-Route": "llama", "Authorization": "Bearer abcdefgh"}, protocol="openai",
)  # fmt: skip


def identity(server: Server, trace: str | None = None) -> dict[str, Any]:
    tenant = Tenant("chat", server=server, arrival="trace: peak.txt", trace_sha256=trace)
    plan = for_records(replace(PLAN, tenants=(tenant,)))
    (found,) = tenant_records(record(plan, served("chat", 4.0, 20)), "x", {})
    return dict(found.cell.parameters)


def test_what_changes_a_server_is_another_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_MS", "1")
    before = identity(SERVER, "a")
    assert "chat.trace_sha256" not in identity(SERVER)
    assert identity(SERVER, "b") != before
    assert identity(replace(SERVER, headers={**SERVER.headers, "X-Route": "qwen"}), "a") != before
    assert identity(replace(SERVER, timeout_s=11.0), "a") != before
    monkeypatch.setenv("SERVICE_MS", "9")
    other = identity(SERVER, "a")
    assert other != before
    # Whichever text has the variable.
    for changed in ({"url": "http://h/${MODEL}"}, {"headers": {"X-Route": "${MODEL}"}}):
        monkeypatch.setenv("MODEL", "llama")
        one = identity(replace(SERVER, **changed))
        monkeypatch.setenv("MODEL", "qwen")
        assert identity(replace(SERVER, **changed)) != one
    # Values themselves stand nowhere.
    assert "llama" not in str(other)
    assert set(other["chat.server"]["digests"]) == {"${SERVICE_MS}", "headers.x-route"}


@pytest.mark.parametrize("name", ["Key", "Auth", "X-Pin", "Pwd", "licenseKey", "X-Pass"])
def test_a_header_that_is_called_a_secret_has_no_digest(name: str) -> None:
    assert "4821" not in str(own := identity(replace(SERVER, command=(), headers={name: "4821"})))
    assert own["chat.server"]["digests"] == {}


def test_what_changes_no_figure_of_a_server_is_the_same_cell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SERVICE_MS", "1")
    before = identity(SERVER)
    for changed in (
        {"stop_s": 11.0}, {"ready_s": 61.0}, {"ttft_ms": 100.0}, {"tbt_ms": 9.0},
        # A new token is no other server.
        {"headers": {**SERVER.headers, "Authorization": "Bearer ijklmnop"}},
        # Names of headers have no case.
        {"headers": {"x-route": "llama", "authorization": "Bearer abcdefgh"}},
    ):  # fmt: skip
        assert identity(replace(SERVER, **changed)) == before
