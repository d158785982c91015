"""Collects what `hwq doctor` shows first: versions, devices and their properties."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_hwqueue.devices.discover import DeviceChoice


@dataclass(frozen=True)
class Section:
    """A heading with named values."""

    title: str
    rows: tuple[tuple[str, str], ...]


def describe_machine() -> list[Section]:
    """Describe the software, the host, and every visible accelerator."""
    from pytest_hwqueue.devices.discover import CPU, choose_devices, visible_accelerators

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
    from pytest_hwqueue.devices.discover import open_device

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
