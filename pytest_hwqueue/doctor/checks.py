"""What a machine is, and whether it is fit to measure on: one function per question, read-only."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pytest_hwqueue.devices.kinds import DeviceChoice
    from pytest_hwqueue.devices.protocol import Device
    from pytest_hwqueue.devices.telemetry import HostSample, TelemetrySample


@dataclass(frozen=True)
class Section:
    """A heading with named values."""

    title: str
    rows: tuple[tuple[str, str], ...]


def describe_machine() -> list[Section]:
    """Describe the software, the host, and every visible accelerator."""
    from pytest_hwqueue.devices.kinds import CPU, choose_devices, visible_accelerators

    accelerators = choose_devices("all") if visible_accelerators()[1] else []
    return [_software(), *(_device(choice) for choice in (CPU, *accelerators))]


def _software() -> Section:
    import torch

    runtime = "none: a CPU build of torch"
    if torch.version.hip:
        runtime = f"HIP {torch.version.hip}"
    elif torch.version.cuda:
        runtime = f"CUDA {torch.version.cuda}"
    versions = [(name, _version(name)) for name in ("pytest-hwqueue", "pytest", "torch")]
    return Section(
        "Software",
        (*versions, ("runtime of torch", runtime), ("Python", platform.python_version())),
    )


def _version(distribution: str) -> str:
    from pytest_hwqueue import __version__

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return f"{__version__} (not installed)" if distribution == "pytest-hwqueue" else "unknown"


def _device(choice: DeviceChoice) -> Section:
    from pytest_hwqueue.devices.kinds import open_device

    title = f"Device {choice.label}"
    try:
        device = open_device(choice.label)
    except RuntimeError as error:  # torch's, or our DeviceError
        # One broken device must not hide the others.
        return Section(title, (("cannot be opened", str(error)),))
    rows = [("name", device.name)]
    if not device.capabilities.host:
        found = device.fingerprint()
        for field in ("driver_version", "cuda_driver_version", "compute_capability"):
            value = found.soft.get(field, found.hard.get(field))
            reason = found.missing.get(field)
            if value is not None or reason is not None:
                text = str(value) if value is not None else f"unknown: {reason}"
                rows.append((field.replace("_", " "), text))
        free, total = _memory(device.index)
        rows.append(("memory free", f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB"))
    rows += [(name, str(value)) for name, value in device.limits().items()]
    return Section(title, tuple(rows))


def _memory(index: int) -> tuple[int, int]:
    import torch

    free, total = torch.cuda.mem_get_info(index)
    return int(free), int(total)


CheckStatus = Literal["ok", "warning", "problem", "unknown"]

_ROOT = Path("/")
_GIB = 2**30
_LEAST_FREE = _GIB
_NOT_OPEN = "the device cannot be opened"
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
    """What the checks look at; ``root`` replaces ``/`` in tests."""

    choice: DeviceChoice
    device: Device | None
    device_error: str
    environment: Mapping[str, str]
    folder: Path
    root: Path = _ROOT


def run_checks(machine: CheckedMachine) -> list[Check]:
    """Run every check that applies to the device; one that fails yields ``unknown``."""
    questions: list[tuple[str, Callable[[CheckedMachine], Check]]] = [
        ("torch", check_torch),
        ("device", check_device),
    ]
    if not machine.choice.capabilities.host:
        questions += [
            ("vendor library", check_vendor_library),
            ("driver", check_driver),
            ("clocks", check_clocks),
            ("other processes", check_other_processes),
            ("queue settings", check_queue_settings),
        ]
    if machine.choice.kind == "cuda":
        questions.append(("MPS", check_mps))
    questions += [
        ("kernel times", check_kernel_times),
        ("preloaded libraries", check_preload),
        ("CPU frequency", check_governor),
        ("cores", check_cores),
        ("load", check_load),
        ("disk", check_disk),
    ]
    return [_answer(name, question, machine) for name, question in questions]


def _answer(
    name: str, question: Callable[[CheckedMachine], Check], machine: CheckedMachine
) -> Check:
    try:
        return question(machine)
    except Exception as error:  # one question must not cost the others their answers
        return Check(name, "unknown", f"{type(error).__name__}: {error}")


def check_torch(machine: CheckedMachine) -> Check:
    """Is torch built for the accelerator whose driver is loaded here?"""
    import torch

    from pytest_hwqueue.devices.kinds import loaded_driver

    build = "a CPU build"
    if torch.version.hip:
        build = f"built for HIP {torch.version.hip}"
    elif torch.version.cuda:
        build = f"built for CUDA {torch.version.cuda}"
    found = f"torch {torch.__version__}, {build}"
    driver = loaded_driver(machine.root)
    if driver and not (torch.version.hip or torch.version.cuda):
        return Check(
            "torch", "problem", f"{found}, though the {driver} driver is loaded",
            "install a build of torch for this accelerator (https://pytorch.org/get-started)",
        )  # fmt: skip
    return Check("torch", "ok", found)


def check_device(machine: CheckedMachine) -> Check:
    """Can the device be opened, and is it the one a user would expect?"""
    from pytest_hwqueue.devices.kinds import loaded_driver

    if machine.device is None:
        return Check(
            "device", "problem", f"{machine.choice.label} cannot be opened: {machine.device_error}",
            "see that other programs can use it (nvidia-smi, rocminfo), or choose another --device",
        )  # fmt: skip
    found = f"{machine.choice.label}: {machine.device.name}"
    driver = loaded_driver(machine.root)
    if machine.choice.capabilities.host and driver:
        return Check(
            "device", "warning", f"{found}, though the {driver} driver is loaded",
            "if you meant the accelerator: look at CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES, the "
            "rights on its device files, and torch's build",
        )  # fmt: skip
    return Check("device", "ok", found)


def check_vendor_library(machine: CheckedMachine) -> Check:
    """Is the library installed that reads clocks, throttling and other processes?"""
    from pytest_hwqueue.devices.telemetry import Unavailable

    if machine.device is None:
        return Check("vendor library", "unknown", _NOT_OPEN)
    reader = machine.device.open_telemetry()
    if isinstance(reader, Unavailable):
        return Check(
            "vendor library", "warning", reader.reason,
            "without it throttling and other processes go unseen; NVIDIA: pip install "
            "'pytest-hwqueue[nvidia]', AMD: the amdsmi package of the installed ROCm",
        )  # fmt: skip
    found = reader.describe()
    reader.close()
    return Check("vendor library", "ok", found)


def check_driver(machine: CheckedMachine) -> Check:
    """Which driver is installed?"""
    if machine.device is None:
        return Check("driver", "unknown", _NOT_OPEN)
    found = machine.device.fingerprint()
    version = found.soft.get("driver_version")
    if version is None:
        return Check("driver", "unknown", found.missing.get("driver_version", "not known"))
    highest = found.soft.get("cuda_driver_version")
    return Check("driver", "ok", f"{version}" + (f", up to CUDA {highest}" if highest else ""))


def check_clocks(machine: CheckedMachine) -> Check:
    """Does the driver stay loaded, and does anything throttle the clocks now?"""
    if machine.device is None:
        return Check("clocks", "unknown", _NOT_OPEN)
    soft = machine.device.fingerprint().soft
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
        return Check(
            "clocks", "warning", ", ".join([*parts, f"slowed down by {', '.join(throttled)}"]),
            "let the device cool down or raise its power limit; the samples will be marked",
        )  # fmt: skip
    if soft.get("persistence_mode") is False:
        return Check(
            "clocks", "warning", ", ".join(parts),
            "keep the driver loaded between processes: nvidia-smi -pm 1",
        )  # fmt: skip
    return Check("clocks", "ok" if parts else "unknown", ", ".join(parts) or "not readable")


def check_other_processes(machine: CheckedMachine) -> Check:
    """Does anyone else use the device?"""
    sample = _read_telemetry(machine)
    others = getattr(sample, "other_processes", None)
    if others is None:
        return Check("other processes", "unknown", f"not readable: {sample}")
    if others:
        found = ", ".join(f"{other.name or 'unknown'} (process {other.pid})" for other in others)
        return Check(
            "other processes", "warning", found,
            "end them, or measure on another device: they share its queues",
        )  # fmt: skip
    return Check("other processes", "ok", "none")


def check_queue_settings(machine: CheckedMachine) -> Check:
    """Do environment variables change how the runtime queues work?"""
    from pytest_hwqueue.devices.fingerprint import CUDA_QUEUE_SETTINGS, HIP_QUEUE_SETTINGS

    names = CUDA_QUEUE_SETTINGS if machine.choice.kind == "cuda" else HIP_QUEUE_SETTINGS
    values = {name: machine.environment[name] for name in names if name in machine.environment}
    found = ", ".join(f"{name}={value}" for name, value in values.items())
    blocking = [name for name, off in _BLOCKING.items() if values.get(name, off) not in ("", off)]
    if blocking:
        return Check(
            "queue settings", "problem", found,
            f"unset {', '.join(blocking)}: every launch waits for its kernel, so nothing queues",
        )  # fmt: skip
    if values:
        return Check(
            "queue settings", "warning", found,
            "results hold for these settings only; unset them unless they are what you measure",
        )  # fmt: skip
    return Check("queue settings", "ok", "the runtime's defaults")


def check_mps(machine: CheckedMachine) -> Check:
    """Is NVIDIA's Multi-Process Service running, which shares the device between processes?"""
    import psutil

    given = machine.environment.get("CUDA_MPS_PIPE_DIRECTORY")
    folder = Path(given) if given else machine.root / "tmp/nvidia-mps"
    daemons = [
        process.pid
        for process in psutil.process_iter(["name"])
        # The kernel cuts a process's name to 15 signs.
        if (process.info["name"] or "").startswith("nvidia-cuda-mps")
    ]
    if daemons:
        return Check(
            "MPS", "warning", f"running (process {daemons[0]}), pipes in {folder}",
            "unless MPS is what you measure, stop it: echo quit | nvidia-cuda-mps-control",
        )  # fmt: skip
    if (folder / "control").exists():
        return Check(
            "MPS", "unknown", f"{folder} has a control pipe, but no daemon is visible from here",
            "it may run outside this container; ask the machine's administrator",
        )  # fmt: skip
    return Check("MPS", "ok", "not running")


def check_kernel_times(machine: CheckedMachine) -> Check:
    """Can single kernels' times be seen, which timelines and dispatch delays need?"""
    from pytest_hwqueue.errors import DeviceError

    if machine.device is None:
        return Check("kernel times", "unknown", _NOT_OPEN)
    with machine.device.open_streams(1) as pool:
        kernel = machine.device.kernel_of(10_000)
        try:
            timeline = pool.held_timeline(lambda: pool.streams[0].launch(kernel))
        except DeviceError as error:
            return Check(
                "kernel times", "warning", str(error),
                "there will be no timelines; allow profiling (NVIDIA: the module option "
                "NVreg_RestrictProfilingToAdminUsers=0, or CAP_SYS_ADMIN)",
            )  # fmt: skip
    return Check("kernel times", "ok", f"readable ({len(timeline.kernels)} kernel traced)")


def check_preload(machine: CheckedMachine) -> Check:
    """Is a library preloaded that may intercept launches?"""
    value = machine.environment.get("LD_PRELOAD", "")
    if value:
        return Check(
            "preloaded libraries", "warning", f"LD_PRELOAD={value}",
            "unset it unless this library is what you measure",
        )  # fmt: skip
    return Check("preloaded libraries", "ok", "none")


def check_governor(machine: CheckedMachine) -> Check:
    """Do the cores run at a constant frequency?"""
    pattern = "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"
    governors = sorted({file.read_text().strip() for file in machine.root.glob(pattern)})
    if not governors:
        return Check("CPU frequency", "unknown", "no governor is visible (usual in a VM)")
    found = f"governor {', '.join(governors)}"
    if governors == ["performance"]:
        return Check("CPU frequency", "ok", found)
    return Check(
        "CPU frequency", "warning", found,
        "launch times follow the frequency: cpupower frequency-set -g performance",
    )  # fmt: skip


def check_cores(machine: CheckedMachine) -> Check:
    """How many cores may this process use, and may it use them all the time?"""
    usable, present = _usable_cores(), os.cpu_count() or 1
    found = f"{usable} of {present} usable"
    quota_file = machine.root / "sys/fs/cgroup/cpu.max"
    quota, _, period = (quota_file.read_text() if quota_file.is_file() else "max").partition(" ")
    if quota.strip() != "max" and int(quota) < usable * int(period):
        return Check(
            "cores", "warning", f"{found}, but a quota of {int(quota) / int(period):g} cores",
            "a used-up quota stops all threads for the rest of its period, up to "
            f"{int(period) / 1000:g} ms: raise the container's CPU limit",
        )  # fmt: skip
    if usable == 1:
        return Check(
            "cores", "warning", found, "give a second core, so that others need not take this one"
        )
    return Check("cores", "ok", found)


def check_load(machine: CheckedMachine) -> Check:
    """Are the cores free?"""
    load, cores = os.getloadavg()[0], _usable_cores()
    found = f"load average {load:.2f} over the last minute on {cores} cores"
    # A CPU device needs every core; an accelerator needs one core to launch.
    free = cores - load
    if free < (0.75 * cores if machine.choice.capabilities.host else 1):
        return Check("load", "warning", found, "wait for the other work to end, or end it")
    return Check("load", "ok", found)


def check_disk(machine: CheckedMachine) -> Check:
    """Can records be written, and is there room for them?"""
    folder = machine.folder.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    found = f"{free / _GIB:.1f} GiB free for {machine.folder}"
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        return Check(
            "disk", "problem", f"{folder} is not a folder that this user can write to",
            "choose another --dir",
        )  # fmt: skip
    if free < _LEAST_FREE:
        return Check("disk", "warning", found, "make room, or choose another --dir")
    return Check("disk", "ok", found)


def _read_telemetry(machine: CheckedMachine) -> TelemetrySample | HostSample | str:
    """Read the device once, or return why it cannot be read."""
    from pytest_hwqueue.devices.telemetry import Unavailable

    if machine.device is None:
        return _NOT_OPEN
    reader = machine.device.open_telemetry()
    if isinstance(reader, Unavailable):
        return reader.reason
    try:
        return reader.read()
    finally:
        reader.close()


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
