"""Tenants on disjoint multiprocessors: on the simulated device, refused, and on a real GPU."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_jsonable_python

from pytest_hwqueue.data.errors import DeviceError, NotProven
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.data.records.plan import Colocation, Tenant
from pytest_hwqueue.data.records.tenants import ColocationRecord, TenantResult
from pytest_hwqueue.engine.tenants.colocation import TenantSet
from pytest_hwqueue.engine.tenants.tenant_processes import Limits
from pytest_hwqueue.parts.devices.compute_units import open_pool
from pytest_hwqueue.parts.devices.kinds import open_device
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.parts.schedulers.syntax import cell_partitions, open_scheduler, prove_cell

_HIGH = Tenant(
    "high", model="resnet18", batch=1, parameters={"dtype": "tf32"}, arrival="constant: 20/s",
    priority=1,
)  # fmt: skip
_LOW = Tenant("low", model="resnet50", batch=1024, parameters={"dtype": "tf32"})
_SMALL = Tenant("high", workload="tiny_kernel_stress", parameters={"rounds": 2}, priority=1)

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.version.hip is not None,
    reason="there is no CUDA device",
)

pytestmark = pytest.mark.usefixtures("own_leases", "no_process_is_left")


def run(
    folder: Path,
    mode: str,
    *tenants: Tenant,
    placement: TenantPlacement = TenantPlacement.THREADS,
    device: str = "sim:h200",
) -> ColocationRecord:
    plan = Colocation(
        "beside", tenants, TenantPlacement(placement), scheduler=mode, device=device, duration_s=2,
        warmup_s=0.5,
    )  # fmt: skip
    limits = Limits(ready_s=120, finish_s=60)
    return TenantSet(open_scheduler(mode), lambda *_: None, folder, limits=limits).once(plan)


def tenants_of(record: ColocationRecord) -> dict[str, TenantResult]:
    assert record.status == "ok", record.reason
    return {tenant.name: tenant for tenant in record.tenants}


def p99_ms(tenant: TenantResult) -> float:
    return float(np.percentile(tenant.latency_ns or [], 99)) / 1e6


def test_own_multiprocessors_keep_the_latency_and_cost_the_neighbour(tmp_path: Path) -> None:
    native, split = (
        tenants_of(run(tmp_path, mode, _HIGH, _LOW)) for mode in ("native", "green-context:high=64")
    )
    alone = tenants_of(run(tmp_path, "native", _HIGH))
    assert p99_ms(native["high"]) > 3 * p99_ms(alone["high"])
    assert p99_ms(split["high"]) < 1.5 * p99_ms(alone["high"])
    assert len(split["low"].latency_ns or []) < len(native["low"].latency_ns or [])
    # AMD counts single compute units.
    tenants_of(run(tmp_path, "green-context:high=37", _HIGH, _LOW, device="sim:mi300x"))


@pytest.mark.parametrize(
    ("mode", "placement", "device", "reason"),
    [
        ("high=30", "threads", "sim:h200", "30 multiprocessors asked for, 32 given: NVIDIA H200 "
         "is split into multiples of 8; ask for 32"),
        ("high=136", "threads", "sim:h200", "136 multiprocessors asked for, and NVIDIA H200 has "
         "132; ask for at most 128"),
        ("high=132", "threads", "sim:h200", "and NVIDIA H200 has 132, which leaves none for the "
         "others; ask for at most 128"),
        ("high=130", "threads", "sim:h200", "130 multiprocessors asked for: NVIDIA H200 is split "
         "into multiples of 8; ask for 128"),
        ("high=64,low=65", "threads", "sim:h200", "65 multiprocessors asked for: NVIDIA H200 is "
         "split into multiples of 8; ask for 64"),
        ("high=72,low=64", "threads", "sim:h200", "136 multiprocessors asked for, and NVIDIA"),
        ("high=304", "threads", "sim:mi300x", "304 multiprocessors asked for, and AMD Instinct "
         "MI300X has 304, which leaves none for the others"),
        ("high=32", "processes", "sim:h200", "needs tenants in threads, and these are in "
         "processes"),
        ("high=32", "threads", "cpu", "needs a GPU of NVIDIA or AMD; cpu cannot be split"),
        ("hi=32", "threads", "cuda", "no tenant is called hi; there are high, low"),
    ],
)  # fmt: skip
def test_what_cannot_be_split_is_skipped_with_the_reason(
    tmp_path: Path, mode: str, placement: TenantPlacement, device: str, reason: str
) -> None:
    record = run(
        tmp_path,
        f"green-context:{mode}",
        _HIGH,
        _LOW,
        placement=TenantPlacement(placement),
        device=device,
    )
    assert record.status == "skipped"
    assert reason in record.reason


@given(
    split=st.lists(st.integers(1, 140), min_size=1, max_size=3), others=st.booleans(),
    name=st.sampled_from(["h200", "mi300x"]),
)  # fmt: skip
def test_the_advice_is_a_split_that_exists(split: list[int], others: bool, name: str) -> None:
    profile = SimulatedDevice(name).profile
    for _ in range(len(split) + 1):
        try:
            profile.refuse_split(split, others=others)
        except DeviceError as error:
            (asked, advised) = map(int, re.findall(r"^(\d+) .*; ask for \D*(\d+)", str(error))[0])
            whole = "at most" in str(error)
        else:
            return
        split = [advised] if whole else [advised if each == asked else each for each in split]
    pytest.fail(f"still refused: {split}")


@needs_gpu
@pytest.mark.parametrize("mode", ["high=16", "high=32", "high=16,low=32"])
def test_on_a_gpu_tenants_run_on_their_multiprocessors(tmp_path: Path, mode: str) -> None:
    tenants = (_SMALL, replace(_SMALL, name="low", priority=0), replace(_SMALL, name="other"))
    record = run(tmp_path, f"green-context:{mode}", *tenants, device="cuda")
    tenants_of(record)
    assert record.proof is not None
    print(json.dumps(to_jsonable_python(record.proof), indent=1))
    asked = dict(part.split("=") for part in mode.split(","))
    for name, count in asked.items():
        assert record.proof.counts[f"multiprocessors seen by {name}"] == int(count)
    total = torch.cuda.get_device_properties(0).multi_processor_count
    left = total - sum(map(int, asked.values()))
    assert record.proof.counts["multiprocessors seen by the others"] == left


@needs_gpu
@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize("mode", ["cell=32", "urgent=32", "urgent=8,cell=16"])
def test_on_a_gpu_a_test_runs_on_its_multiprocessors(mode: str, replayed: bool) -> None:
    scheduler, urgency = open_scheduler(f"green-context:{mode}"), [0, 1, 0]
    partitions = cell_partitions(scheduler, urgency)
    device = open_device("cuda")
    matrix = torch.ones(512, 512, device="cuda")
    with open_pool(device, [0, 0, 0], partitions, gradients=False) as pool:
        for stream in pool.streams:
            stream.launch(torch.mm, matrix, matrix)
        pool.synchronize()
        proof = prove_cell(scheduler, pool, urgency, replayed=replayed)
    print(proof.evidence)
    again = open_pool(device, [0, 0, 0], partitions, gradients=False)
    assert [stream.handle for stream in again.streams] == [stream.handle for stream in pool.streams]
    with again:
        pass


@needs_gpu
def test_on_a_gpu_plain_streams_are_not_proven() -> None:
    """The negative control: the same proof, of streams that were opened anywhere."""
    scheduler = open_scheduler("green-context:cell=32")
    with (
        open_device("cuda").open_streams(1) as pool,
        pytest.raises(NotProven, match="should have 32 multiprocessors, not 0"),
    ):
        prove_cell(scheduler, pool, [0])


@needs_gpu
def test_on_a_gpu_an_impossible_split_is_refused_with_the_drivers_figures(tmp_path: Path) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("GPUs before compute capability 9.0 may be split into other numbers")
    record = run(tmp_path, "green-context:high=30", _SMALL, device="cuda")
    assert record.status == "skipped"
    assert "30 multiprocessors asked for, 32 given" in record.reason
