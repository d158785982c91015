"""The probe of priorities: right where the truth is known, and part of a run of real processes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch
from pydantic_core import to_jsonable_python

from pytest_hwqueue.data.errors import NotProven
from pytest_hwqueue.data.metrics.interference import PriorityEffect, priority_effect
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.data.records.plan import Colocation, Tenant
from pytest_hwqueue.data.records.tenants import ColocationRecord
from pytest_hwqueue.engine.cell.cell import Progress
from pytest_hwqueue.engine.tenants.colocation import TenantSet
from pytest_hwqueue.engine.tenants.tenant_processes import Limits
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.parts.schedulers.priority_probe import ProbeClient, probe_priority
from pytest_hwqueue.parts.schedulers.syntax import Scheduler, open_scheduler
from tests.conftest import slow
from tests.engine.tenants.conftest import server_of_tests

_HIGH = Tenant("high", workload="tiny_kernel_stress", parameters={"rounds": 2}, priority=1)
_MIDDLE = replace(_HIGH, name="middle", priority=0)
_LOW = replace(_HIGH, name="low", priority=-1)
_LIMITS = Limits(ready_s=120, finish_s=60)

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
needs_mps = pytest.mark.skipif(
    shutil.which("nvidia-cuda-mps-control") is None, reason="there is no MPS"
)


pytestmark = pytest.mark.usefixtures("own_leases", "no_process_is_left")


def probed(mode: str) -> Scheduler:
    """A mode whose tenants are probed, whether or not it orders them."""
    opened = open_scheduler(mode)
    spec = opened.spec
    opened.spec = spec._replace(declaration=spec.declaration._replace(by_priority=True))
    return opened


def run(
    folder: Path,
    scheduler: Scheduler,
    tenants: Sequence[Tenant],
    placement: TenantPlacement,
    device: str = "cpu",
    progress: Progress = lambda *_: None,
) -> ColocationRecord:
    plan = Colocation(
        "beside", tuple(tenants), TenantPlacement(placement), scheduler=scheduler.mode,
        device=device, duration_s=0.2, warmup_s=0.1,
    )  # fmt: skip
    return TenantSet(scheduler, progress, folder, limits=_LIMITS, server=server_of_tests()).once(
        plan
    )


def effect_of(record: ColocationRecord) -> PriorityEffect:
    assert record.status == "ok", record.reason
    assert record.proof is not None
    assert record.proof.priority is not None
    assert record.proof.effective == record.proof.priority.effective
    print(json.dumps(to_jsonable_python(record.proof), indent=1))
    return record.proof.priority


@pytest.mark.parametrize(
    ("priorities", "verdict"),
    [((1, 0), "proven"), ((0, 0), "not seen"), ((1, 1), "not seen"), ((0, 1), "not seen")],
)
def test_verdict_is_the_models_truth(priorities: tuple[int, int], verdict: str) -> None:
    """The simulated device honours the priorities of its streams, and ignores nothing else."""
    device = SimulatedDevice("h200")
    with device.open_streams(2, priorities) as pool:
        high, low = (ProbeClient(device, pool, stream) for stream in (0, 1))
        found = probe_priority(("high", high), ("low", low))
    assert found.verdict == verdict
    assert found.alone_ns is not None
    assert (min(found.urgent_ns) < 2 * found.alone_ns) == (verdict == "proven")


class Absent(ProbeClient):
    """A client without memory."""

    closed = 0

    def prepare(self, elements: int) -> list[int]:
        raise NotProven("tenant low: out of memory")

    def close(self) -> None:
        Absent.closed += 1


class Brief(ProbeClient):
    """A client whose load is over at once."""

    def fill(self, loads: int) -> None:
        super().fill(1)
        self._stream.synchronize()


@pytest.mark.parametrize(
    ("client", "rounds", "reason"),
    [
        (Absent, 0, "the probe failed: tenant low: out of memory"),
        (Brief, 0, "outlasted the small kernels in 0 rounds"),
        # Rounds end with the probe's time: each look at the clock takes a second.
        (ProbeClient, 5, ""),
    ],
)
def test_what_cannot_be_probed_is_left_open(
    client: type[ProbeClient], rounds: int, reason: str
) -> None:
    device, seconds = SimulatedDevice("h200"), count()
    with device.open_streams(2, (1, 0)) as pool:
        high, low = (client(device, pool, stream) for stream in (0, 1))
        found = probe_priority(("high", high), ("low", low), lambda: next(seconds))
    assert (found.verdict, found.effective) == ("undecided", None)
    assert len(found.urgent_ns) == rounds
    assert reason in found.reason
    assert Absent.closed == (2 if client is Absent else Absent.closed)


@pytest.mark.parametrize(
    ("placement", "tenants"),
    [("threads", (_HIGH, _LOW, _MIDDLE)), slow("processes", (_LOW, _HIGH))],
)
def test_the_most_and_the_least_urgent_tenant_are_probed(
    tmp_path: Path, placement: TenantPlacement, tenants: tuple[Tenant, ...]
) -> None:
    stages: list[str] = []
    record = run(
        tmp_path, probed("native"), tenants, placement,
        progress=lambda stage, *_: stages.append(stage),
    )  # fmt: skip
    found = effect_of(record)
    # What the probe leaves behind is gone before the window: all warm up after it.
    after = stages[stages.index("priority probe") + 1 :]
    assert after.index("warm-up") < after.index("measure")
    assert (found.urgent, found.other) == ("high", "low")
    assert found.alone_ns is not None
    assert found.load_ns is not None
    again = priority_effect(
        ("high", "low"), found.urgent_ns, found.other_ns, alone_ns=found.alone_ns,
        load_ns=found.load_ns, requests=found.requests,
    )  # fmt: skip
    assert again == found


@needs_gpu
@pytest.mark.parametrize(
    ("mode", "placement", "proven"),
    [
        pytest.param("mps-priority", "processes", True, marks=needs_mps),
        pytest.param("mps", "processes", False, marks=needs_mps),
        ("native", "processes", False),
        ("stream-priority", "threads", True),
        ("native", "threads", False),
    ],
)
def test_on_a_gpu_only_modes_with_priorities_are_proven(
    tmp_path: Path, mode: str, placement: TenantPlacement, proven: bool
) -> None:
    record = run(tmp_path, probed(mode), [_HIGH, _LOW], placement, "cuda")
    assert (effect_of(record).verdict == "proven") == proven
