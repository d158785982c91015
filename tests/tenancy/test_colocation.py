"""Tenants in real processes on the CPU: measured together, and ended on every way out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_hwqueue.devices.accelerator import Accelerator
from pytest_hwqueue.devices.host import HostDevice
from pytest_hwqueue.devices.lease import LeaseTimeout, lease
from pytest_hwqueue.errors import InvalidMeasurement, NotProven
from pytest_hwqueue.harness.open_loop import LATENESS_LIMIT_MS
from pytest_hwqueue.processes import measured_process
from pytest_hwqueue.records.files import write_text
from pytest_hwqueue.records.tenants import ColocationRecord, read_colocation
from pytest_hwqueue.schedulers.inside_evidence import InsideEvidence
from pytest_hwqueue.schedulers.native import Native
from pytest_hwqueue.schedulers.syntax import (
    Proof,
    Scheduler,
    SchedulerPaths,
    TenantRequest,
    open_scheduler,
    parse_scheduler,
)
from pytest_hwqueue.tenancy.colocation import colocate
from pytest_hwqueue.tenancy.spec import Colocation, TenantSpec
from pytest_hwqueue.tenancy.tenant_processes import Limits
from pytest_hwqueue.tenancy.window import refuse_endless

NATIVE = (parse_scheduler("native"), SchedulerPaths())
_LIMITS = Limits(ready_s=120, finish_s=60)
_STEADY = TenantSpec(
    "steady", workload="tiny_kernel_stress", parameters={"rounds": 2}, arrival="constant: 50/s",
    priority=3,
)  # fmt: skip
_GREEDY = TenantSpec("greedy", workload="large_gemm_only", parameters={"mm_dim": 192})


class Watched(Native):
    """The native mode, which also notes what it is asked and can see from outside."""

    def __init__(self) -> None:
        super().__init__(*NATIVE)
        self.pids: dict[str, int] = {}
        self.calls = 0
        self.variables: dict[str, str] = {}
        self.preload = ""
        self.leased = False
        self.proven_alive = False

    def environment(self, tenant: TenantRequest) -> dict[str, str]:
        return {"HWQ_TEST_TENANT": f"{tenant.name} {tenant.priority}"}

    def observe(self, pids: Mapping[str, int]) -> None:
        self.calls += 1
        if self.calls > 1:
            return
        self.pids = dict(pids)
        environments = {name: psutil.Process(pid).environ() for name, pid in pids.items()}
        self.variables = {n: each["HWQ_TEST_TENANT"] for n, each in environments.items()}
        self.preload = "".join(each.get("LD_PRELOAD", "") for each in environments.values())
        # A thread that holds a lease may take it again, so another one asks.
        asking = threading.Thread(target=self._ask_for_lease)
        asking.start()
        asking.join()

    def proof(self, pids: Mapping[str, int], inside: Mapping[str, InsideEvidence]) -> Proof:
        self.proven_alive = all(psutil.pid_exists(pid) for pid in pids.values())
        return super().proof(pids, inside)

    def _ask_for_lease(self) -> None:
        try:
            with lease("cpu", timeout_s=0):
                return
        except LeaseTimeout:
            self.leased = True


# A tenant's function whose ``at``-th request in the window fails as told.
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


def faulty(folder: Path, name: str, at: int, action: str) -> TenantSpec:
    """Return a tenant with a planted fault."""
    (folder / "faulty.py").write_text(FAULTY, encoding="utf-8")
    return TenantSpec(name, function="faulty:make", parameters={"at": at, "action": action})


def quiet(stage: str, done: int, planned: int) -> None:
    """Show nothing."""


pytestmark = pytest.mark.usefixtures("own_leases", "no_process_is_left")


def run(
    folder: Path,
    tenants: Sequence[TenantSpec],
    scheduler: Scheduler,
    limits: Limits = _LIMITS,
    **changed: Any,
) -> ColocationRecord:
    """Run a plan and check what is true of every record."""
    settings = {"duration_s": 0.8, "warmup_s": 0.1, "folder": str(folder), **changed}
    plan = Colocation("beside", tuple(tenants), **settings)
    record = colocate(plan, scheduler, quiet, folder, limits=limits, command="again")
    (path,) = folder.glob("*.json")
    assert read_colocation(path) == record
    assert record.id == plan.id
    assert record.plan["tenants"][0]["name"] == tenants[0].name
    assert not record.simulated
    return record


def require_measured(record: ColocationRecord) -> None:
    """The record is complete; it is invalid just where the machine made the generator late."""
    late = [
        tenant.lateness is not None and tenant.lateness.p99_us > LATENESS_LIMIT_MS * 1e3
        for tenant in record.tenants
    ]
    assert record.status == ("invalid" if any(late) else "ok"), record.reason
    assert ("generator was late" in record.reason) == any(late)
    assert record.proof is not None
    assert record.proof.priority is None
    assert record.notes == []
    for tenant in record.tenants:
        assert tenant.exit == "exited with status 0"
        assert tenant.last_output == ""


Together = tuple[ColocationRecord, Watched, Path]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Together:
    folder = tmp_path_factory.mktemp("together")
    scheduler = Watched()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", "")
        return run(folder, [_STEADY, _GREEDY], scheduler), scheduler, folder


def test_two_processes_are_measured_together(together: Together) -> None:
    record, scheduler, folder = together
    require_measured(record)
    assert record.fingerprint is not None
    assert record.fingerprint.hard["device_kind"] == "cpu"
    assert len(set(scheduler.pids.values())) == 2
    logs = {path.name for path in folder.glob("beside*/*.log")}
    assert logs == {"tenant-steady.log", "tenant-greedy.log"}


def test_the_scheduler_is_asked_and_sees_the_tenants(together: Together) -> None:
    record, scheduler, _ = together
    assert scheduler.variables == {"steady": "steady 3", "greedy": "greedy 0"}
    assert scheduler.preload == ""
    assert scheduler.calls > 10
    assert scheduler.proven_alive
    assert record.proof is not None
    assert record.proof.device_priorities == [0, 0]


def test_the_device_is_leased_meanwhile(together: Together) -> None:
    assert together[1].leased


def test_a_scheduled_tenant_counts_from_the_arrival(together: Together) -> None:
    record, _, _ = together
    steady = record.tenant("steady")
    requests = steady.requests
    assert requests is not None
    due_ns = [20_000_000 * number for number in range(40)]
    assert requests.scheduled_ns == due_ns[: len(requests.scheduled_ns)]
    assert steady.issued == 40
    assert steady.unserved == 40 - len(requests.scheduled_ns)
    assert steady.failed == 0
    assert all(
        started >= scheduled
        for scheduled, started in zip(requests.scheduled_ns, requests.started_ns, strict=True)
    )
    times = zip(requests.scheduled_ns, requests.finished_ns, strict=True)
    assert steady.latency_ns == [finished - scheduled for scheduled, finished in times]


def test_a_closed_tenant_stops_with_the_window(together: Together) -> None:
    record, _, _ = together
    greedy = record.tenant("greedy")
    requests = greedy.requests
    assert requests is not None
    assert requests.scheduled_ns == requests.started_ns
    assert requests.started_ns[0] >= 0
    assert requests.started_ns[-1] < 800_000_000
    assert greedy.lateness is None
    inside = sum(finished <= 800_000_000 for finished in requests.finished_ns)
    assert greedy.completed in (inside, inside + 1)
    assert greedy.throughput is not None
    assert greedy.throughput.requests_per_s == pytest.approx(inside / 0.8)
    assert greedy.throughput.items_per_s == pytest.approx(inside / 0.8 * 2 * 192**3 / 1e12)
    assert greedy.throughput.unit == "TFLOP"


def test_threads_of_one_process(tmp_path: Path) -> None:
    """A request that fails is counted, and costs nobody else anything."""
    scheduler = Watched()
    failing = faulty(tmp_path, "failing", 3, "raise RuntimeError('planted')")
    record = run(tmp_path, [failing, _GREEDY], scheduler, placement="threads")
    require_measured(record)
    assert len(set(scheduler.pids.values())) == 1
    tenant = record.tenant("failing")
    assert tenant.failed == 1
    (failure,) = tenant.failures
    assert failure.index == 2
    assert "planted" in failure.reason
    assert tenant.issued is not None
    assert tenant.issued > 3
    assert tenant.completed == tenant.issued - 1 == len(tenant.latency_ns)
    assert record.tenant("greedy").failed == 0


class Killing(Watched):
    """Kills a tenant while it serves."""

    def observe(self, pids: Mapping[str, int]) -> None:
        super().observe(pids)
        if self.calls == 1:
            os.kill(pids["greedy"], signal.SIGKILL)


def test_a_tenant_that_is_killed_ends_the_others(tmp_path: Path) -> None:
    began = time.monotonic()
    record = run(tmp_path, [_STEADY, _GREEDY], Killing(), duration_s=300.0)
    assert time.monotonic() - began < 200
    assert record.status == "failed"
    assert record.reason == "tenant greedy died by SIGKILL"
    assert record.stage == "measure"
    assert record.tenant("greedy").exit == "died by SIGKILL"
    assert record.tenant("steady").exit == "stopped: the co-location ended"
    assert record.tenant("steady").issued is None
    assert record.proof is None


class Deserted(Native):
    """A mode whose service has ended."""

    def observe(self, pids: Mapping[str, int]) -> None:
        raise NotProven("xserver ended by itself")


class Dying(Native):
    """A mode whose service ends while the tenants get ready."""

    def check(self) -> None:
        raise NotProven("xserver died by SIGKILL")


def test_a_service_that_ends_in_the_warm_up_ends_the_run(tmp_path: Path) -> None:
    began = time.monotonic()
    record = run(tmp_path, [_STEADY], Dying(*NATIVE), Limits(ready_s=600), duration_s=300.0)
    assert time.monotonic() - began < 200
    assert (record.status, record.stage) == ("failed", "warm-up")
    assert record.reason == "xserver died by SIGKILL"
    assert record.tenant("steady").exit == "stopped: the co-location ended"


def test_a_tenant_out_of_memory_keeps_what_it_served(tmp_path: Path) -> None:
    full = faulty(tmp_path, "full", 3, "import torch; torch.empty(2**60)")
    record = run(tmp_path, [full], open_scheduler("native"))
    assert record.status == "failed"
    assert record.reason.startswith("tenant full: faulty:make: a request raised:")
    assert "Try: all tenants share the device's memory" in record.reason
    tenant = record.tenant("full")
    assert tenant.completed == 2
    assert tenant.failed == 1
    assert "Traceback" in tenant.last_output
    assert tenant.exit == "exited with status 1"


def test_a_service_that_ended_is_the_cause(tmp_path: Path) -> None:
    lost = TenantSpec("lost", workload="no_such_workload")
    record = run(tmp_path, [lost], Deserted(*NATIVE))
    assert record.status == "failed"
    assert record.stage == "open device"
    assert record.reason.startswith("xserver ended by itself (tenant lost: UnknownWorkload")


class Unproven(Native):
    """A mode that is not active."""

    def proof(self, pids: Mapping[str, int], inside: Mapping[str, InsideEvidence]) -> Proof:
        raise NotProven("nobody schedules")


def test_a_hang_in_the_window_is_a_timeout(tmp_path: Path) -> None:
    stuck = faulty(tmp_path, "stuck", 2, "time.sleep(3600)")
    limits = Limits(ready_s=120, finish_s=0.5)
    record = run(tmp_path, [stuck], Unproven(*NATIVE), limits, duration_s=0.2)
    assert record.status == "timeout"
    assert record.reason == "tenant stuck not done 0.5 s after the window and its grace"
    assert "in step" in record.tenant("stuck").last_output
    assert record.tenant("stuck").exit == "stopped: the co-location ended"


def test_a_mode_that_is_not_proven_is_an_error(tmp_path: Path) -> None:
    record = run(tmp_path, [_GREEDY], Unproven(*NATIVE), duration_s=0.1)
    assert record.status == "failed"
    assert record.stage == "proof"
    assert record.reason == "nobody schedules"
    assert record.tenant("greedy").completed


def test_a_hang_in_the_warm_up_is_a_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A stopped process writes no stacks; there is nothing to wait for.
    monkeypatch.setattr(measured_process, "_DYING_S", 0.5)

    def stop(stage: str, done: int, planned: int) -> None:
        for child in psutil.Process().children(recursive=True):
            # Not the parents that tell how these end.
            if not child.children():
                child.suspend()

    plan = Colocation("beside", (_GREEDY,))
    record = colocate(plan, open_scheduler("native"), stop, tmp_path, limits=Limits(ready_s=1))
    assert record.status == "timeout"
    assert record.stage == "warm-up"
    assert record.reason == "tenant greedy (in start) not warm 1 s after the start"


def test_a_mode_that_cannot_be_used_is_skipped_with_the_reason(tmp_path: Path) -> None:
    plan = Colocation("beside", (_STEADY, _GREEDY), scheduler="stream-priority")
    record = colocate(plan, open_scheduler("stream-priority"), quiet, tmp_path)
    assert record.status == "skipped"
    assert "needs an accelerator" in record.reason


def test_each_run_keeps_its_record(tmp_path: Path) -> None:
    plan = Colocation("beside", (_STEADY, _GREEDY), scheduler="stream-priority")
    for number in (1, 2):
        colocate(plan, open_scheduler("stream-priority"), quiet, tmp_path, run=number)
    records = [read_colocation(path) for path in tmp_path.glob("*.json")]
    assert sorted(record.run for record in records) == [1, 2]


_PARENT = """
import os, sys, tempfile
from pathlib import Path

folder = Path(sys.argv[1])
tempfile.tempdir = str(folder)
import psutil
from pytest_hwqueue.schedulers.syntax import open_scheduler
from pytest_hwqueue.tenancy.colocation import colocate
from pytest_hwqueue.tenancy.spec import Colocation, TenantSpec

def progress(stage, done, planned):
    if stage == "measure" and not (folder / "pids").exists():
        # The tenants: each has a parent that tells how it ends.
        started = psutil.Process().children(recursive=True)
        pids = [str(child.pid) for child in started if not child.children()]
        (folder / "pids.new").write_text(" ".join(pids))
        (folder / "pids.new").rename(folder / "pids")

tenants = tuple(
    TenantSpec(name, workload="large_gemm_only", parameters={"mm_dim": 64}) for name in "ab"
)
plan = Colocation("beside", tenants, "threads", duration_s=600.0, warmup_s=0.0)
colocate(plan, open_scheduler("native"), progress, folder)
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
