"""What each reader tells of its device, and what it does not tell and why."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest

from pytest_hwqueue.data.records.telemetry import (
    HostSample,
    OtherProcess,
    Telemetry,
    TelemetrySample,
)
from pytest_hwqueue.parts.devices.telemetry import (
    AmdSmiReader,
    HostReader,
    NvmlReader,
    Unavailable,
    open_reader,
)

from .vendors import GONE, NOT_SUPPORTED, SLICE, UUID, AmdSmi, Nvml, process, raising


@pytest.mark.parametrize("identifier", [UUID, f"GPU-{UUID}", "0000:0A:00.0", SLICE, f"MIG-{SLICE}"])
def test_nvml_units_and_identifiers(install: Any, identifier: str) -> None:
    library = install(Nvml(ComputeRunningProcesses=[process(GONE, None)]))
    reader = NvmlReader(identifier)
    # A slice has its own processes, and the clocks of the whole GPU.
    others, violations = (OtherProcess(GONE, None, None),), {"power_cap": 7, "thermal": 8}
    assert dataclasses.replace(reader.read(), when_ns=0) == TelemetrySample(
        0, 1980, 3201, 41, 123.456, (), others, violations
    )
    assert identifier in reader.describe()
    assert ("MIG slice" in reader.describe()) == (SLICE in identifier)
    reader.close()
    reader.close()
    assert library.opened == 0


def test_what_nvml_does_not_tell_is_none_with_its_reason(install: Any) -> None:
    library = install(Nvml(**dict.fromkeys(Nvml().answers, NOT_SUPPORTED)))
    del library.answers["ClockInfo"]
    reader = NvmlReader(UUID)
    first, second = reader.read(), reader.read()
    assert dataclasses.replace(first, when_ns=0) == TelemetrySample(0, None, None, None, None)
    assert first.when_ns <= second.when_ns
    assert {name.split(".")[0] for name in reader.missing} >= {
        "sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w", "throttle_reasons",
        "other_processes", "violation_counters",
    }  # fmt: skip
    assert reader.missing["power_w"] == "Not Supported"
    assert "nvmlDeviceGetClockInfo" in reader.missing["sm_clock_mhz"]


def test_each_xid_error_is_read_once_and_a_lost_gpu_ends_it(install: Any) -> None:
    library = install(Nvml())
    reader = NvmlReader(UUID)
    library.xid_errors = [79, 13]
    read = [reader.read(), reader.read()]
    assert [sample.xid_errors for sample in read] == [(79, 13), ()]
    assert Telemetry("NVML", tuple(read)).xid_errors == [13, 79]
    assert "xid_errors" not in reader.missing
    lost = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    library.nvmlEventSetWait_v2 = raising(lost)
    assert [reader.read().xid_errors, reader.read().xid_errors] == [(), ()]
    assert reader.missing["xid_errors"] == "GPU is lost"


def test_older_drivers_and_newer_packages_cost_only_what_they_lack(install: Any) -> None:
    gone = pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    mismatch = pynvml.NVMLLibraryMismatchError("use a versioned function")
    lacking = {"TemperatureV": gone, "CurrentClocksEventReasons": gone}
    older = {"Temperature": 55, "CurrentClocksThrottleReasons": 4}
    install(Nvml(**lacking, **older, ComputeRunningProcesses=mismatch))
    reader = NvmlReader(UUID)
    sample = reader.read()
    assert (sample.temperature_c, sample.throttle_reasons) == (55, ("power_cap",))
    assert not {"temperature_c", "throttle_reasons"} & reader.missing.keys()
    assert "versioned" in reader.missing["other_processes.compute"]


def test_only_reasons_that_slow_the_device_down(install: Any) -> None:
    library = install(Nvml())
    reader = NvmlReader(UUID)
    told = {
        "SwPowerCap": "power_cap", "HwSlowdown": "hardware_slowdown", "SyncBoost": "sync_boost",
        "SwThermalSlowdown": "software_thermal", "HwThermalSlowdown": "hardware_thermal",
        "HwPowerBrakeSlowdown": "power_brake",
    }  # fmt: skip
    for name in (*told, "GpuIdle", "ApplicationsClocksSetting", "DisplayClockSetting", "None"):
        bits = getattr(pynvml, f"nvmlClocksThrottleReason{name}")
        library.answers["CurrentClocksEventReasons"] = bits
        assert reader.read().throttle_reasons == ((told[name],) if name in told else ())
    assert (pynvml.NVML_PERF_POLICY_POWER, pynvml.NVML_PERF_POLICY_THERMAL) == (0, 1)


def test_other_processes_exclude_ours(install: Any, tmp_path: Path) -> None:
    child = os.getppid()
    install(
        Nvml(
            ComputeRunningProcesses=[process(os.getpid(), 1), process(child, None)],
            GraphicsRunningProcesses=[process(GONE, 5)],
            MPSComputeRunningProcesses=[process(child, 7), process(GONE, None)],
        )
    )
    reader = NvmlReader(UUID)
    assert reader.read().other_processes == (
        OtherProcess(child, psutil.Process(child).name(), 7),
        OtherProcess(GONE, None, 5),
    )
    for namespace, told in (("4026532000", True), ("4026531836", False)):
        (tmp_path / namespace / "self" / "ns").mkdir(parents=True)
        (tmp_path / namespace / "self" / "ns" / "pid").symlink_to(f"pid:[{namespace}]")
        reader.close()
        reader = NvmlReader(SLICE, tmp_path / namespace)
        assert ("other_processes.own" in reader.missing) is told


@pytest.mark.parametrize(
    ("kind", "identifier", "library", "said"),
    [
        ("cuda", "GPU-ffffffff-1111-2222-3333-444444444444", Nvml(), "Not Found"),
        ("cuda", UUID, None, "pytest-hwqueue[nvidia]"),
        ("cuda", None, Nvml(), "UUID is not known"),
        ("hip", "0000:23:00.0", None, "ROCm"),
        ("hip", "0000:24:00.0", AmdSmi(), "only 0000:23:00.0"),
        (
            "hip",
            "0000:23:00.0",
            AmdSmi(init=raising(AmdSmi.AmdSmiException("driver not loaded"))),
            "driver not loaded",
        ),
    ],
)
def test_what_cannot_be_read_is_unavailable_and_closed_again(
    monkeypatch: pytest.MonkeyPatch, kind: str, identifier: str | None, library: Any, said: str
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml" if kind == "cuda" else "amdsmi", library)
    reader = open_reader(kind, identifier)
    assert isinstance(reader, Unavailable)
    assert said in reader.reason
    assert library is None or library.opened == 0


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="there is an NVIDIA driver")
def test_real_nvml_without_a_driver_is_unavailable() -> None:
    with pytest.raises(pynvml.NVMLError) as refused:
        pynvml.nvmlInit()
    reader = open_reader("cuda", f"GPU-{UUID}")
    assert isinstance(reader, Unavailable)
    assert str(refused.value) in reader.reason


@pytest.mark.parametrize(
    "identifier",
    # The last is torch's way to print the letters before it.
    ["0000:23:00.0", "C4FF0000-0000-1000-80AA-000000000000", "GPU-abcdef0123456789",
     "61626364-6566-3031-3233-343536373839"],
)  # fmt: skip
def test_amd_gpu_by_any_of_its_names(install: Any, identifier: str) -> None:
    library = install(AmdSmi(metrics={"current_socket_power": "N/A", "average_socket_power": 300}))
    reader = open_reader("hip", identifier)
    assert isinstance(reader, AmdSmiReader)
    others = (OtherProcess(GONE, None, 9),)
    assert dataclasses.replace(reader.read(), when_ns=0) == TelemetrySample(
        0, 2100, 1300, 60, 300, other_processes=others
    )
    assert "throttle" in reader.missing["throttle_reasons"]
    reader.close()
    assert library.opened == 0


def test_amd_throttling_of_both_generations(install: Any) -> None:
    install(AmdSmi(metrics={"throttle_status": "N/A", "ppt_residency_acc": 5}))
    newer = AmdSmiReader("0000:23:00.0")
    sample = newer.read()
    assert (sample.violation_counters, sample.throttle_reasons) == ({"power_cap": 5}, ())
    assert newer.missing.keys() == {"power_w"}
    install(AmdSmi(metrics={"indep_throttle_status": True}))
    assert AmdSmiReader("0000:23:00.0").read().throttle_reasons == ("unspecified",)


def test_host_reader_tells_the_host_or_why_not(install: Any) -> None:
    stolen = iter([10.0, 12.5, 12.5])
    host = SimpleNamespace(
        __name__="psutil",
        cpu_times=lambda: SimpleNamespace(steal=next(stolen)),
        cpu_freq=lambda: SimpleNamespace(current=2400.0),
        getloadavg=lambda: (1.5, 1.0, 0.5),
    )
    install(host)
    reader = HostReader()
    read = [dataclasses.replace(reader.read(), when_ns=0) for _ in range(2)]
    assert read == [HostSample(0, 2400.0, 1.5, 2.5), HostSample(0, 2400.0, 1.5, 0.0)]
    reader.close()
    host.cpu_times, host.cpu_freq = SimpleNamespace, lambda: SimpleNamespace(current=0.0)
    del host.getloadavg
    reader = HostReader()
    assert dataclasses.replace(reader.read(), when_ns=0) == HostSample(0, None, None, None)
    assert reader.missing.keys() == {"cpu_clock_mhz", "load_average_1m", "steal_s"}
