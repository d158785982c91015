"""Stand-ins for the packages of NVIDIA and AMD: an H200 with one MIG slice, and an MI300."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pynvml

UUID = "00000000-1111-2222-3333-444444444444"
SLICE = UUID[::-1]
VOLATILE = pynvml.NVML_VOLATILE_ECC
NOT_SUPPORTED = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
# Who ended a moment ago: no process has this number.
GONE = 2**31 - 2


def raising(error: Exception) -> Any:
    def refuse(*arguments: object) -> None:
        raise error

    return refuse


def process(pid: int, memory: int | None) -> SimpleNamespace:
    """A process as NVML lists it."""
    return SimpleNamespace(pid=pid, usedGpuMemory=memory)


class Nvml:
    """pynvml's module; an answer may be an error to raise, or several by what is asked for."""

    __name__ = "pynvml"

    def __init__(self, **answers: Any) -> None:
        self.opened, self.sliced = 0, False
        self.xid_errors: list[int] = []
        self.known = {f"GPU-{UUID}": "gpu", f"MIG-{SLICE}": "slice", "0000:0A:00.0": "gpu"}
        clocks = {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 3201}
        self.answers: dict[str, Any] = {
            "ClockInfo": clocks,
            "PowerUsage": 123_456,
            "TemperatureV": {pynvml.NVML_TEMPERATURE_GPU: 41},
            "CurrentClocksEventReasons": 0,
            "ViolationStatus": {n: SimpleNamespace(violationTime=7 + n) for n in (0, 1)},
            "ComputeRunningProcesses": [],
            "GraphicsRunningProcesses": [],
            "MPSComputeRunningProcesses": [],
            "MigMode": [0, 0],
            "Attributes_v2": SimpleNamespace(
                computeInstanceSliceCount=1, gpuInstanceSliceCount=2, memorySizeMB=33000
            ),
            "DriverVersion": "580.95.05",
            "CudaDriverVersion_v2": 13020,
            "ApplicationsClock": clocks,
            "ComputeMode": 3,
            "EccMode": [1, 0],
            "PersistenceMode": 1,
            "EnforcedPowerLimit": 700_000,
            "PciInfo": SimpleNamespace(busId="00000000:0A:00.0"),
            "CurrPcieLinkWidth": 16,
            # Two links, of which one is down, and no third.
            "NvLinkState": [1, 0, pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)],
            "TotalEccErrors": {
                (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC): 3
            },
            "RemappedRows": [5, 1, 1, 0],
            "nvmlEventSetCreate": "events",
            "nvmlDeviceRegisterEvents": None,
            **answers,
        }

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("NVML", "nvmlEventType")):
            return getattr(pynvml, name)
        asked = name.removeprefix("nvmlDeviceGet").removeprefix("nvmlSystemGet")
        if asked not in self.answers:
            raise AttributeError(name)  # a package that lacks the function
        of_slice = self.sliced and asked.endswith(("Processes", "Attributes_v2"))

        def answer(handle: str = "gpu", *keys: int) -> Any:
            assert self.opened == 1
            assert handle == ("slice" if of_slice else "gpu")
            value = self.answers[asked]
            if isinstance(value, dict):
                value = value[keys[0] if len(keys) == 1 else keys]
            if isinstance(value, Exception):
                raise value
            return value

        return answer

    def nvmlEventSetWait_v2(self, events: str, limit_ms: int) -> SimpleNamespace:
        assert (self.opened, events, limit_ms) == (1, "events", 0)
        if not self.xid_errors:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        return SimpleNamespace(eventData=self.xid_errors.pop(0))

    def nvmlInit(self) -> None:
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in self.known:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return self.known[uuid]

    nvmlDeviceGetHandleByPciBusId = nvmlDeviceGetHandleByUUID

    def nvmlDeviceIsMigDeviceHandle(self, handle: str) -> Any:
        self.sliced = handle == "slice"
        return pynvml.c_uint(int(self.sliced))  # pynvml too forgets to take the value

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: str) -> str:
        assert handle == "slice"
        return "gpu"


class AmdSmi:
    """amdsmi's module, with one GPU."""

    __name__ = "amdsmi"
    AmdSmiException = OSError

    def __init__(self, metrics: dict[str, Any] | None = None, **answers: Any) -> None:
        clocks = {"current_gfxclk": 2100, "current_uclk": 1300, "temperature_hotspot": 60}
        processes = [(os.getpid(), 1), (GONE, 9)]
        self.opened = 0
        self.answers: dict[str, Any] = {
            "device_bdf": "0000:23:00.0",
            "device_uuid": "c4ff0000-0000-1000-80aa-000000000000",
            "asic_info": {"asic_serial": "0xABCDEF0123456789"},
            "driver_info": {"driver_version": "6.14.14"},
            "compute_partition": "SPX",
            "memory_partition": "NPS1",
            "perf_level": "AMDSMI_DEV_PERF_LEVEL_AUTO",
            "metrics_info": {**clocks, **(metrics or {})},
            "process_list": [{"pid": n, "memory_usage": {"vram_mem": b}} for n, b in processes],
        }
        for name, answer in answers.items():
            setattr(self, f"amdsmi_{name}", answer)

    def __getattr__(self, name: str) -> Any:
        asked = name.removeprefix("amdsmi_get_gpu_")
        if asked not in self.answers:
            raise AttributeError(name)
        return lambda gpu: {"gpu": self.answers[asked]}[gpu]

    def amdsmi_init(self) -> None:
        self.opened += 1

    def amdsmi_shut_down(self) -> None:
        self.opened -= 1

    def amdsmi_get_processor_handles(self) -> list[str]:
        return ["gpu"]
