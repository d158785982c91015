"""What `hwq info` shows: versions, devices and what they say of themselves."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib import metadata


@dataclass(frozen=True)
class Section:
    """A heading with named values beneath."""

    title: str
    rows: tuple[tuple[str, str], ...]


def describe_machine() -> list[Section]:
    """Describe the software, the host, and every visible accelerator."""
    from pytest_hwqueue.devices.discover import visible_accelerators

    kind, count = visible_accelerators()
    labels = ["cpu", *(f"{kind}:{index}" if index else kind for index in range(count))]
    return [_software(), *(_device(label, index - 1) for index, label in enumerate(labels))]


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


def _device(label: str, index: int) -> Section:
    from pytest_hwqueue.devices.discover import open_device
    from pytest_hwqueue.devices.fingerprint import fingerprint
    from pytest_hwqueue.devices.protocol import DeviceError

    try:
        device = open_device(label)
    except (DeviceError, RuntimeError) as error:
        # One broken device must not hide the others.
        return Section(f"Device {label}", (("cannot be opened", str(error)),))
    rows = [("name", device.name)]
    if device.kind in ("cuda", "hip"):
        found = fingerprint(device.kind, max(0, index))  # type: ignore[arg-type]
        for field in ("driver_version", "cuda_driver_version", "compute_capability"):
            value = found.soft.get(field, found.hard.get(field))
            reason = found.missing.get(field)
            if value is not None or reason is not None:
                text = str(value) if value is not None else f"unknown: {reason}"
                rows.append((field.replace("_", " "), text))
        free, total = _memory(max(0, index))
        rows.append(("memory free", f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB"))
    rows += [(name, str(value)) for name, value in device.limits().items()]
    return Section(f"Device {label}", tuple(rows))


def _memory(index: int) -> tuple[int, int]:
    import torch

    free, total = torch.cuda.mem_get_info(index)
    return int(free), int(total)
