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

from .vendors import NOT_SUPPORTED, SLICE, UUID, AmdSmi, Nvml, raising


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The properties of the one GPU that torch has."""
    properties = SimpleNamespace(
        name="NVIDIA H200", major=9, minor=0, total_memory=150_000_000_000, uuid=UUID,
        multi_processor_count=132, gcnArchName="gfx942:sramecc+:xnack-",
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_properties", {0: properties}.__getitem__)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.version, "hip", None)
    return properties


@pytest.fixture
def nvml(gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Nvml:
    """NVML for it."""
    library = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", library)
    return library


def test_cuda_device_in_full(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CUDA_QUEUE_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "")
    read = fingerprint("cuda", 0)
    assert read.missing == {}
    assert read.hard == {
        **{f"environment.{name}": "default" for name in CUDA_QUEUE_SETTINGS},
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
    assert {**read.soft, "cpu_model": ""} == {
        "cpu_model": "",
        "device_uuid": UUID,
        "pci_bus_id": "00000000:0A:00.0",
        "driver_version": "580.95.05",
        "cuda_driver_version": "13.2",
        "cuda_runtime_version": "13.0",
        "application_clock_sm_mhz": 1980,
        "application_clock_memory_mhz": 3201,
        "persistence_mode": True,
        "power_limit_w": 700.0,
        "torch_version": torch.__version__,
        "python_version": platform.python_version(),
        "host_name": platform.node(),
        "kernel_release": platform.release(),
    }
    assert nvml.opened == 0


def test_mig_slice_is_hard(nvml: Nvml, gpu: SimpleNamespace) -> None:
    gpu.uuid, nvml.answers["MigMode"] = SLICE, [1, 0]
    read = fingerprint("cuda", 0)
    assert (read.hard["mig_mode"], read.hard["mig_slice"]) == ("enabled", "1c.2g.33000mb")


def test_field_that_cannot_be_read_is_missing_with_its_reason(nvml: Nvml) -> None:
    # A GPU from before MIG has a mode all the same.
    nvml.nvmlDeviceIsMigDeviceHandle = raising(NOT_SUPPORTED)  # type: ignore[method-assign]
    nvml.answers["MigMode"] = nvml.answers["ApplicationsClock"] = NOT_SUPPORTED
    del nvml.answers["PersistenceMode"]
    closed = pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
    nvml.nvmlShutdown = raising(closed)  # type: ignore[method-assign]
    read = fingerprint("cuda", 0)
    assert (read.hard["mig_mode"], read.hard["mig_slice"]) == ("not supported", "none")
    assert read.missing.keys() == {
        "application_clock_sm_mhz", "application_clock_memory_mhz", "persistence_mode",
        "nvmlShutdown",
    }  # fmt: skip
    assert "Not Supported" in read.missing["application_clock_sm_mhz"]
    assert not read.missing.keys() & {*read.hard, *read.soft}
    assert read.soft["power_limit_w"] == 700.0


def test_without_nvml_torch_still_tells_the_device(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    read = fingerprint("cuda", 0)
    assert read.hard["device_name"] == "NVIDIA H200"
    assert "pytest-hwqueue[nvidia]" in read.missing["mig_mode"]
    assert not read.missing.keys() & {*read.hard, *read.soft}
    # Where torch is built for another device, that is the reason.
    read = fingerprint("hip", 0)
    assert "not built for hip" in read.missing["device_name"]
    assert read.hard["device_kind"] == "hip"
    assert {f"environment.{name}" for name in HIP_QUEUE_SETTINGS} <= read.hard.keys()


def test_hip_device(gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    library = AmdSmi()
    gpu.uuid = library.answers["device_uuid"]
    monkeypatch.setattr(torch.version, "hip", "7.0.2")
    monkeypatch.setenv("GPU_MAX_HW_QUEUES", "8")
    monkeypatch.setitem(sys.modules, "amdsmi", library)
    read = fingerprint("hip", 0)
    assert read.missing == {}
    assert {**read.hard, **read.soft}.items() >= {
        "gcn_architecture": "gfx942:sramecc+:xnack-",
        "driver_major": 6,
        "compute_partition": "SPX",
        "memory_partition": "NPS1",
        "environment.GPU_MAX_HW_QUEUES": "8",
        "hip_runtime_version": "7.0.2",
        "pci_bus_id": "0000:23:00.0",
        "performance_level": "AMDSMI_DEV_PERF_LEVEL_AUTO",
    }.items()
    assert library.opened == 0
    library.answers["driver_info"] = {"driver_version": "N/A"}
    assert fingerprint("hip", 0).missing.keys() == {"driver_major", "driver_version"}


def test_cpu_of_this_machine() -> None:
    read = fingerprint("cpu", 0)
    assert read.hard["device_kind"] == "cpu"
    assert read.hard["usable_logical_cores"] == len(os.sched_getaffinity(0))
    assert "device_name" in read.hard.keys() | read.missing.keys()
    assert not [name for name in read.hard if name.startswith("environment.")]
    assert differences(read, fingerprint("cpu", 0)) == ([], [])
    stored = Fingerprint(**json.loads(json.dumps(dataclasses.asdict(read))))
    assert differences(read, stored) == ([], [])
    with pytest.raises(ValueError, match="cuda, hip or cpu"):
        fingerprint("tpu", 0)  # type: ignore[arg-type]  # what a caller without types might do


def test_real_torch_without_the_device_raises_nothing() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has the device")
    read = fingerprint("cuda", 0)
    assert {"device_name", "driver_major", "mig_mode"} <= read.missing.keys()
    assert all(read.missing.values())


VALUES = st.one_of(st.none(), st.booleans(), st.integers(0, 3), st.sampled_from(["0", "1", "x"]))
FIELDS = st.dictionaries(st.sampled_from("abcdef"), VALUES)


@given(FIELDS, FIELDS, FIELDS, FIELDS)
def test_differences_are_complete_and_name_the_field_and_both_values(
    hard_a: dict[str, Any], soft_a: dict[str, Any], hard_b: dict[str, Any], soft_b: dict[str, Any]
) -> None:
    def expected(a: dict[str, Any], b: dict[str, Any]) -> list[FingerprintDifference]:
        same = {each for each in a.keys() & b.keys() if a[each] == b[each]}
        names = sorted({*a, *b} - same)
        return [FingerprintDifference(name, a.get(name), b.get(name)) for name in names]

    a, b = Fingerprint(hard_a, soft_a), Fingerprint(hard_b, soft_b)
    assert differences(a, b) == (expected(hard_a, hard_b), expected(soft_a, soft_b))
    assert differences(a, a) == ([], [])
