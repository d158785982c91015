"""Tenants that live on: one window after the other, with the load of each, until they are ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.data.records.plan import Colocation, Tenant
from pytest_hwqueue.data.records.proof import Proof
from pytest_hwqueue.data.records.tenants import ColocationRecord, read_colocation
from pytest_hwqueue.engine.tenants.colocation import TenantSet
from pytest_hwqueue.engine.tenants.looks import Look, Looks
from pytest_hwqueue.engine.tenants.tenant_processes import Limits
from pytest_hwqueue.parts.schedulers.inside_evidence import InsideEvidence
from pytest_hwqueue.parts.schedulers.native import Native
from pytest_hwqueue.parts.schedulers.syntax import SchedulerPaths, parse_scheduler
from tests.conftest import slow
from tests.engine.tenants.conftest import server_of_tests
from tests.engine.tenants.test_colocation import faulty

HIGH = Tenant("high", workload="tiny_kernel_stress", parameters={"rounds": 2},
                  arrival="constant: 50/s", priority=1)  # fmt: skip
# It rests: what it does is not looked at, and without rest it takes a core from first to last.
LOW = Tenant("low", workload="large_gemm_only", parameters={"mm_dim": 64},
             arrival="closed: delay=20ms")  # fmt: skip
PLAN = Colocation("beside", (HIGH, LOW), duration_s=0.4, warmup_s=0.1, work_seed=7)

pytestmark = pytest.mark.usefixtures("own_leases", "no_process_is_left")


class Proving(Native):
    """The native mode, which notes in whom it was proven."""

    def __init__(self) -> None:
        super().__init__(parse_scheduler("native"), SchedulerPaths())
        self.proven: list[dict[str, int]] = []

    def proof(self, pids: Mapping[str, int], inside: Mapping[str, InsideEvidence]) -> Proof:
        assert all(psutil.pid_exists(pid) for pid in pids.values())
        self.proven.append(dict(pids))
        return super().proof(pids, inside)


def tenants_in(folder: Path, scheduler: Native | None = None) -> TenantSet:
    return TenantSet(
        scheduler or Proving(), lambda *_: None, folder, Limits(120, 60), server=server_of_tests()
    )


def at(rate: int, seed: int = 0, plan: Colocation = PLAN, **changed: Any) -> Colocation:
    """Return a window's plan, with the first tenant's requests at another rate."""
    first, *others = plan.tenants
    tenants = (replace(first, arrival=f"constant: {rate}/s"), *others)
    return replace(plan, tenants=tenants, seed=seed, **changed)


def measured(record: ColocationRecord) -> ColocationRecord:
    """Return a record that is as it should be; a busy machine may make the generator late."""
    assert record.status == "ok" or "generator was late" in record.reason, record.reason
    return record


@pytest.mark.parametrize("placement", ["processes", slow("threads")])
def test_the_same_processes_serve_each_window_its_own_load(tmp_path: Path, placement: str) -> None:
    scheduler = Proving()
    plans = [
        at(50, 0, placement=TenantPlacement(placement)),
        at(100, 1, placement=TenantPlacement(placement), duration_s=0.8),
        at(25, 2, placement=TenantPlacement(placement)),
    ]
    with tenants_in(tmp_path, scheduler) as tenants:
        records = []
        for number, plan in enumerate(plans, start=1):
            assert tenants.can_serve(plan) == (number > 1)
            records.append(measured(tenants.window(plan, run=number, last=number == 3)))
        assert not tenants.can_serve(plans[0])
    assert [record.tenant("high").issued for record in records] == [20, 80, 10]
    assert [record.duration_s for record in records] == [0.4, 0.8, 0.4]
    # Each was proven by itself, in processes that were started once.
    assert len(scheduler.proven) == 3
    assert len({str(pids) for pids in scheduler.proven}) == 1
    for record in records:
        assert record.proof is not None
        assert record.fingerprint is not None
    (started,) = {record.tenants_started for record in records}
    assert started
    for record in records:
        for tenant in record.tenants:
            times = tenant.requests
            assert times is not None
            # Nothing of another window is in it.
            assert min(times.started_ns) >= 0
            assert tenant.failed == 0
    ends = [[tenant.exit for tenant in record.tenants] for record in records]
    assert ends == [["", ""], ["", ""], ["exited with status 0"] * 2]
    assert sorted(read_colocation(path).run for path in tmp_path.glob("*.json")) == [1, 2, 3]


class Alone(Proving):
    """A mode that cannot be used beside another of its kind, as MPS: also not beside its own."""

    def __init__(self) -> None:
        super().__init__()
        self.running = 0

    def missing(self, *_: object) -> str | None:
        return "another one runs here" if self.running else None

    @contextmanager
    def services(self, folder: Path) -> Iterator[None]:
        with super().services(folder):
            self.running += 1
            yield
            self.running -= 1


def test_what_a_mode_runs_for_its_tenants_is_not_in_their_way(tmp_path: Path) -> None:
    scheduler = Alone()
    with tenants_in(tmp_path, scheduler) as tenants:
        measured(tenants.window(PLAN))
        measured(tenants.window(at(100, 1), run=2))
        assert scheduler.running == 1
    assert scheduler.running == 0
    scheduler.running = 1
    with tenants_in(tmp_path, scheduler) as tenants:
        refused = tenants.window(PLAN, run=3)
    assert (refused.status, refused.reason) == ("skipped", "another one runs here")


def test_only_the_load_may_differ(tmp_path: Path) -> None:
    with tenants_in(tmp_path) as tenants:
        assert not tenants.can_serve(PLAN)
        measured(tenants.window(PLAN))
        assert tenants.can_serve(at(10, seed=5, duration_s=9.0, goals=("high.p99 < 1 ms",)))
        other = replace(LOW, parameters={"mm_dim": 65})
        for plan in (
            replace(PLAN, tenants=(HIGH, other)),
            replace(PLAN, tenants=(HIGH,)),
            replace(PLAN, placement=TenantPlacement.THREADS),
            replace(PLAN, scheduler="mps"),
            replace(PLAN, work_seed=8),
            # Weights follow a window's own seed, and these have those of another.
            replace(PLAN, work_seed=None),
        ):
            assert not tenants.can_serve(plan)


def test_a_look_ends_its_own_window_and_no_other(tmp_path: Path) -> None:
    seen: list[float] = []

    def decided(record: ColocationRecord) -> bool:
        seen.append(record.duration_s)
        return True

    planned = [Look(300_000_000, 0.01), Look(2_000_000_000, 0.04)]
    with tenants_in(tmp_path) as tenants:
        plan = at(50, duration_s=2.0)
        first = measured(tenants.window(plan, looks=Looks(planned, decided)))
        second = measured(tenants.window(at(50, 1, duration_s=0.8)))
        third = measured(tenants.window(plan, run=3, looks=Looks(planned, decided)))
    assert [each.duration_s for each in (first, second, third)] == [0.3, 0.8, 0.3]
    assert second.tenant("high").issued == 40
    # A look sees the requests of its own window alone.
    assert seen == [0.3, 0.3]
    assert third.tenant("high").issued == 15


def outcome(record: ColocationRecord) -> Sequence[str]:
    return record.status, record.stage, record.reason


def test_a_tenant_that_dies_in_its_second_window_costs_that_and_starts_anew(
    tmp_path: Path,
) -> None:
    # Requests 1 to 20 are those of the first window.
    dying = faulty(tmp_path, "high", 25, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    plan = replace(PLAN, tenants=(replace(dying, arrival="constant: 50/s"), LOW),
                   folder=str(tmp_path))  # fmt: skip
    with tenants_in(tmp_path) as tenants:
        first = measured(tenants.window(plan))
        died = tenants.window(at(50, 1, plan), run=2)
        assert outcome(died) == ("failed", "measure", "tenant high died by SIGKILL")
        assert died.proof is None
        assert died.tenant("high").exit == "died by SIGKILL"
        assert died.tenant("low").exit == "stopped: the co-location ended"
        assert not tenants.can_serve(plan)
        again = measured(tenants.window(at(40, 2, plan), run=3))
    assert first.tenants_started == died.tenants_started != again.tenants_started
    assert again.tenant("high").issued == 16


def test_a_tenant_that_is_gone_before_its_next_window_fails_it(tmp_path: Path) -> None:
    scheduler = Proving()
    with tenants_in(tmp_path, scheduler) as tenants:
        measured(tenants.window(PLAN))
        os.kill(scheduler.proven[0]["low"], signal.SIGKILL)
        died = tenants.window(at(50, 1))
    assert outcome(died)[0] == "failed"
    assert "tenant low died by SIGKILL" in died.reason
    assert died.tenant("high").issued is None, "nothing of the window before"


@pytest.mark.parametrize("within", [False, True])
def test_an_interruption_ends_all_and_keeps_what_was_measured(tmp_path: Path, within: bool) -> None:
    def interrupt(_: ColocationRecord) -> bool:
        raise KeyboardInterrupt

    looks = Looks([Look(100_000_000, 0.01), Look(5_000_000_000, 0.04)], interrupt)

    def interrupted() -> None:
        with tenants_in(tmp_path) as tenants:
            measured(tenants.window(PLAN))
            if within:
                tenants.window(at(50, 1, duration_s=5.0), looks=looks)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    records = [read_colocation(path) for path in tmp_path.glob("*.json")]
    assert len(records) == 1 + within
    reasons = sorted(record.reason for record in records)
    assert ("interrupted before it was measured" in reasons) == within
