"""Tenants that are the user's own functions: really served at once, in processes and threads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_hwqueue.data.errors import BadInput
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.data.records.plan import Colocation, Tenant
from pytest_hwqueue.data.records.tenants import ColocationRecord
from pytest_hwqueue.engine.tenants.colocation import TenantSet
from pytest_hwqueue.engine.tenants.tenant_processes import Limits
from pytest_hwqueue.engine.tenants.tenant_window import open_work
from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.schedulers.native import Native
from pytest_hwqueue.parts.schedulers.syntax import SchedulerPaths, parse_scheduler
from tests.engine.tenants.conftest import server_of_tests

pytestmark = pytest.mark.usefixtures("own_leases", "no_process_is_left")

OWN = """\
import gc
import threading
import time
from pathlib import Path

import torch

lock = threading.Lock()
inside = most = 0


def sleep(*, device, streams, seed, ms):
    return lambda: time.sleep(ms / 1000)


def counts(*, device, streams, seed, file):
    def step():
        global inside, most
        with lock:
            inside += 1
            if inside > most:
                most = inside
                Path(file).write_text(str(most))
        time.sleep(0.01)
        with lock:
            inside -= 1

    return step


def fails_in_the_window(*, device, streams, seed):
    def step():
        # Garbage is collected until the window begins.
        if not gc.isenabled():
            raise ValueError("no more")

    return step


def fails(*, device, streams, seed):
    def helper():
        raise ValueError("boom")

    return lambda: helper()


def unprepared(*, device, streams, seed):
    raise FileNotFoundError("weights.bin")


def nested(*, device, streams, seed):
    return lambda: streams[0].launch(abs, 1)


def product(*, device, streams, seed, n):
    a = torch.rand(n, n, device=device.torch_device)
    return lambda: a @ a


def trains(*, device, streams, seed):
    layer = torch.nn.Linear(8, 1, device=device.torch_device)
    rows = torch.rand(4, 8, device=device.torch_device)
    return lambda: layer(rows).sum().backward()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    (folder / "tenants_own.py").write_text(OWN, encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def _nothing_stays_imported() -> Iterator[None]:
    path = sys.path[:]
    yield
    sys.path[:] = path


def own(name: str, function: str, **fields: Any) -> Tenant:
    return Tenant(name, function=f"tenants_own:{function}", **fields)


def run(place: Path, folder: Path, *tenants: Tenant, **changed: Any) -> ColocationRecord:
    settings: dict[str, Any] = {"duration_s": 0.8, "warmup_s": 0.05, "folder": str(folder)}
    traced = changed.pop("traced", False)
    plan = Colocation("own", tenants, **{**settings, **changed})
    scheduler = Native(parse_scheduler("native"), SchedulerPaths())
    limits = Limits(ready_s=120, finish_s=60)
    return TenantSet(
        scheduler, lambda *_: None, place, limits=limits, traced=traced, server=server_of_tests()
    ).once(plan)


def require_measured(record: ColocationRecord) -> None:
    """It was measured; on a machine with other work the generators may have been late."""
    late = record.status == "invalid" and "generator was late" in record.reason
    assert record.status == "ok" or late, record.reason


def test_requests_of_processes_are_served_at_once(tmp_path: Path, folder: Path) -> None:
    most = tmp_path / "most"
    record = run(
        tmp_path / "records", folder,
        own("counts", "counts", concurrency=3, parameters={"file": str(most)},
            arrival="constant: 250/s"),
        own("broken", "fails_in_the_window", arrival="constant: 20/s"),
    )  # fmt: skip
    require_measured(record)
    assert most.read_text() == "3"
    counts, broken = record.tenant("counts"), record.tenant("broken")
    assert counts.work == f"tenants_own:counts with file={most}"
    # Each takes 10 ms or more: one at a time, there are at most 100 a second.
    assert counts.throughput is not None
    assert 100 < counts.throughput.requests_per_s <= 250
    assert (counts.completed, min(counts.latency_ns) >= 10_000_000) == (200, True)
    assert (broken.issued, broken.completed, broken.failed) == (16, 0, 16)
    assert broken.failures[0].reason == (
        "tenants_own:fails_in_the_window: a request raised:\n"
        "Traceback (its own frames):\n"
        '  File "tenants_own.py", line 35, in step\n'
        '    raise ValueError("no more")\n'
        "ValueError: no more"
    )


def test_threads_of_one_process_with_gradients_on(tmp_path: Path, folder: Path) -> None:
    record = run(
        tmp_path, folder,
        Tenant("suite", workload="tiny_kernel_stress", parameters={"rounds": 2}, concurrency=2),
        own("trains", "trains", arrival="constant: 30/s", concurrency=2),
        own("one", "sleep", parameters={"ms": 20}, arrival="constant: 100/s"),
        placement=TenantPlacement.THREADS,
    )  # fmt: skip
    require_measured(record)
    suite, trains, one = (record.tenant(name) for name in ("suite", "trains", "one"))
    assert (trains.issued, trains.failed, trains.unserved) == (24, 0, 0)
    assert suite.completed
    assert suite.failed == 0
    assert suite.work.startswith("tiny_kernel_stress with rounds=2")
    # Half the requests wait for those before them, from when they were due.
    assert one.issued == 80
    assert max(one.latency_ns) >= 700_000_000


def test_a_function_that_fails_ends_the_run_with_its_own_frames(
    tmp_path: Path, folder: Path
) -> None:
    record = run(tmp_path, folder, own("mine", "fails"))
    assert record.status == "failed"
    assert record.reason == (
        "tenant mine: tenants_own:fails: a request raised:\n"
        "Traceback (its own frames):\n"
        '  File "tenants_own.py", line 44, in <lambda>\n'
        "    return lambda: helper()\n"
        '  File "tenants_own.py", line 42, in helper\n'
        '    raise ValueError("boom")\n'
        "ValueError: boom"
    )
    assert record.tenant("mine").last_output == ""


def test_a_launch_within_a_launch_is_refused(folder: Path) -> None:
    """The request that waits for the first would not wait for the second."""
    device = HostDevice()
    with device.open_streams(1) as pool:
        (work,) = open_work(own("mine", "nested"), device, pool, 0, folder)
        says = "runs in a launch and launches itself; let it take one argument, the streams"
        with pytest.raises(BadInput, match=says):
            work.check()


def test_each_request_at_once_has_streams_of_its_own() -> None:
    device = HostDevice()
    spec = Tenant("a", workload="large_gemm_only", parameters={"mm_dim": 32}, streams=2,
                      concurrency=3)  # fmt: skip
    with device.open_streams(6) as pool:
        works = open_work(spec, device, pool, 0, Path())
        assert len(works) == 3
        for number, work in enumerate(works):
            before = [stream.launched for stream in pool.streams]
            work.request()
            after = [stream.launched for stream in pool.streams]
            used = [index for index in range(6) if after[index] > before[index]]
            assert used == [2 * number, 2 * number + 1]
            work.check()


def test_a_simulated_device_runs_what_torch_does(tmp_path: Path, folder: Path) -> None:
    product = own("product", "product", parameters={"n": 512})
    record = run(tmp_path, folder, product, device="sim:h200")
    assert record.status == "ok", record.reason
    assert record.simulated
    assert any("of tenant product the operations of torch are modelled" in n for n in record.notes)
    one = record.tenant("product").completed
    several = run(tmp_path, folder, replace(product, concurrency=4), device="sim:h200")
    at_once = several.tenant("product").completed
    assert one is not None
    assert at_once is not None
    assert one < at_once < 4 * one


@pytest.mark.parametrize(
    ("function", "fields", "status", "reason"),
    [
        (
            "sleep", {"parameters": {"ms": 1}}, "skipped",
            "tenant mine: tenants_own:sleep with ms=1 runs no operation of torch on the device, "
            "and nothing else of it is modelled; use a real device",
        ),
        ("fails", {}, "failed", "tenant mine: tenants_own:fails: a request raised"),
        ("unprepared", {}, "failed", "tenant mine: tenants_own:unprepared: preparing its step"),
        (
            "product", {"parameters": {"n": 8}, "concurrency": 2}, "skipped",
            "tenant mine serves 2 requests at once, and a trace does not say to which",
        ),
    ],
)  # fmt: skip
def test_a_simulated_device_refuses_what_is_not_modelled(
    tmp_path: Path, folder: Path, function: str, fields: dict[str, Any], status: str, reason: str
) -> None:
    tenant = own("mine", function, **fields)
    record = run(tmp_path, folder, tenant, device="sim:h200", traced="concurrency" in fields)
    assert record.status == status
    assert record.reason.startswith(reason)
    assert "pytest_hwqueue" not in record.reason
