"""What each reader tells of its device, and what it does not tell and why."""

from __future__ import annotations

import dataclasses
import os
import sys
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest

from pytest_hwqueue.devices.kinds import VendorError
from pytest_hwqueue.devices.telemetry import (
    AmdSmiReader,
    HostReader,
    HostSample,
    NvmlReader,
    OtherProcess,
    TelemetrySample,
    Unavailable,
    open_reader,
)

UUID = "00000000-1111-2222-3333-444444444444"
NOT_SUPPORTED = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
NOT_FOUND = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)


class FakeNvml(SimpleNamespace):
    """pynvml's module, with one GPU and one MIG slice of it; an answer may be an error to raise."""

    def __init__(self, **answers: Any) -> None:
        super().__init__(
            NVMLError=pynvml.NVMLError,
            NVMLLibraryMismatchError=pynvml.NVMLLibraryMismatchError,
            NVML_CLOCK_SM=pynvml.NVML_CLOCK_SM,
            NVML_CLOCK_MEM=pynvml.NVML_CLOCK_MEM,
            NVML_TEMPERATURE_GPU=pynvml.NVML_TEMPERATURE_GPU,
            opened=0,
            known={f"GPU-{UUID}": "gpu", f"MIG-{UUID[::-1]}": "slice", "0000:0A:00.0": "gpu"},
        )
        self.answers = {
            "ClockInfo": {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 3201},
            "PowerUsage": 123_456,
            "TemperatureV": 41,
            "CurrentClocksEventReasons": 0,
            "ViolationStatus": {0: SimpleNamespace(violationTime=7), 1: NOT_SUPPORTED},
            "ComputeRunningProcesses": [],
            "GraphicsRunningProcesses": [],
            "MPSComputeRunningProcesses": [],
            **answers,
        }
        for name in self.answers:
            setattr(self, f"nvmlDeviceGet{name}", self._answer(name))

    def _answer(self, name: str) -> Any:
        def answer(handle: str, key: int | None = None) -> Any:
            assert self.opened == 1
            assert handle == ("slice" if name.endswith("Processes") and self.sliced else "gpu")
            value = self.answers[name]
            if isinstance(value, dict):
                value = value[key]
            if isinstance(value, Exception):
                raise value
            return value

        return answer

    sliced = False

    def nvmlInit(self) -> None:
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in self.known:
            raise NOT_FOUND
        return str(self.known[uuid])

    nvmlDeviceGetHandleByPciBusId = nvmlDeviceGetHandleByUUID

    def nvmlDeviceIsMigDeviceHandle(self, handle: str) -> Any:
        self.sliced = handle == "slice"
        return pynvml.c_uint(int(self.sliced))  # pynvml too forgets to take the value

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: str) -> str:
        assert handle == "slice"
        return "gpu"


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    def put(package: str, module: Any) -> Any:
        monkeypatch.setitem(sys.modules, package, module)
        return module

    return put


def process(pid: int, memory: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=memory)


@pytest.mark.parametrize("identifier", [UUID, f"GPU-{UUID}", "0000:0A:00.0"])
def test_nvml_units_and_identifiers(install: Any, identifier: str) -> None:
    library = install("pynvml", FakeNvml())
    reader = NvmlReader(identifier)
    sample = reader.read()
    assert (sample.sm_clock_mhz, sample.memory_clock_mhz) == (1980, 3201)
    assert (sample.power_w, sample.temperature_c) == (123.456, 41)
    assert sample.throttle_reasons == ()
    assert sample.other_processes == ()
    assert sample.violation_counters == {"power_cap": 7}
    assert identifier in reader.describe()
    reader.close()
    reader.close()
    assert library.opened == 0


def test_what_nvml_does_not_tell_is_none_with_its_reason(install: Any) -> None:
    refused = dict.fromkeys(FakeNvml().answers, NOT_SUPPORTED)
    library = install("pynvml", FakeNvml(**refused))
    library.nvmlDeviceGetCurrentClocksThrottleReasons = library.nvmlDeviceGetPowerUsage
    library.nvmlDeviceGetTemperature = library.nvmlDeviceGetPowerUsage
    del library.nvmlDeviceGetClockInfo  # a package that lacks the function
    reader = NvmlReader(UUID)
    first, second = reader.read(), reader.read()
    assert dataclasses.replace(first, when_ns=0) == TelemetrySample(0, None, None, None, None)
    assert first.when_ns <= second.when_ns
    assert {name.split(".")[0] for name in reader.missing} >= {
        "sm_clock_mhz",
        "memory_clock_mhz",
        "temperature_c",
        "power_w",
        "throttle_reasons",
        "other_processes",
        "violation_counters",
    }
    assert reader.missing["power_w"] == "Not Supported"
    assert "nvmlDeviceGetClockInfo" in reader.missing["sm_clock_mhz"]


def test_older_driver_is_asked_by_the_older_names(install: Any) -> None:
    gone = pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    library = FakeNvml(TemperatureV=gone, CurrentClocksEventReasons=gone)
    library.nvmlDeviceGetTemperature = lambda handle, sensor: 55
    library.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle: 4
    install("pynvml", library)
    reader = NvmlReader(UUID)
    sample = reader.read()
    assert (sample.temperature_c, sample.throttle_reasons) == (55, ("power_cap",))
    assert not {"temperature_c", "throttle_reasons"} & reader.missing.keys()


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        ("SwPowerCap", ("power_cap",)),
        ("HwSlowdown", ("hardware_slowdown",)),
        ("SyncBoost", ("sync_boost",)),
        ("SwThermalSlowdown", ("software_thermal",)),
        ("HwThermalSlowdown", ("hardware_thermal",)),
        ("HwPowerBrakeSlowdown", ("power_brake",)),
        ("GpuIdle", ()),
        ("ApplicationsClocksSetting", ()),
        ("DisplayClockSetting", ()),
        ("None", ()),
    ],
)
def test_only_reasons_that_slow_the_device_down(
    install: Any, name: str, reasons: tuple[str, ...]
) -> None:
    bits = getattr(pynvml, f"nvmlClocksThrottleReason{name}")
    install("pynvml", FakeNvml(CurrentClocksEventReasons=bits))
    assert NvmlReader(UUID).read().throttle_reasons == reasons


def test_policies_are_those_of_nvml() -> None:
    assert (pynvml.NVML_PERF_POLICY_POWER, pynvml.NVML_PERF_POLICY_THERMAL) == (0, 1)


def test_other_processes_are_all_lists_less_our_own(install: Any) -> None:
    child, gone, ours = os.getppid(), 2**31 - 2, {12345}
    install(
        "pynvml",
        FakeNvml(
            ComputeRunningProcesses=[process(os.getpid(), 1), process(child, None)],
            GraphicsRunningProcesses=[process(gone, 5), process(12345, 6), process(54321, 1)],
            MPSComputeRunningProcesses=[process(child, 7), process(gone, None)],
        ),
    )
    reader = NvmlReader(UUID, exclude_pids=ours)
    ours.add(54321)  # started after the reader was opened
    assert reader.read().other_processes == (
        OtherProcess(child, psutil.Process(child).name(), 7),
        OtherProcess(gone, None, 5),
    )


def test_package_newer_than_the_driver_costs_only_its_lists(install: Any) -> None:
    mismatch = pynvml.NVMLLibraryMismatchError("use a versioned function")
    install("pynvml", FakeNvml(ComputeRunningProcesses=mismatch))
    reader = NvmlReader(UUID)
    assert reader.read().power_w == 123.456
    assert "versioned" in reader.missing["other_processes.compute"]


@pytest.mark.parametrize("identifier", [f"MIG-{UUID[::-1]}", UUID[::-1]])
def test_mig_slice_has_its_own_processes_and_the_clocks_of_the_gpu(
    install: Any, identifier: str
) -> None:
    install("pynvml", FakeNvml(ComputeRunningProcesses=[process(2**31 - 2, None)]))
    reader = NvmlReader(identifier)
    sample = reader.read()
    assert sample.sm_clock_mhz == 1980
    assert sample.other_processes == (OtherProcess(2**31 - 2, None, None),)
    assert "MIG slice" in reader.describe()


def test_own_pid_namespace_is_told(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install("pynvml", FakeNvml())
    monkeypatch.setattr("pathlib.Path.readlink", lambda path: "pid:[4026532000]")
    assert "namespace" in NvmlReader(UUID).missing["other_processes.own"]


def test_unknown_gpu_is_unavailable_and_nvml_closed_again(install: Any) -> None:
    library = install("pynvml", FakeNvml())
    reader = open_reader("cuda", "GPU-ffffffff-1111-2222-3333-444444444444")
    assert isinstance(reader, Unavailable)
    assert "Not Found" in reader.reason
    assert library.opened == 0
    with pytest.raises(VendorError, match="no device"):
        NvmlReader("0000:ff:00.0")


def test_missing_packages_are_unavailable_with_what_to_install(install: Any) -> None:
    install("pynvml", None)
    install("amdsmi", None)
    nvidia, amd = open_reader("cuda", UUID), open_reader("hip", UUID)
    assert isinstance(nvidia, Unavailable)
    assert isinstance(amd, Unavailable)
    assert "pytest-hwqueue[nvidia]" in nvidia.reason
    assert "ROCm" in amd.reason
    assert isinstance(open_reader("cuda", None), Unavailable)


def test_real_nvml_without_a_driver_is_unavailable() -> None:
    refusal = ""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        refusal = str(error)
    if not refusal:
        pynvml.nvmlShutdown()
        pytest.skip("this machine has an NVIDIA driver")
    reader = open_reader("cuda", f"GPU-{UUID}")
    assert isinstance(reader, Unavailable)
    assert refusal in reader.reason


class AmdSmiError(Exception):
    """Stands in for AmdSmiException."""


def fake_amdsmi(**metrics: Any) -> SimpleNamespace:
    metrics = {"current_gfxclk": 2100, "current_uclk": 1300, "temperature_hotspot": 60, **metrics}
    processes = [
        {"pid": os.getpid(), "memory_usage": {"vram_mem": 1}},
        {"pid": 2**31 - 2, "memory_usage": {"vram_mem": 9}},
    ]
    return SimpleNamespace(
        AmdSmiException=AmdSmiError,
        amdsmi_init=lambda: None,
        amdsmi_shut_down=lambda: None,
        amdsmi_get_processor_handles=lambda: ["gpu"],
        amdsmi_get_gpu_device_bdf=lambda gpu: "0000:23:00.0",
        amdsmi_get_gpu_device_uuid=lambda gpu: "c4ff0000-0000-1000-80aa-000000000000",
        amdsmi_get_gpu_asic_info=lambda gpu: {"asic_serial": "0xABCDEF0123456789"},
        amdsmi_get_gpu_metrics_info=lambda gpu: metrics,
        amdsmi_get_gpu_process_list=lambda gpu: processes,
    )


@pytest.mark.parametrize(
    "identifier",
    [
        "0000:23:00.0",
        "C4FF0000-0000-1000-80AA-000000000000",
        "GPU-abcdef0123456789",
        "61626364-6566-3031-3233-343536373839",  # torch's way to print the letters above
    ],
)
def test_amd_gpu_by_any_of_its_names(install: Any, identifier: str) -> None:
    install("amdsmi", fake_amdsmi(current_socket_power="N/A", average_socket_power=300))
    reader = open_reader("hip", identifier)
    assert isinstance(reader, AmdSmiReader)
    sample = reader.read()
    assert (sample.sm_clock_mhz, sample.memory_clock_mhz) == (2100, 1300)
    assert (sample.temperature_c, sample.power_w) == (60, 300)
    assert sample.other_processes == (OtherProcess(2**31 - 2, None, 9),)
    assert sample.violation_counters == {}
    assert sample.throttle_reasons == ()
    assert "throttle" in reader.missing["throttle_reasons"]


def test_amd_throttling_of_both_generations(install: Any) -> None:
    install("amdsmi", fake_amdsmi(throttle_status="N/A", ppt_residency_acc=5))
    newer = AmdSmiReader("0000:23:00.0")
    assert newer.read().violation_counters == {"power_cap": 5}
    assert newer.read().throttle_reasons == ()
    assert "throttle_reasons" not in newer.missing
    assert "power_w" in newer.missing
    install("amdsmi", fake_amdsmi(indep_throttle_status=True))
    assert AmdSmiReader("0000:23:00.0").read().throttle_reasons == ("unspecified",)


def test_amd_without_the_gpu_or_the_driver_is_unavailable(install: Any) -> None:
    library = install("amdsmi", fake_amdsmi())
    other = open_reader("hip", "0000:24:00.0")
    assert isinstance(other, Unavailable)
    assert "0000:23:00.0" in other.reason

    def refuse() -> None:
        raise AmdSmiError("driver not loaded")

    library.amdsmi_init = refuse
    none = open_reader("hip", "0000:23:00.0")
    assert isinstance(none, Unavailable)
    assert "driver not loaded" in none.reason


def test_host_reader_tells_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    stolen = iter([10.0, 12.5, 12.5])
    monkeypatch.setattr(psutil, "cpu_times", lambda: SimpleNamespace(steal=next(stolen)))
    reader = HostReader()
    first, second = reader.read(), reader.read()
    assert (first.steal_s, second.steal_s) == (2.5, 0.0)
    assert first.load_average_1m is not None
    reader.close()


def test_host_that_tells_nothing_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_times", SimpleNamespace)
    monkeypatch.setattr(psutil, "cpu_freq", lambda: SimpleNamespace(current=0.0))
    monkeypatch.delattr(os, "getloadavg")
    reader = HostReader()
    assert dataclasses.replace(reader.read(), when_ns=0) == HostSample(0, None, None, None)
    assert reader.missing.keys() == {"cpu_clock_mhz", "load_average_1m", "steal_s"}
