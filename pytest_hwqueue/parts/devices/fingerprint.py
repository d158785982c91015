"""Reads what a result depends on: device, driver, settings.

Everything here is read-only; no clock, limit or mode is ever changed.
"""

from __future__ import annotations

import os
import platform
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from pytest_hwqueue.data.records.conditions import is_of_process
from pytest_hwqueue.data.records.fingerprint import Fingerprint, Value
from pytest_hwqueue.data.records.kinds import DeviceKind
from pytest_hwqueue.parts.devices import conditions
from pytest_hwqueue.parts.devices.conditions import Readers, setting
from pytest_hwqueue.parts.devices.kinds import Vendor, VendorError, open_amdsmi, open_nvml

# What the runtimes read about queues, launches and graphs when they start. CUDA: chapter 5.2 of
# the CUDA programming guide and the MPS guide.
CUDA_QUEUE_SETTINGS = (
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_MAX_COPY_CONNECTIONS",
    "CUDA_DISABLE_PERF_BOOST",
    "CUDA_GRAPHS_USE_NODE_PRIORITY",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_CLIENT_PRIORITY",
    "CUDA_PREFER_SPINLOCKS_ON_HOST",
    "CUDA_SCALE_LAUNCH_QUEUES",
)
# HIP: the environment variable reference of HIP and ROCR, and rocclr's flags.hpp for the DEBUG_
# ones, which are switches of released runtimes too.
HIP_QUEUE_SETTINGS = (
    "AMD_DIRECT_DISPATCH",
    "AMD_SERIALIZE_COPY",
    "AMD_SERIALIZE_KERNEL",
    "DEBUG_CLR_BATCH_CPU_SYNC_SIZE",
    "DEBUG_CLR_GRAPH_PACKET_CAPTURE",
    "DEBUG_CLR_MAX_BATCH_SIZE",
    "DEBUG_HIP_BLOCK_SYNC",
    "DEBUG_HIP_DYNAMIC_QUEUES",
    "DEBUG_HIP_FORCE_ASYNC_QUEUE",
    "DEBUG_HIP_FORCE_GRAPH_QUEUES",
    "DEBUG_HIP_GRAPH_BATCH_SIZE",
    "GPU_FORCE_QUEUE_PROFILING",
    "GPU_MAX_HW_QUEUES",
    "HIP_FORCE_DEV_KERNARG",
    "HIP_LAUNCH_BLOCKING",
    "HSA_CU_MASK",
    "HSA_ENABLE_INTERRUPT",
    "HSA_ENABLE_SDMA",
    "HSA_NO_SCRATCH_RECLAIM",
    "ROC_ACTIVE_WAIT_TIMEOUT",
    "ROC_AQL_QUEUE_SIZE",
    "ROC_GLOBAL_CU_MASK",
)
# What the runtimes do where a variable is not set, by their documentation: to say so changes
# nothing.
_DEFAULTS = {
    "AMD_DIRECT_DISPATCH": "1",
    "AMD_SERIALIZE_COPY": "0",
    "AMD_SERIALIZE_KERNEL": "0",
    "CUDA_DEVICE_MAX_CONNECTIONS": "8",
    "CUDA_DEVICE_MAX_COPY_CONNECTIONS": "8",
    "CUDA_DISABLE_PERF_BOOST": "0",
    "CUDA_LAUNCH_BLOCKING": "0",
    "GPU_MAX_HW_QUEUES": "4",
    "HIP_LAUNCH_BLOCKING": "0",
    "HSA_ENABLE_INTERRUPT": "1",
    "HSA_ENABLE_SDMA": "1",
}


def fingerprint(kind: DeviceKind, index: int = 0) -> Fingerprint:
    """Read the fingerprint of a device; initialises its runtime in this process.

    What cannot be read is in ``missing``; nothing raises.

    Args:
        kind: of the device; not ``sim``.
        index: among torch's visible devices; not used for ``cpu``.

    """
    fields = _Fields()
    fields.hard("device_kind", lambda: kind)
    if kind == "cpu":
        fields.hard("device_name", cpu_model)
        fields.hard("usable_logical_cores", _usable_logical_cores)
    else:
        fields.soft("cpu_model", cpu_model)
        fields.soft("usable_logical_cores", _usable_logical_cores)
        _read_accelerator(fields, kind, index)
    fields.soft("torch_version", lambda: str(_torch().__version__))
    fields.soft("python_version", platform.python_version)
    fields.soft("kernel_release", platform.release)
    fields.soft("host_name", platform.node)
    fields.add_soft(conditions.host())
    # torch warns where its newer or its older switches are read, whichever a release dislikes.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fields.add_hard(conditions.identity(kind, index))
        fields.add_soft(conditions.settings(kind))
    return fields.result


NOT_KNOWN = "not known"
"""A condition of a process that cannot be asked, such as a server of the user's."""


def of_processes(own: Fingerprint, processes: Mapping[str, Fingerprint | None]) -> Fingerprint:
    """Return what the processes found that were measured, each under its own environment.

    Where they differ, a field names each with its value, in the names' order; but soft fields of
    devices (clocks, UUIDs) are those of one.

    Args:
        own: what another process found of the same device, or the first of them.
        processes: by name; None for one that cannot be asked.

    """
    known = [each for each in processes.values() if each is not None]
    hard = _joined([own.hard, *(each.hard for each in known)], processes, "hard")
    soft = _joined([own.soft, *(each.soft for each in known)], processes, "soft")
    missing = {name: why for each in (own, *known) for name, why in each.missing.items()}
    absent = {name: why for name, why in missing.items() if name not in hard | soft}
    return Fingerprint(hard, soft, absent)


def _joined(
    groups: Sequence[Mapping[str, Value]],
    processes: Mapping[str, Fingerprint | None],
    group: Literal["hard", "soft"],
) -> dict[str, Value]:
    joined: dict[str, Value] = {}
    for name in dict.fromkeys(name for each in groups for name in each):
        if group == "soft" and not is_of_process(name):
            joined[name] = next(each[name] for each in groups if name in each)
            continue
        values: dict[str, Value] = {}
        for who, found in processes.items():
            if found is not None:
                values[who] = getattr(found, group).get(name, NOT_KNOWN)
            elif is_of_process(name):
                values[who] = NOT_KNOWN
        distinct = list(dict.fromkeys(values.values()))
        if not distinct:
            joined[name] = groups[0][name]
        elif len(distinct) == 1:
            joined[name] = distinct[0]
        else:
            joined[name] = "; ".join(f"{who}: {value}" for who, value in sorted(values.items()))
    return joined


def value_of_process(value: Value, who: str, processes: Iterable[str]) -> Value:
    """Return what one process found, of a value that `of_processes` put together.

    Args:
        value: of the field.
        who: the process.
        processes: the names of all.

    """
    names = sorted(processes)
    if len(names) == 1:
        return value
    pattern = "; ".join(f"{re.escape(name)}: (.*)" for name in names)
    differ = re.fullmatch(pattern, value, re.DOTALL) if isinstance(value, str) else None
    return value if differ is None else differ[1 + names.index(who)]


class _Fields:
    """Collects fields; an unreadable one does not affect the others."""

    def __init__(self) -> None:
        self.result = Fingerprint({}, {})

    def hard(self, name: str, read: Callable[[], Value]) -> None:
        self._put(self.result.hard, name, read)

    def soft(self, name: str, read: Callable[[], Value]) -> None:
        self._put(self.result.soft, name, read)

    def add_hard(self, readers: Readers) -> None:
        for name, read in readers.items():
            self.hard(name, read)

    def add_soft(self, readers: Readers) -> None:
        for name, read in readers.items():
            self.soft(name, read)

    def _put(self, group: dict[str, Value], name: str, read: Callable[[], Value]) -> None:
        try:
            value = read()
        except Exception as error:  # runtimes and vendors' libraries raise what they like
            self.result.missing[name] = f"{type(error).__name__}: {error}"
            return
        if value is None or value == "":
            self.result.missing[name] = "the system gives no value"
        else:
            group[name] = value


def _read_accelerator(fields: _Fields, kind: DeviceKind, index: int) -> None:
    properties = cache(lambda: _properties(kind, index))
    fields.hard("device_name", lambda: str(properties().name))
    fields.hard("total_memory_bytes", lambda: int(properties().total_memory))
    fields.hard("multiprocessor_count", lambda: int(properties().multi_processor_count))
    fields.soft("device_uuid", lambda: str(properties().uuid))
    for name in CUDA_QUEUE_SETTINGS if kind == "cuda" else HIP_QUEUE_SETTINGS:
        fields.hard(f"environment.{name}", partial(_queue_setting, name))
    if kind == "cuda":
        fields.hard("compute_capability", lambda: f"{properties().major}.{properties().minor}")
        fields.soft("cuda_runtime_version", lambda: _torch().version.cuda)
        vendor = cache(lambda: open_nvml(str(properties().uuid)))
        _read_nvml(fields, vendor)
        shut_down = "nvmlShutdown"
    else:
        fields.hard("gcn_architecture", lambda: str(properties().gcnArchName))
        fields.soft("hip_runtime_version", lambda: _torch().version.hip)
        vendor = cache(lambda: open_amdsmi(str(properties().uuid)))
        _read_amdsmi(fields, vendor)
        shut_down = "amdsmi_shut_down"
    if vendor.cache_info().currsize:  # it was opened
        try:
            getattr(vendor().library, shut_down)()
        except vendor().errors as error:
            fields.result.missing[shut_down] = str(error)


# NVML's nvmlComputeMode_t.
_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}


def _read_nvml(fields: _Fields, nvml: Callable[[], Vendor]) -> None:
    def ask(function: str, *arguments: object) -> Any:
        return getattr(nvml().library, f"nvml{function}")(*arguments)

    def application_clock(kind: str) -> int:
        clock = getattr(nvml().library, f"NVML_CLOCK_{kind}")
        return int(ask("DeviceGetApplicationsClock", nvml().gpu, clock))

    def compute_mode() -> str:
        mode = int(ask("DeviceGetComputeMode", nvml().gpu))
        return _COMPUTE_MODES.get(mode, str(mode))

    def ecc_mode() -> str:
        try:
            return "enabled" if ask("DeviceGetEccMode", nvml().gpu)[0] else "disabled"
        except nvml().library.NVMLError_NotSupported:
            return "not supported"

    def mig_mode() -> str:
        try:
            return "enabled" if ask("DeviceGetMigMode", nvml().gpu)[0] else "disabled"
        except nvml().library.NVMLError_NotSupported:
            return "not supported"

    def mig_slice() -> str:
        if nvml().handle is nvml().gpu:
            return "none"
        part = ask("DeviceGetAttributes_v2", nvml().handle)
        return (
            f"{part.computeInstanceSliceCount}c.{part.gpuInstanceSliceCount}g.{part.memorySizeMB}mb"
        )

    def cuda_driver_version() -> str:
        version = int(ask("SystemGetCudaDriverVersion_v2"))
        return f"{version // 1000}.{version % 1000 // 10}"

    def uncorrected_errors() -> int:
        library = nvml().library
        which = library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, library.NVML_VOLATILE_ECC
        return int(ask("DeviceGetTotalEccErrors", nvml().gpu, *which))

    def row_remapping() -> str:
        _, _, pending, failed = ask("DeviceGetRemappedRows", nvml().gpu)
        return "failed" if failed else "pending" if pending else "ok"

    def active_links() -> int:
        library, states = nvml().library, []
        for link in range(library.NVML_NVLINK_MAX_LINKS):
            try:
                states.append(ask("DeviceGetNvLinkState", nvml().gpu, link))
            except (library.NVMLError_NotSupported, library.NVMLError_InvalidArgument):
                break  # there are no more
        return states.count(library.NVML_FEATURE_ENABLED)

    driver = cache(lambda: _nvidia_driver_version(nvml))
    fields.hard("driver_major", lambda: int(driver().split(".")[0]))
    fields.hard("mig_mode", mig_mode)
    fields.hard("mig_slice", mig_slice)
    fields.soft("driver_version", driver)
    fields.soft("cuda_driver_version", cuda_driver_version)
    fields.soft("pci_bus_id", lambda: str(ask("DeviceGetPciInfo", nvml().gpu).busId))
    fields.soft("application_clock_sm_mhz", lambda: application_clock("SM"))
    fields.soft("application_clock_memory_mhz", lambda: application_clock("MEM"))
    fields.soft("compute_mode", compute_mode)
    fields.soft("ecc_mode", ecc_mode)
    fields.soft("persistence_mode", lambda: bool(ask("DeviceGetPersistenceMode", nvml().gpu)))
    fields.soft(
        "power_limit_w", lambda: float(ask("DeviceGetEnforcedPowerLimit", nvml().gpu)) / 1000
    )
    fields.soft("pcie_link_width", lambda: int(ask("DeviceGetCurrPcieLinkWidth", nvml().gpu)))
    fields.soft("nvlinks_active", active_links)
    # Since the driver was loaded.
    fields.soft("ecc_uncorrected_errors", uncorrected_errors)
    fields.soft("row_remapping", row_remapping)


def _read_amdsmi(fields: _Fields, amd: Callable[[], Vendor]) -> None:
    """Read AMD SMI. Written against its documentation; not yet run on AMD hardware."""

    def ask(function: str) -> Any:
        return getattr(amd().library, f"amdsmi_get_gpu_{function}")(amd().gpu)

    def driver_version() -> str:
        version = str(ask("driver_info")["driver_version"])
        if version == "N/A":
            raise VendorError("AMD SMI gives no driver version")
        return version

    fields.hard("driver_major", lambda: int(driver_version().split(".")[0]))
    fields.hard("compute_partition", lambda: str(ask("compute_partition")))
    fields.hard("memory_partition", lambda: str(ask("memory_partition")))
    fields.soft("driver_version", driver_version)
    fields.soft("pci_bus_id", lambda: str(ask("device_bdf")))
    fields.soft("performance_level", lambda: str(ask("perf_level")))


def _queue_setting(name: str) -> str:
    value = setting(name)
    return "default" if value == _DEFAULTS.get(name) else value


def _torch() -> Any:
    import torch

    return torch


def _properties(kind: DeviceKind, index: int) -> Any:
    torch = _torch()
    if (torch.version.hip is not None) != (kind == "hip"):
        raise VendorError(f"torch {torch.__version__} is not built for {kind}")
    return torch.cuda.get_device_properties(index)


def _nvidia_driver_version(nvml: Callable[[], Vendor]) -> str:
    try:
        return str(nvml().library.nvmlSystemGetDriverVersion())
    except Exception:
        # The kernel module tells too, where there is no NVML; if not, NVML's reason is the better.
        text = Path("/proc/driver/nvidia/version")
        found = re.search(r"\s(\d+\.\d+(\.\d+)?)\s", text.read_text() if text.exists() else "")
        if found is None:
            raise
        return found[1]


def cpu_model() -> str:
    """Return the processor's name, or what there is instead of one."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""  # not Linux; the platform module may know
    found = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", text, re.MULTILINE)
    # 64-bit Arm has no name there, only the numbers of its maker and part.
    numbers = dict(re.findall(r"^CPU (implementer|part)\s*:\s*(\S+)$", text, re.MULTILINE))
    arm = f"Arm implementer {numbers['implementer']} part {numbers['part']}" if numbers else ""
    return found[1].strip() if found else arm or platform.processor()


def _usable_logical_cores() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()
