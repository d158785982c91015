"""A real server whose queue is known: M/D/1 under Poisson arrivals, and one that stalls once."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq

from pytest_hwqueue.data.figures.of_requests import ServedRequests, percentile
from pytest_hwqueue.data.figures.served import served
from pytest_hwqueue.data.records.plan import Colocation, Server, Tenant
from pytest_hwqueue.data.records.tenants import RequestLog
from pytest_hwqueue.engine.tenants.colocation import TenantSet
from pytest_hwqueue.parts.schedulers.syntax import SchedulerPaths, open_scheduler
from tests.answers.which.test_capacity_truth import window
from tests.conftest import own_leases
from tools.capacity_rates import waits_at_most

__all__ = ["own_leases"]

EXAMPLES = Path(__file__).parents[3] / "examples" / "servers"
_SERVICE_S = 0.01
_RATE_PER_S = 60.0
# Neighbours in a queue wait together, and the interval is for independent requests. Of 400 windows
# of a simulated queue, every request's interval at 99 % had the theory's P99 in it 64 % of the
# time, every tenth request's 99 %.
_EVERY = 10
_CONFIDENCE = 0.99


def sojourn_s(quantile: float) -> float:
    """A quantile of the time in this M/D/1 queue, in s."""
    load = _RATE_PER_S * _SERVICE_S
    return _SERVICE_S * (
        1 + float(brentq(lambda services: waits_at_most(services, load) - quantile, 1e-9, 15))
    )


def test_the_theory_is_that_of_a_queue_simulated_by_its_recursion() -> None:
    """Lindley's recursion, independent of the formula: both must agree before either judges."""
    found = window(_RATE_PER_S * _SERVICE_S, 400_000, 1).latency_ns
    for quantile in (0.5, 0.9, 0.99):
        simulated_s = float(np.quantile(found, quantile)) / 1e6 * _SERVICE_S
        assert simulated_s == pytest.approx(sojourn_s(quantile), rel=0.03)


def measured(
    folder: Path, arrival: str, seconds: float, service_s: float = _SERVICE_S, **plan_fields: Any
) -> ServedRequests:
    """Return the example server's window."""
    server = Server(
        "http://127.0.0.1:{port}/",
        command=("{python}", str(EXAMPLES / "serve.py"), "--port", "{port}",
                 "--service-ms", str(1e3 * service_s)),
        ready="/health",
    )  # fmt: skip
    concurrency = 1 if arrival == "closed" else 64
    tenant = Tenant("high", server=server, arrival=arrival, concurrency=concurrency)
    plan = Colocation(
        "truth", (tenant,), duration_s=seconds, warmup_s=0.5, folder=str(folder), **plan_fields
    )
    mode = open_scheduler("native", SchedulerPaths())
    record = TenantSet(mode, lambda *_: None, folder).once(plan)
    assert record.status == "ok", record.reason
    return served(record.tenants[0], plan.duration_ns)


@pytest.fixture
def quiet_machine() -> None:
    """Others' load, seen beforehand, would make the generator late, and rightly so."""
    if os.getloadavg()[0] > len(os.sched_getaffinity(0)) / 2:
        pytest.skip(f"others use this machine: its load is {os.getloadavg()[0]:.1f}")


@pytest.mark.slow
@pytest.mark.usefixtures("own_leases", "quiet_machine")
def test_sojourn_times_of_a_fixed_service_time_are_those_of_m_d_1(tmp_path: Path) -> None:
    alone = measured(tmp_path / "alone", "closed", 4)
    # What HTTP adds where nothing waits, from a run of its own: it delays, but occupies nobody.
    added_s = median(alone.latency_ns) / 1e9 - _SERVICE_S
    loaded = measured(tmp_path / "loaded", f"poisson: {_RATE_PER_S:g}/s", 90)
    assert len(loaded.latency_ns) == loaded.issued
    every = loaded.latency_ns[::_EVERY]
    tenth = replace(loaded, issued=len(every), latency_ns=every)
    for quantile in (0.5, 0.99):
        estimate = percentile(quantile)([tenth], _CONFIDENCE)
        expected_s = sojourn_s(quantile) + added_s
        assert estimate.low <= expected_s * 1e9 <= estimate.high, (quantile, estimate, expected_s)


@pytest.mark.usefixtures("own_leases")
def test_every_request_that_is_due_in_a_stall_counts_its_wait(tmp_path: Path) -> None:
    """No coordinated omission: the stall holds back 16 connections, and all that is due."""
    stall_ns, near_ns = 500_000_000, 100_000_000
    script = str(Path(__file__).with_name("misbehaving.py"))
    server = Server(
        "http://127.0.0.1:{port}/", command=("{python}", "-S", script, "{port}", "stalls")
    )
    tenant = Tenant("high", server=server, arrival="constant: 100/s", concurrency=16)
    plan = Colocation("stall", (tenant,), duration_s=2.5, warmup_s=0.1, folder=str(tmp_path))
    mode = open_scheduler("native", SchedulerPaths())
    told: list[int] = []

    def stall_once(stage: str, done: int, planned: int) -> None:
        if stage == "measure" and done >= 1 and not told:
            (log,) = tmp_path.glob("stall*/server-high.log")
            told.append(int(log.read_text().split()[1]))
            os.kill(told[0], signal.SIGUSR1)

    record = TenantSet(mode, stall_once, tmp_path).once(plan)
    # A busy machine makes it late, and so only slower.
    assert record.status == "ok" or "generator was late" in record.reason, record.reason
    (tenant_result,) = record.tenants
    times = tenant_result.requests
    assert times is not None
    assert tenant_result.completed == tenant_result.issued == 250
    # The stalled one began before all that is due in the half second before it ends.
    pairs = zip(times.started_ns, times.finished_ns, strict=True)
    ends_ns = next(finished for started, finished in pairs if finished - started >= stall_ns)
    late_ns = [
        latency - (ends_ns - due)
        for latency, due in zip(tenant_result.latency_ns, times.scheduled_ns, strict=True)
        if ends_ns - stall_ns <= due < ends_ns - near_ns
    ]
    assert len(late_ns) >= 20
    assert min(late_ns) >= -near_ns
    (log,) = tmp_path.glob("stall*/server-high.log")
    expected_ns = p99_of_log_ns(log.read_text(), times)
    assert expected_ns > 0.9 * stall_ns
    # Ours has the way there and back as well, which a busy machine makes longer.
    found_ns = percentile(0.99)([served(tenant_result, plan.duration_ns)], 0.95).value
    assert found_ns is not None
    assert found_ns >= expected_ns


def p99_of_log_ns(log: str, times: RequestLog) -> float:
    """Return P99 from when each request was due until its server had it done, by its own log.

    When the window began on the server's clock is at latest where no request would have been
    received before it was sent, and later by the shortest way there at most.
    """
    served_ns = np.array([line.split()[1:] for line in log.splitlines() if line[:7] == "served "])
    # Others warmed up.
    received_ns, done_ns = np.sort(served_ns.astype(np.int64), axis=0)[-len(times.started_ns) :].T
    begin_ns = (received_ns - np.sort(times.started_ns)).min()
    return float(np.quantile(done_ns - begin_ns - np.sort(times.scheduled_ns), 0.99))


@pytest.mark.slow
@pytest.mark.usefixtures("own_leases", "quiet_machine")
def test_p99_of_stalls_is_within_2_percent_of_the_servers_log(tmp_path: Path) -> None:
    script = str(Path(__file__).with_name("misbehaving.py"))
    server = Server(
        "http://127.0.0.1:{port}/", command=("{python}", "-S", script, "{port}", "stalls", "5")
    )
    tenant = Tenant("high", server=server, arrival="poisson: 100/s", concurrency=16)
    plan = Colocation("stall", (tenant,), duration_s=30, warmup_s=0.1, folder=str(tmp_path))
    mode = open_scheduler("native", SchedulerPaths())
    record = TenantSet(mode, lambda *_: None, tmp_path).once(plan)
    assert record.status == "ok", record.reason
    (tenant_result,) = record.tenants
    (log,) = tmp_path.glob("stall*/server-high.log")
    assert tenant_result.requests is not None
    expected_ns = p99_of_log_ns(log.read_text(), tenant_result.requests)
    assert expected_ns > 300_000_000
    found_ns = percentile(0.99)([served(tenant_result, plan.duration_ns)], 0.95).value
    assert found_ns == pytest.approx(expected_ns, rel=0.02)


@pytest.mark.slow
@pytest.mark.usefixtures("own_leases", "quiet_machine")
def test_the_generator_is_in_time_at_1000_requests_per_second(tmp_path: Path) -> None:
    """Its lateness stays under 1 ms at P99, the most that a deadline of 5 ms allows."""
    loaded = measured(tmp_path, "poisson: 1000/s", 5, service_s=0.0, asked_ms={"high": 5.0})
    assert len(loaded.latency_ns) == loaded.issued > 4_500
