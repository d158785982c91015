"""Regions on different streams, joined: compiled or not they give the same, and a failure fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_hwqueue.data.errors import HwqError, NotApplicable
from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.devices.protocol import Device
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.parts.workloads.pipeline import torch_compile
from pytest_hwqueue.parts.workloads.pipeline.torch_compile import TorchCompile
from pytest_hwqueue.parts.workloads.workload import Setup

from .cells import Counts, Run, measured
from .everyone import CASES, small
from .orders import unordered
from .perturbed import check_perturbed

NAME = "torch_compile"


@pytest.mark.parametrize("streams", [2, 8])
def test_every_stream_runs_a_region_in_each_stage_and_the_first_joins(streams: int) -> None:
    counts = Counts()
    with Run(small(NAME), streams, counts.around) as run:
        run.once()
    assert counts.launches.pop((0, None)) == 3
    assert counts.launches == {(index, "region"): 3 for index in range(streams)}
    for stages in (2, 3):
        assert unordered(small(NAME, stages=stages), streams) == []


@pytest.mark.parametrize(
    ("device", "mode", "says"),
    [
        (SimulatedDevice("h200"), "default", "mode=default.*mode=eager"),
        (SimulatedDevice("h200"), "reduce-overhead", "mode=reduce-overhead.*mode=eager"),
        (HostDevice(), "reduce-overhead", "the CPU has none; use mode=default"),
    ],
)
def test_set_up_refuses_what_a_device_cannot_compile(device: Device, mode: str, says: str) -> None:
    with device.open_streams(2), pytest.raises(NotApplicable, match=says):
        small(NAME, mode=mode).setup(Setup(device, 2, 3))


def test_compile_failure_is_a_failed_cell_with_its_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refusing(function: object, **options: object) -> Callable[..., Any]:
        """Stands for torch.compile: what it returns fails when first called, as compiling does."""

        def compiled(*arguments: object) -> None:
            raise RuntimeError("no C++ compiler found\n" + "x" * 9000)

        return compiled

    monkeypatch.setattr(torch, "compile", refusing)
    record = measured(TorchCompile, 2, given={**CASES[NAME].small, "mode": "default"})
    assert (record.status, record.stage) == ("failed", "set-up")
    assert record.reason.startswith(
        "mode=default: torch.compile failed: RuntimeError: no C++ compiler found x"
    )
    assert len(record.reason) < 3000


def test_compiler_itself_fails_the_cell_and_does_not_fall_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaking(given: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        print("a graph break")
        return given

    monkeypatch.setattr(torch_compile, "_region", breaking)
    with pytest.raises(HwqError, match=r"mode=default: torch\.compile failed: Unsupported"):
        small(NAME, mode="default").setup(Setup(HostDevice(), 2, 3))


@pytest.mark.slow
def test_compiled_regions_give_what_the_plain_ones_give() -> None:
    from torch._dynamo.utils import counters

    for streams in (2, 5):
        workload = small(NAME, mode="default")
        with Run(workload, streams) as run:
            apart = workload.measured_apart()
            assert apart.keys() == {"compile_s", "graphs_from_cache"}
            assert apart["compile_s"] > 0
            graphs = counters["stats"]["unique_graphs"]
            run.once()
            workload.check(run.once)
            assert counters["stats"]["unique_graphs"] == graphs, "all was compiled in set-up"
    check_perturbed(HostDevice(), small(NAME, mode="default"), 4, seed=1)
