"""Tenants in real processes on the CPU: measured together, and ended on every way out."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import pytest

from pytest_hwqueue.data.errors import InvalidMeasurement, LeaseError, NotProven
from pytest_hwqueue.data.records.plan import Colocation, Tenant
from pytest_hwqueue.data.records.proof import Proof
from pytest_hwqueue.data.records.tenants import ColocationRecord, read_colocation
from pytest_hwqueue.data.safe_files import write_text
from pytest_hwqueue.engine.tenants.colocation import TenantSet
from pytest_hwqueue.engine.tenants.open_loop import invalid_reason
from pytest_hwqueue.engine.tenants.tenant_processes import Limits
from pytest_hwqueue.engine.tenants.tenant_window import refuse_endless
from pytest_hwqueue.parts.devices.accelerator import Accelerator
from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.devices.lease import lease
from pytest_hwqueue.parts.schedulers.inside_evidence import InsideEvidence
from pytest_hwqueue.parts.schedulers.native import Native
from pytest_hwqueue.parts.schedulers.syntax import (
    Scheduler,
    SchedulerPaths,
    TenantRequest,
    open_scheduler,
    parse_scheduler,
)
from tests.conftest import slow
from tests.engine.tenants.conftest import server_of_tests

NATIVE = (parse_scheduler("native"), SchedulerPaths())
_LIMITS = Limits(ready_s=120, finish_s=60)
_STEADY = Tenant(
    "steady", workload="tiny_kernel_stress", parameters={"rounds": 2}, arrival="constant: 50/s",
    priority=3,
)  # fmt: skip
_GREEDY = Tenant("greedy", workload="large_gemm_only", parameters={"mm_dim": 192})


class Watched(Native):
    """The native mode, which also notes what it is asked and can see from outside."""

    def __init__(self) -> None:
        super().__init__(*NATIVE)
        self.pids: dict[str, int] = {}
        self.calls = self.checks = 0
        self.last_call_s = self.proven_s = 0.0
        self.variables: dict[str, str] = {}
        self.leased = self.proven_alive = False

    def environment(self, tenant: TenantRequest) -> dict[str, str]:
        return {"HWQ_TEST_TENANT": f"{tenant.name} {tenant.priority}"}

    def check(self) -> None:
        self.checks += 1

    def observe(self, pids: Mapping[str, int]) -> None:
        self.calls += 1
        self.last_call_s = time.monotonic()
        if self.calls > 1:
            return
        self.pids = dict(pids)
        environments = {name: psutil.Process(pid).environ() for name, pid in pids.items()}
        self.variables = {n: each["HWQ_TEST_TENANT"] for n, each in environments.items()}
        # A thread that holds a lease may take it again, so another one asks.
        asking = threading.Thread(target=self._ask_for_lease)
        asking.start()
        asking.join()

    def proof(self, pids: Mapping[str, int], inside: Mapping[str, InsideEvidence]) -> Proof:
        self.proven_s = time.monotonic()
        self.proven_alive = all(psutil.pid_exists(pid) for pid in pids.values())
        return super().proof(pids, inside)

    def _ask_for_lease(self) -> None:
        try:
            with lease("cpu", timeout_s=0):
                return
        except LeaseError:
            self.leased = True


# A tenant's function whose ``at``-th request in the window fails as told; 0 is the warm-up.
FAULTY = """
import sys, time

def in_window():
    frame = sys._getframe()
    while frame := frame.f_back:
        if frame.f_code.co_filename.endswith("open_loop.py"):
            return True
    return False

def make(*, device, streams, seed, at, action):
    number = 0

    def step(streams):
        nonlocal number
        number += in_window()
        if number == at:
            exec(action)

    return step
"""


def faulty(folder: Path, name: str, at: int, action: str) -> Tenant:
    """Return a tenant with a planted fault."""
    (folder / "faulty.py").write_text(FAULTY, encoding="utf-8")
    return Tenant(name, function="faulty:make", parameters={"at": at, "action": action})


def quiet(stage: str, done: int, planned: int) -> None:
    """Show nothing."""


pytestmark = pytest.mark.usefixtures("own_leases", "no_process_is_left")


def run(
    folder: Path,
    tenants: Sequence[Tenant],
    scheduler: Scheduler,
    limits: Limits = _LIMITS,
    **changed: Any,
) -> ColocationRecord:
    """Run a plan and check what is true of every record."""
    settings = {"duration_s": 0.8, "warmup_s": 0.1, "folder": str(folder), **changed}
    plan = Colocation("beside", tuple(tenants), **settings)
    record = TenantSet(
        scheduler, quiet, folder, limits=limits, command="again", server=server_of_tests()
    ).once(plan)
    (path,) = folder.glob("*.json")
    assert read_colocation(path) == record
    assert record.id == plan.id
    assert record.plan.tenants[0].name == tenants[0].name
    assert not record.simulated
    return record


def test_two_processes_are_measured_together(tmp_path: Path) -> None:
    scheduler = Watched()
    record = run(tmp_path, [_STEADY, _GREEDY], scheduler)
    steady, greedy = record.tenant("steady"), record.tenant("greedy")
    # Invalid just where the machine made the generator late.
    late = invalid_reason(steady.lateness, float(np.quantile(steady.latency_ns, 0.99)) / 1e6)
    assert record.status == ("ok" if late is None else "invalid"), record.reason
    assert record.reason == ("" if late is None else f"tenant steady: {late}")
    assert record.notes == []
    assert record.fingerprint is not None
    assert record.fingerprint.hard["device_kind"] == "cpu"
    logs = {path.name for path in tmp_path.glob("beside*/*.log")}
    assert logs == {"tenant-steady.log", "tenant-greedy.log"}
    # The scheduler is asked, sees the tenants while they warm up, and the device is leased.
    assert len(set(scheduler.pids.values())) == 2
    assert scheduler.variables == {"steady": "steady 3", "greedy": "greedy 0"}
    assert scheduler.calls > 2
    # Within the window only its services are looked after: other modes have nobody to ask.
    assert scheduler.proven_s - scheduler.last_call_s >= 0.8
    assert scheduler.checks > 10
    assert scheduler.proven_alive
    assert scheduler.leased
    assert record.proof is not None
    assert (record.proof.priority, record.proof.device_priorities) == (None, (0, 0))
    for tenant in record.tenants:
        assert (tenant.exit, tenant.last_output) == ("exited with status 0", "")
    # A scheduled tenant counts from the arrival.
    due = steady.requests
    assert due is not None
    served = len(due.scheduled_ns)
    assert due.scheduled_ns == [20_000_000 * number for number in range(served)]
    assert (steady.issued, steady.unserved, steady.failed) == (40, 40 - served, 0)
    assert all(b >= a for a, b in zip(due.scheduled_ns, due.started_ns, strict=True))
    times = zip(due.scheduled_ns, due.finished_ns, strict=True)
    assert steady.latency_ns == [finished - scheduled for scheduled, finished in times]
    # A closed one stops with the window, and what ended within it is its throughput.
    own = greedy.requests
    assert own is not None
    assert own.scheduled_ns == own.started_ns
    assert 0 <= own.started_ns[0] <= own.started_ns[-1] < 800_000_000
    inside = sum(finished <= 800_000_000 for finished in own.finished_ns)
    assert (greedy.lateness, greedy.completed) in ((None, inside), (None, inside + 1))
    rate = greedy.throughput
    assert rate is not None
    assert rate.requests_per_s == pytest.approx(inside / 0.8)
    assert rate.items_per_s == pytest.approx(inside / 0.8 * 2 * 192**3 / 1e12)
    assert rate.unit == "TFLOP"


# Waits 25 ms too long for each request, which takes no time itself.
LATE = """
from pytest_hwqueue.parts.devices.host import HostDevice
sleep_until_ns = HostDevice.sleep_until_ns
HostDevice.sleep_until_ns = lambda self, when_ns: sleep_until_ns(self, when_ns + 25_000_000)
def make(**_): return lambda: None
"""


@pytest.mark.parametrize(
    ("asked_ms", "status"), [(None, "invalid"), (20.0, "invalid"), (1e5, "ok")]
)
def test_a_late_generator_counts_by_what_is_asked(
    tmp_path: Path, asked_ms: float | None, status: str
) -> None:
    (tmp_path / "late.py").write_text(LATE, encoding="utf-8")
    tenant = Tenant("high", function="late:make", arrival="constant: 20/s")
    asked = {} if asked_ms is None else {"high": asked_ms}
    record = run(tmp_path, [tenant], open_scheduler("native"), asked_ms=asked)
    assert record.status == status, record.reason
    said = [record.reason] if status == "invalid" else record.notes
    assert [text for text in said if "lateness" in text or "was late" in text] == said
    assert said[0].startswith(
        "tenant high: of its P99 of" if status == "ok" else "tenant high: the"
    )
    # It stays in the latency, which counts from the schedule. Who is late already does not wait.
    assert median(record.tenant("high").latency_ns) >= 20_000_000


class Killing(Watched):
    """Kills a tenant while it serves."""

    def check(self) -> None:
        super().check()
        if self.pids and time.monotonic() > self.last_call_s + 1:
            with suppress(ProcessLookupError):
                os.kill(self.pids["greedy"], signal.SIGKILL)


def test_a_tenant_that_is_killed_ends_the_others(tmp_path: Path) -> None:
    began = time.monotonic()
    record = run(tmp_path, [_STEADY, _GREEDY], Killing(), duration_s=300.0)
    assert time.monotonic() - began < 200
    assert (record.status, record.stage, record.proof) == ("failed", "measure", None)
    assert record.reason == "tenant greedy died by SIGKILL"
    assert record.tenant("greedy").exit == "died by SIGKILL"
    assert record.tenant("steady").exit == "stopped: the co-location ended"
    assert record.tenant("steady").issued is None


class Deserted(Native):
    """A mode whose service has ended."""

    def observe(self, pids: Mapping[str, int]) -> None:
        raise NotProven("xserver ended by itself")


class Dying(Native):
    """A mode whose service ends while the tenants get ready."""

    def check(self) -> None:
        raise NotProven("xserver died by SIGKILL")


class Unproven(Native):
    """A mode that is not active."""

    def proof(self, pids: Mapping[str, int], inside: Mapping[str, InsideEvidence]) -> Proof:
        raise NotProven("nobody schedules")


@pytest.mark.parametrize(
    ("mode", "tenant", "stage", "reason"),
    [
        (Dying, _STEADY, "warm-up", "xserver died by SIGKILL"),
        (
            Deserted, Tenant("lost", workload="no_such_workload"), "open device",
            "xserver ended by itself (tenant lost: no workload",
        ),
        (Unproven, _GREEDY, "proof", "nobody schedules"),
    ],
)  # fmt: skip
def test_a_mode_that_is_not_active_is_the_cause(
    tmp_path: Path, mode: type[Native], tenant: Tenant, stage: str, reason: str
) -> None:
    record = run(tmp_path, [tenant], mode(*NATIVE), duration_s=0.1)
    assert (record.status, record.stage, record.proof) == ("failed", stage, None)
    assert record.reason.startswith(reason)
    assert bool(record.tenants[0].completed) == (stage == "proof"), "what was served is kept"


def test_a_tenant_out_of_memory_keeps_what_it_served(tmp_path: Path) -> None:
    full = faulty(tmp_path, "full", 3, "import torch; torch.empty(2**60)")
    record = run(tmp_path, [full], open_scheduler("native"))
    assert record.status == "failed"
    assert record.reason.startswith("tenant full: faulty:make: a request raised:")
    assert "Try: all tenants share the device's memory" in record.reason
    tenant = record.tenant("full")
    assert (tenant.completed, tenant.failed, tenant.exit) == (2, 1, "exited with status 1")
    assert "Traceback" in tenant.last_output


@pytest.mark.parametrize(
    ("at", "limits", "reason"),
    [
        slow(0, Limits(ready_s=2), r"tenant stuck \(in .*\) not warm 2 s after the start"),
        (2, Limits(120, 0.5), "tenant stuck not done 0.5 s after the window and its grace"),
    ],
)
def test_a_hang_is_a_timeout_and_shows_where(
    tmp_path: Path, at: int, limits: Limits, reason: str
) -> None:
    stuck = faulty(tmp_path, "stuck", at, "time.sleep(3600)")
    record = run(tmp_path, [stuck], Native(*NATIVE), limits, duration_s=0.2)
    assert (record.status, record.stage) == ("timeout", "measure" if at else "warm-up")
    assert re.fullmatch(reason, record.reason)
    # A process that is slow to start hangs nowhere yet.
    assert not at or "in step" in record.tenant("stuck").last_output
    assert record.tenant("stuck").exit == "stopped: the co-location ended"


def test_a_mode_that_cannot_be_used_is_skipped_and_each_run_keeps_its_record(
    tmp_path: Path,
) -> None:
    plan = Colocation("beside", (_STEADY, _GREEDY), scheduler="stream-priority")
    for number in (1, 2):
        record = TenantSet(open_scheduler("stream-priority"), quiet, tmp_path).once(
            plan, run=number
        )
        assert record.status == "skipped"
        assert "needs an accelerator" in record.reason
    records = [read_colocation(path) for path in tmp_path.glob("*.json")]
    assert sorted(record.run for record in records) == [1, 2]


_PARENT = """
import os, sys, tempfile
from pathlib import Path

folder = Path(sys.argv[1])
tempfile.tempdir = str(folder)
import psutil
from pytest_hwqueue.parts.schedulers.syntax import open_scheduler
from pytest_hwqueue.engine.tenants.colocation import TenantSet
from pytest_hwqueue.data.records.plan import Colocation, Tenant
from pytest_hwqueue.data.records.placement import TenantPlacement

def progress(stage, done, planned):
    if stage == "measure" and not (folder / "pids").exists():
        # The tenants: each has a parent that tells how it ends.
        started = psutil.Process().children(recursive=True)
        pids = [str(child.pid) for child in started if not child.children()]
        (folder / "pids.new").write_text(" ".join(pids))
        (folder / "pids.new").rename(folder / "pids")

tenants = tuple(
    Tenant(name, workload="large_gemm_only", parameters={"mm_dim": 64}) for name in "ab"
)
plan = Colocation("beside", tenants, TenantPlacement.THREADS, duration_s=600.0, warmup_s=0.0)
TenantSet(open_scheduler("native"), progress, folder).once(plan)
"""


def test_nothing_is_left_when_the_parent_is_ended(tmp_path: Path) -> None:
    parents = {}
    for number in (signal.SIGINT, signal.SIGKILL):
        folder = tmp_path / number.name
        folder.mkdir()
        write_text(folder / "parent.py", _PARENT)
        parents[number] = subprocess.Popen(
            [sys.executable, str(folder / "parent.py"), str(folder)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            stderr=subprocess.DEVNULL,
        )
    tenants: list[psutil.Process] = []
    for number, parent in parents.items():
        written = tmp_path / number.name / "pids"
        deadline = time.monotonic() + 120
        while not written.exists():
            assert parent.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        tenants += [psutil.Process(int(pid)) for pid in written.read_text().split()]
        parent.send_signal(number)
    assert len(tenants) == 2
    for number, parent in parents.items():
        # Python ends by the signal that interrupted it.
        assert parent.wait(60) == -number
    _, alive = psutil.wait_procs(tenants, timeout=60)
    assert alive == []
    (path,) = (tmp_path / "SIGINT").glob("beside*.json")
    record = read_colocation(path)
    assert record.status == "failed"
    assert record.reason == "interrupted before it was measured"
    assert [tenant.exit for tenant in record.tenants] == ["stopped: the co-location ended"] * 2


def test_all_processes_measure_on_one_clock() -> None:
    """The window is named in one process and kept in others."""
    assert HostDevice.clock_ns is Accelerator.clock_ns is time.perf_counter_ns
    clocks = [time.get_clock_info(name) for name in ("perf_counter", "monotonic")]
    assert clocks[0].implementation == clocks[1].implementation


def test_requests_that_outlast_the_window_end_the_warm_up() -> None:
    plan = Colocation("beside", (_GREEDY,), duration_s=1.0)
    second = 10**9
    # The first may compile; 2 s are the window and its grace.
    refuse_endless(plan, [50 * second])
    refuse_endless(plan, [50 * second, 2 * second])
    with pytest.raises(InvalidMeasurement, match=r"took 2\.1 s in warm-up, .* 1 s long"):
        refuse_endless(plan, [50 * second, 2 * second, second * 21 // 10])
