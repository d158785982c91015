"""What a machine is, and whether it is fit to measure on: one function per question, read-only."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Literal

import torch

from pytest_hwqueue import __version__
from pytest_hwqueue.data.errors import DeviceError, HwqError, speaks_for_itself
from pytest_hwqueue.data.records.telemetry import HostSample, TelemetrySample
from pytest_hwqueue.parts.devices.connections import CONNECTIONS
from pytest_hwqueue.parts.devices.fingerprint import CUDA_QUEUE_SETTINGS, HIP_QUEUE_SETTINGS
from pytest_hwqueue.parts.devices.kinds import (
    CPU,
    DeviceChoice,
    choose_devices,
    loaded_driver,
    open_device,
    visible_accelerators,
)
from pytest_hwqueue.parts.devices.protocol import Device
from pytest_hwqueue.parts.devices.telemetry import Unavailable
from pytest_hwqueue.parts.processes.process_table import Programs, running_programs
from pytest_hwqueue.parts.schedulers import mps_daemons
from pytest_hwqueue.parts.schedulers.mps_daemons import CONTROL, PIPES


def describe_machine() -> dict[str, dict[str, str]]:
    """Return values by name of the software, the host, and every visible accelerator, by title."""
    software = {
        "pytest-hwqueue": __version__, "pytest": metadata.version("pytest"),
        "torch": torch.__version__, "runtime of torch": _runtime() or "none: a CPU build of torch",
        "transformers": _version("transformers"), "torchvision": _version("torchvision"),
        "Python": platform.python_version(),
    }  # fmt: skip
    accelerators = choose_devices("all") if visible_accelerators()[1] else []
    devices = {f"Device {each.label}": _described(each.label) for each in (CPU, *accelerators)}
    return {"Software": software, **devices}


def _version(package: str) -> str:
    """Return the version of a package that models need."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _runtime() -> str:
    """Return what torch is built for, with its version; empty for a CPU build."""
    if torch.version.hip:
        return f"HIP {torch.version.hip}"
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else ""


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _described(label: str) -> dict[str, str]:
    try:
        device = open_device(label)
    except RuntimeError as error:  # torch's, or our DeviceError
        # One broken device must not hide the others.
        return {"cannot be opened": str(error)}
    said = {"name": device.name}
    if not device.capabilities.host:
        found = device.fingerprint()
        for field in ("driver_version", "cuda_driver_version", "compute_capability"):
            value = found.soft.get(field, found.hard.get(field))
            if value is None and field in found.missing:
                value = f"unknown: {found.missing[field]}"
            if value is not None:
                said[field.replace("_", " ")] = str(value)
        free, total = torch.cuda.mem_get_info(device.index)
        said["memory free"] = f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB"
    return said | {name: str(value) for name, value in device.limits().items()}


CheckStatus = Literal["ok", "warning", "problem", "unknown"]

_ROOT = Path("/")
_GIB = 2**30
_LEAST_FREE = _GIB
# Each makes every launch wait for its kernel, so nothing is ever queued.
_BLOCKING = {
    "CUDA_LAUNCH_BLOCKING": "0",
    "HIP_LAUNCH_BLOCKING": "0",
    "AMD_SERIALIZE_KERNEL": "0",
}


@dataclass(frozen=True)
class Check:
    """An answer: the finding and, unless all is well, what to do about it."""

    name: str
    status: CheckStatus
    found: str
    advice: str = ""


@dataclass(frozen=True)
class CheckedMachine:
    """What the checks look at.

    Attributes:
        choice: of the device.
        device: it, opened; None if it cannot be.
        device_error: why not.
        environment: of processes that will measure.
        folder: for records.
        root: of the file system.
        usable_cores: by this process.
        runtime: what torch is built for, with its version; empty for a CPU build.
        programs: finds those that run.
        free_bytes: of the disk that has a folder.

    """

    choice: DeviceChoice
    device: Device | None
    device_error: str
    environment: Mapping[str, str]
    folder: Path
    root: Path = _ROOT
    usable_cores: int = field(default_factory=_usable_cores)
    runtime: str = field(default_factory=_runtime)
    programs: Programs = running_programs
    free_bytes: Callable[[Path], int] = _free_bytes

    @property
    def opened(self) -> Device:
        """The device; HwqError if it could not be opened."""
        if self.device is None:
            raise HwqError("the device cannot be opened")
        return self.device


# What is found, and what to do about it; whatever is raised is found to be unknown.
Answer = tuple[CheckStatus, str, str]


def run_checks(machine: CheckedMachine) -> list[Check]:
    """Run every check that applies to the device; one that fails yields ``unknown``."""
    without = _OF_ACCELERATORS if machine.choice.capabilities.host else frozenset[str]()
    if machine.choice.kind != "cuda":
        without |= {"MPS"}
    return [ask(name, machine) for name in _QUESTIONS if name not in without]


def ask(name: str, machine: CheckedMachine) -> Check:
    """Run one check."""
    try:
        return Check(name, *_QUESTIONS[name](machine))
    except Exception as error:  # one question must not cost the others their answers
        kind = "" if speaks_for_itself(error) else f"{type(error).__name__}: "
        return Check(name, "unknown", f"{kind}{error}")


def _torch(machine: CheckedMachine) -> Answer:
    """Is torch built for the accelerator whose driver is loaded here?"""
    runtime = machine.runtime
    found = f"torch {torch.__version__}, {f'built for {runtime}' if runtime else 'a CPU build'}"
    driver = loaded_driver(machine.root)
    if driver and not runtime:
        advice = "install a build of torch for this accelerator (https://pytorch.org/get-started)"
        return "problem", f"{found}, though the {driver} driver is loaded", advice
    return "ok", found, ""


def _device(machine: CheckedMachine) -> Answer:
    """Can the device be opened, and is it the one a user would expect?"""
    label = machine.choice.label
    if machine.device is None:
        advice = (
            "see that other programs can use it (nvidia-smi, rocminfo), or choose another --device"
        )
        return "problem", f"{label} cannot be opened: {machine.device_error}", advice
    found = f"{label}: {machine.device.name}"
    driver = loaded_driver(machine.root)
    if machine.choice.capabilities.host and driver:
        advice = (
            "if you meant the accelerator: look at CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES, the "
            "rights on its device files, and torch's build"
        )
        return "warning", f"{found}, though the {driver} driver is loaded", advice
    return "ok", found, ""


def _vendor_library(machine: CheckedMachine) -> Answer:
    """Is the library installed that reads clocks, throttling and other processes?"""
    reader = machine.opened.open_telemetry()
    if isinstance(reader, Unavailable):
        advice = (
            "without it throttling and other processes go unseen; NVIDIA: pip install "
            "'pytest-hwqueue[nvidia]', AMD: the amdsmi package of the installed ROCm"
        )
        return "warning", reader.reason, advice
    found = reader.describe()
    reader.close()
    return "ok", found, ""


def _driver(machine: CheckedMachine) -> Answer:
    """Which driver is installed?"""
    found = machine.opened.fingerprint()
    version = found.soft.get("driver_version")
    if version is None:
        return "unknown", found.missing.get("driver_version", "not known"), ""
    highest = found.soft.get("cuda_driver_version")
    return "ok", f"{version}" + (f", up to CUDA {highest}" if highest else ""), ""


def _clocks(machine: CheckedMachine) -> Answer:
    """Does the driver stay loaded, and does anything throttle the clocks now?"""
    soft = machine.opened.fingerprint().soft
    sample = _read_telemetry(machine)
    names = {
        "persistence_mode": "persistence mode",
        "application_clock_sm_mhz": "application clock (MHz)",
        "performance_level": "performance level",
        "power_limit_w": "power limit (W)",
    }
    parts = [f"{text} {soft[name]}" for name, text in names.items() if name in soft]
    throttled = getattr(sample, "throttle_reasons", ())
    clock = getattr(sample, "sm_clock_mhz", None)
    parts += [f"now {clock} MHz"] if clock is not None else []
    if throttled:
        advice = "let the device cool down or raise its power limit; the samples will be marked"
        return "warning", ", ".join([*parts, f"slowed down by {', '.join(throttled)}"]), advice
    if soft.get("persistence_mode") is False:
        advice = "keep the driver loaded between processes: nvidia-smi -pm 1"
        return "warning", ", ".join(parts), advice
    return "ok" if parts else "unknown", ", ".join(parts) or "not readable", ""


def _other_processes(machine: CheckedMachine) -> Answer:
    """Does anyone else use the device?"""
    sample = _read_telemetry(machine)
    others = getattr(sample, "other_processes", None)
    if others is None:
        return "unknown", f"not readable: {sample}", ""
    if others:
        found = ", ".join(f"{other.name or 'unknown'} (process {other.pid})" for other in others)
        return "warning", found, "end them, or measure on another device: they share its queues"
    return "ok", "none", ""


def _queue_settings(machine: CheckedMachine) -> Answer:
    """Do environment variables change how the runtime queues work?"""
    names = CUDA_QUEUE_SETTINGS if machine.choice.kind == "cuda" else HIP_QUEUE_SETTINGS
    values = {name: machine.environment[name] for name in names if name in machine.environment}
    found = ", ".join(f"{name}={value}" for name, value in values.items())
    blocking = [name for name, off in _BLOCKING.items() if values.get(name, off) not in ("", off)]
    if blocking:
        unset = ", ".join(blocking)
        advice = f"unset {unset}: every launch waits for its kernel, so nothing queues"
        return "problem", found, advice
    connections = CONNECTIONS["cuda" if machine.choice.kind == "cuda" else "hip"]
    if wrong := connections.problem(values.get(connections.variable, "")):
        return "warning", found, f"set {connections.variable} to a valid number: {wrong}"
    if values:
        advice = "results hold for these settings only; unset them unless they are what you measure"
        return "warning", found, advice
    return "ok", "the runtime's defaults", ""


def _mps(machine: CheckedMachine) -> Answer:
    """Is NVIDIA's Multi-Process Service running, which shares the device between processes?"""
    folder = Path(machine.environment.get(PIPES) or machine.root / "tmp/nvidia-mps")
    if daemons := mps_daemons.running(machine.programs):
        advice = f"unless MPS is what you measure, stop it: echo quit | {CONTROL}"
        return "warning", f"running (process {daemons[0].pid}), pipes in {folder}", advice
    if (folder / "control").exists():
        advice = "it may run outside this container; ask the machine's administrator"
        return "unknown", f"{folder} has a control pipe, but no daemon is visible from here", advice
    return "ok", "not running", ""


def _kernel_times(machine: CheckedMachine) -> Answer:
    """Can single kernels' times be seen, which timelines and dispatch delays need?"""
    device = machine.opened
    with device.open_streams(1) as pool:
        kernel = device.kernel_of(10_000)
        try:
            timeline = pool.held_timeline(lambda: pool.streams[0].launch(kernel))
        except DeviceError as error:
            advice = (
                "there will be no timelines; allow profiling (NVIDIA: the module option "
                "NVreg_RestrictProfilingToAdminUsers=0, or CAP_SYS_ADMIN)"
            )
            return "warning", str(error), advice
    return "ok", f"readable ({len(timeline.kernels)} kernel traced)", ""


def _preload(machine: CheckedMachine) -> Answer:
    """Is a library preloaded that may intercept launches?"""
    value = machine.environment.get("LD_PRELOAD", "")
    if value:
        advice = (
            "it reaches the processes that measure, and figures are compared only with those under "
            "the same: unset it unless you mean that"
        )
        return "warning", f"LD_PRELOAD={value}", advice
    return "ok", "none", ""


def _governor(machine: CheckedMachine) -> Answer:
    """Do the cores run at a constant frequency?"""
    pattern = "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"
    governors = sorted({file.read_text().strip() for file in machine.root.glob(pattern)})
    if not governors:
        return "unknown", "no governor is visible (usual in a VM)", ""
    found = f"governor {', '.join(governors)}"
    if governors == ["performance"]:
        return "ok", found, ""
    advice = "launch times follow the frequency: cpupower frequency-set -g performance"
    return "warning", found, advice


def _cores(machine: CheckedMachine) -> Answer:
    """How many cores may this process use, and may it use them all the time?"""
    usable, present = machine.usable_cores, os.cpu_count() or 1
    found = f"{usable} of {present} usable"
    quota_file = machine.root / "sys/fs/cgroup/cpu.max"
    quota, _, period = (quota_file.read_text() if quota_file.is_file() else "max").partition(" ")
    if quota.strip() != "max" and int(quota) < usable * int(period):
        advice = (
            "a used-up quota stops all threads for the rest of its period, up to "
            f"{int(period) / 1000:g} ms: raise the container's CPU limit"
        )
        return "warning", f"{found}, but a quota of {int(quota) / int(period):g} cores", advice
    if usable == 1:
        return "warning", found, "give a second core, so that others need not take this one"
    return "ok", found, ""


def _load(machine: CheckedMachine) -> Answer:
    """Are the cores free?"""
    load = float((machine.root / "proc/loadavg").read_text().split()[0])
    cores = machine.usable_cores
    found = f"load average {load:.2f} over the last minute on {cores} cores"
    # A CPU device needs every core; an accelerator needs one core to launch.
    free = cores - load
    if free < (0.75 * cores if machine.choice.capabilities.host else 1):
        return "warning", found, "wait for the other work to end, or end it"
    return "ok", found, ""


def _disk(machine: CheckedMachine) -> Answer:
    """Can records be written, and is there room for them?"""
    folder = machine.folder.absolute()
    while not folder.exists():
        folder = folder.parent
    free = machine.free_bytes(folder)
    found = f"{free / _GIB:.1f} GiB free for {machine.folder}"
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        advice = "choose another --dir"
        return "problem", f"{folder} is not a folder that this user can write to", advice
    if free < _LEAST_FREE:
        return "warning", found, "make room, or choose another --dir"
    return "ok", found, ""


# In the order of the answers.
_QUESTIONS: Mapping[str, Callable[[CheckedMachine], Answer]] = {
    "torch": _torch,
    "device": _device,
    "vendor library": _vendor_library,
    "driver": _driver,
    "clocks": _clocks,
    "other processes": _other_processes,
    "queue settings": _queue_settings,
    "MPS": _mps,
    "kernel times": _kernel_times,
    "preloaded libraries": _preload,
    "CPU frequency": _governor,
    "cores": _cores,
    "load": _load,
    "disk": _disk,
}
_OF_ACCELERATORS = frozenset(
    {"vendor library", "driver", "clocks", "other processes", "queue settings"}
)


def _read_telemetry(machine: CheckedMachine) -> TelemetrySample | HostSample | str:
    """Read the device once, or return why it cannot be read."""
    reader = machine.opened.open_telemetry()
    if isinstance(reader, Unavailable):
        return reader.reason
    try:
        return reader.read()
    finally:
        reader.close()
