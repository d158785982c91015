"""Fingerprints: what is read, what is missing and why, and how two differ."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import sys
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.devices.fingerprint import (
    CUDA_QUEUE_SETTINGS,
    HIP_QUEUE_SETTINGS,
    Fingerprint,
    FingerprintDifference,
    differences,
    fingerprint,
)

UUID = "00000000-1111-2222-3333-444444444444"
NOT_SUPPORTED = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def raising(error: Exception) -> Any:
    def refuse(*arguments: object) -> None:
        raise error

    return refuse


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A torch with one H200, and NVML for it."""
    properties = SimpleNamespace(
        name="NVIDIA H200",
        major=9,
        minor=0,
        total_memory=150_000_000_000,
        multi_processor_count=132,
        gcnArchName="gfx942:sramecc+:xnack-",
        uuid=UUID,
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.version, "hip", None)
    clocks = {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 3201}
    closed: list[bool] = []
    library = SimpleNamespace(
        NVMLError=pynvml.NVMLError,
        NVMLError_NotSupported=pynvml.NVMLError_NotSupported,
        NVML_CLOCK_SM=pynvml.NVML_CLOCK_SM,
        NVML_CLOCK_MEM=pynvml.NVML_CLOCK_MEM,
        closed=closed,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: closed.append(True),
        nvmlDeviceGetHandleByUUID={f"GPU-{UUID}": "gpu"}.__getitem__,
        nvmlDeviceIsMigDeviceHandle=lambda handle: pynvml.c_uint(0),
        nvmlDeviceGetMigMode=lambda gpu: [0, 0],
        nvmlSystemGetDriverVersion=lambda: "580.95.05",
        nvmlSystemGetCudaDriverVersion_v2=lambda: 13000,
        nvmlDeviceGetApplicationsClock=lambda gpu, kind: clocks[kind],
        nvmlDeviceGetPersistenceMode=lambda gpu: 1,
        nvmlDeviceGetEnforcedPowerLimit=lambda gpu: 700_000,
        nvmlDeviceGetPciInfo=lambda gpu: SimpleNamespace(busId="00000000:0A:00.0"),
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    return library


def test_cuda_device_in_full(nvml: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CUDA_QUEUE_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "")
    read = fingerprint("cuda", 0)
    assert read.missing == {}
    settings = {f"environment.{name}": "default" for name in CUDA_QUEUE_SETTINGS}
    assert read.hard == {
        **settings,
        "environment.CUDA_DEVICE_MAX_CONNECTIONS": "32",
        "device_kind": "cuda",
        "device_name": "NVIDIA H200",
        "total_memory_bytes": 150_000_000_000,
        "multiprocessor_count": 132,
        "compute_capability": "9.0",
        "driver_major": 580,
        "mig_mode": "disabled",
        "mig_slice": "none",
    }
    assert (
        read.soft.items()
        >= {
            "device_uuid": UUID,
            "pci_bus_id": "00000000:0A:00.0",
            "driver_version": "580.95.05",
            "cuda_driver_version": "13.0",
            "cuda_runtime_version": "13.0",
            "application_clock_sm_mhz": 1980,
            "application_clock_memory_mhz": 3201,
            "persistence_mode": True,
            "power_limit_w": 700.0,
            "torch_version": torch.__version__,
            "python_version": platform.python_version(),
            "host_name": platform.node(),
            "kernel_release": platform.release(),
        }.items()
    )
    assert "cpu_model" in read.soft
    assert nvml.closed == [True]


def test_mig_slice_is_hard(nvml: SimpleNamespace) -> None:
    part = SimpleNamespace(computeInstanceSliceCount=1, gpuInstanceSliceCount=2, memorySizeMB=33000)
    nvml.nvmlDeviceIsMigDeviceHandle = lambda handle: pynvml.c_uint(1)
    nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle = lambda handle: f"whole {handle}"
    nvml.nvmlDeviceGetMigMode = lambda gpu: [int(gpu == "whole gpu"), 0]
    nvml.nvmlDeviceGetAttributes_v2 = lambda handle: {"gpu": part}[handle]
    read = fingerprint("cuda", 0)
    assert (read.hard["mig_mode"], read.hard["mig_slice"]) == ("enabled", "1c.2g.33000mb")


def test_gpu_before_mig_has_a_mode_all_the_same(nvml: SimpleNamespace) -> None:
    nvml.nvmlDeviceIsMigDeviceHandle = nvml.nvmlDeviceGetMigMode = raising(NOT_SUPPORTED)
    read = fingerprint("cuda", 0)
    assert (read.hard["mig_mode"], read.hard["mig_slice"]) == ("not supported", "none")


def test_field_that_cannot_be_read_is_missing_with_its_reason(nvml: SimpleNamespace) -> None:
    nvml.nvmlDeviceGetApplicationsClock = raising(NOT_SUPPORTED)
    del nvml.nvmlDeviceGetPersistenceMode
    nvml.nvmlShutdown = raising(pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED))
    read = fingerprint("cuda", 0)
    assert read.missing.keys() == {
        "application_clock_sm_mhz",
        "application_clock_memory_mhz",
        "persistence_mode",
        "nvmlShutdown",
    }
    assert "Not Supported" in read.missing["application_clock_sm_mhz"]
    assert not read.missing.keys() & {*read.hard, *read.soft}
    assert read.soft["power_limit_w"] == 700.0


def test_without_nvml_torch_still_tells_the_device(
    nvml: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    read = fingerprint("cuda", 0)
    assert read.hard["device_name"] == "NVIDIA H200"
    assert "pytest-hwqueue[nvidia]" in read.missing["mig_mode"]
    assert not read.missing.keys() & {*read.hard, *read.soft}


def test_device_of_another_build_of_torch_is_refused_with_a_reason(nvml: SimpleNamespace) -> None:
    read = fingerprint("hip", 0)
    assert "not built for hip" in read.missing["device_name"]
    assert read.hard["device_kind"] == "hip"
    assert {f"environment.{name}" for name in HIP_QUEUE_SETTINGS} <= read.hard.keys()


def test_hip_device(nvml: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.0.2")
    monkeypatch.setenv("GPU_MAX_HW_QUEUES", "8")
    closed: list[bool] = []
    library = SimpleNamespace(
        AmdSmiException=OSError,
        amdsmi_init=lambda: None,
        amdsmi_shut_down=lambda: closed.append(True),
        amdsmi_get_processor_handles=lambda: ["gpu"],
        amdsmi_get_gpu_device_bdf=lambda gpu: "0000:23:00.0",
        amdsmi_get_gpu_device_uuid=lambda gpu: UUID,
        amdsmi_get_gpu_asic_info=lambda gpu: {"asic_serial": "0x1"},
        amdsmi_get_gpu_driver_info=lambda gpu: {"driver_version": "6.14.14"},
        amdsmi_get_gpu_compute_partition=lambda gpu: "SPX",
        amdsmi_get_gpu_memory_partition=lambda gpu: "NPS1",
        amdsmi_get_gpu_perf_level=lambda gpu: "AMDSMI_DEV_PERF_LEVEL_AUTO",
    )
    monkeypatch.setitem(sys.modules, "amdsmi", library)
    read = fingerprint("hip", 0)
    assert read.missing == {}
    assert read.hard["gcn_architecture"] == "gfx942:sramecc+:xnack-"
    assert read.hard["driver_major"] == 6
    assert read.hard["compute_partition"] == "SPX"
    assert read.hard["environment.GPU_MAX_HW_QUEUES"] == "8"
    assert read.soft["hip_runtime_version"] == "7.0.2"
    assert read.soft["pci_bus_id"] == "0000:23:00.0"
    assert closed == [True]
    library.amdsmi_get_gpu_driver_info = lambda gpu: {"driver_version": "N/A"}
    assert {"driver_major", "driver_version"} <= fingerprint("hip", 0).missing.keys()


def test_cpu_of_this_machine() -> None:
    read = fingerprint("cpu", 0)
    assert read.hard["device_kind"] == "cpu"
    assert read.hard["usable_logical_cores"] == len(os.sched_getaffinity(0))
    assert "device_name" in read.hard.keys() | read.missing.keys()
    assert not [name for name in read.hard if name.startswith("environment.")]
    assert differences(read, fingerprint("cpu", 0)) == ([], [])


def test_real_torch_without_the_device_raises_nothing() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has the device")
    read = fingerprint("cuda", 0)
    assert {"device_name", "driver_major", "mig_mode"} <= read.missing.keys()
    assert all(read.missing.values())


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="cuda, hip or cpu"):
        fingerprint("tpu", 0)  # type: ignore[arg-type]  # what a caller without types might do


def test_differences_name_the_field_and_both_values() -> None:
    a = Fingerprint({"device_name": "H200", "driver_major": 580}, {"host_name": "a", "x": 1})
    b = Fingerprint({"device_name": "H100", "driver_major": 580}, {"host_name": "b", "x": 1})
    assert differences(a, b) == (
        [FingerprintDifference("device_name", "H200", "H100")],
        [FingerprintDifference("host_name", "a", "b")],
    )


def test_field_of_one_side_only_differs() -> None:
    a, b = Fingerprint({"mig_mode": "disabled"}, {}), Fingerprint({}, {"clock": None})
    assert differences(a, b) == (
        [FingerprintDifference("mig_mode", "disabled", None)],
        [FingerprintDifference("clock", None, None)],
    )


VALUES = st.one_of(st.none(), st.booleans(), st.integers(0, 3), st.sampled_from(["0", "1", "x"]))
FIELDS = st.dictionaries(st.sampled_from("abcdef"), VALUES)


@given(FIELDS, FIELDS, FIELDS, FIELDS)
def test_differences_are_complete_and_mirrored(
    hard_a: dict[str, Any], soft_a: dict[str, Any], hard_b: dict[str, Any], soft_b: dict[str, Any]
) -> None:
    a, b = Fingerprint(hard_a, soft_a), Fingerprint(hard_b, soft_b)
    for found, mirrored, left, right in zip(
        differences(a, b), differences(b, a), (hard_a, soft_a), (hard_b, soft_b), strict=True
    ):
        assert [each.field for each in found] == sorted(
            {*left, *right}
            - {each for each in left.keys() & right.keys() if left[each] == right[each]}
        )
        assert [(each.field, each.b, each.a) for each in mirrored] == [
            (each.field, each.a, each.b) for each in found
        ]
    assert differences(a, a) == ([], [])


def test_differences_survive_json() -> None:
    read = fingerprint("cpu", 0)
    stored = Fingerprint(**json.loads(json.dumps(dataclasses.asdict(read))))
    assert differences(read, stored) == ([], [])
